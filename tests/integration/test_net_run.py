"""Whole runs over real sockets on loopback: the service, the client, the cores; toy models."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from support.live_run import WAIT_S, LiveSyncer, layout_of, live_syncer, small_config, train
from unlockstep.checkers import SAFETY, check
from unlockstep.config import CodecSection, OuterSection, RunSection
from unlockstep.core.events import EvaluationReported, Event, FragmentCommitted
from unlockstep.core.formats import Codec, Packing
from unlockstep.core.merge import MergeRule
from unlockstep.core.messages import Evaluation, Published, Stop
from unlockstep.core.options import ProtocolOptions
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import LearnerLoop
from unlockstep.net.clients.observer import Observer, read_status

BOTH = ProtocolOptions(fragments=2, interval_steps=2, grace_factor=0.0, quorum=2)
"""Every round waits for two learners, so that the last rounds, too, collect everything."""


def committed(events: list[Event], fragment: int) -> list[FragmentCommitted]:
    return [event for event in events if isinstance(event, FragmentCommitted) and event.fragment == fragment]


async def train_two(syncer: LiveSyncer, *backends: ToyBackend) -> list[LearnerLoop]:
    return await asyncio.gather(*(asyncio.to_thread(train, syncer, f"l{i}", b) for i, b in enumerate(backends)))


def test_two_learners_train_one_model_to_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(small_config(protocol=BOTH), tmp_path) as syncer:
            loops = await train_two(syncer, ToyBackend(seed=1, noise=0.1), ToyBackend(seed=2, noise=0.1))
            assert syncer.service.over.is_set()
            assert [(loop.done.reason, loop.done.failed) for loop in loops if loop.done] == [
                ("the run has finished", False)
            ] * 2
            for fragment in range(2):
                commits = committed(syncer.log.events, fragment)
                assert [commit.version for commit in commits] == list(range(1, len(commits) + 1))
                assert all(abs(sum(commit.weights.values()) - 1) < 1e-12 for commit in commits)
            house, ledger = syncer.service.storehouse, syncer.service.status().ledger
            assert house is not None and house.held_count == 0
            fates = ledger.merged, ledger.merged_late, *ledger.refused.values(), ledger.dropped, ledger.in_flight
            assert ledger.in_flight == 0 and sum(fates) == ledger.trained and ledger.merged > 0

    threads = set(threading.enumerate())
    asyncio.run(run())
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize("download", [Codec.FLOAT32, Codec.INT8])
def test_a_run_whose_contributions_are_four_bits_reaches_what_it_would_have_reached(
    download: Codec, tmp_path: Path
) -> None:
    """int8, or int4 for whoever has a slow link; what rounding takes is handed over with the next contribution."""
    codec = CodecSection(
        upload=Codec.INT8, upload_fallbacks=(Codec.INT4,), upload_packing=Packing.ZSTD, download=download
    )
    outer = OuterSection(optimizer="sgd", learning_rate=0.7, merge=MergeRule.MEAN)
    config = small_config(protocol=BOTH, codec=codec, outer=outer, run=RunSection(name="small", steps=80))

    async def run() -> None:
        async with live_syncer(config, tmp_path) as syncer:
            toys = ToyBackend(seed=1), ToyBackend(seed=2)
            await train_two(syncer, *toys)
            assert check(syncer.log.events, config.protocol, rules=SAFETY) == []
            status, house = syncer.service.status(), syncer.service.storehouse
            assert status.refusals == {} and house is not None
            assert {learner.codec for learner in status.learners} <= {"int8", "int4"}
            assert all(learner.upload_bytes_per_s for learner in status.learners)
            layout = layout_of(toys[0], config)
            toys[0].bind(layout)
            for fragment in range(2):
                toys[0].values[:] = toys[0].optimum
                distance = np.abs(house.values(fragment) - toys[0].read_fragment(fragment)).max()
                assert distance < 0.25, "it began 2.5 away; in float32 it ends 0.01 to 0.05 away"

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


def test_an_observer_sees_every_version_and_its_evaluation_is_in_the_run_log(tmp_path: Path) -> None:
    async def run() -> None:
        config = small_config(protocol=BOTH)
        async with live_syncer(config, tmp_path) as syncer:
            layout = layout_of(ToyBackend(), config)
            training = asyncio.gather(train_two(syncer, ToyBackend(), ToyBackend()))
            seen: dict[int, list[int]] = {0: [], 1: []}
            async with Observer(syncer.url, config.run.name, "eval", layout, config.codec.download) as observer:
                async for message in observer.messages():
                    if isinstance(message, Stop):
                        break
                    if isinstance(message, Published):
                        seen[message.notice.fragment].append(message.notice.version)
                        newest = message.notice
                values = await observer.fetch(newest)
                assert values is not None and syncer.service.storehouse is not None
                assert_array_equal(values, syncer.service.storehouse.values(newest.fragment))
                await observer.send(Evaluation("eval", 12, 0.5, 0.25, (newest.version,) * 2))
                (evaluation,) = await syncer.log.until(EvaluationReported)
            await training
            assert (evaluation.source, evaluation.loss) == ("eval", 0.5)
            for fragment, versions in seen.items():
                assert versions == list(range(versions[0], len(committed(syncer.log.events, fragment)) + 1))
            status = await asyncio.to_thread(read_status, syncer.url)
            assert status.evaluations[-1].loss == 0.5 and status.state == "finished"

    asyncio.run(run())


def test_a_learner_whose_model_differs_is_turned_away_with_the_difference(tmp_path: Path) -> None:
    """C17"""

    async def run() -> None:
        async with live_syncer(small_config(), tmp_path) as syncer, aiohttp.ClientSession() as session:
            await syncer.puppet(session, "right").start()
            wrong = await asyncio.to_thread(train, syncer, "wrong", ToyBackend(sizes=(32, 16, 17, 16, 8)))
            assert wrong.done is not None and wrong.done.failed
            assert "layers.1.weight: shape 16 here, 17 there" in wrong.done.reason
            assert "layers.3.weight: there with shape 8, missing here" in wrong.done.reason

    asyncio.run(run())

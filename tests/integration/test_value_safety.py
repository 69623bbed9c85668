"""A syncer process and learners in threads: a quarantine that heals, and a run that goes back, also over a restart."""

from __future__ import annotations

import asyncio
import functools
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from support import commands
from support.live_run import WAIT_S, layout_of, small_config
from support.toy_site import ToyLearner, toy_site
from unlockstep import config as run_config
from unlockstep import runlog
from unlockstep.checkers import check
from unlockstep.config import DurabilitySection, RunConfig, RunSection, apply
from unlockstep.core.events import (
    ContributionRefused,
    Event,
    FragmentAdopted,
    LearnerDeparted,
    LearnerJoined,
    RolledBack,
)
from unlockstep.core.messages import Evaluation
from unlockstep.core.reasons import DepartureReason, RefusalReason
from unlockstep.core.status import Status
from unlockstep.learners.toy import ToyBackend
from unlockstep.net.access.security import NO_SECURITY
from unlockstep.net.clients.observer import Observer, read_status

Start = Callable[..., tuple["subprocess.Popen[str]", str]]

until = functools.partial(commands.until, timeout_s=WAIT_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``unlockstep syncer`` with these arguments and waits for its address; none of them outlives the test."""
    with commands.commands() as start_one:

        def run(*arguments: str) -> tuple[subprocess.Popen[str], str]:
            process = start_one("syncer", "--run-dir", str(tmp_path / "run"), *arguments)
            return process, commands.url_of(process)

        yield run


def settings(folder: Path, *changes: str) -> tuple[RunConfig, str]:
    whole = small_config(run=RunSection(name="small", steps=10**6), durability=DurabilitySection(lease_s=0.5))
    config = apply(whole, changes)
    path = folder / "given.toml"
    path.write_text(run_config.dumps(config))
    return config, str(path)


def state(status: Status, name: str) -> str:
    return next((each.state for each in status.learners if each.learner == name), "")


def ended(process: subprocess.Popen[str], folder: Path, config: RunConfig) -> list[Event]:
    """Its run log, after it was told to end; it breaks no rule."""
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    _, events = runlog.read(folder / "run" / "run.jsonl")
    assert check(events, config.protocol, timer_ns=10**9, transfer_ns=10**10) == []
    return events


def test_a_learner_whose_model_breaks_is_shut_out_and_comes_back_sound(start: Start, tmp_path: Path) -> None:
    """C9, C25: over a restart of the syncer in between, and with a second process that tries to get in meanwhile."""
    config, given = settings(tmp_path, "protocol.quarantine_s=2.0")
    process, url = start("--config", given, "--listen", "127.0.0.1:0")
    with toy_site(url, config, 2) as learners:
        until(url, lambda status: status.rounds_committed >= 3)
        learners[1].backend.values[:] = np.nan
        until(url, lambda status: learners[1].loop.incarnation == 0)  # It was told, so it is on disk.
        process.kill()
        process.communicate()
        port = url.rsplit(":", 1)[1]
        process, _ = start("--listen", f"127.0.0.1:{port}")
        another = ToyLearner(url, config, "toy-1", 5, NO_SECURITY)
        status = until(url, lambda status: state(status, "toy-0") == "live")
        committed = status.rounds_committed
        until(url, lambda status: state(status, "toy-1") == "live")
        until(url, lambda status: status.rounds_committed >= committed + 3)
        another.close()
        for learner in learners:
            assert learner.done is None or "another process has joined" in learner.done.reason
        assert np.isfinite(learners[0].backend.values).all()
    events = ended(process, tmp_path, config)
    gone = [event for event in events if isinstance(event, LearnerDeparted)]
    (out,) = [event for event in gone if event.reason is DepartureReason.QUARANTINED]
    refused = [event for event in events if isinstance(event, ContributionRefused) and event.learner == "toy-1"]
    assert [e.strikes for e in refused if e.reason is RefusalReason.NON_FINITE] == [1, 2, 3]
    back = [e for e in events if isinstance(e, LearnerJoined) and e.learner == "toy-1" and e.at_ns > out.at_ns]
    assert back[0].at_ns >= out.at_ns + 2 * 10**9
    assert not back[0].resumed


def test_the_same_process_goes_on_after_its_quarantine(start: Start, tmp_path: Path) -> None:
    """C9"""
    config, given = settings(tmp_path, "protocol.quarantine_s=0.5")
    process, url = start("--config", given, "--listen", "127.0.0.1:0")
    with toy_site(url, config, 2) as learners:
        until(url, lambda status: status.rounds_committed >= 3)
        learners[1].backend.values[:] = np.nan
        until(url, lambda status: state(status, "toy-1") == "quarantined")
        until(url, lambda status: state(status, "toy-1") == "live")
        merged = next(each for each in read_status(url, "small").learners if each.learner == "toy-1").rounds_merged
        until(url, lambda status: any(e.learner == "toy-1" and e.rounds_merged > merged for e in status.learners))
        assert learners[1].loop.incarnation == 2
        assert np.isfinite(learners[1].backend.values).all()
    ended(process, tmp_path, config)


def test_a_run_goes_back_when_the_evaluator_reports_a_spike(start: Start, tmp_path: Path) -> None:
    """C9: the values and digests are those of a version that was published before, under new numbers."""
    config, given = settings(tmp_path, "rollback.spike_factor=2.0", "rollback.window=3")
    process, url = start("--config", given, "--listen", "127.0.0.1:0")

    async def judge() -> None:
        layout = layout_of(ToyBackend(), config)
        async with Observer(url, "small", "judge", layout, config.codec.download) as observer:
            for loss in (3.0, 2.0, 1.9, 1.8, float("nan")):
                status = await asyncio.to_thread(read_status, url, "small")
                goal = status.rounds_committed + 4
                status = await asyncio.to_thread(until, url, lambda status, goal=goal: status.rounds_committed >= goal)
                await observer.send(Evaluation("judge", status.clock, loss, loss, status.versions))
            await asyncio.to_thread(until, url, lambda status: status.rollbacks == 1)

    with toy_site(url, config, 2) as learners:
        until(url, lambda status: status.rounds_committed >= 1)
        asyncio.run(asyncio.wait_for(judge(), 2 * WAIT_S))
        committed = until(url, lambda status: status.rollbacks == 1).rounds_committed
        until(url, lambda status: status.rounds_committed >= committed + 6)
        told = learners[0].told
    events = ended(process, tmp_path, config)
    (back,) = [event for event in events if isinstance(event, RolledBack)]
    for fragment, (version, digest) in enumerate(zip(back.versions, back.digests, strict=True)):
        earlier = {number for (index, number), each in told.items() if (index, each) == (fragment, digest)}
        assert min(earlier) < version - 1
        adopted = [event for event in events if isinstance(event, FragmentAdopted) and event.fragment == fragment]
        assert {event.digest for event in adopted if event.version == version} == {digest}

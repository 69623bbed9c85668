"""A learner that lost everything takes parameters and optimizer from another one, over real sockets."""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from support.live_run import small_config
from support.syncer_thread import SyncerThread, syncer_thread
from unlockstep.config import RecoverySection, RunConfig, RunSection
from unlockstep.core.events import (
    ContributionAccepted,
    FragmentCommitted,
    LearnerDeparted,
    LearnerJoined,
    LearnerLive,
    StateHandedOver,
    StateNotHandedOver,
    StepReported,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import Recovered
from unlockstep.integrations.torch_loop import Learner

H = 4


def config(**sections: object) -> RunConfig:
    protocol = ProtocolOptions(fragments=2, interval_steps=H, grace_factor=0.0)
    return small_config(run=RunSection(name="small", steps=10**6), protocol=protocol, **sections)


class Loop:
    """A loop of one's own."""

    def __init__(self, seed: int, kind: type[torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        before = torch.get_rng_state()
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        torch.set_rng_state(before)
        self.optimizer = kind(self.model.parameters(), lr=0.01)  # type: ignore[call-arg]
        self.rows = torch.rand(4, 2, generator=torch.Generator().manual_seed(seed))

    def learner(self, syncer: SyncerThread, name: str, checkpoint: Path | None = None) -> Learner:
        return Learner(
            self.model, self.optimizer, syncer=syncer.url, name=name, checkpoint=checkpoint, checkpoint_interval_s=0
        )

    def inner_step(self) -> torch.Tensor:
        loss = (self.model(self.rows) - 1).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def train(self, syncer: SyncerThread, learner: Learner, steps: int) -> None:
        for taken in range(1, steps + 1):
            assert learner.step(tokens=4, loss=self.inner_step())
            syncer.live.log.wait(StepReported, learner=learner.name, incarnation=learner.incarnation, steps=taken)

    @property
    def digest(self) -> str:
        """Of all that the optimizer remembers."""
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            for key, value in sorted(self.optimizer.state[parameter].items()):
                digest.update(key.encode() + value.numpy().tobytes())
        return digest.hexdigest()


class Others:
    """Learners that train in threads of their own, and remember what their optimizers were at every boundary."""

    def __init__(self) -> None:
        self.digests: set[str] = set()
        self.over = threading.Event()

    def train(self, syncer: SyncerThread, name: str, seed: int) -> None:
        loop = Loop(seed)
        with loop.learner(syncer, name) as learner:
            for taken in itertools.count(1):
                loss = loop.inner_step()
                self.digests.add(loop.digest)
                learner.step(tokens=4, loss=loss)
                if self.over.is_set():
                    return
                syncer.live.log.wait(StepReported, learner=name, steps=taken)


@contextmanager
def others(syncer: SyncerThread, *names: str) -> Iterator[Others]:
    """They have trained H steps each."""
    training = Others()
    threads = [
        threading.Thread(target=training.train, args=(syncer, name, number)) for number, name in enumerate(names)
    ]
    for thread in threads:
        thread.start()
    try:
        for name in names:
            syncer.live.log.wait(StepReported, learner=name, steps=H)
        yield training
    finally:
        training.over.set()
        for thread in threads:
            thread.join()


def test_one_that_lost_everything_has_a_donors_optimizer_and_contributes_within_h_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with syncer_thread(config(), tmp_path) as syncer, others(syncer, "a", "b") as training:
        lost = Loop(8)
        with lost.learner(syncer, "c") as learner:
            lost.train(syncer, learner, 2)
        syncer.live.log.wait(LearnerDeparted, learner="c")
        caplog.clear()
        new = Loop(9)
        with caplog.at_level(logging.INFO), new.learner(syncer, "c") as learner:
            assert learner.recovered == "donor"
            assert new.digest in training.digests, "what a donor's optimizer was at one of its boundaries"
            new.train(syncer, learner, H)
            incarnation = learner.incarnation
            [over] = syncer.live.log.wait(StateHandedOver, learner="c", incarnation=incarnation)
            assert over.donor in ("a", "b")
            syncer.live.log.wait(LearnerLive, learner="c", incarnation=incarnation, recovered=Recovered.DONOR)
            first = syncer.live.log.wait(ContributionAccepted, learner="c", incarnation=incarnation)[0]
            [joined] = syncer.live.log.wait(LearnerJoined, learner="c", incarnation=incarnation)
            before = [
                commit.version
                for commit in syncer.live.log.wait(FragmentCommitted, fragment=first.fragment)
                if commit.at_ns <= joined.at_ns
            ]
            assert first.c_steps <= H and first.base_version >= max(before), "it begins with what was newest then"
    [line] = [record.message for record in caplog.records if record.message.startswith("learner c takes")]
    assert line.startswith("learner c takes parameters and inner optimizer from another learner: as of clock ")


def test_an_optimizer_of_another_kind_is_refused_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with syncer_thread(config(), tmp_path) as syncer, others(syncer, "a"):
        new = Loop(9, torch.optim.RMSprop)
        with new.learner(syncer, "c") as learner:
            assert learner.recovered == "syncer" and not new.optimizer.state
            new.train(syncer, learner, 1)
    [line] = [record for record in caplog.records if record.message.startswith("learner c takes")]
    assert line.levelno == logging.WARNING
    assert "optimizer 0 is AdamW in the state and RMSprop here" in line.message


def test_without_a_donor_it_is_its_own_checkpoint_and_without_that_the_syncer(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with syncer_thread(config(), tmp_path) as syncer:
        first = Loop(0)
        with first.learner(syncer, "a", path) as learner:
            assert learner.recovered is None
            first.train(syncer, learner, 2)
        kept, again = first.digest, Loop(1)
        with again.learner(syncer, "a", path) as learner:
            assert (learner.recovered, again.digest) == ("checkpoint", kept)
            again.train(syncer, learner, 1)
        with Loop(2).learner(syncer, "b") as learner:
            assert learner.recovered == "syncer"
        reasons = {event.reason for event in syncer.live.log.wait(StateNotHandedOver, count=2)}
        assert reasons == {f"no other live learner has trained {H} steps"}


def test_a_run_can_do_without(tmp_path: Path) -> None:
    settings = config(recovery=RecoverySection(donor=False))
    with syncer_thread(settings, tmp_path) as syncer, others(syncer, "a"), Loop(9).learner(syncer, "c") as learner:
        assert learner.recovered == "syncer"
        assert not [e for e in syncer.live.log.events if isinstance(e, StateHandedOver | StateNotHandedOver)]

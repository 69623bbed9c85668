"""A learner that leaves, or is lost, and returns with its checkpoint, over real sockets."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

from support.live_run import small_config
from support.syncer_thread import SyncerThread, syncer_thread
from unlockstep.config import RunConfig, RunSection
from unlockstep.core.events import FragmentCommitted, LearnerDeparted, StepReported
from unlockstep.core.options import ProtocolOptions
from unlockstep.integrations.torch_loop import Learner
from unlockstep.learners import checkpoint


class Loop:
    """A loop of one's own: AdamW and a scheduler."""

    def __init__(self, seed: int = 0) -> None:
        before = torch.get_rng_state()
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        torch.set_rng_state(before)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)

    def learner(self, syncer: SyncerThread, path: Path, name: str = "a") -> Learner:
        return Learner(
            self.model,
            self.optimizer,
            syncer=syncer.url,
            name=name,
            checkpoint=path,
            checkpoint_interval_s=0,
            stateful={"scheduler": self.scheduler},
        )

    def train(self, syncer: SyncerThread, learner: Learner, steps: int) -> None:
        for taken in range(1, steps + 1):
            loss = (self.model(torch.linspace(-1, 1, 8).view(4, 2)) - 1).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            assert learner.step(tokens=4, loss=loss)
            syncer.live.log.wait(StepReported, learner=learner.name, incarnation=learner.incarnation, steps=taken)

    @property
    def moments(self) -> list[torch.Tensor]:
        return [state[key].clone() for state in self.optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]


def config() -> RunConfig:
    protocol = ProtocolOptions(fragments=2, interval_steps=2, grace_factor=0.0)
    return small_config(run=RunSection(name="small", steps=10_000), protocol=protocol)


def test_a_learner_returns_with_its_optimizer_and_takes_the_runs_parameters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other learner has trained on meanwhile. The second process begins where the first has left, under the next
    incarnation, and its counts start at zero."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "a.safetensors"
    with syncer_thread(config(), tmp_path) as syncer:
        first, other, second = Loop(), Loop(1), Loop(2)
        with first.learner(syncer, path) as learner:
            first.train(syncer, learner, 5)
        syncer.live.log.wait(LearnerDeparted, learner="a")
        assert checkpoint.exists(path)
        with other.learner(syncer, tmp_path / "b.safetensors", "b") as learner:
            commits = len(syncer.live.log.wait(FragmentCommitted))
            other.train(syncer, learner, 8)
            syncer.live.log.wait(FragmentCommitted, count=commits + 2)
        syncer.live.log.wait(LearnerDeparted, learner="b")
        with second.learner(syncer, path) as learner:
            house = syncer.live.service.storehouse
            assert house is not None
            held = dict(second.model.state_dict())
            for fragment, slots in enumerate(learner.layout.fragments):
                for slot in slots:
                    values = house.values(fragment)[slot.offset : slot.stop].reshape(slot.tensor.shape)
                    assert_array_equal(held[slot.tensor.name].numpy(), values)
            assert all(map(torch.equal, second.moments, first.moments))
            assert not torch.equal(second.model[0].weight, first.model[0].weight)
            assert second.scheduler.state_dict() == first.scheduler.state_dict()
            assert (
                second.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)
            )
            assert (learner.incarnation, learner.steps_before) == (2, 5)
            second.train(syncer, learner, 1)
    said = [record.message for record in caplog.records if "checkpoint" in record.name]
    assert said == [
        f"inner optimizer, random state and data position from {path} as of step 5; parameters from the syncer"
    ]


def test_a_loop_that_fails_in_the_middle_of_a_step_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with syncer_thread(config(), tmp_path) as syncer:
        loop = Loop()
        with pytest.raises(ZeroDivisionError), loop.learner(syncer, path) as learner:
            loop.train(syncer, learner, 2)
            raise ZeroDivisionError
    assert not checkpoint.exists(path)


def test_a_learner_of_a_new_run_does_not_take_the_old_ones_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.safetensors"
    with syncer_thread(config(), tmp_path) as syncer:
        loop = Loop()
        with loop.learner(syncer, path) as learner:
            loop.train(syncer, learner, 1)
        state = checkpoint.load(path).state
        facts = {**state.facts, "learner": {**state.facts["learner"], "run_id": "earlier"}}
        checkpoint.save(path, checkpoint.State(state.tensors, facts))
        again = Loop()
        with again.learner(syncer, path) as learner:
            assert again.optimizer.state == {}
            assert learner.steps_before == 1
    assert f"goes on without a checkpoint: checkpoint {path} is of another run; " in caplog.text

"""A user's own PyTorch loop over real sockets: which tensors take part, what a loop sees, and how a learner ends."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import Tensor, nn

from support.live_run import WAIT_S, Puppet, small_config
from support.syncer_thread import SyncerThread, syncer_thread
from unlockstep.config import RunConfig, RunSection
from unlockstep.core.errors import ConfigError, UsageError
from unlockstep.core.events import (
    FragmentAdopted,
    FragmentCommitted,
    JoinWasRefused,
    LearnerDeparted,
    LearnerJoined,
    LearnerLive,
    StepReported,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import DepartureReason, JoinRefusal
from unlockstep.integrations.torch_loop import Learner, LearnerFailed

ENDS_S_MAX = 5.0

Step = Callable[[], Tensor]


def new_model(width: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))


def config(steps: int = 12, **protocol: Any) -> RunConfig:
    options = {"fragments": 2, "interval_steps": 2, "grace_factor": 0.0} | protocol
    return small_config(run=RunSection(name="small", steps=steps), protocol=ProtocolOptions(**options))


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """One optimizer step on fixed inputs."""
    inputs = torch.linspace(-1, 1, 8).view(4, 2)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = ((model(inputs) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def train(syncer: SyncerThread, learner: Learner, step: Step, steps: int = 0) -> int:
    """Steps taken when the run is over, after ``steps``; never ahead of what the syncer has heard."""
    going = True
    while going:
        loss = step()
        steps += 1
        going = learner.step(tokens=4, loss=loss)
        syncer.live.log.wait(StepReported, learner=learner.name, incarnation=learner.incarnation, steps=steps)
    return steps


def global_values(syncer: SyncerThread, learner: Learner) -> dict[str, np.ndarray]:
    """The syncer's parameters by name."""
    house = syncer.live.service.storehouse
    assert house is not None
    return {
        slot.tensor.name: house.values(fragment)[slot.offset : slot.stop].reshape(slot.tensor.shape).copy()
        for fragment, slots in enumerate(learner.layout.fragments)
        for slot in slots
    }


# ------------------------------------------------------------------------------------------- which tensors take part


def test_every_tensor_of_every_parameter_group_is_merged_once_per_interval(tmp_path: Path) -> None:
    """C6: two groups, one of them given as a generator; H = 4."""
    model = new_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    groups = [{"params": (p for p in model[0].parameters())}, {"params": list(model[2].parameters()), "lr": 0.05}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with syncer_thread(config(steps=12, fragments=1, interval_steps=4), tmp_path) as syncer:
        step = step_of(model, optimizer)
        with Learner(model, optimizer, syncer=syncer.url, name="a") as learner:
            for steps in range(1, 12):
                assert learner.step(tokens=4, loss=step())
                syncer.live.log.wait(StepReported, steps=steps)
                commits = syncer.live.log.wait(FragmentCommitted, count=steps // 4) if steps >= 4 else []
                assert len(commits) == steps // 4
            train(syncer, learner, step, steps)
        merged = global_values(syncer, learner)
    assert merged.keys() == before.keys()
    assert all(np.all(merged[name] != before[name].numpy()) for name in before)


def test_tied_weights_are_sent_once_and_stay_tied(tmp_path: Path) -> None:
    """C14: embedding and head share one tensor."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight
            self.inner = nn.Linear(4, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.inner(self.embedding(inputs)))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.arange(5)), torch.arange(5))
        loss.backward()
        optimizer.step()
        return loss

    with syncer_thread(config(), tmp_path) as syncer:
        with Learner(model, optimizer, syncer=syncer.url, name="a") as learner:
            train(syncer, learner, step)
        assert global_values(syncer, learner).keys() == {"embedding.weight", "inner.weight", "inner.bias"}
    assert model.head.weight is model.embedding.weight


def test_frozen_parameters_stay_at_home_and_buffers_follow_the_policy(tmp_path: Path) -> None:
    """C15: a frozen layer, BatchNorm's float and integer buffers, a buffer that is not persistent."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    model.register_buffer("mask", torch.ones(3), persistent=False)
    frozen = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with syncer_thread(config(), tmp_path) as syncer:
        with Learner(model, optimizer, syncer=syncer.url, name="a") as learner:
            other = Learner(model, optimizer, syncer=syncer.url, name="b", buffers="local")
            with pytest.raises(LearnerFailed, match="running_mean"), other:  # Another policy is another model.
                pass
            steps = train(syncer, learner, step_of(model, optimizer))
        names = global_values(syncer, learner).keys()
    assert names == {"1.weight", "1.bias", "1.running_mean", "1.running_var", "2.weight", "2.bias"}
    assert_array_equal(model[0].weight.detach(), frozen)
    assert model[1].num_batches_tracked.dtype is torch.int64 and model[1].num_batches_tracked == steps


def test_the_step_after_an_adoption_starts_from_the_adopted_values(tmp_path: Path) -> None:
    """C35: the optimizer holds the very tensors that adoption writes; momentum of its own is kept."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    place = model.weight.data_ptr()
    with syncer_thread(config(fragments=1), tmp_path) as syncer:
        seed = nn.Linear(2, 1, bias=False)
        with (
            Learner(seed, torch.optim.SGD(seed.parameters(), lr=0.1), syncer=syncer.url, name="seeder") as seeder,
            Learner(model, optimizer, syncer=syncer.url, name="a"),
        ):
            adopted = global_values(syncer, seeder)["weight"]
            assert_array_equal(model.weight.detach(), adopted)
            model.weight.grad = torch.ones(1, 2)
            optimizer.step()
            assert_array_equal(model.weight.detach(), adopted - np.float32(0.5))
    assert model.weight.data_ptr() == place


def test_an_optimizer_with_parameters_of_its_own_is_refused() -> None:
    """C35: float32 masters would undo every adoption at the next step."""
    model = new_model()
    masters = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    with pytest.raises(UsageError, match=r"optimizer steps 4 tensors outside the model"):
        Learner(model, torch.optim.SGD(masters, lr=0.1), syncer="http://127.0.0.1:1")


# ------------------------------------------------------------------------------------------- what a loop sees


def new_learner(syncer: SyncerThread, name: str, **options: Any) -> tuple[Learner, Step]:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return Learner(model, optimizer, syncer=syncer.url, name=name, **options), step_of(model, optimizer)


def test_two_learners_train_one_model_to_the_end(tmp_path: Path) -> None:
    with syncer_thread(config(quorum=2), tmp_path) as syncer:
        learners = [new_learner(syncer, name) for name in ("a", "b")]
        ended: list[str | None] = []

        def run(learner: Learner, step: Step) -> None:
            with learner:
                train(syncer, learner, step)
                ended.append(learner.ended)

        threads = [threading.Thread(target=run, args=pair) for pair in learners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert ended == ["the run has finished"] * 2
        assert {name for e in syncer.live.log.wait(FragmentCommitted) for name in e.weights} == {"a", "b"}


def test_a_late_learner_takes_the_versions_and_the_clock_of_the_run(tmp_path: Path) -> None:
    """C26: one learner trains long before the other is ready."""
    with syncer_thread(config(steps=1000), tmp_path) as syncer:
        first, step = new_learner(syncer, "first")
        late, _ = new_learner(syncer, "late")
        with first:
            for steps in range(1, 9):
                first.step(tokens=4, loss=step())
                syncer.live.log.wait(StepReported, learner="first", steps=steps)
            syncer.live.log.wait(FragmentCommitted, count=2)
            with late:
                assert late.clock >= 6 and late.incarnation == 1 and late.steps_before == 0
                adopted = syncer.live.log.wait(FragmentAdopted, count=2, learner="late")
                assert {event.fragment for event in adopted} == {0, 1} and all(event.version >= 1 for event in adopted)
            syncer.live.log.wait(LearnerDeparted, learner="late", reason=DepartureReason.LEFT)


def test_a_learner_that_returns_knows_how_many_steps_it_has_taken(tmp_path: Path) -> None:
    with syncer_thread(config(steps=1000), tmp_path) as syncer:
        for incarnation, before in ((1, 0), (2, 3)):
            learner, step = new_learner(syncer, "a")
            with learner:
                assert (learner.incarnation, learner.steps_before) == (incarnation, before)
                for steps in range(1, 4):
                    assert learner.step(tokens=4, loss=step())
                    syncer.live.log.wait(StepReported, incarnation=incarnation, steps=steps)


def test_training_goes_on_without_the_syncer(tmp_path: Path) -> None:
    with syncer_thread(config(steps=1000), tmp_path) as syncer:
        learner, step = new_learner(syncer, "a")
        learner.__enter__()
    try:
        assert all(learner.step(tokens=4, loss=step()) for _ in range(20))
    finally:
        assert seconds(learner.close) < ENDS_S_MAX


def seconds(call: Callable[[], object]) -> float:
    began_s = time.monotonic()
    call()
    return time.monotonic() - began_s


# ------------------------------------------------------------------------------------------- what is refused


def test_a_model_of_another_shape_is_refused_with_its_first_difference(tmp_path: Path) -> None:
    with syncer_thread(config(), tmp_path) as syncer:
        first, _ = new_learner(syncer, "a")
        model = new_model(width=4)
        other = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), syncer=syncer.url, name="b")
        with first:
            with pytest.raises(LearnerFailed, match=r"learner b cannot take part: .*0\.weight.*shape"), other:
                pass
            (refused,) = syncer.live.log.wait(JoinWasRefused)
    assert refused.reason is JoinRefusal.LAYOUT_MISMATCH


def test_the_older_of_two_processes_under_one_name_is_told_so(tmp_path: Path) -> None:
    with syncer_thread(config(steps=1000), tmp_path) as syncer:
        (older, step), (newer, _) = new_learner(syncer, "a"), new_learner(syncer, "a")
        with older, newer:
            syncer.live.log.wait(LearnerDeparted, reason=DepartureReason.SUPERSEDED)
            with pytest.raises(LearnerFailed, match="another process has joined under the name a"):
                for _ in range(1000):
                    older.step(tokens=4, loss=step())
                    older._loop and older._loop.wait_until_may_step(0.01)


def test_what_the_user_can_mend_is_one_sentence(tmp_path: Path) -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    frozen = nn.Linear(1, 1).requires_grad_(False)
    with pytest.raises(UsageError, match=r"name is 'a b'; use letters, digits, _ and -"):
        Learner(model, optimizer, syncer="http://127.0.0.1:1", name="a b")
    with pytest.raises(UsageError, match=r"no syncer answers at http://127.0.0.1:1"):
        Learner(model, optimizer, syncer="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="model has no trainable parameter"):
        Learner(frozen, [], syncer="http://127.0.0.1:1")
    for bad in ({"leave_s": -1.0}, {"timeout_s": float("nan")}, {"checkpoint_interval_s": float("inf")}):
        with pytest.raises(UsageError, match=f"{next(iter(bad))} is .*; give seconds, at least 0 and finite"):
            Learner(model, optimizer, syncer="http://127.0.0.1:1", **bad)
    with pytest.raises(UsageError, match="courier is 'pigeon'; choose process or thread"):
        Learner(model, optimizer, syncer="http://127.0.0.1:1", courier="pigeon")  # type: ignore[arg-type]
    for bad_mbit in (0.0, -1.0, 5e-324, 0.099, float("inf"), float("nan")):
        with pytest.raises(UsageError, match=r"bandwidth_mbit is .*; give Mbit/s, at least 0.1 and finite"):
            Learner(model, optimizer, syncer="http://127.0.0.1:1", bandwidth_mbit=bad_mbit)
    with pytest.raises(UsageError, match=r"stateful\['it'\] is a int, which has no state_dict"):
        Learner(model, optimizer, syncer="http://127.0.0.1:1", stateful={"it": 1})  # type: ignore[dict-item]
    with syncer_thread(config(fragments=5), tmp_path) as syncer:
        with pytest.raises(ConfigError, match=r"protocol\.fragments is 5, but this model has 4 trainable tensors"):
            Learner(model, optimizer, syncer=syncer.url)
        with pytest.raises(UsageError, match="no run 'other' here"):
            Learner(model, optimizer, syncer=syncer.url, run="other")


def test_a_step_is_only_reported_by_a_learner_that_has_joined(tmp_path: Path) -> None:
    with syncer_thread(config(), tmp_path) as syncer:
        learner, step = new_learner(syncer, "a")
        with pytest.raises(UsageError, match="before the learner had joined"):
            learner.step(tokens=4)
        with learner, pytest.raises(UsageError, match="tokens is -1; give the number of tokens"):
            learner.step(tokens=-1, loss=step())


# ------------------------------------------------------------------------------------------- how it ends


def test_leaving_is_told_to_the_syncer_and_leaves_no_thread(tmp_path: Path) -> None:
    """C23: an exception in the loop, such as Ctrl-C, ends the block; what was not asked for is declared dropped."""
    with syncer_thread(config(steps=1000), tmp_path) as syncer:
        learner, step = new_learner(syncer, "a")
        with pytest.raises(KeyboardInterrupt), learner:
            learner.step(tokens=4, loss=step())
            syncer.live.log.wait(LearnerLive)
            raise KeyboardInterrupt
        ours = ("unlockstep-link", "unlockstep-bulk")
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]
        syncer.live.log.wait(LearnerDeparted, learner="a", reason=DepartureReason.LEFT)
        ledger = syncer.do(ledger_of(syncer))
    assert ledger.trained == ledger.dropped + ledger.merged + sum(ledger.refused.values()) == 4
    assert ledger.lost == ledger.in_flight == 0


def ledger_of(syncer: SyncerThread) -> Callable[[], Any]:
    async def read() -> Any:
        return syncer.live.service.status().ledger

    return read


def test_a_forked_process_that_leaves_the_block_ends_and_its_learner_trains_on(tmp_path: Path) -> None:
    """Its copy has no thread that would say goodbye, and the checkpoint is not its to write."""
    model, checkpoint = new_model(), tmp_path / "learner.safetensors"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with syncer_thread(config(steps=4), tmp_path) as syncer:
        with Learner(model, optimizer, syncer=syncer.url, name="a", checkpoint=checkpoint) as learner:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # What may go wrong is what is looked at.
                forked = os.fork()
            if not forked:
                try:
                    learner.close()
                finally:
                    os._exit(checkpoint.exists())
            descriptor = os.pidfd_open(forked)
            has_ended = bool(select.select([descriptor], [], [], WAIT_S)[0])
            os.close(descriptor)
            os.kill(forked, signal.SIGKILL)
            assert os.waitpid(forked, 0)[1] == 0 and has_ended
            train(syncer, learner, step_of(model, optimizer))
        assert learner.ended


def test_stop_before_the_first_step_ends_the_loop_at_once(tmp_path: Path) -> None:
    """C29."""
    with syncer_thread(config(steps=1000), tmp_path) as syncer:
        learner, step = new_learner(syncer, "a")
        learner.stop()
        with learner:
            assert not learner.step(tokens=4, loss=step())
        late, step = new_learner(syncer, "late")
        with late:
            late.stop()
            assert not late.step(tokens=4, loss=step())


def test_stop_while_the_parameters_load_ends_the_wait(tmp_path: Path) -> None:
    """C29: another learner was asked for the first parameters and never sends them."""
    with syncer_thread(config(), tmp_path) as syncer, seeder_that_never_seeds(syncer):
        learner, _ = new_learner(syncer, "a")
        threading.Thread(target=lambda: (syncer.live.log.wait(LearnerJoined, learner="a"), learner.stop())).start()
        began_s = time.monotonic()
        with learner:
            assert learner.ended is None and learner.clock == 0
        assert time.monotonic() - began_s < ENDS_S_MAX


def test_parameters_that_do_not_come_in_time_are_an_error(tmp_path: Path) -> None:
    with syncer_thread(config(), tmp_path) as syncer, seeder_that_never_seeds(syncer):
        learner, _ = new_learner(syncer, "a", timeout_s=0.2)
        with (
            pytest.raises(UsageError, match=r"no parameters came from http://127.0.0.1:\d+ within timeout_s = 0.2"),
            learner,
        ):
            pass


def test_stop_while_an_upload_is_under_way_ends_in_time(tmp_path: Path) -> None:
    """C29: the syncer does not answer any more."""
    with syncer_thread(config(steps=1000, fragments=1, interval_steps=1, overlap_steps=1), tmp_path) as syncer:
        learner, step = new_learner(syncer, "a")
        with learner:
            assert learner.step(tokens=4, loss=step())
            syncer.live.log.wait(StepReported, steps=1)
            with silence(syncer):
                for _ in range(4):
                    learner.step(tokens=4, loss=step())
                assert seconds(learner.close) < ENDS_S_MAX


@contextmanager
def silence(syncer: SyncerThread) -> Iterator[None]:
    """The syncer's event loop stands still while the block runs."""
    over, stands = threading.Event(), threading.Event()
    syncer.loop.call_soon_threadsafe(lambda: (stands.set(), over.wait(WAIT_S)))
    assert stands.wait(WAIT_S)
    try:
        yield
    finally:
        over.set()


@contextmanager
def seeder_that_never_seeds(syncer: SyncerThread) -> Iterator[None]:
    """A learner that joined first, so that all others wait for its parameters."""
    sessions: list[aiohttp.ClientSession] = []
    seeders: list[Puppet] = []
    layout = new_learner(syncer, "seeder")[0].layout

    async def join() -> None:
        sessions.append(aiohttp.ClientSession())
        seeders.append(syncer.live.puppet(sessions[0], "seeder"))
        seeders[0].layout = layout
        assert (await seeders[0].join()).seed

    syncer.do(join)
    try:
        yield
    finally:
        syncer.do(sessions[0].close)

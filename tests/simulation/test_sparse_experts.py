"""Experts that see no token of a learner: what its outer gradient of them is, and that they are learned nonetheless."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from support.ring_story import STEP_NS
from unlockstep.config import InnerSection, RunConfig, apply
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.learners.torch_store import TorchStore
from unlockstep.models import causal_loss
from unlockstep.sim.world import World

VOCABULARY = 8
STEPS = 60


class TwoExperts(nn.Module):
    """Even tokens go to expert 0, odd ones to expert 1; each is a table of what comes next."""

    def __init__(self, is_stack: bool = True) -> None:
        super().__init__()
        shape = (VOCABULARY, VOCABULARY)
        tables = [torch.full((2, *shape), 0.1)] if is_stack else [torch.full(shape, 0.1), torch.full(shape, 0.1)]
        self.tables = nn.ParameterList(tables)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        experts = self.tables[0] if len(self.tables) == 1 else torch.stack(list(self.tables))
        return experts[tokens % 2, tokens]


class Twos:
    """Every token is followed by the one two further on: a sequence is all even or all odd."""

    remaining = None

    def __init__(self, parity: int) -> None:
        self.position, self._parity = 0, parity

    def next(self) -> np.ndarray:
        self.position += 1
        first = self._parity + 2 * np.arange(4)[:, None]
        return ((first + 2 * np.arange(9)) % VOCABULARY).astype(np.int64)

    def seek(self, position: int) -> None:
        self.position = position


def learner(parity: int, weight_decay: float = 0.1, is_stack: bool = True) -> TorchBackend:
    settings = InnerSection(learning_rate=0.2, warmup_steps=5, weight_decay=weight_decay)
    return TorchBackend(TwoExperts(is_stack), causal_loss, Twos(parity), settings, STEPS)


def losses(is_stack: bool = True, rule: str = "rda") -> list[float]:
    """Of even and of odd sequences, by the global model of two learners of which each has one kind of them alone."""
    settings = [f"run.steps={STEPS}", "protocol.fragments=1", "protocol.interval_steps=2", f"outer.merge={rule}"]
    ring = World(apply(RunConfig(), settings))
    for parity in (0, 1):
        ring.join(f"learner{parity}", learner(parity, is_stack=is_stack), STEP_NS)
    ring.run()
    model = TwoExperts(is_stack)
    store = TorchStore(model)
    store.bind(build_layout(store.tensors(), 1, LayoutMethod.BALANCED))
    store.write_fragment(0, ring.global_values(0))
    with torch.no_grad():
        return [float(causal_loss(model, torch.from_numpy(Twos(parity).next()))) for parity in (0, 1)]


def test_an_expert_without_a_token_only_decays():
    """Its gradient is zero, not None: no momentum to go on with, but weight decay, (1 - rate * 0.1) a step."""
    backend = learner(parity=0)
    rates = []
    for step in range(3):
        backend.inner_step(step)
        rates.append(backend.optimizer.param_groups[0]["lr"])
    expected = 0.1 * np.prod([1 - rate * 0.1 for rate in rates])
    idle = backend.model.tables[0][1].detach().numpy()
    np.testing.assert_allclose(idle, np.full((VOCABULARY, VOCABULARY), expected), rtol=1e-5)


def test_without_weight_decay_its_outer_gradient_is_zero():
    backend = learner(parity=1, weight_decay=0.0)
    for step in range(3):
        backend.inner_step(step)
    assert bool((backend.model.tables[0][0] == 0.1).all())
    assert not bool((backend.model.tables[0][1] == 0.1).all())


def test_experts_that_one_learner_each_trains_are_both_learned():
    """Far better than by chance, log 8 = 2.1, and better than by the mean, which halves what one learner has done."""
    radial, mean = losses(), losses(rule="mean")
    assert max(radial) < 0.2 < min(mean)


def test_experts_in_tensors_of_their_own_suffer_from_the_decay_of_those_who_do_not_train_them():
    """The direction of a decay counts as much as that of training, however short it is: decision 25."""
    assert min(losses(is_stack=False)) > 1.0
    assert max(losses(is_stack=False, rule="mean")) < 0.3

"""What a model and its optimizers remember, out and back: whole or not at all, bit for bit, in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unlockstep.core.errors import UsageError
from unlockstep.learners.backend import State, TensorBits
from unlockstep.learners.records import bits_of, tensor_of
from unlockstep.learners.torch_state import load_training_state, training_state

Optimizers = Callable[[nn.Module], Sequence[Optimizer]]


class Net(nn.Module):
    """A tied head, a frozen layer, BatchNorm (float and integer buffers), a buffer that is not persistent, and a
    parameter that never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(4), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.frozen(self.embedding(tokens))) * self.mask)


def net(seed: int = 0, dtype: torch.dtype = torch.float32) -> Net:
    generator = torch.get_rng_state()
    torch.manual_seed(seed)
    model = Net().to(dtype)
    torch.set_rng_state(generator)
    return model


def step(model: nn.Module, optimizers: Sequence[Optimizer]) -> float:
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(torch.arange(5)).float(), torch.arange(5))
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def adamw(model: nn.Module, **options: Any) -> Sequence[Optimizer]:
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1]},
        {"params": [p for p in trained if p.ndim < 2], "lr": 0.02},
    ]
    return [torch.optim.AdamW(groups, **{"lr": 0.01, "betas": (0.8, 0.97), "fused": True, **options})]


def two(model: nn.Module) -> Sequence[Optimizer]:
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        torch.optim.SGD([p for p in trained if p.ndim > 1], lr=0.1, momentum=0.9, nesterov=True),
        torch.optim.Adam([p for p in trained if p.ndim < 2], lr=0.02, amsgrad=True),
    ]


OPTIMIZERS: dict[str, Optimizers] = {
    "adamw fused": adamw,
    "adamw one by one": lambda model: adamw(model, fused=False, foreach=False),
    "adamw with a rate that is a tensor": lambda model: adamw(model, lr=torch.tensor(0.01), fused=False, foreach=False),
    "sgd with momentum, and adam with amsgrad": two,
    "sgd without anything": lambda model: [torch.optim.SGD(model.parameters(), lr=0.1)],
    "rmsprop, centred": lambda model: [torch.optim.RMSprop(model.parameters(), lr=0.01, centered=True, momentum=0.5)],
}


def bits(state: State) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (b.dtype, b.shape, b.data.tobytes()) for name, b in state.tensors.items()}


def without(state: State, *names: str) -> State:
    return State({name: b for name, b in state.tensors.items() if name not in names}, state.facts)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(name: str) -> None:
    """C43: also into a model and optimizers that have trained otherwise, and by other options."""
    model = net()
    optimizers = OPTIMIZERS[name](model)
    for _ in range(3):
        step(model, optimizers)
    optimizers[0].param_groups[0]["lr"] *= 0.5
    state = training_state(model, optimizers)
    other = net(seed=1)
    others = OPTIMIZERS[name](other)
    step(other, others)
    load_training_state(state, other, others)
    assert bits(training_state(other, others)) == bits(state)
    assert training_state(other, others).facts == state.facts
    for _ in range(3):
        assert step(other, others) == step(model, optimizers)
    assert bits(training_state(other, others)) == bits(training_state(model, optimizers))


def test_a_parameter_without_a_gradient_has_nothing_remembered_of_it_before_and_after() -> None:
    model = net()
    optimizers = adamw(model)
    step(model, optimizers)
    state = training_state(model, optimizers)
    assert model.unused not in optimizers[0].state
    other = net()
    others = adamw(other)
    other.unused.grad = torch.ones(2)
    step(other, others)
    load_training_state(state, other, others)
    assert other.unused not in others[0].state
    assert not any("unused" in name for name in state.tensors if name.startswith("optimizer."))


def test_tied_weights_are_one_entry_and_stay_tied() -> None:
    """C14"""
    model = net()
    optimizers = adamw(model)
    step(model, optimizers)
    state = training_state(model, optimizers)
    assert "model.embedding.weight" in state.tensors
    assert not any("head" in name for name in state.tensors)
    other = net(seed=1)
    load_training_state(state, other, adamw(other))
    assert other.head.weight is other.embedding.weight
    assert torch.equal(other.head.weight, model.head.weight)


def test_frozen_parameters_and_persistent_buffers_are_in_it_and_others_are_not() -> None:
    """C15"""
    model = net()
    optimizers = adamw(model)
    step(model, optimizers)
    names = {name for name in training_state(model, optimizers).tensors if name.startswith("model.")}
    assert names == {
        "model.embedding.weight", "model.unused", "model.frozen.weight", "model.frozen.bias", "model.norm.weight",
        "model.norm.bias", "model.norm.running_mean", "model.norm.running_var", "model.norm.num_batches_tracked",
    }  # fmt: skip
    other = net(seed=1)
    other.mask *= 3
    load_training_state(training_state(model, optimizers), other, adamw(other))
    assert torch.equal(other.frozen.weight, model.frozen.weight)
    assert (other.norm.num_batches_tracked.item(), other.norm.num_batches_tracked.dtype) == (1, torch.int64)
    assert other.mask.tolist() == [3.0] * 4


def test_the_next_step_starts_from_the_loaded_values() -> None:
    """C35: the parameters the optimizer steps are the model's own, not copies from before."""
    model = net()
    state = training_state(model, [torch.optim.SGD(model.parameters(), lr=0.0)])
    other = net(seed=1)
    optimizers = [torch.optim.SGD(other.parameters(), lr=0.0)]
    held = [id(p) for p in other.parameters()]
    step(other, optimizers)
    load_training_state(state, other, optimizers)
    assert [id(p) for p in optimizers[0].param_groups[0]["params"]] == [id(p) for p in other.parameters()] == held
    step(other, optimizers)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_float32_masters_are_equal_after_five_rounds() -> None:
    """C46: the model computes in bfloat16 and holds float32."""
    model = net()
    optimizers = adamw(model)
    step(model, optimizers)
    before = bits(training_state(model, optimizers))
    assert {dtype for name, (dtype, _, _) in before.items() if "tracked" not in name} == {"float32"}
    for seed in range(5):
        state = training_state(model, optimizers)
        model = net(seed)
        optimizers = adamw(model)
        load_training_state(state, model, optimizers)
    assert bits(training_state(model, optimizers)) == before


def test_bfloat16_parameters_travel_as_bfloat16() -> None:
    """C46"""
    model = net(dtype=torch.bfloat16)
    optimizers = adamw(model)
    step(model, optimizers)
    state = training_state(model, optimizers)
    stored = state.tensors["model.embedding.weight"]
    assert (stored.dtype, stored.data.nbytes) == ("bfloat16", 2 * model.embedding.weight.numel())
    assert stored.data.tobytes() == model.embedding.weight.detach().view(torch.uint8).numpy().tobytes()
    other = net(1, torch.bfloat16)
    load_training_state(state, other, others := adamw(other))
    assert bits(training_state(other, others)) == bits(state)
    with pytest.raises(
        UsageError, match=r"model\.embedding\.weight is bfloat16\[5, 4\] in it and float32\[5, 4\] here"
    ):
        load_training_state(state, other := net(), adamw(other))


def test_a_wrapped_model_has_the_same_names() -> None:
    model = net()
    state = training_state(nn.DataParallel(model), adamw(model))
    assert bits(state) == bits(training_state(model, adamw(model)))


def test_what_remembers_something_else_goes_with_it() -> None:
    model = net()
    optimizers = adamw(model)
    schedulers = [torch.optim.lr_scheduler.MultiStepLR(optimizers[0], [2, 3]) for _ in range(1)]
    for _ in range(2):
        step(model, optimizers)
        schedulers[0].step()
    state = training_state(model, optimizers, {"scheduler": schedulers[0]})
    other = net(1)
    others = adamw(other)
    fresh = torch.optim.lr_scheduler.MultiStepLR(others[0], [2, 3])
    load_training_state(state, other, others, {"scheduler": fresh})
    assert fresh.state_dict() == schedulers[0].state_dict()
    for scheduler in (fresh, schedulers[0]):
        step(other, others)
        scheduler.step()
    assert fresh.get_last_lr() == schedulers[0].get_last_lr() == pytest.approx([1e-4, 2e-4])
    load_training_state(state, other, others, {"scheduler": fresh}, skip=["scheduler"])
    assert fresh.last_epoch == 3


def test_values_that_are_newer_are_kept_and_still_have_to_fit() -> None:
    model, other = net(), net(1)
    state = training_state(model, adamw(model))
    newer = other.embedding.weight.detach().clone()
    load_training_state(state, other, adamw(other), keep=["embedding.weight"])
    assert torch.equal(other.embedding.weight, newer)
    assert torch.equal(other.frozen.weight, model.frozen.weight)
    with pytest.raises(UsageError, match=r"it lacks model\.embedding\.weight"):
        load_training_state(without(state, "model.embedding.weight"), other, adamw(other), keep=["embedding.weight"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: without(s, "model.unused"), r"it lacks model\.unused\)"),
        (lambda s: without(s, "optimizer.0.norm.bias.exp_avg"), r"it lacks optimizer\.0\.norm\.bias\.exp_avg\)"),
        (
            lambda s: without(s, *[name for name in s.tensors if name.startswith("model.norm")]),
            r"it lacks model\.norm\.bias, model\.norm\.num_batches_tracked, model\.norm\.running_mean and 2 more\)",
        ),
        (
            lambda s: State(
                {**s.tensors, "model.b": s.tensors["model.unused"], "a": s.tensors["model.unused"]}, s.facts
            ),
            r"nothing here takes a, model\.b\)",
        ),
        (
            lambda s: State({**s.tensors, "model.unused": bits_of(torch.ones(3))}, s.facts),
            r"model\.unused is float32\[3\] in it and float32\[2\] here",
        ),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: Callable[[State], State], sentence: str) -> None:
    model = net()
    optimizers = adamw(model)
    step(model, optimizers)
    state = change(training_state(model, optimizers))
    other = net(1)
    others = adamw(other)
    step(other, others)
    before = bits(training_state(other, others))
    with pytest.raises(UsageError, match=sentence):
        load_training_state(state, other, others)
    assert bits(training_state(other, others)) == before


@pytest.mark.parametrize(
    ("here", "sentence"),
    [
        (two, "the state is of 1 optimizer and there are 2 here"),
        (lambda m: [torch.optim.Adam(m.parameters())], "optimizer 0 is AdamW in the state and Adam here; use the same"),
        (lambda m: [torch.optim.AdamW(m.parameters())], "optimizer 0 has other parameter groups than in the state"),
    ],
)
def test_other_optimizers_are_refused(here: Optimizers, sentence: str) -> None:
    model = net()
    with pytest.raises(UsageError, match=sentence):
        load_training_state(training_state(model, adamw(model)), model, here(model))


def test_others_beside_the_optimizers_are_refused() -> None:
    model = net()
    optimizers = adamw(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], 1)
    with pytest.raises(UsageError, match="the state is of nothing beside the optimizers, and here is scheduler"):
        load_training_state(training_state(model, optimizers), model, optimizers, {"scheduler": scheduler})
    with pytest.raises(UsageError, match="the state is of scheduler beside the optimizers, and here is nothing"):
        load_training_state(training_state(model, optimizers, {"scheduler": scheduler}), model, optimizers)


def test_an_option_the_state_lacks_is_named() -> None:
    model = net()
    optimizers = adamw(model)
    state = training_state(model, optimizers)
    optimizers[0].param_groups[1]["initial_lr"] = 0.1
    with pytest.raises(UsageError, match="group 1 of optimizer 0 has no initial_lr in the state"):
        load_training_state(state, model, optimizers)


def test_an_optimizer_of_foreign_tensors_is_refused() -> None:
    with pytest.raises(UsageError, match="optimizer 0 steps tensors that are not the model's"):
        training_state(net(), [torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)])


def test_an_optimizer_that_keeps_lists_of_tensors_is_held_too() -> None:
    """LBFGS remembers directions of the past in lists."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(torch.eye(2)) - torch.tensor([[1.0], [2.0]])).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = training_state(model, [optimizer])
    twin = nn.Linear(2, 1)
    other = torch.optim.LBFGS(twin.parameters(), max_iter=3)
    load_training_state(state, twin, [other])
    assert bits(training_state(twin, [other])) == bits(state)
    assert torch.equal(tensor_of(state.tensors["model.weight"]), twin.weight)


def test_a_state_is_a_copy() -> None:
    model = net()
    optimizers = adamw(model)
    step(model, optimizers)
    state = training_state(model, optimizers)
    before: dict[str, TensorBits] = {name: b for name, b in state.tensors.items()}
    frozen = bits(State(before, {}))
    step(model, optimizers)
    assert bits(state) == frozen

"""Which tensors of a torch model are synchronised, and that moving them breaks nothing torch relies on."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from unlockstep.core.errors import UsageError
from unlockstep.core.layout import Layout, LayoutMethod, Role, build_layout
from unlockstep.learners.torch_store import TorchStore, check_optimizer
from unlockstep.models.factory import build_model, save_model


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embedding(tokens)))


class Wrapped(nn.Module):
    """What ``torch.compile`` and ``DistributedDataParallel`` do to names."""

    def __init__(self, model: nn.Module, attribute: str) -> None:
        super().__init__()
        setattr(self, attribute, model)


def bound(model: nn.Module, fragments: int = 1, **options) -> tuple[TorchStore, Layout]:
    store = TorchStore(model, **options)
    layout = build_layout(store.tensors(), fragments, LayoutMethod.TENSOR)
    store.bind(layout)
    return store, layout


def add(store: TorchStore, layout: Layout, amount: float) -> None:
    """Adopt new values in every fragment."""
    for fragment in range(layout.fragment_count):
        store.write_fragment(fragment, store.read_fragment(fragment) + np.float32(amount))


def roles(model: nn.Module, **options) -> dict[str, Role]:
    return {tensor.name: tensor.role for tensor in TorchStore(model, **options).tensors()}


# Which tensors


def test_tied_weights_are_one_tensor_under_their_first_name() -> None:
    """C14"""
    assert list(roles(Tied())) == ["embedding.weight", "middle.weight", "middle.bias"]


def test_parameters_that_share_memory_are_one_tensor() -> None:
    """C14"""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight.data = model[0].weight.data
    assert list(roles(model)) == ["0.weight"]


def test_tied_weights_stay_tied_after_a_write_and_after_a_reload(tmp_path) -> None:
    """C14"""
    model = build_model("llama-tiny", 32, seed=0)
    store, layout = bound(model, fragments=2)
    pointer = model.lm_head.weight.data_ptr()
    add(store, layout, 1.0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.data_ptr() == pointer
    save_model(model, tmp_path / "model")
    loaded = type(model).from_pretrained(tmp_path / "model")
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    assert TorchStore(loaded).tensors() == store.tensors()
    torch.testing.assert_close(loaded.lm_head.weight, model.lm_head.weight, rtol=0, atol=0)


def test_frozen_parameters_are_neither_listed_nor_changed() -> None:
    """C15"""
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 4))
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    store, layout = bound(model)
    add(store, layout, 1.0)
    assert [tensor.name for tensor in store.tensors()] == ["1.weight", "1.bias"]
    assert torch.equal(model[0].weight, frozen)


def test_a_parameter_frozen_later_stays_in_the_layout() -> None:
    model = nn.Linear(2, 2)
    store, layout = bound(model)
    model.weight.requires_grad_(False)
    add(store, layout, 1.0)
    assert len(store.tensors()) == 2


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("average", torch.zeros(2))
        self.register_buffer("inverse_frequencies", torch.arange(4.0), persistent=False)
        self.register_buffer("absent", None)


def test_persistent_float_buffers_are_synchronised_and_no_others() -> None:
    """C15"""
    model = Buffered()
    store, layout = bound(model)
    add(store, layout, 1.0)
    buffers = [tensor.name for tensor in store.tensors() if tensor.role is Role.BUFFER]
    assert buffers == ["average", "norm.running_mean", "norm.running_var"]
    assert torch.equal(model.norm.running_mean, torch.ones(3))
    assert torch.equal(model.norm.num_batches_tracked, torch.tensor(0))
    assert torch.equal(model.inverse_frequencies, torch.arange(4.0))


def test_local_buffers_stay_out_of_the_layout() -> None:
    """C15"""
    assert list(roles(Buffered(), buffers="local")) == ["norm.weight", "norm.bias"]


def test_an_unknown_policy_for_buffers_is_refused() -> None:
    with pytest.raises(UsageError, match="buffers is 'mean'; choose merge or local"):
        TorchStore(Buffered(), buffers="mean")  # type: ignore[arg-type]


def test_a_buffer_that_the_model_replaces_is_still_the_one_that_moves() -> None:
    model = Buffered()
    store, layout = bound(model)
    model.average = torch.full((2,), 5.0)
    slot = next(slot for slot in layout.fragments[0] if slot.tensor.name == "average")
    assert store.read_fragment(0)[slot.offset : slot.stop].tolist() == [5.0, 5.0]


# Names and roles


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        lambda model: Wrapped(model, "_orig_mod"),
        lambda model: nn.DataParallel(Wrapped(model, "_orig_mod")),
        lambda model: Wrapped(nn.DataParallel(model), "_orig_mod"),
    ],
)
def test_wrapped_and_plain_models_agree_on_names(wrap) -> None:
    assert TorchStore(wrap(Tied())).tensors() == TorchStore(Tied()).tensors()


def test_a_part_compiled_alone_keeps_its_name() -> None:
    model = Tied()
    model.middle = Wrapped(model.middle, "_orig_mod")
    assert TorchStore(model).tensors() == TorchStore(Tied()).tensors()


def test_a_part_called_module_keeps_its_name() -> None:
    model = nn.ModuleDict({"module": nn.Linear(2, 2, bias=False), "other": nn.Linear(2, 2, bias=False)})
    assert list(roles(model)) == ["module.weight", "other.weight"]
    assert list(roles(nn.DataParallel(model))) == ["module.weight", "other.weight"]


class Headed(nn.Module):
    """Has a head that only ``get_output_embeddings`` tells."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(6, 4)
        self.pos_embed = nn.Parameter(torch.zeros(3, 4))
        self.embeddings = nn.ModuleDict({"LayerNorm": nn.LayerNorm(4)})
        self.project = nn.Linear(4, 6, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.project


def test_embeddings_and_head_are_detected() -> None:
    embeddings = {name for name, role in roles(Headed()).items() if role is Role.EMBEDDING}
    assert embeddings == {"pos_embed", "wte.weight", "project.weight"}


@pytest.mark.parametrize("spec", ["llama-tiny", "gemma4-tiny"])
def test_presets_have_one_embedding_tied_to_the_head(spec: str) -> None:
    embeddings = [name for name, role in roles(build_model(spec, 32, seed=0)).items() if role is Role.EMBEDDING]
    assert embeddings == ["model.embed_tokens.weight"]


def test_embedding_names_replace_detection() -> None:
    """A module stands for its parameters, the second name of a tied parameter for the first."""
    chosen = {name for name, role in roles(Headed(), embedding_names=["embeddings"]).items() if role is Role.EMBEDDING}
    assert chosen == {"embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"}
    assert roles(Tied(), embedding_names=["head.weight"])["embedding.weight"] is Role.EMBEDDING
    assert set(roles(Tied(), embedding_names=[]).values()) == {Role.PARAMETER}


def test_unknown_embedding_name_is_refused() -> None:
    with pytest.raises(UsageError, match="embedding_names has 'heads', which is no parameter or module of this model"):
        TorchStore(Tied(), embedding_names=["heads"])


# Moving values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_channels_last_tensors_travel_in_logical_order(dtype: torch.dtype) -> None:
    model = nn.Conv2d(3, 4, (2, 5), bias=False).to(dtype=dtype, memory_format=torch.channels_last)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of 16 bits
        store, _ = bound(model)
    strides = model.weight.stride()
    values = np.arange(120, dtype=np.float32)
    store.write_fragment(0, values)
    assert torch.equal(model.weight, torch.arange(120.0, dtype=dtype).view(4, 3, 2, 5))
    assert model.weight.stride() == strides
    np.testing.assert_array_equal(store.read_fragment(0), values)


def test_a_write_keeps_parameters_storages_and_gradients() -> None:
    model = Tied()
    store, layout = bound(model, fragments=3)
    model(torch.tensor([1, 2])).sum().backward()
    before = [(id(p), p.data_ptr(), p.grad.data_ptr(), p.is_leaf) for p in model.parameters()]
    add(store, layout, 1.0)
    assert [(id(p), p.data_ptr(), p.grad.data_ptr(), p.is_leaf) for p in model.parameters()] == before


def test_a_parameter_without_gradient_moves_like_any_other() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    store, layout = bound(model)
    model["used"](torch.ones(1, 2)).sum().backward()
    expected = model["unused"].weight.detach() + 1
    add(store, layout, 1.0)
    assert torch.equal(model["unused"].weight, expected)


def test_a_write_into_an_unfinished_step_is_noticed_by_autograd() -> None:
    """Adoption belongs between two inner steps; in the middle of one, the gradient would mix two models."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    store, layout = bound(model)
    loss = model(torch.ones(1, 2)).sum()
    add(store, layout, 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_scalars_and_empty_tensors_move() -> None:
    model = nn.ParameterDict({"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.0), "vector": torch.ones(2)})
    store, layout = bound(model)
    assert layout.fragment_size(0) == 3
    store.write_fragment(0, np.array([5, 6, 7], np.float32))
    assert (model["scalar"].item(), model["vector"].tolist()) == (5.0, [6.0, 7.0])


# 16 bits


def outer_steps(store: TorchStore, rounds: int, move: float) -> float:
    """The global value after ``rounds`` in which a learner moves by ``move`` and a bfloat16 outer gradient travels."""
    for _ in range(rounds):
        anchor = store.read_fragment(0)
        store.write_fragment(0, anchor + np.float32(move))
        outer_gradient = torch.from_numpy(anchor - store.read_fragment(0)).bfloat16().float().numpy()
        store.write_fragment(0, anchor - outer_gradient)
    return float(store.read_fragment(0)[0])


def test_small_updates_add_up_in_float32_masters() -> None:
    """C10"""
    store, _ = bound(nn.ParameterList([torch.ones(1)]))
    assert outer_steps(store, rounds=10, move=1e-3) - 1 == pytest.approx(10 * 1e-3, rel=0.01)


def test_pure_bfloat16_warns_because_small_updates_vanish() -> None:
    """C10"""
    with pytest.warns(UserWarning, match="1 of 1 trainable parameters are bfloat16, where an update below 1/256 of a"):
        store, _ = bound(nn.ParameterList([torch.ones(1, dtype=torch.bfloat16)]))
    assert outer_steps(store, rounds=10, move=1e-3) == 1.0


def test_pure_float16_warns_of_its_own_resolution() -> None:
    """C10"""
    with pytest.warns(UserWarning, match="2 of 3 trainable parameters are float16, where an update below 1/2048 of a"):
        TorchStore(nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2, bias=False)))


# Refused models and optimizers


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="model has no trainable parameter: set requires_grad"):
        TorchStore(nn.Linear(2, 2).requires_grad_(False))


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(UsageError, match=r"complex parameters \(weight, bias\)"):
        TorchStore(nn.Linear(2, 2, dtype=torch.complex64))


def test_an_optimizer_that_holds_its_own_masters_is_refused() -> None:
    """C35"""
    model = nn.Linear(2, 3)
    masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    with pytest.raises(UsageError, match=r"steps 2 tensors outside the model \(shapes 3x2, 3\)"):
        check_optimizer(model, torch.optim.SGD(masters, lr=0.1))


def test_a_parameter_no_optimizer_steps_is_named() -> None:
    model = nn.DataParallel(nn.Linear(2, 2))
    with pytest.warns(UserWarning, match=r"the optimizer has no group for 1 trainable parameter \(bias\)"):
        check_optimizer(model, torch.optim.SGD([model.module.weight], lr=0.1))


def test_several_optimizers_may_share_a_model() -> None:
    model = Tied()
    check_optimizer(
        model, torch.optim.SGD(model.middle.parameters(), lr=0.1), torch.optim.AdamW(model.head.parameters(), lr=0.1)
    )


# With optimizers


OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.tensor([step % 6, 3])).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_of_every_group_is_merged(name: str) -> None:
    """C6: two groups, one of them given as a generator."""
    model = Tied()
    optimizer = OPTIMIZERS[name](
        [
            {"params": (p for p in model.parameters() if p.ndim >= 2)},
            {"params": [model.middle.bias], "lr": 0.05},
        ]
    )
    check_optimizer(model, optimizer)
    store, layout = bound(model, fragments=2)
    before = [store.read_fragment(fragment) for fragment in range(2)]
    train(model, optimizer, steps=6)
    assert layout.fragment_size(0) + layout.fragment_size(1) == sum(p.numel() for p in model.parameters())
    for fragment in range(2):
        assert np.all(store.read_fragment(fragment) != before[fragment])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_next_step_starts_from_adopted_values_with_the_old_moments(name: str) -> None:
    """C35: the same as a learner that always had these values and these moments."""
    model = Tied()
    optimizer = OPTIMIZERS[name]([{"params": [model.head.weight]}, {"params": model.middle.parameters()}])
    train(model, optimizer, steps=3)
    store, layout = bound(model, fragments=3)
    add(store, layout, 0.5)

    twin = copy.deepcopy(model)
    twin_optimizer = OPTIMIZERS[name]([{"params": [twin.head.weight]}, {"params": twin.middle.parameters()}])
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, steps=2)
    train(twin, twin_optimizer, steps=2)
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(own, other)


def test_an_sgd_step_after_adoption_is_adopted_minus_rate_times_gradient() -> None:
    """C35"""
    model = nn.Linear(1, 1, bias=False)
    store, _ = bound(model)
    store.write_fragment(0, np.array([3.0], np.float32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    (model(torch.ones(1, 1)) ** 2 / 2).sum().backward()
    optimizer.step()
    assert model.weight.item() == 3.0 - 0.25 * 3.0


def test_masters_outside_the_computing_model_are_what_is_synchronised() -> None:
    """C10, C35: a loop with float32 masters and a bfloat16 copy gives the masters to the store."""
    computing = nn.Linear(2, 2, bias=False).bfloat16()
    masters = nn.ParameterList([computing.weight.detach().float()])
    check_optimizer(masters, torch.optim.SGD(masters.parameters(), lr=0.1))
    store, _ = bound(masters)
    add(store, build_layout(store.tensors(), 1, LayoutMethod.TENSOR), 2.0)
    with torch.no_grad():
        expected = computing.weight.float() + 2.0
        computing.weight.copy_(masters[0])
    assert torch.equal(masters[0], expected)


@pytest.mark.parametrize("model", [nn.Linear(2, 2, device="meta"), nn.LazyLinear(2)], ids=["meta", "lazy"])
def test_parameters_without_values_are_refused_by_name(model: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"parameters without values \(weight, bias\): materialise them first"):
        TorchStore(model)

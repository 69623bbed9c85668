"""The interface's own tests, on every backend and store that comes with the package."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from unlockstep.config import InnerSection
from unlockstep.data import TokenStream
from unlockstep.learners import conformance
from unlockstep.learners.backend import FragmentStore, ResumableBackend, State
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.learners.torch_store import TorchStore
from unlockstep.learners.toy import ToyBackend
from unlockstep.models.factory import causal_loss

TOKENS = np.random.default_rng(0).integers(0, 11, 500).astype(np.uint8)


class TinyTransformer(nn.Module):
    """Embedding, one convolution in channels-last memory, BatchNorm and a tied head: all a store has to cope with."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.convolution = nn.Conv2d(8, 8, (3, 2), padding=(1, 1)).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.ones(()))
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens).transpose(1, 2)[..., None]
        hidden = torch.tanh(self.convolution(hidden)[..., 0])
        return self.lm_head(self.scale * self.norm(hidden).transpose(1, 2))


def tiny(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return TinyTransformer().to(dtype)


def torch_backend(dtype: torch.dtype = torch.float32) -> TorchBackend:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of 16 bits
        store = TorchStore(model := tiny(dtype))
    stream = TokenStream(TOKENS, sequence_length=6, batch_size=2, seed=1)
    return TorchBackend(model, causal_loss, stream, InnerSection(accumulation=2), steps_total=10, store=store)


BACKENDS: dict[str, Callable[[], ResumableBackend]] = {
    "toy": ToyBackend,
    "toy with noise": lambda: ToyBackend(seed=3, noise=1.0),
    "toy with momentum": lambda: ToyBackend(seed=3, noise=0.1, momentum=0.9),
    "torch": torch_backend,
    "torch bfloat16": lambda: torch_backend(torch.bfloat16),
}

STORES: dict[str, Callable[[], FragmentStore]] = {
    "float64": lambda: TorchStore(tiny(torch.float64)),
    "local buffers": lambda: TorchStore(tiny(), buffers="local"),
    "wrapped": lambda: TorchStore(nn.DataParallel(tiny())),
}


@pytest.mark.parametrize("check", conformance.RESUMABLE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", BACKENDS)
def test_backend_conforms(name: str, check: Callable[[Callable[[], ResumableBackend]], None]) -> None:
    check(BACKENDS[name])


@pytest.mark.parametrize("check", conformance.STORE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", STORES)
def test_store_conforms(name: str, check: Callable[[Callable[[], FragmentStore]], None]) -> None:
    check(STORES[name])


class StaleMaster(ToyBackend):
    """Steps a copy of its own and forgets what was adopted."""

    def inner_step(self, clock: int):  # type: ignore[no-untyped-def]
        self.values = getattr(self, "master", self.values).copy()
        stats = super().inner_step(clock)
        self.master = self.values.copy()
        return stats


class LeakyRead(ToyBackend):
    """Hands out a view of the model where it should copy."""

    def read_fragment(self, fragment, out=None):  # type: ignore[no-untyped-def]
        ((_, within_model),) = self._fragments[fragment]
        return self.values[within_model]


class Forgetful(ToyBackend):
    """Goes on with the noise of another step."""

    def load_state(self, state):  # type: ignore[no-untyped-def]
        super().load_state(State(state.tensors, {"steps": 0}))


class LeakyState(ToyBackend):
    """Hands out a view of the model where it should copy."""

    def state(self):  # type: ignore[no-untyped-def]
        state = super().state()
        bits = msgspec.structs.replace(state.tensors["values"], data=self.values.view(np.uint8))
        return State({"values": bits}, state.facts)


class Lenient(ToyBackend):
    """Takes what it finds."""

    def load_state(self, state):  # type: ignore[no-untyped-def]
        if "values" in state.tensors and state.tensors["values"].shape == self.values.shape:
            super().load_state(State({"values": state.tensors["values"]}, state.facts))


@pytest.mark.parametrize(
    ("make", "check"),
    [
        (lambda: Forgetful(noise=1.0), conformance.check_state_goes_on_bit_for_bit),
        (LeakyState, conformance.check_state_is_a_copy),
        (Lenient, conformance.check_state_is_taken_whole),
        (StaleMaster, conformance.check_step_starts_from_written_values),
        (StaleMaster, conformance.check_seek_is_what_steps_do),
        (lambda: LeakyRead(sizes=(4, 4)), conformance.check_read_is_a_copy),
        (lambda: ToyBackend(learning_rate=0.0), conformance.check_only_steps_change_values),
    ],
)
def test_conformance_catches_a_broken_backend(make, check) -> None:
    with pytest.raises(AssertionError):
        check(make)

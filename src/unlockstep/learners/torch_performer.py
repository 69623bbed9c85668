"""The built-in recipe as it is done once more beside others in one process: with a random state of its own, and with
what a checkpoint of it would hold (``replay.performer.Performer``).

Decides what that is. Does not decide when it is done (``replay``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unlockstep.core.data_book import Grant
from unlockstep.learners.backend import State, StepStats
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.learners.torch_state import load_training_state, training_state


class _Generators(NamedTuple):
    """Where the random generators are that a process draws from without naming them (``random_states``: those of CUDA
    devices are left out)."""

    python: Any
    numpy: Any
    torch: Tensor

    @classmethod
    def now(cls) -> _Generators:
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state())

    def put(self) -> None:
        """From here on they are there again."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)


class _Memory(NamedTuple):
    training: State
    generators: _Generators


class TorchPerformer:
    """One program of ``unlockstep learner``.

    Args:
        backend: what it trains, just made: it draws on from where the random generators are now.
        feed: gives its stream the places of the next step; None: it reads a share of its own.
    """

    def __init__(self, backend: TorchBackend, feed: Callable[[Sequence[Grant]], None] | None) -> None:
        self._backend = backend
        self._feed = feed
        self._generators = _Generators.now()
        self.tensors, self.bind = backend.tensors, backend.bind
        self.read_fragment, self.write_fragment = backend.read_fragment, backend.write_fragment
        self.inner_state, self.load_inner_state = backend.inner_state, backend.load_inner_state
        self.reset_optimizer, self.seek = backend.reset_optimizer, backend.seek

    def inner_step(self, clock: int) -> StepStats:
        """As the backend's, with this one's random state."""
        self._generators.put()
        stats = self._backend.inner_step(clock)
        self._generators = _Generators.now()
        return stats

    def feed(self, parts: Sequence[Grant]) -> None:
        """The next step is trained on these places."""
        assert self._feed is not None, "a run that grants places has learners with leased streams"
        self._feed(parts)

    def remember(self) -> object:
        """What its checkpoint would hold (``integrations.learner_checkpoint``)."""
        backend = self._backend
        return _Memory(training_state(backend.model, [backend.optimizer], {"recipe": backend}), self._generators)

    def recall(self, memory: object, *, is_own: bool, keeps_inner: bool) -> None:
        """Take what a new process takes of it."""
        assert isinstance(memory, _Memory), "it comes from another of these"
        backend = self._backend
        load_training_state(
            memory.training,
            backend.model,
            [backend.optimizer],
            {"recipe": backend},
            keep=[tensor.name for tensor in backend.tensors()],
            keep_optimizers=keeps_inner,
        )
        if is_own:
            self._generators = memory.generators
        if keeps_inner:
            backend.go_on_warm()

"""The built-in recipe as it is done once more beside others in one process: with a random state of its own, and with
what a checkpoint of it would hold (``replay.performer.Performer``).

Decides what that is. Does not decide when it is done (``replay``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from unlockstep.core.data_book import Grant
from unlockstep.learners.backend import State
from unlockstep.learners.random_states import OwnGenerators
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.learners.torch_state import load_training_state, training_state


class _Memory(NamedTuple):
    training: State
    places: tuple[Any, ...]


class TorchPerformer:
    """One program of ``unlockstep learner``.

    Args:
        backend: what it trains, just made.
        generators: those it enters for every step.
        feed: gives its stream the places of the next step.
    """

    def __init__(
        self, backend: TorchBackend, generators: OwnGenerators, feed: Callable[[Sequence[Grant]], None]
    ) -> None:
        self._backend = backend
        self.feed = feed
        self._generators = generators
        self.tensors, self.bind = backend.tensors, backend.bind
        self.read_fragment, self.write_fragment = backend.read_fragment, backend.write_fragment
        self.inner_state, self.load_inner_state = backend.inner_state, backend.load_inner_state
        self.inner_step, self.reset_optimizer, self.seek = backend.inner_step, backend.reset_optimizer, backend.seek

    def remember(self) -> object:
        """What its checkpoint would hold (``integrations.learner_checkpoint``)."""
        backend = self._backend
        return _Memory(training_state(backend.model, [backend.optimizer], {"recipe": backend}), self._generators.places)

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
            self._generators.go_to(memory.places)
        if keeps_inner:
            backend.go_on_warm()

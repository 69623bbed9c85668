"""The built-in recipe as it is done once more beside others in one process: with a random state of its own, and with
what a checkpoint of it would hold (``replay.performer.Performer``).

Decides what that is. Does not decide when it is done (``replay``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from unlockstep.core.data_book import Grant
from unlockstep.learners.backend import State, StepStats
from unlockstep.learners.random_states import load_random_state, random_state
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.learners.torch_state import load_training_state, training_state


class _Memory(NamedTuple):
    training: State
    random: State


class TorchPerformer:
    """One program of ``unlockstep learner``.

    Args:
        backend: what it trains, just made: it draws on from where the random generators are now.
        feed: gives its stream the places of the next step; None: it reads a share of its own.
    """

    def __init__(self, backend: TorchBackend, feed: Callable[[Sequence[Grant]], None] | None) -> None:
        self._backend = backend
        self._feed = feed
        self._random = random_state()
        self.tensors, self.bind = backend.tensors, backend.bind
        self.read_fragment, self.write_fragment = backend.read_fragment, backend.write_fragment
        self.inner_state, self.load_inner_state = backend.inner_state, backend.load_inner_state
        self.reset_optimizer, self.seek = backend.reset_optimizer, backend.seek

    def inner_step(self, clock: int) -> StepStats:
        """As the backend's, with this one's random state."""
        load_random_state(self._random)
        stats = self._backend.inner_step(clock)
        self._random = random_state()
        return stats

    def feed(self, parts: Sequence[Grant]) -> None:
        """The next step is trained on these places."""
        assert self._feed is not None, "a run that grants places has learners with leased streams"
        self._feed(parts)

    def remember(self) -> object:
        """What its checkpoint would hold (``integrations.learner_checkpoint``)."""
        backend = self._backend
        return _Memory(training_state(backend.model, [backend.optimizer], {"recipe": backend}), self._random)

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
            self._random = memory.random
        if keeps_inner:
            backend.go_on_warm()

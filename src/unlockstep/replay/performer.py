"""What trains in a replay: a backend that can do whatever a process of a learner has done beside its inner steps.

Decides what a performer must offer, and makes one of any backend. Does not decide when any of it is done (``part``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from unlockstep.core.data_book import Grant
from unlockstep.core.errors import UsageError
from unlockstep.learners.backend import Backend, InnerState, State


class Performer(Backend, InnerState, Protocol):
    """One program of a learner, from its start. What several of them draw from in one process, as torch's random
    generator, each must have to itself."""

    def feed(self, parts: Sequence[Grant]) -> None:
        """The next inner step is trained on these places of the corpus. Only in runs that deal it out by leases."""
        ...

    def remember(self) -> object:
        """All that a checkpoint of the learner would hold, copied."""
        ...

    def recall(self, memory: object, *, is_own: bool, keeps_inner: bool) -> None:
        """Take from a checkpoint what a new process of the learner would take.

        Args:
            memory: from ``remember`` of a performer.
            is_own: of the same learner: its random state is taken, too.
            keeps_inner: the inner optimizer has a donor's state, and keeps it.
        """
        ...


class PlainPerformer:
    """Of a backend whose steps follow from its parameters, its own memory and the number of the step alone.

    Args:
        backend: what trains.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.tensors, self.bind = backend.tensors, backend.bind
        self.read_fragment, self.write_fragment = backend.read_fragment, backend.write_fragment
        self.inner_step, self.reset_optimizer, self.seek = backend.inner_step, backend.reset_optimizer, backend.seek

    def inner_state(self) -> State:
        """What the inner optimizer remembers. Raises UsageError if it is a backend that does not say so."""
        return self._inner().inner_state()

    def load_inner_state(self, state: State) -> None:
        """Remember that instead. Raises UsageError as ``inner_state`` does."""
        self._inner().load_inner_state(state)

    def _inner(self) -> InnerState:
        if not isinstance(self._backend, InnerState):
            raise UsageError("the run hands over the state of inner optimizers, and this backend has none to give")
        return self._backend

    def feed(self, parts: Sequence[Grant]) -> None:
        """It has no data."""

    def remember(self) -> object:
        """Raises UsageError: such learners write no checkpoints."""
        raise UsageError("the run has taken up checkpoints, which this backend knows nothing of")

    def recall(self, memory: object, *, is_own: bool, keeps_inner: bool) -> None:
        """Raises UsageError as ``remember`` does."""
        self.remember()

"""The interface between the protocol and whatever trains: a backend holds one full model and can move fragments.

Decides what every backend must offer (``conformance`` holds the tests any of them must pass). Does not decide when its
methods are called: ``loop.LearnerLoop`` does, always from the training thread and always between two inner steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from unlockstep.core.layout import Layout, TensorSpec

FloatArray = npt.NDArray[np.float32]


class StepStats(msgspec.Struct, frozen=True):
    """What one inner step did."""

    tokens: int
    """Tokens this step trained on."""
    loss: float
    """Mean training loss, nats per token; NaN if unknown."""


class FragmentStore(Protocol):
    """A model whose parameters can be read and written by fragment. What a user's own loop brings."""

    def tensors(self) -> Sequence[TensorSpec]:
        """Every tensor the run synchronises, each once: trainable parameters (tied ones once), float buffers."""
        ...

    def bind(self, layout: Layout) -> None:
        """Called once, before any fragment moves: how the tensors are cut."""
        ...

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        """A host copy, float32[fragment_size], slots in layout order; into ``out`` if given."""
        ...

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        """Overwrite the fragment's tensors in place (rounded to their dtype). Inner optimizer state is kept."""
        ...


class Backend(FragmentStore, Protocol):
    """A fragment store that can also take the inner step itself."""

    def inner_step(self, clock: int) -> StepStats:
        """One optimizer step; ``clock`` is the learner's clock before it, for schedules."""
        ...

    def seek(self, steps: int) -> None:
        """Move the data to where a learner that has taken ``steps`` inner steps would be."""
        ...

"""A learner whose every step is written in advance: so that what a run makes of it can be computed by hand.

Decides nothing: step k adds its delta to the values, and reports its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unlockstep.core.layout import Layout, Role, TensorSpec
from unlockstep.learners.backend import FloatArray, StepStats


class Scripted:
    """One tensor in one fragment (``backend.Backend``).

    Args:
        start: its values before the first step.
        deltas: what each step adds; after the last one nothing moves any more.
        tokens: of each step; the last one's for those that follow.
        role: of the tensor; an embedding is merged by weighted mean whatever the rule.
    """

    def __init__(
        self,
        start: Sequence[float],
        deltas: Sequence[Sequence[float]],
        tokens: Sequence[int] = (1,),
        role: Role = Role.EMBEDDING,
    ) -> None:
        self.values = np.array(start, np.float32)
        self._deltas = [np.array(delta, np.float32) for delta in deltas]
        self._tokens = list(tokens)
        self._spec = TensorSpec("embedding.weight", self.values.shape, "float32", role)
        self.steps = 0

    def tensors(self) -> Sequence[TensorSpec]:
        return (self._spec,)

    def bind(self, layout: Layout) -> None:
        assert layout.specs() == (self._spec,)

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        values = np.empty_like(self.values) if out is None else out
        np.copyto(values, self.values)
        return values

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        np.copyto(self.values, values)

    def inner_step(self, clock: int) -> StepStats:
        if self.steps < len(self._deltas):
            self.values += self._deltas[self.steps]
        tokens = self._tokens[min(self.steps, len(self._tokens) - 1)]
        self.steps += 1
        return StepStats(tokens=tokens, loss=0.0)

    def reset_optimizer(self) -> None:
        """There is none."""

    def seek(self, steps: int) -> None:
        self.steps = steps

"""What learners may hold: a record of every value ever published, and learners that are held against it.

Decides which values a learner may load or adopt: those that some life of the syncer has published, to the bit. Knows
nothing of how they were made (``shadow`` does) or of who may take which (the run log tells).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unlockstep.core.adoption import Adoption
from unlockstep.core.layout import Layout, TensorSpec
from unlockstep.learners.backend import FloatArray, StepStats
from unlockstep.learners.toy import ToyBackend


class Ward:
    """What has been published in a world, and what was found to be wrong there."""

    def __init__(self) -> None:
        self._published: dict[int, set[bytes]] = {}
        self._complaints: list[tuple[str, str]] = []

    def publish(self, fragment: int, values: FloatArray) -> None:
        """A version has this value, as learners decode it."""
        self._published.setdefault(fragment, set()).add(values.tobytes())

    def is_published(self, fragment: int, values: FloatArray) -> bool:
        return values.tobytes() in self._published.get(fragment, ())

    def complain(self, rule: str, sentence: str) -> None:
        self._complaints.append((rule, sentence))

    def take_complaints(self) -> list[tuple[str, str]]:
        """(rule, sentence) of what was found since the last call."""
        complaints, self._complaints = self._complaints, []
        return complaints


class WardedBackend:
    """What one process trains, watched (``learners.backend.Backend``).

    Args:
        ward: told when a value is written that nobody has published.
        learner: whose it is.
        backend: what trains.
        adoption: how values are adopted: by ``overwrite`` what is written is what was published. In every mode it is
            when parameters are loaded, before the first step.
        diverges_at: the step in which the model becomes NaN; None: it does not.
    """

    def __init__(
        self, ward: Ward, learner: str, backend: ToyBackend, adoption: Adoption, diverges_at: int | None = None
    ) -> None:
        self._ward = ward
        self._learner = learner
        self._backend = backend
        self._overwrites = adoption is Adoption.OVERWRITE
        self._diverges_at = diverges_at
        self._steps = 0

    def tensors(self) -> Sequence[TensorSpec]:
        return self._backend.tensors()

    def bind(self, layout: Layout) -> None:
        self._backend.bind(layout)

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        return self._backend.read_fragment(fragment, out)

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        if (self._overwrites or self._steps == 0) and not self._ward.is_published(fragment, values):
            verb = "adopts" if self._steps else "loads"
            self._ward.complain(
                "adopted value", f"{self._learner} {verb} a value of fragment {fragment} nobody published"
            )
        self._backend.write_fragment(fragment, values)

    def inner_step(self, clock: int) -> StepStats:
        self._steps += 1
        stats = self._backend.inner_step(clock)
        if self._steps == self._diverges_at:
            self._backend.values[:] = np.nan
        return stats

    def seek(self, steps: int) -> None:
        self._backend.seek(steps)

"""What learners may hold and hand over: a record of every value ever published, and of what each process has trained.

Decides

* which values a learner may load or adopt: those that some life of the syncer has published, to the bit, or what its
  adoption mode makes of one of them and of the process's own progress;
* what a learner may hand over: the sum of what its inner steps have changed since it last did, as far as adoptions have
  left it in the model, with the count of just these steps and tokens, and the version it has really adopted.

Computed in float64 from what the model was before and after each step; it shares nothing with ``loop``,
``core.adoption`` and ``core.outer_gradient``. Knows nothing of how versions were made (``shadow`` does) or of who may
take which (the run log tells).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from unlockstep.config import RunConfig
from unlockstep.core.adoption import Adoption
from unlockstep.core.codec import Codec
from unlockstep.core.layout import Layout, TensorSpec
from unlockstep.core.messages import VersionNotice
from unlockstep.learners.backend import FloatArray, StepStats
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import Contribution

Wide = npt.NDArray[np.float64]

ROUNDING = 1e-5
"""Largest difference from float32 arithmetic, as a share of the largest number that goes into a value."""

UPLOAD_ROUNDING = {Codec.FLOAT32: 0.0, Codec.BFLOAT16: 2.0**-8}
"""By upload codec: the same of an element, as a share of itself."""


class Ward:
    """What has been published in a world, and what was found to be wrong there."""

    def __init__(self) -> None:
        self._published: dict[int, set[bytes]] = defaultdict(set)
        self._versions: dict[int, dict[int, list[Wide]]] = defaultdict(dict)
        """By fragment and version, one value for each life of the syncer that has had it."""
        self._complaints: list[tuple[str, str]] = []

    def publish(self, notice: VersionNotice, values: FloatArray) -> None:
        """A version has this value, as learners decode it."""
        self._published[notice.fragment].add(values.tobytes())
        self._versions[notice.fragment].setdefault(notice.version, []).append(values.astype(np.float64))

    def is_published(self, fragment: int, values: FloatArray) -> bool:
        return values.tobytes() in self._published[fragment]

    def is_near_published(self, fragment: int, values: Wide, bound: float) -> bool:
        """Whether any version is as near as this."""
        return any(self.is_version(fragment, version, values, bound) for version in reversed(self._versions[fragment]))

    def is_version(self, fragment: int, version: int, values: Wide, bound: float) -> bool:
        """Whether a version is as near as this."""
        return any(_distance(value, values) <= bound for value in self._versions[fragment].get(version, ()))

    def complain(self, rule: str, sentence: str) -> None:
        self._complaints.append((rule, sentence))

    def take_complaints(self) -> list[tuple[str, str]]:
        """(rule, sentence) of what was found since the last call."""
        complaints, self._complaints = self._complaints, []
        return complaints


class WardedBackend:
    """What one process trains, watched (``learners.backend.Backend``).

    Args:
        ward: told of every value that is written or handed over and should not be.
        learner: whose it is.
        backend: what trains.
        config: sections ``adoption`` and ``codec`` are read.
        diverges_at: the step in which the model becomes NaN; None: it does not.
    """

    def __init__(
        self, ward: Ward, learner: str, backend: ToyBackend, config: RunConfig, diverges_at: int | None = None
    ) -> None:
        self._ward = ward
        self._learner = learner
        self._backend = backend
        self._mode = config.adoption.mode
        self._alpha = config.adoption.blend_alpha
        self._upload_rounding = UPLOAD_ROUNDING[config.codec.upload]
        self._diverges_at = diverges_at
        self._steps = 0
        self.tokens = 0
        """Trained by this process."""
        self._clock = 0
        self._progress: Wide = np.zeros(backend.values.size)
        """Of each element of the model: what steps have changed, was not handed over and is in the model still."""
        self._parts: list[_Part] = []

    def tensors(self) -> Sequence[TensorSpec]:
        return self._backend.tensors()

    def bind(self, layout: Layout) -> None:
        self._backend.bind(layout)
        self._parts = [_Part(elements) for elements in _elements(self.tensors(), layout)]

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        return self._backend.read_fragment(fragment, out)

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        part = self._parts[fragment]
        if self._steps == 0 or self._mode is Adoption.OVERWRITE:
            is_sound = self._ward.is_published(fragment, values)
            self._progress[part.elements] = 0
            part.c_steps = part.c_tokens = 0
            part.adopted = values.astype(np.float64)
        else:
            is_sound = self._adopt(fragment, part, values.astype(np.float64))
        if not is_sound:
            verb = "adopts" if self._steps else "loads"
            self._ward.complain(
                "adopted value", f"{self._learner} {verb} a value of fragment {fragment} nobody published"
            )
        self._backend.write_fragment(fragment, values)

    def _adopt(self, fragment: int, part: _Part, values: Wide) -> bool:
        """``carry`` or ``blend``, solved for the version; whether there is one."""
        local = self._backend.values[part.elements].astype(np.float64)
        progress = self._progress[part.elements]
        bound = ROUNDING * max(_largest(values), _largest(local), _largest(progress))
        if self._mode is Adoption.CARRY:
            part.adopted = values - progress
        else:
            part.adopted = (values - self._alpha * local) / (1 - self._alpha)
            bound /= 1 - self._alpha
            self._progress[part.elements] = self._alpha * progress
            part.c_tokens = math.floor(self._alpha * part.c_tokens)
            part.c_steps = math.ceil(self._alpha * part.c_steps) if part.c_tokens else 0
        return not np.isfinite(part.adopted).all() or self._ward.is_near_published(fragment, part.adopted, bound)

    def hand_over(self, made: Contribution, delta: Wide) -> None:
        """It hands over this outer gradient, as the syncer will decode it."""
        part = self._parts[made.fragment]
        progress = self._progress[part.elements]
        counts = (made.c_steps, made.c_tokens, made.tokens)
        expected = (part.c_steps, part.c_tokens, self.tokens)
        if counts != expected:
            self._complain(made, f"counts (steps, tokens, tokens in all) {counts}, but has trained {expected}")
        if np.isfinite(progress).all():
            local = self._backend.values[part.elements]
            bound = ROUNDING * max(_largest(local), _largest(made.anchor), _largest(progress))
            excess = np.abs(delta + progress) - self._upload_rounding * np.abs(progress)
            if not excess.max() <= bound:
                self._complain(made, f"differs by {excess.max():.3g} from what it has trained; rounding is {bound:.3g}")
            adopted = part.adopted
            if adopted is not None and not self._ward.is_version(
                made.fragment, made.base_version, adopted, 4 * bound + ROUNDING * _largest(adopted)
            ):
                self._complain(made, f"says it starts from version {made.base_version}, which it has not adopted last")
        self._progress[part.elements] = 0
        part.c_steps = part.c_tokens = 0

    def _complain(self, made: Contribution, what: str) -> None:
        text = f"what {self._learner} hands over of fragment {made.fragment} for round {made.round} {what}"
        self._ward.complain("handed over", text)

    def inner_step(self, clock: int) -> StepStats:
        if clock < self._clock:
            text = f"the clock of {self._learner} is at {clock} when it takes a step, and was at {self._clock}"
            self._ward.complain("learner clock", text)
        self._clock = clock + 1
        self._steps += 1
        before = self._backend.values.astype(np.float64)
        stats = self._backend.inner_step(clock)
        if self._steps == self._diverges_at:
            self._backend.values[:] = np.nan
        self._progress += self._backend.values - before
        self.tokens += stats.tokens
        for part in self._parts:
            part.c_steps += 1
            part.c_tokens += stats.tokens
        return stats

    def seek(self, steps: int) -> None:
        self._backend.seek(steps)


class _Part:
    """What a process has of one fragment."""

    def __init__(self, elements: npt.NDArray[np.intp]) -> None:
        self.elements = elements
        """Where in the model the elements of the fragment are, in the fragment's order."""
        self.c_steps = 0
        self.c_tokens = 0
        self.adopted: Wide | None = None
        """The version adopted last; None: the process has seeded the run."""


def _elements(tensors: Sequence[TensorSpec], layout: Layout) -> list[npt.NDArray[np.intp]]:
    stops = np.cumsum([spec.size for spec in tensors]).tolist()
    ranges = {spec: np.arange(stop - spec.size, stop) for spec, stop in zip(tensors, stops, strict=True)}
    return [np.concatenate([ranges[slot.tensor] for slot in slots]) for slots in layout.fragments]


def _largest(values: npt.NDArray[np.floating]) -> float:
    return float(np.abs(values).max())


def _distance(one: Wide, other: Wide) -> float:
    return float(np.abs(one - other).max())

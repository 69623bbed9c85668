"""What learners may hold and hand over: a record of every value ever published, and of what each process has trained.

Decides

* which values a learner may load or adopt: those that some life of the syncer has published, to the bit, or what its
  adoption mode makes of one of them and of the process's own progress;
* what it may load of another learner: that one's inner optimizer and parameters as they all were at one moment, whose
  versions were those stated; and that it takes no step with only a part of its parameters loaded;
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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unlockstep.config import CodecSection, Durability, RunConfig
from unlockstep.core.adoption import Adoption
from unlockstep.core.layout import Layout, TensorSpec
from unlockstep.core.messages import HandedOver, VersionNotice
from unlockstep.learners.backend import FloatArray, State, StepStats
from unlockstep.learners.state_body import Donated
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import Contribution
from unlockstep.sim.rounding import Losses, Wide

ROUNDING = 1e-5
"""Largest difference from float32 arithmetic, as a share of the largest number that goes into a value."""


class Ward:
    """What has been published in a world, and what was found to be wrong there."""

    def __init__(self) -> None:
        self.diverged: set[str] = set()
        """Learners whose model has become NaN."""
        self._published: dict[int, set[bytes]] = defaultdict(set)
        self._versions: dict[int, dict[int, list[Wide]]] = defaultdict(dict)
        """By fragment and version, one value for each life of the syncer that has had it."""
        self._given: list[Given] = []
        self._complaints: list[tuple[str, str]] = []

    def give(self, given: Given) -> None:
        """A process gives away what it trains with."""
        self._given.append(given)

    def given(self, inner: State) -> list[Given]:
        """Whatever was given with this inner state."""
        return [given for given in self._given if given.inner == _bytes(inner)]

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


@dataclass(frozen=True, slots=True)
class Given:
    """What one process trained with at one moment."""

    inner: dict[str, bytes]
    fragments: tuple[bytes, ...]
    adopted: tuple[Wide | None, ...]
    """The versions it had adopted; None: its own version 0."""


class WardedBackend:
    """What one process trains, watched (``learners.backend.Backend``).

    Args:
        ward: told of every value that is written or handed over and should not be.
        learner: whose it is.
        backend: what trains.
        config: sections ``adoption`` and ``codec`` are read.
        diverges_at: the step in which the model becomes NaN, unless the learner's has once before; None: it does not.
    """

    def __init__(
        self, ward: Ward, learner: str, backend: ToyBackend, config: RunConfig, diverges_at: int | None = None
    ) -> None:
        self._ward = ward
        self._learner = learner
        self._backend = backend
        self._mode = config.adoption.mode
        self._alpha = config.adoption.blend_alpha
        self._codec = config.codec
        self._diverges_at = diverges_at
        self._steps = 0
        self.tokens = 0
        """Trained by this process."""
        self._clock = 0
        self._progress: Wide = np.zeros(backend.values.size)
        """Of each element of the model: what steps have changed, was not handed over and is in the model still."""
        self._parts: list[_Part] = []
        self._given: list[Given] = []
        """What of others it may have loaded."""
        self.handed_over: dict[HandedOver, tuple[object, ...]] = {}
        """What it has handed over, by what it is known by: base version, counts, outer gradient."""
        self._may_load_again = config.durability.mode is Durability.INTERVAL or config.rollback.spike_factor > 0
        """What it has adopted may be lost with the syncer, or void: then it takes all versions anew, as they are."""
        self._as_published: set[int] = set()
        """Fragments that it has taken as they are since its last step."""
        self._loaded: set[int] = set()
        """Of these, where it has given up progress."""

    def tensors(self) -> Sequence[TensorSpec]:
        return self._backend.tensors()

    def bind(self, layout: Layout) -> None:
        self._backend.bind(layout)
        self._parts = [_Part(elements, self._codec) for elements in _elements(self.tensors(), layout)]

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        if self._steps == 0:  # to seed the run with it
            self._parts[fragment].is_there = True
        return self._backend.read_fragment(fragment, out)

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        part = self._parts[fragment]
        is_published = self._ward.is_published(fragment, values)
        part.is_there = True
        donors = [given for given in self._given if given.fragments[fragment] == values.tobytes()]
        loads_again = is_published and self._may_load_again
        if self._steps == 0:
            part.losses.void()
        elif loads_again:
            self._as_published.add(fragment)
        if self._steps == 0 and donors:
            is_sound, self._given = True, donors
            self._begin(part, donors[0].adopted[fragment])
        elif self._steps == 0 or self._mode is Adoption.OVERWRITE or loads_again:
            is_sound = is_published
            if self._progress[part.elements].any() and self._mode is not Adoption.OVERWRITE:
                self._loaded.add(fragment)
            self._begin(part, values.astype(np.float64))
        else:
            is_sound = self._adopt(fragment, part, values.astype(np.float64))
        if not is_sound:
            verb = "adopts" if self._steps else "loads"
            self._ward.complain(
                "adopted value", f"{self._learner} {verb} a value of fragment {fragment} nobody published"
            )
        self._backend.write_fragment(fragment, values)

    def _begin(self, part: _Part, adopted: Wide | None) -> None:
        """From here on all progress is its own."""
        self._progress[part.elements] = 0
        part.c_steps = part.c_tokens = 0
        part.adopted = adopted

    def inner_state(self) -> State:
        return self._backend.inner_state()

    def load_inner_state(self, state: State) -> None:
        self._given = self._ward.given(state)
        if not self._given or self._steps:
            self.complain_of_state("loads an inner state that nobody has given")
        self._backend.load_inner_state(state)

    def give(self, donated: Donated) -> None:
        """It gives this away, as it will be decoded: parameters and optimizer must be those of now, versions what it
        has adopted."""
        for notice, part, values in zip(donated.notices, self._parts, donated.fragments, strict=True):
            now = self._backend.read_fragment(notice.fragment)
            if values.tobytes() != now.tobytes():
                self.complain_of_state(f"gives parameters of fragment {notice.fragment} that it does not have now")
            if not self._is_of_version(part, notice, now):
                text = f"gives fragment {notice.fragment} as version {notice.version}, which it has not adopted"
                self.complain_of_state(text)
        if _bytes(donated.inner) != _bytes(self._backend.inner_state()):
            self.complain_of_state("gives an inner state that it does not have now")
        fragments = tuple(values.tobytes() for values in donated.fragments)
        adopted = tuple(part.adopted for part in self._parts)
        self._ward.give(Given(_bytes(donated.inner), fragments, adopted))

    def _is_of_version(self, part: _Part, notice: VersionNotice, now: FloatArray) -> bool:
        if part.adopted is None:  # of a process that has seeded
            return notice.version == 0
        bound = 8 * ROUNDING * max(_largest(part.adopted), _largest(now), _largest(self._progress))
        return not notice.digest or self._ward.is_version(notice.fragment, notice.version, part.adopted, bound)

    def complain_of_state(self, what: str) -> None:
        self._ward.complain("given state", f"{self._learner} {what}")

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
        key = HandedOver(made.round, made.fragment, made.tokens)
        content = (made.base_version, *counts, delta.tobytes())
        if key in self.handed_over:  # Once more: the syncer may have lost it.
            if self.handed_over[key] != content:
                self._complain(made, "differs from what it has handed over for it before")
            return
        self.handed_over[key] = content
        expected = (part.c_steps, part.c_tokens, self.tokens)
        if counts != expected:
            self._complain(made, f"counts (steps, tokens, tokens in all) {counts}, but has trained {expected}")
        local = self._backend.values[part.elements]
        bound = ROUNDING * max(_largest(local), _largest(made.anchor), _largest(progress))
        excess = part.losses.sent(made.codec, -progress, delta, bound)
        if np.isfinite(progress).all():
            if not excess <= bound:
                self._complain(made, f"differs by {excess:.3g} from what it has trained; rounding is {bound:.3g}")
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
        if self._steps == 0 and len({part.is_there for part in self._parts}) > 1:
            self._ward.complain("full set", f"{self._learner} takes a step with a part of its parameters loaded")
        self._clock = clock + 1
        if self._as_published:
            self._look_at_loaded()
        self._steps += 1
        before = self._backend.values.astype(np.float64)
        stats = self._backend.inner_step(clock)
        if self._steps == self._diverges_at and self._learner not in self._ward.diverged:
            self._ward.diverged.add(self._learner)
            self._backend.values[:] = np.nan
        self._progress += self._backend.values - before
        self.tokens += stats.tokens
        for part in self._parts:
            part.c_steps += 1
            part.c_tokens += stats.tokens
        return stats

    def reset_optimizer(self) -> None:
        """What follows is a start of its own: it loads, and what it had handed over is void."""
        self._backend.reset_optimizer()
        self._steps = self._clock = self.tokens = 0  # The step under way did not count, on the clock neither.
        self.handed_over.clear()
        self._as_published.clear()
        self._loaded.clear()
        self._progress[:] = 0
        for part in self._parts:
            part.c_steps = part.c_tokens = 0

    def _look_at_loaded(self) -> None:
        """Who loads anew loads everything: a fragment alone is adopted, and keeps its progress. Whether all of them
        were loaded or adopted cannot be seen where nothing was given up."""
        has_all = len(self._as_published) == len(self._parts)
        for fragment, part in enumerate(self._parts):
            if self._loaded and fragment not in self._loaded and self._progress[part.elements].any():
                text = f"{self._learner} gives up its progress on fragments {sorted(self._loaded)}, not on {fragment}"
                self._ward.complain("adopted value", text)
            if has_all and self._loaded:
                part.losses.void()
            elif has_all:
                part.losses.perhaps_void()
        self._as_published.clear()
        self._loaded.clear()

    def seek(self, steps: int) -> None:
        self._backend.seek(steps)


class _Part:
    """What a process has of one fragment."""

    def __init__(self, elements: npt.NDArray[np.intp], settings: CodecSection) -> None:
        self.losses = Losses(settings, elements.size)
        self.is_there = False
        """It is loaded, or the process seeds the run with it."""
        self.elements = elements
        """Where in the model the elements of the fragment are, in the fragment's order."""
        self.c_steps = 0
        self.c_tokens = 0
        self.adopted: Wide | None = None
        """The version adopted last; None: the process has seeded the run, or its donor had."""


def _elements(tensors: Sequence[TensorSpec], layout: Layout) -> list[npt.NDArray[np.intp]]:
    stops = np.cumsum([spec.size for spec in tensors]).tolist()
    ranges = {spec: np.arange(stop - spec.size, stop) for spec, stop in zip(tensors, stops, strict=True)}
    return [np.concatenate([ranges[slot.tensor] for slot in slots]) for slots in layout.fragments]


def _bytes(state: State) -> dict[str, bytes]:
    return {name: bits.data.tobytes() for name, bits in state.tensors.items()}


def _largest(values: npt.NDArray[np.floating]) -> float:
    return float(np.abs(values).max())


def _distance(one: Wide, other: Wide) -> float:
    return float(np.abs(one - other).max())

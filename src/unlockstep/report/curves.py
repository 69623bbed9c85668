"""What changes over a run, thinned to what a chart can show: losses, live learners, bandwidth, tokens.

Decides how much is kept: a run is cut into so many slices of time, and what falls into one becomes its mean or its sum.
So a run of any length takes the memory of a short one. Does not decide how curves look (``page``).
"""

from __future__ import annotations

import math

import msgspec

from unlockstep.core.events import (
    BytesMoved,
    ContributionAccepted,
    EvaluationReported,
    Event,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLeaving,
    LearnerLive,
    RoundClosed,
    StepReported,
    SyncerResumed,
)
from unlockstep.core.status import Score
from unlockstep.report.figures import natural

SLICES = 300
"""Slices of time."""

LOSS_SLICES = 150
"""Of losses, which are noisy."""

POINTS_MAX = 12_000
"""Of all learners' losses together: where there are many learners, slices are longer."""


class LossPoint(msgspec.Struct, frozen=True):
    """One slice of a learner: means."""

    at_ns: float
    clock: float
    tokens: float
    """That all learners had trained by then."""
    loss: float
    """NaN: none in this slice was finite, though one had been before; at the first of them."""


class EvaluationPoint(msgspec.Struct, frozen=True):
    """One evaluation of the global model."""

    at_ns: int
    clock: int
    tokens: int
    """That all learners had trained by then, as reported."""
    nats_per_byte: float
    scores: tuple[Score, ...] = ()
    """Beside the text."""


class Moved(msgspec.Struct):
    """Bytes of bodies, by slice."""

    up: list[float]
    down: list[float]


class Curves(msgspec.Struct, frozen=True):
    """Of one run."""

    begin_ns: int
    slice_ns: float
    losses: dict[str, list[LossPoint]]
    """By learner, ascending."""
    evaluations: list[EvaluationPoint]
    live: list[tuple[int, int]]
    """When the number of live learners changed, ns, and to what; the first and last of every slice."""
    moved: dict[str, Moved]
    """By learner; empty for a run in which nobody measured it."""
    participation: list[tuple[float, float]]
    """Slices of time (middle, ns) and the mean over the rounds closed in it of participants over live learners."""
    staleness: dict[int, int]
    """Contributions by the versions that had been committed since their base."""


class _Slice:
    """Sums of one slice of one learner."""

    __slots__ = ("at_ns", "clock", "count", "loss", "tokens")

    def __init__(self) -> None:
        self.count, self.loss, self.at_ns, self.clock, self.tokens = 0, 0.0, 0.0, 0.0, 0.0


class CurvesReader:
    """Reads events in the order they were logged.

    Args:
        begin_ns, end_ns: first and last moment of the run.
        learners: how many take part.
    """

    def __init__(self, begin_ns: int, end_ns: int, learners: int) -> None:
        learners = max(1, learners)
        whole_ns = max(1, end_ns - begin_ns)
        self._begin_ns = begin_ns
        self._slice_ns = whole_ns / SLICES
        self._loss_ns = whole_ns / max(20, min(LOSS_SLICES, POINTS_MAX // learners))
        self._slices: dict[str, dict[int, _Slice]] = {}
        self._diverged: dict[str, dict[int, LossPoint]] = {}
        self._evaluations: list[EvaluationPoint] = []
        self._tokens: dict[str, tuple[int, int]] = {}
        """Learner -> tokens of its earlier processes, and of this one."""
        self._tokens_all = 0
        self._live: set[str] = set()
        self._live_at: list[tuple[int, int]] = []
        self._moved: dict[str, Moved] = {}
        self._moved_ns: dict[str, int] = {}
        """By learner, until when its bytes have been counted."""
        self._shares: dict[int, tuple[float, int]] = {}
        self._staleness: dict[int, int] = {}

    def see(self, event: Event) -> None:
        match event:
            case StepReported():
                self._step(event)
            case LearnerJoined():
                if not event.resumed:
                    before, now = self._tokens.get(event.learner, (0, 0))
                    self._tokens[event.learner] = before + now, 0
                self._turn(event.at_ns, event.learner, False)
            case LearnerLive():
                self._turn(event.at_ns, event.learner, True)
            case LearnerAway() | LearnerDeparted() | LearnerLeaving():
                self._turn(event.at_ns, event.learner, False)
            case SyncerResumed():
                self._live.clear()
                self._live_at.append((event.at_ns, 0))
            case EvaluationReported():
                point = EvaluationPoint(event.at_ns, event.clock, self._tokens_all, event.nats_per_byte, event.scores)
                self._evaluations.append(point)
            case BytesMoved():
                self._bytes(event)
            case RoundClosed() if event.live:
                at = self._slice(event.at_ns)
                total, count = self._shares.get(at, (0.0, 0))
                self._shares[at] = total + min(1.0, len(event.participants) / event.live), count + 1
            case ContributionAccepted():
                self._staleness[event.staleness] = self._staleness.get(event.staleness, 0) + 1

    def curves(self) -> Curves:
        """What there is to draw."""
        losses = {learner: self._points(learner) for learner in sorted(self._slices, key=natural)}
        participation = [
            (self._begin_ns + (at + 0.5) * self._slice_ns, total / count)
            for at, (total, count) in sorted(self._shares.items())
        ]
        return Curves(
            begin_ns=self._begin_ns,
            slice_ns=self._slice_ns,
            losses=losses,
            evaluations=self._evaluations,
            live=self._live_at,
            moved=dict(sorted(self._moved.items(), key=lambda item: natural(item[0]))),
            participation=participation,
            staleness=dict(sorted(self._staleness.items())),
        )

    def _points(self, learner: str) -> list[LossPoint]:
        means = {
            at: LossPoint(one.at_ns / one.count, one.clock / one.count, one.tokens / one.count, one.loss / one.count)
            for at, one in self._slices[learner].items()
        }
        return [point for _, point in sorted((self._diverged.get(learner, {}) | means).items())]

    def _slice(self, at_ns: int) -> int:
        return max(0, min(SLICES - 1, int((at_ns - self._begin_ns) / self._slice_ns)))

    def _step(self, event: StepReported) -> None:
        before, now = self._tokens.get(event.learner, (0, 0))
        self._tokens_all += max(0, event.tokens - now)
        self._tokens[event.learner] = before, max(now, event.tokens)
        at = int((event.at_ns - self._begin_ns) / self._loss_ns)
        if not math.isfinite(event.loss):
            if event.learner in self._slices and event.step_ns:  # Else it has no losses, or this is of no one step.
                point = LossPoint(event.at_ns, event.clock, self._tokens_all, math.nan)
                self._diverged.setdefault(event.learner, {}).setdefault(at, point)
            return
        slices = self._slices.setdefault(event.learner, {})
        one = slices.get(at)
        if one is None:
            one = slices[at] = _Slice()
        one.count += 1
        one.loss += event.loss
        one.at_ns += event.at_ns
        one.clock += event.clock
        one.tokens += self._tokens_all

    def _turn(self, at_ns: int, learner: str, is_live: bool) -> None:
        """Of several changes in one slice the first and the last are kept."""
        if (learner in self._live) == is_live:
            return
        (self._live.add if is_live else self._live.discard)(learner)
        latest = self._live_at
        if len(latest) >= 2 and self._slice(latest[-2][0]) == self._slice(at_ns):
            latest.pop()
        latest.append((at_ns, len(self._live)))

    def _bytes(self, event: BytesMoved) -> None:
        moved = self._moved.get(event.learner)
        if moved is None:
            moved = self._moved[event.learner] = Moved([0.0] * SLICES, [0.0] * SLICES)
        last = self._slice(event.at_ns)
        first = min(last, self._slice(self._moved_ns.get(event.learner, event.at_ns)) + 1)
        for at in range(first, last + 1):  # They have moved since they were counted last.
            moved.up[at] += event.up_bytes / (last + 1 - first)
            moved.down[at] += event.down_bytes / (last + 1 - first)
        self._moved_ns[event.learner] = event.at_ns

"""Who was live when, who was away and how it came back, and how long nobody trained; from the events of a run.

Part of the room ``report``. Decides what an absence and what downtime is. What each learner did meanwhile is
``stretches``'.
"""

from __future__ import annotations

import bisect
import statistics
from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLeaving,
    LearnerLive,
    RunFinishing,
    SyncerResumed,
)
from unlockstep.core.reasons import DepartureReason, Recovered
from unlockstep.report.stretches import USUAL_STEPS, Doing, Stretch
from unlockstep.report.tape_time import TapeTime

STILL_STEPS = 2
"""Of a step counts at most what so many of those before it took."""


class Absence(msgspec.Struct, frozen=True):
    """A stretch in which a learner that had been live was not, before the run began to finish."""

    learner: str
    gone_ns: int
    """Its connection broke, or it departed."""
    reason: DepartureReason | None
    """Why it departed; None: it had only lost its connection."""
    joined_ns: int | None
    """It joined again; None: never."""
    live_ns: int | None
    """It finished its first inner step after that."""
    contributed_ns: int | None
    """Its first contribution after that was accepted."""
    recovered: Recovered | None = None
    """Where it then had its inner optimizer's state from; None: it has not come back, or begun the run anew."""
    killed: bool = False
    """By the tape, after it had been live and before it joined again."""


class Union:
    """Stretches of time, overlapping ones joined: a run may hold a million steps and thousands of absences."""

    def __init__(self, stretches: Iterable[tuple[int, int]] = ()) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin_ns, end_ns in sorted(stretches):
            self.add(begin_ns, end_ns)

    def add(self, begin_ns: int, end_ns: int) -> None:
        """One more."""
        first, last = bisect.bisect_left(self._ends, begin_ns), bisect.bisect_right(self._begins, end_ns)
        if first < last:  # It touches these.
            begin_ns, end_ns = min(begin_ns, self._begins[first]), max(end_ns, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin_ns], [end_ns]

    def overlap(self, begin_ns: int, end_ns: int) -> bool:
        """Whether any of them shares time with this one."""
        before = bisect.bisect_left(self._begins, end_ns)
        return before > 0 and self._ends[before - 1] > begin_ns

    def shared_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much time they share with this one."""
        first = max(0, bisect.bisect_right(self._begins, begin_ns) - 1)
        shared_ns = 0
        for begin, end in zip(self._begins[first:], self._ends[first:], strict=True):
            if begin >= end_ns:
                break
            shared_ns += max(0, min(end, end_ns) - max(begin, begin_ns))
        return shared_ns


class Training:
    """When at least one learner trained: it was in a step, or between two, whether or not anybody heard of it then.

    Of a step that took more than twice as long as the median of the fifteen before it, the end counts alone, so much as
    two of them take: its process may have stood still. That an event tape slows a learner is known, and no stand.
    """

    def __init__(self) -> None:
        self._trained = Union()
        self._lengths_ns: dict[str, deque[int]] = {}

    def take(self, stretch: Stretch, slowest: float = 1.0) -> None:
        """A stretch is settled.

        Args:
            slowest: how many times slower than at its own speed the learner was meant to be meanwhile, at most.
        """
        if stretch.doing not in (Doing.COMPUTING, Doing.WAITING) or stretch.end_ns <= stretch.begin_ns:
            return
        begin_ns = stretch.begin_ns
        if stretch.step_ns:
            lengths_ns = self._lengths_ns.setdefault(stretch.learner, deque(maxlen=USUAL_STEPS))
            own_ns = round(stretch.step_ns / slowest)
            if lengths_ns and own_ns > STILL_STEPS * min(lengths_ns):
                usual_ns = statistics.median(lengths_ns) * slowest
                begin_ns = max(begin_ns, stretch.end_ns - round(STILL_STEPS * usual_ns))
            if slowest == 1.0 or not lengths_ns:  # A slowed step may have been spared: what is usual it does not tell.
                lengths_ns.append(own_ns)
        self._trained.add(begin_ns, stretch.end_ns)

    def missing_ns(self, spans: Iterable[tuple[int, int]]) -> int:
        """How much of these there is in which nobody trained."""
        return sum(end_ns - begin_ns - self._trained.shared_ns(begin_ns, end_ns) for begin_ns, end_ns in spans)


class Presence:
    """Who is live, and who was away from when to when.

    A learner is live from its first step after it has joined until its connection breaks, or the syncer dies.

    Args:
        tape: when the tape killed whom, if one was played; whoever passes it shows it every event.
    """

    def __init__(self, tape: TapeTime | None = None) -> None:
        self._tape = tape
        self.live: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.first_live_ns: int | None = None
        self.without_syncer_ns = 0
        """From the last event of a life of the syncer to the next life, after the first learner had become live."""
        self.absences: list[Absence] = []
        self._came_ns: list[int] = []
        """Of each, when it had become live before."""
        self._live_since_ns: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        """Learner -> its latest absence."""
        self.spans: list[tuple[int, int]] = []
        """From the first learner becoming live to the end of the run; two of a run that went on after its end."""
        self._since_ns: int | None = None
        self._is_finishing = False
        self._seen_ns = 0
        """When the last event happened: a syncer that has died had been there until then, as far as anybody knows."""

    def see(self, event: Event) -> None:
        match event:
            case SyncerResumed():
                self._is_finishing = False
                if self.first_live_ns is not None:
                    self.without_syncer_ns += max(0, event.at_ns - self._seen_ns)
                for learner in sorted(self.live):
                    self._goes(learner, self._seen_ns)
                if self.first_live_ns is not None and self._since_ns is None:  # It had been reaching its end.
                    self._since_ns = self._seen_ns
            case LearnerJoined():
                self.starts[event.learner] += not event.resumed
                self._goes(event.learner, event.at_ns)
                self._returns(event.learner, joined_ns=event.at_ns)
            case LearnerLive():
                self._comes(event.learner, event.at_ns, event.recovered)
            case LearnerAway() | LearnerLeaving():
                self._goes(event.learner, event.at_ns)
            case LearnerDeparted():
                self._goes(event.learner, event.at_ns)
                self._departs(event.learner, event.reason)
            case ContributionAccepted():
                self._contributes(event.learner, event.at_ns)
            case RunFinishing():
                self._is_finishing = True
                self.end(event.at_ns)
        self._seen_ns = event.at_ns

    def told(self) -> tuple[Absence, ...]:
        """All absences, in the order in which learners went, with what the tape did; there are no more events."""
        return tuple(
            absence if self._killed_ns(absence, came_ns) is None else msgspec.structs.replace(absence, killed=True)
            for absence, came_ns in zip(self.absences, self._came_ns, strict=True)
        )

    def _killed_ns(self, absence: Absence, came_ns: int) -> int | None:
        until_ns = self._seen_ns if absence.joined_ns is None else absence.joined_ns
        return None if self._tape is None else self._tape.killed_ns(absence.learner, came_ns, until_ns)

    def end(self, now_ns: int) -> None:
        """The run has reached its end: what follows is no downtime."""
        if self._since_ns is not None:
            self.spans.append((self._since_ns, now_ns))
            self._since_ns = None

    def _comes(self, learner: str, now_ns: int, recovered: Recovered | None) -> None:
        if learner not in self.live:
            self._live_since_ns[learner] = now_ns
        self.live.add(learner)
        if self.first_live_ns is None:
            self.first_live_ns = self._since_ns = now_ns
        self._returns(learner, live_ns=now_ns, recovered=recovered)

    def _goes(self, learner: str, now_ns: int) -> None:
        if learner not in self.live:
            return
        self.live.remove(learner)
        if self._is_finishing:
            return
        self._latest[learner] = len(self.absences)
        self.absences.append(Absence(learner, now_ns, None, None, None, None))
        self._came_ns.append(self._live_since_ns[learner])

    def _departs(self, learner: str, reason: DepartureReason) -> None:
        index = self._latest.get(learner)
        if index is not None and self.absences[index].joined_ns is None:
            self.absences[index] = msgspec.structs.replace(self.absences[index], reason=reason)

    def _contributes(self, learner: str, now_ns: int) -> None:
        index = self._latest.get(learner)
        if index is None:
            return
        absence = self.absences[index]
        if absence.joined_ns is not None and absence.contributed_ns is None:
            self.absences[index] = msgspec.structs.replace(absence, contributed_ns=now_ns)

    def _returns(self, learner: str, **change: object) -> None:
        """It has joined again, or taken its first step after that."""
        index = self._latest.get(learner)
        if index is None or self.absences[index].live_ns is not None:
            return
        self.absences[index] = msgspec.structs.replace(self.absences[index], **change)

"""Who was live when, who was away and how it came back, and how long nobody trained; from the events of a run.

Part of the room ``report``. Decides what an absence and what downtime is. What each learner did meanwhile is
``stretches``'.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping

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
from unlockstep.report.stretches import LATE_STEPS, Doing, Stretch


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


class Union:
    """Stretches of time, overlapping ones joined: a run may hold a million steps and thousands of absences."""

    def __init__(self, stretches: Iterable[tuple[int, int]]) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin_ns, end_ns in sorted(stretches):
            if self._ends and begin_ns <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end_ns)
            else:
                self._begins.append(begin_ns)
                self._ends.append(end_ns)

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


class Presence:
    """Who is live, and who was away from when to when.

    A learner is live from its first step after it has joined until its connection breaks, or the syncer dies.
    """

    def __init__(self) -> None:
        self.live: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.first_live_ns: int | None = None
        self.without_syncer_ns = 0
        """From the last event of a life of the syncer to the next life, after the first learner had become live."""
        self.absences: list[Absence] = []
        self._latest: dict[str, int] = {}
        """Learner -> its latest absence."""
        self._nobody_live: list[tuple[int, int]] = []
        self._down_since_ns: int | None = None
        self._worked: list[Stretch] = []
        """Stretches of work in times in which nobody was live."""
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
                if self.first_live_ns is not None and self._down_since_ns is None:  # It had been reaching its end.
                    self._down_since_ns = self._seen_ns
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

    def worked(self, stretch: Stretch) -> None:
        """A stretch is settled. (A ``Sink``.)"""
        if stretch.doing is not Doing.COMPUTING:
            return
        since_ns = self._down_since_ns
        if since_ns is not None and stretch.end_ns > since_ns:
            self._worked.append(stretch)
            return
        for begin_ns, end_ns in reversed(self._nobody_live):
            if end_ns <= stretch.begin_ns:
                return
            if begin_ns < stretch.end_ns:
                self._worked.append(stretch)
                return

    def downtime_ns(self, usual_ns: Mapping[str, int]) -> int:
        """Time between the first learner becoming live and the end in which nobody trained: nobody was live, and
        nobody has reported steps of that time since.

        Args:
            usual_ns: the length of a step of each learner. One that took longer may have stood still: only its end
                counts, so much of it as two steps would have taken.
        """

        def begin_ns(work: Stretch) -> int:
            usual = usual_ns.get(work.learner, 0)
            return max(work.begin_ns, work.end_ns - LATE_STEPS * usual) if work.step_ns and usual else work.begin_ns

        worked = Union((begin_ns(work), work.end_ns) for work in self._worked)
        return sum(end_ns - begin_ns - worked.shared_ns(begin_ns, end_ns) for begin_ns, end_ns in self._nobody_live)

    def end(self, now_ns: int) -> None:
        """Somebody is live, or the run has reached its end: what follows is no downtime."""
        if self._down_since_ns is not None:
            self._nobody_live.append((self._down_since_ns, now_ns))
            self._down_since_ns = None

    def _comes(self, learner: str, now_ns: int, recovered: Recovered | None) -> None:
        self.live.add(learner)
        self.end(now_ns)
        if self.first_live_ns is None:
            self.first_live_ns = now_ns
        self._returns(learner, live_ns=now_ns, recovered=recovered)

    def _goes(self, learner: str, now_ns: int) -> None:
        if learner not in self.live:
            return
        self.live.remove(learner)
        if self._is_finishing:
            return
        if not self.live:
            self._down_since_ns = now_ns
        self._latest[learner] = len(self.absences)
        self.absences.append(Absence(learner, now_ns, None, None, None, None))

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

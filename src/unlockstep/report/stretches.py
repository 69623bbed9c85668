"""What each learner did from when to when, read from the events of a run: its time cut into stretches without gaps.

Decides what counts as computing, waiting, recovering, away and down; table, picture and uptime go by it. Does not
decide what that amounts to (``goodput``) nor how it looks (``timeline``, ``trace``).

Times are the syncer's, but for the length of a step, which its learner has measured. A report may come long after its
step: a link was cut, or there was no syncer. When the step was is told backwards: it ended before the next one began,
and when its report came at the latest. Steps of which no report ever came are known by their number; each is taken to
have lasted as long as the median of those before, and they are as many as fit.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from enum import Enum

import msgspec

from unlockstep.core.events import (
    Event,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    RunFinishing,
    StepReported,
    SyncerResumed,
)
from unlockstep.core.reasons import DepartureReason
from unlockstep.report.tape_time import TapeTime

USUAL_STEPS = 15
"""Steps whose median is the length of one that was not reported."""

LATE_STEPS = 2
"""A report that is so many lengths of its step late was held up: nobody heard of the step when it was."""


class Doing(Enum):
    """What a learner is doing."""

    COMPUTING = "computing"
    """A step, from its beginning to its end, whether or not anybody heard of it then; or the one in hand where the log
    of a run that goes on ends."""
    WAITING = "waiting"
    """Trained before, not known to be without a connection, and in no step: for parameters, for data, for the end."""
    RECOVERING = "recovering"
    """A new process has joined, and has not begun its first step."""
    AWAY = "away"
    """Without a connection, and no step of it is known: it stood still, or it was killed by the tape before anybody
    heard of what it trained."""
    DOWN = "down"
    """There is no process: from the last step that one has reported until the next one joins, or from its death where
    the tape tells it. The step it was in, and the time until somebody noticed, are part of it."""


class Stretch(msgspec.Struct, frozen=True):
    """Of one learner; they do not overlap."""

    learner: str
    doing: Doing
    begin_ns: int
    end_ns: int
    tokens: float = 0.0
    """Trained in it; 0 unless computing."""
    step_ns: int = 0
    """The length of its one step, as measured; 0: it is not one step that was reported."""
    steps: int = 1
    """As many; those that were not reported are one stretch."""
    unheard: bool = False
    """It computed, and the syncer heard of it when it was over."""


Sink = Callable[[Stretch], None]


class _Report(msgspec.Struct):
    """A step whose place in time is not settled yet."""

    at_ns: int
    """When its report came."""
    step_ns: int
    tokens: float
    before: Doing
    """What fills the time between it and what came before it."""
    others: int = 0
    """Steps before it that were not reported."""
    others_ns: int = 0
    others_tokens: float = 0.0


class _Course:
    """One learner, as far as the log has been read."""

    __slots__ = ("doing", "gone_ns", "lengths_ns", "reports", "since_ns", "steps", "tokens")

    def __init__(self) -> None:
        self.doing: Doing | None = None
        """What follows the last report, as far as it is known yet; None: it is not part of the run."""
        self.since_ns = 0
        """Until when its time is dealt with."""
        self.gone_ns: int | None = None
        """When its connection was lost, or the syncer; None: it has one."""
        self.steps = 0
        """Of the present process."""
        self.tokens = 0
        self.reports: list[_Report] = []
        self.lengths_ns: deque[int] = deque(maxlen=USUAL_STEPS)


class Attendance:
    """Reads events in the order they were logged, and hands stretches on as soon as they are known.

    A learner belongs to the run from its first join until it leaves in order, and again from its next join. After the
    run has begun to finish only steps count.

    Args:
        sink: takes the stretches, those of one learner in order of time.
        tape: when the tape killed whom, if one was played; whoever passes it shows it every event first.
    """

    def __init__(self, sink: Sink, tape: TapeTime | None = None) -> None:
        self._sink = sink
        self._tape = tape
        self._courses: dict[str, _Course] = {}
        self._finishing_ns: int | None = None
        self._last_step_ns = 0
        self._seen_ns = 0

    def see(self, event: Event) -> None:
        match event:
            case StepReported():
                self._step(event)
            case LearnerJoined():
                self._joined(event)
            case LearnerAway() if self._finishing_ns is None:
                self._goes(event.learner, event.at_ns)
            case LearnerDeparted() if self._finishing_ns is None:
                self._departed(event)
            case SyncerResumed():
                self._finishing_ns = None
                for learner in self._courses:
                    self._goes(learner, self._seen_ns)
            case RunFinishing():
                self._finishing_ns = event.at_ns
        self._seen_ns = max(self._seen_ns, event.at_ns)

    @property
    def end_ns(self) -> int:
        """Where the run ends: when it begins to finish, or with the last step after that; else with the log."""
        if self._finishing_ns is None:
            return self._seen_ns
        return max(self._finishing_ns, self._last_step_ns)

    def finish(self, until_ns: int = 0) -> int:
        """There are no more events.

        Args:
            until_ns: how long the run is known to have gone on, where its log may end before; ns.

        Returns:
            Where the run ends.
        """
        goes_on = self._finishing_ns is None
        end_ns = max(self.end_ns, until_ns) if goes_on else self.end_ns
        for learner, course in self._courses.items():
            self._settle(learner, course)
            match course.doing:
                case None:
                    continue
                case Doing.AWAY:
                    self._lost(learner, course, end_ns)
                case Doing.COMPUTING if not goes_on:
                    self._put(learner, course, Doing.WAITING, end_ns)
                case _:
                    self._put(learner, course, course.doing, end_ns)
            course.doing = None
        return end_ns

    def _course(self, learner: str) -> _Course:
        return self._courses.setdefault(learner, _Course())

    def _put(self, learner: str, course: _Course, doing: Doing, end_ns: int) -> None:
        """From where its time is dealt with."""
        if end_ns > course.since_ns:
            self._sink(Stretch(learner, doing, course.since_ns, end_ns))
            course.since_ns = end_ns

    def _joined(self, event: LearnerJoined) -> None:
        course = self._course(event.learner)
        if event.resumed and course.doing is not None:
            course.gone_ns = None
            return  # The stretch it was away goes on until it has reported a step.
        self._settle(event.learner, course)
        if course.doing is Doing.RECOVERING:
            self._put(event.learner, course, Doing.RECOVERING, event.at_ns)
        elif course.doing is not None:
            self._lost(event.learner, course, event.at_ns)
        course.doing, course.since_ns = Doing.RECOVERING, max(course.since_ns, event.at_ns)
        course.gone_ns = None
        course.steps = course.tokens = 0

    def _lost(self, learner: str, course: _Course, until_ns: int) -> None:
        """Nothing more was heard of its process."""
        if self._tape is not None and course.gone_ns is not None:
            killed_ns = self._tape.killed_ns(learner, course.gone_ns, until_ns)
            if killed_ns is not None:
                self._put(learner, course, Doing.AWAY, killed_ns)
        self._put(learner, course, Doing.DOWN, until_ns)

    def _step(self, event: StepReported) -> None:
        course = self._course(event.learner)
        begin_ns = event.at_ns - event.step_ns
        if course.doing is None:  # The log begins in the middle of the run.
            course.doing, course.since_ns = Doing.WAITING, max(course.since_ns, begin_ns)
            course.steps, course.tokens = event.steps - 1, round(event.tokens * (1 - 1 / max(1, event.steps)))
        if not course.reports or begin_ns >= course.reports[-1].at_ns:
            self._settle(event.learner, course)
        others, tokens = max(0, event.steps - course.steps - 1), max(0, event.tokens - course.tokens)
        usual_ns = round(statistics.median(course.lengths_ns)) if others and course.lengths_ns else event.step_ns
        earlier = tokens * others / (others + 1)
        before = Doing.WAITING if course.doing is Doing.COMPUTING else course.doing
        course.reports.append(
            _Report(event.at_ns, event.step_ns, tokens - earlier, before, others, others * usual_ns, earlier)
        )
        course.doing, course.gone_ns = Doing.COMPUTING, None
        course.steps, course.tokens = max(course.steps, event.steps), max(course.tokens, event.tokens)
        course.lengths_ns.append(event.step_ns)
        self._last_step_ns = event.at_ns

    def _settle(self, learner: str, course: _Course) -> None:
        """What is still to come begins after the last report came: so the place of every step is known."""
        if not course.reports:
            return
        ends_ns, limit_ns = [], course.reports[-1].at_ns
        for report in reversed(course.reports):
            limit_ns = min(limit_ns, report.at_ns)
            ends_ns.append(limit_ns)
            limit_ns -= report.step_ns + report.others_ns
        for report, end_ns in zip(course.reports, reversed(ends_ns), strict=True):
            end_ns = max(end_ns, course.since_ns)
            begin_ns = max(end_ns - report.step_ns, course.since_ns)
            if report.others:
                self._others(learner, course, report, begin_ns)
            self._put(learner, course, report.before, begin_ns)
            late = report.at_ns - end_ns > LATE_STEPS * report.step_ns
            self._sink(Stretch(learner, Doing.COMPUTING, begin_ns, end_ns, report.tokens, report.step_ns, 1, late))
            course.since_ns = end_ns
        course.reports.clear()

    def _others(self, learner: str, course: _Course, report: _Report, until_ns: int) -> None:
        """Steps that were not reported: a process that was there trained on, and a new one had to recover first."""
        taken_ns = min(report.others_ns, until_ns - course.since_ns)
        if report.before is Doing.RECOVERING:
            self._put(learner, course, Doing.RECOVERING, until_ns - taken_ns)
        end_ns = course.since_ns + taken_ns
        stretch = Stretch(
            learner, Doing.COMPUTING, course.since_ns, end_ns, report.others_tokens, 0, report.others, True
        )
        self._sink(stretch)
        course.since_ns = end_ns

    def _goes(self, learner: str, at_ns: int) -> None:
        """Nobody hears of it any more; whether it is away or down is known when it comes back, or does not."""
        course = self._course(learner)
        if course.doing is Doing.COMPUTING:
            self._settle(learner, course)
            course.doing = Doing.AWAY
        if course.gone_ns is None:
            course.gone_ns = at_ns

    def _departed(self, event: LearnerDeparted) -> None:
        course = self._course(event.learner)
        if course.doing is None:
            return
        if event.reason is not DepartureReason.LEFT:
            self._goes(event.learner, event.at_ns)
            return
        self._settle(event.learner, course)
        doing = Doing.RECOVERING if course.doing is Doing.RECOVERING else Doing.WAITING
        self._put(event.learner, course, doing, event.at_ns)
        course.doing = None

"""What each learner did from when to when, read from the events of a run: its time cut into stretches without gaps.

Decides what counts as computing, waiting, recovering, away and down. Does not decide what that amounts to
(``goodput``) nor how it looks (``timeline``, ``trace``). Times are the syncer's, but for the length of a step, which
its learner has measured: so a stretch may begin a little before the last one ends.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

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


class Doing(Enum):
    """What a learner is doing."""

    COMPUTING = "computing"
    """A step, from its beginning to its end; or the one in hand where the log of a run that goes on ends."""
    WAITING = "waiting"
    """Connected, trained before, and in no step: for parameters, for data, for the end of the run."""
    RECOVERING = "recovering"
    """A new process has joined, and has not begun its first step."""
    AWAY = "away"
    """Without a connection, and back as the same process: what it trained meanwhile is known when it is back."""
    DOWN = "down"
    """There is no process: from the last step that one has reported until the next one joins. The step it was in, and
    the time until somebody noticed, are part of it."""


Sink: TypeAlias = Callable[[str, Doing, int, int, float], None]
"""Takes learner, what it did, from when, until when (ns), and the tokens it trained in that time."""


class _Course:
    """One learner, as far as the log has been read."""

    __slots__ = ("doing", "since_ns", "steps", "tokens")

    def __init__(self) -> None:
        self.doing: Doing | None = None
        """What follows ``since_ns``, as far as it is known yet; None: it is not part of the run."""
        self.since_ns = 0
        """Until when its time is dealt with."""
        self.steps = 0
        """Of the present process."""
        self.tokens = 0


class Attendance:
    """Reads events in the order they were logged, and hands stretches on as soon as they are known.

    A learner belongs to the run from its first join until it leaves in order, and again from its next join. After the
    run has begun to finish only steps count.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
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
                self._goes(self._course(event.learner))
            case LearnerDeparted() if self._finishing_ns is None:
                self._departed(event)
            case SyncerResumed():
                self._finishing_ns = None
                for course in self._courses.values():
                    self._goes(course)
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
            match course.doing:
                case None:
                    continue
                case Doing.COMPUTING:
                    doing = Doing.COMPUTING if goes_on else Doing.WAITING
                case Doing.AWAY:
                    doing = Doing.DOWN
                case _:
                    doing = course.doing
            if course.since_ns < end_ns:
                self._sink(learner, doing, course.since_ns, end_ns, 0.0)
            course.doing = None
        return end_ns

    def _course(self, learner: str) -> _Course:
        return self._courses.setdefault(learner, _Course())

    def _joined(self, event: LearnerJoined) -> None:
        course = self._course(event.learner)
        if event.resumed and course.doing is not None:
            return  # The stretch it was away goes on until it has reported a step.
        if course.doing is Doing.RECOVERING:
            self._sink(event.learner, Doing.RECOVERING, course.since_ns, event.at_ns, 0.0)
        elif course.doing is not None:
            self._sink(event.learner, Doing.DOWN, course.since_ns, event.at_ns, 0.0)
        course.doing, course.since_ns = Doing.RECOVERING, event.at_ns
        course.steps = course.tokens = 0

    def _step(self, event: StepReported) -> None:
        course = self._course(event.learner)
        if course.doing is None:  # The log begins in the middle of the run.
            course.doing, course.since_ns = Doing.WAITING, event.at_ns - event.step_ns
            course.steps, course.tokens = event.steps - 1, event.tokens
        steps, tokens = max(1, event.steps - course.steps), max(0, event.tokens - course.tokens)
        begin_ns = event.at_ns - event.step_ns
        before = Doing.WAITING if course.doing is Doing.COMPUTING else course.doing
        earlier = tokens * (steps - 1) / steps
        if begin_ns != course.since_ns or earlier:
            self._sink(event.learner, before, course.since_ns, begin_ns, earlier)
        self._sink(event.learner, Doing.COMPUTING, begin_ns, event.at_ns, tokens - earlier)
        course.doing, course.since_ns = Doing.COMPUTING, event.at_ns
        course.steps, course.tokens = event.steps, event.tokens
        self._last_step_ns = event.at_ns

    def _goes(self, course: _Course) -> None:
        """Nobody hears of it any more; whether it is away or down is known when it comes back, or does not."""
        if course.doing is Doing.COMPUTING:
            course.doing = Doing.AWAY

    def _departed(self, event: LearnerDeparted) -> None:
        course = self._course(event.learner)
        if course.doing is None:
            return
        if event.reason is not DepartureReason.LEFT:
            self._goes(course)
            return
        doing = Doing.RECOVERING if course.doing is Doing.RECOVERING else Doing.WAITING
        if course.since_ns < event.at_ns:
            self._sink(event.learner, doing, course.since_ns, event.at_ns, 0.0)
        course.doing = None

"""Everything that the page of a run shows, read from its log in two passes.

Decides which parts of a run are looked at more closely. Numbers are ``accounting``'s, drawing is ``page``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from unlockstep.core.events import Event, LearnerJoined
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.report.accounting import Accounting
from unlockstep.report.curves import Curves, CurvesReader
from unlockstep.report.figures import natural
from unlockstep.report.played import Played, PlayedReader
from unlockstep.report.rounds_table import RoundRows, RoundsReader
from unlockstep.report.summary import Summary
from unlockstep.report.tape_time import TapeTime
from unlockstep.report.timeline import Timeline, TimelineReader
from unlockstep.tape import Tape

CLOSE_ROUNDS = 40
"""Rounds in the closer look."""


class Extent:
    """When a run began and ended, seen in passing."""

    def __init__(self) -> None:
        self.first_ns: int | None = None
        """Of the first learner's joining; of the first event, if nobody has joined."""
        self.last_ns = 0
        self.count = 0
        self._has_joined = False

    def through(self, events: Iterable[Event]) -> Iterator[Event]:
        """The same events."""
        for event in events:
            if self.first_ns is None or (not self._has_joined and isinstance(event, LearnerJoined)):
                self.first_ns, self._has_joined = event.at_ns, isinstance(event, LearnerJoined)
            self.last_ns = max(self.last_ns, event.at_ns)
            self.count += 1
            yield event


Settings = tuple[tuple[str, str], ...]
"""What to call a setting, and what it was."""


class RunView(msgspec.Struct, frozen=True):
    """One run."""

    label: str
    """What it is called among others."""
    summary: Summary
    simulated: bool
    """Time was virtual."""
    tape: Tape | None
    begin_ns: int
    end_ns: int
    curves: Curves
    rounds: RoundRows
    timeline: Timeline
    close: Timeline | None
    """A part of it, where its rounds can be told apart; None if they can in the whole."""
    settings: Settings = ()
    played: Played | None = None
    """How the tape went; None if there is none, or it never began."""
    until: Callable[[int], Accounting] | None = None
    """What the run amounted to at a moment, ns: its log is read once more."""


def seconds_from(view: RunView) -> Callable[[float], float]:
    """From times of the log to seconds since the run began."""
    return lambda at_ns: (at_ns - view.begin_ns) / NANOSECONDS_PER_SECOND


def read_view(
    events: Iterable[Event],
    summary: Summary,
    extent: Extent,
    *,
    label: str,
    simulated: bool,
    tape: Tape | None,
    settings: Settings = (),
    until: Callable[[int], Accounting] | None = None,
) -> RunView:
    """Read the log again, and what is to be drawn of it.

    Args:
        events: of one run.
        summary: of the same events.
        extent: what ``Extent.through`` saw of them.
        label: what the run is called among others.
        simulated: whether its time was virtual.
        tape: what was done to it, if that is known.
        settings: how it was set up.
        until: what the run amounted to at a moment.
    """
    accounting = summary.accounting
    begin_ns, end_ns = extent.first_ns or 0, extent.last_ns
    accounting = msgspec.structs.replace(
        accounting, learners=tuple(sorted(accounting.learners, key=lambda learner: natural(learner.learner)))
    )
    summary = msgspec.structs.replace(summary, accounting=accounting)
    learners = [learner.learner for learner in accounting.learners]
    steps_ns = {learner.learner: learner.gap.median_ns for learner in accounting.learners}

    def timeline(first_ns: int, last_ns: int) -> TimelineReader:
        return TimelineReader(
            begin_ns=first_ns,
            end_ns=last_ns,
            learners=learners,
            zero_ns=begin_ns,
            undisturbed_ns=steps_ns,
            tape=tape,
            simulated=simulated,
        )

    curves, rounds, whole = CurvesReader(begin_ns, end_ns, len(learners)), RoundsReader(), timeline(begin_ns, end_ns)
    span = _closer(accounting, begin_ns, end_ns)
    close = None if span is None else timeline(*span)
    course = PlayedReader(TapeTime(tape, simulated))
    readers = [curves, rounds, whole, course, *(() if close is None else (close,))]
    for event in events:
        for reader in readers:
            reader.see(event)
    return RunView(
        label=label,
        summary=summary,
        simulated=simulated,
        tape=tape,
        begin_ns=begin_ns,
        end_ns=end_ns,
        curves=curves.curves(),
        rounds=rounds.rows(),
        timeline=whole.timeline(),
        close=None if close is None else close.timeline(),
        settings=settings,
        played=course.played(),
        until=until,
    )


def _closer(accounting: Accounting, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
    """A time of some rounds, around the first moment at which a learner went away; else in the middle. None if all
    rounds can be told apart in the whole run."""
    rounds = accounting.rounds_committed
    if rounds <= 3 * CLOSE_ROUNDS:
        return None
    half_ns = round((end_ns - begin_ns) * CLOSE_ROUNDS / rounds / 2)
    middle_ns = accounting.absences[0].gone_ns if accounting.absences else (begin_ns + end_ns) // 2
    middle_ns = max(begin_ns + half_ns, min(end_ns - half_ns, middle_ns))
    return middle_ns - half_ns, middle_ns + half_ns

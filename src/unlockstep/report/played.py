"""How an event tape went in one run: how much of it was played, and how long processes took to start.

Part of the room ``report``. Decides what of two runs under one tape can be compared (``comparison``). Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from unlockstep.core.events import Event, LearnerJoined, RunFinishing, SyncerResumed
from unlockstep.report.tape_time import TapeTime
from unlockstep.tape import SYNCER, Join, Replace, Restart


class Played(msgspec.Struct, frozen=True):
    """Of one run."""

    begin_ns: int
    """When the time of the tape began, in the log."""
    end_ns: int
    """When the run began to finish, or its log ended; by the time of the tape."""
    unplayed: int
    """Actions after that."""
    actions: int
    start_ns: int | None
    """From when the tape starts the process of a learner to its joining, median; None: none of those has joined."""
    first_start_ns: int | None
    """From the beginning of the log to the joining of the first learners, median: what a start takes, about, where
    processes are real."""


class PlayedReader:
    """Reads events in the order they were logged."""

    def __init__(self, tape: TapeTime) -> None:
        self._tape = tape
        self._finishing_ns: int | None = None
        self._last_ns = 0
        self._joined: dict[str, list[int]] = {}
        """By learner, when each of its processes joined."""

    def see(self, event: Event) -> None:
        self._tape.see(event)
        self._last_ns = max(self._last_ns, event.at_ns)
        match event:
            case LearnerJoined(resumed=False):
                self._joined.setdefault(event.learner, []).append(event.at_ns)
            case RunFinishing():
                self._finishing_ns = event.at_ns
            case SyncerResumed():
                self._finishing_ns = None

    def played(self) -> Played | None:
        """There are no more events."""
        begin_ns, tape = self._tape.begin_ns, self._tape.tape
        if begin_ns is None or tape is None:
            return None
        end_ns = self._last_ns if self._finishing_ns is None else self._finishing_ns
        first_ns = [joined[0] for name, joined in sorted(self._joined.items()) if name in tape.learners]
        return Played(
            begin_ns,
            end_ns - begin_ns,
            sum(at_ns > end_ns for at_ns, _ in self._tape.actions()),
            len(tape.actions),
            _median(self._starts_ns()),
            _median(first_ns),
        )

    def _starts_ns(self) -> list[int]:
        """How long those took that the tape started; a process that another one followed before it joined took nobody
        knows how long."""
        starts: dict[str, list[int]] = {}
        for at_ns, action in self._tape.actions():
            if isinstance(action, Join | Restart | Replace) and action.target != SYNCER:
                starts.setdefault(action.target, []).append(at_ns)
        taken = []
        for learner, begins in starts.items():
            for begin_ns, next_ns in zip(begins, [*begins[1:], 2**63], strict=True):
                joined = [at_ns for at_ns in self._joined.get(learner, ()) if begin_ns <= at_ns < next_ns]
                taken += [joined[0] - begin_ns] if joined else []
        return taken


def _median(values: Sequence[int]) -> int | None:
    return round(statistics.median(values)) if values else None

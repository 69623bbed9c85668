"""The rounds of a run as rows of a table: when each was open, why it closed, who took part.

Decides which rounds a long run shows: the first and the last. The others are in its run log, as events.
"""

from __future__ import annotations

from collections import deque

import msgspec

from unlockstep.core.events import Event, FragmentCommitted, RoundClosed, RoundEmpty, RoundOpened, SyncerResumed

FIRST, LAST = 100, 400
"""Rounds shown from the beginning, and from the end."""


class RoundRow(msgspec.Struct, frozen=True):
    """A round that has closed."""

    round: int
    fragment: int
    version: int | None
    """None: nothing was committed."""
    opened_ns: int
    open_ns: int
    quorum_ns: int
    grace_ns: int
    commit_ns: int | None
    participants: tuple[str, ...]
    live: int
    weights: dict[str, float]
    tokens: int
    norm: float
    reason: str
    sentence: str


class RoundRows(msgspec.Struct, frozen=True):
    """What is shown of all rounds that have closed."""

    rows: list[RoundRow]
    seen: int


class RoundsReader:
    """Reads events in the order they were logged, and keeps rounds in the order in which their fate was known."""

    def __init__(self) -> None:
        self._opened: dict[int, RoundOpened] = {}
        self._closed: dict[int, RoundClosed] = {}
        self._first: list[RoundRow] = []
        self._last: deque[RoundRow] = deque(maxlen=LAST)
        self._seen = 0

    def see(self, event: Event) -> None:
        match event:
            case RoundOpened():
                self._opened[event.round] = event
            case RoundClosed():
                self._closed[event.round] = event
            case SyncerResumed():  # What was in flight begins anew under its number.
                self._opened.clear()
                self._closed.clear()
            case FragmentCommitted() | RoundEmpty():
                self._settle(event)

    def rows(self) -> RoundRows:
        """The first and the last."""
        return RoundRows([*self._first, *self._last], self._seen)

    def _settle(self, outcome: FragmentCommitted | RoundEmpty) -> None:
        begun, ended = self._opened.pop(outcome.round, None), self._closed.pop(outcome.round, None)
        if ended is None:
            return
        self._seen += 1
        row = _row(ended, ended.at_ns - ended.open_ns if begun is None else begun.at_ns, outcome)
        if len(self._first) < FIRST:
            self._first.append(row)
        else:
            self._last.append(row)


def _row(closed: RoundClosed, opened_ns: int, outcome: FragmentCommitted | RoundEmpty) -> RoundRow:
    commit = outcome if isinstance(outcome, FragmentCommitted) else None
    return RoundRow(
        round=closed.round,
        fragment=closed.fragment,
        version=None if commit is None else commit.version,
        opened_ns=opened_ns,
        open_ns=closed.open_ns,
        quorum_ns=closed.quorum_ns,
        grace_ns=closed.grace_ns,
        commit_ns=None if commit is None else commit.commit_ns,
        participants=closed.participants,
        live=closed.live,
        weights={} if commit is None else commit.weights,
        tokens=0 if commit is None else commit.tokens,
        norm=0.0 if commit is None else commit.norm,
        reason=closed.reason.value.replace("_", " "),
        sentence=closed.sentence,
    )

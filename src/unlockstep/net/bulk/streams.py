"""How many connections carry a transfer side by side: as many as pay.

Pure: it is told how many bytes passed in which time at the present number. One stream is enough where the link is short
and clean; where packets are lost, a stream's rate is limited by loss and round trip, and n streams bring n times as
much. Nobody can know beforehand, so it is tried out: twice as many, as long as that pays; then, at ever longer
intervals, half as many, and steps that are smaller. A stream pays if it brings at least ``PAYS`` of what the others
bring on average: from four to five, 5 % more.
"""

from __future__ import annotations

from typing import Protocol

from unlockstep.core.ids import NANOSECONDS_PER_SECOND

STREAMS_MAX = 16
"""Connections of one direction at once; what a router of a small office carries."""

STREAMS_FIRST = 2

PAYS = 0.2
"""What a stream more must bring, as a share of what one of the others does."""

NOISE = 0.04
"""A difference in throughput that says nothing."""

WINDOW_NS = NANOSECONDS_PER_SECOND
"""How long a number of streams is measured."""

SETTLE_NS = NANOSECONDS_PER_SECOND // 2
"""... and before that, given to it: new connections begin slowly."""

FINEST = 2
"""Smallest step: an eighth down, a quarter up, at least one."""

REST_WINDOWS_MAX = 64
"""Measurements between two trials, at most; after every trial in vain twice as many as before."""


class StreamCount(Protocol):
    """How many, and what is told to who decides it."""

    @property
    def number(self) -> int: ...

    def measured(self, moved_bytes: int, duration_ns: int) -> None: ...


class FixedStreams:
    """Always the same number.

    Args:
        number: from 1 to ``STREAMS_MAX``.
    """

    def __init__(self, number: int) -> None:
        self._number = min(max(number, 1), STREAMS_MAX)

    @property
    def number(self) -> int:
        return self._number

    def measured(self, moved_bytes: int, duration_ns: int) -> None:
        """It changes nothing."""


def worth(fewer: int, more: int) -> float:
    """Throughput of more streams over that of fewer, from which on the more are kept."""
    return 1 + max(NOISE, PAYS * (more - fewer) / fewer)


class AutomaticStreams:
    """As many as pay, for one direction to one peer. It remembers what it has found for as long as it lives.

    Args:
        first: to begin with.
        most: at most.
    """

    def __init__(self, first: int = STREAMS_FIRST, most: int = STREAMS_MAX) -> None:
        self._most = most
        self._kept = min(max(first, 1), most)
        """The number that is known to pay."""
        self._kept_rate = 0.0
        self._tried: int | None = None
        """Another one, on trial."""
        self._up_next = True
        self._finesse = 0
        self._failures = 0
        """Trials in vain since the last that was not."""
        self._rest = 0
        """Measurements until the next trial."""
        self._settling_ns = SETTLE_NS
        self._bytes = 0
        self._duration_ns = 0

    @property
    def number(self) -> int:
        return self._kept if self._tried is None else self._tried

    def measured(self, moved_bytes: int, duration_ns: int) -> None:
        """So many bytes have passed in this time, in which ``number`` streams were at work."""
        if self._settling_ns > 0:
            self._settling_ns -= duration_ns
            return
        self._bytes += moved_bytes
        self._duration_ns += duration_ns
        if self._duration_ns < WINDOW_NS:
            return
        rate = self._bytes / self._duration_ns
        self._bytes = self._duration_ns = 0
        if self._tried is None:
            self._watch(rate)
        else:
            self._judge(self._tried, rate)

    def _watch(self, rate: float) -> None:
        """Of the number that is kept. If the link is another one than it was, try at once."""
        before, self._kept_rate = self._kept_rate, rate
        if not before / 2 <= rate <= before * 2:
            self._failures = self._finesse = self._rest = 0
        self._rest -= 1
        if self._rest <= 0:
            self._try()

    def _judge(self, tried: int, rate: float) -> None:
        """Of the number on trial."""
        if tried > self._kept:
            is_better = rate > self._kept_rate * worth(self._kept, tried)
        else:
            is_better = self._kept_rate <= rate * worth(tried, self._kept)
        self._tried = None
        if is_better:
            self._kept, self._kept_rate = tried, rate
            self._failures = 0
            self._try()
            return
        self._settling_ns = SETTLE_NS
        self._up_next = not self._up_next
        self._failures += 1
        if self._failures % 2 == 0:  # Neither more nor fewer were better.
            self._finesse = min(self._finesse + 1, FINEST)
        self._rest = min(2**self._failures, REST_WINDOWS_MAX)

    def _try(self) -> None:
        """Another number, if there is one in the direction that is due."""
        for _ in range(2):
            step = max(1, self._kept >> self._finesse)
            aim = self._kept + step if self._up_next else self._kept - max(1, step // 2)
            aim = min(max(aim, 1), self._most)
            if aim != self._kept:
                self._tried = aim
                self._settling_ns = SETTLE_NS
                return
            self._up_next = not self._up_next

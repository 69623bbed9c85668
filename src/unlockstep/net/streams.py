"""How many connections carry a transfer side by side: as many as pay.

Pure: it is told how many bytes passed in which time at the present number. One stream is enough where the link is short
and clean; where packets are lost, a stream's rate is limited by loss and round trip, and n streams bring n times as
much. Nobody can know beforehand, so it is tried out: more streams, then fewer, at ever longer intervals.
"""

from __future__ import annotations

from typing import Protocol

STREAMS_MAX = 16


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

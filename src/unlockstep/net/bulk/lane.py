"""One direction of the way to a syncer: how many requests are under way at once, and which connections they use.

Decides who may begin another request: who has waited longest, so that no transfer waits for all of another one. Decides
also when the throughput of so many is measured: while no place is free. How many there are is ``streams``' decision.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from unlockstep.net.bulk.channel import Channel
from unlockstep.net.bulk.streams import StreamCount

LOOK_S = 0.5
"""How often who waits for a place looks whether it is still wanted."""


class Lane:
    """May be used by any thread.

    Args:
        streams: how many places there are; told what they bring.
        connect: makes a channel, open.
        now_ns: a steady clock.
    """

    def __init__(self, streams: StreamCount, connect: Callable[[], Channel], now_ns: Callable[[], int]) -> None:
        self._streams = streams
        self._connect = connect
        self._now_ns = now_ns
        self._changed = threading.Condition()
        self._taken = 0
        self._waiting: deque[object] = deque()
        """Who wants a place, who came first first."""
        self._idle: list[Channel] = []
        self._full_since_ns: int | None = None
        self._bytes = 0

    @property
    def places(self) -> int:
        """Requests that may be under way at once."""
        return self._streams.number

    @property
    def has_room(self) -> bool:
        """Whether a place is free that nobody waits for."""
        return self._taken < self._streams.number and not self._waiting

    def enter(self, wait: Callable[[], bool]) -> bool:
        """Take a place. If none is free, or others wait for one, wait as long as ``wait`` says so."""
        with self._changed:
            me = object()
            self._waiting.append(me)
            try:
                while self._waiting[0] is not me or self._taken >= self._streams.number:
                    if not wait():
                        return False
                    self._changed.wait(LOOK_S)
                self._measure()
                self._taken += 1
                self._measure()
                return True
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()

    def leave(self) -> None:
        """Give the place back."""
        with self._changed:
            self._measure()
            self._taken -= 1
            self._measure()
            self._changed.notify_all()

    def moved(self, count: int) -> None:
        """So many bytes have passed."""
        with self._changed:
            self._bytes += count
            self._measure()

    def _measure(self) -> None:
        """Of the time in which every place is taken, and no more: where there are to be fewer streams than there were,
        those that are too many first end their requests."""
        now_ns = self._now_ns()
        if self._full_since_ns is not None:
            self._streams.measured(self._bytes, now_ns - self._full_since_ns)
        self._bytes = 0
        self._full_since_ns = now_ns if self._taken == self._streams.number else None

    def channel(self) -> Channel:
        """A connection that is idle, the one used last, or a new one. Raises OSError."""
        with self._changed:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def keep(self, channel: Channel) -> None:
        """It can carry another request."""
        with self._changed:
            self._idle.append(channel)

    def clear(self) -> list[Channel]:
        """The idle ones; they are the caller's now."""
        with self._changed:
            idle, self._idle = self._idle, []
            return idle

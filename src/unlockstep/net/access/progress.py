"""What one connection has come to, and whether it takes too long: pure, time is an argument.

::

    opened ──> head: bytes of a request come ──> request: its body comes, it is answered ──> idle ──> head ...

Decides when a connection that is slow is cut. aiohttp has no such limits: a client that sends a byte a minute would
keep its place for ever. Does not decide what a request may ask for.
"""

from __future__ import annotations

from unlockstep.net.access.limits import Limits


class Progress:
    """Of one connection.

    Args:
        limits: of the port.
    """

    __slots__ = (
        "_bytes",
        "_head_s",
        "_in_request",
        "_limits",
        "_opened_s",
        "_unread_s",
        "_window_bytes",
        "_window_s",
        "is_proven",
    )

    def __init__(self, limits: Limits) -> None:
        self.is_proven = False
        """It has made a request that it may make."""
        self._limits = limits
        self._opened_s: float | None = None
        self._head_s: float | None = None
        """Since when a head is due; None: none is."""
        self._in_request = False
        self._bytes = 0
        self._window_s, self._window_bytes = 0.0, 0
        self._unread_s: float | None = None

    def opened(self, now_s: float) -> None:
        """A request may come: over TLS after its handshake, which has a deadline of its own."""
        self._opened_s = self._head_s = now_s

    def received(self, size: int, now_s: float) -> None:
        """So many bytes have come."""
        self._bytes += size
        if self._opened_s is not None and not self._in_request and self._head_s is None:
            self._head_s = now_s

    def begins(self, now_s: float) -> None:
        """The head of a request is complete."""
        self._in_request, self._head_s = True, None
        self._window_s, self._window_bytes = now_s, self._bytes

    def ends(self) -> None:
        """The request is answered."""
        self._in_request = False

    def is_unread(self, now_s: float) -> None:
        """The client does not read what is sent to it."""
        self._unread_s = now_s

    def is_read(self) -> None:
        """It reads on."""
        self._unread_s = None

    def overdue(self, now_s: float, is_wanted: bool) -> str | None:
        """In a few words why the connection is to be cut; None: it is not. To be asked every second or so.

        Args:
            now_s: monotonic seconds.
            is_wanted: the body of a request is not complete, and we are reading.
        """
        limits = self._limits
        if self._opened_s is None:
            return None
        if self._head_s is not None and now_s - self._head_s > limits.head_s_max:
            return f"a request did not come within {limits.head_s_max:g} s"
        if not self.is_proven and not self._in_request and now_s - self._opened_s > limits.unproven_s_max:
            return f"no request that it may make came within {limits.unproven_s_max:g} s"
        if self._unread_s is not None and now_s - self._unread_s > limits.unread_s_max:
            return f"an answer was not read for {limits.unread_s_max:g} s"
        return self._too_slow(now_s, is_wanted)

    def _too_slow(self, now_s: float, is_wanted: bool) -> str | None:
        limits, taken_s = self._limits, now_s - self._window_s
        if not (self._in_request and is_wanted):
            self._window_s, self._window_bytes = now_s, self._bytes
            return None
        if taken_s < limits.rate_window_s:
            return None
        rate = (self._bytes - self._window_bytes) / taken_s
        self._window_s, self._window_bytes = now_s, self._bytes
        if rate < limits.rate_min:
            return f"a body came with {rate:.0f} bytes a second, {limits.rate_min:.0f} at least"
        return None

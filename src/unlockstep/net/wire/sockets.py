"""What the operating system is told of a connection: when its peer is gone without a word, and who goes first.

A closed connection says so. One whose other end has lost its power, its address or its link says nothing: what is sent
is repeated for a quarter of an hour, and what is waited for never comes. Decides which socket options bound that, where
the system has them, and that small messages do not queue behind bodies. Does not decide for how long (``timeouts``).
"""

from __future__ import annotations

import math
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from unlockstep.net.wire.timeouts import Timeouts

PROBES = 3
"""Signs of life asked for in vain, by the system, before an idle connection counts as dead."""

_KEEP_IDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
_TCP_INFO_BYTES = 104
_RTT = struct.Struct("=I")
_RTT_OFFSET = 68
"""``tcpi_rtt`` in Linux's ``struct tcp_info``: after eight bytes and fifteen 32-bit numbers."""

NOT_SENT_BYTES = 512 * 1024
"""What the system takes of a body beyond what is on the wire."""

_LOW_DELAY, _THROUGHPUT = 0x10, 0x08
"""Types of service (RFC 1349), by which Linux queues: messages first, then everything else, then bodies."""

PIECE_BYTES_MAX = 960 * 1024
"""What is read or written of a body at once, at most: just below the size from which memory has pages of its own
(``cli.memory``), which would be cleared every time."""


class _Socket(Protocol):
    """A socket, or what asyncio shows of one."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes: ...


def watch_over(connection: _Socket, timeouts: Timeouts) -> None:
    """Have the system end a connection whose other end does not answer for about ``stall_s``, idle or not.

    On a socket that listens: those that are accepted from it. What a system does not know is left out.
    """
    pause_s = max(1, math.floor(timeouts.stall_s / (PROBES + 1)))
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (
        (_KEEP_IDLE, pause_s),
        (getattr(socket, "TCP_KEEPINTVL", None), pause_s),
        (getattr(socket, "TCP_KEEPCNT", None), PROBES),
        (getattr(socket, "TCP_USER_TIMEOUT", None), math.ceil(timeouts.stall_s * 1000)),
    ):
        if name is not None:
            options.append((socket.IPPROTO_TCP, name, value))
    for level, option, value in options:
        with suppress(OSError):  # Another family of sockets, or it is closed already.
            connection.setsockopt(level, option, value)


def carry_messages(connection: _Socket) -> None:
    """Small messages pass here, and somebody waits for each."""
    _queue_as(connection, _LOW_DELAY)


def carry_bulk(connection: _Socket) -> None:
    """Bodies pass here: whoever shares a queue with them on this machine goes first, and what is sent stays with us
    until it can go on the wire, so that queues stay short and what has passed is known."""
    _queue_as(connection, _THROUGHPUT)
    name = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if name is not None:
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, name, NOT_SENT_BYTES)


def _queue_as(connection: _Socket, service: int) -> None:
    for level, name in (("IPPROTO_IP", "IP_TOS"), ("IPPROTO_IPV6", "IPV6_TCLASS")):
        if hasattr(socket, level) and hasattr(socket, name):
            with suppress(OSError):  # It is of the other family.
                connection.setsockopt(getattr(socket, level), getattr(socket, name), service)


def round_trip_s(connection: _Socket) -> float | None:
    """The round trip as the system measures it all the time, seconds; None where it does not say."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(known) < _RTT_OFFSET + _RTT.size:
        return None
    (microseconds,) = _RTT.unpack_from(known, _RTT_OFFSET)
    return microseconds / 1e6 if microseconds else None


@contextmanager
def over_after(connection: socket.socket, limit_s: float) -> Iterator[None]:
    """For a small question and its answer: after so long nothing more is read or sent, however steadily bytes trickle
    in, each of which would begin the wait for the next one anew."""

    def end() -> None:
        with suppress(OSError):
            # Not the method of an SSLSocket, which another thread is using.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def read_largely(transport: object) -> None:
    """A body comes by this transport of asyncio's: read ``PIECE_BYTES_MAX`` at once. The 256 KiB that it reads by
    itself cost a syncer a fifth more processor, for each goes through the event loop, a parser and a queue. Where a
    transport is of another kind, nothing changes."""
    if hasattr(transport, "max_size"):
        transport.max_size = PIECE_BYTES_MAX


def open_files_max() -> int | None:
    """How many files, connections among them, this process may have open; None: any number, or the system does not
    say."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def open_many_files() -> None:
    """Let this process have as many files open as it may let itself have: many systems begin with 1024, of which each
    learner may need 33."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS says "any number", and means fewer.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

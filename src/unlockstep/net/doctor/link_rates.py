"""How many bytes per second a link carries each way, in one stream and in several side by side.

Decides how long is looked, after how long a start, and how many streams are worth a try. Does not decide what the rates
mean (``diagnosis``). Each stream is a thread with a connection of its own, as the bulk client's are, and moves bytes
without end; what passes in a window of time is counted. So it takes the same time on any link.
"""

from __future__ import annotations

import http.client
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal
from urllib.parse import urlencode

from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.bulk.streams import STREAMS_MAX, worth
from unlockstep.net.doctor.diagnosis import Rates
from unlockstep.net.doctor.link_check import Line
from unlockstep.net.wire import api
from unlockstep.net.wire.names import Target

Way = Literal["up", "down"]

SETTLE_S = 0.5
"""A connection begins slowly; that does not count."""

WINDOW_S = 1.0
"""What passes in this time does."""

STREAMS = (1, 2, 4, 8, STREAMS_MAX)
IN_VAIN_MAX = 2
"""Numbers of streams in a row that bring no more than fewer did, after which no more are tried; one may, by chance."""

PIECE_BYTES = 64 * 1024


def measure(way: Way, target: Target, security: ClientSecurity, limit_s: float, told: Callable[[str], None]) -> Rates:
    """Look at one direction.

    Args:
        way: which.
        target: the syncer.
        security: what is shown and checked.
        limit_s: for all of it.
        told: what is done at the moment, for whoever waits.

    Raises:
        OSError: a connection broke, or nothing has passed in time.
        RemoteProtocolError: the syncer does not take part.
    """
    until_s = time.monotonic() + limit_s
    by_streams: dict[int, float] = {}
    in_vain = 0
    for number in STREAMS:
        if by_streams and (in_vain >= IN_VAIN_MAX or time.monotonic() + SETTLE_S + WINDOW_S > until_s):
            break
        told(f"measures the rate {way}, {number} stream{'s' if number > 1 else ''}")
        try:
            rate = _together(way, target, security, number, until_s)
        except (OSError, RemoteProtocolError):
            if by_streams:
                break  # So many are not for this link, or this syncer.
            raise
        has_paid = all(rate >= worth(fewer, number) * known for fewer, known in by_streams.items())
        in_vain = 0 if has_paid else in_vain + 1
        by_streams[number] = rate
    return Rates(by_streams)


def _together(way: Way, target: Target, security: ClientSecurity, number: int, until_s: float) -> float:
    """Bytes per second of so many streams side by side."""
    news = threading.Event()
    streams = [_Stream(way, target, security, until_s, news) for _ in range(number)]
    try:
        for stream in streams:
            stream.start()
        _until(lambda: all(stream.is_open for stream in streams), streams, news, until_s)
        _pause(SETTLE_S, streams, news)
        before, began_s = _moved(streams), time.monotonic()
        _pause(WINDOW_S, streams, news)
        _until(lambda: _moved(streams) > before, streams, news, until_s)  # A link that moves a byte now and then.
        return (_moved(streams) - before) / (time.monotonic() - began_s)
    finally:
        for stream in streams:
            stream.cut()
        for stream in streams:
            stream.join()


def _moved(streams: Sequence[_Stream]) -> int:
    return sum(stream.moved for stream in streams)


def _until(is_so: Callable[[], bool], streams: Sequence[_Stream], news: threading.Event, until_s: float) -> None:
    """Wait for that. Raises what has ended a stream, or TimeoutError."""
    while not is_so():
        if time.monotonic() >= until_s:
            raise TimeoutError("nothing has passed in time")
        _pause(min(0.05, max(0.0, until_s - time.monotonic())), streams, news)


def _pause(seconds: float, streams: Sequence[_Stream], news: threading.Event) -> None:
    """Wait so long. Raises what has ended a stream meanwhile."""
    news.wait(seconds)
    for stream in streams:
        if stream.error is not None:
            raise stream.error


class _Stream:
    """One connection that moves bytes one way until it is cut."""

    def __init__(
        self, way: Way, target: Target, security: ClientSecurity, until_s: float, news: threading.Event
    ) -> None:
        self.error: OSError | RemoteProtocolError | None = None
        """What has ended it."""
        self.is_open = False
        self._way = way
        self._line = Line(target, security, max(0.1, until_s - time.monotonic()))
        self._headers = security.headers(target.url)
        self._noise = os.urandom(PIECE_BYTES)
        self._news = news
        self._is_cut = threading.Event()
        self._socket: socket.socket | None = None
        self._passed = 0
        self._thread = threading.Thread(target=self._run, name="unlockstep-probe", daemon=True)

    def start(self) -> None:
        """Connect, and begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end, once it is cut."""
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def moved(self) -> int:
        """Bytes that have arrived: here, or, as far as the system tells, at the other end."""
        return self._passed - (_unacknowledged(self._socket) if self._way == "up" and self._socket is not None else 0)

    def cut(self) -> None:
        """End what is under way, from another thread."""
        self._is_cut.set()
        if self._socket is not None:
            with suppress(OSError):
                # What waits to be sent is of no use to anybody, and would keep those that come next waiting.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Not that of ssl, after which the other thread could still send, and in the clear.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            with self._line:
                self._socket = self._line.connection.sock
                self.is_open = True
                while not self._is_cut.is_set():
                    status = self._down() if self._way == "down" else self._up()
                    if status != 200:
                        raise RemoteProtocolError(f"the syncer refused the probe: status {status}")
        except (OSError, RemoteProtocolError) as error:
            self._fail(error)
        except http.client.HTTPException as error:
            self._fail(RemoteProtocolError(f"the probe was not answered: {error or type(error).__name__}"))

    def _fail(self, error: OSError | RemoteProtocolError) -> None:
        if not self._is_cut.is_set():
            self.error = error
            self._news.set()

    def _down(self) -> int:
        connection = self._line.connection
        query = urlencode({"bytes": api.PROBE_BYTES_MAX})
        connection.request("GET", f"{api.PROBE_ROUTE}?{query}", headers=self._headers)
        response = connection.getresponse()
        while piece := response.read1(PIECE_BYTES):
            self._passed += len(piece)
        response.read()  # Nothing is left; only then may the next question be asked.
        return response.status

    def _up(self) -> int:
        connection, size = self._line.connection, api.PROBE_BYTES_MAX
        connection.putrequest("PUT", api.PROBE_ROUTE)
        for name, value in (self._headers | {"Content-Length": str(size), "Content-Type": api.BODY_TYPE}).items():
            connection.putheader(name, value)
        connection.endheaders()
        try:
            for _ in range(size // PIECE_BYTES):
                connection.send(self._noise)
                self._passed += PIECE_BYTES
        except ConnectionError:
            if self._is_cut.is_set():
                raise  # Else it may have been refused before it was here whole: the answer says so.
        response = connection.getresponse()
        response.read()
        return response.status


def _unacknowledged(connection: socket.socket) -> int:
    """Bytes that the system has taken and the other end has not; 0 where it does not say."""
    if sys.platform != "linux":
        return 0
    import fcntl
    import termios

    try:
        (count,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
    except OSError:
        return 0
    return int(count)

"""How many bytes per second a link carries each way, in one stream and in several side by side.

Decides how long a probe is (as long as it takes to say something, and no longer), and how many streams are worth a try.
Does not decide what the rates mean (``diagnosis``). Each stream is a thread with a connection of its own, as the bulk
client's are.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Literal
from urllib.parse import urlencode

from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net import api
from unlockstep.net.diagnosis import Rates
from unlockstep.net.link_check import Line, Target
from unlockstep.net.security import ClientSecurity
from unlockstep.net.streams import STREAMS_MAX

Way = Literal["up", "down"]

PROBE_BYTES_MIN = 64 * 1024
PROBE_S_MIN = 0.7
"""A probe that takes so long has left the slow start of a connection behind."""
PROBE_GROWTH = 4
STREAMS = (2, 4, 8, STREAMS_MAX)
"""All are tried: where packets are lost at random, two may bring less than one did, and eight far more."""

PIECE_BYTES = 256 * 1024


def measure(way: Way, target: Target, security: ClientSecurity, limit_s: float, told: Callable[[str], None]) -> Rates:
    """Probe one direction.

    Args:
        way: which.
        target: the syncer.
        security: what is shown and checked.
        limit_s: for all of it; a probe that is under way is ended, too.
        told: what is done at the moment, for whoever waits.

    Raises:
        OSError: a connection broke, or not even the smallest probe came through in time.
        RemoteProtocolError: the syncer does not take part.
    """
    until_s = time.monotonic() + limit_s
    told(f"measures the rate {way}, one stream")
    by_streams = {1: _one_stream(way, target, security, until_s)}
    best = by_streams[1]
    for number in STREAMS:
        # If the streams add up it takes PROBE_S_MIN, if they share what one had it takes twice that, at most.
        size = max(PROBE_BYTES_MIN, int(2 * best * PROBE_S_MIN / number))
        if size * number / best > until_s - time.monotonic():
            break
        told(f"measures the rate {way}, {number} streams")
        rate = _together(way, target, security, number, min(size, api.PROBE_BYTES_MAX), until_s)
        by_streams[number] = rate
        best = max(best, rate)
    return Rates(by_streams)


def _one_stream(way: Way, target: Target, security: ClientSecurity, until_s: float) -> float:
    size = PROBE_BYTES_MIN
    with _Stream(way, target, security, until_s) as stream:
        while True:
            seconds = stream.move(size)
            is_enough = seconds >= PROBE_S_MIN or size >= api.PROBE_BYTES_MAX
            if is_enough or PROBE_GROWTH * seconds > until_s - time.monotonic():
                return size / seconds
            size = min(PROBE_GROWTH * size, api.PROBE_BYTES_MAX)


def _together(way: Way, target: Target, security: ClientSecurity, number: int, size: int, until_s: float) -> float:
    """Bytes per second of so many streams that begin at once, until the last has ended."""
    with ExitStack() as opened, ThreadPoolExecutor(number, "unlockstep-probe") as threads:
        streams = [opened.enter_context(_Stream(way, target, security, until_s)) for _ in range(number)]
        try:
            began_s = time.perf_counter()
            for moving in [threads.submit(stream.move, size) for stream in streams]:
                moving.result()
            return number * size / (time.perf_counter() - began_s)
        except BaseException:
            for stream in streams:  # Also at Ctrl-C: no thread is waited for that waits itself.
                stream.cut()
            raise


class _Stream:
    """One connection that probes one way."""

    def __init__(self, way: Way, target: Target, security: ClientSecurity, until_s: float) -> None:
        limit_s = max(0.1, until_s - time.monotonic())
        self._line = Line(target, security, limit_s)
        self._way = way
        self._until_s = until_s
        self._headers = security.headers(target.url)
        self._noise = memoryview(os.urandom(PIECE_BYTES))
        self._is_cut = threading.Event()

    def __enter__(self) -> _Stream:
        self._line.__enter__()
        self._socket: socket.socket = self._line.connection.sock
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._line.__exit__()

    def cut(self) -> None:
        """End what is under way, from another thread."""
        self._is_cut.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def move(self, size: int) -> float:
        """Seconds it takes, less the round trip of the question. Raises OSError, RemoteProtocolError."""
        began_s = time.perf_counter()
        try:
            status = self._up(size) if self._way == "up" else self._down(size)
        except http.client.HTTPException as error:
            raise RemoteProtocolError(f"the probe was not answered: {error}") from None
        seconds = time.perf_counter() - began_s
        if status != 200:
            raise RemoteProtocolError(f"the syncer refused the probe: status {status}")
        return max(seconds - (self._line.round_trip_s or 0.0), 1e-6)

    def _down(self, size: int) -> int:
        connection = self._line.connection
        connection.request("GET", f"{api.PROBE_ROUTE}?{urlencode({'bytes': size})}", headers=self._headers)
        response = connection.getresponse()
        room = memoryview(bytearray(PIECE_BYTES))
        left = size
        while response.status == 200 and left > 0:
            self._check()
            count = response.readinto(room[: min(left, PIECE_BYTES)])
            if not count:
                raise ConnectionError("the probe was cut off")
            left -= count
        response.read()
        return response.status

    def _up(self, size: int) -> int:
        connection = self._line.connection
        connection.putrequest("PUT", api.PROBE_ROUTE)
        for name, value in (self._headers | {"Content-Length": str(size), "Content-Type": api.BODY_TYPE}).items():
            connection.putheader(name, value)
        connection.endheaders()
        for start in range(0, size, PIECE_BYTES):
            self._check()
            connection.send(self._noise[: size - start])
        response = connection.getresponse()
        response.read()
        return response.status

    def _check(self) -> None:
        if self._is_cut.is_set() or time.monotonic() > self._until_s:
            raise TimeoutError("the time for the probe is over")

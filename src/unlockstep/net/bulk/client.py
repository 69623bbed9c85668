"""The client for large bodies: blocking, for use from worker threads; it moves bytes as fast as the link allows.

::

    upload(path, query, body)           in chunks with a hash each, over several connections, resumed where it was cut
    download(path, size, digest)        ranges, side by side, hashed as they come, resumed where they were cut
    cancel()                            from any thread: what is under way ends with OSError

Small bodies are one request. Decides how bodies travel, and that a transfer goes on as long as it moves. Does not
decide what a body means, when it is sent or fetched, nor what is done about an answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlencode

import numpy as np

from unlockstep.core.digests import digest_of
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.net.access.security import NO_SECURITY, ClientSecurity
from unlockstep.net.bulk.carriage import Carriage
from unlockstep.net.bulk.channel import Channel
from unlockstep.net.bulk.downloading import Downloading, Source
from unlockstep.net.bulk.lane import Lane
from unlockstep.net.bulk.pace import Pace
from unlockstep.net.bulk.streams import STREAMS_MAX, AutomaticStreams, FixedStreams
from unlockstep.net.bulk.uploading import Uploading
from unlockstep.net.wire import api
from unlockstep.net.wire.names import Target
from unlockstep.net.wire.ranges import BodyDigest, Grid
from unlockstep.net.wire.timeouts import Timeouts, derive

CHUNK_BYTES_MIN = 1024 * 1024
"""A smaller body is one request: its chunks would travel for less time than their answers."""

HASHING_THREADS_MAX = 4

Moved = Callable[[int], None]
"""So many bytes more have passed; those that have to pass again count again. Called by one thread at a time."""


class Answer(NamedTuple):
    """What the syncer says in the end."""

    status: int
    """0: nothing."""
    sentence: str
    """Why not; empty if all is well."""


class Bulk:
    """The way to one syncer. Its methods may be called from several threads at once.

    Args:
        url: of the syncer, as ``api.base_urls`` gives it.
        security: what is shown and checked.
        pace: a cap on bandwidth, shared with whoever has the same; None: no cap.
        streams: connections at once, each way; None: as many as pay.
        timeouts: deadlines, as of now.
        chunk_bytes: pieces in which larger bodies travel; None: so large that all streams have a few of them.

    Raises:
        UsageError: the security cannot be had.
    """

    def __init__(
        self,
        url: str,
        security: ClientSecurity = NO_SECURITY,
        *,
        pace: Pace | None = None,
        streams: int | None = None,
        timeouts: Callable[[], Timeouts] = derive,
        chunk_bytes: int | None = None,
    ) -> None:
        self._url = url
        self._target = Target.of(url)
        self._security = security
        self._context = security.context(url)
        self._pace = pace or Pace()
        self._timeouts = timeouts
        self._chunk_bytes = chunk_bytes
        self._up, self._down = (
            Lane(AutomaticStreams() if streams is None else FixedStreams(streams), self._connect, time.monotonic_ns)
            for _ in range(2)
        )
        self._lock = threading.Lock()
        self._channels: set[Channel] = set()
        self._cancelled = threading.Event()

    # ------------------------------------------------------------------------------------------- transfers

    def upload(
        self, path: str, query: dict[str, str], body: memoryview, *, moved: Moved = lambda count: None
    ) -> Answer:
        """Send a body, again and again where a connection breaks or the syncer asks for it, until it says what becomes
        of it, or nothing moves any more (status 0, with the reason)."""
        body = body.cast("B")
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            chunk_bytes = self._chunk_bytes_of(len(body))
            if len(body) <= chunk_bytes:
                chunk_bytes = 0
            grid = Grid(len(body), chunk_bytes or max(1, len(body)))
            digests = _digests(body, grid)
            digest = BodyDigest.of_chunks(digests, chunk_bytes) if chunk_bytes else BodyDigest(digests[0].hex())
            carriage = self._carriage(self._up, moved)
            uploading = Uploading(carriage, self._pace.up, target, body, grid, digest, digests)
            return Answer(*uploading.run())
        except (OSError, RemoteProtocolError, UsageError) as error:
            return Answer(0, str(error) or type(error).__name__)

    def download(
        self,
        path: str,
        size: int,
        digest: str,
        into: memoryview | None = None,
        *,
        query: dict[str, str] | None = None,
        moved: Moved = lambda count: None,
    ) -> memoryview:
        """Fetch a body of ``size`` bytes.

        Args:
            digest: what it is known by, as ``BodyDigest`` is written.
            into: where to, ``size`` bytes; None: new memory. What is in it is the body only once this has returned.
            query: of the address.

        Raises:
            RemoteProtocolError: the syncer does not have it, or what it sends is not it.
            OSError: it cannot be reached any more, or this was cancelled.
            UsageError: the token must not, or cannot, be shown.
        """
        view = (np.empty(size, np.uint8).data if into is None else into).cast("B")
        target = f"{path}?{urlencode(query)}" if query else path
        known = BodyDigest.parse(digest)
        grid = Grid(size, known.chunk_bytes or self._chunk_bytes_of(size))
        source = Source(path, target, known, grid)
        Downloading(lambda: self._carriage(self._down, moved), self._pace.down, source, view).run()
        return view

    def cancel(self) -> None:
        """End what is under way, and whatever may come after it."""
        self._cancelled.set()
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            channel.cut()

    def close(self) -> None:
        """The same, and let go of connections that are idle."""
        self.cancel()
        for lane in (self._up, self._down):
            for channel in lane.clear():
                self._drop(channel)

    # ------------------------------------------------------------------------------------------- what they need

    def _chunk_bytes_of(self, size: int) -> int:
        """So long that every stream has a few, and that there are not too many. It depends on the size alone: whoever
        goes on with an upload must cut it as before."""
        wanted = self._chunk_bytes
        if wanted is None:
            wanted = min(max(size // (2 * STREAMS_MAX), CHUNK_BYTES_MIN), api.CHUNK_BYTES)
        return max(wanted, -(-size // api.CHUNKS_MAX))

    def _carriage(self, lane: Lane, moved: Moved) -> Carriage:
        return Carriage(lane, self._drop, self._timeouts(), self._cancelled, moved)

    def _connect(self) -> Channel:
        channel = Channel(self._target, self._security.headers(self._url), self._timeouts())
        with self._lock:
            self._channels.add(channel)
        if self._cancelled.is_set():
            channel.cut()
        try:
            channel.open(self._context)
        except BaseException:
            self._drop(channel)
            raise
        return channel

    def _drop(self, channel: Channel) -> None:
        with self._lock:
            self._channels.discard(channel)
        channel.close()


def _digests(body: memoryview, grid: Grid) -> list[bytes]:
    """Of all chunks, in order."""

    def digest(index: int) -> bytes:
        return digest_of(body[slice(*grid.span(index))])

    threads = min(os.cpu_count() or 1, HASHING_THREADS_MAX, grid.count)
    if threads < 2:
        return [digest(index) for index in range(max(1, grid.count))]
    with ThreadPoolExecutor(threads, "unlockstep-chunks") as hashers:
        return list(hashers.map(digest, range(grid.count)))

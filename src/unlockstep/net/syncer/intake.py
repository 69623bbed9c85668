"""Bodies into the syncer: bytes from a connection into an upload's sink, hashed on the way.

::

    event loop:     read ── read ── read ── read ── read ...       (batches of ``BATCH_BYTES``)
    worker thread:          └─ write, hash ─┘└─ write, hash ─┘     (one batch of a chunk at a time, in order)

Decides that one request at a time brings a chunk, what a body that is cut short is, and when one that does not come is
given up. Does not decide which uploads there are (``uploads``) nor what they mean (``resources``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

import aiohttp

from unlockstep.core.digests import Hasher, hasher
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.syncer.uploads import Upload
from unlockstep.net.wire.timeouts import ProgressWatch, Timeouts

BATCH_BYTES = 2 * 1024 * 1024
"""Handed to a worker thread at once: more costs memory, less costs time for the handing over."""

TAKE_OVER_SHARE = 0.5
"""Of the time in which a body stalls: silence of the request that brings a chunk, after which another one that brings
the same takes its place. So nobody waits for a connection that has died unnoticed."""

NOTE_S = 0.02
"""How often it is told that bytes are passing; on a fast link every piece would cost as much as reading it."""

WATCH_SLACK_SHARE = 0.1
"""Of the time in which a body stalls, what may pass beyond it until that is noticed: the alarm is not set anew with
every piece."""

Moved = Callable[[int], None]
"""So many more bytes have passed. Raises what ends the transfer."""


class CutShort(Exception):
    """The body ended before its end; it may be sent again."""


class Damaged(Exception):
    """A chunk is not what its sender says; it may be sent again."""


class Unwritable(Exception):
    """There is no room for what has come."""


class _Reader:
    """One request that brings a chunk."""

    def __init__(self, now_s: float) -> None:
        self.moved_s = now_s
        self.over = asyncio.Event()
        self.is_displaced = False
        self._task = asyncio.current_task()

    def displace(self) -> None:
        """Another request brings the chunk."""
        if self._task is not None and not self.is_displaced:
            self.is_displaced = True
            self._task.cancel()

    def undo_cancellation(self) -> None:
        """It was for this request's body, not for the request."""
        if self._task is not None:
            self._task.uncancel()


class Intake:
    """Of one syncer.

    Args:
        workers: threads that write and hash.
        timeouts: when a body has stalled, as of now.
    """

    def __init__(self, workers: Executor, timeouts: Callable[[], Timeouts]) -> None:
        self._workers = workers
        self._timeouts = timeouts
        self._readers: dict[tuple[str, int], _Reader] = {}

    async def take(self, upload: Upload, index: int, digest: str, stream: aiohttp.StreamReader, moved: Moved) -> None:
        """Return once chunk ``index`` is here, brought by this request or by another one.

        Args:
            digest: of the chunk, in hex; of the whole, if that comes in one piece.

        Raises:
            CutShort: the body ends early, or another request has taken this one's place.
            RemoteProtocolError: it is longer than it says, or nobody wants the upload any more.
            Damaged: it has another digest.
            Unwritable: the sink takes no more: the disk is full.
            TimeoutError: it has stalled. aiohttp's own errors pass through.
        """
        loop, key = asyncio.get_running_loop(), (upload.token, index)
        take_over_s = TAKE_OVER_SHARE * self._timeouts().stall_s
        with upload.reading():
            while not upload.has(index):
                other = self._readers.get(key)
                if other is None:
                    await self._bring(key, upload, index, digest, stream, moved)
                    continue
                try:
                    async with asyncio.timeout_at(other.moved_s + take_over_s):
                        await other.over.wait()
                except TimeoutError:
                    if loop.time() - other.moved_s >= take_over_s:
                        other.displace()
                        await other.over.wait()

    async def _bring(
        self,
        key: tuple[str, int],
        upload: Upload,
        index: int,
        digest: str,
        stream: aiohttp.StreamReader,
        moved: Moved,
    ) -> None:
        loop = asyncio.get_running_loop()
        reader = self._readers[key] = _Reader(loop.time())

        def note(count: int) -> None:
            reader.moved_s = loop.time()
            if upload.is_forgotten:
                raise RemoteProtocolError("this upload is not wanted any more")
            moved(count)

        try:
            found = await self._read(upload, index, stream, note)
        except asyncio.CancelledError:
            if not reader.is_displaced:
                raise
            reader.undo_cancellation()
            raise CutShort("the same part comes by another request") from None
        finally:
            del self._readers[key]
            reader.over.set()
        if found.hex() != digest:
            what = f"chunk {index}" if upload.announced.digest.chunk_bytes else "the body"
            raise Damaged(f"{what} does not have the digest it was sent with")
        upload.arrived(index, found)

    async def _read(self, upload: Upload, index: int, stream: aiohttp.StreamReader, moved: Moved) -> bytes:
        """The digest of what has been read."""
        loop, (start, stop) = asyncio.get_running_loop(), upload.grid.span(index)
        hashed, at, filled = hasher(upload.announced.digest.algorithm), start, start
        timeouts = self._timeouts()
        watch, slack_s = ProgressWatch(timeouts, loop.time()), WATCH_SLACK_SHARE * timeouts.stall_s
        noted, noted_s = start, 0.0
        batch: list[bytes] = []
        writing: asyncio.Future[None] | None = None
        try:
            async with asyncio.timeout_at(watch.until_s + slack_s) as alarm:
                while filled < stop:
                    piece, _ = await stream.readchunk()
                    if not piece:
                        raise CutShort(f"the body ended after {filled - start} of {stop - start} bytes")
                    filled += len(piece)
                    if filled > stop:
                        raise RemoteProtocolError(f"the body is longer than the {stop - start} bytes expected")
                    batch.append(piece)
                    if (now_s := loop.time()) - noted_s >= NOTE_S or filled == stop:
                        moved(filled - noted)
                        watch.moved(filled - noted, now_s)
                        noted, noted_s = filled, now_s
                        if watch.until_s > (alarm.when() or 0.0):
                            alarm.reschedule(watch.until_s + slack_s)
                    if filled - at >= BATCH_BYTES or filled == stop:
                        if writing is not None:
                            await writing
                        writing = loop.run_in_executor(self._workers, _write, upload, at, batch, hashed)
                        at, batch = filled, []
        finally:
            if writing is not None:
                await asyncio.wait([writing])
        if writing is not None:
            await writing
        return hashed.digest()


def _write(upload: Upload, offset: int, pieces: list[bytes], hashed: Hasher) -> None:
    for piece in pieces:
        try:
            upload.sink.write(offset, piece)
        except OSError as error:
            raise Unwritable(f"the body cannot be kept: {error.strerror or error}") from None
        hashed.update(piece)
        offset += len(piece)

"""Uploads that have not arrived whole yet, as the syncer keeps them: where their bytes go, which chunks are here, and
how much of all this there may be.

Decides whether an upload is let in, what of it is missing, and when it is forgotten: when its learner departs, when it
has not moved for a while, or when its learner needs the place for another one. Does not decide what a body means
(``bodies``) nor how bytes are read (``intake``).
"""

from __future__ import annotations

import secrets
from asyncio import Task
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from unlockstep.core.digests import DIGEST_BYTES, hasher
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.wire.api import GAPS_TOLD_MAX, UPLOAD_IDLE_S_MAX, UPLOADS_BYTES_MAX, UPLOADS_PER_LEARNER_MAX
from unlockstep.net.wire.ranges import BodyDigest, Grid, Span

GIVES_WAY_NS = 5 * NANOSECONDS_PER_SECOND
"""Without a byte, after which an upload gives way to another one of the same learner, if that has too many."""


class Sink(Protocol):
    """Where the bytes of a body go. ``write`` is called from worker threads, never twice at once for the same bytes."""

    memory_bytes: int
    """What it can come to hold of the memory."""

    def write(self, offset: int, data: bytes) -> None: ...

    def discard(self) -> None: ...


class MemorySink:
    """A body in memory."""

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.memory_bytes = len(body)

    def write(self, offset: int, data: bytes) -> None:
        """By numpy, which lets other threads run meanwhile."""
        np.copyto(np.frombuffer(self.body[offset : offset + len(data)], np.uint8), np.frombuffer(data, np.uint8))

    def discard(self) -> None:
        """Memory goes with the last who holds it."""


class Full(Exception):
    """There is no room for another upload now."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What is said of a body before it comes, with every part of it: two that differ in anything are two uploads."""

    learner: str
    incarnation: int
    path: str
    """Where it is sent."""
    query: str
    digest: BodyDigest
    """Of the whole. Without a chunk size it comes in one piece."""
    size: int

    @property
    def key(self) -> str:
        """Tells it from any other."""
        return f"{self.path}?{self.query} {self.digest} {self.size}"

    @property
    def grid(self) -> Grid:
        return Grid(self.size, self.digest.chunk_bytes or max(1, self.size))


class Upload:
    """One body on its way.

    Args:
        announced: what it is.
        sink: where it goes.
    """

    def __init__(self, announced: Announced, sink: Sink, now_ns: int) -> None:
        self.announced = announced
        self.grid = announced.grid
        self.sink = sink
        self.token = secrets.token_hex(8)
        """Names this buffer: a sender that is told another one knows that what it had sent before is lost."""
        self._began_ns = self.moved_ns = now_ns
        self.is_forgotten = False
        """Nobody wants it; what still comes of it is in vain."""
        self.ending: Task[tuple[int, str]] | None = None
        """What becomes of it, once it is whole: one task, however many requests ask."""
        self._readers = 0
        self._here = bytearray(self.grid.count)
        self._digests = bytearray(DIGEST_BYTES * self.grid.count)

    @property
    def took_ns(self) -> int:
        """From its being announced to its newest byte."""
        return self.moved_ns - self._began_ns

    @property
    def is_being_read(self) -> bool:
        """Some request is bringing a chunk."""
        return self._readers > 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A request brings a chunk of it while the block runs: until then the sink stays open."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if self.is_forgotten and not self._readers:
                self.sink.discard()

    def forget(self) -> None:
        """Nobody wants it."""
        self.is_forgotten = True
        if not self._readers:
            self.sink.discard()

    def has(self, index: int) -> bool:
        """Whether this chunk is here, sound."""
        return bool(self._here[index])

    @property
    def is_whole(self) -> bool:
        return not self._here.count(0)

    @property
    def chunk_digests(self) -> tuple[bytes, ...]:
        """Of what is here."""
        return tuple(bytes(self._digests[at : at + DIGEST_BYTES]) for at in range(0, len(self._digests), DIGEST_BYTES))

    @property
    def is_sound(self) -> bool:
        """Whether the body that is here, whole, is the one announced."""
        digests = self.chunk_digests
        announced = self.announced.digest
        if announced.chunk_bytes:
            return BodyDigest.of_chunks(digests, announced.chunk_bytes, announced.algorithm) == announced
        return (digests or (hasher(announced.algorithm).digest(),))[0].hex() == announced.hex

    def arrived(self, index: int, digest: bytes) -> None:
        """A chunk is here; its digest has been computed from what is in the sink."""
        self._here[index] = 1
        self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES] = digest

    def missing(self) -> tuple[Span, ...]:
        """What has not arrived, the first ``GAPS_TOLD_MAX`` gaps of it."""
        return tuple(gap for gap, _ in zip(self._gaps(), range(GAPS_TOLD_MAX), strict=False))

    def _gaps(self) -> Iterator[Span]:
        first = self._here.find(0)
        while first >= 0:
            after = self._here.find(1, first)
            stop = self.grid.size if after < 0 else self.grid.span(after).start
            yield Span(self.grid.span(first).start, stop)
            first = -1 if after < 0 else self._here.find(0, after)


class Uploads:
    """All of one syncer's.

    Args:
        per_learner_max: uploads one learner may have under way.
        bytes_max: that all of them together may hold; one is always let in.
        idle_s_max: without a byte, after which one is forgotten.
    """

    def __init__(
        self,
        per_learner_max: int = UPLOADS_PER_LEARNER_MAX,
        bytes_max: int = UPLOADS_BYTES_MAX,
        idle_s_max: float = UPLOAD_IDLE_S_MAX,
    ) -> None:
        self._per_learner_max = per_learner_max
        self._bytes_max = bytes_max
        self._idle_ns_max = int(idle_s_max * NANOSECONDS_PER_SECOND)
        self._uploads: dict[str, Upload] = {}

    def __len__(self) -> int:
        return len(self._uploads)

    @property
    def held_bytes(self) -> int:
        """Memory that all of them together can come to hold."""
        return sum(upload.sink.memory_bytes for upload in self._uploads.values())

    def open(self, announced: Announced, make_sink: Callable[[int], Sink], now_ns: int) -> Upload:
        """This upload; if it is new, its buffer is made.

        Raises:
            Full: this learner, or all together, have too much under way.
        """
        found = self._uploads.get(announced.key)
        if found is not None:
            return found
        self._make_place(announced, now_ns)
        sink, held_bytes = make_sink(announced.size), self.held_bytes
        if held_bytes and held_bytes + sink.memory_bytes > self._bytes_max:
            sink.discard()
            raise Full(
                f"uploads under way hold {held_bytes} bytes; {announced.size} more exceed the limit of "
                f"{self._bytes_max}: wait for one"
            )
        upload = self._uploads[announced.key] = Upload(announced, sink, now_ns)
        return upload

    def _make_place(self, announced: Announced, now_ns: int) -> None:
        """What nobody is sending gives way: another body for the same address, then the oldest of the same learner."""
        mine = [upload for upload in self._uploads.values() if upload.announced.learner == announced.learner]
        idle = [upload for upload in mine if not upload.is_being_read and not upload.is_whole]
        for upload in idle:
            if upload.announced.path == announced.path:
                self.forget(upload)
                return
        if len(mine) < self._per_learner_max:
            return
        oldest = min(idle, key=lambda upload: upload.moved_ns, default=None)
        if oldest is None or now_ns - oldest.moved_ns < GIVES_WAY_NS:
            raise Full(f"learner {announced.learner} has too many uploads under way; wait for one")
        self.forget(oldest)

    def take(self, upload: Upload) -> None:
        """It has arrived: its bytes are its taker's."""
        self._uploads.pop(upload.announced.key, None)

    def forget(self, upload: Upload) -> None:
        """Nobody wants this one."""
        if self._uploads.pop(upload.announced.key, None) is not None:
            upload.forget()

    def depart(self, learner: str, incarnation: int) -> None:
        """What this start of a learner has not finished, it will not."""
        self._forget_those(lambda sent: (sent.learner, sent.incarnation) == (learner, incarnation))

    def forget_path(self, path: str) -> None:
        """What is sent there is not wanted."""
        self._forget_those(lambda sent: sent.path == path)

    def expire(self, now_ns: int) -> None:
        """Forget what has not moved for too long."""
        for upload in list(self._uploads.values()):
            if now_ns - upload.moved_ns >= self._idle_ns_max and not upload.is_being_read and not upload.is_whole:
                self.forget(upload)

    def _forget_those(self, unwanted: Callable[[Announced], bool]) -> None:
        for upload in list(self._uploads.values()):
            if not upload.is_whole and unwanted(upload.announced):
                self.forget(upload)

"""Sends one body to the syncer, in one piece or in chunks, and hears what becomes of it.

Decides what is sent again: what the syncer does not have. Which connection it goes over, and when all is given up, is
``carriage``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.bulk.carriage import Again, Attempt, Carriage
from unlockstep.net.bulk.channel import Channel
from unlockstep.net.bulk.pace import Bucket
from unlockstep.net.wire import api
from unlockstep.net.wire.ranges import BodyDigest, Grid, Span, content_range, no_content_range

_NOT_NOW = (408, 429, 503)
"""Statuses after which the same is tried again: it was cut short, too many at once, not now."""


class Outgoing:
    """Which chunks the syncer has, as far as its sender knows. Pure."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._count = max(1, grid.count)
        self._todo = deque(range(self._count))
        self._carried: set[int] = set()
        self._buffer = ""
        """The syncer's name for what it keeps the chunks in."""

    @property
    def waiting(self) -> int:
        return len(self._todo)

    def take(self) -> int | None:
        """A chunk to be sent."""
        if not self._todo:
            return None
        index = self._todo.popleft()
        self._carried.add(index)
        return index

    def give_back(self, index: int) -> None:
        """It was not sent, or is not there."""
        self._carried.discard(index)
        if index not in self._todo:
            self._todo.appendleft(index)

    def answered(self, index: int, buffer: str, missing: Sequence[tuple[int, int]]) -> bool:
        """The syncer has said what it lacks. A buffer of another name: all it lacks is to be sent, whatever was there
        before. Returns whether it has chunk ``index``."""
        lacks = self._indices(missing)
        if buffer != self._buffer:
            self._buffer = buffer
            self._todo = deque(sorted(lacks - self._carried))
        if index not in lacks:
            self._carried.discard(index)
        return index not in lacks

    def _indices(self, missing: Sequence[tuple[int, int]]) -> set[int]:
        """Behind the last of as many gaps as are told there may be more."""
        size, chunk = self._grid.size, self._grid.chunk_bytes
        gaps = list(missing)
        if len(gaps) >= api.GAPS_TOLD_MAX:
            gaps.append((gaps[-1][1], size))
        return {
            index
            for start, stop in gaps
            for index in range(max(0, start) // chunk, min(self._count, -(-min(stop, size) // chunk)))
        }


class Uploading:
    """One upload; a ``carriage.Work``.

    Args:
        carriage: how it travels.
        bucket: cap on bandwidth.
        target: path and query.
        body: what is sent.
        grid: its chunks.
        digest: what it is known by; without a chunk size it is sent in one piece.
        digests: of its chunks.
    """

    def __init__(
        self,
        carriage: Carriage,
        bucket: Bucket,
        target: str,
        body: memoryview,
        grid: Grid,
        digest: BodyDigest,
        digests: Sequence[bytes],
    ) -> None:
        self._carriage = carriage
        self._bucket = bucket
        self._target = target
        self._body = body
        self._grid = grid
        self._digest = digest
        self._digests = digests
        self._chunks = Outgoing(grid)
        self._doubtful = False
        """A connection has broken: what the syncer has is not known."""
        self._answer: tuple[int, str] | None = None

    def run(self) -> tuple[int, str]:
        """Status and sentence of the last answer. Raises as ``Carriage.run`` does."""
        self._carriage.run(self)
        assert self._answer is not None, "it is done when it is answered"
        return self._answer

    @property
    def waiting(self) -> int:
        return self._chunks.waiting

    @property
    def is_done(self) -> bool:
        return self._answer is not None

    def take(self) -> int | None:
        return self._chunks.take()

    def give_back(self, index: int) -> None:
        self._chunks.give_back(index)

    def carry(self, channel: Channel, index: int, attempt: Attempt) -> None:
        if self._digest.chunk_bytes and self._doubtful:
            channel.begin("PUT", self._target, self._fields(None, 0))
            self._doubtful = False
            if self._hear(channel, index):
                return
        try:
            self._send(channel, index, attempt)
            if not self._hear(channel, index) and self._answer is None:
                raise Again("the syncer does not have what was sent to it")
        except OSError:
            self._doubtful = True
            raise

    def _send(self, channel: Channel, index: int, attempt: Attempt) -> None:
        span = self._grid.span(index)
        channel.begin("PUT", self._target, self._fields(span, index))
        view = self._body[span.start : span.stop]
        try:
            while view:
                count = channel.send(view[: self._bucket.piece_bytes])
                view = view[count:]
                attempt.moved(count)
                attempt.rest(self._bucket, count)
                if view and channel.is_answered():
                    channel.break_off()
                    return
        except (BrokenPipeError, ConnectionResetError):
            if not channel.is_answered():
                raise
            channel.break_off()

    def _hear(self, channel: Channel, index: int) -> bool:
        """Whether the syncer has this chunk now, or has said its last word."""
        status = channel.reply().status
        text = channel.text()
        try:
            answer = api.read_answer(text, api.ChunkAnswer)
        except RemoteProtocolError:
            raise Again(f"what answers is not a syncer (status {status})") from None
        if answer.upload:
            with self._carriage.lock:
                is_there = self._chunks.answered(index, answer.upload, answer.missing)
            if answer.error and not is_there:
                raise Again(answer.error)
            return is_there
        if status in _NOT_NOW:
            raise Again(answer.error or f"status {status}")
        self._answer = status, answer.error
        self._carriage.end()
        return True

    def _fields(self, span: Span | None, index: int) -> dict[str, str]:
        fields = {"Content-Type": api.BODY_TYPE, "Content-Length": str(span.size if span is not None else 0)}
        if not self._digest.chunk_bytes:
            return fields | api.digest_fields(self._digest)
        fields |= api.digest_fields(self._digest)
        if span is None:
            return fields | {"Content-Range": no_content_range(self._grid.size)}
        digest = api.content_digest(self._digests[index].hex())
        return fields | {"Content-Range": content_range(span, self._grid.size), api.CONTENT_DIGEST: digest}

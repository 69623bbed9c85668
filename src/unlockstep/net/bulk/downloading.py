"""Fetches one body from the syncer, in ranges side by side, each straight to where it belongs, and checks it.

::

    streams     ──range 0──── ──range 2──── ──range 4────        each resumed where it was cut
                ──range 1──── ──range 3────
    hashed      ░░░░░░░░░░░░░░░░░░░░░                            what has come from the start on, by whoever is free

Decides what is fetched again: what was cut off, and of a body whose digest is another the chunks that are damaged.
Which connection it goes over, and when all is given up, is ``carriage``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from unlockstep.core.digests import digest_of, hasher
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.bulk.carriage import Again, Attempt, Carriage
from unlockstep.net.bulk.channel import Channel
from unlockstep.net.bulk.pace import Bucket
from unlockstep.net.wire import api
from unlockstep.net.wire.ranges import BodyDigest, Grid, Span, parse_content_range, range_field

REPAIRS_MAX = 2
"""Times the damaged chunks of one body are fetched again."""

_NOT_NOW = (408, 429, 503)
_NOT_FOR_US = (401, 403)


class NotAllowed(RemoteProtocolError):
    """The syncer has it, but not for whoever shows this token."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is fetched."""

    path: str
    target: str
    """The path with its query."""
    digest: BodyDigest
    grid: Grid


class Incoming:
    """What has come of a body, and in which order it can be hashed. Pure.

    Args:
        grid: its chunks.
        wanted: those that are to be fetched; the others are here.
    """

    def __init__(self, grid: Grid, wanted: list[int]) -> None:
        self._grid = grid
        self._todo = deque(wanted)
        self._lacks = set(wanted)
        self._filled = dict.fromkeys(wanted, 0)
        self._hashed = 0
        self._is_hashing = False

    @property
    def waiting(self) -> int:
        return len(self._todo)

    @property
    def is_done(self) -> bool:
        return not self._lacks

    def take(self) -> int | None:
        """A chunk to be fetched."""
        return self._todo.popleft() if self._todo else None

    def give_back(self, index: int) -> None:
        """It is not all here."""
        self._todo.appendleft(index)

    def rest(self, index: int) -> Span:
        """What is still to come of a chunk."""
        span = self._grid.span(index)
        return Span(span.start + self._filled[index], span.stop)

    def filled(self, index: int, count: int) -> None:
        """So many more bytes of it are here."""
        self._filled[index] += count

    def restart(self, index: int) -> None:
        """What has come of it is not it."""
        self._filled[index] = 0

    def arrived(self, index: int) -> None:
        """All of it is here."""
        self._lacks.discard(index)

    def hashable(self) -> int | None:
        """The next chunk to be hashed, by who asks and nobody else; None if it is not here, or another one is being
        hashed."""
        if self._is_hashing or self._hashed >= self._grid.count or self._hashed in self._lacks:
            return None
        self._is_hashing = True
        return self._hashed

    def hashed(self) -> None:
        """It is."""
        self._is_hashing = False
        self._hashed += 1


class Downloading:
    """One download; a ``carriage.Work``.

    Args:
        carriage: makes what carries a round of it.
        bucket: cap on bandwidth.
        source: what is fetched.
        view: where to, all of it.
    """

    def __init__(self, carriage: Callable[[], Carriage], bucket: Bucket, source: Source, view: memoryview) -> None:
        self._make_carriage = carriage
        self._carriage: Carriage
        self._bucket = bucket
        self._source = source
        self._view = view
        self._grid = source.grid
        self._chunks = Incoming(self._grid, list(range(self._grid.count)))
        self._whole = hasher()
        self._digests: tuple[bytes, ...] = ()
        """Of the chunks, if the body is known by them."""

    def run(self) -> None:
        """Raises as ``Bulk.download`` does."""
        if self._source.digest.chunk_bytes:
            _, self._digests = self._known_digests()
            self._fetch()
            return
        self._fetch()
        for _ in range(REPAIRS_MAX):
            if self._whole.hexdigest() == self._source.digest.hex:
                return
            self._chunks = self._damaged()
            self._whole = hasher()
            self._fetch()
        if self._whole.hexdigest() != self._source.digest.hex:
            raise RemoteProtocolError("what came does not have the digest announced")

    def _fetch(self) -> None:
        self._carriage = self._make_carriage()
        self._carriage.run(self)
        if not self._source.digest.chunk_bytes:
            self._hash()

    # ------------------------------------------------------------------------------------------- as a work

    @property
    def waiting(self) -> int:
        return self._chunks.waiting

    @property
    def is_done(self) -> bool:
        return self._chunks.is_done

    def take(self) -> int | None:
        return self._chunks.take()

    def give_back(self, index: int) -> None:
        self._chunks.give_back(index)

    def carry(self, channel: Channel, index: int, attempt: Attempt) -> None:
        source, rest = self._source, self._chunks.rest(index)
        fields = {}
        if rest.size != self._grid.size:
            fields = {"Range": range_field(rest), "If-Range": f'"{source.digest}"'}
        channel.begin("GET", source.target, fields)
        self._require(channel, rest, is_range=bool(fields))
        while rest.size:
            count = channel.read(self._view[rest.start : min(rest.stop, rest.start + self._bucket.piece_bytes)])
            self._chunks.filled(index, count)
            rest = Span(rest.start + count, rest.stop)
            attempt.moved(count)
            attempt.rest(self._bucket, count)
            self._carriage.got_through()
        if self._digests:
            self._check(index)
        with self._carriage.lock:
            self._chunks.arrived(index)
        if not self._digests:
            self._hash()

    def _require(self, channel: Channel, rest: Span, is_range: bool) -> None:
        response = channel.reply()
        if response.status in _NOT_NOW:
            channel.text()
            raise Again(f"status {response.status}")
        if response.status != (206 if is_range else 200):
            sentence = _sentence(channel.text()) if response.status >= 400 else "it is not the body announced"
            raise _not_to_be_had(self._source.path, response.status, sentence)
        if response.fields.get("etag", f'"{self._source.digest}"') != f'"{self._source.digest}"':
            raise RemoteProtocolError(f"{self._source.path} is another body than the one announced")
        if is_range:
            span, size = parse_content_range(response.fields.get("content-range", ""))
            if span != rest or size != self._grid.size:
                raise RemoteProtocolError(f"{rest.start} to {rest.stop} were asked for, and {span} of {size} came")
        if response.length != rest.size:
            raise RemoteProtocolError(f"the body has {response.length} bytes, {rest.size} are expected")

    def _check(self, index: int) -> None:
        """Of a body that is known by the digests of its chunks."""
        if digest_of(self._part(index)) != self._digests[index]:
            self._chunks.restart(index)
            raise Again("a chunk came damaged")

    def _hash(self) -> None:
        """As far as it goes. One thread does it at a time; the others fetch."""
        while True:
            with self._carriage.lock:
                index = self._chunks.hashable()
            if index is None:
                return
            self._whole.update(self._part(index))
            with self._carriage.lock:
                self._chunks.hashed()

    def _part(self, index: int) -> memoryview:
        span = self._grid.span(index)
        return self._view[span.start : span.stop]

    # ------------------------------------------------------------------------------------------- damage

    def _damaged(self) -> Incoming:
        """The chunks that came damaged, as the syncer cuts and sees them; all of them if it has no digests."""
        try:
            self._grid, digests = self._known_digests()
        except RemoteProtocolError:
            return Incoming(self._grid, list(range(self._grid.count)))
        found = (digest_of(self._part(index)) for index in range(self._grid.count))
        return Incoming(self._grid, [index for index, each in enumerate(found) if each != digests[index]])

    def _known_digests(self) -> tuple[Grid, tuple[bytes, ...]]:
        found = _Asking(self._make_carriage(), api.digests_path(self._source.path)).run()
        digests = tuple(bytes.fromhex(digest) for digest in found.digests)
        known, grid = self._source.digest, Grid(self._grid.size, found.chunk_bytes)
        if len(digests) != grid.count:
            raise RemoteProtocolError("the syncer's digests are of another body")
        if known.chunk_bytes and BodyDigest.of_chunks(digests, found.chunk_bytes) != known:
            raise RemoteProtocolError("the syncer's digests are not those of the body announced")
        return grid, digests


class _Asking:
    """Asks for the digests of a body's chunks; a ``carriage.Work``."""

    def __init__(self, carriage: Carriage, path: str) -> None:
        self._carriage = carriage
        self._path = path
        self._is_waiting = True
        self._found: api.ChunkDigests | None = None

    def run(self) -> api.ChunkDigests:
        self._carriage.run(self)
        assert self._found is not None, "it is done when it is answered"
        return self._found

    @property
    def waiting(self) -> int:
        return int(self._is_waiting)

    @property
    def is_done(self) -> bool:
        return self._found is not None

    def take(self) -> int | None:
        taken, self._is_waiting = self._is_waiting, False
        return 0 if taken else None

    def give_back(self, index: int) -> None:
        self._is_waiting = True

    def carry(self, channel: Channel, index: int, attempt: Attempt) -> None:
        channel.begin("GET", self._path, {})
        status, text = channel.reply().status, channel.text()
        if status in _NOT_NOW:
            raise Again(f"status {status}")
        if status != 200:
            raise _not_to_be_had(self._path, status, _sentence(text))
        try:
            self._found = api.read_answer(text, api.ChunkDigests)
            for digest in self._found.digests:
                bytes.fromhex(digest)
        except (RemoteProtocolError, ValueError):
            self._found = None
            raise RemoteProtocolError(f"{self._path} holds no digests") from None


def _not_to_be_had(path: str, status: int, sentence: str) -> RemoteProtocolError:
    kind = NotAllowed if status in _NOT_FOR_US else RemoteProtocolError
    return kind(f"{path} is not to be had (status {status}): {sentence}")


def _sentence(text: bytes) -> str:
    try:
        return api.read_answer(text, api.ChunkAnswer).error
    except RemoteProtocolError:
        return "what answers is not a syncer"

"""Parts of a body: how HTTP writes them (RFC 9110, 14), and how a body is cut into chunks that have a hash each.

Pure. Decides which ranges are sound and what is still missing. Does not decide what becomes of a request whose range is
not (``syncer.resources``, ``bulk``).

::

    chunk      0          1          2        3
           ├──────────┼──────────┼──────────┼────┤    all as long as the first but the last, which has the rest
           0                                   size

The digest of a body that travels in chunks is the hash over the digests of its chunks, 32 bytes each, in order: so no
byte is hashed twice, and chunks may be hashed side by side and in any order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from unlockstep.core.digests import BLAKE3, hasher
from unlockstep.core.errors import RemoteProtocolError

_NUMBER = "([0-9]{1,18})"  # Fits 64 bits.
_RANGE = re.compile("bytes=([0-9]{0,18})-([0-9]{0,18})")
_DIGEST = re.compile("([0-9a-f]{64})(?:[.]([1-9][0-9]{0,17}))?")
_NO_CONTENT_RANGE = re.compile(rf"bytes \*/{_NUMBER}")
_CONTENT_RANGE = re.compile(f"bytes {_NUMBER}-{_NUMBER}/{_NUMBER}")


class Span(NamedTuple):
    """Bytes from ``start`` up to, not including, ``stop``."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class Unsatisfiable(Exception):
    """A range that holds no byte of the body: 416."""


def content_range(span: Span, size: int) -> str:
    """The field ``Content-Range`` of a message that holds this part of a body of ``size`` bytes."""
    return f"bytes {span.start}-{span.stop - 1}/{size}"


def no_content_range(size: int) -> str:
    """The field ``Content-Range`` of a message that only speaks of a body of ``size`` bytes."""
    return f"bytes */{size}"


def parse_content_range(field: str) -> tuple[Span | None, int]:
    """What part of a body a message holds, None if nothing, and the size of the whole.

    Raises:
        RemoteProtocolError: it is none of ``bytes FIRST-LAST/SIZE`` and ``bytes */SIZE``.
    """
    if (nothing := _NO_CONTENT_RANGE.fullmatch(field)) is not None:
        return None, int(nothing[1])
    found = _CONTENT_RANGE.fullmatch(field)
    if found is not None:
        first, last, size = map(int, found.groups())
        if first <= last < size:
            return Span(first, last + 1), size
    raise RemoteProtocolError(
        f"Content-Range is {field[:80]!r}; write bytes FIRST-LAST/SIZE, with FIRST <= LAST < SIZE"
    )


def range_field(span: Span) -> str:
    """The field ``Range`` that asks for these bytes."""
    return f"bytes={span.start}-{span.stop - 1}"


def parse_range(field: str, size: int) -> Span | None:
    """The part of a body of ``size`` bytes that is asked for. None is the whole: what is no range, or several, is
    passed over, as RFC 9110 (14.2) allows.

    Raises:
        Unsatisfiable: it begins behind the end, or asks for the last 0 bytes.
    """
    found = _RANGE.fullmatch(field)
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        span = Span(max(0, size - int(last)), size)
    else:
        span = Span(int(first), min(size, int(last) + 1) if last else size)
        if last and int(last) < int(first):
            return None
    if span.start >= size:
        raise Unsatisfiable(f"the body has {size} bytes, none of them is in {field}")
    return span


@dataclass(frozen=True, slots=True)
class Grid:
    """A body of ``size`` bytes in chunks of ``chunk_bytes``."""

    size: int
    chunk_bytes: int

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk_bytes)

    def span(self, index: int) -> Span:
        """Where a chunk is."""
        start = index * self.chunk_bytes
        return Span(start, min(start + self.chunk_bytes, self.size))

    def index(self, span: Span) -> int | None:
        """Which chunk this is; None if it is not exactly one."""
        index = span.start // self.chunk_bytes
        return index if index < self.count and self.span(index) == span else None


class BodyDigest(NamedTuple):
    """What a body is known by: a hash over its bytes or, where ``chunk_bytes`` is above 0, over the digests of its
    chunks. As text ``HEX`` or ``HEX.CHUNK_BYTES``; that is always BLAKE3."""

    hex: str
    chunk_bytes: int = 0
    algorithm: str = BLAKE3

    def __str__(self) -> str:
        return f"{self.hex}.{self.chunk_bytes}" if self.chunk_bytes else self.hex

    @classmethod
    def parse(cls, text: str) -> BodyDigest:
        """From text. Raises RemoteProtocolError if it is not written like that."""
        if (found := _DIGEST.fullmatch(text)) is None:
            raise RemoteProtocolError(f"{text[:100]!r} is no digest of a body")
        return cls(found[1], int(found[2] or 0))

    @classmethod
    def of_chunks(cls, digests: Iterable[bytes], chunk_bytes: int, algorithm: str = BLAKE3) -> BodyDigest:
        """Of a body whose chunks have these, 32 bytes each, in order."""
        whole = hasher(algorithm)
        whole.update(b"".join(digests))
        return cls(whole.hexdigest(), chunk_bytes, algorithm)

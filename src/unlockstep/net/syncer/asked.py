"""What a request for a body, or with one, says: which run, fragment and state, which part of what, and for whom.

Decides how that is read, and what is refused for not being said soundly. Does not decide what becomes of it
(``bodies``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from unlockstep.net.access.answers import Refusal, parse_query
from unlockstep.net.access.gate import PEER
from unlockstep.net.syncer.uploads import Announced
from unlockstep.net.wire import api
from unlockstep.net.wire.ranges import (
    BodyDigest,
    Grid,
    Span,
    Unsatisfiable,
    no_content_range,
    parse_content_range,
    parse_range,
)
from unlockstep.storehouse import Storehouse

if TYPE_CHECKING:
    from unlockstep.net.syncer.service import SyncerService


@dataclass(frozen=True, slots=True)
class Part:
    """What a request says of the body it brings a part of."""

    digest: BodyDigest
    """Of the whole."""
    size: int | None
    """Of the whole; None if it is not said."""
    index: int | None = 0
    """Which chunk is in the request; None: none, it only asks."""
    digest_here: str = ""
    """Of what is in the request, in hex."""


def require_run(service: SyncerService, request: web.Request) -> None:
    """Raises Refusal if the request is for another run than the one here."""
    name = service.config.run.name
    if request.match_info["run"] != name:
        raise Refusal(404, f"there is no run {request.match_info['run']!r} here, only {name!r}")


def part_of(request: web.Request) -> Part:
    """Raises Refusal or RemoteProtocolError if the request does not say soundly what it brings."""
    length, field = request.content_length, request.headers.get("Content-Range")
    if field is None:
        digest = api.parse_content_digest(request.headers.get(api.CONTENT_DIGEST, ""))
        return Part(digest, length, 0, digest.hex)
    span, size = parse_content_range(field)
    digest = api.parse_chunks_digest(request.headers.get(api.CHUNKS_DIGEST, ""))
    grid = Grid(size, digest.chunk_bytes)
    if grid.count > api.CHUNKS_MAX:
        raise Refusal(400, f"{size} bytes are {grid.count} chunks of {digest.chunk_bytes}; at most {api.CHUNKS_MAX}")
    if length is None:
        raise Refusal(411, "state the Content-Length of the chunk")
    if length != (0 if span is None else span.size):
        raise Refusal(400, f"the request has {length} bytes, its Content-Range {0 if span is None else span.size}")
    if span is None:
        return Part(digest, size, None)
    index = grid.index(span)
    if index is None:
        raise Refusal(
            400, f"bytes {span.start}-{span.stop - 1} are no chunk of {digest.chunk_bytes} bytes; chunks do not overlap"
        )
    here = api.parse_content_digest(request.headers.get(api.CONTENT_DIGEST, ""))
    if here.algorithm != digest.algorithm:
        raise Refusal(400, f"the digest of the chunk is {here.algorithm}, that of the whole {digest.algorithm}")
    return Part(digest, size, index, here.hex)


def announced_by(request: web.Request, part: Part, learner: str, incarnation: int) -> Announced:
    _require_own_name(request, learner)
    size = 0 if part.size is None else part.size
    return Announced(learner, incarnation, request.path, request.query_string, part.digest, size)


def reader_of(request: web.Request) -> api.ReaderQuery:
    """Who reads, if a learner says so: its transfers are signs of its life."""
    reader = parse_query(request, api.ReaderQuery)
    if reader.learner:
        _require_own_name(request, reader.learner)
    return reader


def _require_own_name(request: web.Request, learner: str) -> None:
    identity = request[PEER].identity
    if not identity.may_speak_for(learner):
        raise Refusal(
            403, f"the token {identity.token!r} may only speak for learners whose names begin {identity.learners!r}"
        )


def span_of(request: web.Request, size: int, etag: str) -> Span | None:
    """The part of the body that is asked for; None: all of it. Raises Refusal if there is no such part."""
    field = request.headers.get("Range")
    if field is None or request.headers.get("If-Range", etag) != etag:
        return None
    try:
        return parse_range(field, size)
    except Unsatisfiable as error:
        raise Refusal(416, str(error), {"Content-Range": no_content_range(size)}) from None


def ticket_of(request: web.Request) -> int:
    return int(request.match_info["ticket"])


def require_fragment(storehouse: Storehouse, request: web.Request) -> int:
    fragment, count = int(request.match_info["fragment"]), storehouse.layout.fragment_count
    if fragment >= count:
        raise Refusal(404, f"there is no fragment {fragment}, the run has {count}")
    return fragment

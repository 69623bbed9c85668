"""The web interface between a syncer and everybody else: paths, headers, query records and limits, for both ends.

::

    GET /v1                                            who answers: versions, runs, clock, role (``About``), JSON
    GET /v1/probe?bytes=N   PUT /v1/probe              bytes without a meaning, to measure a link
    GET /v1/runs                                       names of the runs here, JSON
    GET /v1/runs/{run}                                 its state (core.status), JSON
    GET /v1/runs/{run}/config                          its configuration, TOML
    GET /v1/runs/{run}/control                         WebSocket, one binary frame a message; a learner's first is
                                                       Join, an observer (?observer=NAME) need say nothing
    GET /v1/runs/{run}/fragments/{p}/versions/{v}      one immutable body, or a range of it
    GET /v1/runs/{run}/fragments/{p}/versions/{v}/digests   of its chunks, to find the one that was damaged, JSON
    PUT /v1/runs/{run}/fragments/{p}/versions/0        version 0, from the learner asked to seed
    PUT /v1/runs/{run}/rounds/{r}/contributions/{learner}.{incarnation}
                                                       an outer gradient; a repeat changes nothing
    PUT /v1/runs/{run}/states/{ticket}                 what a learner trains with, from one asked for it
    GET /v1/runs/{run}/states/{ticket}                 the same, for the learner it is for; gone once that has it
    GET /v1/runs/{run}/states/{ticket}/digests         of its chunks, if it came in chunks, JSON
    POST /v1/runs/{run}/stop                           ends the run, in order
    GET /metrics   /healthz   /                        Prometheus text; "ok"; the live page

A body may be sent whole, with ``Content-Digest``, or in chunks, each a ``PUT`` of its own to the same address: with
``Content-Range``, with ``Content-Digest`` of the chunk, and with ``Chunks-Digest`` of the whole, which says how long
chunks are. Chunks may come in any order, side by side, and again. The answer to one that leaves something to be sent is
202 and says what: ``{"upload": ..., "missing": [[start, stop], ...]}``. The last one is answered like a whole body.

Every refusal is JSON, ``{"error": sentence}``; if it has ``missing`` too, the upload goes on with that. Decides
spelling and limits; who may do what is in ``roles``, and what a request does is ``resources``', ``bodies``' and the
core's business.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from unlockstep.core.digests import ALGORITHMS, BLAKE3, DIGEST_BYTES
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.foreign_text import printable_texts
from unlockstep.core.formats import Codec, Packing
from unlockstep.core.ids import LEARNER_NAME_LENGTH_MAX
from unlockstep.net.wire.ranges import BodyDigest

CONTENT_DIGEST = "Content-Digest"
"""RFC 9530: ``blake3=:<base64>:`` or ``sha-256=:<base64>:`` over the body as it travels."""

CHUNKS_DIGEST = "Chunks-Digest"
"""``blake3=:<base64>:;chunk=<bytes>`` over the digests of all chunks (``ranges.BodyDigest``)."""

BODY_TYPE = "application/octet-stream"

Said = TypeVar("Said")

PORT_DEFAULT = 7077
"""Where a syncer listens, and is looked for, if nothing else is said."""

STREAM_BUFFER_BYTES = 1024 * 1024
"""What one connection may hold unread; larger than the library's default because bodies are."""

WRITE_BYTES = 512 * 1024
"""Piece in which a probe is written: other connections get their turn between two of them."""

OUTBOX_MESSAGES_MAX = 1024
"""Messages waiting for a peer that does not read; with one more it is disconnected."""

UPLOADS_PER_LEARNER_MAX = 8
"""Uploads one learner may have under way at once; each holds a buffer of its fragment's size."""

CHUNK_BYTES = 8 * 1024 * 1024
"""Piece of a body that has a hash of its own, and is sent again if it is damaged. Larger bodies travel in chunks."""

CHUNKS_MAX = 2**17
"""Chunks of one body: 2**40 bytes in chunks of ``CHUNK_BYTES``."""

GAPS_TOLD_MAX = 64
"""Gaps of an upload that one answer names; of more, the first."""

UPLOADS_BYTES_MAX = 2**36
"""Memory that all uploads under way may come to hold; one is always let in."""

UPLOAD_IDLE_S_MAX = 120.0
"""Without a byte, after which what has arrived of an upload is forgotten."""

HOLD_S_MAX = 60.0
"""After the last byte of it was read, how long a version that is retained no more stays readable."""

RECENT_S_MAX = 5.0
"""How long a version stays readable after the next one has replaced it, whoever asks: several round trips around the
world, on a link that is busy."""

RECENT_BYTES_MAX = 64 * 1024 * 1024
"""Of such versions together; the oldest go first. Where bodies are larger, versions live long anyway."""

UPLOADS_REMEMBERED_MAX = 8192
"""Uploads whose answer is remembered, so that a repeat is answered the same."""

PROBE_BYTES_MAX = 64 * 1024 * 1024
"""Largest probe of a link."""

PROBES_AT_ONCE_MAX = 64
"""Probes under way, of all callers together."""

PROBE_S_MAX = 30.0
"""... each of which is cut off after so long: a probe has measured enough by then."""

SEED_TAKEN = (200, 201)
SEED_UNFIT = (400, 413)
"""What was sent cannot become version 0, however often it is sent."""
CONTRIBUTION_TAKEN = (202, 413, 422)
"""Statuses after which a body is settled: it is here, or has been refused and counted."""

STATE_TAKEN = 201

_NAME = f"[A-Za-z0-9][A-Za-z0-9_-]{{0,{LEARNER_NAME_LENGTH_MAX - 1}}}"
_NUMBER = "[0-9]{1,18}"  # Fits 64 bits.

ABOUT_ROUTE = "/v1"
PROBE_ROUTE = "/v1/probe"
RUNS_ROUTE = "/v1/runs"
STATUS_ROUTE = "/v1/runs/{run}"
CONFIG_ROUTE = STATUS_ROUTE + "/config"
CONTROL_ROUTE = STATUS_ROUTE + "/control"
STOP_ROUTE = STATUS_ROUTE + "/stop"
VERSION_ROUTE = STATUS_ROUTE + f"/fragments/{{fragment:{_NUMBER}}}/versions/{{version:{_NUMBER}}}"
VERSION_DIGESTS_ROUTE = VERSION_ROUTE + "/digests"
CONTRIBUTION_ROUTE = (
    STATUS_ROUTE + f"/rounds/{{round:{_NUMBER}}}/contributions/{{learner:{_NAME}}}.{{incarnation:{_NUMBER}}}"
)
STATE_ROUTE = STATUS_ROUTE + f"/states/{{ticket:{_NUMBER}}}"
STATE_DIGESTS_ROUTE = STATE_ROUTE + "/digests"

Index = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class About(msgspec.Struct, frozen=True):
    """Who answers at an address, told to whoever may ask anything."""

    unlockstep: str
    """Version of the package."""
    protocol: int
    """Version of the protocol (``core.ids.PROTOCOL_VERSION``)."""
    now_ns: int
    """The wall clock, nanoseconds since 1970."""
    runs: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """Names of the runs here."""
    role: str
    """What the caller may do."""


class ProbeQuery(msgspec.Struct, frozen=True):
    """How much a probe of the way down shall send."""

    bytes: Annotated[int, msgspec.Meta(ge=0, le=PROBE_BYTES_MAX)]


class SeedQuery(msgspec.Struct, frozen=True):
    """Who sends version 0 of a fragment, and of which run."""

    run_id: str
    learner: str
    incarnation: Index


class StateQuery(msgspec.Struct, frozen=True):
    """Who sends what it trains with, and of which run."""

    run_id: str
    learner: str
    incarnation: Index


class ContributionQuery(msgspec.Struct, frozen=True):
    """Where a contribution belongs. Without it a body can be neither read nor charged to anybody."""

    run_id: str
    fragment: Index
    base_version: Index
    codec: Codec
    packing: Packing = Packing.NONE


class CountsQuery(msgspec.Struct, frozen=True):
    """What a contribution weighs. Nonsense here is a defect of the contribution, counted against its sender."""

    c_steps: Count
    c_tokens: Count
    tokens: Count
    position: Count = 0
    samples: Count = 0
    steps: Count = 0
    deed: Count = 0


class ReaderQuery(msgspec.Struct, frozen=True):
    """Who downloads: bytes that pass are a sign of its life. Who is no learner leaves this out."""

    learner: str = ""
    incarnation: Index = 0


class ChunkAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is said of a chunk, of a whole body, or of anything that is refused. Absent fields are empty."""

    error: str = ""
    outcome: str = ""
    upload: str = ""
    """Names the buffer that the chunks are in. Another name: what had arrived before is lost."""
    missing: tuple[tuple[int, int], ...] = ()
    """Bytes from, and up to, that have not arrived."""


class ChunkDigests(msgspec.Struct, frozen=True):
    """Digests of the chunks of a body, in hex, in order."""

    chunk_bytes: Annotated[int, msgspec.Meta(ge=1)]
    digests: tuple[str, ...]


def read_answer(text: bytes | str, kind: type[Said]) -> Said:
    """What a syncer has said in JSON, its texts fit to be shown. Raises RemoteProtocolError if it is nothing of this
    kind."""
    try:
        return msgspec.convert(printable_texts(msgspec.json.decode(text)), kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"what answers is not a syncer of this version ({error})") from None


def base_urls(urls: str) -> tuple[str, ...]:
    """Where a run's syncer may be: one address, or several with commas between them (a leader and its standbys).

    Raises:
        UsageError: one of them is no address.
    """
    return tuple(_base_url(url.strip()) for url in urls.split(","))


def _base_url(url: str) -> str:
    """Scheme, host and port. ``host:port`` will do, and ``host`` where it is the default port."""
    has_scheme = "//" in url
    try:
        parts = urlsplit(url if has_scheme else f"http://{url}")
        complete = parts.scheme in ("http", "https") and _may_be_a_host(parts.hostname or "") and parts.port != 0
    except ValueError:
        complete = False
    if not complete:
        raise UsageError(f"the syncer's address is {url!r}; write http://host:port, several with commas between them")
    if parts.username is not None:  # Not repeated: it may hold a password.
        raise UsageError(
            f"the syncer's address has something before the @ in front of {parts.hostname}; leave that out, a token is "
            "given in a file"
        )
    netloc = parts.netloc
    if not netloc.isascii():  # As it is asked for, and stands in the field Host.
        netloc = (parts.hostname or "").encode("idna").decode() + ("" if parts.port is None else f":{parts.port}")
    port = "" if has_scheme or parts.port is not None else f":{PORT_DEFAULT}"
    return f"{parts.scheme}://{netloc}{port}"


def _may_be_a_host(host: str) -> bool:
    """Whether whoever looks a name up can be asked for it: labels that are not empty, nor too long. Raises ValueError
    if not."""
    return bool(host.encode("idna")) and not any(mark.isspace() for mark in host)


def status_path(run: str) -> str:
    return f"/v1/runs/{quote(run, safe='')}"


def config_path(run: str) -> str:
    return f"{status_path(run)}/config"


def control_path(run: str) -> str:
    return f"{status_path(run)}/control"


def stop_path(run: str) -> str:
    return f"{status_path(run)}/stop"


def version_path(run: str, fragment: int, version: int) -> str:
    return f"{status_path(run)}/fragments/{fragment}/versions/{version}"


def digests_path(path: str) -> str:
    """Where the digests of the chunks of a body are, given where it is itself."""
    return f"{path}/digests"


def state_path(run: str, ticket: int) -> str:
    return f"{status_path(run)}/states/{ticket}"


def contribution_path(run: str, round: int, learner: str, incarnation: int) -> str:
    return f"{status_path(run)}/rounds/{round}/contributions/{learner}.{incarnation}"


def content_digest(digest: str, algorithm: str = BLAKE3) -> str:
    """The ``Content-Digest`` field for a digest in hex."""
    return f"{algorithm}=:{base64.b64encode(bytes.fromhex(digest)).decode()}:"


def parse_content_digest(field: str) -> BodyDigest:
    """What a body that comes whole is known by, or a chunk; algorithms that are not known here are passed over.

    Raises:
        RemoteProtocolError: there is none, or it is not 32 bytes of base64.
    """
    return _digest(field, CONTENT_DIGEST)


def digest_fields(digest: BodyDigest) -> dict[str, str]:
    """The header field that says what a body is known by."""
    field = content_digest(digest.hex, digest.algorithm)
    return {CHUNKS_DIGEST: f"{field};chunk={digest.chunk_bytes}"} if digest.chunk_bytes else {CONTENT_DIGEST: field}


def parse_chunks_digest(field: str) -> BodyDigest:
    """What a body that comes in chunks is known by.

    Raises:
        RemoteProtocolError: there is no such field, or it is not written like that.
    """
    digest, _, chunk = field.partition(";chunk=")
    if re.fullmatch("[1-9][0-9]{0,17}", chunk) is None:
        raise RemoteProtocolError(f"{CHUNKS_DIGEST} must be blake3=:<32 bytes in base64>:;chunk=<bytes of a chunk>")
    return _digest(digest, CHUNKS_DIGEST)._replace(chunk_bytes=int(chunk))


def _digest(field: str, name: str) -> BodyDigest:
    for member in field.split(","):
        algorithm, _, value = member.strip().partition("=")
        if algorithm in ALGORITHMS and len(value) > 2 and value.startswith(":") and value.endswith(":"):
            try:
                digest = base64.b64decode(value[1:-1], validate=True)
            except (binascii.Error, ValueError):
                break
            if len(digest) == DIGEST_BYTES:
                return BodyDigest(digest.hex(), algorithm=algorithm)
    raise RemoteProtocolError(f"{name} must be {' or '.join(ALGORITHMS)}, =, and :<32 bytes in base64>:")

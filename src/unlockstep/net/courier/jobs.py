"""What a learner asks of its courier and what it hears: records, and how they cross a Unix socket with their memory.

::

    │ length, 4 bytes little-endian │ descriptors, 1 byte: 0 or 1 │ msgpack, ``length`` bytes │

Decides the records and their frames, and that both ends refuse what they do not understand. Does not decide who does a
job (``porter``), or in which process (``courier``). Arrays are not in the records: a job names the size of the memory
that comes with it, in which its values lie or are to be laid.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias, TypeVar

import msgspec

from unlockstep.config import CodecSection
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.layout import LayoutMethod, TensorSpec
from unlockstep.core.messages import HandedOver, VersionNotice
from unlockstep.net.wire.timeouts import Timeouts

FRAME_BYTES_MAX = 64 * 1024
"""Of a job or a result. Smaller than what a socket holds: sending one never waits for the other end."""

SENTENCE_LENGTH_MAX = 1000
"""Of what goes wrong, in characters."""

_HEADER_BYTES = 5
_READ_BYTES = 64 * 1024
_DESCRIPTORS_MAX = 8
"""Taken from the socket at once; a frame has one at most."""


class Setting(msgspec.Struct, frozen=True):
    """All that a courier has to know before its first job, but for the token."""

    url: str
    """Of the syncer that is believed to lead."""
    run: str
    tensors: tuple[TensorSpec, ...]
    fragments: int
    method: LayoutMethod
    codec: CodecSection
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    """Holds the token, if it is in a file, which may change."""
    bytes_per_s: float | None = None
    """Most that all transfers together may move, each way; None: no limit."""


class _Message(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    pass


# ------------------------------------------------------------------------------------------------ to the courier


class SetUp(_Message, frozen=True):
    """Once, before all else: the memory holds a ``Setting``."""

    size: int
    token: str | None
    """Shown to the syncer. A secret: nowhere but on the socket."""


class TurnTo(_Message, frozen=True):
    """Another syncer leads. What is under way to the one before is given up."""

    url: str


class Forget(_Message, frozen=True):
    """This contribution is settled: whatever is kept of it can go."""

    handed_over: HandedOver


class Ping(_Message, frozen=True):
    """Answered at once by ``Pong``, whatever is under way."""


class _Job(_Message, frozen=True):
    number: int
    """By which its result is known."""
    size: int
    """Bytes of the memory that comes with it."""
    timeouts: Timeouts
    """Of the link, as its learner knows it by now."""


class Contribute(_Job, frozen=True):
    """Encode the outer gradient in the memory, float32[n], and upload it. Ends in ``Answered``. What it is known by:
    ``feedback.Made``."""

    run_id: str
    learner: str
    round: int
    fragment: int
    tokens: int
    loads: int
    codec: Codec
    path: str
    query: dict[str, str]


class Seed(_Job, frozen=True):
    """Encode the values in the memory, float32[n], as version 0 of a fragment and upload them. Ends in ``Answered``."""

    fragment: int
    path: str
    query: dict[str, str]


class Fetch(_Job, frozen=True):
    """Lay the values of a version, float32[n], into the memory. Ends in ``Laid`` or ``Failed``."""

    notice: VersionNotice
    path: str
    query: dict[str, str]


class GiveState(_Job, frozen=True):
    """Upload what is in the memory. Ends in ``Answered``."""

    path: str
    query: dict[str, str]


class TakeState(_Job, frozen=True):
    """Lay a body with just this digest into the memory, which it fills. Ends in ``Laid`` or ``Failed``."""

    path: str
    query: dict[str, str]
    digest: str


Job: TypeAlias = Contribute | Seed | Fetch | GiveState | TakeState
Order: TypeAlias = SetUp | TurnTo | Forget | Ping | Job


# ---------------------------------------------------------------------------------------------- from the courier


class Ready(_Message, frozen=True):
    """It is set up: jobs may come."""


class Pong(_Message, frozen=True):
    """It takes what it is told."""


class Passage(msgspec.Struct, frozen=True):
    """What has passed on the link for a job, from its first byte to its last."""

    size_bytes: int = 0
    seconds: float = 0.0


class Answered(_Message, frozen=True):
    """What the syncer said of an upload in the end."""

    number: int
    status: int
    """0: nothing."""
    sentence: str
    passage: Passage = Passage()


class Laid(_Message, frozen=True):
    """What was wanted is in the memory, from this byte on."""

    number: int
    offset: int
    passage: Passage = Passage()


class Failed(_Message, frozen=True):
    """It is not to be had, and why."""

    number: int
    sentence: str


Result: TypeAlias = Answered | Laid | Failed
Report: TypeAlias = Ready | Pong | Result

Read = TypeVar("Read")

_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def read_order(body: bytes) -> Order:
    """Raises LocalProtocolError."""
    return _read(_orders, body)


def read_report(body: bytes) -> Report:
    """Raises LocalProtocolError."""
    return _read(_reports, body)


def _read(decoder: msgspec.msgpack.Decoder[Read], body: bytes) -> Read:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise LocalProtocolError(f"a learner and its courier do not understand one another: {error}") from None


# -------------------------------------------------------------------------------------------------------- frames


def send_frame(end: socket.socket, message: Order | Report, descriptor: int | None = None) -> None:
    """All of it. The descriptor stays the caller's.

    Raises:
        BlockingIOError: the other end of a socket that does not wait has long stopped reading; the socket is of no more
            use. OSError: the other end is gone.
    """
    body = msgspec.msgpack.encode(message)
    if len(body) > FRAME_BYTES_MAX - _HEADER_BYTES:
        raise LocalProtocolError(f"a {type(message).__name__} has {len(body)} bytes, more than a frame holds")
    given = [] if descriptor is None else [descriptor]
    frame = memoryview(len(body).to_bytes(4, "little") + bytes([len(given)]) + body)
    sent = socket.send_fds(end, [frame], given)
    while sent < len(frame):
        sent += end.send(frame[sent:])


class FrameReader:
    """What arrives at one end, cut into frames again. Descriptors that nobody takes are closed with it.

    Args:
        end: of a stream socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._bytes = bytearray()
        self._descriptors: deque[int] = deque()

    def read(self) -> bool:
        """Take what is there; False when the other end is gone. Raises BlockingIOError where that would be to wait, or
        OSError if the connection has failed."""
        data, descriptors, _, _ = socket.recv_fds(self._end, _READ_BYTES, _DESCRIPTORS_MAX)
        self._descriptors.extend(descriptors)
        self._bytes += data
        return bool(data)

    def frames(self) -> Iterator[tuple[bytes, int | None]]:
        """Every whole frame that is here: its body, and its descriptor, which is the caller's from now on.

        Raises:
            LocalProtocolError: these are no frames.
        """
        while len(self._bytes) >= _HEADER_BYTES:
            length, count = int.from_bytes(self._bytes[:4], "little"), self._bytes[4]
            if length > FRAME_BYTES_MAX - _HEADER_BYTES or count > min(1, len(self._descriptors)):
                raise LocalProtocolError("what a learner and its courier say to one another has no frames")
            if len(self._bytes) < _HEADER_BYTES + length:
                return
            body = bytes(self._bytes[_HEADER_BYTES : _HEADER_BYTES + length])
            del self._bytes[: _HEADER_BYTES + length]
            yield body, self._descriptors.popleft() if count else None

    def close(self) -> None:
        """Nothing more is taken."""
        while self._descriptors:
            os.close(self._descriptors.popleft())

"""One kept-alive HTTP/1.1 connection of the bulk client: blocking, made for bodies of megabytes.

::

    begin(method, target, fields)   the head goes out
    send(view)                      bytes of a body, straight from where they are
    reply()                         the head of the answer, all of it
    read(view)                      bytes of its body, straight to where they belong
    text()                          or all of it, if it is small

Decides socket options, and that silence ends a connection. Does not decide what is asked, nor whether it is asked again
(``client``). One thread uses it at a time; ``cut`` may be called by any.
"""

from __future__ import annotations

import io
import re
import select
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass

from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.wire.names import Target
from unlockstep.net.wire.sockets import carry_bulk, watch_over
from unlockstep.net.wire.timeouts import Timeouts

TEXT_BYTES_MAX = 16 * 1024 * 1024
"""Largest answer that is no body of a fragment or state: digests of 2**17 chunks."""

SPELL_S = 0.02
"""How long bytes are moved before it is told: TLS moves 16 KiB at a time, and telling costs as much as moving them."""

HEAD_BYTES_MAX = 64 * 1024
"""Of an answer."""

READ_BUFFER_BYTES = 16 * 1024
"""Where the head of an answer is read to, and the first of its body."""

CONTINUE = 100

_STATUS = re.compile(rb"HTTP/1[.]([01]) ([0-9]{3})(?: .*)?")


@dataclass(frozen=True, slots=True)
class Reply:
    """The head of an answer."""

    status: int
    fields: dict[str, str]
    """By name in lower case."""
    length: int | None
    """Of the body; None: it is not said, or not as a number."""
    is_last: bool
    """The connection is closed after it."""


class Channel:
    """A connection that is open, or was.

    Args:
        target: where to.
        fields: header fields of every request.
        timeouts: what silence is too long.
    """

    def __init__(self, target: Target, fields: dict[str, str], timeouts: Timeouts) -> None:
        self._target = target
        self._fields = {"Host": target.authority, **fields}
        self._timeouts = timeouts
        self._socket: socket.socket | None = None
        self._reader: io.BufferedReader | None = None
        self._left: int | None = 0
        """Bytes of the answer's body that have not been read; None: nobody knows."""
        self._is_last = False
        self._is_cut = False
        self.is_fresh = True
        """It has carried no request yet. One that has may have been closed meanwhile by the other end."""
        self._is_broken_off = False
        self._is_read = False

    def open(self, context: ssl.SSLContext | None) -> None:
        """Connect. Raises OSError."""
        host, port = self._target.host, self._target.port
        failure: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            connection = socket.socket(family, kind, protocol)
            try:
                self._socket = connection
                if self._is_cut:
                    raise ConnectionAbortedError("cancelled")
                connection.settimeout(self._timeouts.connect_s)
                connection.connect(where)
                watch_over(connection, self._timeouts)
                carry_bulk(connection)
                if context is not None:
                    self._socket = context.wrap_socket(connection, server_hostname=host)
                    if self._is_cut:  # Between the two sockets.
                        raise ConnectionAbortedError("cancelled")
                return
            except OSError as error:
                failure = error
                connection.close()
                if self._is_cut:
                    break
        raise failure

    def cut(self) -> None:
        """End it, from whichever thread: whoever is in the middle of something gets an OSError."""
        self._is_cut = True
        if self._socket is not None:
            with suppress(OSError, ValueError):
                # Not the method of an SSLSocket, which another thread may be using.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Done with it."""
        if self._reader is not None:
            self._reader.close()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()

    @property
    def is_reusable(self) -> bool:
        """The last request was sent, and its answer read, to the end: another one may follow."""
        return self._is_read and not self._is_broken_off and not self._is_cut

    # ------------------------------------------------------------------------------------------- asking

    def begin(self, method: str, target: str, fields: dict[str, str]) -> None:
        """Send the head of a request. Raises OSError."""
        said = (f"{name}: {value}" for name, value in (self._fields | fields).items())
        lines = (f"{method} {target} HTTP/1.1", *said, "", "")
        self._is_read = False
        sock = self._open_socket
        sock.settimeout(self._timeouts.stall_s)
        sock.sendall("\r\n".join(lines).encode("latin-1"))

    def send(self, view: memoryview) -> int:
        """Send of ``view`` what can be sent within ``SPELL_S``, at least a byte; returns how much that was. Raises
        OSError."""
        sent, until_s = 0, time.monotonic() + SPELL_S
        while sent < len(view):
            sent += self._open_socket.send(view[sent:])
            if time.monotonic() >= until_s:
                break
        return sent

    def break_off(self) -> None:
        """The rest of the request is not sent."""
        self._is_broken_off = True

    def is_answered(self) -> bool:
        """Whether there is an answer before the request is complete: it will not change any more."""
        if isinstance(self._socket, ssl.SSLSocket):  # What can be read may be none.
            return False
        waiting = select.poll()  # Not select.select: a training program may have more than 1024 files open.
        waiting.register(self._open_socket, select.POLLIN)
        return bool(waiting.poll(0))

    # ------------------------------------------------------------------------------------------- being answered

    def reply(self) -> Reply:
        """The head of the answer. Raises OSError, also if it is cut off, or is no HTTP."""
        sock = self._open_socket
        sock.settimeout(self._timeouts.verdict_s)
        if self._reader is None:
            self._reader = io.BufferedReader(sock.makefile("rb", buffering=0), READ_BUFFER_BYTES)
        while (reply := _parsed(_head(self._reader))).status == CONTINUE:
            pass
        sock.settimeout(self._timeouts.stall_s)
        self._left = reply.length
        self._is_last = reply.is_last
        self._end_if_read()
        return reply

    def read(self, view: memoryview) -> int:
        """Read into ``view`` what comes of the body within ``SPELL_S``, at least a byte; returns how much that was.
        Raises OSError."""
        assert self._reader is not None and self._left, "there is nothing to read"
        view, filled, until_s = view[: self._left], 0, time.monotonic() + SPELL_S
        while filled < len(view):
            count = self._reader.readinto1(view[filled:])
            if not count:
                raise ConnectionResetError(f"the body ended {self._left - filled} bytes early")
            filled += count
            if time.monotonic() >= until_s:
                break
        self._left -= filled
        self._end_if_read()
        return filled

    def text(self) -> bytes:
        """All of a small body. Raises OSError, or RemoteProtocolError if it is not small."""
        if self._left is None or self._left > TEXT_BYTES_MAX:
            raise RemoteProtocolError(f"the answer has {self._left or 'nobody knows how many'} bytes")
        text = bytearray(self._left)
        view = memoryview(text)
        while view:
            view = view[self.read(view) :]
        return bytes(text)

    def _end_if_read(self) -> None:
        if self._left == 0:
            self._is_read, self.is_fresh = not self._is_last, False

    @property
    def _open_socket(self) -> socket.socket:
        if self._socket is None or self._is_cut:
            raise ConnectionAbortedError("cancelled")
        return self._socket


def _head(reader: io.BufferedReader) -> list[bytes]:
    """The lines of the head of an answer, without their ends. Raises OSError."""
    lines, size = list[bytes](), 0
    while True:
        line = reader.readline(HEAD_BYTES_MAX)
        size += len(line)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection was closed before the answer" if not size else "it was cut off")
        if size > HEAD_BYTES_MAX:
            raise ConnectionResetError("what answers is no HTTP")
        if not (line := line.rstrip(b"\r\n")):
            return lines
        lines.append(line)


def _parsed(lines: list[bytes]) -> Reply:
    found = _STATUS.fullmatch(lines[0]) if lines else None
    if found is None:
        raise ConnectionResetError("what answers is no HTTP")
    fields = {}
    for line in lines[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.strip().lower()] = value.strip()
    length = fields.get("content-length", "")
    is_last = found[1] == b"0" or fields.get("connection", "").lower() == "close"
    is_known = length.isascii() and length.isdecimal() and "transfer-encoding" not in fields
    return Reply(int(found[2]), fields, int(length) if is_known else None, is_last)

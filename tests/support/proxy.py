"""A proxy on loopback that spoils bytes above TCP: what a broken middlebox does, and no checksum of a packet notices.

Decides how the byte to spoil is found: so many bytes behind texts that occur one after the other in what one end says.
Passes everything else on as it is.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

PIECE_BYTES = 65536

Direction = Literal["up", "down"]
"""From who has connected; to it."""


@dataclass
class Spoil:
    """One bit of one byte is turned over, once.

    Args:
        direction: of what is spoiled.
        behind: texts that come one after the other in it, in one connection.
        skip: bytes between the last of them and the one that is spoiled.
    """

    direction: Direction
    behind: Sequence[bytes]
    skip: int
    done: threading.Event = field(default_factory=threading.Event)


class _Search:
    """Where in one direction of a connection the byte is; fed with all that passes."""

    def __init__(self, spoil: Spoil) -> None:
        self._spoil = spoil
        self._behind = list(spoil.behind)
        self._left = spoil.skip
        self._tail = b""

    def apply(self, piece: bytes) -> bytes:
        """The piece, spoiled if the byte is in it."""
        if self._spoil.done.is_set():
            return piece
        at = 0
        while self._behind:
            seen = self._tail + piece[at:]
            found = seen.find(self._behind[0])
            if found < 0:
                self._tail = seen[max(0, len(seen) - len(self._behind[0]) + 1) :]
                return piece
            at += found + len(self._behind.pop(0)) - len(self._tail)
            self._tail = b""
        where, self._left = at + self._left, self._left - (len(piece) - at)
        if where >= len(piece):
            return piece
        self._spoil.done.set()
        return piece[:where] + bytes((piece[where] ^ 1,)) + piece[where + 1 :]


class Proxy:
    """Listens, connects on behalf of who connects, and spoils one byte at most.

    Args:
        url: of the server behind it.
        spoil: what is spoiled.
    """

    def __init__(self, url: str, spoil: Spoil) -> None:
        parts = urlsplit(url)
        self._server = parts.hostname, parts.port
        self._spoil = spoil
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        """Cut every connection."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # The listener is closed.
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                self._start(self._pass, client, server, "up")
                self._start(self._pass, server, client, "down")

    def _pass(self, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        search = _Search(self._spoil) if direction == self._spoil.direction else None
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                target.sendall(piece if search is None else search.apply(piece))
            target.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(url: str, direction: Direction, *behind: bytes, skip: int) -> Iterator[tuple[str, threading.Event]]:
    """Where to connect to instead, and what is set when the byte has been spoiled."""
    spoil = Spoil(direction, behind, skip)
    running = Proxy(url, spoil)
    try:
        yield running.url, spoil.done
    finally:
        running.close()

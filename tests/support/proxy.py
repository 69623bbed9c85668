"""A proxy on loopback that breaks connections above TCP and spoils bytes: what a broken middlebox does.

Decides where a fault strikes: so many bytes into one direction, or so many bytes behind texts that occur one after the
other in what one end says. A fault strikes once. Everything else is passed on as it is.

::

    with proxy(url, "up", b"/contributions/", b"\\r\\n\\r\\n", skip=20) as (there, done): ...   one bit turned over
    with Proxy(url, Cut("up", 1000)) as broken: ... broken.url, broken.fault.done
"""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

PIECE_BYTES = 65536

Direction = Literal["up", "down"]
"""From who has connected; to it."""


class Broken(Exception):
    """The connection ends here, in both directions."""


class Silent(Exception):
    """Nothing more passes in this direction, and nobody is told."""


class Ended(Exception):
    """Nothing more passes in this direction, and the receiver sees its end."""


class Fault(ABC):
    """Strikes once, in one direction."""

    def __init__(self, direction: Direction) -> None:
        self.direction = direction
        self.done = threading.Event()
        """It has struck."""

    @abstractmethod
    def begin(self) -> Callable[[bytes], tuple[bytes, type[Exception] | None]]:
        """For one connection: what becomes of each piece, and what happens behind it."""


class Spoil(Fault):
    """One bit of one byte is turned over.

    Args:
        direction: of what is spoiled.
        behind: texts that come one after the other in it, in one connection.
        skip: bytes between the last of them and the one that is spoiled.
    """

    def __init__(self, direction: Direction, behind: Sequence[bytes], skip: int) -> None:
        super().__init__(direction)
        self._behind = behind
        self._skip = skip

    def begin(self) -> Callable[[bytes], tuple[bytes, type[Exception] | None]]:
        search = _Search(self._behind, self._skip)

        def apply(piece: bytes) -> tuple[bytes, type[Exception] | None]:
            where = None if self.done.is_set() else search.find(piece)
            if where is None:
                return piece, None
            self.done.set()
            return piece[:where] + bytes((piece[where] ^ 1,)) + piece[where + 1 :], None

        return apply


class _Search:
    """Where in one direction of a connection a byte is; fed with all that passes."""

    def __init__(self, behind: Sequence[bytes], skip: int) -> None:
        self._behind = list(behind)
        self._left = skip
        self._tail = b""

    def find(self, piece: bytes) -> int | None:
        """Its place in this piece, if it is there."""
        at = 0
        while self._behind:
            seen = self._tail + piece[at:]
            found = seen.find(self._behind[0])
            if found < 0:
                self._tail = seen[max(0, len(seen) - len(self._behind[0]) + 1) :]
                return None
            at += found + len(self._behind.pop(0)) - len(self._tail)
            self._tail = b""
        where, self._left = at + self._left, self._left - (len(piece) - at)
        return where if where < len(piece) else None


class Stop(Fault):
    """The direction comes to its end after so many bytes, of all connections together.

    Args:
        direction: whose bytes are counted.
        after_bytes: that many pass.
        how: ``Broken``, ``Silent`` or ``Ended``.
    """

    def __init__(self, direction: Direction, after_bytes: int, how: type[Exception] = Broken) -> None:
        super().__init__(direction)
        self._left = after_bytes
        self._how = how
        self._lock = threading.Lock()

    def begin(self) -> Callable[[bytes], tuple[bytes, type[Exception] | None]]:
        return self._apply

    def _apply(self, piece: bytes) -> tuple[bytes, type[Exception] | None]:
        with self._lock:
            if self.done.is_set() or len(piece) < self._left:
                self._left -= len(piece)
                return piece, None
            self.done.set()
            return piece[: self._left], self._how


class Proxy:
    """Listens, and connects on behalf of who connects.

    Args:
        url: of the server behind it.
        fault: what goes wrong; None: nothing.
    """

    def __init__(self, url: str, fault: Fault | None = None) -> None:
        self.fault = fault
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        """Bytes, of all connections."""
        self._counting = threading.Lock()
        self.turn_to(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def turn_to(self, url: str) -> None:
        """Whoever connects from now on is led there."""
        parts = urlsplit(url)
        self._server = parts.hostname, parts.port

    def close(self) -> None:
        """Cut every connection."""
        for each in self._sockets:
            _cut(each)
            each.close()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # The listener is closed.
                return
            self._sockets.append(client)
            try:
                server = socket.create_connection(self._server)
            except OSError:
                _cut(client)
                continue
            self._sockets.append(server)
            self._start(self._pass, client, server, "up")
            self._start(self._pass, server, client, "down")

    def _pass(self, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        fault = self.fault
        apply = fault.begin() if fault is not None and direction == fault.direction else None
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                piece, stop = (piece, None) if apply is None else apply(piece)
                target.sendall(piece)
                with self._counting:
                    self.passed[direction] += len(piece)
                if stop is Broken:
                    _cut(source)
                    _cut(target)
                if stop is Silent:
                    return
                if stop is Ended:
                    break
            target.shutdown(socket.SHUT_WR)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(url: str, direction: Direction, *behind: bytes, skip: int) -> Iterator[tuple[str, threading.Event]]:
    """Where to connect to instead, and what is set when one bit behind these texts has been turned over."""
    spoil = Spoil(direction, behind, skip)
    with Proxy(url, spoil) as running:
        yield running.url, spoil.done

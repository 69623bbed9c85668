"""Whoever may be at the other end of an address and is no syncer: servers of one answer, with TLS and without.

Decides that each listens on loopback, in a thread of its own, and is gone with its block. Certificates and their keys
are made anew by every test.
"""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from support.live_run import WAIT_S
from unlockstep.certificates import Pair, issue, new_authority

Serve = Callable[[socket.socket], None]


@contextmanager
def peer(serve: Serve) -> Iterator[int]:
    """The port at which every connection is served so, one after the other, and then closed."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if over.is_set():
                        return
                    connection.settimeout(WAIT_S)
                    with suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=run, name="test-peer")
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            with suppress(OSError):
                socket.create_connection(listener.getsockname()).close()
            thread.join(WAIT_S)
            assert not thread.is_alive(), "the peer does not end"


def answering(said: bytes) -> Serve:
    """Hears something, and answers so."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(said)

    return serve


def greeting(said: bytes) -> Serve:
    """Speaks first, as a mail or shell server does."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(said)
        connection.recv(65536)

    return serve


def hanging_up(connection: socket.socket) -> None:
    """Says nothing, and is gone."""


def mute(connection: socket.socket) -> None:
    """Says nothing, and stays until the other end goes."""
    while connection.recv(65536):
        pass


def private(context: ssl.SSLContext, serve: Serve) -> Serve:
    """The same behind TLS; whoever does not speak it is hung up on."""

    def wrapped(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as inside:
            serve(inside)

    return wrapped


def http(status: str, body: bytes, server: str = "nginx") -> bytes:
    """One answer."""
    head = f"HTTP/1.1 {status}\r\nServer: {server}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


# ------------------------------------------------------------------------------------------------- certificates

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """One that signs certificates of servers; its own is in a file."""

    folder: Path
    name: str
    pair: Pair

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def server(
        self, hosts: Sequence[str] = ("127.0.0.1",), begins: datetime.datetime = NOW, days: int = 90
    ) -> ssl.SSLContext:
        """What a server with such a certificate speaks TLS with."""
        made = issue(self.pair, "server", hosts, begins, days)
        path = self.folder / f"{self.name}-server.pem"
        path.write_bytes(made.key + made.cert)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def authority(folder: Path, name: str = "somebody") -> Authority:
    """A new one, valid since long ago."""
    found = Authority(folder, name, new_authority(name, NOW - 400 * DAY))
    found.path.write_bytes(found.pair.cert)
    return found

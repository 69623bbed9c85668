"""Something that listens where a syncer should be and answers what a test has it answer, whatever it is asked.

Decides nothing about what is answered; whole answers are given as bytes.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from support.peers import peer
from unlockstep.net.wire.api import ABOUT_ROUTE

TRICKLE_S = 0.02
"""From one byte of an answer without end to the next."""


@contextmanager
def false_syncer(answer: bytes, by_path: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Its address. To a path in ``by_path`` it answers that; one request a connection."""
    answers = dict(by_path or {})

    def serve(line: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            piece = line.recv(65536)
            if not piece:
                return
            asked += piece
        path = asked.split(b" ", 2)[1].decode("latin-1").partition("?")[0]
        line.sendall(answers.get(path, answer))
        line.shutdown(socket.SHUT_WR)
        while line.recv(65536):
            pass

    with peer(serve) as port:
        yield f"http://127.0.0.1:{port}"


def trickle(line: socket.socket) -> None:
    """Answers, and does not come to an end for as long as anybody listens."""
    line.recv(65536)
    line.sendall(b"HTTP/1.1 200 -\r\nContent-Length: 100000\r\n\r\n{")
    while not select.select([line], [], [], TRICKLE_S)[0]:
        line.sendall(b" ")


def reply(body: bytes, status: int = 200, fields: str = "") -> bytes:
    """A whole answer of HTTP."""
    return f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{fields}\r\n".encode() + body


def honest_about(about: bytes) -> Mapping[str, bytes]:
    """Answers of one that says well who it is."""
    return {ABOUT_ROUTE: reply(about)}

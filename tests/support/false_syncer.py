"""Something that listens where a syncer should be and answers what a test has it answer, whatever it is asked.

Decides nothing about what is answered; whole answers are given as bytes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from unlockstep.net.wire.api import ABOUT_ROUTE


@contextmanager
def false_syncer(answer: bytes, by_path: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Its address. To a path in ``by_path`` it answers that; one request a connection."""
    answers = dict(by_path or {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=_accept, args=(listener, answer, answers), name="false-syncer")
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def reply(body: bytes, status: int = 200, fields: str = "") -> bytes:
    """A whole answer of HTTP."""
    return f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{fields}\r\n".encode() + body


def honest_about(about: bytes) -> Mapping[str, bytes]:
    """Answers of one that says well who it is."""
    return {ABOUT_ROUTE: reply(about)}


def _accept(listener: socket.socket, answer: bytes, answers: Mapping[str, bytes]) -> None:
    lines = []
    with suppress(OSError):  # The listener is closed.
        while True:
            line, _ = listener.accept()
            lines.append(threading.Thread(target=_serve, args=(line, answer, answers), name="false-syncer-line"))
            lines[-1].start()
    for thread in lines:
        thread.join()


def _serve(line: socket.socket, answer: bytes, answers: Mapping[str, bytes]) -> None:
    with line, suppress(OSError):
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

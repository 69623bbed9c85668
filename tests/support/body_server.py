"""Something that takes and gives bodies as a syncer does, stops in the middle of one, and says when it has.

Decides nothing about what is in them. For tests of what carries bodies, in which no run is wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

WAIT_S = 20.0


class Hold:
    """Where transfers of one path stop: uploads before they are answered, downloads half-way."""

    def __init__(self) -> None:
        self._waiting = threading.Semaphore(0)
        self._go = threading.Event()

    def wait(self) -> None:
        """Until one more transfer has got so far."""
        assert self._waiting.acquire(timeout=WAIT_S), "no transfer got so far"

    def release(self) -> None:
        """Let all of them go on."""
        self._go.set()

    def stop_here(self) -> None:
        """A transfer has got so far."""
        self._waiting.release()
        self._go.wait(WAIT_S)


class BodyServer:
    """At ``url``.

    ``uploads`` is what came, in order: path with query, and body. ``bodies`` is what is to be had, by path.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.uploads: list[tuple[str, bytes]] = []
        self.bodies: dict[str, bytes] = {}
        self.headers: list[dict[str, str]] = []
        self.status = 202
        self._holds: dict[str, Hold] = {}
        self._changed = threading.Condition()

    def hold(self, path: str) -> Hold:
        """From now on transfers of this path stop in the middle."""
        self._holds[path] = Hold()
        return self._holds[path]

    def forget_hold(self, path: str) -> None:
        """From now on they do not."""
        self._holds.pop(path).release()

    def wait_for_uploads(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.uploads) >= count, WAIT_S)

    def take(self, target: str, body: bytes) -> int:
        """An upload has come; the status to answer with."""
        path = urlsplit(target).path
        if path in self._holds:
            self._holds[path].stop_here()
        with self._changed:
            self.uploads.append((target, body))
            self._changed.notify_all()
        return self.status

    def half_way(self, target: str) -> None:
        """Half of a download has left."""
        path = urlsplit(target).path
        if path in self._holds:
            self._holds[path].stop_here()


@contextmanager
def body_server() -> Iterator[BodyServer]:
    """One on loopback, gone when the block ends."""

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_PUT(self) -> None:
            server.headers.append(dict(self.headers.items()))
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(server.take(self.path, body))
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_GET(self) -> None:
            server.headers.append(dict(self.headers.items()))
            body = server.bodies.get(urlsplit(self.path).path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            middle = len(body) // 2
            self.wfile.write(body[:middle])
            server.half_way(self.path)
            self.wfile.write(body[middle:])

        def log_message(self, format: str, *arguments: object) -> None:
            """Nobody reads it."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            """Whoever hangs up in the middle is what the tests are about."""

    with Server(("127.0.0.1", 0), Requests) as listening:
        server = BodyServer(f"http://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            for hold in server._holds.values():
                hold.release()
            listening.shutdown()
            thread.join()

"""Links between learners and their syncer that can be broken: a TCP proxy on loopback for each of them.

::

    learner ── http://127.0.0.1:PORT ──> Link ── the syncer's address ──> syncer          one port, one link

Decides what a cut, a rate, a delay and a damaged body are on a connection. Does not decide when (``supervisor``).

* *Cut*: bytes sent into it wait, here and with their sender, and arrive in order when it is healed, if both ends still
  stand then. Who connects meanwhile waits with the system, as long as it likes, and hears nothing until then: a cut in
  either direction stops that. Of those who have given up by then nothing arrives.
* *Rate*: what all connections of a link carry together, each way.
* *Delay*: added to every byte, each way, without holding up what follows: up to ``HELD_BYTES_MAX`` of a connection are
  on their way at a time.
* *Damage*: one bit in the middle of the first request that carries a body up, once for each body. Requests are read for
  that, so learners must speak plain HTTP/1.1, as they do on loopback.

All of it runs on one thread with an event loop of its own. Where nothing is broken it passes on what it gets.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from unlockstep.core.errors import UsageError

Way = Literal["up", "down"]
"""Towards the syncer; towards the learner."""

PIECE_BYTES = 256 * 1024
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one connection and direction that are on their way at a time, over a link with a delay."""
HELD_BYTES = 4 * PIECE_BYTES
"""The same without one: what is not taken at one end is soon not taken from the other."""

SMOOTHED_S = 0.02
"""A link with a rate passes on what it carries in so much time at once."""
LOOK_S = 0.05
"""How often who waits for a rate looks whether it was changed."""

BACKLOG = 4096
"""Connections that wait for a cut to be healed; more of them are not even made."""

ACCEPT_AGAIN_S = 0.1
"""Pause after a connection could not be accepted, as when there are too many files."""

HEAD_BYTES_MAX = 64 * 1024
DAMAGED_KEPT = 1024
"""Bodies known to have been damaged: what is sent of them again is not counted anew."""

_ABORT = struct.pack("ii", 1, 0)
_BODIES = ("/contributions/", "/states/")

_T = TypeVar("_T")


class Links:
    """The links of a run's learners.

    Args:
        url: of the syncer, ``http://host:port``.

    Raises:
        UsageError: the address has no such form.
    """

    def __init__(self, url: str) -> None:
        self._server = self.require(url)
        self._loop = asyncio.new_event_loop()
        self._links: dict[str, Link] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="unlockstep-links", daemon=True)
        self._thread.start()

    @staticmethod
    def require(url: str) -> tuple[str, int]:
        """Host and port. Raises UsageError as this class does."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if host is not None and parts.scheme == "https":
            raise UsageError(
                f"the run at {url} speaks TLS, which takes the proxies that links lead through for intruders, so its "
                "links cannot be broken; play the tape on a run without TLS"
            )
        if host is None or port is None or parts.scheme != "http":
            raise UsageError(
                f"the syncer's address is {url!r}, but a link that can be broken leads to http://host:port; give an "
                "address like that"
            )
        return host, port

    def __getitem__(self, name: str) -> Link:
        """The link of a name, whole when it is asked for first."""
        if name not in self._links:
            self._links[name] = self._call(lambda: Link(self._loop, self._server))
        return self._links[name]

    def rename(self, name: str, new: str) -> None:
        """From now on ``name`` has another link; its old one, with what is connected over it, is ``new``'s."""
        if name in self._links:
            self._links[new] = self._links.pop(name)

    def change(self, name: str, change: Callable[[Link], object]) -> None:
        """Do something to a link, where it is at work."""
        link = self[name]
        self._call(lambda: change(link))

    @property
    def damaged(self) -> dict[str, int]:
        """Bodies, by name."""
        return {name: link.damaged for name, link in self._links.items()}

    def close(self) -> None:
        """Cut all connections; nobody is accepted any more."""
        if not self._thread.is_alive():
            return
        self._call(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _close(self) -> None:
        for link in self._links.values():
            link.close()

    def _call(self, call: Callable[[], _T]) -> _T:
        async def do() -> _T:
            return call()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result()


class Link:
    """One learner's way to the syncer. All but ``address`` and the counts is to be used in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: tuple[str, int]) -> None:
        self.passed: dict[Way, int] = {"up": 0, "down": 0}
        """Bytes."""
        self.damaged = 0
        """Bodies."""
        self._loop = loop
        self._server = server
        self._open: dict[Way, asyncio.Event] = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._bytes_per_s = self._delay_s = 0.0
        self._settings = 0
        """How often its rate was changed."""
        self._free_s: dict[Way, float] = {"up": 0.0, "down": 0.0}
        self._has_waiters = False
        """Whoever is accepted may have waited for the end of a cut."""
        self._to_damage = 0
        self._hurt: OrderedDict[bytes, None] = OrderedDict()
        self._sockets: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.heal()
        self._spawn(self._accept())

    # ------------------------------------------------------------------------------------------- what is broken

    def cut(self, ways: tuple[Way, ...]) -> None:
        """Nothing passes that way."""
        self._has_waiters = True
        for way in ways:
            self._open[way].clear()

    def heal(self) -> None:
        """Everything passes again, what has waited first."""
        for event in self._open.values():
            event.set()

    def throttle(self, mbit_per_s: float) -> None:
        """So much and no more, each way; 0: whatever there is."""
        self._bytes_per_s = mbit_per_s * 125_000
        self._settings += 1
        self._free_s = dict.fromkeys(self._free_s, 0.0)

    def delay(self, seconds: float) -> None:
        """What comes in from now on goes out so much later."""
        self._delay_s = seconds

    def damage(self, bodies: int) -> None:
        """So many more bodies."""
        self._to_damage += bodies

    def calm(self) -> None:
        """Nothing is broken any more."""
        self._to_damage = 0
        self.throttle(0)
        self.delay(0)
        self.heal()

    def close(self) -> None:
        """Cut all connections."""
        for task in self._tasks:
            task.cancel()
        for each in (self._listener, *self._sockets):
            each.close()

    # ------------------------------------------------------------------------------------------- connections

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            await self._until_open()
            try:
                client = await self._next_client()
            except OSError:  # It passes, and whoever wants to connect still waits.
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            self._spawn(self._carry(client, self._has_waiters))

    async def _next_client(self) -> socket.socket:
        try:
            return self._listener.accept()[0]
        except BlockingIOError:
            self._has_waiters = False
            return (await self._loop.sock_accept(self._listener))[0]

    async def _until_open(self) -> None:
        while not all(event.is_set() for event in self._open.values()):
            for event in self._open.values():
                await event.wait()

    async def _carry(self, client: socket.socket, has_waited: bool) -> None:
        """One connection, from its beginning to its end."""
        server = None
        self._sockets.add(client)
        try:
            await self._until_open()
            if has_waited and _has_given_up(client):
                return
            server = await self._connect()
            for each in (client, server):
                each.setblocking(False)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.add(server)
            up, down = _Stretch(self._damaging()), _Stretch(lambda piece: piece)
            async with asyncio.TaskGroup() as group:
                for way, stretch, source, sink in (("up", up, client, server), ("down", down, server, client)):
                    group.create_task(self._take_in(way, stretch, source))  # type: ignore[arg-type]
                    group.create_task(self._give_out(way, stretch, sink))  # type: ignore[arg-type]
        except (OSError, ExceptionGroup):  # Whoever has broken it off: the other one sees it broken off.
            for each in filter(None, (client, server)):
                with suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        finally:
            for each in filter(None, (client, server)):
                each.close()
                self._sockets.discard(each)

    async def _connect(self) -> socket.socket:
        family, kind, protocol, _, address = (await self._loop.getaddrinfo(*self._server, type=socket.SOCK_STREAM))[0]
        server = socket.socket(family, kind, protocol)
        server.setblocking(False)
        try:
            await self._loop.sock_connect(server, address)
        except BaseException:
            server.close()
            raise
        return server

    async def _take_in(self, way: Way, stretch: _Stretch, source: socket.socket) -> None:
        while True:
            piece = await self._loop.sock_recv(source, self._piece_bytes())
            await self._rest(way, len(piece))
            room = HELD_BYTES_MAX if self._delay_s else HELD_BYTES
            if not await stretch.put(self._loop.time() + self._delay_s, piece, room):
                return

    def _piece_bytes(self) -> int:
        if not self._bytes_per_s:
            return PIECE_BYTES
        return min(PIECE_BYTES, max(1, int(self._bytes_per_s * SMOOTHED_S)))

    async def _rest(self, way: Way, size: int) -> None:
        """Until the link has carried so much more."""
        if not self._bytes_per_s:
            return
        settings = self._settings
        until_s = max(self._loop.time(), self._free_s[way]) + size / self._bytes_per_s
        self._free_s[way] = until_s
        while (left_s := until_s - self._loop.time()) > 0 and settings == self._settings:
            await asyncio.sleep(min(left_s, LOOK_S))

    async def _give_out(self, way: Way, stretch: _Stretch, sink: socket.socket) -> None:
        while True:
            due_s, piece = await stretch.get()
            if (left_s := due_s - self._loop.time()) > 0:
                await asyncio.sleep(left_s)
            await self._open[way].wait()
            if not piece:
                sink.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(sink, piece)
            self.passed[way] += len(piece)

    def _damaging(self) -> Callable[[bytes], bytes]:
        reader = _Requests(self._is_to_be_hurt)
        return reader.pass_on

    def _is_to_be_hurt(self, target: bytes) -> bool:
        """Whether the body that is put there is one of those, and this the first that is seen of it."""
        path = target.split(b"?")[0]
        if not self._to_damage or not any(part.encode() in path for part in _BODIES) or path in self._hurt:
            return False
        self._hurt[path] = None
        if len(self._hurt) > DAMAGED_KEPT:
            self._hurt.popitem(last=False)
        self._to_damage -= 1
        self.damaged += 1
        return True


def _has_given_up(client: socket.socket) -> bool:
    """Whether the other end of a new connection has closed it. Where the system does not say so (Linux does), no."""
    poll = select.poll()
    poll.register(client, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


class _Stretch:
    """What of one connection and direction is on its way, oldest first."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._filled, self._drained = asyncio.Event(), asyncio.Event()

    async def put(self, due_s: float, piece: bytes, room: int) -> bool:
        """Whether more may follow: an empty piece is the end. Waits while there are ``room`` bytes and more."""
        while self._bytes >= room:
            self._drained.clear()
            await self._drained.wait()
        self._pieces.append((due_s, self._change(piece)))
        self._bytes += len(piece)
        self._filled.set()
        return bool(piece)

    async def get(self) -> tuple[float, bytes]:
        while not self._pieces:
            self._filled.clear()
            await self._filled.wait()
        due_s, piece = self._pieces.popleft()
        self._bytes -= len(piece)
        self._drained.set()
        return due_s, piece


class _Requests:
    """Follows the requests of one connection. Pure.

    Args:
        is_hurt: asked for every body with its target; whether one bit of it is to be turned over.
    """

    def __init__(self, is_hurt: Callable[[bytes], bool]) -> None:
        self._is_hurt = is_hurt
        self._head: bytearray | None = bytearray()
        """Of the request that is coming in; None: what comes is no longer HTTP, or no request of a kind known here."""
        self._body_left = 0
        self._hit_at: int | None = None
        """Bytes of the body before the one that is hit."""

    def pass_on(self, piece: bytes) -> bytes:
        """The piece, with a bit turned over if it is in it."""
        at, hits = 0, []
        while at < len(piece) and self._head is not None:
            if self._body_left:
                count = min(self._body_left, len(piece) - at)
                if self._hit_at is not None:
                    if self._hit_at < count:
                        hits.append(at + self._hit_at)
                        self._hit_at = None
                    else:
                        self._hit_at -= count
                self._body_left -= count
                at += count
                continue
            at += self._read_head(piece[at:])
        if not hits:
            return piece
        changed = bytearray(piece)
        for hit in hits:
            changed[hit] ^= 1
        return bytes(changed)

    def _read_head(self, rest: bytes) -> int:
        """How many of these bytes are of the head."""
        assert self._head is not None
        before = len(self._head)
        self._head += rest[:HEAD_BYTES_MAX]
        end = self._head.find(b"\r\n\r\n", max(0, before - 3))
        if end < 0:
            if len(self._head) > HEAD_BYTES_MAX:
                self._head = None
            return len(rest)
        head, self._head = bytes(self._head[:end]), bytearray()
        lines = head.split(b"\r\n")
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        method, _, target = lines[0].partition(b" ")
        length = fields.get(b"content-length", b"0")
        if b"upgrade" in fields or b"transfer-encoding" in fields or not length.isdigit():
            self._head = None
        else:
            self._body_left = int(length)
            if method == b"PUT" and self._body_left and self._is_hurt(target.partition(b" ")[0]):
                self._hit_at = self._body_left // 2
        return end + 4 - before

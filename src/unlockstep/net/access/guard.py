"""The way into a port: who may connect, over TLS if it is asked for, and who is cut because it takes too long.

::

    socket ──> Guard.admit (how many, from where) ──> TLS ──> aiohttp's protocol ──> gate ──> resources
                          └────────────── sweep: overdue, or its token is no longer valid ──> cut

Decides which connections there are. Does not decide what a request on one of them may ask for (``gate``) nor how much
is too much (``limits``).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from unlockstep.net.access.audit import Audit, Peer, Refused
from unlockstep.net.access.limits import Limits, Visitor, Visitors, network_of
from unlockstep.net.access.progress import Progress
from unlockstep.net.access.security import Identity, ServerSecurity
from unlockstep.net.access.tls import explained_to_syncer
from unlockstep.net.wire.listening import Endpoint, port_errors
from unlockstep.net.wire.sockets import watch_over
from unlockstep.net.wire.timeouts import Timeouts

BACKLOG = 512
TLS_SHUTDOWN_S_MAX = 2.0
"""Given to a client to say goodbye in TLS, too."""

_log = logging.getLogger(__name__)


class Line(asyncio.Protocol):
    """One connection, from accepting it to its end; passes everything on to aiohttp's protocol."""

    def __init__(self, guard: Guard) -> None:
        self.progress = Progress(guard.limits)
        self.address = ""
        self.visitor: Visitor | None = None
        """Set while it is admitted."""
        self.identity: Identity | None = None
        """Who has shown a token on it, last."""
        self.request: web.BaseRequest | None = None
        self.inner: asyncio.Protocol | None = None
        self._guard = guard
        self._raw: asyncio.Transport
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        """What came together with the end of the TLS handshake."""
        self.deaf_s: float | None = None
        """Since when nothing is heard that it says."""

    @property
    def peer(self) -> Peer:
        return Peer(self.address) if self.identity is None else Peer(self.address, self.identity)

    @property
    def is_wanted(self) -> bool:
        """Whether the rest of a body is waited for, and nothing but the client keeps it from coming."""
        request, transport = self.request, self._transport
        if request is None or transport is None or self.deaf_s is not None:
            return False
        return not request.content.is_eof() and transport.is_reading()

    def cut(self) -> None:
        """End it at once; what is queued is lost."""
        (self._transport or self._raw).abort()

    def turn_deaf(self) -> None:
        """Hear no more of a request that was refused: nobody reads the rest of its body."""
        self.deaf_s = self._guard.now_s()
        if self._transport is not None:
            self._transport.pause_reading()

    # ------------------------------------------------------------------------------------------- asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        name = transport.get_extra_info("peername")
        self.address = network_of(name[0]) if name else ""
        if not self._guard.admit(self):
            transport.abort()
        elif self._guard.security.context is None:
            self._open(transport)
        else:
            transport.pause_reading()  # Until TLS reads for us.
            self._guard.begin(self._secure(self._guard.security.context))

    def data_received(self, data: bytes) -> None:
        self.progress.received(len(data), self._guard.now_s())
        if self.deaf_s is not None:
            return
        if self.inner is None:
            self._early.append(data)
        else:
            self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        if self._transport is not self._raw:
            self.cut()  # Over TLS nobody hears who has said goodbye; asyncio would take, and drop, what is still said.
        return None if self.inner is None else self.inner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        if self.inner is not None:
            self.inner.connection_lost(error)
        self._guard.gone(self)

    def pause_writing(self) -> None:
        self.progress.is_unread(self._guard.now_s())
        if self.inner is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.progress.is_read()
        if self.inner is not None:
            self.inner.resume_writing()

    # ------------------------------------------------------------------------------------------- opening

    async def _secure(self, context: ssl.SSLContext) -> None:
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._raw,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._guard.limits.handshake_s_max,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S_MAX,
            )
        except OSError as error:  # TLS's own errors, too
            why = explained_to_syncer(error)
            if why is not None:
                self._guard.refuse(self, Refused.TLS, why)
            transport = None
        if transport is not None and not transport.is_closing() and self.visitor is not None:
            private = self._raw.get_protocol()
            assert isinstance(private, asyncio.BufferedProtocol), "TLS is asyncio's"
            self._raw.set_protocol(Unhurried(private, self._raw))
            self._open(transport)
        else:
            self._raw.abort()
            self._guard.gone(self)  # asyncio does not say so if the connection is lost in the middle of a handshake.

    def _open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.progress.opened(self._guard.now_s())
        self.inner = self._guard.serve(self)
        self.inner.connection_made(transport)
        early, self._early = self._early, []
        for data in early:
            self.inner.data_received(data)


class Unhurried(asyncio.BufferedProtocol):
    """Between a connection and its TLS, which writes on when the connection has room again.

    If asyncio was still at the last write then, and the client is gone, it would end the connection twice, and say so
    with a traceback.
    """

    def __init__(self, inner: asyncio.BufferedProtocol, transport: asyncio.Transport) -> None:
        self._inner = inner
        self._transport = transport

    def get_buffer(self, sizehint: int) -> Any:
        return self._inner.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._inner.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """In the next turn of the loop."""
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self._transport.is_closing():
            self._inner.resume_writing()


class Guard:
    """All connections of one port.

    Args:
        security: what the port demands.
        audit: where refusals are told.
        limits: how much is too much.
        now_s: monotonic seconds.
    """

    def __init__(self, security: ServerSecurity, audit: Audit, limits: Limits, now_s: Callable[[], float]) -> None:
        self.security = security
        self.limits = limits
        self.now_s = now_s
        self.visitors = Visitors(limits)
        self._audit = audit
        self._lines: set[Line] = set()
        self._unproven: dict[Line, None] = {}
        """In the order in which they have come."""
        self._by_inner: dict[asyncio.Protocol, Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._serve: Callable[[], asyncio.Protocol]

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Line]:
        return iter(tuple(self._lines))

    # ------------------------------------------------------------------------------------------- the port

    async def listen(self, serve: Callable[[], asyncio.Protocol], endpoint: Endpoint, timeouts: Timeouts) -> Endpoint:
        """Accept connections; the endpoint with the port it has got.

        Args:
            serve: makes the protocol of a connection.
            endpoint: where.
            timeouts: after which the system gives up a silent peer.

        Raises:
            UsageError: that cannot be.
        """
        self._serve = serve
        with port_errors(endpoint):
            server = await asyncio.get_running_loop().create_server(
                lambda: Line(self), endpoint.host, endpoint.port, backlog=BACKLOG
            )
        self._server = server
        for listener in server.sockets:  # What is accepted inherits its options.
            watch_over(listener, timeouts)
        return replace(endpoint, port=server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept nobody any more. Who is connected stays."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what belongs to one connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------------------- connections

    def admit(self, line: Line) -> bool:
        """Whether one more may connect."""
        limits, now_s = self.limits, self.now_s()
        visitor = self.visitors.at(line.address, now_s)
        sentence = ""
        if len(self._lines) >= limits.connections_max:
            sentence = f"{limits.connections_max} connections are open"
        elif visitor.connections >= limits.connections_per_address_max:
            sentence = f"{limits.connections_per_address_max} connections of this address are open"
        elif visitor.unproven >= limits.unproven_per_address_max:
            sentence = f"{limits.unproven_per_address_max} connections of this address have made no request"
        elif not visitor.accepts.take(now_s):
            sentence = "this address opens too many connections a second"
        if sentence:
            self.refuse(line, Refused.TOO_MANY_CONNECTIONS, sentence)
            return False
        if len(self._unproven) >= limits.unproven_max:
            oldest = next(iter(self._unproven))
            self.refuse(oldest, Refused.TOO_MANY_CONNECTIONS, "others have come, and it has made no request")
            oldest.cut()
            self._prove(oldest)
        line.visitor = visitor
        visitor.connections += 1
        visitor.unproven += 1
        self._lines.add(line)
        self._unproven[line] = None
        return True

    def serve(self, line: Line) -> asyncio.Protocol:
        """What speaks HTTP on it."""
        inner = self._serve()
        self._by_inner[inner] = line
        return inner

    def gone(self, line: Line) -> None:
        """It has ended."""
        self._prove(line)
        self._lines.discard(line)
        if line.inner is not None:
            self._by_inner.pop(line.inner, None)
        if line.visitor is not None:
            line.visitor.connections -= 1
            line.visitor = None

    def _prove(self, line: Line) -> None:
        if line in self._unproven:
            del self._unproven[line]
            assert line.visitor is not None, "it was admitted"
            line.visitor.unproven -= 1

    def proved(self, line: Line, identity: Identity) -> None:
        """It has made a request that it may make."""
        line.identity = identity
        line.progress.is_proven = True
        self._prove(line)

    def refuse(self, line: Line, reason: Refused, sentence: str) -> None:
        """Tell the audit trail."""
        self._audit.refused(reason, line.peer, sentence)

    def line_of(self, request: web.BaseRequest) -> Line | None:
        """The connection that a request came on; None: it has ended meanwhile."""
        return self._by_inner.get(request.protocol)

    @contextmanager
    def request(self, line: Line, request: web.BaseRequest) -> Iterator[None]:
        """While it is answered."""
        line.progress.begins(self.now_s())
        line.request = request
        try:
            yield
        finally:
            line.request = None
            line.progress.ends()

    def sweep(self) -> None:
        """Cut whoever takes too long, or whose token is no longer one. To be called every second or so."""
        now_s = self.now_s()
        for line in self:
            why = line.progress.overdue(now_s, line.is_wanted)
            if why is not None:
                self.refuse(line, Refused.TOO_SLOW, why)
                line.cut()
            elif line.deaf_s is not None and now_s - line.deaf_s > self.limits.refused_s_max:
                line.cut()
            elif line.identity is not None and not self.security.is_valid(line.identity):
                self.refuse(line, Refused.WRONG_TOKEN, "its token was taken away, or has expired")
                line.cut()


class HttpLog(logging.Handler):
    """What aiohttp's protocol says: the audit trail is told of who does not speak HTTP, the rest is ours."""

    def __init__(self, audit: Audit) -> None:
        super().__init__(logging.DEBUG)
        self._audit = audit

    def emit(self, record: logging.LogRecord) -> None:
        error = None if record.exc_info is None else record.exc_info[1]
        if isinstance(error, BadHttpMessage):
            address = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
            self._audit.refused(Refused.MALFORMED, Peer(network_of(address)), f"not HTTP: {error.message}")
        elif record.levelno >= logging.WARNING:
            _log.handle(record)


def http_log(audit: Audit) -> logging.Logger:
    """A logger for aiohttp's protocols."""
    logger = logging.Logger(f"{__name__}.http", logging.DEBUG)
    logger.addHandler(HttpLog(audit))
    return logger


async def sweeping(work: Callable[[], None], every_s: float) -> None:
    """Call ``work`` again and again."""
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(every_s)
            work()

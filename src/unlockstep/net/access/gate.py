"""In front of every resource: who asks, may they, and is it too much? A refusal is one sentence and one audit line.

Decides, in this order: too many requests; a name that is not this machine's (``Host``); a page of another site
(``Origin``); no token, or a wrong one; a role that may not. Does not decide which connections there are (``guard``),
what each role may do (``roles``), nor what a request that passes amounts to (``resources``).

*Pages.* A browser sends what a page of anybody's asks it to, also to this machine. It names the page's site in
``Origin``, so requests that change something, and WebSockets, are refused if that is not the syncer itself. And a site
may point its own name at 127.0.0.1; then ``Host`` is that name. Where a token is asked for, no page has it; where none
is, and only this machine is meant, only the names of this machine are let pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from unlockstep.net.access.answers import HUNG_UP, SENTENCE
from unlockstep.net.access.audit import Audit, Peer, Refused
from unlockstep.net.access.guard import Guard, Line, http_log, sweeping
from unlockstep.net.access.limits import Limits, fitting
from unlockstep.net.access.roles import OBSERVES, PERMISSIONS, Permissions, Role, may_do, needs_token
from unlockstep.net.access.security import Identity, ServerSecurity, TokenRefused
from unlockstep.net.wire.api import CONTROL_ROUTE, STREAM_BUFFER_BYTES
from unlockstep.net.wire.listening import Endpoint
from unlockstep.net.wire.names import is_loopback
from unlockstep.net.wire.sockets import open_files_max
from unlockstep.net.wire.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RETRY_S = 1
"""What a client that asks too much is told to wait, seconds."""

PEER = web.RequestKey("peer", Peer)
"""Under which ``resources`` find who asks."""

_CHANGES_NOTHING = ("GET", "HEAD")

_HARDENING = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_REASONS = {
    404: Refused.NOT_THERE,
    408: Refused.TOO_SLOW,
    409: Refused.NOT_THERE,
    410: Refused.NOT_THERE,
    413: Refused.TOO_LARGE,
    422: Refused.UNSOUND,
    429: Refused.TOO_MANY_REQUESTS,
    403: Refused.NOT_ALLOWED,
}
"""Why a resource has refused, by status; any other below 500 is malformed."""


class _Refusal(Exception):
    def __init__(self, reason: Refused, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.reason, self.status = reason, status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Gate:
    """Of one port.

    Args:
        security: what is demanded.
        audit: where refusals are told.
        permissions: what each role may do there.
        limits: how much is too much.
        now_s: monotonic seconds.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        security: ServerSecurity,
        audit: Audit,
        permissions: Permissions = PERMISSIONS,
        limits: Limits | None = None,
        now_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.guard = Guard(security, audit, limits or fitting(Limits(), open_files_max()), now_s)
        self._security = security
        self.audit = audit
        self._permissions = permissions
        self._limits = self.guard.limits
        self._now_s = now_s
        self._pause = pause
        self._is_for_this_machine = False

    @asynccontextmanager
    async def open(
        self, app: web.Application, endpoint: Endpoint, timeouts: Timeouts, shutdown_s: float
    ) -> AsyncIterator[Endpoint]:
        """Listen; the endpoint with the port it has got. At the end of the block nobody is connected any more.

        Args:
            app: what answers; ``middleware`` is to be its first.
            endpoint: where.
            timeouts: of the syncer's end of every link.
            shutdown_s: given to requests under way at the end.

        Raises:
            UsageError: the endpoint cannot be listened on.
        """
        self._is_for_this_machine = is_loopback(endpoint.host)
        app.on_response_prepare.append(_harden)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=http_log(self.audit),
            handle_signals=False,
            shutdown_timeout=shutdown_s,
            keepalive_timeout=self._limits.idle_s_max,
            read_bufsize=STREAM_BUFFER_BYTES,
            max_line_size=self._limits.header_bytes_max,
            max_field_size=self._limits.header_bytes_max,
            max_headers=self._limits.headers_max,
            auto_decompress=False,
        )
        await runner.setup()
        assert runner.server is not None, "the runner is set up"
        sweep = asyncio.create_task(sweeping(self._sweep, self._limits.sweep_s))
        try:
            yield await self.guard.listen(runner.server, endpoint, timeouts)
        finally:
            sweep.cancel()
            self.guard.close()
            await runner.cleanup()
            self.audit.flush()

    # ------------------------------------------------------------------------------------------- every request

    @property
    def middleware(self) -> Middleware:
        """The first of an application."""

        @web.middleware
        async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
            line = self.guard.line_of(request)
            if line is None:
                return web.Response(status=400)  # Nobody is there to read it.
            with self.guard.request(line, request):
                try:
                    identity = self._judge(request, line)
                except _Refusal as refusal:
                    return await self._refuse(request, line, refusal)
                if identity is not NOBODY:
                    self.guard.proved(line, identity)
                request[PEER] = Peer(line.address, identity)
                response = await handler(request)
                self._note(request, response)
                return response

        return gate

    def _judge(self, request: web.Request, line: Line) -> Identity:
        """Who asks. Raises _Refusal if they may not."""
        if line.visitor is None or not line.visitor.requests.take(self._now_s()):
            raise _Refusal(
                Refused.TOO_MANY_REQUESTS, 429, "too many requests from this address; wait", Retry_After=str(RETRY_S)
            )
        if not all(value.isascii() for value in request.headers.values()):
            raise _Refusal(Refused.MALFORMED, 400, "a field of the head holds something else than ASCII")
        self._require_own_page(request)
        method, route = request.method, _route_of(request)
        is_open = not needs_token(self._permissions, method, route)
        shown = request.headers.getall("Authorization", [])
        try:
            identity = self._security.identify(shown[0] if len(shown) == 1 else None)
        except TokenRefused as refused:
            if is_open and not shown:
                return NOBODY
            reason = Refused.WRONG_TOKEN if shown else Refused.NO_TOKEN
            raise _Refusal(reason, 401, str(refused), WWW_Authenticate='Bearer realm="unlockstep"') from None
        if route and not may_do(self._permissions, method, route, identity.role):
            line.identity = identity
            raise _Refusal(
                Refused.NOT_ALLOWED,
                403,
                f"the token {identity.token!r} has the role {identity.role.value}, which may not do this; use another",
            )
        return identity

    def _require_own_page(self, request: web.Request) -> None:
        if self._is_for_this_machine and self._security.tokens is None:
            host = _host_of(f"//{request.headers.get('Host', '')}")
            if not is_loopback(host):
                raise _Refusal(
                    Refused.FOREIGN_HOST,
                    421,
                    f"this syncer is for this machine only and is not called {host!r}; write localhost or 127.0.0.1, "
                    "or start it with tokens (--secrets)",
                )
        origin = request.headers.get("Origin")
        if origin is None or (request.method in _CHANGES_NOTHING and "Upgrade" not in request.headers):
            return
        if urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower():
            raise _Refusal(Refused.FOREIGN_ORIGIN, 403, "a page of another site may not do this")

    async def _refuse(self, request: web.Request, line: Line, refusal: _Refusal) -> web.StreamResponse:
        self.audit.refused(refusal.reason, line.peer, f"{refusal} ({_described(request)})")
        if not request.content.is_eof():
            line.turn_deaf()
        visitor = line.visitor
        if refusal.reason is Refused.WRONG_TOKEN and visitor is not None:
            wait_s = visitor.failed(self._now_s())
            if wait_s and visitor.waiting >= self._limits.failures_waiting_max:
                line.cut()
            elif wait_s:
                visitor.waiting += 1
                try:
                    await self._pause(wait_s)
                finally:
                    visitor.waiting -= 1
        body = msgspec.json.encode({"error": str(refusal)})
        response = web.Response(
            body=body, status=refusal.status, content_type="application/json", headers=refusal.headers
        )
        response.force_close()
        return response

    def _note(self, request: web.Request, response: web.StreamResponse) -> None:
        """A resource has refused it."""
        status = response.status
        if 400 <= status < 500 and not request.get(HUNG_UP, False):
            reason = _REASONS.get(status, Refused.MALFORMED)
            sentence = request.get(SENTENCE, response.reason or "")
            self.audit.refused(reason, request[PEER], f"{sentence} ({_described(request)})")

    def _sweep(self) -> None:
        self._security.refresh()
        self.guard.sweep()
        self.audit.look()


NOBODY = Identity("", Role.OBSERVER)
"""Who asks for what needs no token, and has none."""


async def _harden(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HARDENING.items():
        response.headers.setdefault(name, value)


def _route_of(request: web.Request) -> str:
    """The pattern that its path fits; empty if there is none."""
    resource = request.match_info.route.resource
    route = "" if resource is None else resource.canonical
    return route + OBSERVES if route == CONTROL_ROUTE and "observer" in request.query else route


def _described(request: web.Request) -> str:
    """Without its query, which may be long."""
    return f"{request.method} {request.path}"


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""

"""The syncer's web resources: what each request must look like, and how it is answered.

Decides status codes and sentences: whatever a peer sends, it gets a 4xx with one sentence and the run goes on. What a
well-formed request means is the service's and the core's business; what carries a body is in ``bodies``. Paths and
limits are in ``api``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.typedefs import Middleware

from unlockstep import __version__, config
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.ids import PROTOCOL_VERSION, is_learner_name
from unlockstep.core.messages import MESSAGE_BYTES_MAX, Join, decode_learner_message
from unlockstep.net.access.answers import Refusal, json, sentences
from unlockstep.net.access.audit import Refused
from unlockstep.net.access.gate import PEER
from unlockstep.net.access.limits import Bucket
from unlockstep.net.access.roles import may_say
from unlockstep.net.syncer import metrics
from unlockstep.net.syncer.asked import require_run
from unlockstep.net.syncer.bodies import Bodies
from unlockstep.net.syncer.connection import Connection
from unlockstep.net.syncer.page import PAGE, PAGE_HEADERS
from unlockstep.net.syncer.probe import Probes
from unlockstep.net.wire import api
from unlockstep.net.wire.sockets import carry_messages

if TYPE_CHECKING:
    from unlockstep.net.syncer.service import SyncerService

MESSAGES_PER_S, MESSAGES_BURST = 2000.0, 10_000.0
"""Of one control connection: a learner says something with every step."""

_log = logging.getLogger(__name__)


def application(service: SyncerService, gate: Middleware) -> web.Application:
    """Every resource of ``api``, for one run, behind a ``Gate``'s middleware."""
    resources, bodies, probes = _Resources(service), Bodies(service), Probes(service.timeouts)
    app = web.Application(middlewares=[gate, sentences])
    app.add_routes(
        [
            web.get("/", resources.page),
            web.get("/healthz", resources.health),
            web.get("/metrics", resources.metrics),
            web.get(api.ABOUT_ROUTE, resources.about),
            web.get(api.PROBE_ROUTE, probes.get),
            web.put(api.PROBE_ROUTE, probes.put),
            web.get(api.RUNS_ROUTE, resources.runs),
            web.get(api.STATUS_ROUTE, resources.status),
            web.get(api.CONFIG_ROUTE, resources.config),
            web.get(api.CONTROL_ROUTE, resources.control),
            web.post(api.STOP_ROUTE, resources.stop),
            web.get(api.VERSION_ROUTE, bodies.get_version),
            web.get(api.VERSION_DIGESTS_ROUTE, bodies.get_digests),
            web.put(api.VERSION_ROUTE, bodies.put_seed),
            web.put(api.CONTRIBUTION_ROUTE, bodies.put_contribution),
            web.put(api.STATE_ROUTE, bodies.put_state),
            web.get(api.STATE_ROUTE, bodies.get_state),
            web.get(api.STATE_DIGESTS_ROUTE, bodies.get_state_digests),
        ]
    )
    return app


class _Resources:
    def __init__(self, service: SyncerService) -> None:
        self._service = service

    # ------------------------------------------------------------------------------------------- for people and tools

    async def page(self, request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html", headers=PAGE_HEADERS)

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def metrics(self, request: web.Request) -> web.Response:
        service = self._service
        text = metrics.prometheus(service.status(), service.bytes_in, service.bytes_out)
        return web.Response(body=text.encode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def about(self, request: web.Request) -> web.Response:
        runs = (self._service.config.run.name,)
        return json(api.About(__version__, PROTOCOL_VERSION, time.time_ns(), runs, request[PEER].identity.role.value))

    async def runs(self, request: web.Request) -> web.Response:
        return json([self._service.config.run.name])

    async def status(self, request: web.Request) -> web.Response:
        require_run(self._service, request)
        return json(self._service.status())

    async def config(self, request: web.Request) -> web.Response:
        require_run(self._service, request)
        return web.Response(text=config.dumps(self._service.config), content_type="application/toml")

    # ------------------------------------------------------------------------------------------- control

    async def control(self, request: web.Request) -> web.StreamResponse:
        require_run(self._service, request)
        observer = request.query.get("observer")
        if observer is not None and not is_learner_name(observer):
            raise Refusal(400, "observer must be a name of letters, digits, '_' and '-'")
        timeouts = self._service.timeouts
        socket = web.WebSocketResponse(
            max_msg_size=MESSAGE_BYTES_MAX, compress=False, timeout=timeouts.close_s, heartbeat=timeouts.silence_s
        )
        if not socket.can_prepare(request):
            raise Refusal(400, "this is a WebSocket: ask for an upgrade")
        await socket.prepare(request)
        assert request.transport is not None, "the upgrade has just been written to it"
        carry_messages(request.transport.get_extra_info("socket"))
        connection = Connection(socket, request.transport, observer or "", request[PEER])
        pump = asyncio.create_task(connection.pump())
        try:
            await self._converse(socket, connection, is_observer=observer is not None)
        except RemoteProtocolError as error:
            self._service.audit.refused(Refused.MALFORMED, connection.peer, str(error))
            connection.close(str(error), WSCloseCode.PROTOCOL_ERROR)
        finally:
            connection.close()
            self._service.gone(connection)
            await pump
        return socket

    async def _converse(self, socket: web.WebSocketResponse, connection: Connection, is_observer: bool) -> None:
        if is_observer:
            self._service.observe(connection)
            hear = self._service.hear_observer
        else:
            join = await _first_message(socket, self._service.timeouts.reply_s)
            connection.name = join.learner
            self._service.join(connection, join)
            hear = self._service.hear
        now_s = asyncio.get_running_loop().time
        allowance = Bucket(MESSAGES_PER_S, MESSAGES_BURST, now_s())
        async for frame in socket:
            while not allowance.take(now_s()):  # Who says more is heard no faster: its messages wait where it is.
                await asyncio.sleep(1 / MESSAGES_PER_S)
            if frame.type is WSMsgType.ERROR and isinstance(frame.data, TimeoutError):
                _log.info("%s gives no sign of life; its connection is given up", connection.name)
                return
            if frame.type is not WSMsgType.BINARY:
                raise RemoteProtocolError("a message is a binary frame")
            message = decode_learner_message(frame.data)
            if not may_say(type(message), connection.peer.identity.role):
                raise RemoteProtocolError(f"{type(message).__name__} is not for this token's role to say")
            hear(connection, message)

    async def stop(self, request: web.Request) -> web.Response:
        require_run(self._service, request)
        self._service.end(request[PEER])
        return json({"outcome": "stopping"}, 202)


async def _first_message(socket: web.WebSocketResponse, reply_s: float) -> Join:
    try:
        frame = await socket.receive(timeout=reply_s)
    except TimeoutError:
        raise RemoteProtocolError(f"no Join came within {reply_s:g} s") from None
    if frame.type is not WSMsgType.BINARY:
        raise RemoteProtocolError("the first message of a learner is Join, in a binary frame")
    message = decode_learner_message(frame.data)
    if not isinstance(message, Join):
        raise RemoteProtocolError(f"the first message of a learner is Join, not {type(message).__name__}")
    return message

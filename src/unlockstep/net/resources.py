"""The syncer's web resources: what each request must look like, and how it is answered.

Decides status codes and sentences: whatever a peer sends, it gets a 4xx with one sentence and the run goes on. What a
well-formed request means is the service's and the core's business. Paths and limits are in ``api``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, TypeVar

import aiohttp
import msgspec
from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.typedefs import Handler

from unlockstep import __version__, config
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError
from unlockstep.core.ids import PROTOCOL_VERSION, is_learner_name
from unlockstep.core.messages import (
    MESSAGE_BYTES_MAX,
    ContributionArrived,
    Join,
    SeedArrived,
    StateArrived,
    StateLost,
    decode_learner_message,
)
from unlockstep.core.reasons import RefusalReason
from unlockstep.net import api, metrics
from unlockstep.net.connection import Connection
from unlockstep.net.courier import pieces, read_body
from unlockstep.net.page import PAGE
from unlockstep.net.probe import Probes
from unlockstep.storehouse import NO_PAYLOAD, Inspection, Storehouse

if TYPE_CHECKING:
    from unlockstep.net.syncer_service import SyncerService

Query = TypeVar("Query")

_log = logging.getLogger(__name__)


class Refusal(Exception):
    """Answered as it stands."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def application(service: SyncerService) -> web.Application:
    """Every resource of ``api``, for one run."""
    resources, probes = _Resources(service), Probes(service.timeouts)
    app = web.Application(middlewares=[_sentences])
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
            web.get(api.VERSION_ROUTE, resources.get_version),
            web.put(api.VERSION_ROUTE, resources.put_seed),
            web.put(api.CONTRIBUTION_ROUTE, resources.put_contribution),
            web.put(api.STATE_ROUTE, resources.put_state),
            web.get(api.STATE_ROUTE, resources.get_state),
        ]
    )
    return app


@web.middleware
async def _sentences(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every refusal, ours or the library's, into JSON."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return _json({"error": str(refusal)}, refusal.status)
    except web.HTTPException as refusal:
        return _json({"error": f"{request.method} {request.path}: {refusal.reason}"}, refusal.status)
    except RemoteProtocolError as error:
        return _json({"error": str(error)}, 400)
    except TimeoutError:
        return _json({"error": "the body stopped coming"}, 408)
    except (aiohttp.ClientError, ConnectionError, aiohttp.http_exceptions.HttpProcessingError) as error:
        return _json({"error": f"the body could not be read: {error}"}, 400)
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return _json({"error": "the syncer has failed; see its log"}, 500)


class _Resources:
    def __init__(self, service: SyncerService) -> None:
        self._service = service

    # ------------------------------------------------------------------------------------------- for people and tools

    async def page(self, request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def metrics(self, request: web.Request) -> web.Response:
        service = self._service
        text = metrics.prometheus(service.status(), service.bytes_in, service.bytes_out)
        return web.Response(body=text.encode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def about(self, request: web.Request) -> web.Response:
        runs = (self._service.config.run.name,)
        return _json(api.About(__version__, PROTOCOL_VERSION, time.time_ns(), runs, role="admin"))

    async def runs(self, request: web.Request) -> web.Response:
        return _json([self._service.config.run.name])

    async def status(self, request: web.Request) -> web.Response:
        self._require_run(request)
        return _json(self._service.status())

    async def config(self, request: web.Request) -> web.Response:
        self._require_run(request)
        return web.Response(text=config.dumps(self._service.config), content_type="application/toml")

    # ------------------------------------------------------------------------------------------- control

    async def control(self, request: web.Request) -> web.StreamResponse:
        self._require_run(request)
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
        connection = Connection(socket, request.transport, observer or "")
        pump = asyncio.create_task(connection.pump())
        try:
            await self._converse(socket, connection, is_observer=observer is not None)
        except RemoteProtocolError as error:
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
        async for frame in socket:
            if frame.type is WSMsgType.ERROR and isinstance(frame.data, TimeoutError):
                _log.info("%s gives no sign of life; its connection is given up", connection.name)
                return
            if frame.type is not WSMsgType.BINARY:
                raise RemoteProtocolError("a message is a binary frame")
            hear(connection, decode_learner_message(frame.data))

    # ------------------------------------------------------------------------------------------- versions

    async def get_version(self, request: web.Request) -> web.StreamResponse:
        storehouse = self._require_storehouse(request)
        fragment, version = _require_fragment(storehouse, request), int(request.match_info["version"])
        found = storehouse.body(fragment, version)
        if found is None:
            newest = storehouse.newest_version(fragment)
            if newest is not None and version <= newest:
                raise Refusal(410, f"version {version} of fragment {fragment} is not retained, {newest} is newest")
            raise Refusal(404, f"fragment {fragment} has no version {version} yet")
        body, digest = found
        headers = {
            "ETag": f'"{digest}"',
            "Cache-Control": "public, max-age=31536000, immutable",
            api.CONTENT_DIGEST: api.content_digest(digest),
        }
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        response = web.StreamResponse(headers=headers)
        response.content_type, response.content_length = api.BODY_TYPE, len(body)
        await response.prepare(request)
        async for piece in pieces(body):
            await response.write(piece)
        await response.write_eof()
        self._service.bytes_out += len(body)
        return response

    async def put_seed(self, request: web.Request) -> web.Response:
        service, storehouse = self._service, self._require_storehouse(request)
        fragment, sender = _require_fragment(storehouse, request), _query(request, api.SeedQuery)
        if int(request.match_info["version"]) != 0:
            raise Refusal(405, "only version 0 is uploaded, all others are computed here")
        _require_run(service, sender.run_id)
        digest = _require_digest(request)
        if storehouse.newest_version(fragment) is not None:
            stored = storehouse.body(fragment, 0)
            if stored is None or stored[1] != digest:
                raise Refusal(409, f"fragment {fragment} has its version 0 already")
            if service.is_seeder(sender.learner, sender.incarnation):
                # Its connection has broken and it seeds from the first fragment on: the core must hear of each again.
                service.receive(SeedArrived(sender.learner, sender.incarnation, fragment, digest))
            return _json({"outcome": "received"})
        if not service.is_seeder(sender.learner, sender.incarnation):
            raise Refusal(409, f"{sender.learner}.{sender.incarnation} was not asked for version 0 of this run")
        body = await self._read(request, sender.learner, storehouse.seed_size(fragment))
        values = await service.in_worker(storehouse.check_seed, fragment, body, digest)
        try:
            notice = await service.in_worker(storehouse.seed, fragment, values)
        except LocalProtocolError as error:  # The same body came twice at once.
            raise Refusal(409, str(error)) from None
        if not service.is_seeder(sender.learner, sender.incarnation):
            raise Refusal(409, f"{sender.learner}.{sender.incarnation} is no longer asked for version 0")
        service.receive(SeedArrived(sender.learner, sender.incarnation, fragment, notice.digest))
        return _json({"outcome": "received"}, 201)

    # ------------------------------------------------------------------------------------------- contributions

    async def put_contribution(self, request: web.Request) -> web.Response:
        service, storehouse = self._service, self._require_storehouse(request)
        round, learner = int(request.match_info["round"]), request.match_info["learner"]
        incarnation = int(request.match_info["incarnation"])
        if not service.knows(learner):
            raise Refusal(403, f"learner {learner} has never joined this run")
        where, digest = _query(request, api.ContributionQuery), _require_digest(request)
        _require_run(service, where.run_id)
        # A learner whose contribution was refused may be asked again in the same round: what it then sends is another
        # upload, told apart by its counts and its digest.
        upload = f"{request.path_qs} {digest}"
        if upload in service.answers:
            return _outcome(*service.answers[upload])
        if where.fragment >= storehouse.layout.fragment_count:
            raise Refusal(404, f"fragment is {where.fragment}, the run has {storehouse.layout.fragment_count}")
        arrived = ContributionArrived(
            learner=learner,
            incarnation=incarnation,
            round=round,
            fragment=where.fragment,
            base_version=where.base_version,
            c_steps=0,
            c_tokens=0,
            tokens=0,
            norm=0.0,
            defect=None,
            payload=NO_PAYLOAD,
        )
        try:
            counts = _query(request, api.CountsQuery)
        except Refusal as refusal:
            inspection = Inspection(RefusalReason.BAD_COUNTS, str(refusal))
            return _outcome(*service.take_contribution(upload, arrived, inspection))
        arrived = msgspec.structs.replace(
            arrived,
            c_steps=counts.c_steps,
            c_tokens=counts.c_tokens,
            tokens=counts.tokens,
            position=counts.position,
            samples=counts.samples,
        )
        size = storehouse.contribution_size(where.fragment)
        if request.content_length is not None and request.content_length != size:
            sentence = f"the body has {request.content_length} bytes, fragment {where.fragment} takes exactly {size}"
            status, _ = service.take_contribution(upload, arrived, Inspection(RefusalReason.WRONG_SIZE, sentence))
            raise Refusal(413 if request.content_length > size else status, sentence)
        body = await self._read(request, learner, size)
        inspection = await service.in_worker(
            storehouse.inspect,
            where.fragment,
            body,
            digest,
            counts.c_steps,
            counts.c_tokens,
            storehouse.norm_bound(where.fragment, counts.c_steps),
        )
        return _outcome(*service.take_contribution(upload, arrived, inspection))

    # ------------------------------------------------------------------------------------------- states of learners

    async def put_state(self, request: web.Request) -> web.Response:
        service = self._service
        self._require_run(request)
        ticket, sender, digest = _ticket(request), _query(request, api.StateQuery), _require_digest(request)
        _require_run(service, sender.run_id)
        moved = service.watch_state(ticket, sender.learner, sender.incarnation)
        moved()
        size, most = request.content_length, service.config.limits.state_bytes_max
        if size is None:
            raise Refusal(411, "state the Content-Length of the body")
        try:
            if size > most:
                raise Refusal(413, f"the state has {size} bytes; limits.state_bytes_max is {most}")
            file = await service.states.receive(ticket, request.content, size, digest, moved)
        except BaseException as error:
            if service.is_donor(ticket, sender.learner, sender.incarnation):
                service.receive(StateLost(ticket, str(error) or "its upload was cut off"))
            raise
        service.bytes_in += size
        service.receive(StateArrived(ticket, file.digest, file.size_bytes))
        return _json({"outcome": "received"}, 201)

    async def get_state(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        self._require_run(request)
        ticket = _ticket(request)
        file = service.states.find(ticket)
        if file is None:
            raise Refusal(404, "there is no such state, or it is here no more")
        response = web.StreamResponse(headers={api.CONTENT_DIGEST: api.content_digest(file.digest)})
        response.content_type, response.content_length = api.BODY_TYPE, file.size_bytes
        await response.prepare(request)
        async for piece in service.states.pieces(file, lambda: service.state_moves(ticket)):
            await response.write(piece)
        await response.write_eof()
        service.bytes_out += file.size_bytes
        return response

    # ------------------------------------------------------------------------------------------- what requests need

    async def _read(self, request: web.Request, learner: str, size: int) -> memoryview:
        if request.content_length is None:
            raise Refusal(411, "state the Content-Length of the body")
        if request.content_length != size:
            status = 413 if request.content_length > size else 400
            raise Refusal(status, f"the body has {request.content_length} bytes, exactly {size} are expected")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise Refusal(415, "bodies travel uncompressed")
        with self._service.upload_place(learner) as free:
            if not free:
                raise Refusal(429, f"learner {learner} has too many uploads under way; wait for one")
            body = await read_body(request.content, size, self._service.timeouts)
        self._service.bytes_in += size
        return body

    def _require_run(self, request: web.Request) -> None:
        name = self._service.config.run.name
        if request.match_info["run"] != name:
            raise Refusal(404, f"there is no run {request.match_info['run']!r} here, only {name!r}")

    def _require_storehouse(self, request: web.Request) -> Storehouse:
        self._require_run(request)
        if self._service.storehouse is None:
            raise Refusal(404, "the run has no parameters yet")
        return self._service.storehouse


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


def _require_run(service: SyncerService, run_id: str) -> None:
    if run_id != service.run_id:
        raise Refusal(403, "this was made for another run of the same name, which this syncer knows nothing of")


def _query(request: web.Request, kind: type[Query]) -> Query:
    try:
        return msgspec.convert(dict(request.query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(400, f"the query is not valid: {error}") from None


def _require_digest(request: web.Request) -> str:
    return api.parse_content_digest(request.headers.get(api.CONTENT_DIGEST, ""))


def _ticket(request: web.Request) -> int:
    return int(request.match_info["ticket"])


def _require_fragment(storehouse: Storehouse, request: web.Request) -> int:
    fragment, count = int(request.match_info["fragment"]), storehouse.layout.fragment_count
    if fragment >= count:
        raise Refusal(404, f"there is no fragment {fragment}, the run has {count}")
    return fragment


def _outcome(status: int, sentence: str) -> web.Response:
    return _json({"error": sentence} if sentence else {"outcome": "received"}, status)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")

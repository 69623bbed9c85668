"""Bodies that come to the syncer and go from it: contributions, versions, states of learners; whole or in parts.

Decides status codes and sentences, and that a body is acted upon once, however often and in however many parts it is
sent. What a body means is the core's and the storehouse's business; how bytes get from a connection into a buffer is
``intake``'s, which buffers there are ``uploads``', how a request is read ``asked``'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from aiohttp import web

from unlockstep.core.digests import digest_of
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError
from unlockstep.core.formats import Packing
from unlockstep.core.messages import ContributionArrived, SeedArrived, StateArrived, StateLost, UploadMeasured
from unlockstep.core.reasons import RefusalReason
from unlockstep.net.access.answers import Refusal, begun, json, parse_query, write
from unlockstep.net.access.audit import Refused
from unlockstep.net.access.gate import PEER
from unlockstep.net.syncer.asked import (
    Part,
    announced_by,
    part_of,
    reader_of,
    require_fragment,
    require_run,
    span_of,
    ticket_of,
)
from unlockstep.net.syncer.intake import CutShort, Damaged, Intake, Moved, Unwritable
from unlockstep.net.syncer.pieces import Pieces
from unlockstep.net.syncer.state_files import FileSink, StateFile
from unlockstep.net.syncer.uploads import Announced, Full, MemorySink, Sink, Upload
from unlockstep.net.wire import api
from unlockstep.net.wire.packing import packed_size_max, unpack
from unlockstep.net.wire.ranges import (
    Grid,
    Span,
    content_range,
)
from unlockstep.net.wire.sockets import carry_bulk, read_largely
from unlockstep.net.wire.timeouts import ProgressWatch
from unlockstep.storehouse import NO_PAYLOAD, Inspection, Storehouse

if TYPE_CHECKING:
    from unlockstep.net.syncer.service import SyncerService

DIGESTS_REMEMBERED_MAX = 64
"""Versions whose chunk digests are remembered; of others they are computed when somebody asks."""

_log = logging.getLogger(__name__)

_HOPELESS = (413, 415, 507)
"""Statuses after which no further chunk helps."""

Answer: TypeAlias = tuple[int, str]
"""Status and sentence; the sentence is empty if all is well."""

Finish: TypeAlias = Callable[[Upload], Awaitable[Answer]]
"""What is to be done with a body that is here whole, once."""

Read: TypeAlias = Callable[[Span], Awaitable[memoryview | bytes]]


class Bodies:
    """Of one syncer."""

    def __init__(self, service: SyncerService) -> None:
        self._service = service
        self._intake = Intake(service.hashers, lambda: service.timeouts)
        self._digests: OrderedDict[str, api.ChunkDigests] = OrderedDict()

    # ------------------------------------------------------------------------------------------- versions

    async def get_version(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        fragment, version, body, digest = self._require_version(request)
        reader = reader_of(request)
        headers = {
            "ETag": f'"{digest}"',
            "Cache-Control": "private, max-age=31536000, immutable",
            api.CONTENT_DIGEST: api.content_digest(digest),
        }
        if any(tag.value in ("*", digest) for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)

        def moved(count: int) -> None:
            service.holds.read(fragment, version, body, digest, service.now_ns)
            service.learner_moves(reader.learner, reader.incarnation, down=count)

        async def read(span: Span) -> memoryview:
            return body[span.start : span.stop]

        moved(0)
        return await self._send(request, len(body), headers, read, moved)

    async def get_digests(self, request: web.Request) -> web.Response:
        _, _, body, digest = self._require_version(request)
        found = self._digests.get(digest)
        if found is None:
            found = self._digests[digest] = await self._service.in_worker(_chunk_digests, body)
            while len(self._digests) > DIGESTS_REMEMBERED_MAX:
                self._digests.popitem(last=False)
        return json(found)

    async def put_seed(self, request: web.Request) -> web.Response:
        service, storehouse = self._service, self._require_storehouse(request)
        fragment, sender = require_fragment(storehouse, request), parse_query(request, api.SeedQuery)
        if int(request.match_info["version"]) != 0:
            raise Refusal(405, "only version 0 is uploaded, all others are computed here")
        self._require_run_id(sender.run_id)
        part = part_of(request)
        announced = announced_by(request, part, sender.learner, sender.incarnation)
        if storehouse.newest_version(fragment) is not None:
            stored, digest = storehouse.body(fragment, 0), str(part.digest)
            is_same = announced.key in service.answers or await service.in_worker(storehouse.is_seed, fragment, digest)
            if stored is None or not is_same:
                raise Refusal(409, f"fragment {fragment} has its version 0 already")
            if service.is_seeder(sender.learner, sender.incarnation):
                # Its connection has broken and it seeds from the first fragment on: the core must hear of each again.
                service.receive(SeedArrived(sender.learner, sender.incarnation, fragment, stored[1]))
            return json({"outcome": "received"})
        if not service.is_seeder(sender.learner, sender.incarnation):
            raise Refusal(409, f"{sender.learner}.{sender.incarnation} was not asked for version 0 of this run")

        async def finish(upload: Upload) -> Answer:
            if not upload.is_sound:
                raise RemoteProtocolError("the body does not have the digest it was sent with")
            values = await service.in_worker(storehouse.check_seed, fragment, _memory(upload))
            try:
                notice = await service.in_worker(storehouse.seed, fragment, values)
            except LocalProtocolError as error:  # Two bodies came at once.
                raise Refusal(409, str(error)) from None
            if not service.is_seeder(sender.learner, sender.incarnation):
                raise Refusal(409, f"{sender.learner}.{sender.incarnation} is no longer asked for version 0")
            service.remember(announced.key, (200, ""))
            service.receive(SeedArrived(sender.learner, sender.incarnation, fragment, notice.digest))
            return 201, ""

        size = storehouse.seed_size(fragment)
        if part.size is not None and part.size != size:
            status = 413 if part.size > size else 400
            raise Refusal(status, f"the body has {part.size} bytes, exactly {size} are expected")
        return await self._take(request, announced, part, self._memory_sink, finish)

    # ------------------------------------------------------------------------------------------- contributions

    async def put_contribution(self, request: web.Request) -> web.Response:
        service, storehouse = self._service, self._require_storehouse(request)
        round, learner = int(request.match_info["round"]), request.match_info["learner"]
        incarnation = int(request.match_info["incarnation"])
        if not service.knows(learner):
            raise Refusal(403, f"learner {learner} has never joined this run")
        where, part = parse_query(request, api.ContributionQuery), part_of(request)
        self._require_run_id(where.run_id)
        # A learner whose contribution was refused may be asked again in the same round: what it then sends is another
        # upload, told apart by its counts and its digest.
        announced = announced_by(request, part, learner, incarnation)
        if announced.key in service.answers:
            return self._repeated(request, announced)
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
            codec=where.codec,
        )
        try:
            counts = parse_query(request, api.CountsQuery)
        except Refusal as refusal:
            inspection = Inspection(RefusalReason.BAD_COUNTS, str(refusal))
            return _outcome(*service.take_contribution(announced.key, arrived, inspection))
        arrived = msgspec.structs.replace(arrived, **msgspec.structs.asdict(counts))
        size = storehouse.contribution_size(where.fragment, where.codec)
        if size is None or where.packing not in (Packing.NONE, service.config.codec.upload_packing):
            sentence = f"this run takes no uploads in {where.codec.value}, packed as {where.packing.value}"
            inspection = Inspection(RefusalReason.MALFORMED, sentence)
            return _outcome(*service.take_contribution(announced.key, arrived, inspection))
        if sentence := _misfit(part.size, size, where):
            inspection, status = Inspection(RefusalReason.WRONG_SIZE, sentence), 413 if (part.size or 0) > size else 422
            return _outcome(*service.take_contribution(announced.key, arrived, inspection, status))

        async def finish(upload: Upload) -> Answer:
            service.receive(UploadMeasured(learner, incarnation, announced.size, upload.took_ns))
            inspection = Inspection(RefusalReason.DIGEST_MISMATCH, "the body does not have the digest it was sent with")
            if upload.is_sound:
                bound = storehouse.norm_bound(where.fragment, counts.c_steps)
                body = _memory(upload)
                inspection = await service.in_worker(_inspected, storehouse, where, body, size, counts, bound)
            return service.take_contribution(announced.key, arrived, inspection)

        return await self._take(request, announced, part, self._memory_sink, finish)

    # ------------------------------------------------------------------------------------------- states of learners

    async def put_state(self, request: web.Request) -> web.Response:
        service = self._service
        self._require_run(request)
        ticket, sender, part = ticket_of(request), parse_query(request, api.StateQuery), part_of(request)
        self._require_run_id(sender.run_id)
        most = service.config.limits.state_bytes_max
        announced = announced_by(request, part, sender.learner, sender.incarnation)
        if announced.key in service.answers:
            return self._repeated(request, announced)
        moved = service.watch_state(ticket, sender.learner, sender.incarnation)
        moved(0)

        def lost(sentence: str) -> None:
            if service.is_donor(ticket, sender.learner, sender.incarnation):
                service.receive(StateLost(ticket, sentence))

        async def finish(upload: Upload) -> Answer:
            assert isinstance(upload.sink, FileSink), "states are written to files"
            upload.sink.close()
            if not upload.is_sound:
                upload.sink.discard()
                sentence = "the state that came is not the one that was sent: its digest is another"
                lost(sentence)
                return 400, sentence
            chunks = upload.chunk_digests if part.digest.chunk_bytes else ()
            service.states.keep(ticket, StateFile(upload.sink.path, part.digest, chunks, announced.size))
            service.remember(announced.key, (201, ""))
            service.receive(StateArrived(ticket, str(part.digest), announced.size))
            return 201, ""

        try:
            if announced.size > most:
                raise Refusal(413, f"the state has {announced.size} bytes; limits.state_bytes_max is {most}")
            return await self._take(request, announced, part, lambda _: service.states.sink(), finish, moved)
        except BaseException as error:
            if not part.digest.chunk_bytes or (isinstance(error, Refusal) and error.status in _HOPELESS):
                lost(str(error) or "its upload was cut off")
            raise

    async def get_state(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        file, ticket, reader = self._require_state(request), ticket_of(request), reader_of(request)

        def moved(count: int) -> None:
            service.state_moves(ticket)
            service.learner_moves(reader.learner, reader.incarnation, down=count)

        with file.path.open("rb") as opened:

            async def read(span: Span) -> bytes:
                return await asyncio.to_thread(os.pread, opened.fileno(), span.size, span.start)

            headers = {"ETag": f'"{file.digest}"', **api.digest_fields(file.digest)}
            return await self._send(request, file.size_bytes, headers, read, moved)

    async def get_state_digests(self, request: web.Request) -> web.Response:
        file = self._require_state(request)
        if not file.chunk_digests:
            raise Refusal(404, "this state has come in one piece, and has one digest")
        return json(api.ChunkDigests(file.digest.chunk_bytes, tuple(each.hex() for each in file.chunk_digests)))

    # ------------------------------------------------------------------------------------------- in

    async def _take(
        self,
        request: web.Request,
        announced: Announced,
        part: Part,
        make_sink: Callable[[int], Sink],
        finish: Finish,
        moved: Moved = lambda count: None,
    ) -> web.Response:
        """Take in what the request brings; if the body is whole with it, ``finish`` it, once, and answer that."""
        service = self._service
        if part.size is None:
            raise Refusal(411, "state the Content-Length of the body")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise Refusal(415, "bodies travel uncompressed")
        try:
            upload = service.uploads.open(announced, make_sink, service.now_ns)
        except Full as full:
            raise Refusal(429, str(full)) from None
        if not upload.is_whole and part.index is not None:
            damage = await self._bring(request, upload, part, part.index, moved)
            if damage:
                return _still_missing(400, upload, damage)
        if not upload.is_whole:
            return _still_missing(202, upload)
        if upload.ending is None:
            upload.ending = asyncio.create_task(self._end(upload, finish))
        return _outcome(*await asyncio.shield(upload.ending))

    async def _bring(self, request: web.Request, upload: Upload, part: Part, index: int, moved: Moved) -> str:
        """What is wrong with the chunk that has come; empty if it is here."""
        service, announced = self._service, upload.announced

        def note(count: int) -> None:
            upload.moved_ns = service.now_ns
            service.bytes_in += count
            service.learner_moves(announced.learner, announced.incarnation, up=count)
            moved(count)

        read_largely(request.transport)
        try:
            await self._intake.take(upload, index, part.digest_here, request.content, note)
        except Damaged as damaged:
            sender = f"{announced.learner}.{announced.incarnation}"
            _log.warning("a body of %s was damaged on its way: %s", sender, damaged)
            return str(damaged)
        except CutShort as cut:
            raise Refusal(408, str(cut)) from None
        except Unwritable as unwritable:
            raise Refusal(507, str(unwritable)) from None
        finally:
            if not announced.digest.chunk_bytes and not upload.is_whole and not upload.is_being_read:
                service.uploads.forget(upload)  # What comes in one piece begins anew.
        return ""

    def _memory_sink(self, size: int) -> MemorySink:
        try:
            return MemorySink(self._service.buffers.take(size, self._service.now_ns))
        except MemoryError:
            raise Refusal(507, f"there is no memory for a body of {size} bytes") from None

    async def _end(self, upload: Upload, finish: Finish) -> Answer:
        """A failure is an answer too: several may wait for it, or nobody."""
        try:
            return await finish(upload)
        except Refusal as refusal:
            return refusal.status, str(refusal)
        except RemoteProtocolError as error:
            return 400, str(error)
        except Exception:
            _log.exception("a body for %s was not acted upon", upload.announced.path)
            return 500, "the syncer has failed; see its log"
        finally:
            self._service.uploads.take(upload)

    def _repeated(self, request: web.Request, announced: Announced) -> web.Response:
        """It is answered as the first time, and has no effect."""
        service, who = self._service, f"{announced.learner}.{announced.incarnation}"
        service.audit.refused(Refused.REPEATED, request[PEER], f"{who} has sent this before ({announced.path})")
        return _outcome(*service.answers[announced.key])

    # ------------------------------------------------------------------------------------------- out

    async def _send(
        self, request: web.Request, size: int, headers: dict[str, str], read: Read, moved: Moved
    ) -> web.StreamResponse:
        """Answer with a body or the part that is asked for."""
        span = span_of(request, size, headers["ETag"])
        response = web.StreamResponse(status=200 if span is None else 206, headers=headers)
        response.headers["Accept-Ranges"] = "bytes"
        if span is None:
            span = Span(0, size)
        else:
            response.headers["Content-Range"] = content_range(span, size)
            response.headers.pop(api.CONTENT_DIGEST, None)  # It is that of the whole.
        response.content_type, response.content_length = api.BODY_TYPE, span.size
        with begun(request):
            await response.prepare(request)
        if request.method == "HEAD":
            return response
        if request.transport is not None:
            carry_bulk(request.transport.get_extra_info("socket"))
        now_s = asyncio.get_running_loop().time
        watch, pieces, at = ProgressWatch(self._service.timeouts, now_s()), Pieces(), span.start
        with begun(request):
            while at < span.stop:
                piece, began_s = await read(Span(at, min(at + pieces.size, span.stop))), now_s()
                async with asyncio.timeout_at(watch.until_s):
                    await write(response, piece)
                at += len(piece)
                pieces.passed(now_s() - began_s)
                watch.moved(len(piece), now_s())
                self._service.bytes_out += len(piece)
                moved(len(piece))
            await response.write_eof()
        return response

    # ------------------------------------------------------------------------------------------- what requests need

    def _require_run(self, request: web.Request) -> None:
        require_run(self._service, request)

    def _require_run_id(self, run_id: str) -> None:
        if run_id != self._service.run_id:
            raise Refusal(403, "this was made for another run of the same name, which this syncer knows nothing of")

    def _require_storehouse(self, request: web.Request) -> Storehouse:
        self._require_run(request)
        if self._service.storehouse is None:
            raise Refusal(404, "the run has no parameters yet")
        return self._service.storehouse

    def _require_version(self, request: web.Request) -> tuple[int, int, memoryview, str]:
        service, storehouse = self._service, self._require_storehouse(request)
        fragment, version = require_fragment(storehouse, request), int(request.match_info["version"])
        found = storehouse.body(fragment, version)
        found = found or service.recent.find(fragment, version) or service.holds.find(fragment, version)
        if found is None:
            newest = storehouse.newest_version(fragment)
            if newest is not None and version <= newest:
                raise Refusal(410, f"version {version} of fragment {fragment} is not retained, {newest} is newest")
            raise Refusal(404, f"fragment {fragment} has no version {version} yet")
        return fragment, version, *found

    def _require_state(self, request: web.Request) -> StateFile:
        self._require_run(request)
        file = self._service.states.find(ticket_of(request))
        if file is None:
            raise Refusal(404, "there is no such state, or it is here no more")
        return file


def _misfit(found: int | None, size: int, where: api.ContributionQuery) -> str:
    """What is wrong with the length of a contribution; empty if nothing is."""
    takes = f"the body has {found} bytes, fragment {where.fragment} takes"
    if where.packing is not Packing.NONE:
        most = packed_size_max(size)
        return f"{takes} at most {most} packed" if found is not None and found > most else ""
    return f"{takes} exactly {size}" if found is not None and found != size else ""


def _inspected(
    storehouse: Storehouse,
    where: api.ContributionQuery,
    body: memoryview,
    size: int,
    counts: api.CountsQuery,
    norm_bound: float,
) -> Inspection:
    """Of a body that is the one announced."""
    try:
        body = unpack(body, where.packing, where.codec, size)
    except RemoteProtocolError as error:
        return Inspection(RefusalReason.MALFORMED, str(error))
    steps, tokens = counts.c_steps, counts.c_tokens
    return storehouse.inspect(where.fragment, body, None, where.codec, steps, tokens, norm_bound)


def _memory(upload: Upload) -> memoryview:
    assert isinstance(upload.sink, MemorySink), "what is looked into is in memory"
    return upload.sink.body


def _chunk_digests(body: memoryview) -> api.ChunkDigests:
    grid = Grid(len(body), api.CHUNK_BYTES)
    chunks = (body[slice(*grid.span(index))] for index in range(grid.count))
    return api.ChunkDigests(api.CHUNK_BYTES, tuple(digest_of(chunk).hex() for chunk in chunks))


def _still_missing(status: int, upload: Upload, error: str = "") -> web.Response:
    return json(api.ChunkAnswer(error=error, upload=upload.token, missing=upload.missing()), status)


def _outcome(status: int, sentence: str) -> web.Response:
    return json({"error": sentence} if sentence else {"outcome": "received"}, status)

"""The learner's way to its syncer: a thread with an event loop, so that training never waits for the network.

::

    training thread ── send, fetch, upload ──> event loop ──> control connection (small messages, in order)
                   <── receiver.deliver ─────             └─> worker threads: subtract, encode, hash, decode
                                                          └─> bulk connections: a few transfers side by side

Decides when to connect again, how many transfers run at once and how often one is tried. Does not decide what is said
(the core behind ``receiver``). Bulk has connections and threads of its own, so no heartbeat queues behind a body.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec

from unlockstep.config import CodecSection
from unlockstep.core.actions import FetchState
from unlockstep.core.chunks import Float32
from unlockstep.core.codec import FragmentCodec, body_digest, fragment_codecs
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND, NEVER_NS
from unlockstep.core.layout import Layout
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Fenced,
    Fetched,
    FetchFailed,
    HandedOver,
    HostFailed,
    JoinRefused,
    LearnerInput,
    LearnerMessage,
    Leave,
    SeedStored,
    StateFetched,
    StateFetchFailed,
    StateNotTaken,
    Stop,
    UploadFailed,
    VersionNotice,
    decode_syncer_message,
    encode,
)
from unlockstep.core.outer_gradient import outer_gradient
from unlockstep.learners.state_body import Donated, decode_state, encode_state
from unlockstep.loop import Contribution
from unlockstep.net import api
from unlockstep.net.control import control_connection
from unlockstep.net.courier import NETWORK_ERRORS, Addresses, VersionReader, client_session, pieces, read_body
from unlockstep.net.link_meter import LinkMeter
from unlockstep.net.sockets import round_trip_s
from unlockstep.net.timeouts import DEFAULTS, Leases, Timeouts

UPLOADS_AT_ONCE_MAX = 2
FETCHES_AT_ONCE_MAX = 4
UPLOAD_ATTEMPTS_MAX = 5
WORKERS = 2

FLUSH_S_MAX = 2.0
"""Given to what is queued or under way when the client is closed, unless it is told otherwise."""

UPLOAD_SHARE = 0.75
"""Of that time, what uploads are given before goodbye is said: after it they would be refused."""

OUTBOX_MESSAGES_MAX = 65_536
"""Messages waiting for a syncer that does not read; with one more the connection is given up."""

_WORTH_REPEATING = (0, 429, 503)
"""Statuses of an upload: no answer, too many at once, not now."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class Receiver(Protocol):
    """What the client drives: ``loop.LearnerLoop``. Its methods are called from the client's thread."""

    def deliver(self, message: LearnerInput) -> None: ...

    def next_deadline_ns(self) -> int: ...

    def on_deadline(self) -> None: ...


class LearnerClient:
    """A ``loop.Link`` over HTTP.

    Args:
        url: of the syncer, ``http://host:port``; several, with commas between them, are tried in turn.
        run: name of the run.
        layout: how the model is cut.
        codec: number formats of the run's bodies.
        now_ns: the receiver's clock, monotonic nanoseconds.
        leases: the settings that every deadline follows from.
        flush_s: given to what is queued or under way when the client is closed, seconds.
    """

    def __init__(
        self,
        url: str,
        run: str,
        layout: Layout,
        codec: CodecSection,
        now_ns: Callable[[], int] = time.monotonic_ns,
        leases: Leases = DEFAULTS,
        flush_s: float = FLUSH_S_MAX,
    ) -> None:
        self._flush_s = flush_s
        self._addresses = Addresses(url)
        leases = replace(leases, has_standby=self._addresses.count > 1)
        self._connected_to = ""
        self._run = run
        self._layout = layout
        self._codec = codec
        self._now_ns = now_ns
        self._uploads = fragment_codecs(layout, codec.upload)
        self._seeds = fragment_codecs(layout, codec.download)
        self._meter = LinkMeter(leases, sum(each.body_size for each in self._seeds))
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run_thread, name="unlockstep-link", daemon=True)
        self._workers = ThreadPoolExecutor(WORKERS, "unlockstep-bulk")
        self._receiver: Receiver
        self._failure: Exception | None = None
        self._payloads = itertools.count()
        self._arrived: dict[int, Float32] = {}
        self._closing = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._retry_s = 0.0
        """Pause before connecting again that the syncer has asked for."""
        self._outbox: deque[bytes] = deque()
        self._outbox_filled = asyncio.Event()
        self._outbox_empty = asyncio.Event()
        self._outbox_empty.set()
        self._upload_places = asyncio.Semaphore(UPLOADS_AT_ONCE_MAX)
        self._fetch_places = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)
        self._handing_over: dict[HandedOver, Contribution] = {}
        """Each at its newest attempt: what becomes of an earlier one is of no interest."""
        self._transfers: set[asyncio.Task[None]] = set()
        self._states: dict[int, Donated] = {}
        self._state_transfers: set[asyncio.Task[None]] = set()
        """Of states, up and down: large, and nobody waits for them at the end."""
        self._waking_ns = NEVER_NS
        self._deadline_moved = asyncio.Event()

    @property
    def timeouts(self) -> Timeouts:
        """Every deadline of this link, as of what is known of it now."""
        return self._meter.timeouts

    # ------------------------------------------------------------------------------------------- from any thread

    def start(self, receiver: Receiver) -> None:
        """Begin to connect; from now on ``receiver`` is told what happens."""
        self._receiver = receiver
        self._thread.start()

    def send(self, message: LearnerMessage) -> None:
        """See ``Link.send``. Raises what has ended the client's thread, if a bug has. Goodbye is said when the uploads
        under way have arrived: after it they would be refused."""
        if isinstance(message, Leave):
            self._call(self._begin, self._send_after_uploads, encode(message))
        else:
            self._call(self._enqueue, encode(message))

    def fetch(self, notice: VersionNotice) -> None:
        """See ``Link.fetch``."""
        self._call(self._begin, self._fetch, notice)

    def upload(self, contribution: Contribution) -> None:
        """See ``Link.upload``."""
        self._call(self._begin, self._upload, contribution)

    def upload_seed(self, run_id: str, learner: str, incarnation: int, fragment: int, values: Float32) -> None:
        """See ``Link.upload_seed``."""
        self._call(self._begin, self._upload_seed, api.SeedQuery(run_id, learner, incarnation), fragment, values)

    def take(self, payload: int) -> Float32:
        """See ``Link.take``."""
        return self._arrived.pop(payload)

    def discard(self, payload: int) -> None:
        """See ``Link.discard``."""
        self._arrived.pop(payload, None)
        self._states.pop(payload, None)

    def upload_state(self, run_id: str, learner: str, incarnation: int, ticket: int, donated: Donated) -> None:
        """See ``Link.upload_state``."""
        self._call(self._begin_aside, self._upload_state, api.StateQuery(run_id, learner, incarnation), ticket, donated)

    def fetch_state(self, action: FetchState) -> None:
        """See ``Link.fetch_state``."""
        self._call(self._begin_aside, self._fetch_state, action)

    def take_state(self, payload: int) -> Donated:
        """See ``Link.take_state``."""
        return self._states.pop(payload)

    def close(self) -> None:
        """Send what is queued or under way, then end. At most ``flush_s`` plus the time a body takes to encode."""
        if self._thread.ident is None:
            self._runner.close()
        else:
            with suppress(RuntimeError):  # The event loop is closed: this is the second call.
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._arrived.clear()

    def _call(self, work: Callable[..., None], *arguments: object) -> None:
        if self._failure is not None:
            raise self._failure
        with suppress(RuntimeError):  # The event loop is closed: as if the syncer were away.
            self._loop.call_soon_threadsafe(work, *arguments)

    # ------------------------------------------------------------------------------------------- the event loop

    def _run_thread(self) -> None:
        try:
            with self._runner:
                self._runner.run(self._main())
        except Exception as error:
            self._failure = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            _log.error("the link to the syncer has failed, which is a bug", exc_info=self._failure)
            with suppress(Exception):
                self._receiver.deliver(HostFailed(f"the link to the syncer has failed: {self._failure}"))

    async def _main(self) -> None:
        async with client_session(self.timeouts) as self._session, asyncio.TaskGroup() as self._tasks:
            self._reader = VersionReader(
                self._session,
                self._addresses,
                self._run,
                self._layout,
                self._codec.download,
                self._workers,
                self._meter,
            )
            steady = [
                self._tasks.create_task(self._stay_connected()),
                self._tasks.create_task(self._keep_deadlines()),
            ]
            await self._closing.wait()
            await self._flush()
            for task in (*steady, *self._transfers, *self._state_transfers):
                task.cancel()

    async def _flush(self) -> None:
        if self._socket is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._flush_s):
                if self._transfers:
                    await asyncio.wait(self._transfers)
                await self._outbox_empty.wait()

    def _deliver(self, message: LearnerInput) -> None:
        self._receiver.deliver(message)
        if self._receiver.next_deadline_ns() < self._waking_ns:
            self._deadline_moved.set()

    async def _keep_deadlines(self) -> None:
        while True:
            self._receiver.on_deadline()
            self._deadline_moved.clear()
            self._waking_ns = self._receiver.next_deadline_ns()
            pause_s = max(0, self._waking_ns - self._now_ns()) / NANOSECONDS_PER_SECOND
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._waking_ns == NEVER_NS else pause_s):
                    await self._deadline_moved.wait()

    # ------------------------------------------------------------------------------------------- control connection

    async def _stay_connected(self) -> None:
        failures = pauses = 0
        while True:
            began_s = self._loop.time()
            try:
                url = self._addresses.at(api.control_path(self._run))
                async with control_connection(url, self._meter, failures) as socket:
                    failures = 0
                    self._leave_others()
                    if await self._converse(socket):
                        return
                _log.warning("the connection to the syncer has ended (code %s); connecting again", socket.close_code)
            except (*NETWORK_ERRORS, RemoteProtocolError) as error:
                _log.warning("no connection to the syncer at %s: %s; trying again", self._addresses, error)
            self._addresses.next()
            failures += 1
            has_lasted = self._loop.time() - began_s > self.timeouts.backoff_s_max
            pauses = 1 if has_lasted else pauses + 1
            if self._retry_s:
                _log.warning("the syncer has shut this learner out; it may join anew in %.3g s", self._retry_s)
            pause_s = self.timeouts.backoff_s_after(pauses)
            await asyncio.sleep(max(self._retry_s, pause_s * random.uniform(0.5, 1.0)))
            self._retry_s = 0.0

    def _leave_others(self) -> None:
        """Another syncer leads: what is under way to the one before, which may be frozen, is given up."""
        before, self._connected_to = self._connected_to, str(self._addresses)
        if before not in ("", self._connected_to):
            for task in (*self._transfers, *self._state_transfers):
                task.cancel()

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        """Until the connection ends; True if the syncer has said that there is nothing to come back for."""
        last_word = False
        self._socket = socket
        writing = asyncio.create_task(self._write(socket))
        try:
            self._deliver(Connected())
            async for frame in socket:
                if frame.type is aiohttp.WSMsgType.ERROR:
                    raise ConnectionError(f"it gives no sign of life ({frame.data})")
                if frame.type is not aiohttp.WSMsgType.BINARY:
                    raise RemoteProtocolError("the syncer sent something else than a binary frame")
                message = decode_syncer_message(frame.data)
                if isinstance(message, Fenced | JoinRefused):
                    self._retry_s = message.retry_ns / NANOSECONDS_PER_SECOND
                last_word = isinstance(message, Stop) or (isinstance(message, JoinRefused) and not message.retry_ns)
                self._deliver(message)
            return last_word
        finally:
            self._socket = None
            writing.cancel()
            self._outbox.clear()
            self._outbox_empty.set()
            self._deliver(Disconnected())

    def _enqueue(self, frame: bytes) -> None:
        if self._socket is None:
            return
        if len(self._outbox) >= OUTBOX_MESSAGES_MAX:
            self._outbox.clear()
            self._begin(self._hang_up)
            return
        self._outbox.append(frame)
        self._outbox_filled.set()
        self._outbox_empty.clear()

    async def _send_after_uploads(self, frame: bytes) -> None:
        under_way = self._transfers - {asyncio.current_task()}
        if under_way:
            await asyncio.wait(under_way, timeout=self._flush_s * UPLOAD_SHARE)
        self._enqueue(frame)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        with suppress(*NETWORK_ERRORS):  # Whoever reads from the socket sees its end, too.
            while True:
                await self._outbox_filled.wait()
                while self._outbox:
                    await socket.send_bytes(self._outbox.popleft())
                raw = socket.get_extra_info("socket")
                if raw is not None:
                    self._meter.answered(round_trip_s(raw))
                self._outbox_filled.clear()
                self._outbox_empty.set()

    async def _hang_up(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    # ------------------------------------------------------------------------------------------- bodies

    def _begin(self, transfer: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        self._begin_in(self._transfers, transfer, *arguments)

    def _begin_aside(self, transfer: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        self._begin_in(self._state_transfers, transfer, *arguments)

    def _begin_in(
        self,
        transfers: set[asyncio.Task[None]],
        transfer: Callable[..., Coroutine[Any, Any, None]],
        *arguments: object,
    ) -> None:
        if self._closing.is_set():
            return
        task = self._tasks.create_task(transfer(*arguments))
        transfers.add(task)
        task.add_done_callback(transfers.discard)

    async def _in_worker(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await self._loop.run_in_executor(self._workers, work, *arguments)

    async def _fetch(self, notice: VersionNotice) -> None:
        try:
            async with self._fetch_places:
                values = await self._reader.read(notice)
        except (*NETWORK_ERRORS, RemoteProtocolError) as error:
            _log.info("version %d of fragment %d was not fetched: %s", notice.version, notice.fragment, error)
            self._deliver(FetchFailed(notice.fragment, notice.version))
            return
        payload = next(self._payloads)
        self._arrived[payload] = values
        self._deliver(Fetched(notice.fragment, notice.version, notice.digest, payload))

    async def _upload(self, contribution: Contribution) -> None:
        c = contribution
        handed_over = HandedOver(c.round, c.fragment, c.tokens)
        self._handing_over[handed_over] = c
        path = api.contribution_path(self._run, c.round, c.learner, c.incarnation)
        where = api.ContributionQuery(c.run_id, c.fragment, c.base_version)
        query = where, api.CountsQuery(c.c_steps, c.c_tokens, c.tokens, c.position, c.samples)
        params = {name: value for part in query for name, value in msgspec.structs.asdict(part).items()}
        status = 0
        try:
            async with self._upload_places:
                body, digest = await self._in_worker(self._encode_contribution, c)
                status = await self._put(path, params, body, digest)
        finally:
            is_newest = self._handing_over.get(handed_over) is c
            if is_newest:
                del self._handing_over[handed_over]
            if is_newest and status not in api.CONTRIBUTION_TAKEN and not self._closing.is_set():
                self._deliver(UploadFailed(c.round, c.fragment, c.c_tokens, c.tokens))

    async def _upload_seed(self, sender: api.SeedQuery, fragment: int, values: Float32) -> None:
        path = api.version_path(self._run, fragment, 0)
        params = msgspec.structs.asdict(sender)
        async with self._upload_places:
            body, digest = await self._in_worker(_encode, self._seeds[fragment], values)
            status = await self._put(path, params, body, digest)
        if status in api.SEED_TAKEN:
            self._deliver(SeedStored(fragment))
        elif status in api.SEED_UNFIT:
            self._deliver(HostFailed(f"the syncer cannot take fragment {fragment} of the model as version 0"))
        else:
            await self._hang_up()

    async def _upload_state(self, sender: api.StateQuery, ticket: int, donated: Donated) -> None:
        """It takes no upload's place, so that no round waits for it."""
        status = 0
        try:
            body, digest = await self._in_worker(_encode_state, donated, self._layout)
            params = msgspec.structs.asdict(sender)
            status = await self._put(api.state_path(self._run, ticket), params, body, digest)
        finally:
            if status != api.STATE_TAKEN and not self._closing.is_set():
                self._deliver(StateNotTaken(ticket))

    async def _fetch_state(self, action: FetchState) -> None:
        donated = None
        try:
            url = self._addresses.at(api.state_path(self._run, action.ticket))
            async with self._session.get(url) as response:
                if response.status != 200 or response.content_length != action.size_bytes:
                    raise RemoteProtocolError(f"it is not to be had as announced: status {response.status}")
                body = await read_body(response.content, action.size_bytes, self.timeouts)
            donated = await self._in_worker(_decode_state, body, action.digest, self._layout)
        except (*NETWORK_ERRORS, RemoteProtocolError) as error:
            _log.warning("the state of another learner was not fetched: %s", error)
        finally:
            if donated is None and not self._closing.is_set():
                self._deliver(StateFetchFailed(action.ticket))
        if donated is not None:
            payload = next(self._payloads)
            self._states[payload] = donated
            self._deliver(StateFetched(action.ticket, donated.notices, donated.clock, payload))

    async def _put(self, path: str, params: dict[str, Any], body: memoryview, digest: str) -> int:
        """The status the syncer answers with in the end; 0 if it does not."""
        headers = {
            "Content-Length": str(len(body)),
            "Content-Type": api.BODY_TYPE,
            api.CONTENT_DIGEST: api.content_digest(digest),
        }
        status, sentence = 0, ""
        for attempt in range(UPLOAD_ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(self.timeouts.backoff_s_min * 4**attempt * random.uniform(0.5, 1.0))
            try:
                url = self._addresses.at(path)
                async with self._session.put(url, params=params, headers=headers, data=pieces(body)) as response:
                    status, sentence = response.status, await response.text()
            except NETWORK_ERRORS as error:
                status, sentence = 0, str(error)
            if status not in _WORTH_REPEATING:
                break
        if status >= 400 or not status:
            _log.warning("an upload to %s was refused (status %d): %s", path, status, sentence)
        return status

    def _encode_contribution(self, contribution: Contribution) -> tuple[memoryview, str]:
        delta = outer_gradient(contribution.anchor, contribution.local)
        return _encode(self._uploads[contribution.fragment], delta)


def _encode(codec: FragmentCodec, values: Float32) -> tuple[memoryview, str]:
    body = codec.encode(values)
    return body, body_digest(body)


def _encode_state(donated: Donated, layout: Layout) -> tuple[memoryview, str]:
    body = memoryview(encode_state(donated, layout))
    return body, body_digest(body)


def _decode_state(body: memoryview, digest: str, layout: Layout) -> Donated:
    if body_digest(body) != digest:
        raise RemoteProtocolError("it does not have the digest announced")
    return decode_state(body, layout)

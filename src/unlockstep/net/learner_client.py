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
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec

from unlockstep.config import CodecSection
from unlockstep.core.chunks import Float32
from unlockstep.core.codec import FragmentCodec, body_digest, fragment_codecs
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND, NEVER_NS
from unlockstep.core.layout import Layout
from unlockstep.core.messages import (
    MESSAGE_BYTES_MAX,
    Connected,
    Disconnected,
    Fetched,
    FetchFailed,
    HostFailed,
    JoinRefused,
    LearnerInput,
    LearnerMessage,
    Leave,
    SeedStored,
    Stop,
    UploadFailed,
    VersionNotice,
    decode_syncer_message,
    encode,
)
from unlockstep.core.outer_gradient import outer_gradient
from unlockstep.loop import Contribution
from unlockstep.net import api
from unlockstep.net.courier import NETWORK_ERRORS, VersionReader, client_session, pieces

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 5.0
"""Pause before connecting again: doubled after every failure, of which a random half is taken off."""

UPLOADS_AT_ONCE_MAX = 2
FETCHES_AT_ONCE_MAX = 4
UPLOAD_ATTEMPTS_MAX = 5
WORKERS = 2

FLUSH_S_MAX = 2.0
"""Given to what is queued or under way when the client is closed."""

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
        url: of the syncer, ``http://host:port``.
        run: name of the run.
        layout: how the model is cut.
        codec: number formats of the run's bodies.
        now_ns: the receiver's clock, monotonic nanoseconds.
    """

    def __init__(
        self,
        url: str,
        run: str,
        layout: Layout,
        codec: CodecSection,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._url = api.base_url(url)
        self._run = run
        self._layout = layout
        self._codec = codec
        self._now_ns = now_ns
        self._uploads = fragment_codecs(layout, codec.upload)
        self._seeds = fragment_codecs(layout, codec.download)
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
        self._outbox: deque[bytes] = deque()
        self._outbox_filled = asyncio.Event()
        self._outbox_empty = asyncio.Event()
        self._outbox_empty.set()
        self._upload_places = asyncio.Semaphore(UPLOADS_AT_ONCE_MAX)
        self._fetch_places = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)
        self._transfers: set[asyncio.Task[None]] = set()
        self._waking_ns = NEVER_NS
        self._deadline_moved = asyncio.Event()

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

    def close(self) -> None:
        """Send what is queued or under way, then end. At most ``FLUSH_S_MAX`` plus the time a body takes to encode."""
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
        async with client_session(self._url) as self._session, asyncio.TaskGroup() as self._tasks:
            self._reader = VersionReader(self._session, self._run, self._layout, self._codec.download, self._workers)
            steady = [
                self._tasks.create_task(self._stay_connected()),
                self._tasks.create_task(self._keep_deadlines()),
            ]
            await self._closing.wait()
            await self._flush()
            for task in (*steady, *self._transfers):
                task.cancel()

    async def _flush(self) -> None:
        if self._socket is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S_MAX):
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
        pause_s = BACKOFF_S_MIN
        while True:
            began_s = self._loop.time()
            try:
                async with self._session.ws_connect(
                    api.control_path(self._run),
                    timeout=aiohttp.ClientWSTimeout(ws_close=api.CLOSE_S_MAX),
                    max_msg_size=MESSAGE_BYTES_MAX,
                ) as socket:
                    if await self._converse(socket):
                        return
                _log.warning("the connection to the syncer has ended (code %s); connecting again", socket.close_code)
            except (*NETWORK_ERRORS, RemoteProtocolError) as error:
                _log.warning("no connection to the syncer: %s; trying again", error)
            if self._loop.time() - began_s > BACKOFF_S_MAX:
                pause_s = BACKOFF_S_MIN
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, BACKOFF_S_MAX)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        """Until the connection ends; True if the syncer has said that there is nothing to come back for."""
        last_word = False
        self._socket = socket
        writing = asyncio.create_task(self._write(socket))
        try:
            self._deliver(Connected())
            async for frame in socket:
                if frame.type is not aiohttp.WSMsgType.BINARY:
                    raise RemoteProtocolError("the syncer sent something else than a binary frame")
                message = decode_syncer_message(frame.data)
                last_word = isinstance(message, Stop | JoinRefused)
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
            await asyncio.wait(under_way, timeout=FLUSH_S_MAX / 2)
        self._enqueue(frame)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        with suppress(*NETWORK_ERRORS):  # Whoever reads from the socket sees its end, too.
            while True:
                await self._outbox_filled.wait()
                while self._outbox:
                    await socket.send_bytes(self._outbox.popleft())
                self._outbox_filled.clear()
                self._outbox_empty.set()

    async def _hang_up(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    # ------------------------------------------------------------------------------------------- bodies

    def _begin(self, transfer: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        if self._closing.is_set():
            return
        task = self._tasks.create_task(transfer(*arguments))
        self._transfers.add(task)
        task.add_done_callback(self._transfers.discard)

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
        path = api.contribution_path(self._run, c.round, c.learner, c.incarnation)
        where = api.ContributionQuery(c.run_id, c.fragment, c.base_version)
        query = where, api.CountsQuery(c.c_steps, c.c_tokens, c.tokens)
        params = {name: value for part in query for name, value in msgspec.structs.asdict(part).items()}
        async with self._upload_places:
            body, digest = await self._in_worker(self._encode_contribution, c)
            status = await self._put(path, params, body, digest)
        if status not in api.CONTRIBUTION_TAKEN:
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
                await asyncio.sleep(BACKOFF_S_MIN * 4**attempt * random.uniform(0.5, 1.0))
            try:
                async with self._session.put(path, params=params, headers=headers, data=pieces(body)) as response:
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

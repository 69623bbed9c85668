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
from typing import Any, Protocol

import aiohttp

from unlockstep.config import CodecSection
from unlockstep.core.chunks import Float32
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND, NEVER_NS
from unlockstep.core.layout import Layout
from unlockstep.core.messages import (
    MESSAGE_BYTES_MAX,
    Connected,
    Disconnected,
    Fetched,
    FetchFailed,
    LearnerInput,
    LearnerMessage,
    SeedStored,
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
        clock: the receiver's clock, monotonic nanoseconds.
    """

    def __init__(
        self,
        url: str,
        run: str,
        layout: Layout,
        codec: CodecSection,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._url = url
        self._run = run
        self._layout = layout
        self._codec = codec
        self._clock = clock
        self._uploads = [FragmentCodec(layout, p, codec.upload) for p in range(layout.fragment_count)]
        self._seeds = [FragmentCodec(layout, p, codec.download) for p in range(layout.fragment_count)]
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run_thread, name="unlockstep-link", daemon=True)
        self._workers = ThreadPoolExecutor(WORKERS, "unlockstep-bulk")
        self._receiver: Receiver | None = None
        self._failure: BaseException | None = None
        self._payloads = itertools.count()
        self._arrived: dict[int, Float32] = {}
        self._closing = asyncio.Event()
        self._outbox: deque[bytes] = deque()
        self._outbox_filled = asyncio.Event()
        self._outbox_empty = asyncio.Event()
        self._outbox_empty.set()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._upload_places = asyncio.Semaphore(UPLOADS_AT_ONCE_MAX)
        self._fetch_places = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)
        self._transfers: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER_NS

    # ------------------------------------------------------------------------------------------- from any thread

    def start(self, receiver: Receiver) -> None:
        """Begin to connect; from now on ``receiver`` is told what happens."""
        self._receiver = receiver
        self._thread.start()

    def send(self, message: LearnerMessage) -> None:
        """See ``Link.send``. Raises what has ended the client's thread, if a bug has."""
        self._call(self._enqueue, encode(message))

    def fetch(self, notice: VersionNotice) -> None:
        """See ``Link.fetch``."""
        self._call(self._begin, self._fetch, notice)

    def upload(self, contribution: Contribution) -> None:
        """See ``Link.upload``."""
        self._call(self._begin, self._upload, contribution)

    def upload_seed(self, learner: str, incarnation: int, fragment: int, values: Float32) -> None:
        """See ``Link.upload_seed``."""
        self._call(self._begin, self._upload_seed, learner, incarnation, fragment, values)

    def take(self, payload: int) -> Float32:
        """See ``Link.take``."""
        return self._arrived.pop(payload)

    def close(self) -> None:
        """See ``Link.close``. Takes at most ``FLUSH_S_MAX`` plus the time a body takes to encode."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._closing.set)
        if self._thread.ident is None:
            self._runner.close()
        else:
            self._thread.join()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._arrived.clear()

    def _call(self, work: Callable[..., None], *arguments: object) -> None:
        if self._failure is not None:
            raise self._failure
        with suppress(RuntimeError):  # The event loop is closed: as if the syncer were away.
            self._loop.call_soon_threadsafe(work, *arguments)

    # ------------------------------------------------------------------------------------------- the thread

    def _run_thread(self) -> None:
        try:
            with self._runner:
                self._runner.run(self._main())
        except Exception as error:
            _log.exception("the connection to the syncer has failed; this is a bug")
            self._failure = error

    async def _main(self) -> None:
        async with client_session(self._url) as self._session:
            self._reader = VersionReader(self._session, self._run, self._layout, self._codec.download, self._workers)
            connecting = asyncio.create_task(self._stay_connected())
            closing = asyncio.create_task(self._closing.wait())
            await asyncio.wait({connecting, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                await self._flush()
            for task in (connecting, closing, *self._transfers):
                task.cancel()
            await asyncio.gather(connecting, *self._transfers, return_exceptions=True)
            if self._timer is not None:
                self._timer.cancel()
            if not connecting.cancelled():
                connecting.result()

    async def _flush(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S_MAX):
                if self._transfers:
                    await asyncio.wait(self._transfers)
                if self._socket is not None:
                    await self._outbox_empty.wait()
                    await self._socket.close()

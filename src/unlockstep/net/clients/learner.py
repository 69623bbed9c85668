"""The learner's way to its syncer: a thread with an event loop, so that training never waits for the network.

::

    training thread ── send, fetch, upload ──> event loop ──> control line (small messages, in order)
                   <── receiver.deliver ─────             └─> bulk ──> courier, in a process of its own

Decides which thread does what, and how a learner takes its leave. Does not decide what is said (the core behind
``receiver``), when to connect again (``control_line``), nor how bodies are made and travel (``learner_bulk``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from unlockstep.config import CodecSection
from unlockstep.core.actions import FetchState
from unlockstep.core.chunks import Float32
from unlockstep.core.codec import fragment_codecs
from unlockstep.core.ids import NANOSECONDS_PER_SECOND, NEVER_NS
from unlockstep.core.layout import Layout
from unlockstep.core.messages import (
    HandedOver,
    HostFailed,
    Join,
    LearnerInput,
    LearnerMessage,
    Leave,
    VersionNotice,
    Welcome,
    encode,
)
from unlockstep.core.shapes import check_syncer_shape
from unlockstep.learners.state_body import Donated
from unlockstep.loop import Contribution
from unlockstep.net.access.security import NO_SECURITY, ClientSecurity
from unlockstep.net.clients.control_line import ControlLine
from unlockstep.net.clients.learner_bulk import LearnerBulk
from unlockstep.net.clients.sessions import Addresses
from unlockstep.net.courier.child import ChildCarrier, is_available
from unlockstep.net.courier.courier import Carrier, Courier, ThreadCarrier, memory_bytes
from unlockstep.net.courier.jobs import Setting
from unlockstep.net.wire import api
from unlockstep.net.wire.link_meter import LinkMeter
from unlockstep.net.wire.packing import require
from unlockstep.net.wire.timeouts import DEFAULTS, Leases, Timeouts

FLUSH_S_MAX = 2.0
"""Given to what is queued or under way when the client is closed, unless it is told otherwise."""

UPLOAD_SHARE = 0.75
"""Of that time, what uploads are given before goodbye is said: after it they would be refused."""

CourierKind: TypeAlias = Literal["process", "thread"]
"""Where bulk is carried: in a child process, or, where there can be none, in threads; or in threads anyway."""

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
        courier: where bulk is carried.
        security: whom it trusts, and what it shows.
        bytes_per_s: most that bulk may take of the link, each way; None: no limit.

    Raises:
        UsageError: something that the run's settings need is not installed here.
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
        courier: CourierKind = "process",
        security: ClientSecurity = NO_SECURITY,
        bytes_per_s: float | None = None,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._security = security
        self._addresses = Addresses(url)
        self._run = run
        self._layout = layout
        require(codec.upload_packing)
        self._codec = codec
        self._now_ns = now_ns
        model_bytes = sum(each.body_size for each in fragment_codecs(layout, codec.download))
        self._meter = LinkMeter(replace(leases, has_standby=self._addresses.count > 1), model_bytes)
        self._flush_s = flush_s
        self._courier_kind = courier
        self._carrier: Carrier | None = None
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run_thread, name="unlockstep-link", daemon=True)
        self._has_begun = threading.Event()
        self._name = ""
        self._receiver: Receiver
        self._line: ControlLine
        self._bulk: LearnerBulk
        self._failure: Exception | None = None
        self._closing = asyncio.Event()
        self._waking_ns = NEVER_NS
        self._deadline_moved = asyncio.Event()

    @property
    def timeouts(self) -> Timeouts:
        """Every deadline of this link, as of what is known of it now."""
        return self._meter.timeouts

    @property
    def courier_pid(self) -> int | None:
        """Of the process that carries bulk at present, if there is one."""
        return self._carrier.pid if isinstance(self._carrier, ChildCarrier) else None

    # ------------------------------------------------------------------------------------------- from any thread

    def start(self, receiver: Receiver) -> None:
        """Begin to connect; from now on ``receiver`` is told what happens."""
        self._receiver = receiver
        self._thread.start()
        self._has_begun.wait()

    def send(self, message: LearnerMessage) -> None:
        """See ``Link.send``. Raises what has ended the client's thread, if a bug has. Goodbye is said when the uploads
        under way have arrived: after it they would be refused."""
        frame = encode(message)
        if isinstance(message, Join):
            self._name = message.learner
        if isinstance(message, Leave):
            self._call(self._bulk.when_arrived, lambda: self._line.send(frame), self._flush_s * UPLOAD_SHARE)
        else:
            self._call(self._line.send, frame)

    def fetch(self, notice: VersionNotice) -> None:
        """See ``Link.fetch``."""
        self._call(self._bulk.fetch, notice)

    def upload(self, contribution: Contribution) -> None:
        """See ``Link.upload``."""
        self._call(self._bulk.upload, contribution)

    def forget(self, handed_over: HandedOver) -> None:
        """See ``Link.forget``."""
        self._call(self._bulk.forget, handed_over)

    def upload_seed(self, run_id: str, learner: str, incarnation: int, fragment: int, values: Float32) -> None:
        """See ``Link.upload_seed``."""
        self._call(self._bulk.upload_seed, api.SeedQuery(run_id, learner, incarnation), fragment, values)

    def take(self, payload: int) -> Float32:
        """See ``Link.take``."""
        return self._bulk.take(payload)

    def discard(self, payload: int) -> None:
        """See ``Link.discard``."""
        self._bulk.discard(payload)

    def upload_state(self, run_id: str, learner: str, incarnation: int, ticket: int, donated: Donated) -> None:
        """See ``Link.upload_state``."""
        self._call(self._bulk.upload_state, api.StateQuery(run_id, learner, incarnation), ticket, donated)

    def fetch_state(self, action: FetchState) -> None:
        """See ``Link.fetch_state``."""
        self._call(self._bulk.fetch_state, action)

    def take_state(self, payload: int) -> Donated:
        """See ``Link.take_state``."""
        return self._bulk.take_state(payload)

    def close(self) -> None:
        """Send what is queued or under way, then end. At most ``flush_s`` and a moment."""
        if self._thread.ident is None:
            self._runner.close()
            return
        with suppress(RuntimeError):  # The event loop is closed: this is the second call.
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

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
        finally:
            self._has_begun.set()

    async def _main(self) -> None:
        courier = self._new_courier()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._line = line = ControlLine(
                    self._addresses,
                    self._run,
                    self._meter,
                    self._security,
                    self._deliver,
                    lambda url: bulk.turn_to(url),
                )
                packing = self._codec.upload_packing
                self._bulk = bulk = LearnerBulk(
                    self._run, packing, courier, tasks, self._deliver, line.hang_up, line.link_is_known
                )
                await courier.open()
                steady = [tasks.create_task(line.stay_connected()), tasks.create_task(self._keep_deadlines())]
                self._has_begun.set()
                await self._closing.wait()
                if line.is_connected:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._flush_s):
                            await bulk.arrive()
                            await line.all_is_said()
                bulk.close()
                for task in steady:
                    task.cancel()
        finally:
            await courier.close()

    def _new_courier(self) -> Courier:
        layout, shown = self._layout, self._security
        setting = Setting(
            url=str(self._addresses),
            run=self._run,
            tensors=layout.specs(),
            fragments=layout.fragment_count,
            method=layout.method,
            codec=self._codec,
            ca=_absolute(shown.ca),
            cert=_absolute(shown.cert),
            key=_absolute(shown.key),
            token_file=_absolute(shown.token) if isinstance(shown.token, Path) else None,
            bytes_per_s=self._bytes_per_s,
        )
        token = shown.token if isinstance(shown.token, str) else None
        if self._courier_kind == "process" and is_available():
            self._carrier = ChildCarrier(setting, token, memory_bytes(layout, self._codec))
        else:
            self._carrier = ThreadCarrier(setting, token)
        return Courier(setting, layout, self._carrier, self._meter)

    def _deliver(self, message: LearnerInput) -> None:
        check_syncer_shape(message, self._layout.fragment_count)
        if isinstance(message, Welcome):
            self._bulk.reader = api.ReaderQuery(self._name, message.incarnation)
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


def _absolute(path: Path | None) -> str | None:
    """For a process that may be started from elsewhere one day."""
    return None if path is None else str(path.absolute())

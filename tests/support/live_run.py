"""A syncer on a loopback socket, and what a test needs to talk to it: the real service, the real core, real learners.

Decides how a test waits: on what the run log says, never on time.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from unlockstep import config as run_config
from unlockstep.config import CodecSection, OuterSection, RunConfig, RunSection
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.events import Event, StepReported
from unlockstep.core.formats import Codec
from unlockstep.core.ids import PROTOCOL_VERSION
from unlockstep.core.layout import Layout, LayoutMethod, build_layout
from unlockstep.core.messages import (
    HandedOver,
    Join,
    LearnerMessage,
    Progress,
    Pull,
    SyncerMessage,
    Welcome,
    decode_syncer_message,
    encode,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.syncer import SyncerCore
from unlockstep.learners.backend import Backend
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import LearnerLoop
from unlockstep.net.access.audit import Audit
from unlockstep.net.access.gate import Gate
from unlockstep.net.access.limits import Limits
from unlockstep.net.access.security import NO_SECURITY, OPEN, ClientSecurity, ServerSecurity
from unlockstep.net.clients.learner import CourierKind, LearnerClient
from unlockstep.net.syncer.service import SyncerService
from unlockstep.net.wire import api
from unlockstep.net.wire.listening import Endpoint
from unlockstep.net.wire.timeouts import leases_of
from unlockstep.runlog import Header, RunLogWriter

WAIT_S = 20.0
"""A test that waits longer than this has failed."""


_LOGS = itertools.count()


class Tap(RunLogWriter):
    """A run log that tells whoever waits that something was written."""

    def __init__(self, path: Path, header: Header) -> None:
        super().__init__(path, header)
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def write(self, events: Iterable[Event]) -> None:
        events = list(events)
        super().write(events)
        with self._changed:
            self.events.extend(events)
            self._changed.notify_all()

    def wait(self, kind: type[Event], count: int = 1, **fields: object) -> list[Any]:
        """The events of a kind with these fields, once there are ``count``."""

        def found() -> list[Event]:
            matching = [event for event in self.events if isinstance(event, kind)]
            return [e for e in matching if all(getattr(e, name) == value for name, value in fields.items())]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, WAIT_S), f"no {kind.__name__} {fields}"
            return found()

    async def until(self, kind: type[Event], count: int = 1, **fields: object) -> list[Any]:
        """The same, without blocking the event loop."""
        return await asyncio.to_thread(functools.partial(self.wait, kind, count, **fields))


@dataclass
class LiveSyncer:
    """A syncer that listens."""

    config: RunConfig
    service: SyncerService
    log: Tap
    url: str
    gate: Gate

    @property
    def base(self) -> str:
        return self.url + api.status_path(self.config.run.name)

    def puppet(self, session: aiohttp.ClientSession, name: str) -> Puppet:
        """A learner by hand."""
        return Puppet(self.url, self.config, session, name)


def small_config(**sections: Any) -> RunConfig:
    """Two fragments every two steps, numbers in float32, nobody waits in grace."""
    defaults: dict[str, Any] = {
        "run": RunSection(name="small", steps=12),
        "protocol": ProtocolOptions(fragments=2, interval_steps=2, grace_factor=0.0),
        "codec": CodecSection(upload=Codec.FLOAT32, download=Codec.FLOAT32),
        "outer": OuterSection(optimizer="sgd", learning_rate=1.0, momentum=0.0),
    }
    return RunConfig(**(defaults | sections))


@asynccontextmanager
async def live_syncer(
    config: RunConfig,
    folder: Path,
    port: int = 0,
    clock: Callable[[], int] = time.monotonic_ns,
    *,
    host: str = "127.0.0.1",
    security: ServerSecurity = OPEN,
    limits: Limits | None = None,
) -> AsyncIterator[LiveSyncer]:
    """A syncer on loopback, gone when the block ends. Its audit trail is in ``folder``."""
    header = Header(run=config.run.name, config_digest=run_config.digest(config))
    run = config.run
    core = SyncerCore(
        run.name, config.protocol, run.steps, run.tokens, "id", dealing=config.data.dealing, codecs=config.codec.uploads
    )
    with Tap(folder / f"run-{next(_LOGS)}.jsonl", header) as log:
        gate = Gate(security, Audit(folder), limits=limits)
        service = SyncerService(config, core, log, clock, gate=gate)
        async with service.listening(Endpoint(host, port, scheme=security.scheme)) as url:
            yield LiveSyncer(config, service, log, url, gate)


def layout_of(backend: Backend, config: RunConfig) -> Layout:
    return build_layout(backend.tensors(), config.protocol.fragments, LayoutMethod(config.protocol.layout))


# ----------------------------------------------------------------------------------------------- a whole learner


def learner(
    url: str,
    config: RunConfig,
    name: str,
    backend: Backend,
    courier: CourierKind = "thread",
    security: ClientSecurity = NO_SECURITY,
) -> tuple[LearnerClient, LearnerLoop]:
    """A learner that has not connected yet, its backend bound to the run's layout."""
    layout = layout_of(backend, config)
    backend.bind(layout)
    client = LearnerClient(
        url, config.run.name, layout, config.codec, leases=leases_of(config), courier=courier, security=security
    )
    loop = LearnerLoop.create(
        name,
        layout,
        backend,
        client,
        protocol=config.protocol,
        adoption=config.adoption.mode,
        blend_alpha=config.adoption.blend_alpha,
        now_ns=time.monotonic_ns,
    )
    return client, loop


def train(
    syncer: LiveSyncer,
    name: str,
    backend: Backend,
    courier: CourierKind = "thread",
    begun: Callable[[LearnerClient], object] = lambda client: None,
    security: ClientSecurity = NO_SECURITY,
) -> LearnerLoop:
    """Train until the run is over; blocking, for a thread of its own. Never ahead of what the syncer has heard."""
    client, loop = learner(syncer.url, syncer.config, name, backend, courier, security)
    client.start(loop)
    begun(client)
    try:
        steps = 0
        while loop.wait_until_may_step(WAIT_S):
            loop.finish_step(backend.inner_step(loop.clock))
            steps += 1
            syncer.log.wait(StepReported, learner=name, incarnation=loop.incarnation, steps=steps)
        assert loop.done is not None, "the learner neither trains nor ends"
        return loop
    finally:
        client.close()


# ----------------------------------------------------------------------------------------------- a learner by hand


class Puppet:
    """A learner whose every message and body the test writes itself. Its model is ``ToyBackend``'s."""

    def __init__(self, url: str, config: RunConfig, session: aiohttp.ClientSession, name: str) -> None:
        self.name = name
        self.layout = layout_of(ToyBackend(), config)
        self.incarnation = 0
        self.run_id = "id"
        """Of the run it has joined, or says that it has."""
        self.socket: aiohttp.ClientWebSocketResponse
        self._base = url + api.status_path(config.run.name)
        self._config = config
        self._session = session
        self.steps_taken = 0

    async def connect(self) -> None:
        """Open a control connection and say nothing yet."""
        self.socket = await self._session.ws_connect(self._base + "/control")

    async def join(self, again: bool = False, unsettled: tuple[HandedOver, ...] = ()) -> Welcome:
        """Connect and join: as a new start, or ``again`` as the same."""
        await self.connect()
        return await self.introduce(again, unsettled)

    async def introduce(self, again: bool = False, unsettled: tuple[HandedOver, ...] = ()) -> Welcome:
        """Join, on a connection that is open."""
        incarnation, layout = self.incarnation if again else 0, self.layout
        await self.say(
            Join(self.name, incarnation, PROTOCOL_VERSION, layout.digest, layout.specs(), self.run_id, unsettled)
        )
        welcome = await self.hear(Welcome)
        self.run_id = welcome.run_id
        self.incarnation = welcome.incarnation
        return welcome

    async def knock(self) -> SyncerMessage:
        """Ask to join as a new start; whatever the syncer says to it."""
        self.socket = await self._session.ws_connect(self._base + "/control")
        await self.say(Join(self.name, 0, PROTOCOL_VERSION, self.layout.digest, self.layout.specs()))
        return await self.next_message()

    async def observe(self) -> None:
        """Connect as an observer instead."""
        self.socket = await self._session.ws_connect(self._base + "/control", params={"observer": self.name})

    async def say(self, message: LearnerMessage) -> None:
        await self.socket.send_bytes(encode(message))

    async def hear(self, kind: type[Any]) -> Any:
        """The next message of a kind; others are passed over."""
        while not isinstance(message := await self.next_message(), kind):
            pass
        return message

    async def closed(self) -> int | None:
        """The code with which the syncer ends the connection; messages before it are passed over."""
        while (frame := await self.socket.receive(timeout=WAIT_S)).type is aiohttp.WSMsgType.BINARY:
            pass
        return frame.data if frame.type is aiohttp.WSMsgType.CLOSE else None

    async def next_message(self) -> SyncerMessage:
        return decode_syncer_message(await self.socket.receive_bytes(timeout=WAIT_S))

    async def seed(self, value: float = 0.0, fragments: Sequence[int] = (0, 1)) -> list[tuple[int, Any]]:
        """Upload version 0 of fragments: the same value everywhere. The syncer's answers."""
        answers = []
        for fragment in fragments:
            codec = FragmentCodec(self.layout, fragment, self._config.codec.download)
            body = codec.encode(np.full(codec.size, value, np.float32))
            query = {"run_id": self.run_id, "learner": self.name, "incarnation": self.incarnation}
            answers.append(await self.put(f"/fragments/{fragment}/versions/0", body, query))
        return answers

    async def step(self, tokens: int = 10) -> None:
        """Report one inner step, with everything still to be handed over."""
        self.steps_taken += 1
        count = self.layout.fragment_count
        await self.say(
            Progress(
                learner=self.name,
                incarnation=self.incarnation,
                clock=self.steps_taken,
                steps=self.steps_taken,
                tokens=self.steps_taken * tokens,
                step_ns=1_000_000,
                loss=1.0,
                c_steps=(1,) * count,
                c_tokens=(tokens,) * count,
                overwritten=(0,) * count,
            )
        )

    async def start(self) -> Pull:
        """Join, seed if asked to, and step until a round asks for a contribution."""
        if (await self.join()).seed:
            await self.seed()
        for _ in range(self._config.protocol.interval_steps):
            await self.step()
        return await self.hear(Pull)

    def body(self, fragment: int, value: float) -> memoryview:
        """An outer gradient with this value everywhere."""
        codec = FragmentCodec(self.layout, fragment, self._config.codec.upload)
        return codec.encode(np.full(codec.size, value, np.float32))

    async def contribute(
        self, pull: Pull, body: bytes | memoryview, digest: str = "", **query: object
    ) -> tuple[int, Any]:
        """Upload a contribution; what is not given in ``query`` is sound."""
        counts = {"c_steps": 1, "c_tokens": 10, "tokens": self.steps_taken * 10}
        path = f"/rounds/{pull.round}/contributions/{self.name}.{self.incarnation}"
        codec = self._config.codec.upload.value
        where = {"run_id": self.run_id, "fragment": pull.fragment, "base_version": 0, "codec": codec}
        query = where | counts | query
        return await self.put(path, body, query, digest)

    async def put(
        self, path: str, body: bytes | memoryview, query: dict[str, object], digest: str = ""
    ) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        headers = {api.CONTENT_DIGEST: api.content_digest(digest or body_digest(body))}
        params = {name: str(value) for name, value in query.items()}
        async with self._session.put(self._base + path, params=params, data=bytes(body), headers=headers) as response:
            return response.status, await response.json()

"""A learner's control connection: small messages both ways, in order, connected again for as long as it takes.

Decides when to connect again, to which of several addresses, and what becomes of messages that wait for a syncer that
does not read. Does not decide what is said (whoever is behind ``deliver``), nor anything about bodies, which have
connections of their own.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import aiohttp

from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Fenced,
    HostFailed,
    JoinRefused,
    LearnerInput,
    Stop,
    SyncerMessage,
    Welcome,
    decode_syncer_message,
)
from unlockstep.core.reasons import DepartureReason
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.clients.control import control_connection
from unlockstep.net.clients.resolving import RememberingResolver
from unlockstep.net.clients.sessions import NETWORK_ERRORS, REFUSED_S, Addresses, back_after
from unlockstep.net.wire import api
from unlockstep.net.wire.link_meter import LinkMeter
from unlockstep.net.wire.sockets import round_trip_s

OUTBOX_MESSAGES_MAX = 65_536
"""Messages waiting for a syncer that does not read; with one more the connection is given up."""

_log = logging.getLogger(__name__)


class ControlLine:
    """Of one learner. Everything is called in its link's event loop.

    Args:
        addresses: where the syncer may be.
        run: name of the run.
        meter: of the link; every deadline is its.
        security: whom this end trusts, and what it shows.
        deliver: is told what has arrived, and when there is a connection and when there is none.
        found: is told the address at which the syncer is, before all else that comes from there.
    """

    def __init__(
        self,
        addresses: Addresses,
        run: str,
        meter: LinkMeter,
        security: ClientSecurity,
        deliver: Callable[[LearnerInput], None],
        found: Callable[[str], None],
    ) -> None:
        self._addresses = addresses
        self._run = run
        self._meter = meter
        self._security = security
        self._was_connected = False
        self._deliver = deliver
        self._found = found
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._resolver = RememberingResolver()
        self._retry_s = 0.0
        """Pause before connecting again that the syncer has asked for."""
        self._complaints: set[str] = set()
        """What was wrong since there was a connection: an outage may take an hour, and is not told every second."""
        self._away_since_s: float | None = None
        """When a connection was lost that has not been made good by a welcome."""
        self._outbox: deque[bytes] = deque()
        self._outbox_filled = asyncio.Event()
        self._outbox_empty = asyncio.Event()
        self._outbox_empty.set()
        self._hanging_up: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        """There is no connection, and ``deliver`` has been told."""
        self._over.set()

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def send(self, frame: bytes) -> None:
        """Put a message on its way; lost if there is no connection."""
        if self._socket is None:
            return
        if len(self._outbox) >= OUTBOX_MESSAGES_MAX:
            self.hang_up()
            return
        self._outbox.append(frame)
        self._outbox_filled.set()
        self._outbox_empty.clear()

    def hang_up(self) -> None:
        """End this connection; there will be another."""
        self._outbox.clear()
        if self._socket is not None and (self._hanging_up is None or self._hanging_up.done()):
            self._hanging_up = asyncio.create_task(_close(self._socket))

    async def all_is_said(self) -> None:
        """Wait until all messages have left, or there is no connection."""
        await self._outbox_empty.wait()

    async def link_is_known(self) -> None:
        """Wait until it would be known if the link were cut by now: this connection has ended by then."""
        timeouts = self._meter.timeouts
        with suppress(TimeoutError):
            async with asyncio.timeout(timeouts.gone_s + timeouts.close_s):
                await self._over.wait()

    async def stay_connected(self) -> None:
        """Until the syncer says that there is nothing to come back for, or never was this learner's."""
        failures, pauses, clock_s = 0, 0, asyncio.get_running_loop().time
        while True:
            began_s, url = clock_s(), str(self._addresses)
            try:
                path, resolver = api.control_path(self._run), self._resolver
                opening = control_connection(url + path, self._meter, self._security, failures, resolver=resolver)
                async with opening as socket:
                    failures, self._was_connected, self._complaints = 0, True, set()
                    self._found(url)
                    if await self._converse(socket):
                        return
                _log.warning("the connection to the syncer has ended (code %s); connecting again", socket.close_code)
            except (*NETWORK_ERRORS, RemoteProtocolError, UsageError) as error:
                refused = str(error) if isinstance(error, UsageError) else self._security.refused(error, url)
                if refused and not self._was_connected:  # It never was a member: there is nothing to lose.
                    self._deliver(HostFailed(refused))
                    return
                if refused:  # Somebody may be about to mend it; meanwhile training goes on.
                    self._retry_s = REFUSED_S
                complaint = f"no connection to the syncer at {url}: {refused or error}"
                if complaint not in self._complaints:
                    _log.warning("%s; trying again", complaint)
                self._complaints.add(complaint)
            self._addresses.next()
            failures += 1
            has_lasted = clock_s() - began_s > self._meter.timeouts.backoff_s_max
            pauses = 1 if has_lasted else pauses + 1
            pause_s = self._meter.timeouts.backoff_s_after(pauses)
            await asyncio.sleep(max(self._retry_s, pause_s * random.uniform(0.5, 1.0)))
            self._retry_s = 0.0

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        """Until the connection ends; True if the syncer has said that there is nothing to come back for."""
        last_word = False
        self._socket = socket
        self._over.clear()
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
                    if self._retry_s:
                        _log.warning("the syncer has shut this learner out; it may join anew in %.3g s", self._retry_s)
                last_word = _is_last(message)
                self._deliver(message)
                if isinstance(message, Welcome):
                    self._note_return()
            return last_word
        finally:
            self._socket = None
            writing.cancel()
            self._outbox.clear()
            self._outbox_empty.set()
            if self._away_since_s is None:
                self._away_since_s = asyncio.get_running_loop().time()
            self._deliver(Disconnected())
            self._over.set()

    def _note_return(self) -> None:
        """Whoever was warned of an outage is told of its end, as a warning too: nothing else may be shown."""
        if self._away_since_s is not None:
            _log.warning(back_after(asyncio.get_running_loop().time() - self._away_since_s))
            self._away_since_s = None

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


def _is_last(message: SyncerMessage) -> bool:
    """Whether nothing comes after it that this process could take part in."""
    if isinstance(message, Fenced):
        return not message.retry_ns and message.reason is not DepartureReason.LEASE_EXPIRED
    return isinstance(message, Stop) or (isinstance(message, JoinRefused) and not message.retry_ns)


async def _close(socket: aiohttp.ClientWebSocketResponse) -> None:
    with suppress(*NETWORK_ERRORS):
        await socket.close()

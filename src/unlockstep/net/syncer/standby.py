"""A syncer that waits for the one that leads to fall silent, and says so to whoever asks.

Decides how often it looks, and what is answered meanwhile. When a leader counts as silent is ``store.leadership``'s;
what comes then, whoever started this decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from aiohttp import web

from unlockstep.core.errors import UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.access.audit import Audit
from unlockstep.net.access.gate import Gate
from unlockstep.net.access.roles import STANDBY_PERMISSIONS, STANDBY_ROUTE
from unlockstep.net.access.security import OPEN, ServerSecurity
from unlockstep.net.syncer.service import first_of
from unlockstep.net.wire.listening import Endpoint
from unlockstep.net.wire.timeouts import derive
from unlockstep.store.leadership import Beat, LeaderWatch, is_gone

LOOKS_PER_LEASE = 8
"""So a takeover is at most an eighth of a lease later than it could be."""

_log = logging.getLogger(__name__)

Look = Callable[[], tuple[Beat | None, int]]
"""The beat last left, and the number of the newest record. Blocks."""


async def wait_for_silence(look: Look, lease_s: float, stop: asyncio.Event) -> bool:
    """Whether the leader has fallen silent; False if ``stop`` was set before. A leader that is known to be gone is.

    Args:
        look: reads the store.
        lease_s: silence that counts, seconds.
        stop: somebody asks to wait no longer.
    """
    return await _Wait(look, lease_s).over(stop)


async def refuse_leader(look: Look, lease_s: float, stop: asyncio.Event) -> None:
    """Return once nobody leads; at once if nobody is known to.

    Raises:
        UsageError: somebody does.
    """
    wait, first = _Wait(look, lease_s), await asyncio.to_thread(look)
    leader = first[0]
    if leader is None:
        return
    if not is_gone(leader):
        _log.info("looks for %g s whether the syncer at %s is still there", lease_s, leader.url)
    if not await wait.over(stop, lambda seen: seen != first):
        raise UsageError(
            f"the syncer at {leader.url} leads this run; stop it first, or start this one with --standby to take over "
            "when it falls silent"
        )


async def stand_by(
    look: Look,
    lease_s: float,
    stop: asyncio.Event,
    endpoint: Endpoint,
    on_listening: Callable[[Endpoint], None],
    security: ServerSecurity = OPEN,
) -> bool:
    """The same, while whoever asks at this endpoint, and may, is told where the leader is, with status 503.

    Args:
        on_listening: told the endpoint with the port it has got.
        security: what is demanded of whoever asks.

    Raises:
        UsageError: the endpoint cannot be listened on.
    """
    wait, gate = _Wait(look, lease_s), Gate(security, Audit(), STANDBY_PERMISSIONS)
    app = web.Application(middlewares=[gate.middleware])
    app.router.add_route("*", STANDBY_ROUTE, wait.answer)
    async with gate.open(app, endpoint, derive(), shutdown_s=1.0) as listening:
        on_listening(listening)
        return await wait.over(stop)


class _Wait:
    def __init__(self, look: Look, lease_s: float) -> None:
        self._look = look
        self._pause_s = lease_s / LOOKS_PER_LEASE
        self._watch = LeaderWatch(int(lease_s * NANOSECONDS_PER_SECOND))

    async def over(self, stop: asyncio.Event, enough: Callable[[tuple[Beat | None, int]], bool] | None = None) -> bool:
        """True: the leader is silent; False: somebody asks to stop, or what was seen is enough."""
        while not stop.is_set():
            try:
                beat, newest_number = seen = await asyncio.to_thread(self._look)
            except OSError as error:  # It may be the network: who cannot see the leader does not know it is silent.
                _log.warning("the store cannot be read (%s); looking again", error)
                await first_of(stop, timeout_s=self._pause_s)
                continue
            if enough is not None and enough(seen):
                return False
            now_ns = time.monotonic_ns()
            self._watch.see(beat, newest_number, now_ns)
            leader = self._watch.leader
            if self._watch.is_silent(now_ns) or (leader is not None and beat == leader and is_gone(leader)):
                return True
            await first_of(stop, timeout_s=self._pause_s)
        return False

    async def answer(self, request: web.Request) -> web.Response:
        leader = self._watch.leader
        where = "nobody is known to lead" if leader is None else f"the syncer that leads is at {leader.url}"
        return web.json_response({"error": f"this syncer stands by; {where}"}, status=503)

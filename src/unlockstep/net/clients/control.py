"""Opening a control connection, for learners and observers alike.

Decides how one attempt is bounded and watched: so short that a connection which is lost in a broken network is soon
tried again, longer where the link is known or suspected to be slow, and never silent for longer than a lease. Does not
decide when to try again, where, nor what is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.abc import AbstractResolver

from unlockstep.core.messages import MESSAGE_BYTES_MAX
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.clients.sessions import client_session
from unlockstep.net.wire.link_meter import LinkMeter
from unlockstep.net.wire.sockets import carry_messages, round_trip_s, watch_over

ROUND_TRIPS = 2
"""Of an attempt, at least: one for the connection, one for the upgrade."""


@asynccontextmanager
async def control_connection(
    url: str,
    meter: LinkMeter,
    security: ClientSecurity,
    failures: int = 0,
    params: Mapping[str, str] | None = None,
    resolver: AbstractResolver | None = None,
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A WebSocket to ``url``, in a session of its own, closed when the block ends.

    Args:
        url: of the resource.
        meter: of the link; hears how long the attempt took.
        security: whom this end trusts, and what it shows.
        failures: attempts in a row that failed before this one.
        params: the query.
        resolver: of names; None: the system, anew.

    Raises:
        NETWORK_ERRORS: nobody is there, or it does not answer in time.
        UsageError: there is nothing to show that may be shown there.
    """
    timeouts, now_s = meter.timeouts, asyncio.get_running_loop().time
    connect_s = timeouts.connect_s_after(failures)
    async with client_session(url, security, timeouts, connect_s, timeouts.reply_s, resolver) as session:
        began_s = now_s()
        async with session.ws_connect(
            url,
            params=params,
            timeout=aiohttp.ClientWSTimeout(ws_close=timeouts.close_s),
            max_msg_size=MESSAGE_BYTES_MAX,
            heartbeat=timeouts.silence_s,
        ) as socket:
            measured_s = (now_s() - began_s) / ROUND_TRIPS
            raw = socket.get_extra_info("socket")
            if raw is not None:
                watch_over(raw, timeouts)
                carry_messages(raw)
                measured_s = round_trip_s(raw) or measured_s
            meter.answered(measured_s)
            yield socket

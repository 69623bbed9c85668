"""What clients on an event loop share: where syncers may be, and sessions to ask them.

Decides the order in which addresses are tried, and a session's deadlines. Bodies travel otherwise (``net.bulk``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver

from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.wire.api import STREAM_BUFFER_BYTES, base_urls
from unlockstep.net.wire.timeouts import Timeouts

NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
"""What a peer that is away or misbehaves can raise at a client."""

REFUSED_S = 5.0
"""Pause before connecting again when the syncer no longer accepts this client, or the client the syncer."""

GOODBYE_LOOK_S = 0.005
"""How often it is looked whether connections that were closed have ended."""


class Addresses:
    """Where a run's syncer may be, and where it is believed to be now.

    Args:
        urls: as ``api.base_urls`` reads them.
    """

    def __init__(self, urls: str) -> None:
        self._urls = base_urls(urls)
        self._index = 0

    def __str__(self) -> str:
        return self._urls[self._index]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._urls)

    def at(self, path: str) -> str:
        """A resource of the syncer that leads, as far as is known."""
        return self._urls[self._index] + path

    def next(self) -> None:
        """It does not lead, or does not answer: try the next one."""
        self._index = (self._index + 1) % len(self._urls)


def back_after(away_s: float) -> str:
    """What is said at the end of an outage."""
    return f"connected again after {away_s:.{0 if away_s >= 10 else 1}f} s"


@asynccontextmanager
async def client_session(
    url: str,
    security: ClientSecurity,
    timeouts: Timeouts,
    connect_s: float | None = None,
    answer_s: float | None = None,
    resolver: AbstractResolver | None = None,
) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with the syncer at ``url``. It goes nowhere else: a token must not follow a redirection.

    Args:
        url: of the syncer, or of one of its resources.
        security: whom it trusts, and what it shows.
        timeouts: of the link.
        connect_s: for one attempt to connect; None: as long as may be.
        answer_s: for an answer to begin, or go on; None: as long as that to a body.
        resolver: of names; None: the system.

    Raises:
        UsageError: there is nothing to show that may be shown there.
    """
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_refuse_redirect)
    sockets: list[socket.socket] = []

    def new_socket(info: tuple[Any, ...]) -> socket.socket:
        sockets.append(socket.socket(*info[:3]))
        return sockets[-1]

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, ssl=security.context(url) or True, resolver=resolver, socket_factory=new_socket
        ),
        headers=security.headers(url),
        trace_configs=[tracing],
        timeout=aiohttp.ClientTimeout(
            total=None,
            connect=connect_s or timeouts.connect_s_max,
            sock_connect=connect_s or timeouts.connect_s_max,
            sock_read=answer_s or timeouts.verdict_s,
        ),
        read_bufsize=STREAM_BUFFER_BYTES,
    )
    try:
        yield session
    finally:
        await session.close()
        # A connection that aiohttp has closed may still be saying goodbye in TLS, which it waits for nowhere.
        until_s = asyncio.get_running_loop().time() + timeouts.close_s
        while any(each.fileno() >= 0 for each in sockets) and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(GOODBYE_LOOK_S)


async def _refuse_redirect(*_: object) -> None:
    raise RemoteProtocolError("a redirection was sent, which no syncer does")

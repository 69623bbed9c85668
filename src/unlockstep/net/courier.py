"""What clients on an event loop share: where syncers may be, and sessions to ask them.

Decides the order in which addresses are tried, and a session's deadlines. Bodies travel otherwise (``bulk``).
"""

from __future__ import annotations

import aiohttp
from aiohttp.abc import AbstractResolver

from unlockstep.net.api import STREAM_BUFFER_BYTES, base_urls
from unlockstep.net.timeouts import Timeouts

NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
"""What a peer that is away or misbehaves can raise at a client."""


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


def client_session(
    timeouts: Timeouts,
    connect_s: float | None = None,
    answer_s: float | None = None,
    resolver: AbstractResolver | None = None,
) -> aiohttp.ClientSession:
    """A session; as many connections as there are transfers.

    Args:
        timeouts: of the link.
        connect_s: for one attempt to connect; None: as long as may be.
        answer_s: for an answer to begin, or go on; None: as long as that to a body.
        resolver: of names; None: the system.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, resolver=resolver),
        timeout=aiohttp.ClientTimeout(
            total=None,
            connect=connect_s or timeouts.connect_s_max,
            sock_connect=connect_s or timeouts.connect_s_max,
            sock_read=answer_s or timeouts.verdict_s,
        ),
        read_bufsize=STREAM_BUFFER_BYTES,
    )

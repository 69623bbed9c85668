"""Bulk transfer: bodies in and out of HTTP messages, at both ends, without a copy more than needed.

Decides piece sizes, what an incomplete or oversized body is, and how often a damaged download is tried again. Does not
decide what a body means. Hashing and decoding take time and happen in a worker thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor

import aiohttp
import numpy as np
from aiohttp.abc import AbstractResolver

from unlockstep.core.chunks import Float32
from unlockstep.core.codec import Body, FragmentCodec, body_digest, fragment_codecs
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.layout import Layout
from unlockstep.core.messages import VersionNotice
from unlockstep.net.api import STREAM_BUFFER_BYTES, WRITE_BYTES, base_urls, version_path
from unlockstep.net.link_meter import LinkMeter
from unlockstep.net.timeouts import ProgressWatch, Timeouts

NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
"""What a peer that is away or misbehaves can raise at a client."""

DOWNLOADS_MAX = 2
"""Times one version is downloaded when what arrives is damaged."""


async def read_body(stream: aiohttp.StreamReader, size: int, timeouts: Timeouts) -> memoryview:
    """Exactly ``size`` bytes, read into one buffer of that size.

    Raises:
        RemoteProtocolError: the stream ends early or goes on.
        TimeoutError: it has stalled. aiohttp's own errors pass through.
    """
    body = np.empty(size, np.uint8).data
    filled = 0
    now_s = asyncio.get_running_loop().time
    watch = ProgressWatch(timeouts, now_s())
    while True:
        async with asyncio.timeout_at(watch.until_s):
            piece = await stream.readany()
        watch.moved(len(piece), now_s())
        if not piece:
            break
        if filled + len(piece) > size:
            raise RemoteProtocolError(f"the body is longer than the {size} bytes expected")
        body[filled : filled + len(piece)] = piece
        filled += len(piece)
    if filled < size:
        raise RemoteProtocolError(f"the body ended after {filled} of {size} bytes")
    return body


async def pieces(body: Body) -> AsyncIterator[memoryview]:
    """``body`` cut into what is written at once."""
    view = memoryview(body)
    for start in range(0, len(view), WRITE_BYTES):
        yield view[start : start + WRITE_BYTES]


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


class VersionReader:
    """Fetches committed versions of one run.

    Args:
        session: to fetch with.
        addresses: where the syncer is.
        run: name of the run.
        layout: how its parameters are cut.
        codec: number format of its versions.
        executor: where bodies are hashed and decoded.
        meter: of the link.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        addresses: Addresses,
        run: str,
        layout: Layout,
        codec: Codec,
        executor: Executor,
        meter: LinkMeter,
    ) -> None:
        self._session = session
        self._addresses = addresses
        self._run = run
        self._codecs = fragment_codecs(layout, codec)
        self._executor = executor
        self._meter = meter

    async def read(self, notice: VersionNotice) -> Float32:
        """The values of a version, float32[n]. A body with another digest than announced is fetched once more.

        Raises:
            RemoteProtocolError: the syncer does not have it (any more), or what it sends is not it.
            NETWORK_ERRORS: as they come.
        """
        if not 0 <= notice.fragment < len(self._codecs):
            raise RemoteProtocolError(f"fragment {notice.fragment} is not part of this model")
        codec = self._codecs[notice.fragment]
        for _ in range(DOWNLOADS_MAX):
            body = await self._body(notice, codec.body_size)
            values = await asyncio.get_running_loop().run_in_executor(self._executor, _verified, codec, body, notice)
            if values is not None:
                return values
        raise RemoteProtocolError(
            f"version {notice.version} of fragment {notice.fragment} does not have the digest announced"
        )

    async def _body(self, notice: VersionNotice, size: int) -> memoryview:
        url = self._addresses.at(version_path(self._run, notice.fragment, notice.version))
        async with self._session.get(url) as response:
            if response.status != 200:
                raise RemoteProtocolError(
                    f"version {notice.version} of fragment {notice.fragment} is not to be had: status {response.status}"
                )
            if response.content_length != size:
                raise RemoteProtocolError(f"the body has {response.content_length} bytes, {size} are expected")
            began_s = asyncio.get_running_loop().time()
            body = await read_body(response.content, size, self._meter.timeouts)
            self._meter.moved("down", size, asyncio.get_running_loop().time() - began_s)
            return body


def _verified(codec: FragmentCodec, body: Body, notice: VersionNotice) -> Float32 | None:
    """The values, or None if the body is not the one announced."""
    return codec.decode(body) if body_digest(body) == notice.digest else None

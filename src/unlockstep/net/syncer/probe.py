"""Bytes without a meaning, up and down, by which ``unlockstep doctor`` measures a link.

Decides how many probes run at once, how large one may be and how long it may take: whoever may send them takes no more
of the link than a few uploads do. Nothing of the run is touched.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import aiohttp
from aiohttp import web

from unlockstep.net.access.answers import CONNECTION_ERRORS, Refusal, begun, json, parse_query, write
from unlockstep.net.wire import api
from unlockstep.net.wire.timeouts import ProgressWatch, Timeouts


class Probes:
    """The resource ``/v1/probe``.

    Args:
        timeouts: when a transfer has stalled.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._under_way = 0
        self._noise = os.urandom(api.WRITE_BYTES)
        """Sent again and again: nothing on the way can make it smaller."""

    async def get(self, request: web.Request) -> web.StreamResponse:
        """As many bytes as asked for."""
        size = parse_query(request, api.ProbeQuery).bytes
        with self._place():
            response = web.StreamResponse()
            response.content_type, response.content_length = api.BODY_TYPE, size
            with begun(request):
                await response.prepare(request)
                async with asyncio.timeout(api.PROBE_S_MAX):
                    for start in range(0, size, len(self._noise)):
                        await write(response, self._noise[: size - start])
                await response.write_eof()
            return response

    async def put(self, request: web.Request) -> web.Response:
        """Read and thrown away; answers how many bytes came."""
        size = request.content_length
        if size is None:
            raise Refusal(411, "state the Content-Length of the body")
        if size > api.PROBE_BYTES_MAX:
            raise Refusal(413, f"the probe has {size} bytes, {api.PROBE_BYTES_MAX} at most")
        with self._place(), suppress(*CONNECTION_ERRORS):  # Who has seen enough hangs up.
            async with asyncio.timeout(api.PROBE_S_MAX):
                return json({"bytes": await self._swallow(request.content)})
        return json({"bytes": 0})

    async def _swallow(self, stream: aiohttp.StreamReader) -> int:
        now_s = asyncio.get_running_loop().time
        watch, came = ProgressWatch(self._timeouts, now_s()), 0
        while True:
            async with asyncio.timeout_at(watch.until_s):
                piece = await stream.readany()
            if not piece:
                return came
            came += len(piece)
            watch.moved(len(piece), now_s())

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._under_way >= api.PROBES_AT_ONCE_MAX:
            raise Refusal(429, "too many probes are under way; wait for one")
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

"""Names of hosts, resolved so that an outage of the name server is no longer than that of the link.

A system asks its name servers for tens of seconds before it gives up, in a thread, and each attempt to connect would
ask anew. Decides that a name is asked for once at a time, and that what it meant before is used while nobody answers.
Does not decide how long an attempt may take.
"""

from __future__ import annotations

import asyncio
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

PATIENCE_S = 0.5
"""For a name server, where it is known what the name meant before."""

Key = tuple[str, int, int]


class RememberingResolver(AbstractResolver):
    """For the connectors of one process, which use it one after the other; it outlives them.

    Args:
        inner: who asks; None: the system.
    """

    def __init__(self, inner: AbstractResolver | None = None) -> None:
        self._inner = inner
        self._known: dict[Key, list[ResolveResult]] = {}
        self._asking: dict[Key, asyncio.Task[list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name. Raises OSError if nobody knows it, and it was never known."""
        key = (host, port, int(family))
        known = self._known.get(key)
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(key, family))
            asking.add_done_callback(lambda task: self._asking.pop(key, None))
        done, _ = await asyncio.wait({asking}, timeout=None if known is None else PATIENCE_S)
        if known is not None and (not done or asking.exception() is not None):
            return known
        return await asyncio.shield(asking)

    async def _ask(self, key: Key, family: socket.AddressFamily) -> list[ResolveResult]:
        if self._inner is None:
            self._inner = ThreadedResolver()
        host, port, _ = key
        found = self._known[key] = await self._inner.resolve(host, port, family)
        return found

    async def close(self) -> None:
        """Nothing is held that would have to be let go; the connectors that use it do not own it."""

"""What a name means while the name server answers, while it does not, and when it says something else."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from unlockstep.net.clients import resolving
from unlockstep.net.clients.resolving import RememberingResolver


class NameServer(AbstractResolver):
    """Says what it is told to; nothing, for as long as it is told nothing."""

    def __init__(self) -> None:
        self.asked = 0
        self.fall_silent()

    def fall_silent(self) -> None:
        self._says: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def say(self, address: str | Exception) -> None:
        if self._says.done():
            self.fall_silent()
        if isinstance(address, Exception):
            self._says.set_exception(address)
        else:
            self._says.set_result(address)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        address = await self._says
        return [ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None: ...


async def meaning(resolver: RememberingResolver) -> str:
    (found,) = await resolver.resolve("one", 7077)
    return found["host"]


def test_what_a_name_means_is_what_the_server_says_last() -> None:
    async def run() -> None:
        server = NameServer()
        resolver = RememberingResolver(server)
        for address in ("10.0.0.5", "10.0.0.6"):
            server.say(address)
            assert await meaning(resolver) == address
        server.say(OSError("no such name"))
        assert await meaning(resolver) == "10.0.0.6"

    asyncio.run(run())


def test_while_nobody_answers_it_means_what_it_did_and_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "PATIENCE_S", 0.001)

    async def run() -> None:
        server = NameServer()
        resolver = RememberingResolver(server)
        asking = asyncio.create_task(meaning(resolver))
        await asyncio.sleep(0)
        server.say("10.0.0.5")
        assert await asking == "10.0.0.5"
        server.fall_silent()
        for _ in range(20):
            assert await meaning(resolver) == "10.0.0.5"
        assert server.asked == 2
        server.say("10.0.0.6")
        for _ in range(3):  # Whoever was asked for it, then whoever waits for that one.
            await asyncio.sleep(0)
        monkeypatch.setattr(resolving, "PATIENCE_S", 20.0)
        assert await meaning(resolver) == "10.0.0.6"

    asyncio.run(run())


def test_a_name_that_was_never_known_is_an_error() -> None:
    async def run() -> None:
        server = NameServer()
        server.say(OSError("no such name"))
        with pytest.raises(OSError, match="no such name"):
            await meaning(RememberingResolver(server))

    asyncio.run(run())

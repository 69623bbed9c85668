"""A syncer with TLS and tokens, or a page behind the same gate, for tests that knock; and what was told of them.

Decides how a test comes to a port that demands something. Decides nothing about what is demanded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from support.live_run import WAIT_S, LiveSyncer, live_syncer, small_config
from support.secret_files import Secrets, secrets_in
from unlockstep.config import RunConfig
from unlockstep.net.access.audit import Audit
from unlockstep.net.access.gate import PEER, Gate
from unlockstep.net.access.limits import Limits
from unlockstep.net.access.roles import STANDBY_PERMISSIONS, STANDBY_ROUTE
from unlockstep.net.access.security import OPEN, ServerSecurity
from unlockstep.net.wire.listening import Endpoint
from unlockstep.net.wire.timeouts import derive


def on_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run an asynchronous test; pytest sees an ordinary one."""

    def run(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(test(tmp_path), 2 * WAIT_S))

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


def audited(folder: Path) -> list[dict[str, Any]]:
    path = folder / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def refusals(folder: Path) -> list[tuple[str, str]]:
    """Reasons and sentences, in order."""
    return [(line["reason"], line["sentence"]) for line in audited(folder) if line["what"] == "refused"]


@asynccontextmanager
async def gated(
    folder: Path, security: ServerSecurity = OPEN, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Gate, str]]:
    """A gate before a page that says who asks, and how much it was sent."""

    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        return web.json_response({"token": request[PEER].identity.token, "bytes": len(body)})

    gate = Gate(security, Audit(folder), STANDBY_PERMISSIONS, limits, **options)
    app = web.Application(middlewares=[gate.middleware], client_max_size=2**30)
    app.router.add_route("*", STANDBY_ROUTE, answer)
    endpoint = Endpoint("127.0.0.1", 0, scheme=security.scheme)
    async with gate.open(app, endpoint, derive(), shutdown_s=0.1) as found:
        yield gate, found.url


@asynccontextmanager
async def secured(
    folder: Path, limits: Limits | None = None, config: RunConfig | None = None
) -> AsyncIterator[Secured]:
    """A syncer with TLS and tokens."""
    secrets = secrets_in(folder / "secrets")
    security = secrets.server()
    async with live_syncer(config or small_config(), folder, security=security, limits=limits) as syncer:
        yield Secured(secrets, security, syncer)


@dataclass(frozen=True)
class Secured:
    """A syncer with TLS and tokens, and how its clients come."""

    secrets: Secrets
    security: ServerSecurity
    syncer: LiveSyncer

    def session(self, token: str | None) -> aiohttp.ClientSession:
        """A session of whoever has this token, by name."""
        client = self.secrets.client(token)
        context = client.context("https://")
        assert context is not None
        connector = aiohttp.TCPConnector(ssl=context)
        return aiohttp.ClientSession(headers=client.headers(self.syncer.url), connector=connector)

    def change_tokens(self, before: str, after: str) -> None:
        """Edit the file of tokens."""
        path = self.secrets.folder / "tokens.toml"
        path.write_text(path.read_text().replace(before, after))
        self.security.refresh()


class Stranger:
    """A bare connection to a port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def at(cls, url: str) -> Stranger:
        host, port = url.partition("//")[2].split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def says(self, data: bytes) -> None:
        self._writer.write(data)
        await asyncio.wait_for(self._writer.drain(), WAIT_S)

    async def hears(self, until: bytes) -> bytes:
        return await asyncio.wait_for(self._reader.readuntil(until), WAIT_S)

    async def hangs_up(self) -> None:
        """Say that nothing more comes."""
        self._writer.write_eof()

    async def is_cut(self) -> bytes:
        """What comes until the other end hangs up."""
        found = b""
        with suppress(ConnectionError):
            while piece := await asyncio.wait_for(self._reader.read(65536), WAIT_S):
                found += piece
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
        return found

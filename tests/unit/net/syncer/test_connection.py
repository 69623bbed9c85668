"""The syncer's end of a control connection, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from unlockstep.net.access.audit import Peer
from unlockstep.net.syncer.connection import Connection

WAIT_S = 20.0


@asynccontextmanager
async def connected(
    speak: Callable[[Connection], Awaitable[None]], messages_max: int = 4
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A client whose server does what ``speak`` says, then listens until the connection ends."""

    async def accept(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        assert request.transport is not None
        connection = Connection(socket, request.transport, "peer", Peer("127.0.0.1"), messages_max)
        pump = asyncio.create_task(connection.pump())
        await speak(connection)
        async for _ in socket:
            pass
        connection.close()
        await pump
        return socket

    app = web.Application()
    app.router.add_get("/", accept)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield await session.ws_connect(f"http://127.0.0.1:{runner.addresses[0][1]}/", max_msg_size=0)
    await runner.cleanup()


def test_frames_arrive_in_order_and_before_the_end() -> None:
    async def speak(connection: Connection) -> None:
        for number in range(3):
            connection.send(bytes([number]))
        connection.close("enough " + "é" * 200, aiohttp.WSCloseCode.POLICY_VIOLATION)
        connection.send(b"too late")

    async def run() -> None:
        async with connected(speak) as socket:
            assert [await socket.receive_bytes(timeout=WAIT_S) for _ in range(3)] == [b"\0", b"\1", b"\2"]
            closed = await socket.receive(timeout=WAIT_S)
            assert closed.data == aiohttp.WSCloseCode.POLICY_VIOLATION
            assert closed.extra.startswith("enough éé") and len(closed.extra.encode()) <= 123

    asyncio.run(run())


def test_a_peer_that_does_not_read_is_cut_off_instead_of_waited_for() -> None:
    cut = asyncio.Event()

    async def speak(connection: Connection) -> None:
        megabyte = bytes(1 << 20)
        for _ in range(1000):
            connection.send(megabyte)
            if connection.is_closing:
                cut.set()
                return
            await asyncio.sleep(0)

    async def run() -> None:
        async with connected(speak) as socket:
            socket._reader._protocol.pause_reading()  # There is no public way to stop reading.
            await asyncio.wait_for(cut.wait(), WAIT_S)

    asyncio.run(run())

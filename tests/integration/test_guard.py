"""What strangers may ask of a port, over real sockets: how many they are, how slow, and what is no request at all."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from support.gates import Stranger, gated, on_loop, refusals, secured
from support.live_run import WAIT_S
from support.secret_files import other_authority, secrets_in
from unlockstep.core.errors import UsageError
from unlockstep.net.access.answers import sentences
from unlockstep.net.access.audit import Audit
from unlockstep.net.access.gate import Gate
from unlockstep.net.access.limits import Limits
from unlockstep.net.access.roles import STANDBY_PERMISSIONS, STANDBY_ROUTE
from unlockstep.net.access.security import OPEN, ServerSecurity
from unlockstep.net.clients.observer import read_about
from unlockstep.net.wire.listening import Endpoint
from unlockstep.net.wire.timeouts import derive

# ------------------------------------------------------------------------------------------------- too much


@on_loop
async def test_wrong_tokens_are_answered_slower_and_slower_and_right_ones_at_once(tmp_path: Path) -> None:
    secrets, pauses = secrets_in(tmp_path / "secrets"), []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    security = ServerSecurity(tokens=secrets.folder / "tokens.toml")
    async with gated(tmp_path, security, pause=pause) as (_, url), aiohttp.ClientSession() as session:
        for _ in range(12):
            async with session.get(url + "/", headers={"Authorization": "Bearer wrong"}) as response:
                assert response.status == 401
        assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0], rel=0.2)
        right = {"Authorization": f"Bearer {secrets.token('admin')}"}
        async with session.get(url + "/", headers=right) as response:
            assert response.status == 200
        assert len(pauses) == 7


@on_loop
async def test_so_many_answers_to_wrong_tokens_wait_and_no_more(tmp_path: Path) -> None:
    secrets, over, waiting = secrets_in(tmp_path / "secrets"), asyncio.Event(), asyncio.Semaphore(0)

    async def pause(seconds: float) -> None:
        waiting.release()
        await over.wait()

    limits = Limits(failures_free=0, failures_waiting_max=3)
    security = ServerSecurity(tokens=secrets.folder / "tokens.toml")
    async with gated(tmp_path, security, limits, pause=pause) as (_, url), aiohttp.ClientSession() as session:

        async def knock() -> int:
            async with session.get(url + "/", headers={"Authorization": "Bearer wrong"}) as response:
                return response.status

        knocking = [asyncio.create_task(knock()) for _ in range(3)]
        for _ in knocking:
            await asyncio.wait_for(waiting.acquire(), WAIT_S)
        with pytest.raises(aiohttp.ClientError):
            await knock()
        over.set()
        assert await asyncio.gather(*knocking) == [401] * 3


@on_loop
async def test_too_many_requests_of_an_address_are_told_to_wait(tmp_path: Path) -> None:
    limits = Limits(requests_per_s=1e-6, requests_burst=3, unpaced=())
    async with gated(tmp_path, limits=limits) as (_, url), aiohttp.ClientSession() as session:
        statuses = []
        for _ in range(5):
            async with session.get(url + "/") as response:
                statuses.append(response.status)
                assert (response.status == 429) is ("Retry-After" in response.headers)
        assert statuses == [200, 200, 200, 429, 429]
        assert [reason for reason, _ in refusals(tmp_path)] == ["too_many_requests"] * 2


CROWDS = {
    "in all": (Limits(connections_max=3), "3 connections are open"),
    "of an address": (Limits(connections_per_address_max=3), "3 connections of this address are open"),
    "silent ones": (Limits(unproven_per_address_max=3), "3 connections of this address have made no request"),
    "at once": (
        Limits(accepts_per_s=1e-6, accepts_burst=3, unpaced=()),
        "this address opens too many connections a second",
    ),
}


@pytest.mark.parametrize("case", CROWDS)
def test_one_connection_too_many_is_cut_and_those_before_it_are_not(case: str, tmp_path: Path) -> None:
    limits, sentence = CROWDS[case]

    async def run() -> None:
        async with gated(tmp_path, limits=limits) as (gate, url):
            others = [await Stranger.at(url) for _ in range(3)]
            assert await (await Stranger.at(url)).is_cut() == b""
            assert refusals(tmp_path) == [("too_many_connections", sentence)]
            for stranger in others:
                await stranger.says(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert (await stranger.is_cut()).startswith(b"HTTP/1.1 200")
            assert len(gate.guard) == 0

    asyncio.run(run())


@on_loop
async def test_who_sits_there_loses_its_place_to_who_comes(tmp_path: Path) -> None:
    async with gated(tmp_path, limits=Limits(unproven_max=2)) as (_, url), aiohttp.ClientSession() as session:
        async with session.get(url + "/") as response:  # It stays connected, and has proved itself.
            assert response.status == 200
        silent = [await Stranger.at(url) for _ in range(3)]
        assert await silent[0].is_cut() == b""
        async with session.get(url + "/") as response:
            assert response.status == 200
        assert [reason for reason, _ in refusals(tmp_path)] == ["too_many_connections"]
    for stranger in silent[1:]:
        assert await stranger.is_cut() == b""


# ------------------------------------------------------------------------------------------------- too slow

SLOW = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: local",
    "a head without end": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: 1\r\n",
    "no body": b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n",
    "half a body": b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + bytes(50),
    "half a chunk": b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\na\r\n123",
    "a second head": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nHo",
}


@pytest.mark.parametrize("case", SLOW)
def test_who_stops_in_the_middle_is_cut_and_others_are_served(case: str, tmp_path: Path) -> None:
    limits = Limits(head_s_max=0.2, unproven_s_max=0.3, idle_s_max=0.3, rate_window_s=0.2, sweep_s=0.02)

    async def run() -> None:
        async with gated(tmp_path, limits=limits) as (_, url), aiohttp.ClientSession() as session:
            stranger = await Stranger.at(url)
            await stranger.says(SLOW[case])
            async with session.get(url + "/") as response:
                assert response.status == 200
            answered = await stranger.is_cut()
            assert answered.count(b"HTTP/1.1") == SLOW[case].count(b"\r\n\r\nGET")
            if case != "a second head":  # Told apart from silence between two requests only if it comes later.
                assert [reason for reason, _ in refusals(tmp_path)] == ["too_slow"]

    asyncio.run(run())


@on_loop
async def test_who_does_not_finish_a_tls_handshake_is_cut(tmp_path: Path) -> None:
    limits = Limits(handshake_s_max=0.1, sweep_s=0.02)
    async with secured(tmp_path, limits) as at:
        stranger = await Stranger.at(at.syncer.url)
        await stranger.says(b"\x16\x03\x01\x02\x00\x01")
        assert await stranger.is_cut() == b""
        assert refusals(tmp_path) == [("tls", "the TLS handshake took too long")]


@on_loop
async def test_who_is_gone_in_the_middle_of_a_handshake_is_forgotten(tmp_path: Path) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    limits = Limits(unproven_per_address_max=1)  # One that is not forgotten keeps out all that come after it.
    async with gated(tmp_path, secrets.server(), limits) as (gate, url):
        for hello in (b"", b"\x16\x03\x01\x02\x00\x01", b"no TLS"):
            for way in ("close", "reset"):
                with socket.create_connection(url.removeprefix("https://").split(":"), WAIT_S) as line:
                    line.sendall(hello)
                    while not len(gate.guard):
                        await asyncio.sleep(0)
                    if way == "reset":
                        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                while len(gate.guard):
                    await asyncio.sleep(0)
        assert {reason for reason, _ in refusals(tmp_path)} == {"tls"}


@on_loop
async def test_who_hangs_up_during_the_handshake_was_not_refused(tmp_path: Path) -> None:
    async with gated(tmp_path, secrets_in(tmp_path / "secrets").server()) as (gate, url):
        for hello in (b"", b"\x16\x03\x01\x02\x00\x01"):
            with socket.create_connection(url.removeprefix("https://").split(":"), WAIT_S) as line:
                line.sendall(hello)
                while not len(gate.guard):
                    await asyncio.sleep(0)
            while len(gate.guard):
                await asyncio.sleep(0)
        assert refusals(tmp_path) == []


@on_loop
async def test_who_does_not_read_its_answer_is_cut(tmp_path: Path) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(65536))

    gate = Gate(OPEN, Audit(tmp_path), STANDBY_PERMISSIONS, Limits(unread_s_max=0.1, sweep_s=0.02))
    app = web.Application(middlewares=[gate.middleware])
    app.router.add_route("*", STANDBY_ROUTE, endless)
    async with gate.open(app, Endpoint("127.0.0.1", 0), derive(), shutdown_s=0.1) as found:
        loop = asyncio.get_running_loop()
        with socket.create_connection((found.host, found.port)) as line:
            line.setblocking(False)
            await loop.sock_sendall(line, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(loop.sock_recv(line, 1), WAIT_S)
            while not refusals(tmp_path):
                await asyncio.sleep(0)
        assert refusals(tmp_path) == [("too_slow", "an answer was not read for 0.1 s")]


@on_loop
async def test_who_hangs_up_in_the_middle_of_a_body_was_not_refused(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def take(request: web.Request) -> web.StreamResponse:
        await request.content.readany()
        begun.set()
        try:
            return web.Response(body=await request.read())
        finally:
            ended.set()

    secrets = secrets_in(tmp_path / "secrets")
    for security in (OPEN, secrets.server()):
        gate = Gate(security, Audit(tmp_path), STANDBY_PERMISSIONS)
        app = web.Application(middlewares=[gate.middleware, sentences])
        app.router.add_route("*", STANDBY_ROUTE, take)
        tls = secrets.client(None).context("https://") if security.context else None
        token = f"Authorization: Bearer {secrets.token('admin')}\r\n" if security.context else ""
        head = f"PUT / HTTP/1.1\r\nHost: localhost\r\n{token}Content-Length: 9\r\n\r\n"
        async with gate.open(app, Endpoint("127.0.0.1", 0), derive(), shutdown_s=0.1) as found:
            for way in ("close", "reset"):
                _, writer = await asyncio.open_connection(found.host, found.port, ssl=tls)
                writer.write(f"{head}half".encode())
                await asyncio.wait_for(begun.wait(), WAIT_S)
                if way == "reset":
                    line = writer.get_extra_info("socket")
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                else:
                    writer.close()
                await asyncio.wait_for(ended.wait(), WAIT_S)
                while len(gate.guard):
                    await asyncio.sleep(0)
                begun.clear()
                ended.clear()
    assert refusals(tmp_path) == []


@on_loop
async def test_of_a_request_that_is_refused_the_body_is_not_read(tmp_path: Path) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    security = ServerSecurity(tokens=secrets.folder / "tokens.toml")
    async with gated(tmp_path, security, Limits(refused_s_max=0.1, sweep_s=0.02)) as (_, url):
        stranger, sent = await Stranger.at(url), 0
        await stranger.says(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert (await stranger.hears(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
        with suppress(ConnectionError):
            while True:
                await stranger.says(bytes(2**20))
                sent += 2**20
        await stranger.is_cut()
        assert sent < 64 * 2**20, "what the sockets hold, and no more"


# ------------------------------------------------------------------------------------------------- no HTTP, no TLS

GET, PUT = b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"PUT / HTTP/1.1\r\nHost: localhost\r\n"

NOISE = {
    "garbage": b"\x00\xff" * 500,
    "TLS": b"\x16\x03\x01 this is not HTTP\r\n\r\n",
    "a long line": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    "a long header": GET + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
    "many headers": GET + b"".join(b"X-%d: 1\r\n" % number for number in range(200)) + b"\r\n",
    "two lengths": PUT + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n12",
    "length and chunks": PUT + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    "negative length": PUT + b"Content-Length: -1\r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("case", NOISE)
def test_who_does_not_speak_http_is_answered_400_and_told_of_in_one_line(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with gated(tmp_path) as (_, url):
            for _ in range(3):
                stranger = await Stranger.at(url)
                await stranger.says(NOISE[case])
                answered = await stranger.is_cut()
                assert answered.split(b" ")[1] == b"400" and b"Traceback" not in answered
            assert [reason for reason, _ in refusals(tmp_path)] == ["malformed"] * 3
            assert len(caplog.records) == 1 and caplog.records[0].exc_info is None

    asyncio.run(run())


@on_loop
async def test_a_body_is_not_unpacked_by_itself(tmp_path: Path) -> None:
    """A small body that unpacks to a large one is taken as the bytes it has."""
    bomb = gzip.compress(bytes(10_000_000))
    async with gated(tmp_path) as (_, url), aiohttp.ClientSession() as session:
        response = await session.put(url + "/", data=bomb, headers={"Content-Encoding": "gzip"})
        assert (await response.json())["bytes"] == len(bomb)


@on_loop
async def test_a_client_that_speaks_no_tls_or_has_no_certificate_is_told_of(tmp_path: Path) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    for name, expired, authority in (("old", True, None), ("foreign", False, other_authority()), ("own", False, None)):
        secrets.add_client(name, expired=expired, authority=authority)
    async with gated(tmp_path, secrets.server(mutual=True)) as (_, url):
        stranger = await Stranger.at(url)
        await stranger.says(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await stranger.is_cut() == b""
        for cert in (None, "old", "foreign"):
            security = secrets.client("learner", cert)
            # Whether the refusal or the end of the connection arrives first is chance: both sentences say what to do.
            with pytest.raises(UsageError, match=rf"syncer( answers)? at {url}.* --cert"):
                await asyncio.to_thread(read_about, url, security)
        with pytest.raises(UsageError, match="not an unlockstep syncer"):  # It is let in; this is no syncer.
            await asyncio.to_thread(read_about, url, secrets.client("learner", "own"))
        assert refusals(tmp_path) == [
            ("tls", "the client speaks plain HTTP to a TLS port"),
            ("tls", "the client has no certificate"),
            ("tls", "the client's certificate has expired"),
            ("tls", "the client's certificate is not one of ours (unable to get local issuer certificate)"),
        ]

"""Who answers at an address, probes of the way there, and what is said to whoever speaks another version."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from support.gates import refusals
from support.live_run import WAIT_S, live_syncer, small_config
from unlockstep import __version__
from unlockstep.core.errors import UsageError
from unlockstep.core.ids import PROTOCOL_VERSION
from unlockstep.net.clients.observer import read_about, read_config, read_status
from unlockstep.net.wire import api

CONFIG = small_config()


def test_a_syncer_says_who_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as live:
            before_ns = time.time_ns()
            about = await asyncio.to_thread(read_about, live.url)
            assert before_ns <= about.now_ns <= time.time_ns()
            assert (about.unlockstep, about.protocol, about.runs) == (__version__, PROTOCOL_VERSION, ("small",))

    asyncio.run(run())


def test_a_syncer_of_another_version_is_told_at_once_before_its_settings_are_read() -> None:
    async def run() -> None:
        asked: list[str] = []

        async def answer(request: web.Request) -> web.Response:
            asked.append(request.path)
            return web.json_response({"unlockstep": "9.1", "protocol": 99, "now_ns": 0, "runs": ["r"], "role": "admin"})

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            for read in (read_config, read_status):
                with pytest.raises(UsageError, match=r"is unlockstep 9\.1 and speaks protocol 99, .* the same version"):
                    await asyncio.to_thread(read, url)
            assert asked == ["/v1", "/v1"]
        finally:
            await runner.cleanup()

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------- probes


def test_a_probe_moves_as_many_bytes_as_it_says_each_way(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as live, aiohttp.ClientSession() as session:
            for size in (0, 1, api.WRITE_BYTES, 3 * api.WRITE_BYTES + 7):
                async with session.get(live.url + api.PROBE_ROUTE, params={"bytes": size}) as response:
                    assert (response.status, len(await response.read())) == (200, size)
                async with session.put(live.url + api.PROBE_ROUTE, data=io.BytesIO(bytes(size))) as response:
                    assert (response.status, await response.json()) == (200, {"bytes": size})
            assert (live.service.bytes_in, live.service.bytes_out) == (0, 0)  # It is not of the run.

    asyncio.run(run())


@pytest.mark.parametrize("query", ["", "bytes=-1", f"bytes={api.PROBE_BYTES_MAX + 1}", "bytes=x", "bytes=1.5"])
def test_a_probe_down_without_a_size_that_may_be_is_refused(query: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            live_syncer(CONFIG, tmp_path) as live,
            aiohttp.ClientSession() as session,
            session.get(f"{live.url}{api.PROBE_ROUTE}?{query}") as response,
        ):
            assert response.status == 400 and "the query is not valid" in (await response.json())["error"]

    asyncio.run(run())


def test_a_probe_up_without_a_size_that_may_be_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as live:
            host, port = live.url.removeprefix("http://").split(":")
            for header, status in ((f"Content-Length: {api.PROBE_BYTES_MAX + 1}", 413), ("X-Size: 1", 411)):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(f"PUT {api.PROBE_ROUTE} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n".encode())
                answer = await asyncio.wait_for(reader.readuntil(b"}"), WAIT_S)
                assert answer.split()[1] == str(status).encode()
                assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]
                writer.close()

    asyncio.run(run())


def test_a_probe_that_takes_too_long_is_cut_and_nothing_is_mixed_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PROBE_S_MAX", 0.05)

    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as live:
            host, port = live.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.transport.pause_reading()  # type: ignore[attr-defined]  more than a socket holds is asked for
            target = f"{api.PROBE_ROUTE}?bytes={api.PROBE_BYTES_MAX}"
            writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            later, mute = await asyncio.open_connection(host, int(port))
            mute.write(f"PUT {api.PROBE_ROUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n".encode())
            assert b" 408 " in await asyncio.wait_for(later.readline(), WAIT_S)  # By then its time is over, too.
            mute.close()
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            with contextlib.suppress(ConnectionError):
                said = await asyncio.wait_for(reader.read(), WAIT_S)
                assert len(said) < api.PROBE_BYTES_MAX and said.count(b"HTTP/1.1") == 1
            writer.close()

    asyncio.run(run())


def test_who_hangs_up_in_the_middle_of_a_probe_was_not_refused(tmp_path: Path) -> None:
    """As ``unlockstep doctor`` does, once it has seen enough."""

    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as live:
            before = len(asyncio.all_tasks())
            asked = f"{live.url}{api.PROBE_ROUTE}?bytes={api.PROBE_BYTES_MAX}"
            async with aiohttp.ClientSession() as session, session.get(asked) as response:
                await response.content.readany()
                response.close()
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0)
            assert refusals(tmp_path) == []

    asyncio.run(run())


def test_only_so_many_probes_run_at_once_and_places_come_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as live, aiohttp.ClientSession() as session:
            host, port = live.url.removeprefix("http://").split(":")
            head = f"PUT {api.PROBE_ROUTE} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            head += "Content-Length: 1\r\n\r\n"
            under_way = []
            for _ in range(api.PROBES_AT_ONCE_MAX):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(head.encode())
                assert b"100 Continue" in await asyncio.wait_for(reader.readline(), WAIT_S)  # It waits for the byte.
                under_way.append((reader, writer))
            async with session.put(live.url + api.PROBE_ROUTE, data=b"x") as response:
                assert (response.status, await response.json()) == (
                    429,
                    {"error": "too many probes are under way; wait for one"},
                )
            for reader, writer in under_way:
                writer.write(b"x")
                assert b'{"bytes":1}' in await asyncio.wait_for(reader.readuntil(b"}"), WAIT_S)
                writer.close()
            async with session.get(live.url + api.PROBE_ROUTE, params={"bytes": 1}) as response:
                assert response.status == 200

    asyncio.run(run())

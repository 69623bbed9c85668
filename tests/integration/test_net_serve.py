"""How a syncer's process begins and ends: where it listens, whom it waits for, what stops it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from support.live_run import WAIT_S, Puppet, small_config
from unlockstep import config as run_config
from unlockstep.core.errors import LocalProtocolError, UsageError
from unlockstep.core.messages import Committed, EndRun, Finish, Leave, Stop
from unlockstep.core.syncer import SyncerCore
from unlockstep.net.syncer import service as service_module
from unlockstep.net.syncer.service import SyncerService
from unlockstep.net.wire import api
from unlockstep.net.wire.listening import Endpoint
from unlockstep.runlog import Header, RunLogWriter

CONFIG = small_config()


@contextmanager
def a_service(folder: Path) -> Iterator[SyncerService]:
    with RunLogWriter(folder / "run.jsonl", Header(run="small", config_digest=run_config.digest(CONFIG))) as log:
        yield SyncerService(CONFIG, SyncerCore("small", CONFIG.protocol, 12, 0, "id"), log)


async def serving(service: SyncerService, stop: asyncio.Event) -> tuple[asyncio.Task[bool], str]:
    """The task in which it serves, once it listens, and its URL."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(service.serve(Endpoint("127.0.0.1", 0), stop, url.set_result))
    return task, await asyncio.wait_for(url, WAIT_S)


async def answer(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url + "/healthz") as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("127.0.0.1", None, r"127.0.0.1:\d+ is in use by another process; stop that one or choose another port"),
        ("203.0.113.7", 0, "203.0.113.7:0 cannot be listened on .*; choose an address of this machine"),
        ("no.such.host.invalid", 0, "cannot be listened on"),
        ("127.0.0.1", 70_000, "port is 70000; choose one from 0 to 65535"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named_with_the_fix(
    host: str, port: int | None, sentence: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken: int = holder.getsockname()[1]
        with a_service(tmp_path) as service, pytest.raises(UsageError, match=sentence):
            asyncio.run(service.serve(Endpoint(host, taken if port is None else port), asyncio.Event()))


def test_a_syncer_told_to_stop_before_anything_happened_ends_at_once(tmp_path: Path) -> None:
    """C29"""

    async def run() -> None:
        stop = asyncio.Event()
        with a_service(tmp_path) as service:
            task, _ = await serving(service, stop)
            stop.set()
            assert await asyncio.wait_for(task, WAIT_S)

    asyncio.run(run())


def test_a_syncer_told_to_stop_waits_neither_for_its_last_rounds_nor_for_its_peers(tmp_path: Path) -> None:
    """C29"""

    async def run() -> None:
        stop = asyncio.Event()
        with a_service(tmp_path) as service:
            task, url = await serving(service, stop)
            async with aiohttp.ClientSession() as session:
                await Puppet(url, CONFIG, session, "l0").start()
                stop.set()
                await asyncio.wait_for(task, timeout=5)

    asyncio.run(run())


def test_a_run_that_an_admin_ends_has_its_last_rounds_and_tells_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of sites take longer than a process has that is told to stop."""
    monkeypatch.setattr(service_module, "STOP_S_MAX", 0.0)

    async def run() -> None:
        with a_service(tmp_path) as service:
            task, url = await serving(service, asyncio.Event())
            async with aiohttp.ClientSession() as session:
                learner, observer = Puppet(url, CONFIG, session, "l0"), Puppet(url, CONFIG, session, "eval")
                await observer.observe()
                pull = await learner.start()
                async with session.post(url + api.stop_path("small")) as response:
                    assert response.status == 202
                await learner.hear(Finish)
                assert not task.done()
                assert (await learner.contribute(pull, learner.body(pull.fragment, 1.0)))[0] == 202
                await learner.say(Leave("l0", learner.incarnation, (0, 10)))
                await observer.hear(Stop)
                await observer.socket.close()
                assert await asyncio.wait_for(task, WAIT_S)
                assert service.status().rounds_committed == 1

    asyncio.run(run())


def test_a_run_that_has_ended_waits_for_its_observers(tmp_path: Path) -> None:
    async def run() -> None:
        with a_service(tmp_path) as service:
            task, url = await serving(service, asyncio.Event())
            async with aiohttp.ClientSession() as session:
                observer = Puppet(url, CONFIG, session, "eval")
                await observer.observe()
                await answer(session, url)  # By now the observer is known.
                service.receive(EndRun("enough"))
                await observer.hear(Stop)
                await answer(session, url)
                assert not task.done()
                await observer.socket.close()
                assert await asyncio.wait_for(task, WAIT_S)

    asyncio.run(run())


def test_a_syncer_whose_core_fails_ends_with_that_error(tmp_path: Path) -> None:
    async def run() -> None:
        with a_service(tmp_path) as service:
            task, _ = await serving(service, asyncio.Event())
            with pytest.raises((KeyError, LocalProtocolError)):
                service.receive(Committed(99, 0, 1, "00", 0.0))  # Nobody has asked for it: our bug, not a peer's.
            with pytest.raises((KeyError, LocalProtocolError)):
                await asyncio.wait_for(task, WAIT_S)

    asyncio.run(run())


def test_whoever_does_not_speak_http_is_answered_and_leaves_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def knock() -> bytes:
        with a_service(tmp_path) as service:
            async with service.listening(Endpoint("127.0.0.1", 0)) as url:
                reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
                writer.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
                answered = await asyncio.wait_for(reader.read(), WAIT_S)
                writer.close()
                return answered

    assert asyncio.run(knock()).startswith(b"HTTP/1.0 400")
    assert [record.exc_info for record in caplog.records] == [None]

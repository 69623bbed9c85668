"""The learner's client and the tools' little client against syncers that are there, gone, back, or none at all."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from numpy.testing import assert_array_equal

from support.live_run import WAIT_S, layout_of, live_syncer, small_config
from support.mailbox import Mailbox
from unlockstep import config as run_config
from unlockstep.config import RunConfig
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.errors import LocalProtocolError, UsageError
from unlockstep.core.events import LearnerAway, LearnerJoined, RunSeeded
from unlockstep.core.formats import Codec
from unlockstep.core.ids import PROTOCOL_VERSION
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Fetched,
    FetchFailed,
    Heartbeat,
    HostFailed,
    Join,
    LearnerInput,
    SeedStored,
    UploadFailed,
    VersionNotice,
    Welcome,
)
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import Contribution
from unlockstep.net.access.security import NO_SECURITY
from unlockstep.net.clients.control_line import ControlLine
from unlockstep.net.clients.learner import LearnerClient
from unlockstep.net.clients.observer import Observer, read_config, read_status
from unlockstep.net.clients.sessions import Addresses
from unlockstep.net.wire import api
from unlockstep.net.wire.link_meter import LinkMeter

CONFIG = small_config()
LAYOUT = layout_of(ToyBackend(), CONFIG)


@asynccontextmanager
async def client_of(url: str, config: RunConfig = CONFIG) -> AsyncIterator[tuple[LearnerClient, Mailbox]]:
    client, mailbox = LearnerClient(url, config.run.name, LAYOUT, config.codec, courier="thread"), Mailbox()
    client.start(mailbox)
    try:
        yield client, mailbox
    finally:
        await asyncio.to_thread(client.close)


async def join(client: LearnerClient, mailbox: Mailbox, name: str = "l0") -> Welcome:
    await asyncio.to_thread(mailbox.wait, Connected)
    client.send(Join(name, 0, PROTOCOL_VERSION, LAYOUT.digest, LAYOUT.specs()))
    welcome: Welcome = await asyncio.to_thread(mailbox.wait, Welcome)
    return welcome


def contribution(fragment: int = 0, round: int = 0, learner: str = "l0") -> Contribution:
    anchor = np.ones(LAYOUT.fragment_size(fragment), np.float32)
    return Contribution("id", learner, 1, round, fragment, 0, 1, 10, 10, anchor, 0.75 * anchor)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ------------------------------------------------------------------------------------------------- the learner's client


def test_a_learner_seeds_fetches_and_comes_back_to_a_syncer_that_was_away(tmp_path: Path) -> None:
    port = free_port()

    async def run() -> None:
        async with client_of(f"http://127.0.0.1:{port}") as (client, mailbox):
            for _ in range(2):
                async with live_syncer(CONFIG, tmp_path, port) as syncer:
                    assert (await join(client, mailbox)).seed
                    values = np.arange(LAYOUT.fragment_size(0), dtype=np.float32)
                    client.upload_seed("id", "l0", 1, 0, values)
                    client.upload_seed("id", "l0", 1, 1, np.zeros(LAYOUT.fragment_size(1), np.float32))
                    for _ in range(2):
                        await asyncio.to_thread(mailbox.wait, SeedStored)
                    await syncer.log.until(RunSeeded)
                    notice = next(n for n in syncer.service.storehouse.newest() if n.fragment == 0)  # type: ignore[union-attr]
                    client.fetch(notice)
                    fetched = await asyncio.to_thread(mailbox.wait, Fetched)
                    assert_array_equal(client.take(fetched.payload), values)
                await asyncio.to_thread(mailbox.wait, Disconnected)

    asyncio.run(run())


def test_what_cannot_be_had_or_delivered_is_reported_and_never_raised(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as syncer, client_of(syncer.url) as (client, mailbox):
            await join(client, mailbox)
            client.fetch(VersionNotice(0, 9, "00" * 32))
            client.fetch(VersionNotice(99, 0, "00" * 32))
            assert await asyncio.to_thread(mailbox.wait, FetchFailed) in (FetchFailed(0, 9), FetchFailed(99, 0))
            assert await asyncio.to_thread(mailbox.wait, FetchFailed) in (FetchFailed(0, 9), FetchFailed(99, 0))
            client.upload(contribution(learner="nobody"))
            assert await asyncio.to_thread(mailbox.wait, UploadFailed) == UploadFailed(0, 0, 10, 10)

    asyncio.run(run())


def test_that_a_link_is_cut_is_known_when_its_learner_has_been_told(tmp_path: Path) -> None:
    """Whoever waits for that speaks after it."""

    async def run() -> None:
        told: list[LearnerInput] = []
        async with live_syncer(CONFIG, tmp_path) as syncer:
            connected = asyncio.Event()

            def deliver(message: LearnerInput) -> None:
                told.append(message)
                connected.set()

            addresses, meter = Addresses(syncer.url), LinkMeter()
            line = ControlLine(addresses, "small", meter, NO_SECURITY, deliver, lambda url: None)
            await line.link_is_known()  # There is none.
            staying = asyncio.create_task(line.stay_connected())
            await connected.wait()
            known = asyncio.create_task(line.link_is_known())
            await asyncio.sleep(0)
            assert not known.done()
            line.hang_up()
            await known
            assert told == [Connected(), Disconnected()]
            staying.cancel()
            await asyncio.wait([staying])

    asyncio.run(run())


def test_an_upload_that_fails_while_it_is_being_handed_over_once_more_has_not_failed(tmp_path: Path) -> None:
    """Otherwise it would be declared undelivered, and arrive."""

    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as syncer, client_of(syncer.url) as (client, mailbox):
            await join(client, mailbox)
            client.upload(contribution(learner="nobody"))
            client.upload(contribution(learner="l0"))
            for fragment in range(2):
                client.upload(contribution(fragment, round=1, learner="nobody"))
                assert await asyncio.to_thread(mailbox.wait, UploadFailed) == UploadFailed(1, fragment, 10, 10)

    asyncio.run(run())


def test_a_seed_that_is_refused_ends_in_a_new_connection(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as syncer, client_of(syncer.url) as (client, mailbox):
            await join(client, mailbox)
            client.upload_seed("id", "l0", 1, 0, np.full(LAYOUT.fragment_size(0), np.nan, np.float32))
            await asyncio.to_thread(mailbox.wait, Disconnected)
            await asyncio.to_thread(mailbox.wait, Connected)

    asyncio.run(run())


def test_closing_sends_what_was_said_last_and_leaves_no_thread(tmp_path: Path) -> None:
    """C23"""

    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as syncer:
            async with client_of(syncer.url) as (client, mailbox):
                await join(client, mailbox)
            (away,) = await syncer.log.until(LearnerAway)
            assert away.learner == "l0"
            client.send(Heartbeat("l0", 1))  # Nobody is there any more: as if the syncer were away.
            client.close()
            for _ in range(20):
                async with client_of(syncer.url) as (client, mailbox):
                    await asyncio.to_thread(mailbox.wait, Connected)
                    client.send(Join("l1", 0, PROTOCOL_VERSION, LAYOUT.digest, LAYOUT.specs()))
            await syncer.log.until(LearnerJoined, learner="l1", incarnation=20)

    before = set(threading.enumerate())
    asyncio.run(run())
    assert set(threading.enumerate()) <= before


def test_a_client_that_was_never_started_or_never_connected_can_be_closed() -> None:
    before = set(threading.enumerate())
    LearnerClient(f"http://127.0.0.1:{free_port()}", "small", LAYOUT, CONFIG.codec, courier="thread").close()

    async def run() -> None:
        async with client_of(f"http://127.0.0.1:{free_port()}") as (client, _):
            client.send(Heartbeat("l0", 1))
            client.upload(contribution())
            client.fetch(VersionNotice(0, 1, "00" * 32))

    asyncio.run(run())
    assert set(threading.enumerate()) <= before


def test_a_bug_behind_the_link_ends_it_loudly(tmp_path: Path) -> None:
    class Broken(Mailbox):
        def deliver(self, message: LearnerInput) -> None:
            super().deliver(message)
            if isinstance(message, Connected):
                raise LocalProtocolError("a bug")

    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as syncer:
            client, mailbox = LearnerClient(syncer.url, "small", LAYOUT, CONFIG.codec, courier="thread"), Broken()
            client.start(mailbox)
            assert "a bug" in (await asyncio.to_thread(mailbox.wait, HostFailed)).reason
            with pytest.raises(LocalProtocolError):
                client.send(Heartbeat("l0", 1))
            await asyncio.to_thread(client.close)

    asyncio.run(run())


def test_deadlines_are_kept_without_any_traffic(tmp_path: Path) -> None:
    """C21"""

    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as syncer, client_of(syncer.url) as (_, mailbox):
            mailbox.deadline_ns = time.monotonic_ns() + 1_000_000
            await asyncio.to_thread(mailbox.wait, Connected)  # The client looks at the deadline whenever it delivers.
            await asyncio.to_thread(mailbox.wait_for_deadline)

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------- damaged downloads


@asynccontextmanager
async def serving_bodies(bodies: list[bytes]) -> AsyncIterator[str]:
    """A server that answers every request for a version with the next of these bodies."""
    remaining = iter(bodies)

    async def version(request: web.Request) -> web.Response:
        return web.Response(body=next(remaining), content_type=api.BODY_TYPE)

    app = web.Application()
    app.router.add_get(api.VERSION_ROUTE, version)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


CODEC = FragmentCodec(LAYOUT, 0, Codec.FLOAT32)
SOUND = bytes(CODEC.encode(np.ones(CODEC.size, np.float32)))
DAMAGED = SOUND[:-1] + b"\xff"


@pytest.mark.parametrize(
    ("bodies", "outcome"),
    [
        pytest.param([DAMAGED, SOUND], Fetched, id="once"),
        pytest.param([DAMAGED, DAMAGED], FetchFailed, id="twice"),
        pytest.param([SOUND[:-1]], FetchFailed, id="short"),
        pytest.param([SOUND + b"\0"], FetchFailed, id="long"),
        pytest.param([b""], FetchFailed, id="empty"),
    ],
)
def test_a_download_whose_digest_differs_is_fetched_once_more(
    bodies: list[bytes], outcome: type[Any], tmp_path: Path
) -> None:
    async def run() -> None:
        async with serving_bodies(bodies) as url, client_of(url) as (client, mailbox):
            client.fetch(VersionNotice(0, 1, body_digest(SOUND)))
            found = await asyncio.to_thread(mailbox.wait, outcome)
            if isinstance(found, Fetched):
                assert_array_equal(client.take(found.payload), np.ones(CODEC.size, np.float32))

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------- the tools' client


def test_settings_and_state_are_read_from_the_syncer(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as syncer:
            for url in (syncer.url, syncer.url.removeprefix("http://"), syncer.url + "/"):
                assert run_config.loads(await asyncio.to_thread(read_config, url)) == CONFIG
                assert (await asyncio.to_thread(read_status, url)).state == "empty"
            with pytest.raises(UsageError, match="there is no run 'other' here, only 'small'"):
                await asyncio.to_thread(read_status, syncer.url, "other")
            with pytest.raises(UsageError, match="cannot be observed"):
                async with Observer(syncer.url, "other", "eval", LAYOUT, Codec.FLOAT32):
                    pass

    asyncio.run(run())


@pytest.mark.parametrize("url", ["", "http://", "ftp://host:1", "http://host:99999", "http://[", "host:port"])
def test_an_address_that_is_none_is_named_with_the_fix(url: str) -> None:
    with pytest.raises(UsageError, match=r"write http://host:port"):
        read_config(url)


def test_a_syncer_that_does_not_answer_is_named_with_the_fix() -> None:
    with pytest.raises(UsageError, match=r"no syncer answers at http://127\.0\.0\.1:\d+ .*; check the address"):
        read_config(f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ht>", b"220 mail\r\n", b""])
def test_something_else_that_answers_is_told_from_a_syncer(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(UsageError, match="check the address"):
            read_config(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join(WAIT_S)

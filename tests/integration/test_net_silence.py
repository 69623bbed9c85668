"""Peers that are gone without a word, at either end, and connections that hang in a black hole."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from support.live_run import LiveSyncer, layout_of, live_syncer, small_config
from support.mailbox import Mailbox
from unlockstep.core.events import LearnerAway
from unlockstep.core.messages import Connected, Disconnected
from unlockstep.learners.toy import ToyBackend
from unlockstep.net.clients.learner import LearnerClient
from unlockstep.net.clients.observer import Observer
from unlockstep.net.wire.timeouts import Leases

CONFIG = small_config()
LAYOUT = layout_of(ToyBackend(), CONFIG)


@asynccontextmanager
async def impatient_syncer(folder: Path) -> AsyncIterator[LiveSyncer]:
    """A syncer that asks for a sign of life after a tenth of a second."""
    async with live_syncer(CONFIG, folder) as live:
        live.service.timeouts = replace(live.service.timeouts, silence_s=0.1)
        yield live


def test_a_learner_whose_host_is_gone_is_noticed_although_its_lease_is_long(tmp_path: Path) -> None:
    async def run() -> None:
        async with impatient_syncer(tmp_path) as live, aiohttp.ClientSession() as session:
            learner = live.puppet(session, "l0")
            await learner.join()
            transport = learner.socket._response.connection.transport  # type: ignore[union-attr]
            transport.pause_reading()  # type: ignore[union-attr]  it answers no ping, and its connection stays
            await live.log.until(LearnerAway, learner="l0")

    asyncio.run(run())


def test_an_observer_stays_while_it_is_busy_with_what_it_was_told(tmp_path: Path) -> None:
    """It loads torch, or fetches a large fragment. Gone, it would not be waited for at the end, and miss it."""

    async def run() -> None:
        async with (
            impatient_syncer(tmp_path) as live,
            aiohttp.ClientSession() as session,
            Observer(live.url, CONFIG.run.name, "eval", LAYOUT, CONFIG.codec.download),
        ):
            learner = live.puppet(session, "l0")
            await learner.join()
            learner.socket._response.connection.transport.pause_reading()  # type: ignore[union-attr]
            await live.log.until(LearnerAway, learner="l0")
            assert not live.service._unobserved.is_set()

    asyncio.run(run())


def test_a_learner_that_has_nothing_to_say_but_answers_stays(tmp_path: Path) -> None:
    async def run() -> None:
        async with impatient_syncer(tmp_path) as live, aiohttp.ClientSession() as session:
            mute, learner = live.puppet(session, "l0"), live.puppet(session, "l1")
            await mute.join()
            hearing = asyncio.create_task(mute.closed())  # Who reads answers pings.
            await learner.join()
            learner.socket._response.connection.transport.pause_reading()  # type: ignore[union-attr]
            await live.log.until(LearnerAway, learner="l1")
            assert not hearing.done() and "l0" not in {e.learner for e in live.log.events if isinstance(e, LearnerAway)}
            hearing.cancel()

    asyncio.run(run())


@asynccontextmanager
async def client_of(url: str, leases: Leases) -> AsyncIterator[tuple[LearnerClient, Mailbox]]:
    client, mailbox = LearnerClient(url, CONFIG.run.name, LAYOUT, CONFIG.codec, leases=leases), Mailbox()
    client.start(mailbox)
    try:
        yield client, mailbox
    finally:
        await asyncio.to_thread(client.close)


def test_a_syncer_that_is_gone_without_a_word_is_left_within_the_lease(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            live_syncer(CONFIG, tmp_path) as live,
            muting_proxy(live.url) as (url, mute),
            client_of(f"{url},{live.url}", Leases(lease_s=0.5)) as (client, mailbox),
        ):
            await asyncio.to_thread(mailbox.wait, Connected)
            assert client.timeouts.gone_s == 1.0
            mute.set()
            await asyncio.to_thread(mailbox.wait, Disconnected)
            await asyncio.to_thread(mailbox.wait, Connected)

    asyncio.run(run())


@asynccontextmanager
async def muting_proxy(url: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """In front of a syncer; once the event is set, what either end says goes nowhere, and no connection is closed."""
    host, port = url.removeprefix("http://").split(":")
    mute = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(65536):
                if not mute.is_set():
                    sink.write(piece)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(host, int(port))
        writers.extend((writer, behind_writer))
        for source, sink in ((reader, behind_writer), (behind_reader, writer)):
            tasks.add(asyncio.create_task(pass_on(source, sink)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", mute
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.transport.abort()


@contextmanager
def black_hole() -> Iterator[str]:
    """An address where packets that ask for a connection are lost: its queue is full, and nobody takes from it."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                caller.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_what_keeps_a_learner_from_connecting_is_told_once_however_often_it_tries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        attempts = asyncio.Semaphore(0)

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            attempts.release()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with client_of(url, Leases()):
                for _ in range(6):
                    await attempts.acquire()
        told = [line for line in caplog.messages if "no connection" in line]
        assert len(set(told)) == len(told) > 0 and all(url in line and "trying again" in line for line in told)

    asyncio.run(run())


def test_an_attempt_that_hangs_is_given_up_for_the_next_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with live_syncer(CONFIG, tmp_path) as live:
            with black_hole() as nowhere:
                async with client_of(f"{nowhere},{live.url}", Leases()) as (_, mailbox):
                    await asyncio.to_thread(mailbox.wait, Connected)
        (line,) = [line for line in caplog.messages if "no connection" in line]
        assert nowhere in line and "trying again" in line

    asyncio.run(run())

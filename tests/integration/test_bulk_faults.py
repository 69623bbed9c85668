"""Bodies over connections that break, fall silent and spoil bytes: what is carried again, and what is not."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from support.bulk_stage import BODY_BYTES, TAKEN, on_loop, place, stage
from support.bulk_stage import stage as another_life
from support.live_run import WAIT_S, live_syncer, small_config
from support.proxy import Broken, Direction, Ended, Proxy, Silent, Spoil, Stop
from support.secret_files import secrets_in
from unlockstep.core.codec import body_digest
from unlockstep.core.events import FragmentCommitted
from unlockstep.core.messages import Settled
from unlockstep.net.bulk.client import Bulk
from unlockstep.net.wire import api
from unlockstep.net.wire.timeouts import Timeouts, derive

CHUNK = 64
HEAD_BYTES_MAX = 700
"""Of a request, and of an answer."""

LINES_END = b"\r\n\r\n"


def impatient() -> Timeouts:
    """Whoever says nothing for a fifth of a second is gone."""
    return replace(derive(), stall_s=0.2, stall_bytes=1, verdict_s=0.2, backoff_s_min=0.001, backoff_s_max=0.01)


def patient() -> Timeouts:
    """Nobody is ever gone."""
    return replace(derive(), stall_s=WAIT_S, backoff_s_min=0.001, backoff_s_max=0.01)


@pytest.mark.parametrize("after_bytes", [0, 1, 400, 600, 2000, 3500])
@pytest.mark.parametrize("how", [Broken, Ended])
def test_an_upload_goes_on_where_its_connection_broke(after_bytes: int, how: type[Exception], tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        async with stage(tmp_path) as (syncer, learner, pull):
            seeded = syncer.service.bytes_in
            with Proxy(syncer.url, Stop("up", after_bytes, how)) as proxy:
                bulk = Bulk(proxy.url, chunk_bytes=CHUNK, streams=1, timeouts=patient)
                path, query = place(learner, pull)
                answer = await asyncio.to_thread(bulk.upload, path, query, learner.body(pull.fragment, 1.0))
                bulk.close()
            assert answer == TAKEN
            assert proxy.fault is not None and proxy.fault.done.is_set()
            # Eight chunks, one of them twice, and a question in between: what is here is not sent again.
            assert proxy.passed["up"] <= BODY_BYTES + CHUNK + 11 * HEAD_BYTES_MAX
            assert syncer.service.bytes_in - seeded <= BODY_BYTES + CHUNK
            assert (await learner.hear(Settled)).refusal is None

    run(tmp_path=tmp_path)


@pytest.mark.parametrize("after_bytes", [0, 1, 300, 1000])
def test_an_upload_whose_answer_is_lost_is_answered_again(after_bytes: int, tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        async with stage(tmp_path) as (syncer, learner, pull):
            with Proxy(syncer.url, Stop("down", after_bytes)) as proxy:
                bulk = Bulk(proxy.url, chunk_bytes=CHUNK, streams=1, timeouts=patient)
                path, query = place(learner, pull)
                answer = await asyncio.to_thread(bulk.upload, path, query, learner.body(pull.fragment, 1.0))
                bulk.close()
            assert answer == TAKEN
            assert (await learner.hear(Settled)).refusal is None

    run(tmp_path=tmp_path)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_connection_that_falls_silent_is_replaced(direction: str, tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        async with stage(tmp_path) as (syncer, learner, pull):
            syncer.service.timeouts = replace(derive(), stall_s=0.1)
            with Proxy(syncer.url, Stop(direction, 900, Silent)) as proxy:  # type: ignore[arg-type]
                bulk = Bulk(proxy.url, chunk_bytes=CHUNK, streams=2, timeouts=impatient)
                path, query = place(learner, pull)
                answer = await asyncio.to_thread(bulk.upload, path, query, learner.body(pull.fragment, 1.0))
                bulk.close()
            assert proxy.fault is not None and proxy.fault.done.is_set()
            assert answer == TAKEN

    run(tmp_path=tmp_path)


@on_loop
async def test_a_chunk_that_comes_damaged_is_sent_again_and_no_other(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, learner, pull):
        seeded = syncer.service.bytes_in
        with Proxy(syncer.url, Spoil("up", (b"bytes 128-191/512", LINES_END), 5)) as proxy:
            bulk = Bulk(proxy.url, chunk_bytes=CHUNK, streams=1, timeouts=patient)
            path, query = place(learner, pull)
            answer = await asyncio.to_thread(bulk.upload, path, query, learner.body(pull.fragment, 1.0))
            bulk.close()
        assert proxy.fault is not None and proxy.fault.done.is_set()
        assert answer == TAKEN
        assert syncer.service.bytes_in - seeded == BODY_BYTES + CHUNK
        assert syncer.service.status().refusals == {}


@on_loop
async def test_a_syncer_started_anew_in_the_middle_gets_what_it_has_lost(tmp_path: Path) -> None:
    async with stage(tmp_path) as (before, learner, pull), another_life(tmp_path) as (after, again, _):
        seeded = after.service.bytes_in
        with Proxy(before.url, Stop("up", 3000)) as proxy:
            bulk = Bulk(proxy.url, chunk_bytes=CHUNK, streams=1, timeouts=patient)
            path, query = place(learner, pull)

            def turn(count: int) -> None:
                """Whoever connects when the first connection has broken finds the other life of the syncer."""
                if proxy.passed["up"]:
                    proxy.turn_to(after.url)

            answer = await asyncio.to_thread(bulk.upload, path, query, learner.body(pull.fragment, 1.0), moved=turn)
            bulk.close()
        assert answer == TAKEN
        assert after.service.bytes_in - seeded == BODY_BYTES
        assert (await again.hear(Settled)).refusal is None
        assert len(before.service.uploads) == 1 and len(after.service.uploads) == 0


@pytest.mark.parametrize("after_bytes", [0, 200, 500, 700, 1500, 2500])
def test_a_download_goes_on_where_its_connection_broke(after_bytes: int, tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        async with stage(tmp_path) as (syncer, _, pull):
            assert syncer.service.storehouse is not None
            found = syncer.service.storehouse.body(pull.fragment, 0)
            assert found is not None
            with Proxy(syncer.url, Stop("down", after_bytes)) as proxy:
                bulk = Bulk(proxy.url, chunk_bytes=CHUNK, streams=1, timeouts=patient)
                path = api.version_path("small", pull.fragment, 0)
                body = await asyncio.to_thread(bulk.download, path, len(found[0]), found[1])
                bulk.close()
            assert body == found[0]
            assert proxy.fault is not None and proxy.fault.done.is_set()
            assert syncer.service.bytes_out <= BODY_BYTES + CHUNK

    run(tmp_path=tmp_path)


@pytest.mark.parametrize("chunk_bytes", [CHUNK, 1000])
def test_of_a_download_that_comes_damaged_the_chunk_is_fetched_again(chunk_bytes: int, tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        async with stage(tmp_path) as (syncer, _, pull):
            assert syncer.service.storehouse is not None
            found = syncer.service.storehouse.body(pull.fragment, 0)
            assert found is not None
            with Proxy(syncer.url, Spoil("down", (b"application/octet-stream", LINES_END), 50)) as proxy:
                bulk = Bulk(proxy.url, chunk_bytes=chunk_bytes, streams=1, timeouts=patient)
                path = api.version_path("small", pull.fragment, 0)
                body = await asyncio.to_thread(bulk.download, path, len(found[0]), found[1])
                bulk.close()
            assert body == found[0]
            assert proxy.fault is not None and proxy.fault.done.is_set()

    run(tmp_path=tmp_path)


class Mute:
    """Accepts connections and never says anything; reads what comes if it is told to."""

    def __init__(self, reads: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepted: list[socket.socket] = []
        self.is_connected = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._reads = reads
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._accepted.append(connection)
            self.is_connected.set()
            while self._reads and connection.recv(1 << 20):
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._accepted:
            connection.close()
        self._thread.join()


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("size", [100, 64 * 1024 * 1024])
def test_what_is_under_way_can_be_cancelled_from_another_thread(reads: bool, size: int) -> None:
    """In the middle of a body, and while an answer is waited for."""
    server = Mute(reads)
    bulk, outcomes = Bulk(server.url, streams=1, timeouts=patient), list[object]()

    def upload() -> None:
        outcomes.append(bulk.upload("/", {}, memoryview(bytes(size))))

    def download() -> None:
        try:
            bulk.download("/", size, body_digest(b""))
        except OSError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work) for work in (upload, download)]
    for thread in threads:
        thread.start()
    assert server.is_connected.wait(WAIT_S)
    bulk.cancel()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert len(outcomes) == 2
    bulk.close()
    server.close()


def test_a_transfer_that_does_not_move_is_given_up() -> None:
    server = Mute(reads=False)
    bulk = Bulk(server.url, streams=2, timeouts=impatient)
    answer = bulk.upload("/", {}, memoryview(bytes(10 * 1024 * 1024)))
    assert answer.status == 0 and "timed out" in answer.sentence
    with pytest.raises(OSError, match="timed out"):
        bulk.download("/", 100, body_digest(b""))
    bulk.close()
    server.close()


def test_a_syncer_that_is_away_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    bulk = Bulk(url, streams=2, timeouts=patient)
    assert bulk.upload("/", {}, memoryview(bytes(100))).status == 0
    with pytest.raises(OSError, match="refused"):
        bulk.download("/", 100, body_digest(b""))
    bulk.close()


@on_loop
async def test_a_learner_that_goes_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, learner, pull):
        with Proxy(syncer.url, Stop("up", 3000, Silent)) as proxy:
            bulk = Bulk(proxy.url, chunk_bytes=CHUNK, streams=1, timeouts=patient)
            path, query = place(learner, pull)
            upload = asyncio.create_task(asyncio.to_thread(bulk.upload, path, query, learner.body(pull.fragment, 1.0)))
            assert proxy.fault is not None
            assert await asyncio.to_thread(proxy.fault.done.wait, WAIT_S)
            await learner.join()  # A new start of it.
            bulk.cancel()
            assert (await upload).status == 0
            assert len(syncer.service.uploads) == 0
        assert (await asyncio.to_thread(lambda: syncer.log.events)) != []
        assert not [event for event in syncer.log.events if isinstance(event, FragmentCommitted)]
        bulk.close()


# ------------------------------------------------------------------------------------------------- over TLS


@pytest.mark.parametrize("direction", ["up", "down"])
def test_over_tls_too_a_transfer_goes_on_where_its_connection_broke(direction: Direction, tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        secrets = secrets_in(tmp_path / "secrets")
        security = secrets.client()
        async with live_syncer(small_config(), tmp_path, security=secrets.server()) as syncer:
            connector = aiohttp.TCPConnector(ssl=security.context(syncer.url) or True)
            async with aiohttp.ClientSession(connector=connector, headers=security.headers(syncer.url)) as session:
                learner = syncer.puppet(session, "l0")
                pull = await learner.start()
                path, query = place(learner, pull)
                body, version = learner.body(pull.fragment, 1.0), api.version_path("small", pull.fragment, 0)
                assert syncer.service.storehouse is not None
                found = syncer.service.storehouse.body(pull.fragment, 0)
                assert found is not None
                with Proxy(syncer.url, Stop(direction, 5000)) as proxy:
                    url = proxy.url.replace("http:", "https:")
                    bulk = Bulk(url, security, chunk_bytes=CHUNK, streams=2, timeouts=patient)
                    assert await asyncio.to_thread(bulk.upload, path, query, body) == TAKEN
                    assert await asyncio.to_thread(bulk.download, version, len(found[0]), found[1]) == found[0]
                    bulk.close()
                    assert proxy.fault is not None and proxy.fault.done.is_set()
                assert (await learner.hear(Settled)).refusal is None

    run(tmp_path=tmp_path)


@on_loop
async def test_a_syncer_that_is_not_vouched_for_is_told_at_once_and_not_tried_again(tmp_path: Path) -> None:
    secrets, others = secrets_in(tmp_path / "secrets"), secrets_in(tmp_path / "others")
    async with live_syncer(small_config(), tmp_path, security=secrets.server()) as syncer:
        with Proxy(syncer.url) as proxy:
            bulk = Bulk(proxy.url.replace("http:", "https:"), others.client(), timeouts=patient)
            answer = await asyncio.to_thread(bulk.upload, "/", {}, memoryview(bytes(100)))
            bulk.close()
        assert answer.status == 0 and "certificate" in answer.sentence
        assert 0 < proxy.passed["up"] < 2000

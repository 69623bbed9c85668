"""A learner's courier, in a process of its own and in threads: what it carries, and what becomes of it when it dies."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from support import courier_site as site
from support.body_server import BodyServer, body_server
from support.live_run import WAIT_S, live_syncer, small_config, train
from unlockstep.checkers import check
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.deeds import Moment
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.events import FragmentCommitted, RunFinished
from unlockstep.core.formats import Codec
from unlockstep.core.layout import Layout
from unlockstep.core.messages import HandedOver, VersionNotice
from unlockstep.core.options import ProtocolOptions
from unlockstep.learners.backend import State, TensorBits
from unlockstep.learners.state_body import Donated, encode_state
from unlockstep.learners.toy import ToyBackend
from unlockstep.net.clients.learner import LearnerClient
from unlockstep.net.courier import child as courier_child
from unlockstep.net.courier import process as courier_process
from unlockstep.net.courier.courier import Carrier, CarrierDied, Courier
from unlockstep.net.courier.jobs import Answered, GiveState
from unlockstep.net.wire.timeouts import derive

pytestmark = pytest.mark.skipif(not courier_child.is_available(), reason="this system has no courier processes")

MakeCarrier = Callable[[str], Carrier]
CARRIERS = {"process": site.child_carrier, "thread": site.thread_carrier}


@pytest.fixture(params=CARRIERS)
def make_carrier(request: pytest.FixtureRequest) -> MakeCarrier:
    return CARRIERS[request.param]


@pytest.fixture
def server() -> Iterator[BodyServer]:
    with body_server() as found:
        yield found


async def contribute(courier: Courier, path: str = "/up", fragment: int = 0, scale: float = 1.0) -> Answered:
    return await courier.contribute(site.contribution(fragment, scale), path, site.QUERY)


def contributed(fragment: int = 0, scale: float = 1.0) -> bytes:
    """The body of ``contribute``."""
    return site.body(fragment, site.values(fragment, scale) - site.values(fragment, scale / 4))


def offer(server: BodyServer, fragment: int, version: int, of: np.ndarray) -> VersionNotice:
    body = site.body(fragment, of)
    server.bodies[site.version_path(fragment, version)] = body
    return VersionNotice(fragment, version, body_digest(body))


def a_state(layout: Layout = site.LAYOUT) -> Donated:
    notices = tuple(VersionNotice(fragment, 3, "00" * 32) for fragment in range(layout.fragment_count))
    moments = {"exp_avg": TensorBits("float32", (100,), np.arange(400, dtype=np.uint8))}
    return Donated(notices, 9, (site.values(0), site.values(1)), State(moments, {"step": 4}), Moment("donor", 1, 9, 4))


# ------------------------------------------------------------------------------------------- what is carried


def test_a_contribution_arrives_as_anchor_minus_local(make_carrier: MakeCarrier, server: BodyServer) -> None:
    async def run() -> None:
        async with site.courier_of(make_carrier(server.url)) as courier:
            assert (await contribute(courier)).status == 202
            assert (await contribute(courier, fragment=1)).status == 202
            answered = await courier.seed(1, site.values(1), "/seed", site.QUERY)
            assert answered.status == 202
        assert server.uploads == [
            ("/up?tokens=10", contributed(0)),
            ("/up?tokens=10", contributed(1)),
            ("/seed?tokens=10", site.body(1, site.values(1))),
        ]

    asyncio.run(run())


def test_what_rounding_takes_is_carried_with_the_next_contribution_and_once_more_is_the_same(
    make_carrier: MakeCarrier, server: BodyServer
) -> None:
    """Also when it was settled meanwhile: then it takes nothing of what later ones have lost."""
    wire = FragmentCodec(site.LAYOUT, 0, Codec.INT4)
    first, second = (site.contribution(tokens=tokens, codec=Codec.INT4) for tokens in (10, 20))

    async def run() -> None:
        async with site.courier_of(make_carrier(server.url)) as courier:
            for made in (first, second, first):
                assert (await courier.contribute(made, "/up", site.QUERY)).status == 202
            courier.forget(HandedOver(first.round, first.fragment, first.tokens))
            assert (await courier.contribute(first, "/up", site.QUERY)).status == 202
        one, two, again, anew = (body for _, body in server.uploads)
        delta = first.anchor - first.local
        assert one == again == bytes(wire.encode(delta))
        assert two == bytes(wire.encode(delta + (delta - wire.decode(one))))
        assert anew == one

    asyncio.run(run())


def test_a_version_arrives_as_it_was_published(make_carrier: MakeCarrier, server: BodyServer) -> None:
    async def run() -> None:
        async with site.courier_of(make_carrier(server.url)) as courier:
            for version, (fragment, scale) in enumerate([(0, 1.0), (1, 2.0), (0, 3.0)]):
                notice = offer(server, fragment, version, site.values(fragment, scale))
                assert_array_equal(await courier.fetch(notice, {}), site.values(fragment, scale))

    asyncio.run(run())


def test_what_was_fetched_is_not_changed_by_what_is_fetched_later(
    make_carrier: MakeCarrier, server: BodyServer
) -> None:
    async def run() -> None:
        async with site.courier_of(make_carrier(server.url)) as courier:
            notices = [offer(server, 0, version, site.values(0, version)) for version in range(1, 6)]
            found = [await courier.fetch(notice, {}) for notice in notices]
            for version, each in enumerate(found, start=1):
                assert_array_equal(each, site.values(0, version))

    asyncio.run(run())


def test_a_state_arrives_as_it_was_given(make_carrier: MakeCarrier, server: BodyServer) -> None:
    async def run() -> None:
        async with site.courier_of(make_carrier(server.url)) as courier:
            given = [a_state()]
            assert (await courier.give_state(given, "/state", site.QUERY)).status == 202
            assert not given, "there are not two of it while it travels"
            ((_, body),) = server.uploads
            assert body == bytes(encode_state(a_state(), site.LAYOUT))
            server.bodies["/state"] = body
            taken = await courier.take_state("/state", {}, len(body), body_digest(body))
            assert (taken.clock, taken.notices, taken.inner.facts) == (9, a_state().notices, {"step": 4})
            for fragment in range(2):
                assert_array_equal(taken.fragments[fragment], site.values(fragment))
            assert_array_equal(taken.inner.tensors["exp_avg"].data, np.arange(400, dtype=np.uint8))

    asyncio.run(run())


def test_a_state_for_which_no_machine_has_room_is_not_to_be_had(make_carrier: MakeCarrier, server: BodyServer) -> None:
    """How large it is, a syncer says, and it may say anything: the learner goes on without it."""

    async def run() -> None:
        async with site.courier_of(make_carrier(server.url)) as courier:
            with pytest.raises(OSError, match="there is no room for 9007199254740992 bytes"):
                await courier.take_state("/state", {}, 2**53, "00" * 32)

    asyncio.run(run())


def test_what_is_not_to_be_had_is_said_in_a_sentence(make_carrier: MakeCarrier, server: BodyServer) -> None:
    async def run() -> None:
        server.status = 422
        async with site.courier_of(make_carrier(server.url)) as courier:
            assert (await contribute(courier)).status == 422
            with pytest.raises(RemoteProtocolError, match="404"):
                await courier.fetch(VersionNotice(0, 1, "00" * 32), {})
            with pytest.raises(RemoteProtocolError, match="fragment 2 is not part of this model"):
                await courier.fetch(VersionNotice(2, 1, "00" * 32), {})

    asyncio.run(run())


def test_another_leader_ends_what_is_under_way_to_the_one_before(make_carrier: MakeCarrier, server: BodyServer) -> None:
    async def run() -> None:
        hold = server.hold("/up")
        with body_server() as other:
            async with site.courier_of(make_carrier(server.url)) as courier:
                stuck = asyncio.create_task(contribute(courier))
                await asyncio.to_thread(hold.wait)
                courier.turn_to(other.url)
                assert (await stuck).status == 0
                assert (await contribute(courier, "/other")).status == 202
                assert other.uploads == [("/other?tokens=10", contributed())]

    asyncio.run(run())


def test_it_can_be_closed_while_it_carries(make_carrier: MakeCarrier, server: BodyServer) -> None:
    async def run() -> None:
        hold = server.hold("/up")
        async with site.courier_of(make_carrier(server.url)) as courier:
            stuck = asyncio.create_task(contribute(courier))
            await asyncio.to_thread(hold.wait)
        assert (await stuck).status == 0

    asyncio.run(run())


# ------------------------------------------------------------------------------------------- the process dies


needs_pidfd = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system does not tell when others end")


@contextmanager
def descriptor_of(pid: int) -> Iterator[int]:
    """Readable when the process has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def wait_for_end(process: int) -> None:
    assert select.select([process], [], [], WAIT_S)[0], "it has not ended"


def has_ended(process: int) -> bool:
    return bool(select.select([process], [], [], 0)[0])


def kill(carrier: courier_child.ChildCarrier) -> None:
    assert carrier.pid is not None
    os.kill(carrier.pid, signal.SIGKILL)


def test_a_courier_that_stands_still_is_replaced_and_what_it_had_is_carried(
    server: BodyServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(courier_child, "PING_S", 0.2)
    monkeypatch.setattr(courier_child, "PINGS_MAX", 3)

    async def run() -> None:
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier) as courier:
            stopped = await site.ready(carrier)
            os.kill(stopped, signal.SIGSTOP)
            assert (await contribute(courier)).status == 202
            assert carrier.pid != stopped

    asyncio.run(run())
    assert any("has ended (it has not answered 3 times); it is started again" in said for said in caplog.messages)


def test_a_courier_whose_transfer_hangs_is_not_taken_for_one_that_stands_still(
    server: BodyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_child, "PING_S", 0.2)

    async def run() -> None:
        hold = server.hold("/up")
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier) as courier:
            upload = asyncio.create_task(contribute(courier))
            await asyncio.to_thread(hold.wait)
            child = carrier._child
            assert child is not None
            for _ in range(2):
                child._has_answered = False
                while not child._has_answered:
                    assert not child.gone.is_set()
                    await asyncio.sleep(0)
            hold.release()
            assert (await upload).status == 202
            assert carrier._child is child

    asyncio.run(run())


def test_an_upload_whose_courier_is_killed_is_carried_by_the_next_one(server: BodyServer) -> None:
    async def run() -> None:
        hold = server.hold("/up")
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier) as courier:
            upload = asyncio.create_task(contribute(courier))
            await asyncio.to_thread(hold.wait)
            kill(carrier)
            await asyncio.to_thread(hold.wait)
            hold.release()
            assert (await upload).status == 202
            assert set(server.uploads) == {("/up?tokens=10", contributed())}

    asyncio.run(run())


def test_a_download_whose_courier_is_killed_is_carried_by_the_next_one(server: BodyServer) -> None:
    async def run() -> None:
        notice = offer(server, 0, 1, site.values(0))
        hold = server.hold(site.version_path(0, 1))
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier) as courier:
            fetch = asyncio.create_task(courier.fetch(notice, {}))
            await asyncio.to_thread(hold.wait)
            kill(carrier)
            await asyncio.to_thread(hold.wait)
            hold.release()
            assert_array_equal(await fetch, site.values(0))

    asyncio.run(run())


def test_a_job_that_kills_its_courier_again_has_failed_and_the_others_have_not(server: BodyServer) -> None:
    async def run() -> None:
        hold = server.hold("/up")
        notice = offer(server, 1, 1, site.values(1))
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier) as courier:
            upload = asyncio.create_task(contribute(courier))
            for _ in range(2):
                await asyncio.to_thread(hold.wait)
                kill(carrier)
            assert (await upload).status == 0
            assert_array_equal(await courier.fetch(notice, {}), site.values(1))

    asyncio.run(run())


def test_a_courier_that_is_killed_while_it_has_nothing_to_do_is_there_for_the_next_job(server: BodyServer) -> None:
    async def run() -> None:
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier) as courier:
            pids = []
            for _ in range(3):
                assert (await contribute(courier)).status == 202
                pids.append(await site.ready(carrier))
                with descriptor_of(pids[-1]) as process:
                    kill(carrier)
                    await asyncio.to_thread(wait_for_end, process)
            assert len(set(pids)) == 3

    asyncio.run(run())


@needs_pidfd
def test_a_job_for_a_courier_whose_death_nobody_has_noticed_yet_waits_for_the_next_one(server: BodyServer) -> None:
    async def run() -> None:
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier):
            pid = await site.ready(carrier)
            parcel = carrier.pack(10)
            job = GiveState(1, 10, derive(), "/up", site.QUERY)
            with descriptor_of(pid) as process:
                kill(carrier)
                wait_for_end(process)
            with pytest.raises(CarrierDied):
                await carrier.carry(job, parcel)
            assert isinstance(answered := await carrier.carry(job, parcel), Answered) and answered.status == 202

    asyncio.run(run())


@pytest.mark.parametrize(
    ("program", "why"),
    [
        pytest.param((sys.executable, "-c", "raise SystemExit(3)"), "exit code 3", id="ends at once"),
        pytest.param(("/nowhere/python",), "No such file", id="does not exist"),
    ],
)
def test_without_a_process_threads_do_its_work_and_it_is_said(
    program: tuple[str, ...], why: str, server: BodyServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with site.courier_of(site.child_carrier(server.url, program=program)) as courier:
            assert (await contribute(courier)).status == 202
            notice = offer(server, 0, 1, site.values(0))
            assert_array_equal(await courier.fetch(notice, {}), site.values(0))
        assert server.uploads == [("/up?tokens=10", contributed())]

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    (said,) = [record.message for record in caplog.records if "threads of this process" in record.message]
    assert why in said


def test_without_room_for_shared_memory_threads_do_the_job(
    server: BodyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No memfd_create, and a disk that is full."""
    import resource

    async def run() -> None:
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier) as courier:
            await site.ready(carrier)
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
            try:
                assert (await contribute(courier)).status == 202
                notice = offer(server, 0, 1, site.values(0))
                assert_array_equal(await courier.fetch(notice, {}), site.values(0))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert server.uploads == [("/up?tokens=10", contributed())]

    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "no room for memory to share" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_run_whose_couriers_are_killed_again_and_again_counts_every_token_once(tmp_path: Path) -> None:
    protocol = ProtocolOptions(fragments=2, interval_steps=2, grace_factor=0.0, quorum=2)
    clients: list[LearnerClient] = []
    killed: set[int] = set()

    async def run() -> None:
        config = small_config(protocol=protocol)
        async with live_syncer(config, tmp_path) as syncer:
            training = asyncio.gather(
                *(
                    asyncio.to_thread(train, syncer, f"l{i}", ToyBackend(seed=i, noise=0.1), "process", clients.append)
                    for i in range(2)
                )
            )
            for count in itertools.count(1):
                happened = await syncer.log.until(FragmentCommitted | RunFinished, count=count)  # type: ignore[arg-type]
                if isinstance(happened[-1], RunFinished):
                    break
                for client in clients:
                    if client.courier_pid is not None:
                        os.kill(client.courier_pid, signal.SIGKILL)
                        killed.add(client.courier_pid)
            await training
            assert len(killed) > 2
            ledger = syncer.service.status().ledger
            fates = ledger.merged, ledger.merged_late, *ledger.refused.values(), ledger.dropped, ledger.overwritten
            assert ledger.in_flight == 0 and sum(fates) == ledger.trained and ledger.merged > 0
            assert check(syncer.log.events, config.protocol, timer_ns=10**9, transfer_ns=10**10) == []

    asyncio.run(run())


# ------------------------------------------------------------------------------------------- its learner dies


@contextmanager
def learner_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A learner in a process group of its own, and the descriptors of its courier and of its worker, if it has one."""
    command = [sys.executable, site.__file__, *arguments]
    paths = [str(Path(site.__file__).parents[1]), *sys.path]
    with ExitStack() as stack:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        yield process, [stack.enter_context(descriptor_of(pid)) for pid in pids]


@needs_pidfd
def test_a_courier_does_not_outlive_a_learner_that_is_killed(server: BodyServer) -> None:
    with learner_process(server.url) as (learner, (courier,)):
        assert not has_ended(courier)
        learner.kill()
        wait_for_end(courier)


@needs_pidfd
def test_a_worker_that_was_forked_does_not_keep_the_courier_of_a_dead_learner(server: BodyServer) -> None:
    """A worker of a data loader has a copy of everything its learner had open."""
    with learner_process(server.url, "fork") as (learner, (courier, worker)):
        learner.kill()
        wait_for_end(courier)
        assert not has_ended(worker)
        assert learner.stdin is not None
        learner.stdin.close()
        wait_for_end(worker)


@needs_pidfd
@pytest.mark.parametrize("polite", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_asks_the_learner_to_end_does_not_end_its_courier(polite: signal.Signals, server: BodyServer) -> None:
    """Ctrl-C reaches every process of a terminal, and the learner still has to hand over."""

    async def run() -> None:
        hold = server.hold("/up")
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier) as courier:
            pid = await site.ready(carrier)
            upload = asyncio.create_task(contribute(courier))
            await asyncio.to_thread(hold.wait)
            os.kill(pid, polite)
            hold.release()
            assert (await upload).status == 202
            assert carrier.pid == pid

    asyncio.run(run())


# ------------------------------------------------------------------------------------------- beside training


def test_a_thread_that_never_gives_up_the_interpreter_does_not_keep_an_upload_from_arriving(server: BodyServer) -> None:
    """Until the body is there, this thread holds the lock, in a call that waits for nothing else. In a thread of this
    process the upload would wait for it in turn, for ever."""
    command = [sys.executable, "-c", HOLDING_SERVER]
    with ExitStack() as stack:
        ours, theirs = os.pipe()
        stack.callback(os.close, ours)
        holding = subprocess.Popen(
            [*command, str(theirs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[theirs]
        )
        stack.enter_context(holding)
        os.close(theirs)
        assert holding.stdin is not None and holding.stdout is not None
        url = f"http://127.0.0.1:{int(holding.stdout.readline())}"

        async def run() -> None:
            async with site.courier_of(site.child_carrier(url)) as courier:
                upload = asyncio.create_task(contribute(courier))
                await asyncio.to_thread(holding.stdout.readline)  # It has begun.
                holding.stdin.write(b"go\n")
                holding.stdin.flush()
                told = ctypes.create_string_buffer(1)
                assert ctypes.PyDLL(None).read(ours, told, 1) == 1
                assert told.raw == b"x"
                assert (await upload).status == 202

        asyncio.run(run())


HOLDING_SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    connection, _ = listening.accept()
    got = b""
    while b"\\r\\n\\r\\n" not in got:
        got += connection.recv(1000)
    print("begun", flush=True)
    sys.stdin.readline()
    head, _, body = got.partition(b"\\r\\n\\r\\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    left = length - len(body)
    while left:
        left -= len(connection.recv(min(left, 65536)))
    open(int(sys.argv[1]), "wb", buffering=0).write(b"x")
    connection.sendall(b"HTTP/1.1 202 Accepted\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    connection.recv(1)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what a process holds is read from /proc")
def test_thousands_of_jobs_leave_nothing_behind(server: BodyServer) -> None:
    def held(pid: int) -> tuple[int, int]:
        """Descriptors, and mappings of shared memory."""
        gc.collect()
        with open(f"/proc/{pid}/maps") as maps:
            return len(os.listdir(f"/proc/{pid}/fd")), sum("memfd:unlockstep" in line for line in maps)

    async def run() -> None:
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier) as courier:
            pid = await site.ready(carrier)
            notices = [offer(server, 1, version, site.values(1, version)) for version in range(1000)]

            async def both(notice: VersionNotice) -> None:
                fetched, answered = await asyncio.gather(courier.fetch(notice, {}), contribute(courier, fragment=1))
                assert answered.status == 202 and fetched.size == site.LAYOUT.fragment_size(1)

            for notice in notices[:20]:
                await both(notice)
            before = held(os.getpid()), held(pid)
            for notice in notices:
                await both(notice)
            after = held(os.getpid()), held(pid)
            assert carrier.pid == pid
            assert after == before

    asyncio.run(run())


# ------------------------------------------------------------------------------------------- what it is


def test_no_secret_is_in_the_command_line_or_environment_of_the_process(server: BodyServer) -> None:
    async def run() -> None:
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier):
            pid = await site.ready(carrier)
            for name in ("cmdline", "environ"):
                assert site.TOKEN.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()

    asyncio.run(run())


def test_the_process_gives_way_to_training(server: BodyServer) -> None:
    async def run() -> None:
        carrier = site.child_carrier(server.url)
        async with site.courier_of(carrier):
            pid = await site.ready(carrier)
            given = min(19, os.nice(0) + courier_process.NICENESS)
            assert os.getpriority(os.PRIO_PROCESS, pid) == given

    asyncio.run(run())


def test_the_process_loads_neither_a_framework_nor_an_event_loop() -> None:
    check = "import sys, unlockstep.net.courier.process; print(*{'torch', 'aiohttp', 'asyncio'} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""

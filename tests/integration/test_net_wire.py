"""What a peer can send to a syncer over the wire, sound and unsound, and what the run makes of it: the real service and
core on loopback, learners by hand."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from support.live_run import WAIT_S, LiveSyncer, live_syncer, small_config
from unlockstep import config as run_config
from unlockstep.config import CodecSection, RunConfig
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    RunSeeded,
)
from unlockstep.core.formats import Codec, Packing
from unlockstep.core.messages import (
    Evaluation,
    Fenced,
    HandedOver,
    Heartbeat,
    Published,
    Pull,
    Settled,
    Welcome,
    encode,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import DepartureReason, RefusalReason
from unlockstep.core.status import Status
from unlockstep.net.wire import api
from unlockstep.net.wire.ranges import BodyDigest


@asynccontextmanager
async def wire(
    folder: Path, config: RunConfig | None = None
) -> AsyncIterator[tuple[LiveSyncer, aiohttp.ClientSession]]:
    async with live_syncer(config or small_config(), folder) as syncer, aiohttp.ClientSession() as session:
        yield syncer, session


def on_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run an asynchronous test; pytest sees an ordinary one."""

    def run(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(test(tmp_path), 2 * WAIT_S))

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


async def raw(syncer: LiveSyncer, request: bytes, hang_up: bool = False) -> bytes:
    """What the syncer answers to these bytes until it closes; or until we do, right after them."""
    host, port = syncer.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    if hang_up:
        writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()
    await writer.wait_closed()
    return answer


# ------------------------------------------------------------------------------------------------- sound bodies


@on_loop
async def test_a_contribution_is_committed_to_the_bit_and_can_be_fetched(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        assert await learner.contribute(pull, learner.body(pull.fragment, 0.25)) == (202, {"outcome": "received"})
        settled = await learner.hear(Settled)
        assert (settled.round, settled.refusal, settled.late) == (pull.round, None, False)
        (commit,) = await syncer.log.until(FragmentCommitted)
        async with session.get(f"{syncer.base}/fragments/{pull.fragment}/versions/1") as response:
            body = await response.read()
            headers = response.headers
        codec = FragmentCodec(learner.layout, pull.fragment, Codec.FLOAT32)
        assert_array_equal(codec.decode(body), np.full(codec.size, -0.25, np.float32))
        assert headers["ETag"] == f'"{commit.digest}"' and "immutable" in headers["Cache-Control"]
        assert headers["Cache-Control"].startswith("private"), "a proxy keeps it for nobody else, who may have no token"
        assert api.parse_content_digest(headers["Content-Digest"]) == BodyDigest(commit.digest)
        async with session.get(
            f"{syncer.base}/fragments/{pull.fragment}/versions/1", headers={"If-None-Match": headers["ETag"]}
        ) as response:
            assert response.status == 304


@on_loop
async def test_bfloat16_uploads_take_two_bytes_an_element(tmp_path: Path) -> None:
    """C16"""
    config = small_config(codec=CodecSection(upload=Codec.BFLOAT16, download=Codec.FLOAT32))
    async with wire(tmp_path, config) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        body = learner.body(pull.fragment, 1 / 3)
        wide = FragmentCodec(learner.layout, pull.fragment, Codec.FLOAT32)
        assert wide.body_size - len(body) >= 2 * wide.size - 64  # Headers are padded to a cache line.
        assert (await learner.contribute(pull, body))[0] == 202
        await syncer.log.until(FragmentCommitted)
        assert syncer.service.storehouse is not None
        nearest = np.float32(0.333984375)  # 1/3 to 8 significant bits
        assert_array_equal(syncer.service.storehouse.values(pull.fragment), np.full(wide.size, -nearest))


@on_loop
async def test_a_repeated_upload_is_answered_the_same_and_counts_once(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        body = learner.body(pull.fragment, 1.0)
        answers = await asyncio.gather(*(learner.contribute(pull, body) for _ in range(4)))
        assert answers == [(202, {"outcome": "received"})] * 4
        await syncer.log.until(FragmentCommitted)
        assert await learner.contribute(pull, body) == answers[0]
        await learner.say(Heartbeat("l0", learner.incarnation))
        assert len([e for e in syncer.log.events if isinstance(e, ContributionAccepted)]) == 1
        assert syncer.service.status().refusals == {}


# ------------------------------------------------------------------------------------------------- unsound bodies


UNSOUND = {
    "nan": (lambda body: body[:-4] + b"\0\0\xc0\x7f", {}, 422, RefusalReason.NON_FINITE),
    "infinite": (lambda body: body[:-4] + b"\0\0\x80\x7f", {}, 422, RefusalReason.NON_FINITE),
    "absurd": (lambda body: body[:-4] + b"\x99\x76\x96\x7e", {}, 422, RefusalReason.ABSURD_NORM),  # 1e38
    "oversize": (lambda body: body + b"\0", {}, 413, RefusalReason.WRONG_SIZE),
    "undersize": (lambda body: body[:-1], {}, 422, RefusalReason.WRONG_SIZE),
    "empty": (lambda body: b"", {}, 422, RefusalReason.WRONG_SIZE),
    "other header": (lambda body: b"\xff" * 8 + body[8:], {}, 422, RefusalReason.MALFORMED),
    "tokens below zero": (lambda body: body, {"c_tokens": -5}, 422, RefusalReason.BAD_COUNTS),
    "tokens not a number": (lambda body: body, {"c_tokens": "nan"}, 422, RefusalReason.BAD_COUNTS),
    "tokens not whole": (lambda body: body, {"c_tokens": 1e30}, 422, RefusalReason.BAD_COUNTS),
    "tokens beyond 64 bits": (lambda body: body, {"c_tokens": 10**30}, 422, RefusalReason.BAD_COUNTS),
    "tokens without steps": (lambda body: body, {"c_steps": 0}, 422, RefusalReason.BAD_COUNTS),
    "a format that the run does not take": (lambda body: body, {"codec": "int2"}, 422, RefusalReason.MALFORMED),
    "a packing that the run does not take": (lambda body: body, {"packing": "zlib"}, 422, RefusalReason.MALFORMED),
    "base from the future": (lambda body: body, {"base_version": 7}, 202, RefusalReason.STALE_BASE),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_contribution_is_refused_and_counted_and_the_run_goes_on(name: str, tmp_path: Path) -> None:
    """C9"""
    spoil, query, status, reason = UNSOUND[name]

    async def run() -> None:
        async with wire(tmp_path) as (syncer, session):
            learner, other = (syncer.puppet(session, name) for name in ("bad", "good"))
            pull = await learner.start()
            answer = await learner.contribute(pull, spoil(bytes(learner.body(pull.fragment, 1.0))), **query)
            assert answer[0] == status
            assert (await learner.hear(Settled)).refusal is reason
            (refused,) = await syncer.log.until(ContributionRefused)
            assert (refused.learner, refused.reason) == ("bad", reason)
            assert syncer.service.storehouse is not None and syncer.service.storehouse.held_count == 0
            wanted = await other.start()
            assert (await other.contribute(wanted, other.body(wanted.fragment, 1.0)))[0] == 202
            assert (await other.hear(Settled)).refusal is None

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


@on_loop
async def test_a_body_that_was_damaged_on_its_way_is_sent_again_and_counts(tmp_path: Path) -> None:
    """It is not what its sender has made, so it says nothing of it."""
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        body, digest = bytes(learner.body(pull.fragment, 1.0)), body_digest(learner.body(pull.fragment, 1.0))
        status, answer = await learner.contribute(pull, body[:-1] + b"\1", digest)
        assert status == 400 and answer["error"] == "the body does not have the digest it was sent with"
        assert answer["missing"] == [[0, len(body)]]
        assert (await learner.contribute(pull, body, digest))[0] == 202
        assert (await learner.hear(Settled)).refusal is None
        assert syncer.service.status().refusals == {}


PACKED = {
    "as it should be": (lambda body: zlib.compress(body), 202, None),
    "not packed": (lambda body: body, 422, RefusalReason.MALFORMED),
    "a bomb": (lambda body: zlib.compress(bytes(10**7)), 413, RefusalReason.WRONG_SIZE),
    "a small bomb": (lambda body: zlib.compress(bytes(10**6)), 422, RefusalReason.MALFORMED),
    "another body": (lambda body: zlib.compress(body[:-1]), 422, RefusalReason.MALFORMED),
    "not a number": (lambda body: zlib.compress(body[:-2] + b"\xc0\x7f"), 422, RefusalReason.NON_FINITE),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_contribution_is_taken_for_what_is_in_it(name: str, tmp_path: Path) -> None:
    """Of int8 the packed body is the body compressed; nothing more than a body is made of what a stranger sends."""
    make, status, refusal = PACKED[name]
    codec = CodecSection(upload=Codec.INT8, upload_packing=Packing.ZLIB, download=Codec.FLOAT32)

    async def run() -> None:
        async with wire(tmp_path, small_config(codec=codec)) as (syncer, session):
            learner = syncer.puppet(session, "l0")
            pull = await learner.start()
            body = make(bytes(learner.body(pull.fragment, 1.0)))
            assert (await learner.contribute(pull, body, packing="zlib"))[0] == status
            assert (await learner.hear(Settled)).refusal is refusal

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


@on_loop
async def test_a_learner_refused_too_often_is_quarantined_told_and_cut_off(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "bad")
        await learner.join()
        await learner.seed()
        strikes_max = syncer.config.protocol.strikes_max
        for _ in range(strikes_max):
            await learner.step()
            await learner.step()
            pull = await learner.hear(Pull)
            await learner.contribute(pull, learner.body(pull.fragment, float("nan")))
        assert (await learner.hear(Fenced)).reason is DepartureReason.QUARANTINED
        await learner.closed()
        (departed,) = await syncer.log.until(LearnerDeparted)
        assert departed.reason is DepartureReason.QUARANTINED


@on_loop
async def test_an_upload_that_breaks_off_has_no_effect_and_can_be_sent_again(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        body = bytes(learner.body(pull.fragment, 1.0))
        where = f"run_id=id&fragment={pull.fragment}&base_version=0&codec={pull.codec.value}"
        path = f"/v1/runs/small/rounds/{pull.round}/contributions/l0.1?{where}"
        head = (
            f"PUT {path}&c_steps=1&c_tokens=10&tokens=20 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            f"Content-Digest: {api.content_digest('00' * 32)}\r\n\r\n"
        )
        await raw(syncer, head.encode() + body[:-10], hang_up=True)
        assert await learner.contribute(pull, body) == (202, {"outcome": "received"})
        assert (await learner.hear(Settled)).refusal is None
        assert syncer.service.status().refusals == {}


@on_loop
async def test_a_round_that_never_was_is_refused_by_name(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        await learner.start()
        unknown = Pull(10**17, 1)
        assert (await learner.contribute(unknown, learner.body(1, 1.0)))[0] == 202
        assert (await learner.hear(Settled)).refusal is RefusalReason.UNKNOWN_ROUND


@on_loop
async def test_an_earlier_start_of_a_learner_is_told_cut_off_and_its_upload_refused(tmp_path: Path) -> None:
    """C19"""
    async with wire(tmp_path) as (syncer, session):
        old, new = syncer.puppet(session, "l0"), syncer.puppet(session, "l0")
        pull = await old.start()
        assert (await new.join()).incarnation == old.incarnation + 1
        assert (await old.hear(Fenced)).reason is DepartureReason.SUPERSEDED
        await old.closed()
        assert (await old.contribute(pull, old.body(pull.fragment, 1.0)))[0] == 202
        (refused,) = await syncer.log.until(ContributionRefused)
        assert refused.reason is RefusalReason.STALE_INCARNATION


@on_loop
async def test_who_is_back_after_its_lease_hands_over_again_what_was_refused(tmp_path: Path) -> None:
    """C19"""
    config = small_config(protocol=ProtocolOptions(fragments=2, interval_steps=2, grace_factor=0.0, lease_s=2.0))
    async with wire(tmp_path, config) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        body = learner.body(pull.fragment, 1.0)
        assert (await learner.hear(Fenced)).reason is DepartureReason.LEASE_EXPIRED
        await learner.closed()
        assert (await learner.contribute(pull, body))[0] == 202
        (refused,) = await syncer.log.until(ContributionRefused)
        assert refused.reason is RefusalReason.STALE_INCARNATION
        kept = HandedOver(pull.round, pull.fragment, refused.tokens)
        welcome = await learner.join(again=True, unsettled=(kept,))
        assert (welcome.incarnation, welcome.wanted) == (refused.incarnation + 1, (kept,))
        assert (await learner.contribute(pull, body))[0] == 202
        assert (await learner.hear(Settled)).refusal is None
        ledger = syncer.service.status().ledger
        assert (ledger.merged, ledger.refused, ledger.lost) == (refused.c_tokens / 2, {}, 0)


# ------------------------------------------------------------------------------------------------- malformed requests

SOUND_QUERY = "run_id=id&fragment=0&base_version=0&codec=float32&c_steps=1&c_tokens=1&tokens=1"
DIGEST = f"Content-Digest: {api.content_digest('00' * 32)}\r\n"

MALFORMED = {
    "no such path": ("GET /v2", "", 404),
    "no such run": ("GET /v1/runs/other", "", 404),
    "path with dots": ("GET /v1/runs/small/../../../etc/passwd", "", 404),
    "path with encoded dots": ("GET /v1/runs/small/%2e%2e/%2e%2e/etc/passwd", "", 404),
    "learner with a slash": (f"PUT /v1/runs/small/rounds/0/contributions/a%2Fb.1?{SOUND_QUERY}", DIGEST, 404),
    "learner with dots": (f"PUT /v1/runs/small/rounds/0/contributions/...1?{SOUND_QUERY}", DIGEST, 404),
    "learner too long": (f"PUT /v1/runs/small/rounds/0/contributions/{'a' * 65}.1?{SOUND_QUERY}", DIGEST, 404),
    "learner with a null": (f"PUT /v1/runs/small/rounds/0/contributions/a%00.1?{SOUND_QUERY}", DIGEST, 404),
    "digits of another script": (f"PUT /v1/runs/small/rounds/%D9%A1/contributions/l0.1?{SOUND_QUERY}", DIGEST, 404),
    "round below zero": (f"PUT /v1/runs/small/rounds/-1/contributions/l0.1?{SOUND_QUERY}", DIGEST, 404),
    "round beyond 64 bits": (f"PUT /v1/runs/small/rounds/{10**19}/contributions/l0.1?{SOUND_QUERY}", DIGEST, 404),
    "learner unknown": (f"PUT /v1/runs/small/rounds/0/contributions/who.1?{SOUND_QUERY}", DIGEST, 403),
    "no digest": (f"PUT /v1/runs/small/rounds/0/contributions/l0.1?{SOUND_QUERY}", "", 400),
    "no query": ("PUT /v1/runs/small/rounds/0/contributions/l0.1", DIGEST, 400),
    "fragment unknown": (
        f"PUT /v1/runs/small/rounds/0/contributions/l0.1?{SOUND_QUERY.replace('fragment=0', 'fragment=9')}",
        DIGEST,
        404,
    ),
    "format unknown": (
        f"PUT /v1/runs/small/rounds/0/contributions/l0.1?{SOUND_QUERY.replace('float32', 'int5')}",
        DIGEST,
        400,
    ),
    "chunked": (
        f"PUT /v1/runs/small/rounds/0/contributions/l0.1?{SOUND_QUERY}",
        DIGEST + "Transfer-Encoding: chunked\r\n\r\n0\r\n",
        411,
    ),
    "version of the future": ("GET /v1/runs/small/fragments/0/versions/9", "", 404),
    "fragment of another model": ("GET /v1/runs/small/fragments/9/versions/0", "", 404),
    "version below zero": ("GET /v1/runs/small/fragments/0/versions/-1", "", 404),
    "seed of version 1": ("PUT /v1/runs/small/fragments/0/versions/1?run_id=id&learner=l0&incarnation=1", DIGEST, 405),
    "seed from anybody": ("PUT /v1/runs/small/fragments/0/versions/0?run_id=id&learner=l0&incarnation=1", DIGEST, 409),
    "seed of another run": ("PUT /v1/runs/small/fragments/0/versions/0?run_id=x&learner=l0&incarnation=1", DIGEST, 403),
    "contribution of another run": (
        f"PUT /v1/runs/small/rounds/0/contributions/l0.1?{SOUND_QUERY.replace('id&', 'x&')}",
        DIGEST,
        403,
    ),
    "control without upgrade": ("GET /v1/runs/small/control", "", 400),
    "observer with a slash": ("GET /v1/runs/small/control?observer=a/b", "", 400),
    "wrong method": ("DELETE /v1/runs/small", "", 405),
    "not http": ("nonsense", "", 400),
    "header without end": ("GET /v1/runs/small", f"X: {'y' * 20_000}\r\n", 400),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one running syncer answers to each of them, one after the other; afterwards the run still goes on."""
    found: dict[str, bytes] = {}

    async def run() -> None:
        async with wire(tmp_path_factory.mktemp("malformed")) as (syncer, session):
            learner = syncer.puppet(session, "l0")
            pull = await learner.start()
            for name, (line, headers, _) in MALFORMED.items():
                request = f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
                found[name] = await raw(syncer, request.encode())
            assert (await learner.contribute(pull, learner.body(pull.fragment, 1.0)))[0] == 202
            assert (await learner.hear(Settled)).refusal is None
            assert syncer.service.status().refusals == {}

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))
    return found


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_gets_a_4xx_and_has_no_effect(name: str, answers: dict[str, bytes]) -> None:
    head, _, body = answers[name].partition(b"\r\n\r\n")
    assert int(head.split()[1]) == MALFORMED[name][2], head
    assert b"Traceback" not in answers[name]
    if name not in ("not http", "header without end"):  # Those never reach a resource.
        assert json.loads(body)["error"]


# ------------------------------------------------------------------------------------------------- control connections


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1\xff\x00", id="not msgpack"),
        pytest.param(encode(Heartbeat("l0", 1)), id="not a Join"),
        pytest.param(encode(Evaluation("l0", 0, 0.0, 0.0, ())), id="an evaluation"),
        pytest.param("text", id="text"),
    ],
)
def test_a_connection_that_does_not_begin_with_join_is_closed_with_a_reason(frame: bytes | str, tmp_path: Path) -> None:
    async def run() -> None:
        async with wire(tmp_path) as (syncer, session):
            socket = await session.ws_connect(syncer.base + "/control")
            await (socket.send_str(frame) if isinstance(frame, str) else socket.send_bytes(frame))
            closed = await socket.receive(timeout=WAIT_S)
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.PROTOCOL_ERROR)
            assert closed.extra
            assert syncer.log.events == []

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


@on_loop
async def test_a_learner_may_not_speak_for_another(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        one, two = syncer.puppet(session, "one"), syncer.puppet(session, "two")
        await one.join()
        await two.join()
        await one.say(Heartbeat("two", two.incarnation))
        assert await one.closed() == aiohttp.WSCloseCode.PROTOCOL_ERROR
        (away,) = await syncer.log.until(LearnerAway)
        assert away.learner == "one"


@on_loop
async def test_the_same_process_takes_its_connection_anew_under_the_same_incarnation(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        broken = syncer.puppet(session, "l0")
        broken.socket = learner.socket
        assert (await learner.join(again=True)).incarnation == 1
        await broken.closed()
        joined = await syncer.log.until(LearnerJoined, count=2)
        assert [event.resumed for event in joined] == [False, True]
        assert (await learner.contribute(pull, learner.body(pull.fragment, 1.0)))[0] == 202
        assert (await learner.hear(Settled)).refusal is None
        assert not [e for e in syncer.log.events if isinstance(e, LearnerAway)]


@on_loop
async def test_a_late_observer_is_told_the_newest_versions_first(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        await learner.contribute(pull, learner.body(pull.fragment, 1.0))
        await syncer.log.until(FragmentCommitted)
        observer = syncer.puppet(session, "eval")
        await observer.observe()
        notices = [(await observer.hear(Published)).notice for _ in range(2)]
        assert {n.fragment: n.version for n in notices} == {pull.fragment: 1, 1 - pull.fragment: 0}
        await observer.say(Heartbeat("eval", 1))
        assert await observer.closed() == aiohttp.WSCloseCode.PROTOCOL_ERROR


# ------------------------------------------------------------------------------------------------- seeding


@on_loop
async def test_a_seeder_that_dies_is_replaced_and_nothing_of_its_is_kept(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        first, second = (
            syncer.puppet(session, "first"),
            syncer.puppet(session, "second"),
        )
        assert (await first.join()).seed
        assert not (await second.join()).seed
        await first.seed(1.0, fragments=[0])
        await first.socket.close()
        assert (await second.hear(Welcome)).seed
        assert (await first.seed(1.0, fragments=[1]))[0][0] == 409
        await second.seed(2.0)
        await syncer.log.until(RunSeeded, learner="second")
        assert syncer.service.storehouse is not None
        for fragment in range(2):
            assert set(syncer.service.storehouse.values(fragment)) == {2.0}
        assert [answer[0] for answer in await second.seed(2.0)] == [200, 200]
        assert [answer[0] for answer in await second.seed(3.0)] == [409, 409]


@on_loop
async def test_a_seeder_that_loses_its_connection_on_the_way_seeds_from_the_first_fragment_on(tmp_path: Path) -> None:
    """What it had brought is still here; the core has to hear of it again."""
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        assert (await learner.join()).seed
        await learner.seed(1.0, fragments=[0])
        await learner.socket.close()
        await syncer.log.until(LearnerAway)
        assert (await learner.join(again=True)).seed
        assert [status for status, _ in await learner.seed(1.0)] == [200, 201]
        await syncer.log.until(RunSeeded, learner="l0")


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_seed_that_is_not_finite_is_refused_and_may_be_sent_again(value: float, tmp_path: Path) -> None:
    async def run() -> None:
        async with wire(tmp_path) as (syncer, session):
            learner = syncer.puppet(session, "l0")
            await learner.join()
            assert [status for status, _ in await learner.seed(value)] == [400, 400]
            assert [status for status, _ in await learner.seed(1.0)] == [201, 201]
            await syncer.log.until(RunSeeded)

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


# ------------------------------------------------------------------------------------------------- what people see


@on_loop
async def test_status_metrics_page_and_configuration_are_served(tmp_path: Path) -> None:
    async with wire(tmp_path) as (syncer, session):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        await learner.contribute(pull, learner.body(pull.fragment, float("nan")))
        await syncer.log.until(ContributionRefused)

        async def text(path: str) -> str:
            async with session.get(syncer.url + path) as response:
                assert response.status == 200
                return await response.text()

        assert await text("/healthz") == "ok"
        assert json.loads(await text("/v1/runs")) == ["small"]
        status = msgspec.json.decode(await text("/v1/runs/small"), type=Status)
        assert [one.learner for one in status.learners] == ["l0"] and status.clock == 2
        assert run_config.loads(await text("/v1/runs/small/config")) == syncer.config
        metrics = (await text("/metrics")).splitlines()
        assert 'unlockstep_refusals_total{reason="non_finite"} 1' in metrics
        assert "unlockstep_clock_steps 2" in metrics and "unlockstep_learners_live 1" in metrics
        assert f'unlockstep_body_bytes_total{{way="in"}} {syncer.service.bytes_in}' in metrics
        assert (await text("/")).startswith("<!doctype html>")

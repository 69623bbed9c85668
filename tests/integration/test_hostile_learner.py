"""What the holder of a learner's token may try on its control connection and with bodies, over real sockets: it is
refused with a reason or heard no faster, and the others' run goes on."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from support.gates import Stranger, on_loop, refusals
from support.live_run import WAIT_S, LiveSyncer, live_syncer, small_config
from unlockstep.config import LimitsSection
from unlockstep.core.codec import body_digest
from unlockstep.core.events import Event, StepReported
from unlockstep.core.messages import MESSAGE_BYTES_MAX, Settled, StateAsked, StateWanted
from unlockstep.net.access.limits import Bucket
from unlockstep.net.syncer import resources
from unlockstep.net.wire import api


async def goes_on(syncer: LiveSyncer, session: aiohttp.ClientSession) -> None:
    """An honest learner joins and is merged."""
    honest = syncer.puppet(session, "honest")
    pull = await honest.start()
    assert (await honest.contribute(pull, honest.body(pull.fragment, 1.0)))[0] == 202
    assert (await honest.hear(Settled)).refusal is None


# ------------------------------------------------------------------------------------------------- control frames


def frame(first: int, body: bytes) -> bytes:
    """Of a client, with a mask of zeros."""
    return bytes([first, 0xFF]) + len(body).to_bytes(8, "big") + bytes(4) + body


LAST, BINARY, COMPRESSED = 0x80, 0x02, 0x40
MIB = bytes(2**20)

FRAMES: dict[str, bytes] = {
    "too long": frame(LAST | BINARY, bytes(MESSAGE_BYTES_MAX + 1)),
    "too long, of which nothing comes": bytes([LAST | BINARY, 0xFF]) + (2**62).to_bytes(8, "big") + bytes(4),
    "too long in pieces": frame(BINARY, MIB) + frame(0, MIB) * (MESSAGE_BYTES_MAX // len(MIB)),
    "deep": frame(LAST | BINARY, b"\x91" * 100_000),
    "deep in a field": frame(LAST | BINARY, b"\x82\xa4type\xa4Join\xa1x" + b"\x91" * 100_000),
    "packed": frame(LAST | COMPRESSED | BINARY, bytes(10)),
    "a piece of nothing": frame(LAST, b"x"),
    "half a frame": frame(LAST | BINARY, bytes(100))[:50],
}
HANGS_UP = ("half a frame",)


@pytest.mark.parametrize("case", FRAMES)
def test_a_frame_that_is_no_message_costs_its_connection_and_nothing_else(case: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(small_config(), tmp_path) as syncer, aiohttp.ClientSession() as session:
            stranger = await Stranger.at(syncer.url)
            key = base64.b64encode(os.urandom(16)).decode()
            upgrade = (
                f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}"
            )
            asks = "Sec-WebSocket-Extensions: permessage-deflate"
            path = api.control_path("small")
            await stranger.says(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n{asks}\r\n\r\n".encode())
            head = await stranger.hears(b"\r\n\r\n")
            assert b" 101 " in head and b"deflate" not in head, "packed messages are not agreed to"
            with suppress(ConnectionError):
                await stranger.says(FRAMES[case])
            if case in HANGS_UP:
                await stranger.hangs_up()
            await stranger.is_cut()
            if case not in HANGS_UP:
                assert [reason for reason, _ in refusals(tmp_path)] == ["malformed"]
            assert syncer.log.events == []
            await goes_on(syncer, session)

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


@on_loop
async def test_who_opens_a_control_connection_and_says_nothing_is_cut(tmp_path: Path) -> None:
    async with live_syncer(small_config(), tmp_path) as syncer, aiohttp.ClientSession() as session:
        syncer.service.timeouts = replace(syncer.service.timeouts, reply_s=0.05)
        silent = syncer.puppet(session, "silent")
        await silent.connect()
        assert await silent.closed() == aiohttp.WSCloseCode.PROTOCOL_ERROR
        assert refusals(tmp_path) == [("malformed", "no Join came within 0.05 s")]


class Shut(Bucket):
    """An allowance that does not fill up until it is let."""

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        assert (rate, burst) == (resources.MESSAGES_PER_S, resources.MESSAGES_BURST)
        super().__init__(0.0, HEARD, now_s)
        self.is_open = False
        shut.append(self)

    def take(self, now_s: float) -> bool:
        return self.is_open or super().take(now_s)


HEARD = 8
shut: list[Shut] = []


def test_who_says_too_much_is_heard_no_faster_and_others_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand reports as many are heard as a connection may make at once; the others wait where they are."""
    shut.clear()
    monkeypatch.setattr(resources, "Bucket", Shut)

    async def run() -> None:
        async with live_syncer(small_config(), tmp_path) as syncer, aiohttp.ClientSession() as session:
            loud = syncer.puppet(session, "loud")
            await loud.join()
            await loud.seed()
            for _ in range(1000):
                await loud.step()
            await syncer.log.until(StepReported, count=HEARD, learner="loud")
            await goes_on(syncer, session)
            assert len([event for event in syncer.log.events if _is_step(event, "loud")]) == HEARD
            shut[0].is_open = True
            await syncer.log.until(StepReported, count=1000, learner="loud")

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


def _is_step(event: Event, learner: str) -> bool:
    return isinstance(event, StepReported) and event.learner == learner


# ------------------------------------------------------------------------------------------------- bodies


@on_loop
async def test_a_body_that_is_packed_on_its_way_is_refused_and_not_unpacked(tmp_path: Path) -> None:
    async with live_syncer(small_config(), tmp_path) as syncer, aiohttp.ClientSession() as session:
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        body = bytes(learner.body(pull.fragment, 1.0))
        path = api.contribution_path("small", pull.round, "l0", learner.incarnation)
        query = {"run_id": "id", "fragment": pull.fragment, "base_version": 0, "codec": "float32"}
        counts = {"c_steps": 1, "c_tokens": 10, "tokens": 20}
        fields = {api.CONTENT_DIGEST: api.content_digest(body_digest(body)), "Content-Encoding": "gzip"}
        async with session.put(syncer.url + path, params=query | counts, data=body, headers=fields) as response:
            assert (response.status, await response.json()) == (415, {"error": "bodies travel uncompressed"})
        assert (await learner.contribute(pull, body))[0] == 202
        assert (await learner.hear(Settled)).refusal is None


STATES: dict[str, tuple[Callable[[bytes], bytes], str, int]] = {
    "too large": (lambda state: state + bytes(1), "l0", 413),
    "of somebody who was not asked": (lambda state: state, "l1", 400),
}


@pytest.mark.parametrize("case", STATES)
def test_a_state_that_nobody_has_asked_for_so_is_refused(case: str, tmp_path: Path) -> None:
    spoil, name, status = STATES[case]
    config = small_config(limits=LimitsSection(state_bytes_max=1000))

    async def run() -> None:
        async with live_syncer(config, tmp_path) as syncer, aiohttp.ClientSession() as session:
            donor, wanting = syncer.puppet(session, "l0"), syncer.puppet(session, "l1")
            await donor.start()
            await wanting.join()
            await wanting.say(StateWanted("l1", wanting.incarnation, 0))
            asked = await donor.hear(StateAsked)
            sender = {"l0": donor, "l1": wanting}[name]
            query = {"run_id": "id", "learner": name, "incarnation": sender.incarnation}
            body = spoil(bytes(1000))
            found, answer = await donor.put(f"/states/{asked.ticket}", body, query)
            assert (found, "error" in answer) == (status, True)
            async with session.get(f"{syncer.base}/states/{asked.ticket}") as response:
                assert response.status == 404

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))

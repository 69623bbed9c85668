"""Parts of bodies on the wire, as anybody can ask for them and send them: the real service, requests by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.bulk_stage import BODY_BYTES, on_loop, place, stage
from support.live_run import LiveSyncer, Puppet, live_syncer, small_config
from unlockstep.core.codec import body_digest
from unlockstep.core.digests import SHA256, digest_of, hasher
from unlockstep.core.events import ContributionAccepted, ContributionRefused, FragmentCommitted, RunSeeded
from unlockstep.core.messages import Pull, Settled, StateAsked, StateReady, StateWanted
from unlockstep.core.reasons import RefusalReason
from unlockstep.net.bulk.client import Answer, Bulk
from unlockstep.net.wire import api
from unlockstep.net.wire.ranges import BodyDigest, Span, content_range

CHUNK = 128


class Sender:
    """One upload in chunks, by hand."""

    def __init__(
        self, session: aiohttp.ClientSession, syncer: LiveSyncer, learner: Puppet, pull: Pull, body: bytes
    ) -> None:
        self.body = body
        path, self.query = place(learner, pull)
        self.url = syncer.url + path
        self._session = session
        self.digest = BodyDigest.of_chunks(
            [digest_of(body[at : at + CHUNK]) for at in range(0, len(body), CHUNK)], CHUNK
        )

    async def put(
        self,
        start: int,
        stop: int,
        *,
        size: int | None = None,
        data: bytes | None = None,
        here: str | None = None,
        digest: BodyDigest | None = None,
        **fields: str,
    ) -> tuple[int, Any]:
        """Status and JSON of the answer to a chunk; what is not given is sound."""
        data = self.body[start:stop] if data is None else data
        headers = {
            "Content-Range": content_range(Span(start, stop), len(self.body) if size is None else size),
            api.CONTENT_DIGEST: api.content_digest(body_digest(data) if here is None else here),
            **api.digest_fields(digest or self.digest),
            **fields,
        }
        async with self._session.put(self.url, params=self.query, data=data, headers=headers) as response:
            return response.status, await response.json()


@on_loop
async def test_the_answer_to_a_chunk_says_what_is_missing_and_the_last_what_becomes_of_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, learner, pull), aiohttp.ClientSession() as session:
        sender = Sender(session, syncer, learner, pull, bytes(learner.body(pull.fragment, 1.0)))
        status, answer = await sender.put(128, 256)
        assert (status, answer["missing"]) == (202, [[0, 128], [256, 512]])
        assert answer["upload"] and "outcome" not in answer
        assert (await sender.put(384, 512))[1]["missing"] == [[0, 128], [256, 384]]
        assert (await sender.put(128, 256))[1] == (await sender.put(384, 512))[1], "a chunk that is here is taken again"
        asked = await sender.put(0, 0, data=b"", **{"Content-Range": "bytes */512"})
        assert asked == (202, {"upload": answer["upload"], "missing": [[0, 128], [256, 384]]})
        await sender.put(0, 128)
        assert await sender.put(256, 384) == (202, {"outcome": "received"})
        assert (await learner.hear(Settled)).refusal is None
        for span in ((0, 128), (256, 384)):
            assert await sender.put(*span) == (202, {"outcome": "received"}), "a replayed chunk of one that is settled"
        assert len([event for event in syncer.log.events if isinstance(event, ContributionAccepted)]) == 1
        assert len(syncer.service.uploads) == 0


UNSOUND: dict[str, tuple[dict[str, Any], int, str]] = {
    "misaligned": ({"start": 1, "stop": 129}, 400, "bytes 1-128 are no chunk of 128 bytes; chunks do not overlap"),
    "overlapping": ({"start": 64, "stop": 192}, 400, "bytes 64-191 are no chunk of 128 bytes; chunks do not overlap"),
    "two chunks": ({"start": 0, "stop": 256}, 400, "bytes 0-255 are no chunk of 128 bytes; chunks do not overlap"),
    "half a chunk": ({"start": 0, "stop": 64}, 400, "bytes 0-63 are no chunk of 128 bytes; chunks do not overlap"),
    "behind the end": (
        {"start": 512, "stop": 640, "data": bytes(128)},
        400,
        "Content-Range is 'bytes 512-639/512'; write bytes FIRST-LAST/SIZE, with FIRST <= LAST < SIZE",
    ),
    "shorter than it says": (
        {"start": 128, "stop": 256, "data": b"short"},
        400,
        "the request has 5 bytes, its Content-Range 128",
    ),
    "no digest of the whole": (
        {"start": 128, "stop": 256, api.CHUNKS_DIGEST: ""},
        400,
        "Chunks-Digest must be blake3=:<32 bytes in base64>:;chunk=<bytes of a chunk>",
    ),
    "no digest of the chunk": (
        {"start": 128, "stop": 256, api.CONTENT_DIGEST: ""},
        400,
        "Content-Digest must be blake3 or sha-256, =, and :<32 bytes in base64>:",
    ),
    "another hash": (
        {"start": 128, "stop": 256, api.CONTENT_DIGEST: api.content_digest("00" * 32, SHA256)},
        400,
        "the digest of the chunk is sha-256, that of the whole blake3",
    ),
    "too many chunks": (
        {"start": 0, "stop": 1, "size": 2**40, "digest": BodyDigest("00" * 32, 1)},
        400,
        "1099511627776 bytes are 1099511627776 chunks of 1; at most 131072",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_chunk_is_refused_with_a_sentence_and_the_upload_goes_on(name: str, tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        async with stage(tmp_path) as (syncer, learner, pull), aiohttp.ClientSession() as session:
            sender = Sender(session, syncer, learner, pull, bytes(learner.body(pull.fragment, 1.0)))
            await sender.put(0, 128)
            arguments, status, sentence = UNSOUND[name]
            assert await sender.put(**arguments) == (status, {"error": sentence})
            for start in (128, 256, 384):
                answer = await sender.put(start, start + 128)
            assert answer == (202, {"outcome": "received"})
            assert syncer.service.status().refusals == {}

    run(tmp_path=tmp_path)


@on_loop
async def test_a_chunk_that_comes_damaged_stays_missing(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, learner, pull), aiohttp.ClientSession() as session:
        sender = Sender(session, syncer, learner, pull, bytes(learner.body(pull.fragment, 1.0)))
        await sender.put(0, 128)
        status, answer = await sender.put(128, 256, here="00" * 32)
        assert (status, answer["missing"]) == (400, [[128, 512]])
        assert answer["error"] == "chunk 1 does not have the digest it was sent with"
        for start in (128, 256, 384):
            answer = await sender.put(start, start + 128)
        assert answer == (202, {"outcome": "received"})


@on_loop
async def test_chunks_that_are_sound_and_do_not_make_the_body_announced_are_no_body(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, learner, pull), aiohttp.ClientSession() as session:
        sender = Sender(session, syncer, learner, pull, bytes(learner.body(pull.fragment, 1.0)))
        for start in range(0, BODY_BYTES, CHUNK):
            answer = await sender.put(start, start + CHUNK, digest=BodyDigest("00" * 32, CHUNK))
        assert answer == (422, {"error": "the body does not have the digest it was sent with"})
        (refused,) = await syncer.log.until(ContributionRefused)
        assert refused.reason is RefusalReason.DIGEST_MISMATCH


@on_loop
async def test_another_size_in_a_later_chunk_is_another_upload_and_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, learner, pull), aiohttp.ClientSession() as session:
        sender = Sender(session, syncer, learner, pull, bytes(learner.body(pull.fragment, 1.0)))
        await sender.put(0, 128)
        status, answer = await sender.put(128, 256, size=640)
        assert (status, answer["error"]) == (413, "the body has 640 bytes, fragment 0 takes exactly 512")
        assert (await sender.put(128, 256))[1]["missing"] == [[256, 512]]


@on_loop
async def test_the_same_chunk_twice_at_once_is_read_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, learner, pull), aiohttp.ClientSession() as session:
        sender = Sender(session, syncer, learner, pull, bytes(learner.body(pull.fragment, 1.0)))
        before = syncer.service.bytes_in
        answers = await asyncio.gather(*(sender.put(128, 256) for _ in range(5)))
        assert all(answer == answers[0] for answer in answers)
        assert syncer.service.bytes_in - before == CHUNK
        spans = [(start, start + CHUNK) for start in (0, 256, 384)] * 3
        answers = await asyncio.gather(*(sender.put(*span) for span in spans))
        assert (202, {"outcome": "received"}) in answers
        assert (await learner.hear(Settled)).refusal is None
        assert len([event for event in syncer.log.events if isinstance(event, ContributionAccepted)]) == 1


@on_loop
async def test_a_whole_body_known_by_sha_256_is_taken(tmp_path: Path) -> None:
    """As ``curl`` with ``sha256sum`` sends it."""
    async with stage(tmp_path) as (syncer, learner, pull), aiohttp.ClientSession() as session:
        body, (path, query) = bytes(learner.body(pull.fragment, 1.0)), place(learner, pull)
        hashed = hasher(SHA256)
        hashed.update(body)
        headers = {api.CONTENT_DIGEST: api.content_digest(hashed.hexdigest(), SHA256)}
        async with session.put(syncer.url + path, params=query, data=body, headers=headers) as response:
            assert response.status == 202
        assert (await learner.hear(Settled)).refusal is None


# ------------------------------------------------------------------------------------------------- ranges

RANGES: dict[str, tuple[dict[str, str], int, slice, str | None]] = {
    "all": ({}, 200, slice(0, 512), None),
    "first byte": ({"Range": "bytes=0-0"}, 206, slice(0, 1), "bytes 0-0/512"),
    "middle": ({"Range": "bytes=100-199"}, 206, slice(100, 200), "bytes 100-199/512"),
    "to the end": ({"Range": "bytes=500-"}, 206, slice(500, 512), "bytes 500-511/512"),
    "beyond the end": ({"Range": "bytes=500-9999"}, 206, slice(500, 512), "bytes 500-511/512"),
    "last": ({"Range": "bytes=-10"}, 206, slice(502, 512), "bytes 502-511/512"),
    "several": ({"Range": "bytes=0-1,4-5"}, 200, slice(0, 512), None),
    "nonsense": ({"Range": "lines=0-1"}, 200, slice(0, 512), None),
    "of another body": ({"Range": "bytes=0-0", "If-Range": '"other"'}, 200, slice(0, 512), None),
    "of this body": ({"Range": "bytes=0-0", "If-Range": "ETAG"}, 206, slice(0, 1), "bytes 0-0/512"),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_range_of_a_version_is_answered_as_the_standard_says(name: str, tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        async with stage(tmp_path) as (syncer, _, pull), aiohttp.ClientSession() as session:
            assert syncer.service.storehouse is not None
            found = syncer.service.storehouse.body(pull.fragment, 0)
            assert found is not None
            body, etag = bytes(found[0]), f'"{found[1]}"'
            sent, status, span, content = RANGES[name]
            headers = {field: value.replace("ETAG", etag) for field, value in sent.items()}
            url = syncer.url + api.version_path("small", pull.fragment, 0)
            for method in ("GET", "HEAD"):
                async with session.request(method, url, headers=headers) as response:
                    assert response.status == status
                    assert response.headers.get("Content-Range") == content
                    assert response.headers["ETag"] == etag and response.headers["Accept-Ranges"] == "bytes"
                    assert (api.CONTENT_DIGEST in response.headers) == (status == 200)
                    assert int(response.headers["Content-Length"]) == span.stop - span.start
                    assert await response.read() == (body[span] if method == "GET" else b"")

    run(tmp_path=tmp_path)


@on_loop
async def test_a_range_without_a_byte_is_refused_with_the_size(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, _, pull), aiohttp.ClientSession() as session:
        url = syncer.url + api.version_path("small", pull.fragment, 0)
        async with session.get(url, headers={"Range": "bytes=512-"}) as response:
            assert (response.status, response.headers["Content-Range"]) == (416, "bytes */512")
            assert await response.json() == {"error": "the body has 512 bytes, none of them is in bytes=512-"}


@on_loop
async def test_the_digests_of_the_chunks_of_a_version_can_be_had(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, _, pull), aiohttp.ClientSession() as session:
        assert syncer.service.storehouse is not None
        found = syncer.service.storehouse.body(pull.fragment, 0)
        assert found is not None
        for _ in range(2):
            async with session.get(syncer.url + api.version_path("small", pull.fragment, 0) + "/digests") as response:
                assert await response.json() == {"chunk_bytes": api.CHUNK_BYTES, "digests": [found[1]]}
        async with session.get(syncer.url + api.version_path("small", pull.fragment, 5) + "/digests") as response:
            assert response.status == 404


@on_loop
async def test_a_version_that_is_being_read_stays_readable_when_the_next_ones_are_there(tmp_path: Path) -> None:
    """C40"""
    async with stage(tmp_path) as (syncer, learner, pull), aiohttp.ClientSession() as session:
        assert syncer.service.storehouse is not None
        found = syncer.service.storehouse.body(pull.fragment, 0)
        assert found is not None
        body, url = bytes(found[0]), syncer.url + api.version_path("small", pull.fragment, 0)
        async with session.get(url, headers={"Range": "bytes=0-99"}) as response:
            first = await response.read()
        assert (await learner.contribute(pull, learner.body(pull.fragment, 1.0)))[0] == 202
        await syncer.log.until(FragmentCommitted)
        syncer.service.recent.expire(syncer.service.now_ns + 10**12)  # It is being read, not only recent.
        async with session.get(url, headers={"Range": "bytes=100-", "If-Range": f'"{found[1]}"'}) as response:
            assert response.status == 206
            assert first + await response.read() == body
        syncer.service.holds.expire(syncer.service.now_ns + 10**12)
        async with session.get(url) as response:
            assert response.status == 410


# ------------------------------------------------------------------------------------------------- life


@on_loop
async def test_bytes_that_pass_renew_the_lease_of_their_learner(tmp_path: Path) -> None:
    """C27: whatever keeps its messages, a learner whose bytes come and go is there."""
    config = small_config()
    now_ns, lease_ns = [0], config.protocol.lease_ns
    async with (
        live_syncer(config, tmp_path, clock=lambda: now_ns[0]) as syncer,
        aiohttp.ClientSession() as session,
    ):
        learner = syncer.puppet(session, "l0")
        pull = await learner.start()
        sender = Sender(session, syncer, learner, pull, bytes(learner.body(pull.fragment, 1.0)))

        def silent_ns() -> int:
            (status,) = syncer.service.status().learners
            return status.silent_ns

        now_ns[0] += lease_ns - 1
        assert silent_ns() == lease_ns - 1
        await sender.put(0, 128)
        assert silent_ns() == 0
        now_ns[0] += lease_ns // 4 - 1
        await sender.put(128, 256)
        assert silent_ns() == lease_ns // 4 - 1, "the core hears of it four times a lease"
        url = syncer.url + api.version_path("small", pull.fragment, 0)
        for query, silence_ns in (({}, lease_ns // 2), ({"learner": "l0", "incarnation": "1"}, 0)):
            now_ns[0] += lease_ns // 2 - silent_ns()
            async with session.get(url, params=query) as response:
                assert response.status == 200
                await response.read()
            assert silent_ns() == silence_ns


# ------------------------------------------------------------------------------------------------- states


@on_loop
async def test_the_state_of_a_learner_travels_in_chunks_both_ways(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, donor, _), aiohttp.ClientSession() as session:
        wanting = syncer.puppet(session, "l1")
        await wanting.join()
        await wanting.say(StateWanted("l1", wanting.incarnation, 0))
        asked = await donor.hear(StateAsked)
        state, path = memoryview(bytes(range(256)) * 5), api.state_path("small", asked.ticket)
        query = {"run_id": "id", "learner": "l0", "incarnation": str(donor.incarnation)}
        bulk = Bulk(syncer.url, chunk_bytes=100, streams=3)
        assert await asyncio.to_thread(bulk.upload, path, query, state) == Answer(201, "")
        assert await asyncio.to_thread(bulk.upload, path, query, state) == Answer(201, ""), "its answer was lost"
        ready = await wanting.hear(StateReady)
        assert (ready.ticket, ready.size_bytes) == (asked.ticket, 1280)
        assert BodyDigest.parse(ready.digest).chunk_bytes == 100
        reader = {"learner": "l1", "incarnation": str(wanting.incarnation)}
        found = await asyncio.to_thread(bulk.download, path, ready.size_bytes, ready.digest, query=reader)
        assert found == state
        bulk.close()


@on_loop
async def test_a_state_that_is_not_wanted_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, donor, _):
        query = {"run_id": "id", "learner": "l0", "incarnation": str(donor.incarnation)}
        bulk = Bulk(syncer.url, chunk_bytes=100, streams=1)
        answer = await asyncio.to_thread(bulk.upload, api.state_path("small", 7), query, memoryview(bytes(300)))
        assert answer == Answer(400, "the state of l0.1 is not wanted under this ticket")
        assert len(syncer.service.uploads) == 0
        bulk.close()


@pytest.mark.parametrize("size", [1, 99, 100, 101, 200])
def test_states_of_any_size_arrive(size: int, tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        async with stage(tmp_path) as (syncer, donor, _), aiohttp.ClientSession() as session:
            wanting = syncer.puppet(session, "l1")
            await wanting.join()
            await wanting.say(StateWanted("l1", wanting.incarnation, 0))
            path = api.state_path("small", (await donor.hear(StateAsked)).ticket)
            query = {"run_id": "id", "learner": "l0", "incarnation": str(donor.incarnation)}
            bulk, state = Bulk(syncer.url, chunk_bytes=100, streams=2), memoryview(bytes(range(size)))
            assert await asyncio.to_thread(bulk.upload, path, query, state) == Answer(201, "")
            ready = await wanting.hear(StateReady)
            assert await asyncio.to_thread(bulk.download, path, size, ready.digest) == state
            bulk.close()

    run(tmp_path=tmp_path)


@on_loop
async def test_a_seed_in_chunks_is_stored_and_may_be_sent_again(tmp_path: Path) -> None:
    async with live_syncer(small_config(), tmp_path) as syncer, aiohttp.ClientSession() as session:
        learner = syncer.puppet(session, "l0")
        assert (await learner.join()).seed
        query = {"run_id": "id", "learner": "l0", "incarnation": str(learner.incarnation)}
        bulk = Bulk(syncer.url, chunk_bytes=100, streams=2)
        for fragment in range(2):
            body, path = learner.body(fragment, 0.0), api.version_path("small", fragment, 0)
            assert await asyncio.to_thread(bulk.upload, path, query, body) == Answer(201, "")
            assert await asyncio.to_thread(bulk.upload, path, query, body) == Answer(200, "")
        await syncer.log.until(RunSeeded, learner="l0")
        bulk.close()


@on_loop
async def test_the_last_chunk_of_a_state_twice_at_once_is_acted_upon_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, donor, _), aiohttp.ClientSession() as session:
        wanting = syncer.puppet(session, "l1")
        await wanting.join()
        await wanting.say(StateWanted("l1", wanting.incarnation, 0))
        path, state = api.state_path("small", (await donor.hear(StateAsked)).ticket), bytes(range(200))
        digest = BodyDigest.of_chunks([digest_of(state[:100]), digest_of(state[100:])], 100)
        query = {"run_id": "id", "learner": "l0", "incarnation": str(donor.incarnation)}

        async def put(start: int) -> int:
            data = state[start : start + 100]
            headers = {
                "Content-Range": content_range(Span(start, start + 100), 200),
                api.CONTENT_DIGEST: api.content_digest(body_digest(data)),
                **api.digest_fields(digest),
            }
            async with session.put(syncer.url + path, params=query, data=data, headers=headers) as response:
                return response.status

        assert await put(0) == 202
        assert await asyncio.gather(*(put(100) for _ in range(8))) == [201] * 8
        ready = await wanting.hear(StateReady)
        async with session.get(syncer.url + path) as response:
            assert (response.status, await response.read()) == (200, state)
        assert ready.size_bytes == 200

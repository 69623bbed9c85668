"""The bulk client against a live syncer: bodies in chunks and ranges, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.bulk_stage import BODY_BYTES, TAKEN, on_loop, place, stage
from unlockstep.core.codec import body_digest
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.events import ContributionAccepted, FragmentCommitted
from unlockstep.core.messages import Settled
from unlockstep.net.bulk.client import Answer, Bulk
from unlockstep.net.wire import api

SIZES = (1, 63, 64, 127, 128, 129, 511, 512, 513)
"""Of chunks; a body of the toy model has 512 bytes."""


@pytest.mark.parametrize("chunk_bytes", SIZES)
def test_a_body_arrives_whole_whatever_chunks_it_is_cut_into(chunk_bytes: int, tmp_path: Path) -> None:
    @on_loop
    async def run(tmp_path: Path) -> None:
        async with stage(tmp_path) as (syncer, learner, pull):
            body = learner.body(pull.fragment, 0.25)
            assert len(body) == BODY_BYTES
            path, query = place(learner, pull)
            bulk, moved = Bulk(syncer.url, chunk_bytes=chunk_bytes, streams=3), list[int]()
            assert await asyncio.to_thread(bulk.upload, path, query, body, moved=moved.append) == TAKEN
            assert sum(moved) == BODY_BYTES
            assert (await learner.hear(Settled)).refusal is None
            (commit,) = await syncer.log.until(FragmentCommitted)
            assert syncer.service.storehouse is not None
            kept = syncer.service.storehouse.body(pull.fragment, 1)
            assert kept is not None
            where = api.version_path("small", pull.fragment, 1)
            found = await asyncio.to_thread(bulk.download, where, len(kept[0]), commit.digest)
            assert found == kept[0]
            assert len(syncer.service.uploads) == 0
            bulk.close()

    run(tmp_path=tmp_path)


@on_loop
async def test_an_upload_in_chunks_that_is_sent_again_is_answered_the_same_and_counts_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, learner, pull):
        body, (path, query) = learner.body(pull.fragment, 1.0), place(learner, pull)
        bulks = [Bulk(syncer.url, chunk_bytes=64, streams=2) for _ in range(3)]
        answers = await asyncio.gather(*(asyncio.to_thread(bulk.upload, path, query, body) for bulk in bulks))
        assert answers == [TAKEN] * 3
        await syncer.log.until(FragmentCommitted)
        assert await asyncio.to_thread(bulks[0].upload, path, query, body) == TAKEN
        assert len([event for event in syncer.log.events if isinstance(event, ContributionAccepted)]) == 1
        for bulk in bulks:
            bulk.close()


@on_loop
async def test_what_the_syncer_refuses_is_told_with_its_sentence(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, learner, pull):
        bulk, (path, query) = Bulk(syncer.url, chunk_bytes=64), place(learner, pull)
        body = learner.body(pull.fragment, float("nan"))
        answer = await asyncio.to_thread(bulk.upload, path, query, body)
        assert answer.status == 422 and "non_finite" in answer.sentence
        answer = await asyncio.to_thread(bulk.upload, path, query, memoryview(bytes(513)))
        assert answer == Answer(413, "the body has 513 bytes, fragment 0 takes exactly 512")
        answer = await asyncio.to_thread(bulk.upload, path.replace("l0", "who"), query, body)
        assert answer == Answer(403, "learner who has never joined this run")
        bulk.close()


@on_loop
async def test_a_version_that_is_not_to_be_had_is_a_remote_error_with_the_reason(tmp_path: Path) -> None:
    async with stage(tmp_path) as (syncer, _, pull):
        bulk = Bulk(syncer.url, chunk_bytes=64)
        with pytest.raises(RemoteProtocolError, match="fragment 0 has no version 7 yet"):
            await asyncio.to_thread(
                bulk.download, api.version_path("small", pull.fragment, 7), 512, body_digest(b"whatever")
            )
        bulk.close()


def test_without_a_syncer_an_upload_has_no_answer_and_a_download_fails() -> None:
    bulk = Bulk("http://127.0.0.1:9", chunk_bytes=64)
    bulk.cancel()
    assert bulk.upload("/", {}, memoryview(bytes(100))).status == 0
    with pytest.raises(OSError):
        bulk.download("/", 100, body_digest(bytes(100)))
    bulk.close()

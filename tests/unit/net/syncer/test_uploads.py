"""Uploads that have not arrived whole: what is missing, what is let in, when they are forgotten."""

from __future__ import annotations

import random

import pytest

from unlockstep.core.digests import digest_of, hasher
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.syncer.uploads import GIVES_WAY_NS, Announced, Full, MemorySink, Upload, Uploads
from unlockstep.net.wire.ranges import BodyDigest, Span

CHUNK = 10


def announced(body: bytes, learner: str = "a", path: str = "/x", query: str = "", chunk: int = CHUNK) -> Announced:
    chunks = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)]
    digest = BodyDigest.of_chunks([digest_of(each) for each in chunks], CHUNK) if chunk else BodyDigest("00" * 32)
    return Announced(learner, 1, path, query, digest, len(body))


def memory(size: int) -> MemorySink:
    return MemorySink(memoryview(bytearray(size)))


def bring(upload: Upload, body: bytes, index: int) -> None:
    """As ``intake`` does."""
    span = upload.grid.span(index)
    upload.sink.write(span.start, body[span.start : span.stop])
    upload.arrived(index, digest_of(body[span.start : span.stop]))


@pytest.mark.parametrize("size", [1, 9, 10, 11, 19, 20, 21, 99])
def test_chunks_in_any_order_make_the_body(size: int) -> None:
    body = random.Random(size).randbytes(size)
    upload = Uploads().open(announced(body), memory, 0)
    order = list(range(upload.grid.count))
    random.Random(size).shuffle(order)
    for index in order:
        assert not upload.is_whole and not upload.has(index)
        bring(upload, body, index)
        assert upload.has(index)
    assert upload.is_whole and upload.is_sound and upload.missing() == ()
    assert isinstance(upload.sink, MemorySink) and upload.sink.body == body


def test_what_is_missing_is_told_in_as_few_gaps_as_can_be() -> None:
    body = bytes(65)
    upload = Uploads().open(announced(body), memory, 0)
    assert upload.missing() == (Span(0, 65),)
    bring(upload, body, 1)
    bring(upload, body, 2)
    bring(upload, body, 4)
    assert upload.missing() == (Span(0, 10), Span(30, 40), Span(50, 65))
    bring(upload, body, 6)
    assert upload.missing() == (Span(0, 10), Span(30, 40), Span(50, 60))


def test_of_many_gaps_the_first_are_told() -> None:
    body = bytes(CHUNK * 200)
    upload = Uploads().open(announced(body), memory, 0)
    for index in range(1, 200, 2):
        bring(upload, body, index)
    assert upload.missing() == tuple(Span(20 * n, 20 * n + 10) for n in range(64))


def test_a_body_that_is_not_the_one_announced_is_unsound() -> None:
    upload = Uploads().open(announced(b"x" * 20), memory, 0)
    for index in range(2):
        bring(upload, b"y" * 20, index)
    assert upload.is_whole and not upload.is_sound


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 100])
@pytest.mark.parametrize("algorithm", ["blake3", "sha-256"])
def test_a_body_in_one_piece_is_one_chunk(body: bytes, algorithm: str) -> None:
    hashed = hasher(algorithm)
    hashed.update(body)
    what = Announced("a", 1, "/x", "", BodyDigest(hashed.hexdigest(), algorithm=algorithm), len(body))
    upload = Uploads().open(what, memory, 0)
    assert upload.is_whole == (not body)
    if body:
        upload.sink.write(0, body)
        upload.arrived(0, hashed.digest())
    assert upload.is_whole and upload.is_sound


def test_the_same_upload_is_opened_once_and_any_other_is_another() -> None:
    uploads, body = Uploads(), bytes(25)
    one = uploads.open(announced(body), memory, 0)
    assert uploads.open(announced(body), memory, 5) is one
    others = [announced(body, path="/y"), announced(body, learner="b", path="/z"), announced(bytes(26), path="/w")]
    assert len({uploads.open(other, memory, 0).token for other in others} | {one.token}) == 4


def test_another_body_for_the_same_address_replaces_one_that_nobody_is_sending() -> None:
    uploads = Uploads()
    one = uploads.open(announced(b"x" * 20), memory, 0)
    two = uploads.open(announced(b"y" * 20), memory, 0)
    assert one.is_forgotten and not two.is_forgotten and len(uploads) == 1
    with two.reading():
        three = uploads.open(announced(b"z" * 20), memory, 0)
        assert not two.is_forgotten and not three.is_forgotten and len(uploads) == 2


def test_a_learner_with_too_many_is_refused_until_one_of_them_is_idle() -> None:
    uploads = Uploads(per_learner_max=2)
    first, second = (uploads.open(announced(bytes(20), path=f"/{n}"), memory, n) for n in range(2))
    with pytest.raises(Full, match="learner a has too many uploads under way"):
        uploads.open(announced(bytes(20), path="/2"), memory, 2)
    uploads.open(announced(bytes(20), learner="b", path="/3"), memory, 2)
    with first.reading():
        uploads.open(announced(bytes(20), path="/4"), memory, GIVES_WAY_NS + 1)
    assert second.is_forgotten and not first.is_forgotten


def test_all_together_are_bounded_in_bytes_and_one_is_always_let_in() -> None:
    uploads = Uploads(bytes_max=50)
    large = uploads.open(announced(bytes(60), path="/0"), memory, 0)
    with pytest.raises(Full, match="hold 60 bytes; 10 more exceed the limit of 50"):
        uploads.open(announced(bytes(10), learner="b", path="/1"), memory, 0)
    uploads.forget(large)
    assert uploads.held_bytes == 0
    uploads.open(announced(bytes(30), path="/2"), memory, 0)
    uploads.open(announced(bytes(20), learner="b", path="/3"), memory, 0)
    assert uploads.held_bytes == 50


def test_what_does_not_move_is_forgotten_and_what_is_being_read_is_not() -> None:
    uploads = Uploads(idle_s_max=2)
    idle, busy, whole = (uploads.open(announced(bytes(10), path=f"/{n}"), memory, 0) for n in range(3))
    bring(whole, bytes(10), 0)
    with busy.reading():
        uploads.expire(2 * NANOSECONDS_PER_SECOND - 1)
        assert not idle.is_forgotten
        uploads.expire(2 * NANOSECONDS_PER_SECOND)
    assert idle.is_forgotten and not busy.is_forgotten and not whole.is_forgotten
    uploads.expire(2 * NANOSECONDS_PER_SECOND)
    assert busy.is_forgotten and not whole.is_forgotten


def test_the_uploads_of_a_start_go_with_it() -> None:
    uploads = Uploads()
    gone, other = (
        uploads.open(announced(bytes(20)), memory, 0),
        uploads.open(announced(b"", "b", "/y"), memory, 0),
    )
    uploads.depart("a", 2)
    assert not gone.is_forgotten
    uploads.depart("a", 1)
    assert gone.is_forgotten and not other.is_forgotten


def test_a_sink_stays_open_as_long_as_somebody_writes_to_it() -> None:
    discarded = []

    class Sink(MemorySink):
        def discard(self) -> None:
            discarded.append(self)

    uploads = Uploads()
    upload = uploads.open(announced(bytes(20)), lambda size: Sink(memoryview(bytearray(size))), 0)
    with upload.reading():
        uploads.forget_path("/x")
        assert upload.is_forgotten and not discarded
    assert len(discarded) == 1

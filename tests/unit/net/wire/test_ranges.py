"""Ranges as HTTP writes them, and bodies cut into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.digests import digest_of, hasher
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.net.wire.ranges import (
    BodyDigest,
    Grid,
    Span,
    Unsatisfiable,
    content_range,
    no_content_range,
    parse_content_range,
    parse_range,
    range_field,
)

EMPTY = digest_of(b"").hex()


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_content_range_reads_back(start: int, length: int, behind: int) -> None:
    span, size = Span(start, start + length), start + length + behind
    assert parse_content_range(content_range(span, size)) == (span, size)
    assert parse_content_range(no_content_range(size)) == (None, size)


def test_ranges_are_written_as_the_standard_writes_them() -> None:
    assert content_range(Span(0, 500), 1234) == "bytes 0-499/1234"
    assert range_field(Span(500, 1000)) == "bytes=500-999"


@pytest.mark.parametrize(
    "field",
    [
        *("", "bytes", "bytes 0-1", "bytes 2-1/9", "bytes 0-9/9", "bytes -1-2/9", "bytes 0-1/*", "bytes */*"),
        *("items 0-1/9", "bytes 0-1/9, bytes 2-3/9", "bytes 0-1/" + "9" * 19, "bytes ٠-١/9", "bytes 0-1/9\n"),
    ],
)
def test_any_other_content_range_is_refused(field: str) -> None:
    with pytest.raises(RemoteProtocolError, match="write bytes FIRST-LAST/SIZE"):
        parse_content_range(field)


@pytest.mark.parametrize(
    ("field", "span"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-499", (0, 500)),
        ("bytes=500-", (500, 1000)),
        ("bytes=999-2000", (999, 1000)),
        ("bytes=-1", (999, 1000)),
        ("bytes=-2000", (0, 1000)),
    ],
)
def test_a_range_is_cut_to_what_there_is(field: str, span: tuple[int, int]) -> None:
    assert parse_range(field, 1000) == span


@pytest.mark.parametrize(
    "field", ["", "bytes=", "bytes=-", "bytes=2-1", "bytes=0-1,5-6", "bytes=a-b", "lines=0-1", "bytes=0-" + "9" * 19]
)
def test_what_is_no_range_or_several_is_the_whole(field: str) -> None:
    assert parse_range(field, 1000) is None


@pytest.mark.parametrize(("field", "size"), [("bytes=1000-", 1000), ("bytes=-0", 1000), ("bytes=0-0", 0)])
def test_a_range_without_a_byte_is_unsatisfiable(field: str, size: int) -> None:
    with pytest.raises(Unsatisfiable, match=f"the body has {size} bytes"):
        parse_range(field, size)


@given(st.integers(0, 500), st.integers(1, 60))
def test_chunks_tile_the_body(size: int, chunk_bytes: int) -> None:
    grid = Grid(size, chunk_bytes)
    spans = [grid.span(index) for index in range(grid.count)]
    assert [at for span in spans for at in range(*span)] == list(range(size))
    assert all(grid.index(span) == index for index, span in enumerate(spans))
    assert all(span.size == chunk_bytes for span in spans[:-1])


@given(st.integers(1, 100), st.integers(1, 30), st.integers(0, 120), st.integers(0, 120))
def test_nothing_but_a_whole_chunk_is_one(size: int, chunk_bytes: int, start: int, stop: int) -> None:
    grid, span = Grid(size, chunk_bytes), Span(start, stop)
    is_chunk = span in [grid.span(index) for index in range(grid.count)]
    assert (grid.index(span) is not None) == is_chunk


@pytest.mark.parametrize("digest", [BodyDigest(EMPTY), BodyDigest(EMPTY, 8_388_608)])
def test_a_body_digest_reads_back(digest: BodyDigest) -> None:
    assert BodyDigest.parse(str(digest)) == digest


@pytest.mark.parametrize("text", ["", EMPTY[:-1], EMPTY + "0", EMPTY.upper(), EMPTY + ".", EMPTY + ".0", EMPTY + ".-1"])
def test_any_other_body_digest_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="is no digest of a body"):
        BodyDigest.parse(text)


def test_the_digest_of_chunks_is_that_of_their_digests_in_order() -> None:
    chunks = [b"one", b"two"]
    digest = BodyDigest.of_chunks([digest_of(chunk) for chunk in chunks], 3)
    assert digest == BodyDigest(digest_of(digest_of(b"one") + digest_of(b"two")).hex(), 3)
    assert digest != BodyDigest.of_chunks([digest_of(chunk) for chunk in reversed(chunks)], 3)


def test_both_hashes_can_be_had() -> None:
    assert hasher("sha-256").hexdigest() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert hasher().hexdigest() == EMPTY == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"

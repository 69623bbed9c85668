"""Chunks: pieces cover the array once, and threads return results in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from unlockstep.core.chunks import CHUNK_ELEMENTS, SPAN_ELEMENTS, chunks, run, scratch, spans

SIZES = [0, 1, CHUNK_ELEMENTS - 1, CHUNK_ELEMENTS, CHUNK_ELEMENTS + 1, SPAN_ELEMENTS - 1, SPAN_ELEMENTS + 1]


@pytest.mark.parametrize("size", SIZES)
def test_spans_and_chunks_cover_every_element_once(size: int) -> None:
    """C11"""
    pieces = [chunk for span in spans(0, size) for chunk in chunks(*span)]
    assert sum(piece.stop - piece.start for piece in pieces) == size
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])][: len(pieces)]
    assert all(0 < piece.stop - piece.start <= scratch().size for piece in pieces)


def test_a_span_may_start_anywhere() -> None:
    assert list(spans(5, 7 + SPAN_ELEMENTS)) == [(5, 5 + SPAN_ELEMENTS), (5 + SPAN_ELEMENTS, 7 + SPAN_ELEMENTS)]


def test_results_come_in_order_of_the_arguments() -> None:
    with ThreadPoolExecutor(2) as executor:
        assert run(executor, str, range(20)) == run(None, str, range(20))

"""What of a body has come, and in which order it is hashed."""

from __future__ import annotations

import random

from unlockstep.net.bulk.downloading import Incoming
from unlockstep.net.wire.ranges import Grid, Span

GRID = Grid(45, 10)


def test_a_chunk_goes_on_where_it_was_cut() -> None:
    chunks = Incoming(GRID, [0, 1, 2, 3, 4])
    assert chunks.take() == 0
    assert chunks.rest(0) == Span(0, 10)
    chunks.filled(0, 7)
    chunks.give_back(0)
    assert chunks.take() == 0
    assert chunks.rest(0) == Span(7, 10)
    chunks.restart(0)
    assert chunks.rest(0) == Span(0, 10)


def test_chunks_are_hashed_in_order_one_at_a_time_whatever_order_they_come_in() -> None:
    for seed in range(20):
        order = list(range(5))
        random.Random(seed).shuffle(order)
        chunks, hashed = Incoming(GRID, list(range(5))), list[int]()
        for index in order:
            chunks.arrived(index)
            while (next_up := chunks.hashable()) is not None:
                assert chunks.hashable() is None, "two at once"
                hashed.append(next_up)
                chunks.hashed()
        assert hashed == [0, 1, 2, 3, 4]
        assert chunks.is_done


def test_of_a_body_that_was_damaged_only_some_chunks_are_fetched_and_all_are_hashed() -> None:
    chunks = Incoming(GRID, [1, 4])
    assert chunks.waiting == 2 and not chunks.is_done
    assert (chunks.take(), chunks.take(), chunks.take()) == (1, 4, None)
    assert chunks.rest(4) == Span(40, 45)
    assert chunks.hashable() == 0
    chunks.hashed()
    assert chunks.hashable() is None
    chunks.arrived(1)
    chunks.arrived(4)
    assert chunks.is_done
    assert chunks.hashable() == 1

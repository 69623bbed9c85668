"""What the sender of an upload knows of the chunks at the syncer, answer by answer."""

from __future__ import annotations

from unlockstep.net.bulk.uploading import Outgoing
from unlockstep.net.wire.api import GAPS_TOLD_MAX
from unlockstep.net.wire.ranges import Grid

GRID = Grid(45, 10)  # Five chunks, the last of five bytes.


def taken(chunks: Outgoing) -> list[int]:
    """All that is still to be sent."""
    return [index for index in iter(chunks.take, None) if index is not None]


def test_every_chunk_is_sent_once_in_order() -> None:
    chunks = Outgoing(GRID)
    assert chunks.waiting == 5
    assert taken(chunks) == [0, 1, 2, 3, 4]
    assert chunks.take() is None


def test_one_that_failed_comes_first() -> None:
    chunks = Outgoing(GRID)
    assert (chunks.take(), chunks.take()) == (0, 1)
    chunks.give_back(0)
    chunks.give_back(0)
    assert taken(chunks) == [0, 2, 3, 4]


def test_answers_that_overtake_each_other_send_nothing_twice() -> None:
    """The older one does not know yet of chunk 1."""
    chunks = Outgoing(GRID)
    assert [chunks.take() for _ in range(3)] == [0, 1, 2]
    assert chunks.answered(1, "buffer", [(0, 10), (20, 45)])
    assert chunks.answered(0, "buffer", [(10, 45)])
    assert taken(chunks) == [3, 4]


def test_an_upload_that_is_gone_on_with_sends_what_is_missing() -> None:
    chunks = Outgoing(GRID)
    assert chunks.take() == 0
    assert chunks.answered(0, "buffer", [(10, 20), (40, 45)])
    assert taken(chunks) == [1, 4]


def test_a_syncer_that_has_lost_what_it_had_gets_all_of_it_again() -> None:
    chunks = Outgoing(GRID)
    for index in range(3):
        assert chunks.take() == index
        assert chunks.answered(index, "before", [((index + 1) * 10, 45)])
    assert chunks.take() == 3
    assert chunks.answered(3, "after", [(0, 30), (40, 45)])
    assert taken(chunks) == [0, 1, 2, 4]


def test_what_is_on_its_way_is_not_taken_by_another_stream() -> None:
    chunks = Outgoing(GRID)
    assert [chunks.take(), chunks.take()] == [0, 1]
    assert not chunks.answered(0, "buffer", [(0, 45)])  # It came damaged.
    chunks.give_back(0)
    assert taken(chunks) == [0, 2, 3, 4]


def test_behind_the_last_gap_that_can_be_told_everything_may_be_missing() -> None:
    chunks = Outgoing(Grid(10 * 1000, 10))
    assert chunks.take() == 0
    gaps = [(20 * n + 10, 20 * n + 20) for n in range(GAPS_TOLD_MAX)]
    chunks.answered(0, "buffer", gaps)
    assert taken(chunks) == [2 * n + 1 for n in range(GAPS_TOLD_MAX)] + list(range(2 * GAPS_TOLD_MAX, 1000))


def test_gaps_that_are_nonsense_do_no_harm() -> None:
    chunks = Outgoing(GRID)
    assert chunks.take() == 0
    chunks.answered(0, "buffer", [(-5, 3), (40, 10**9), (30, 20)])
    assert taken(chunks) == [4]

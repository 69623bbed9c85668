"""How much is written at once."""

from __future__ import annotations

import pytest

from unlockstep.net.syncer.pieces import PIECE_BYTES_FIRST, PIECE_BYTES_MIN, SLOW_S, Pieces
from unlockstep.net.wire.sockets import PIECE_BYTES_MAX


@pytest.mark.parametrize("bytes_per_s", [12_500, 40_000, 125_000, 1_250_000, 12_500_000, 125_000_000, 10**9])
def test_a_piece_takes_a_moment_on_any_link(bytes_per_s: float) -> None:
    pieces = Pieces()
    took = []
    for _ in range(100):
        took.append(pieces.size / bytes_per_s)
        pieces.passed(took[-1])
    assert took[0] <= PIECE_BYTES_FIRST / 12_500
    assert all(each <= max(SLOW_S, PIECE_BYTES_MIN / bytes_per_s) for each in took[5:])
    assert pieces.size >= min(PIECE_BYTES_MAX, bytes_per_s * 0.01)


def test_it_follows_a_link_that_changes() -> None:
    pieces = Pieces()
    for _ in range(10):
        pieces.passed(0.001)
    assert pieces.size == PIECE_BYTES_MAX
    pieces.passed(10.0)
    assert pieces.size == PIECE_BYTES_MAX // 2
    for _ in range(10):
        pieces.passed(10.0)
    assert pieces.size == PIECE_BYTES_MIN

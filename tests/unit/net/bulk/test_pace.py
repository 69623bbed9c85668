"""A cap on bandwidth: what passes under it in a time, by a clock that is moved by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.bulk.pace import BURST_S, MBIT_PER_S_MIN, PIECE_BYTES_MAX, PIECE_BYTES_MIN, Bucket, Pace
from unlockstep.net.bulk.streams import STREAMS_FIRST
from unlockstep.net.wire.timeouts import derive

RATE = 1_000_000.0


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=60), st.integers(1, 5))
def test_never_more_than_the_rate_and_a_burst_and_never_much_less(pieces: list[int], streams: int) -> None:
    """Streams take turns; each waits as long as it is told."""
    bucket, free_ns, moved = Bucket(RATE), [0] * streams, 0
    for number, piece in enumerate(pieces):
        now_ns = free_ns[number % streams] = max(free_ns)
        free_ns[number % streams] = now_ns + bucket.take(piece, now_ns)
        moved += piece
    took_s = max(free_ns) / NANOSECONDS_PER_SECOND
    assert moved <= RATE * (took_s + BURST_S) + 1
    assert moved >= RATE * took_s - 1


def test_after_a_pause_a_burst_may_pass_and_no_more() -> None:
    bucket = Bucket(RATE)
    bucket.take(int(RATE), 0)
    assert bucket.take(int(RATE * BURST_S), 100 * NANOSECONDS_PER_SECOND) == 0
    assert bucket.take(1000, 100 * NANOSECONDS_PER_SECOND) == 1_000_000  # A thousandth of a second.


def test_a_clock_that_is_read_in_two_threads_may_go_back() -> None:
    bucket = Bucket(RATE)
    bucket.take(int(RATE * BURST_S), 10)
    waits = [bucket.take(1000, now_ns) for now_ns in (10, 5)]
    assert waits == [1_000_000, 2_000_000]


def test_without_a_cap_nobody_waits() -> None:
    pace = Pace()
    assert pace.up.take(10**12, 0) == pace.down.take(10**12, 0) == 0
    assert pace.up.piece_bytes == PIECE_BYTES_MAX and math.isinf(pace.down.bytes_per_s)


@pytest.mark.parametrize(("rate", "piece"), [(1.0, PIECE_BYTES_MIN), (RATE, 50_000), (1e12, PIECE_BYTES_MAX)])
def test_pieces_are_short_on_a_slow_link(rate: float, piece: int) -> None:
    assert Pace(rate).up.piece_bytes == piece


def test_each_direction_has_the_cap_for_itself() -> None:
    pace = Pace(RATE)
    assert pace.up.take(int(2 * RATE * BURST_S), 0) > 0
    assert pace.down.take(1000, 0) == 0


def test_under_the_tightest_cap_no_stream_of_the_first_counts_as_stalled() -> None:
    bytes_per_s, timeouts = MBIT_PER_S_MIN * 125_000 / STREAMS_FIRST, derive()
    assert bytes_per_s * timeouts.stall_s >= timeouts.stall_bytes + PIECE_BYTES_MIN

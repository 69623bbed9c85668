"""How many streams carry a transfer: on links whose throughput with n streams is a formula."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.bulk.streams import STREAMS_MAX, AutomaticStreams, FixedStreams

TICK_NS = NANOSECONDS_PER_SECOND // 10

Link = Callable[[int], float]
"""Bytes a second with n streams."""


def lossy(per_stream: float) -> Link:
    """Every stream is held back by lost packets, and the link is never full."""
    return lambda n: n * per_stream


def saturated(per_stream: float, capacity: float) -> Link:
    """Streams are held back until the link is full."""
    return lambda n: min(n * per_stream, capacity)


def short(capacity: float) -> Link:
    """One stream fills it."""
    return lambda n: capacity


def crowded(per_stream: float, cost: float) -> Link:
    """Every stream costs the others something: n / (1 + cost * n**2), most at n = cost ** -0.5."""
    return lambda n: per_stream * n / (1 + cost * n**2)


def run(streams: AutomaticStreams, link: Link, seconds: int) -> list[int]:
    """Numbers, ten times a second."""
    numbers = []
    for _ in range(seconds * NANOSECONDS_PER_SECOND // TICK_NS):
        numbers.append(streams.number)
        streams.measured(round(link(streams.number) * TICK_NS / NANOSECONDS_PER_SECOND), TICK_NS)
    return numbers


def mean_rate(numbers: list[int], link: Link) -> float:
    return sum(link(number) for number in numbers) / len(numbers)


def test_where_packets_are_lost_every_stream_counts() -> None:
    link, streams = lossy(1e5), AutomaticStreams()
    numbers = run(streams, link, 60)
    assert numbers[0] == 2
    assert numbers[45] == STREAMS_MAX  # 2, 4, 8, 16, each for half a second and one that is measured.
    assert mean_rate(numbers[45:], link) >= 0.9 * link(STREAMS_MAX)


@pytest.mark.parametrize("full_at", range(1, STREAMS_MAX))
def test_a_link_that_so_many_streams_fill_is_filled_by_no_more_than_need_be(full_at: int) -> None:
    link, streams = saturated(1e6, full_at * 1e6), AutomaticStreams()
    numbers = run(streams, link, 120)
    assert mean_rate(numbers[600:], link) >= 0.9 * full_at * 1e6
    usual = sorted(numbers[600:])[len(numbers[600:]) // 2]
    assert 0.9 * full_at <= usual <= full_at + max(1, full_at // 4)


def test_where_one_stream_is_enough_there_is_one() -> None:
    numbers = run(AutomaticStreams(), short(3e9), 120)
    assert numbers[600:].count(1) >= 0.85 * len(numbers[600:])


def test_streams_that_cost_more_than_they_bring_are_dropped() -> None:
    link = crowded(1e6, cost=1 / 16)  # Most with four: 2e6.
    numbers = run(AutomaticStreams(first=STREAMS_MAX), link, 120)
    assert mean_rate(numbers[600:], link) >= 0.9 * 2e6


def test_a_link_that_changes_is_tried_anew() -> None:
    streams = AutomaticStreams()
    run(streams, short(1e9), 600)
    assert streams.number == 1
    assert max(run(streams, lossy(1e5), 60)) == STREAMS_MAX
    run(streams, short(1e9), 60)
    assert streams.number <= 2


def test_trials_become_rare() -> None:
    numbers = run(AutomaticStreams(), saturated(1e6, 4e6), 1200)
    trials = sum(before != after for before, after in pairwise(numbers[9000:]))
    assert trials <= 10  # In five minutes: there and back five times.


@pytest.mark.parametrize("noise", [0.03, 0.05])
def test_throughput_that_wavers_by_less_than_what_pays_changes_nothing(noise: float) -> None:
    calls = 0

    def link(n: int) -> float:
        nonlocal calls
        calls += 1
        return min(n * 1e6, 4e6) * (1 + noise * (1 if calls // 10 % 2 else -1))

    numbers = run(AutomaticStreams(), link, 600)
    assert 3 <= sorted(numbers[3000:])[len(numbers[3000:]) // 2] <= 5


def test_time_in_which_nothing_passed_leaves_the_number_alone_until_it_is_measured() -> None:
    streams = AutomaticStreams(first=4)
    assert streams.number == 4
    streams.measured(0, 0)
    assert streams.number == 4


@pytest.mark.parametrize(("wanted", "got"), [(-1, 1), (0, 1), (1, 1), (16, 16), (17, 16)])
def test_a_fixed_number_stays_within_bounds(wanted: int, got: int) -> None:
    streams = FixedStreams(wanted)
    streams.measured(10**9, 10**9)
    assert streams.number == got

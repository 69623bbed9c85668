"""Laws of the rotation: whatever the clock does and however late the syncer is, none is skipped, none bursts."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from unlockstep.core.schedule import Schedule

sizes = st.integers(1, 40)
jumps = st.lists(st.integers(0, 200), min_size=1, max_size=60)


def opened(schedule: Schedule, clocks: list[int]) -> list[tuple[int, int]]:
    """(clock, fragment) of every round, opened as soon as it is seen to be due."""
    rounds = []
    for clock in clocks:
        while schedule.is_due(clock):
            rounds.append((clock, schedule.next_fragment))
            schedule.open(clock)
    return rounds


def running_sum(jumps: list[int]) -> list[int]:
    clocks, clock = [], 0
    for jump in jumps:
        clock += jump
        clocks.append(clock)
    return clocks


@given(fragment_count=sizes, interval_steps=sizes, jumps=jumps)
@example(fragment_count=8, interval_steps=8, jumps=[8] * 60)
@example(fragment_count=8, interval_steps=8, jumps=[4, 12] * 30)
def test_fragments_take_turns_whatever_the_clock_does(
    fragment_count: int, interval_steps: int, jumps: list[int]
) -> None:
    rounds = opened(Schedule(fragment_count, interval_steps), running_sum(jumps))
    assert [fragment for _, fragment in rounds] == [number % fragment_count for number in range(len(rounds))]


@given(fragment_count=sizes, interval_steps=sizes, jumps=jumps)
def test_a_jump_of_the_clock_never_opens_a_burst(fragment_count: int, interval_steps: int, jumps: list[int]) -> None:
    """At one clock no more rounds open than are due within one step."""
    schedule = Schedule(fragment_count, interval_steps)
    for clock in running_sum(jumps):
        assert len(opened(schedule, [clock])) <= math.ceil(fragment_count / interval_steps)


@given(fragment_count=sizes, interval_steps=sizes, clocks=st.integers(1, 300))
def test_on_time_there_are_exactly_p_rounds_in_h_steps(fragment_count: int, interval_steps: int, clocks: int) -> None:
    rounds = opened(Schedule(fragment_count, interval_steps), list(range(clocks + 1)))
    assert len(rounds) == clocks * fragment_count // interval_steps


@given(fragment_count=sizes, interval_steps=sizes, clocks=st.lists(st.integers(0, 3), min_size=1, max_size=300))
def test_a_round_is_due_at_the_latest_h_over_p_steps_and_one_after_the_one_before(
    fragment_count: int, interval_steps: int, clocks: list[int]
) -> None:
    """However the clock has jumped until then: the wait for the next fragment is bounded."""
    schedule = Schedule(fragment_count, interval_steps)
    start = running_sum(clocks)[-1]
    opened(schedule, running_sum(clocks))
    assert schedule.is_due(start + math.ceil(interval_steps / fragment_count))


@given(fragment_count=sizes, interval_steps=sizes, jumps=jumps, delays=st.lists(st.integers(0, 9), min_size=60))
def test_a_syncer_that_is_late_delays_rounds_and_skips_none(
    fragment_count: int, interval_steps: int, jumps: list[int], delays: list[int]
) -> None:
    """Opening is put off by some clocks each time, as it is while too many rounds are in flight."""
    schedule = Schedule(fragment_count, interval_steps)
    fragments, last_clock, clock = [], 0, 0
    for jump, delay in zip(jumps, delays, strict=False):
        clock += jump
        if schedule.is_due(clock):
            clock += delay
            fragments.append(schedule.next_fragment)
            schedule.open(clock)
            assert clock - last_clock >= math.floor(interval_steps / fragment_count)
            last_clock = clock
    assert fragments == [number % fragment_count for number in range(len(fragments))]

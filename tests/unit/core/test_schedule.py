"""When rounds are due: the rhythm of H/P steps, and what becomes of it when the syncer is late."""

from __future__ import annotations

import pytest

from unlockstep.core.schedule import Schedule


def opened(fragment_count: int, interval_steps: int, clocks: list[int]) -> list[tuple[int, int]]:
    """(clock, fragment) of every round that opens when the clock is seen at these values, as soon as it is due."""
    schedule = Schedule(fragment_count, interval_steps)
    rounds = []
    for clock in clocks:
        while schedule.is_due(clock):
            fragment = schedule.next_fragment
            schedule.open(clock)
            rounds.append((clock, fragment))
    return rounds


def test_a_round_every_step_when_p_equals_h() -> None:
    assert opened(4, 4, list(range(9))) == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 0), (6, 1), (7, 2), (8, 3)]


def test_a_rhythm_of_eight_thirds_steps_opens_at_the_step_that_completes_it() -> None:
    assert opened(3, 8, list(range(17))) == [(3, 0), (6, 1), (8, 2), (11, 0), (14, 1), (16, 2)]


def test_with_more_fragments_than_steps_several_rounds_are_due_at_one_step() -> None:
    assert opened(8, 4, [0, 1, 2, 3]) == [(1, 0), (1, 1), (2, 2), (2, 3), (3, 4), (3, 5)]


def test_nothing_is_due_before_the_first_interval() -> None:
    assert not Schedule(2, 8).is_due(3)
    assert Schedule(2, 8).is_due(4)


def test_a_late_round_shifts_those_after_it() -> None:
    schedule = Schedule(2, 8)
    schedule.open(10)  # due at 4
    assert not schedule.is_due(13)
    assert schedule.is_due(14)


def test_late_rounds_are_not_made_up_for_in_a_burst() -> None:
    assert opened(2, 8, [100, 101, 102, 103, 104]) == [(100, 0), (104, 1)]


def test_within_the_step_it_was_due_in_a_round_is_on_time() -> None:
    """Due at 2.67 and opened at 3, the next is due at 5.33 and not at 5.67."""
    schedule = Schedule(3, 8)
    schedule.open(3)
    schedule.open(6)
    assert schedule.is_due(8)


@pytest.mark.parametrize(("fragment_count", "interval_steps"), [(8, 8), (3, 8), (8, 4)])
def test_no_fragment_is_skipped_when_the_clock_advances_by_a_whole_interval(
    fragment_count: int, interval_steps: int
) -> None:
    """A rule of the kind "fragment p at steps t with t mod H = t_p" would merge the same fragment for ever."""
    fragments = [
        fragment for _, fragment in opened(fragment_count, interval_steps, list(range(0, 800, interval_steps)))
    ]
    assert fragments == [number % fragment_count for number in range(len(fragments))]
    assert len(fragments) >= 99


def test_rounds_are_numbered_without_gap() -> None:
    schedule = Schedule(3, 3)
    assert [schedule.open(clock) for clock in (1, 5, 6, 40)] == [0, 1, 2, 3]
    assert (schedule.next_round, schedule.next_fragment) == (4, 1)

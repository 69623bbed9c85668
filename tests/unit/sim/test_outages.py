"""The mechanism, one rule at a time, on failures written by hand: one learner of four slices of 10 chips."""

from __future__ import annotations

import numpy as np
import pytest

from unlockstep.core.errors import ConfigError
from unlockstep.sim.fleet import Fleet
from unlockstep.sim.outages import Breakages, between_stalls, elastic_triggers, play, width

FLEET = Fleet(
    chips=40,
    slice_chips=10,
    learners=1,
    notice_s=0.0,
    downscale_s=5.0,
    upscale_s=3.0,
    merge_wait_s=20.0,
)
NEVER = float("inf")


def _stretches(*failures: tuple[float, float, float, float], fleet: Fleet = FLEET) -> list[tuple[float, float, float]]:
    """(begin, end, share of the chips) of the stretches of a learner that begins at 0.

    A failure: (back since, fails at, back at, fails again at).
    """
    since_s, at_s, back_s, again_s = np.array(failures, float).reshape(-1, 4).T
    lane = np.zeros(at_s.size, np.int64)
    chips = np.full(at_s.size, fleet.slice_chips)
    breakages = Breakages(lane=lane, chips=chips, since_s=since_s, at_s=at_s, back_s=back_s, again_s=again_s)
    lanes, begin_s, end_s = between_stalls(elastic_triggers(fleet, breakages), np.zeros(1))
    shares = width(fleet, breakages, lanes, begin_s)
    return list(zip(begin_s.tolist(), end_s.tolist(), shares.tolist(), strict=True))


def test_without_failures_nothing_stops() -> None:
    assert _stretches() == [(0, NEVER, 1)]


def test_a_failure_stalls_and_leaves_the_learner_narrower() -> None:
    assert _stretches((-NEVER, 100, 1000, NEVER))[:2] == [(0, 100, 1), (105, 1020, 0.75)]


def test_a_slice_that_is_back_waits_and_then_causes_its_own_stall() -> None:
    assert _stretches((-NEVER, 100, 1000, NEVER))[2:] == [(1023, NEVER, 1)]


def test_a_slice_that_is_back_joins_at_a_stall_that_happens_anyway() -> None:
    story = _stretches((-NEVER, 100, 200, NEVER), (-NEVER, 210, 5000, NEVER))
    assert story == [(0, 100, 1), (105, 210, 0.75), (215, 5020, 0.75), (5023, NEVER, 1)]


def test_slices_that_wait_join_together() -> None:
    story = _stretches((-NEVER, 100, 1000, NEVER), (-NEVER, 300, 1010, NEVER))
    assert story == [(0, 100, 1), (105, 300, 0.75), (305, 1020, 0.5), (1023, NEVER, 1)]


def test_failures_during_a_stall_are_settled_by_it() -> None:
    story = _stretches((-NEVER, 100, 1000, NEVER), (-NEVER, 104, 1000, NEVER))
    assert story == [(0, 100, 1), (105, 1020, 0.5), (1023, NEVER, 1)]


def test_a_slice_that_is_back_before_the_stall_ends_costs_nothing_more() -> None:
    assert _stretches((-NEVER, 100, 104, NEVER)) == [(0, 100, 1), (105, NEVER, 1)]


def test_a_slice_that_fails_while_it_waits_stalls_nobody() -> None:
    story = _stretches((-NEVER, 100, 1000, 1015), (1000, 1015, 3000, NEVER))
    assert story == [(0, 100, 1), (105, 3020, 0.75), (3023, NEVER, 1)]


def test_a_slice_taken_in_while_it_waits_stalls_the_learner_when_it_fails_again() -> None:
    story = _stretches((-NEVER, 100, 1000, 1015), (-NEVER, 1002, 9000, NEVER), (1000, 1015, 3000, NEVER))
    assert story[:4] == [(0, 100, 1), (105, 1002, 0.75), (1007, 1015, 0.75), (1020, 3020, 0.5)]


def test_a_learner_trains_on_until_the_notice_has_run_out() -> None:
    fleet = Fleet(chips=40, slice_chips=10, learners=1, notice_s=2.0, downscale_s=5.0, upscale_s=3.0, merge_wait_s=20.0)
    story = _stretches((-NEVER, 100, 1000, NEVER), (-NEVER, 101, 1000, NEVER), fleet=fleet)
    assert story == [(0, 102, 1), (107, 1020, 0.5), (1023, NEVER, 1)]


def test_all_slices_out_leave_no_width() -> None:
    story = _stretches(*[(-NEVER, 100, 1000, NEVER)] * 4)
    assert story == [(0, 100, 1), (105, 1020, 0), (1023, NEVER, 1)]


def test_the_last_slice_of_a_learner_holds_what_is_left() -> None:
    """Slices of 256 and 44 chips: whichever is out, the rest trains."""
    fleet = Fleet(chips=300, learners=1, interruption_s=1e6, return_s=1e4)
    rates = play(fleet, horizon_s=1e6, replicas=4, seed=0).rate
    assert set(np.round(300 * rates)) == {44, 256, 300}


def test_a_fleet_too_large_for_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^chips is 1000000000, and .* events, .* choose larger slices"):
        play(Fleet(chips=10**9), horizon_s=1e3, replicas=40, seed=0)


def test_the_size_of_a_fleet_that_is_not_elastic_is_that_of_its_learners() -> None:
    """Its slices are never out one by one; but each learner needs memory, even if it never fails."""
    one_chip = Fleet(chips=1_000_000, slice_chips=1, learners=1, elastic=False)
    assert play(one_chip, horizon_s=100.0, replicas=40, seed=0).lane.size > 40
    with pytest.raises(ConfigError, match=r"more than \d+; choose"):
        play(Fleet(chips=76_800_000, learners=300_000, elastic=False), horizon_s=1.0, replicas=40, seed=0)


def test_the_same_seed_gives_the_same_history() -> None:
    first, second, other = (play(Fleet(chips=100_000), horizon_s=1e5, replicas=2, seed=seed) for seed in (7, 7, 8))
    assert first.begin_s.tobytes() == second.begin_s.tobytes()
    assert first.rate.tobytes() == second.rate.tobytes()
    assert first.begin_s.tobytes() != other.begin_s.tobytes()

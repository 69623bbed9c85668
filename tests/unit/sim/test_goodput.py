"""Estimates against closed formulas. Each must lie within its own 95 % interval, widened to one in a million.

The exponential laws are those of a renewal process: m the mean time between failures of a learner, R its stall.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from unlockstep.core.errors import UsageError
from unlockstep.sim.fleet import Fleet
from unlockstep.sim.goodput import Estimate, Interval, estimate, independent_uptime, measure
from unlockstep.sim.outages import play

INSTANT: dict[str, Any] = {"notice_s": 0.0, "downscale_s": 0.0, "upscale_s": 0.0, "merge_wait_s": 0.0}
"""An elastic fleet in which nothing stalls."""


def _one(fleet: Fleet, failures: int = 10_000, seed: int = 0) -> Estimate:
    (found,) = estimate([fleet], failures=failures, seed=seed)
    return found


def _agrees(found: Interval, expected: float) -> bool:
    widen = 4.9 / 1.96
    low = found.value - widen * (found.value - found.low)
    return low <= expected <= found.value + widen * (found.high - found.value)


# ------------------------------------------------------------------------------------------------ not elastic


@pytest.mark.parametrize("chips", [10_000, 1_000_000])
def test_a_rigid_fleet_follows_the_renewal_formula(chips: int) -> None:
    """Failures during a restart are absorbed: (m + notice) / (m + notice + R)."""
    fleet = Fleet(chips=chips, learners=1, elastic=False, notice_s=4.0, restart_s=80.0)
    trains_s = fleet.failure_s + 4
    assert _agrees(_one(fleet).goodput, trains_s / (trains_s + 80))
    assert _agrees(_one(fleet).uptime, trains_s / (trains_s + 80))


@pytest.mark.parametrize("interval_s", [20.0, 300.0])
def test_work_since_the_last_checkpoint_is_lost(interval_s: float) -> None:
    """Work kept per failure is interval / (exp((interval + cost) / m) - 1), of m + R seconds."""
    fleet = Fleet(
        chips=300_000,
        learners=1,
        elastic=False,
        notice_s=0.0,
        restart_s=80.0,
        checkpoint_s=5.0,
        checkpoint_interval_s=interval_s,
    )
    kept_s = interval_s / math.expm1((interval_s + 5) / fleet.failure_s)
    assert _agrees(_one(fleet).goodput, kept_s / (fleet.failure_s + 80))


def test_enough_spares_replace_the_restart_by_a_swap() -> None:
    fleet = Fleet(
        chips=100_000, slice_chips=100, learners=1, elastic=False, notice_s=0.0, spares=100, swap_s=10.0, return_s=300.0
    )
    assert _agrees(_one(fleet).goodput, 0.9 * fleet.learner_failure_s / (fleet.learner_failure_s + 10))


def test_spares_that_are_nearly_always_out_are_no_spares() -> None:
    fleet = Fleet(chips=100_000, slice_chips=100, learners=1, elastic=False, notice_s=0.0, spares=10, return_s=1e5)
    assert _agrees(_one(fleet).goodput, 0.99 * fleet.learner_failure_s / (fleet.learner_failure_s + fleet.restart_s))


def test_how_often_a_spare_is_there_follows_from_how_many_slices_are_out() -> None:
    """Out are Poisson-many (mean: returns per failure), so a failure finds a spare with P(N < spares)."""
    fleet = Fleet(
        chips=1000,
        slice_chips=10,
        learners=1,
        elastic=False,
        interruption_s=1e9,
        notice_s=0.0,
        spares=2,
        swap_s=0.0,
        restart_s=10_000.0,
        return_s=1.5e9 / 980,
    )
    expected_stall_s = (1 - math.exp(-1.5) * (1 + 1.5)) * 10_000
    found = 1 - _one(fleet, failures=30_000).uptime.value
    assert found == pytest.approx(expected_stall_s / (fleet.learner_failure_s + expected_stall_s), rel=0.03)


# --------------------------------------------------------------------------------------------------- elastic


def test_an_elastic_learner_whose_slices_return_at_once_follows_the_renewal_formula() -> None:
    fleet = Fleet(
        chips=1_000_000, learners=1, notice_s=0.0, downscale_s=20.0, return_s=0.0, merge_wait_s=0.0, upscale_s=0.0
    )
    assert _agrees(_one(fleet).goodput, fleet.failure_s / (fleet.failure_s + 20))


def test_without_stalls_goodput_is_the_availability_of_a_slice() -> None:
    """Up U = interruption / slice on average, then out R: U / (U + R)."""
    fleet = Fleet(chips=102_400, learners=4, interruption_s=1e6, return_s=1000.0, **INSTANT)
    up_s = 1e6 / 256
    assert _agrees(_one(fleet).goodput, up_s / (up_s + 1000))


def test_capacity_lost_is_slice_times_return_over_interruption() -> None:
    """Little's law, where slices are rarely out: chips out = failures per second * slice * return."""
    fleet = Fleet(chips=100_000, slice_chips=100, learners=2, interruption_s=1e8, return_s=5000.0, **INSTANT)
    lost = 1 - _one(fleet, failures=30_000).goodput.value
    assert lost == pytest.approx(100 * 5000 / 1e8, rel=0.05)


def test_a_learner_of_one_slice_is_down_when_that_is_out() -> None:
    """Every learner trains with probability a = U / (U + R), on its own."""
    fleet = Fleet(chips=300, slice_chips=100, learners=3, interruption_s=1e5, return_s=500.0, **INSTANT)
    share = 1000 / 1500
    found = _one(fleet)
    assert _agrees(found.goodput, share)
    assert _agrees(found.uptime, 1 - (1 - share) ** 3)
    assert _agrees(found.participation, share / (1 - (1 - share) ** 3))


def test_of_one_learner_all_take_part_however_rarely_it_trains() -> None:
    """Most of the histories are shorter than a restart, and see no training at all."""
    found = _one(Fleet(chips=2_400_000, learners=1, elastic=False), failures=40)
    assert found.uptime.value < 0.3
    assert found.participation.value == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("failures", [40, 4000])
def test_participation_is_training_over_uptime_however_short_the_histories(failures: int) -> None:
    """A mean of the histories' own ratios would count those in which hardly anybody trains as much as any other."""
    found = _one(Fleet(chips=2_400_000, learners=4, elastic=False), failures)
    assert found.participation.value == pytest.approx(found.goodput.value / found.uptime.value, rel=1e-9)


def test_a_fleet_that_hardly_ever_works_has_no_goodput() -> None:
    found = _one(Fleet(chips=25_600, interruption_s=1.0))
    assert found.goodput.value == found.uptime.value == found.participation.value == 0
    assert found.goodput.low == 0 < found.goodput.high < 0.001


def test_a_fleet_in_which_nothing_fails_has_all_its_goodput() -> None:
    history = play(Fleet(chips=2560, interruption_s=1e10), horizon_s=60.0, replicas=3, seed=0)
    assert [shares.tolist() for shares in measure(history)] == [[1, 1, 1]] * 3


def test_a_learner_runs_at_the_speed_of_its_slowest_chip() -> None:
    chips, spread = 64, 0.2
    fleet = Fleet(chips=chips, slice_chips=8, learners=1, interruption_s=1e10, speed_spread=spread)
    sigma = math.sqrt(math.log1p(spread**2))
    speeds = np.random.default_rng(1).lognormal(-(sigma**2) / 2, sigma, (20_000, chips))
    assert _agrees(_one(fleet, failures=1).goodput, speeds.min(axis=1).mean())


# ------------------------------------------------------------------------------------------------- intervals


def test_a_value_of_one_is_not_certain() -> None:
    """Wilson's interval for n successes of n: low = n / (n + z**2)."""
    uptime = _one(Fleet(chips=1_000_000, learners=32), failures=1000).uptime
    assert uptime == Interval(value=1.0, low=pytest.approx(1000 / (1000 + 2.023**2)), high=1.0)


def test_about_95_in_100_intervals_hold_the_truth() -> None:
    fleet = Fleet(chips=100_000, learners=1, elastic=False, notice_s=0.0)
    truth = fleet.failure_s / (fleet.failure_s + fleet.restart_s)
    found = [_one(fleet, failures=400, seed=seed).goodput for seed in range(100)]
    assert 90 <= sum(interval.low <= truth <= interval.high for interval in found) <= 99


def test_four_times_the_failures_halve_the_interval() -> None:
    fleet = Fleet(chips=1_000_000, learners=2)
    widths = [_one(fleet, failures=count).goodput for count in (5_000, 20_000)]
    ratio = (widths[0].high - widths[0].low) / (widths[1].high - widths[1].low)
    assert ratio == pytest.approx(2, rel=0.3)


def test_an_estimate_does_not_depend_on_its_neighbours() -> None:
    one, other = Fleet(chips=100_000), Fleet(chips=200_000, learners=2)
    assert estimate([one, other], failures=500) == estimate([one], failures=500) + estimate([other], failures=500)


def test_no_fleets_have_no_estimates() -> None:
    assert estimate([]) == []


@pytest.mark.parametrize("failures", [0, -1, 10**7 + 1])
def test_a_number_of_failures_out_of_range_is_refused(failures: int) -> None:
    with pytest.raises(UsageError, match=f"^failures is {failures}; choose 1 to 10000000$"):
        estimate([Fleet(chips=10_240)], failures=failures)


def test_a_seed_out_of_range_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^seed is -1; choose a whole number from 0"):
        estimate([Fleet(chips=10_240)], seed=-1)


@pytest.mark.parametrize(("goodput", "learners", "uptime"), [(0.54, 2, 0.7884), (0.73, 4, 0.99468559), (1.0, 3, 1.0)])
def test_uptime_of_independent_learners(goodput: float, learners: int, uptime: float) -> None:
    assert independent_uptime(goodput, learners) == pytest.approx(uptime, rel=1e-9)

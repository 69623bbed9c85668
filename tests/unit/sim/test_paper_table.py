"""The paper's table: met by one set of constants, whatever the seed."""

from __future__ import annotations

import functools

import pytest

from unlockstep.sim.goodput import Estimate, Interval, estimate, independent_uptime
from unlockstep.sim.paper_table import CHIPS, ROWS, Comparison, compare, fleets

SEEDS = range(4)
FAILURES = 7000


@functools.cache
def _table(seed: int) -> Comparison:
    return compare(estimate(fleets(), failures=FAILURES, seed=seed))


def test_there_are_25_elastic_cells_and_5_rigid_ones() -> None:
    kinds = [fleet.elastic for fleet in fleets()]
    assert (len(kinds), sum(kinds)) == (30, 25)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_simulation_meets_the_table(seed: int) -> None:
    table = _table(seed)
    assert table.rms_elastic <= 1.5
    assert table.rms_rigid <= 2.5
    assert table.worst <= 4.5


@pytest.mark.parametrize("seed", SEEDS)
def test_learners_collapse_to_one_job_on_their_share_of_the_chips(seed: int) -> None:
    assert _table(seed).collapse <= 2


def test_at_most_chips_uptime_is_full_from_eight_learners_on() -> None:
    cells = [cell for cell in _table(0).cells if cell.fleet.chips == CHIPS[-1] and cell.fleet.learners >= 8]
    assert [f"{100 * cell.estimate.uptime.value:.1f}" for cell in cells] == ["100.0", "100.0"]


@pytest.mark.parametrize("learners", [2, 4])
def test_at_most_chips_uptime_of_few_learners_is_that_of_independent_ones(learners: int) -> None:
    (fleet,) = [one for one in fleets() if one.chips == CHIPS[-1] and one.learners == learners]
    for found in (estimate([fleet], seed=seed)[0] for seed in SEEDS):
        assert found.uptime.value == pytest.approx(independent_uptime(found.goodput.value, learners), abs=0.005)


# ------------------------------------------------------------------------------------------------- arithmetic


def _estimate(goodput: float) -> Estimate:
    interval = Interval(value=goodput, low=goodput, high=goodput)
    return Estimate(goodput=interval, uptime=interval, participation=interval, failures=1, simulated_s=1.0)


def test_the_paper_compared_with_itself_differs_nowhere() -> None:
    table = compare([_estimate(percent / 100) for row in ROWS for percent in row.percent])
    assert max(table.rms_elastic, table.rms_rigid, table.worst) < 1e-12
    assert table.collapse == pytest.approx(4)  # 58 and 54 at 1.2 million chips a learner


def test_differences_are_simulated_minus_the_papers_in_points() -> None:
    table = compare(
        [_estimate((percent + (1 if row.elastic else -2)) / 100) for row in ROWS for percent in row.percent]
    )
    assert table.rms_elastic == pytest.approx(1)
    assert table.rms_rigid == pytest.approx(2)
    assert table.worst == pytest.approx(2)
    assert table.cells[0].difference == pytest.approx(-2)
    assert table.cells[-1].difference == pytest.approx(1)

"""A fleet's settings: what is refused, how chips are dealt, and what follows from the numbers alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unlockstep.core.errors import ConfigError
from unlockstep.sim.fleet import YEAR_S, Fleet


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"chips": 0}, "chips is 0; it must be a whole number from 1 to 1000000000"),
        ({"chips": -256}, "chips is -256; it must be a whole number from 1 to 1000000000"),
        ({"chips": 10**9 + 1}, "chips is 1000000001; it must be a whole number from 1 to 1000000000"),
        ({"chips": 1024.5}, "chips is 1024.5; it must be a whole number from 1 to 1000000000"),
        ({"learners": 0}, "learners is 0; it must be a whole number from 1 to 1000000000"),
        ({"slice_chips": 0}, "slice_chips is 0; it must be a whole number from 1 to 1000000000"),
        ({"interruption_s": 0.0}, "interruption_s is 0.0; choose 1 to 1e10 seconds"),
        ({"interruption_s": math.nan}, "interruption_s is nan; choose 1 to 1e10 seconds"),
        ({"interruption_s": math.inf}, "interruption_s is inf; choose 1 to 1e10 seconds"),
        ({"downscale_s": -1.0}, "downscale_s is -1.0; choose 0 to 1e10 seconds"),
        ({"return_s": math.nan}, "return_s is nan; choose 0 to 1e10 seconds"),
        ({"restart_s": 1e300}, "restart_s is 1e+300; choose 0 to 1e10 seconds"),
        ({"return_shape": 0.0}, "return_shape is 0.0; choose 0.2 to 20"),
        ({"return_power": math.nan}, "return_power is nan; choose 0.2 to 20"),
        ({"speed_spread": -0.1}, "speed_spread is -0.1; choose 0 to 1"),
        (
            {"spares": 1},
            "spares is 1, but an elastic fleet puts every slice to work; set spares to 0, or elastic to false",
        ),
        (
            {"chips": 1023, "learners": 4},
            "learners is 4, but a fleet of 1,023 chips has 3 slices of 256; "
            "choose fewer learners or smaller slices (slice_chips), or add chips",
        ),
        (
            {"chips": 300, "learners": 2},
            "learners is 2, but a fleet of 300 chips has 1 slice of 256; "
            "choose fewer learners or smaller slices (slice_chips), or add chips",
        ),
        (
            {"chips": 1024, "learners": 1, "elastic": False, "spares": 4},
            "learners is 1, but a fleet of 1,024 chips has 0 slices of 256 besides 4 spares; "
            "choose fewer learners or smaller slices (slice_chips), or add chips",
        ),
    ],
)
def test_a_fleet_that_cannot_be_says_why(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Fleet(**{"chips": 10_240, **settings})
    assert str(refusal.value) == sentence


def test_a_number_of_any_length_is_named_in_few_digits() -> None:
    with pytest.raises(ConfigError, match=r"^chips is 10{39}; it must be"):
        Fleet(chips=10**400)


def test_as_many_learners_as_slices_are_allowed() -> None:
    assert Fleet(chips=1024, learners=4).learner_chips().tolist() == [256] * 4


def test_chips_that_do_not_divide_evenly_go_to_the_first_learners() -> None:
    assert Fleet(chips=1030, learners=4).learner_chips().tolist() == [258, 258, 257, 257]


def test_spares_do_not_train() -> None:
    fleet = Fleet(chips=1000, slice_chips=100, learners=2, elastic=False, spares=2)
    assert fleet.working_chips == 800
    assert fleet.learner_chips().tolist() == [400, 400]


def test_a_fleet_fails_as_often_as_all_its_chips() -> None:
    """The paper's figure: under half a minute at 1.2 million chips and one year."""
    fleet = Fleet(chips=1_200_000, learners=8)
    assert fleet.failure_s == YEAR_S / 1_200_000 == pytest.approx(26.3, abs=0.05)
    assert fleet.learner_failure_s == pytest.approx(8 * fleet.failure_s, rel=1e-12)


# --------------------------------------------------------------------------------------- time until a slice is back


def _return_law(shape: float, power: float) -> Fleet:
    return Fleet(chips=10_240, return_s=600.0, return_shape=shape, return_power=power)


def _weibull_mean(shape: float) -> float:
    return math.gamma(1 + 1 / shape)


@pytest.mark.parametrize("shape", [0.2, 1.0, 1.5, 20.0])
def test_a_plain_weibull_law_has_the_scale_that_its_mean_asks_for(shape: float) -> None:
    scale_s = 600 / _weibull_mean(shape)
    assert _return_law(shape, 1).return_quantile(np.array(1 - math.exp(-1))) == pytest.approx(scale_s, rel=1e-9)


@pytest.mark.parametrize("shape", [0.2, 1.0, 1.5, 20.0])
def test_the_longer_of_two_weibull_times_has_power_two(shape: float) -> None:
    """E max = 2 E - E min, and the shorter of two Weibull times is one of 2**(-1 / k) times the scale."""
    scale_s = 600 / (_weibull_mean(shape) * (2 - 2 ** (-1 / shape)))
    share = np.array((1 - math.exp(-1)) ** 2)
    assert _return_law(shape, 2).return_quantile(share) == pytest.approx(scale_s, rel=1e-9)


@pytest.mark.parametrize(("shape", "power"), [(1.5, 1.0), (0.7, 3.0), (2.0, 0.5)])
def test_times_drawn_have_the_mean_asked_for(shape: float, power: float) -> None:
    times_s = _return_law(shape, power).draw_returns(np.random.default_rng(0), 100_000)
    assert times_s.mean() == pytest.approx(600, abs=4 * times_s.std() / math.sqrt(times_s.size))


# -------------------------------------------------------------------------------------------------- checkpoints


def _interval(checkpoint_s: float, failure_s: float, given_s: float = 0.0) -> float:
    return Fleet(chips=10_240, checkpoint_s=checkpoint_s, checkpoint_interval_s=given_s).checkpoint_interval(failure_s)


def test_a_given_interval_is_kept() -> None:
    assert _interval(60, 1000, given_s=123) == 123


def test_checkpoints_that_cost_nothing_are_taken_all_the_time() -> None:
    assert _interval(0, 1000) == 0


def test_where_failures_are_rare_the_optimum_is_youngs() -> None:
    assert _interval(1, 1e8) == pytest.approx(math.sqrt(2 * 1 * 1e8), rel=1e-3)


def test_checkpoints_longer_than_two_lives_are_taken_once_in_a_life() -> None:
    assert _interval(200, 100) == 100


@pytest.mark.parametrize("checkpoint_s", [1.0, 20.0, 100.0, 190.0])
def test_the_optimum_is_one(checkpoint_s: float) -> None:
    """Work kept per failure is interval / (exp((interval + cost) / mtbf) - 1); no interval keeps 1 % more."""

    def kept(interval_s: float) -> float:
        return interval_s / math.expm1((interval_s + checkpoint_s) / 100)

    best = max(kept(interval_s / 10) for interval_s in range(1, 10_000))
    assert kept(_interval(checkpoint_s, 100)) > 0.99 * best

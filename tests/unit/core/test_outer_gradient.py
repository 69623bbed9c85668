"""One contribution: its outer gradient, its weight, and what is refused by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.chunks import CHUNK_ELEMENTS
from unlockstep.core.outer_gradient import (
    Limits,
    RecentNorms,
    inspect,
    norm,
    outer_gradient,
)
from unlockstep.core.reasons import RefusalReason

LIMITS = Limits()


def float32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_outer_gradient_is_anchor_minus_local() -> None:
    """C1"""
    assert outer_gradient(float32(1, 2), float32(0.5, 2.5)).tolist() == [0.5, -0.5]


def test_outer_gradient_may_be_written_over_either_input() -> None:
    anchor, local = float32(1, 2), float32(0.5, 2.5)
    assert outer_gradient(anchor, local.copy(), out=anchor.copy()).tolist() == [0.5, -0.5]
    assert outer_gradient(anchor, local, out=local) is local
    assert local.tolist() == [0.5, -0.5]


def test_an_honest_contribution_is_accepted_with_its_norm() -> None:
    assert inspect(float32(3, 4), 2, 1, 10, LIMITS) == (None, 5.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, CHUNK_ELEMENTS + 1])
def test_one_non_finite_element_is_refused_wherever_it_is(value: float, position: int) -> None:
    """C9"""
    delta = np.ones(CHUNK_ELEMENTS + 2, np.float32)
    delta[position] = value
    reason, _ = inspect(delta, delta.size, 1, 1, LIMITS)
    assert reason is RefusalReason.NON_FINITE


@pytest.mark.parametrize("delta", [float32(1), float32(1, 2, 3), float32(1, 2).reshape(1, 2), np.ones(2, np.float64)])
def test_another_size_shape_or_dtype_is_refused(delta: np.ndarray) -> None:
    assert inspect(delta, 2, 1, 1, LIMITS) == (RefusalReason.WRONG_SIZE, 0.0)


@pytest.mark.parametrize(
    ("c_steps", "c_tokens"),
    [
        (1, -5),
        (-1, 5),
        (1, math.nan),
        (1, 1e30),
        (1, True),
        (0, 5),
        (1, LIMITS.c_tokens_max + 1),
        (LIMITS.c_steps_max + 1, 1),
    ],
)
def test_counts_no_learner_can_have_are_refused(c_steps: int, c_tokens: int) -> None:
    """C9"""
    assert inspect(float32(1), 1, c_steps, c_tokens, LIMITS) == (RefusalReason.BAD_COUNTS, 0.0)


def test_steps_without_tokens_are_accepted() -> None:
    assert inspect(float32(1), 1, 3, 0, LIMITS) == (None, 1.0)


def test_a_norm_beyond_the_absolute_bound_is_refused() -> None:
    assert inspect(float32(2**31), 1, 1, 1, LIMITS) == (RefusalReason.ABSURD_NORM, 2**31)
    assert inspect(float32(2**31), 1, 1, 1, Limits(norm_max=3e9)) == (None, 2**31)


def test_a_norm_beyond_the_robust_bound_is_refused() -> None:
    assert inspect(float32(3), 1, 1, 1, LIMITS, norm_bound=2.0) == (RefusalReason.ABSURD_NORM, 3.0)


def test_an_empty_fragment_is_accepted() -> None:
    assert inspect(float32(), 0, 1, 1, LIMITS) == (None, 0.0)


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e-12, 1.0, 1e15, 1e19, 1e37])
def test_norms_neither_overflow_nor_underflow(scale: float) -> None:
    values = np.full(10_000, scale, np.float32)
    assert norm(values) == pytest.approx(100 * float(np.float32(scale)), rel=1e-6)


def test_small_and_large_elements_count_in_one_norm() -> None:
    """C13"""
    values = np.full(10_001, 1e-4, np.float32)
    values[0] = 1e4
    assert norm(values) == pytest.approx(math.sqrt(1e8 + 10_000 * 1e-8), rel=1e-7)
    assert norm(values[1:]) == pytest.approx(1e-2, rel=1e-6)


def recent_norms(norms: list[tuple[float, int]], **settings: Any) -> RecentNorms:
    """What has been merged of one fragment: norm and steps."""
    recent = RecentNorms(1, **settings)
    for length, c_steps in norms:
        recent.add(0, length, c_steps)
    return recent


def test_there_is_no_robust_bound_before_enough_samples() -> None:
    recent = RecentNorms(2, samples_min=3, factor=10)
    for value in (1.0, 1.0):
        recent.add(0, value, 4)
    assert recent.bound(0, 4) == math.inf
    recent.add(0, 3.0, 4)
    assert recent.bound(0, 4) == 10 * 1.0
    assert recent.bound(1, 4) == math.inf


def test_the_robust_bound_follows_the_last_norms_only() -> None:
    recent = recent_norms([(value, 1) for value in (1.0, 1.0, 1.0, 5.0, 5.0)], length=3, samples_min=3, factor=2)
    assert recent.bound(0, 1) == 2 * 5.0


def test_an_outlier_among_the_samples_does_not_move_the_bound() -> None:
    """C13"""
    recent = recent_norms([(value, 2) for value in (1e-4, 1e-4, 1e4, 1e-4, 1e-4)], samples_min=5, factor=4)
    assert recent.bound(0, 2) == 4 * 1e-4


def test_norms_of_zero_bound_nothing() -> None:
    """C13"""
    recent = recent_norms([(0.0, 1), (0.0, 1)], samples_min=2)
    assert recent.bound(0, 1) == math.inf


def test_more_steps_may_go_as_much_farther_and_fewer_not_as_far() -> None:
    """C9: bound(c) = factor * norm_i * (c / c_i if c >= c_i else sqrt(c / c_i))"""
    recent = recent_norms([(3.0, 16)] * 8, factor=10)
    bounds = [recent.bound(0, c_steps) for c_steps in (1, 4, 16, 64, 1024)]
    assert bounds == [10 * 3 * share for share in (1 / 4, 1 / 2, 1, 4, 64)]


@given(
    drift=st.floats(0, 1),
    steps=st.lists(st.integers(1, 200), min_size=8, max_size=64),
    c_steps=st.integers(1, 10_000),
)
def test_no_honest_learner_is_ever_refused_however_many_steps_it_has_made(
    drift: float, steps: list[int], c_steps: int
) -> None:
    """C9: steps are anything between pure noise (length grows with the root of their number) and one direction."""

    def length(count: int) -> float:
        return math.sqrt((1 - drift) * count + drift * count**2)

    recent = recent_norms([(length(count), count) for count in steps], factor=1.0)
    assert length(c_steps) <= recent.bound(0, c_steps) * (1 + 1e-9)


def test_what_was_remembered_is_remembered_again_and_nothing_else() -> None:
    recent = recent_norms([(1.0, 2), (3.0, 4)])
    other = recent_norms([(9.0, 9)])
    other.restore(recent.saved())
    assert other.saved() == recent.saved() == (((1.0, 2), (3.0, 4)),)

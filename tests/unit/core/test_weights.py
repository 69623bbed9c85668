"""The weight a learner's contribution carries."""

from __future__ import annotations

import math

import pytest

from unlockstep.core.outer_gradient import Limits
from unlockstep.core.weights import contribution_weight, normalised

LIMITS = Limits()


def test_weight_is_tokens_squared_over_steps() -> None:
    """C2"""
    assert contribution_weight(100, 10) == 100**2 / 10
    assert contribution_weight(300, 10) == 300**2 / 10


@pytest.mark.parametrize(("c_tokens", "c_steps"), [(0, 0), (0, 5), (5, 0)])
def test_weight_is_zero_without_tokens_or_steps(c_tokens: int, c_steps: int) -> None:
    """C3"""
    assert contribution_weight(c_tokens, c_steps) == 0.0


@pytest.mark.parametrize(("c_tokens", "c_steps"), [(LIMITS.c_tokens_max, 1), (LIMITS.c_tokens_max, LIMITS.c_steps_max)])
def test_weight_at_the_limits_is_finite(c_tokens: int, c_steps: int) -> None:
    assert 0 < contribution_weight(c_tokens, c_steps) < math.inf


def test_normalised_weights_sum_to_one() -> None:
    assert normalised([1.0, 3.0]) == [0.25, 0.75]


def test_without_any_weight_there_is_nothing_to_normalise() -> None:
    """C3"""
    assert normalised([0.0, 0.0]) == [0.0, 0.0]
    assert normalised([]) == []

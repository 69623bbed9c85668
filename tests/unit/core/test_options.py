"""The protocol's settings: limits with their sentences, and what follows from them."""

from __future__ import annotations

import math

import pytest

from support.core_builders import options
from unlockstep.core.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("fragments", 0, "it must be at least 1"),
        ("interval_steps", 0, "it must be at least 1"),
        ("quorum", 0, "it must be at least 1"),
        ("strikes_max", 0, "it must be at least 1"),
        ("learners_max", 0, "it must be at least 1"),
        ("closed_rounds_max", 0, "it must be at least 1"),
        ("closed_rounds_max", 2**60, "it must be at most"),
        ("overlap_steps", -1, "it must be at least 0"),
        ("staleness_max", -1, "it must be at least 0"),
        ("grace_factor", -0.1, "it must be at least 0"),
        ("grace_factor", math.nan, "it must be at least 0"),
        ("grace_factor", 1.0, "choose a value from 0 up to, but not including, 1"),
        ("grace_cap_steps", -0.1, "it must be at least 0"),
        ("grace_cap_steps", math.nan, "it must be"),
        ("grace_cap_steps", math.inf, "it must be"),
        ("average_weight", 0.0, "choose a value above 0 and up to 1"),
        ("average_weight", 1.1, "choose a value above 0 and up to 1"),
        ("average_weight", math.nan, "choose a value above 0 and up to 1"),
        ("lease_s", 0.01, "choose between 0.05 seconds and one day"),
        ("lease_s", 90_000.0, "choose between 0.05 seconds and one day"),
        ("lease_s", math.nan, "choose between 0.05 seconds and one day"),
        ("layout", "random", "choose balanced, tensor or layer"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name_and_the_fix(name: str, value: float | str, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"protocol\.{name} is {value!r}.*{fix}"):
        options(**{name: value})


@pytest.mark.parametrize(
    ("fragments", "interval_steps", "overlap_steps", "expected"),
    [(24, 24, 2, 2), (8, 8, 1, 1), (8, 4, 2, 4), (4, 8, 1, 1), (3, 8, 2, 1), (1, 1, 0, 1)],
)
def test_rounds_in_flight_are_as_many_as_open_during_the_overlap(
    fragments: int, interval_steps: int, overlap_steps: int, expected: int
) -> None:
    """max(1, floor(tau * P / H))"""
    protocol = options(fragments=fragments, interval_steps=interval_steps, overlap_steps=overlap_steps)
    assert protocol.rounds_in_flight_max == expected


def test_a_lease_is_kept_in_nanoseconds() -> None:
    assert options(lease_s=2.5).lease_ns == 2_500_000_000

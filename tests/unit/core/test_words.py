"""One is not many."""

from __future__ import annotations

import pytest

from unlockstep.core.words import counted, scaled


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 commits"), (1, "1 commit"), (2, "2 commits"), (1.2, "1 commit"), (5375, "5,375 commits")]
)
def test_a_number_has_a_noun_that_goes_with_it(count: float, said: str) -> None:
    assert counted(count, "commit") == said


def test_a_plural_of_its_own_is_given() -> None:
    assert (counted(1, "address", "addresses"), counted(2, "address", "addresses")) == ("1 address", "2 addresses")


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 B/s"), (999, "999 B/s"), (12.5e6, "12.5 MB/s"), (2.617e9, "2.62 GB/s"), (999_950_000, "1 GB/s")],
)
def test_a_value_has_three_digits_and_a_prefix(value: float, said: str) -> None:
    assert scaled(value, "B/s") == said

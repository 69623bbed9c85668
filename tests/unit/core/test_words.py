"""One is not many."""

from __future__ import annotations

import pytest

from unlockstep.core.words import counted


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 commits"), (1, "1 commit"), (2, "2 commits"), (1.2, "1 commit"), (5375, "5,375 commits")]
)
def test_a_number_has_a_noun_that_goes_with_it(count: float, said: str) -> None:
    assert counted(count, "commit") == said


def test_a_plural_of_its_own_is_given() -> None:
    assert (counted(1, "address", "addresses"), counted(2, "address", "addresses")) == ("1 address", "2 addresses")

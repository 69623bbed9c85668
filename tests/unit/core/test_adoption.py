"""Adoption: the three values after it, and how much of the learner's work they still hold."""

from __future__ import annotations

import numpy as np
import pytest

from unlockstep.core.adoption import Adoption, adopt, kept
from unlockstep.core.chunks import CHUNK_ELEMENTS

NEW = np.array([10.0, 20.0], np.float32)
LOCAL = np.array([1.0, 2.0], np.float32)
PROGRESS = np.array([0.5, -1.0], np.float32)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Adoption.OVERWRITE, [10.0, 20.0]),
        (Adoption.BLEND, [0.25 * 1 + 0.75 * 10, 0.25 * 2 + 0.75 * 20]),
        (Adoption.CARRY, [10 + 0.5, 20 - 1.0]),
    ],
)
def test_each_mode_is_its_formula(mode: Adoption, expected: list[float]) -> None:
    """C36"""
    assert adopt(mode, NEW, LOCAL, PROGRESS, 0.25).tolist() == expected


@pytest.mark.parametrize("mode", Adoption)
def test_the_result_may_be_written_over_the_local_value(mode: Adoption) -> None:
    out = LOCAL.copy()
    assert adopt(mode, NEW, out, PROGRESS, 0.25, out=out) is out
    assert out.tolist() == adopt(mode, NEW, LOCAL, PROGRESS, 0.25).tolist()


@pytest.mark.parametrize("mode", Adoption)
def test_inputs_are_left_as_they_are(mode: Adoption) -> None:
    before = [array.copy() for array in (NEW, LOCAL, PROGRESS)]
    adopt(mode, NEW, LOCAL, PROGRESS, 0.5)
    for array, copy in zip((NEW, LOCAL, PROGRESS), before, strict=True):
        assert array.tolist() == copy.tolist()


def test_blend_at_its_ends_is_exactly_one_side() -> None:
    assert adopt(Adoption.BLEND, NEW, LOCAL, PROGRESS, 0.0).tolist() == NEW.tolist()
    assert adopt(Adoption.BLEND, NEW, LOCAL, PROGRESS, 1.0).tolist() == LOCAL.tolist()


def test_carry_without_local_progress_is_the_new_value() -> None:
    assert adopt(Adoption.CARRY, NEW, LOCAL, np.zeros_like(NEW), 0.0).tolist() == NEW.tolist()


def test_every_element_past_a_chunk_boundary_is_adopted() -> None:
    """C11"""
    new = np.arange(CHUNK_ELEMENTS + 1, dtype=np.float32)
    assert np.array_equal(adopt(Adoption.CARRY, new, new, new, 0.0), 2 * new)


@pytest.mark.parametrize(
    ("mode", "steps", "tokens", "alpha", "expected"),
    [
        (Adoption.OVERWRITE, 7, 700, 0.5, (0, 0)),
        (Adoption.CARRY, 7, 700, 0.5, (7, 700)),
        (Adoption.BLEND, 7, 701, 0.5, (4, 350)),
        (Adoption.BLEND, 7, 700, 0.0, (0, 0)),
        (Adoption.BLEND, 7, 700, 1.0, (7, 700)),
        (Adoption.BLEND, 7, 1, 0.5, (0, 0)),
        (Adoption.BLEND, 0, 0, 0.5, (0, 0)),
    ],
)
def test_kept_is_the_share_of_work_still_in_the_fragment(
    mode: Adoption, steps: int, tokens: int, alpha: float, expected: tuple[int, int]
) -> None:
    """C36"""
    assert kept(mode, steps, tokens, alpha) == expected

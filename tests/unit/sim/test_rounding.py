"""The second opinion on rounding: its bounds in closed form, and that it notices what is lost or counted twice."""

from __future__ import annotations

import numpy as np
import pytest

from unlockstep.config import CodecSection
from unlockstep.core.formats import Codec, Rounding
from unlockstep.sim.rounding import Losses, allowance

KEEPING = CodecSection(upload=Codec.INT4)
BOUND = 1e-6


def test_a_plain_format_may_be_off_by_a_share_of_the_value() -> None:
    values = np.array([0.0, 256.0, -512.0])
    assert allowance(Codec.FLOAT32, Rounding.NEAREST, values).tolist() == [0, 0, 0]
    assert allowance(Codec.BFLOAT16, Rounding.NEAREST, values).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("codec", "codes"), [(Codec.INT8, 128), (Codec.INT4, 8), (Codec.INT2, 2)])
def test_an_integer_may_be_off_by_half_a_step_of_its_block(codec: Codec, codes: int) -> None:
    """Of two blocks the first has 16 as its extreme, the second 1; what is as long as the extreme may lose a step."""
    values = np.array([16.0, -1.0, *[0.0] * 62, 1.0, 0.25])
    nearest = allowance(codec, Rounding.NEAREST, values)
    assert nearest[[1, 2, 65]] == pytest.approx([8 / codes, 8 / codes, 0.5 / codes], rel=2.0**-7)
    assert nearest[[0, 64]] == pytest.approx([16 / codes, 1 / codes], rel=codes * 2.0**-7)
    drawn = allowance(codec, Rounding.STOCHASTIC, values)
    assert drawn[[0, 1, 64]] == pytest.approx([16 / (codes - 1), 16 / (codes - 1), 1 / (codes - 1)], rel=2.0**-6)


def test_what_was_lost_is_expected_with_the_next() -> None:
    """Steps of 1 beside an 8: of 0.4 and 0.4 one is sent at the second time, and 0.2 too much."""
    losses = Losses(KEEPING, 2)
    made = np.array([8.0, 0.4])
    assert losses.sent(Codec.INT4, made, np.array([8.0, 0.0]), BOUND) <= BOUND
    assert losses.sent(Codec.INT4, made, np.array([8.0, 0.0]), BOUND) == pytest.approx(0.3, abs=0.01)


def test_what_was_lost_is_expected_once() -> None:
    losses = Losses(KEEPING, 2)
    made = np.array([8.0, 0.4])
    for sent in (0.0, 1.0, 0.0):
        assert losses.sent(Codec.INT4, made, np.array([8.0, sent]), BOUND) <= BOUND
    assert losses.sent(Codec.INT4, made, np.array([8.0, 2.0]), BOUND) > 0.8


@pytest.mark.parametrize("settings", [CodecSection(upload_feedback=False), KEEPING], ids=["without", "with"])
def test_a_plain_format_and_no_feedback_leave_nothing(settings: CodecSection) -> None:
    losses = Losses(settings, 1)
    codec = Codec.BFLOAT16 if settings.upload_feedback else Codec.INT4
    for _ in range(9):
        assert losses.sent(codec, np.array([256.0]), np.array([255.0]), BOUND) <= BOUND


def test_a_load_makes_it_void() -> None:
    losses = Losses(KEEPING, 2)
    made = np.array([8.0, 0.4])
    losses.sent(Codec.INT4, made, np.array([8.0, 0.0]), BOUND)
    losses.void()
    assert losses.sent(Codec.INT4, made, np.array([8.0, 0.0]), BOUND) <= BOUND


@pytest.mark.parametrize("sent", [0.0, 1.0], ids=["loaded", "not loaded"])
def test_where_a_load_cannot_be_seen_what_is_sent_next_tells(sent: float) -> None:
    """0.4 was lost. Afterwards only one of the two is possible: loaded, 0.4 is lost and now 0.8 must become 1; not
    loaded, -0.2 is, and now 0.2 must become 0."""
    losses = Losses(KEEPING, 2)
    made = np.array([8.0, 0.4])
    losses.sent(Codec.INT4, made, np.array([8.0, 0.0]), BOUND)
    losses.perhaps_void()
    assert losses.sent(Codec.INT4, made, np.array([8.0, sent]), BOUND) <= BOUND
    assert losses.sent(Codec.INT4, made, np.array([8.0, sent]), BOUND) > 0.2


def test_nan_is_no_difference_and_leaves_nothing() -> None:
    losses = Losses(KEEPING, 2)
    assert losses.sent(Codec.INT4, np.array([np.nan, 1.0]), np.array([np.nan, np.nan]), np.nan) <= 0
    assert losses.sent(Codec.INT4, np.array([8.0, 0.0]), np.array([8.0, 0.0]), BOUND) <= BOUND

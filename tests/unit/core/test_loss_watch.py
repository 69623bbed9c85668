"""What counts as a leap of the validation loss, and which record it is answered with."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.errors import ConfigError
from unlockstep.core.loss_watch import LossWatch, Spike
from unlockstep.core.messages import Evaluation
from unlockstep.core.options import RollbackOptions


def evaluation(loss: float, *versions: int) -> Evaluation:
    return Evaluation("judge", 0, loss, loss, versions)


def watching(*losses: float, window: int = 5) -> LossWatch:
    """One evaluation after the other, each of the versions that the record before it holds."""
    watch = LossWatch(RollbackOptions(spike_factor=1.5, window=window))
    for number, loss in enumerate(losses, 1):
        watch.recorded(10 * number, (number, number))
        assert watch.judge(evaluation(loss, number - 1, number - 1)) is None
    return watch


@pytest.mark.parametrize("loss", [1.51, 1e9, math.inf, math.nan])
def test_a_loss_far_above_the_median_of_recent_ones_is_a_spike(loss: float) -> None:
    """C9"""
    spike = watching(9.0, 1.0, 0.5).judge(evaluation(loss, 4, 4))
    assert spike is not None
    assert spike.level == 1.0


def test_a_loss_at_the_bound_is_none() -> None:
    assert watching(9.0, 1.0, 0.5).judge(evaluation(1.5, 4, 4)) is None


def test_the_first_losses_are_whatever_they_are() -> None:
    watch = watching(1.0, 2.0, 100.0)
    assert watch.judge(evaluation(3.1, 4, 4)) == Spike(3.1, 2.0)


def test_only_recent_losses_count() -> None:
    watch = watching(9.0, 9.0, 9.0, 1.0, 1.0, 1.0, window=3)
    assert watch.judge(evaluation(2.0, 9, 9)) == Spike(2.0, 1.0)


def test_a_spike_does_not_move_the_level() -> None:
    watch = watching(1.0, 1.0, 1.0)
    for _ in range(10):
        assert watch.judge(evaluation(50.0, 4, 4)) == Spike(50.0, 1.0)


def test_gone_back_to_is_the_newest_record_that_the_last_good_evaluation_has_seen() -> None:
    """C9: the record that was the newest when it was reported may hold what caused the spike."""
    watch = watching(1.0, 1.0, 1.0)
    assert watch.target() == 20  # of versions (2, 2), which the third evaluation has scored
    watch.went_back(20)
    assert watch.target() == 10
    watch.went_back(10)
    assert watch.target() is None


def test_after_going_back_the_next_good_evaluation_gives_a_new_place_to_go_back_to() -> None:
    watch = watching(1.0, 1.0, 1.0)
    watch.went_back(20)
    watch.recorded(40, (5, 5))
    assert watch.judge(evaluation(1.0, 5, 5)) is None
    assert watch.target() == 40


def test_without_a_record_there_is_nothing_to_go_back_to() -> None:
    watch = LossWatch(RollbackOptions(spike_factor=2.0))
    for _ in range(4):
        watch.judge(evaluation(1.0, 1))
    assert watch.judge(evaluation(9.0, 1)) is not None
    assert watch.target() is None


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40), st.integers(1, 6))
def test_what_is_kept_is_bounded_and_outlives_the_syncer(losses: list[float], window: int) -> None:
    watch = LossWatch(RollbackOptions(spike_factor=2.0, window=window))
    for number, loss in enumerate(losses, 1):
        watch.recorded(number, (number,))
        watch.judge(evaluation(loss, number))
    assert len(watch.saved()) <= window + 1
    again = LossWatch(RollbackOptions(spike_factor=2.0, window=window))
    again.restore(watch.saved())
    assert (again.saved(), again.target()) == (watch.saved(), watch.target())
    assert (again.judge(evaluation(math.nan, 99)) is None) == (watch.judge(evaluation(math.nan, 99)) is None)


def test_it_is_off_unless_it_is_switched_on() -> None:
    assert not LossWatch(RollbackOptions()).is_on
    with pytest.raises(ConfigError, match=r"rollback.spike_factor is 0.9; choose a value above 1"):
        RollbackOptions(spike_factor=0.9)
    with pytest.raises(ConfigError, match=r"rollback.window is 0; choose a number of evaluations from 1 to 1024"):
        RollbackOptions(window=0)

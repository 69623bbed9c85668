"""What is kept of a run to draw its curves."""

from __future__ import annotations

import pytest

from support.logs import GOOD, joined, live, step
from unlockstep.core.events import BytesMoved, EvaluationReported, Event, LearnerAway, StepReported
from unlockstep.report.curves import LOSS_SLICES, Curves, CurvesReader

MS = 1_000_000


def curves(events: tuple[Event, ...] | list[Event], end: int = 600) -> Curves:
    reader = CurvesReader(0, end * MS, 2)
    for event in events:
        reader.see(event)
    return reader.curves()


def test_losses_are_means_of_slices_of_time() -> None:
    losses = (4.0, 2.0, float("nan"))
    story = [StepReported(1000 + at, "a", 1, at, at, 10 * at, 1, loss) for at, loss in enumerate(losses, start=1)]
    (point,) = curves(story).losses["a"]
    assert (point.loss, point.clock, point.tokens) == (3.0, 1.5, 15.0)


def test_a_learner_that_has_diverged_is_seen_to_and_one_without_losses_has_none() -> None:
    def told(learner: str, losses: tuple[float, ...]) -> list[Event]:
        return [StepReported(at * 100 * MS, learner, 1, at, at, 10 * at, MS, loss)
                for at, loss in enumerate(losses, start=1)]  # fmt: skip

    nan, inf = float("nan"), float("inf")
    losses = curves([*told("a", (4.0, 2.0, inf, nan)), *told("b", (nan, nan))]).losses
    assert list(losses) == ["a"]
    assert [point.loss for point in losses["a"]] == pytest.approx([4.0, 2.0, nan, nan], nan_ok=True)
    assert [point.clock for point in losses["a"]] == [1, 2, 3, 4]


def test_a_long_run_keeps_no_more_points_than_a_short_one() -> None:
    story = [StepReported(at * MS, "a", 1, at, at, at, MS, 1.0) for at in range(1, 5000)]
    assert len(curves(story, end=5000).losses["a"]) == LOSS_SLICES


def test_an_evaluation_knows_what_all_had_trained_by_then() -> None:
    story = [joined(0, "a"), step(100, "a", 3), joined(0, "b"), step(100, "b", 2), joined(200, "a", 2),
             step(250, "a", 1), EvaluationReported(300 * MS, "e", 3, 2.0, 1.5, ())]  # fmt: skip
    assert curves(story).evaluations[0].tokens == 30 + 20 + 10


def test_live_learners_go_up_and_down() -> None:
    story = [live(100, "a"), live(200, "b"), LearnerAway(300 * MS, "a", 1), LearnerAway(310 * MS, "a", 1)]
    assert curves(story).live == [(100 * MS, 1), (200 * MS, 2), (300 * MS, 1)]


def test_bytes_are_spread_over_the_time_since_they_were_counted_last_and_add_up() -> None:
    story = [BytesMoved(100 * MS, "a", 1, 7, 0), BytesMoved(300 * MS, "a", 1, 100, 50)]
    moved = curves(story).moved["a"]
    assert (sum(moved.up), sum(moved.down)) == (pytest.approx(107), pytest.approx(50))
    assert max(moved.down) == pytest.approx(0.5)


def test_participation_is_a_mean_over_rounds_and_staleness_a_count() -> None:
    found = curves(GOOD)
    assert [value for _, value in found.participation][:2] == [1.0, 0.5]
    assert sum(found.staleness.values()) == 8

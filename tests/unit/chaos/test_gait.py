"""How long processes run and stand, with a clock that is moved by hand."""

from __future__ import annotations

import pytest

from unlockstep.chaos.gait import PERIOD_S, RUN_S_MIN, STAND_S_MAX, Gait


class Road:
    """Counts for how long each process has run and stood, by signals alone."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stands: dict[str, bool] = {}
        self.ran_s: dict[str, float] = {}
        self.signals = 0

    def stand(self, name: str) -> None:
        self.stands[name] = True
        self.signals += 1

    def go_on(self, name: str) -> None:
        self.stands[name] = False
        self.signals += 1

    def walk(self, gait: Gait, seconds: float, late_s: float = 0.0) -> float:
        """Let time pass; the share of it that ``a`` has run."""
        begin_s, ran_s = self.now_s, 0.0
        while self.now_s < begin_s + seconds:
            next_s = min(gait.advance() + late_s, begin_s + seconds)
            ran_s += 0 if self.stands.get("a") else next_s - self.now_s
            self.now_s = next_s
        return ran_s / seconds


@pytest.mark.parametrize("factor", [2.0, 5.0, 20.0, 50.0])
def test_a_slow_process_runs_its_share_of_the_time(factor: float) -> None:
    road = Road()
    gait = Gait(road, now_s=lambda: road.now_s)
    gait.set_pace("a", factor)
    assert road.walk(gait, 1000 * PERIOD_S) == pytest.approx(1 / factor, rel=0.01)


def test_a_supervisor_that_wakes_late_stretches_both_what_is_run_and_what_is_stood() -> None:
    """Late by d each time: it runs r + d, and stands (r + d)(f - 1) + d."""
    road, late_s, factor = Road(), 0.01, 5.0
    gait = Gait(road, now_s=lambda: road.now_s)
    gait.set_pace("a", factor)
    run_s = PERIOD_S / factor + late_s
    assert road.walk(gait, 2000 * PERIOD_S, late_s) == pytest.approx(run_s / (run_s * factor + late_s), rel=0.01)


def test_nobody_stands_for_longer_than_a_second() -> None:
    road = Road()
    gait = Gait(road, now_s=lambda: road.now_s)
    gait.set_pace("a", 1e6)
    assert road.walk(gait, 1000.0) == pytest.approx(RUN_S_MIN / (RUN_S_MIN + STAND_S_MAX), rel=0.01)


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_nothing_becomes_faster(factor: float) -> None:
    road = Road()
    gait = Gait(road, now_s=lambda: road.now_s)
    gait.set_pace("a", factor)
    assert gait.advance() == float("inf") and not road.stands["a"]


def test_a_stopped_process_stands_whatever_its_pace() -> None:
    road = Road()
    gait = Gait(road, now_s=lambda: road.now_s)
    gait.set_pace("a", 3.0)
    gait.stop("a")
    assert road.walk(gait, 10.0) == 0.0
    gait.go_on("a")
    assert road.walk(gait, 300 * PERIOD_S) == pytest.approx(1 / 3, rel=0.02)


def test_who_cannot_be_stopped_yet_runs() -> None:
    road = Road()
    gait = Gait(road, may_stop=lambda name: False, now_s=lambda: road.now_s)
    gait.set_pace("a", 3.0)
    assert road.walk(gait, 10.0) == 1.0


def test_whoever_is_forgotten_runs() -> None:
    road = Road()
    gait = Gait(road, now_s=lambda: road.now_s)
    gait.stop("a")
    gait.forget("a")
    assert not road.stands["a"]


def test_its_thread_lets_everybody_run_at_the_end() -> None:
    road = Road()
    gait = Gait(road)
    gait.slow("a", 5.0)
    gait.stop("b")
    gait.close()
    assert road.stands == {"a": False, "b": False}

"""The synthetic tape: the same history as the simulation's, in actions."""

from __future__ import annotations

import math

import pytest

from unlockstep.core.errors import ConfigError
from unlockstep.sim.fleet import Fleet
from unlockstep.sim.fleet_tape import fleet_tape
from unlockstep.sim.goodput import measure
from unlockstep.sim.outages import play
from unlockstep.tape import Continue, Slow, Stop, Tape, dumps_lines, loads

DAY_S = 86_400.0


def _work(tape: Tape, learner: str) -> float:
    """Share of the time a learner works, as its actions say, in steps of its own speed."""
    runs, factor, last_ns, work = True, 1.0, 0, 0.0
    for action in [action for action in tape.actions if action.target == learner]:
        work += (action.at_ns - last_ns) / factor if runs else 0
        last_ns = action.at_ns
        match action:
            case Stop():
                runs = False
            case Continue():
                runs = True
            case Slow():
                factor = action.factor
    return (work + ((tape.end_ns - last_ns) / factor if runs else 0)) / tape.end_ns


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(chips=600_000, learners=4),
        Fleet(chips=1030, learners=4, interruption_s=1e7, return_s=1e4),
        Fleet(chips=25_600, learners=2, interruption_s=3600.0),
        Fleet(chips=100_000, learners=3, speed_spread=0.1),
        Fleet(chips=100_000, learners=3, downscale_s=0.0, upscale_s=0.0, notice_s=0.0),
    ],
    ids=["large", "tiny", "flaky", "uneven", "instant"],
)
def test_a_tape_gives_the_goodput_of_the_simulation(fleet: Fleet) -> None:
    tape = fleet_tape(fleet, duration_s=DAY_S, seed=3)
    chips = fleet.learner_chips()
    works = [_work(tape, learner) for learner in tape.learners]
    (goodput,), _, _ = measure(play(fleet, horizon_s=DAY_S, replicas=1, seed=3))
    assert sum(works * chips) / fleet.chips == pytest.approx(goodput, abs=1e-9)


def test_a_day_of_the_largest_fleet() -> None:
    """86400 s at one failure in 13.1 s: some 6.5 thousand, a few fewer because slices that are out cannot fail."""
    fleet = Fleet(chips=2_400_000, learners=16)
    tape = fleet_tape(fleet, duration_s=DAY_S, seed=0)
    failures = int(tape.about.split()[0].replace(",", ""))
    assert failures == pytest.approx(DAY_S / fleet.failure_s, abs=4 * math.sqrt(DAY_S / fleet.failure_s))
    assert tape.end_ns == 86_400 * 10**9
    assert loads(dumps_lines(tape), "jsonl") == tape


def test_learners_that_have_lost_slices_before_are_slow_at_once() -> None:
    tape = fleet_tape(Fleet(chips=2_400_000, learners=2), duration_s=60.0, seed=0)
    slow = [action for action in tape.actions if isinstance(action, Slow) and action.at_ns == 0]
    assert slow and all(action.factor > 1 for action in slow)


def test_a_fleet_that_never_trains_is_stopped_from_the_start() -> None:
    tape = fleet_tape(Fleet(chips=2560, learners=2, interruption_s=1.0), duration_s=60.0, seed=0)
    assert tape.actions == (Stop(at_ns=0, target="learner-0"), Stop(at_ns=0, target="learner-1"))


def test_where_nothing_fails_nothing_happens() -> None:
    tape = fleet_tape(Fleet(chips=2560, learners=2, interruption_s=1e10), duration_s=60.0, seed=0)
    assert tape.actions == ()
    assert tape.end_ns == 60 * 10**9


def test_the_same_seed_writes_the_same_tape() -> None:
    first, second, other = (fleet_tape(Fleet(chips=300_000), duration_s=3600.0, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first.actions != other.actions


def test_a_rigid_fleet_has_no_tape() -> None:
    with pytest.raises(ConfigError, match=r"^elastic is false, but a tape cannot send a learner back to a checkpoint"):
        fleet_tape(Fleet(chips=10_240, elastic=False), duration_s=60.0, seed=0)


@pytest.mark.parametrize("duration_s", [0.0, 1e-10, -1.0, math.nan, math.inf, 1e12])
def test_a_duration_out_of_range_is_refused(duration_s: float) -> None:
    with pytest.raises(ConfigError, match=r"^duration_s is .*; choose 1e-09 to"):
        fleet_tape(Fleet(chips=10_240), duration_s=duration_s, seed=0)

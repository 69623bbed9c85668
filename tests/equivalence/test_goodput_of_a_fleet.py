"""One history of a fleet of chips, measured twice: as the fleet simulator does, and from the log of a run that lived
through it as an event tape. Both are called goodput, and agree within two points."""

from __future__ import annotations

import sys

import pytest

from architecture.rules import ROOT
from support.scripts import imported
from unlockstep.config import RunConfig, apply
from unlockstep.core.messages import EndRun
from unlockstep.report.accounting import Accounting, account
from unlockstep.report.goodput import Shares
from unlockstep.sim.fleet import Fleet
from unlockstep.sim.fleet_tape import fleet_tape
from unlockstep.sim.goodput import measure
from unlockstep.sim.outages import play
from unlockstep.sim.weightless import WeightlessBackend, WeightlessFreight
from unlockstep.sim.world import World
from unlockstep.tape import Tape
from unlockstep.virtual.ring import Ring

SECOND = 1_000_000_000
FRAGMENTS = 4


def lived_through(tape: Tape, end_ns: int) -> Accounting:
    """What a run amounts to whose learners take steps of a second, until the tape is over."""
    given = ["run.steps=1000000000", 'inner.schedule="constant"', f"protocol.fragments={FRAGMENTS}"]
    config = apply(RunConfig(), [*given, f"local.learners={len(tape.learners)}"])
    world = World(config, seed=0, freight=WeightlessFreight())
    world.schedule(tape, lambda name: (WeightlessBackend(FRAGMENTS), SECOND))
    for _ in world.play(end_ns):
        pass
    world.tell(EndRun("the tape is over"))
    for _ in world.play(end_ns + 60 * SECOND):
        pass
    return account(world.events, config.protocol, tape)


@pytest.mark.parametrize(
    ("chips", "learners", "seed"), [(1_200_000, 8, 0), (1_200_000, 8, 1), (300_000, 2, 2), (1_200_000, 1, 1)]
)
def test_the_goodput_of_a_fleets_tape_is_that_of_the_fleet(chips: int, learners: int, seed: int) -> None:
    fleet, duration_s = Fleet(chips=chips, learners=learners), 300.0
    history = play(fleet, horizon_s=duration_s, replicas=1, seed=seed)
    ((told,), (uptime,), _) = measure(history)
    accounting = lived_through(fleet_tape(fleet, duration_s=duration_s, seed=seed), round(duration_s * SECOND))
    found = accounting.goodput
    assert found is not None and accounting.uptime is not None
    assert found.goodput == pytest.approx(float(told), abs=0.02)
    assert accounting.uptime == pytest.approx(float(uptime), abs=0.02)
    assert sum(getattr(found.shares, name) for name in Shares.__struct_fields__) == pytest.approx(1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_goodput_of_an_experiment_is_that_of_the_fleet(seed: int) -> None:
    """How long everything takes does not depend on what is learned: here nothing is."""
    name = "dense: 8 learners, failures"
    with imported("experiments/failures.py") as experiment:
        trial = next(trial for trial in experiment.trials(False) if trial.name == name)
        trials, result_file = sys.modules["trial"], sys.modules["result_file"]
        config = trials.configured(trial, seed)
        tape, tokens = trials._tape(trial, config), trials.tokens_per_step(config)
        ring = Ring(config, tape, lambda shard, shards: WeightlessBackend(config.protocol.fragments, tokens))
        for _ in ring.play():
            pass
        score = trials._fleet_score(trial.storm, config, ring.world.events, tape)
        kept = result_file.read(ROOT / "experiments" / "results" / "failures.json").of(name)[seed].fleet
    assert score.goodput == pytest.approx(score.simulated, abs=0.02)
    assert score.goodput == pytest.approx(kept.goodput, abs=1e-4)

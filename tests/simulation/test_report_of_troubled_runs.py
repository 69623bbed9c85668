"""What the report says of runs in which the syncer dies, links are cut and learners are killed: every share of goodput
is one, they add up, and the picture shows what the table says."""

from __future__ import annotations

import math

import pytest

from unlockstep.config import RunConfig, apply
from unlockstep.core.messages import EndRun
from unlockstep.poisson import Trouble, draw
from unlockstep.report.accounting import account
from unlockstep.report.goodput import Shares
from unlockstep.report.stretches import Doing
from unlockstep.report.timeline import UNHEARD, read_timeline
from unlockstep.sim.weightless import WeightlessBackend, WeightlessFreight
from unlockstep.sim.world import World

SECOND = 1_000_000_000
LEARNERS = ("a", "b", "c")


def troubled(seed: int) -> tuple[World, RunConfig]:
    """Half a minute, with steps of 0.2 s that take their time."""
    tape = draw(
        "night", LEARNERS, 30.0, seed,
        {"kill": Trouble(12.0, 3.0), "cut": Trouble(10.0, 3.0), "slow": Trouble(15.0, 3.0, {"factor": 3.0})},
        {"kill": Trouble(10.0, 4.0)},
    )  # fmt: skip
    given = [
        "run.steps=1000000000",
        'inner.schedule="constant"',
        "protocol.lease_s=2.0",
        f"local.learners={len(LEARNERS)}",
    ]
    config = apply(RunConfig(), given)
    world = World(config, seed=seed, freight=WeightlessFreight())
    world.schedule(tape, lambda name: (WeightlessBackend(config.protocol.fragments), SECOND // 5))
    for _ in world.play(30 * SECOND):
        pass
    world.tell(EndRun("enough"))
    for _ in world.play(60 * SECOND):
        pass
    return world, config


@pytest.mark.parametrize("seed", range(8))
def test_the_shares_of_a_troubled_run_are_shares_and_its_picture_shows_them(seed: int) -> None:
    world, config = troubled(seed)
    accounting = account(world.events, config.protocol)
    assert accounting.goodput is not None and accounting.uptime is not None
    assert 0 <= accounting.uptime <= 1 and accounting.downtime_ns >= 0
    each = {learner.learner: learner.goodput for learner in accounting.learners if learner.goodput is not None}
    for goodput in (accounting.goodput, *each.values()):
        parts = [getattr(goodput.shares, name) for name in Shares.__struct_fields__]
        assert all(0 <= part <= 1 for part in parts)
        assert math.fsum(parts) == pytest.approx(1, abs=1e-12) and 0 <= goodput.goodput <= 1

    last_ns = max(event.at_ns for event in world.events)
    rows = read_timeline(world.events, begin_ns=0, end_ns=last_ns, learners=LEARNERS).rows
    for learner, goodput in each.items():
        spent_ns = {kind: sum(cells) for kind, cells in rows[learner].spent_ns.items()}
        assert sum(spent_ns.values()) - spent_ns.get(UNHEARD, 0) <= last_ns * (1 + 1e-9)
        for doing in (Doing.WAITING, Doing.AWAY):
            share_ns = getattr(goodput.shares, doing.value) * goodput.tokens_possible / goodput.tokens_per_s * SECOND
            assert share_ns == pytest.approx(spent_ns.get(doing.value, 0), abs=1e3), doing


def test_there_are_runs_in_which_learners_train_on_unheard() -> None:
    """Else the above would show little."""
    world, _ = troubled(0)
    last_ns = max(event.at_ns for event in world.events)
    rows = read_timeline(world.events, begin_ns=0, end_ns=last_ns, learners=LEARNERS).rows
    assert sum(sum(row.spent_ns.get(UNHEARD, ())) for row in rows.values()) > 5 * SECOND

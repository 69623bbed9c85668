"""A virtual run that is stopped anywhere, and goes on from its checkpoint, ends as if nobody had stopped it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.virtual_site import Site, drawn, toys
from unlockstep.launch.local import Ending

STEPS = 60
SEEDS = 24


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_that_was_stopped_anywhere_ends_as_one_that_was_not(seed: int, tmp_path: Path) -> None:
    """Settings, tape and the places from a seed: learners and syncers that die, stop and return, links, roll-backs."""
    config, tape = drawn(seed, STEPS)
    straight = Site(tmp_path / "straight", config, tape, toys(config))
    expected = straight.run()
    cut = Site(tmp_path / "cut", config, tape, toys(config))
    chance = random.Random(seed)
    assert cut.run(happenings=chance.randint(1, 20)).ending is Ending.INTERRUPTED
    while (outcome := cut.run(happenings=chance.randint(1, 400))).ending is Ending.INTERRUPTED:
        pass
    assert outcome == expected
    assert cut.left_behind == straight.left_behind


def test_the_stories_are_worth_the_while() -> None:
    """Among them are tapes on which the syncer dies, and on which learners do."""
    tapes = [drawn(seed, STEPS)[1] for seed in range(SEEDS)]
    did = {(type(action).__name__, action.target == "syncer") for tape in tapes for action in tape.actions}
    assert {("Kill", True), ("Kill", False), ("Restart", True), ("Cut", False), ("Stop", False), ("Slow", False)} <= did

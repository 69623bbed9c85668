"""Cores broken on purpose are found out, each by a rule that speaks of its fault: else the swarm is blind."""

from __future__ import annotations

import pytest

from unlockstep.core.errors import UsageError
from unlockstep.sim import story as stories
from unlockstep.sim.canaries import CANARIES, canary
from unlockstep.sim.swarm import play

SEEDS_NEEDED = {
    "quorum_off_by_one": 10,
    "double_count": 30,
    "lost_timer": 60,
    "stale_incarnation": 40,
    "stale_base": 40,
    "incarnation_reused": 20,
    "endless_lease": 40,
    "short_quarantine": 20,
    "late_lost": 20,
    "aliased_fragment": 10,
    "skipped_fragment": 10,
    "returned_too_little": 60,
    "reported_is_reached": 10,
    "given_back_twice": 60,
    "left_for_good": 60,
    "epoch_too_early": 10,
    "forgotten_momentum": 10,
    "even_weights": 10,
    "wrong_body": 10,
    "unmoved_anchor": 10,
    "torn_pair": 10,
    "torn_state": 60,
    "claimed_progress": 60,
    "lost_in_rounding": 30,
    "rounded_anew": 30,
    "rounding_of_the_void": 160,
    "rash_promise": 10,
    "unrepentant": 40,
    "incurious": 40,
    "aloof": 110,
    "estranged": 10,
    "rounds_anew": 20,
    "at_rest": 40,
}
"""Within so many stories: a few times what it took when this was written, and far from the 200 that are allowed."""


def test_every_canary_is_tried() -> None:
    assert SEEDS_NEEDED.keys() == CANARIES.keys()


@pytest.mark.parametrize("name", CANARIES)
def test_a_broken_core_is_found_out_by_the_right_rule(name: str) -> None:
    broken = canary(name)
    for seed in range(SEEDS_NEEDED[name]):
        outcome = play(stories.draw(seed), make_core=broken.make_core, freight=broken.freight)
        if outcome.failed:
            assert outcome.rule in broken.rules, outcome
            return
    raise AssertionError(f"{SEEDS_NEEDED[name]} stories went by without a complaint")


def test_a_canary_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match="canary is 'dodo', which does not exist: choose one of quorum_off_by_one, "):
        canary("dodo")

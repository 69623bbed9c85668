"""A learner behind a link that carries less than it is asked for: what it is worth, and what it keeps."""

from __future__ import annotations

from collections import Counter

import pytest

from support.ring_story import SECOND_NS, STEP_NS, end, of, ring_of, settings
from unlockstep import tape as tapes
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import ContributionAccepted, ContributionRefused, LearnerDeparted
from unlockstep.core.hand_overs import UNDER_WAY_MAX
from unlockstep.core.messages import HandedOver
from unlockstep.core.reasons import DepartureReason, RefusalReason
from unlockstep.loop import Contribution
from unlockstep.sim.world import World

ALL = {"a": STEP_NS, "b": STEP_NS, "slow": STEP_NS}
FRAGMENTS = 4


def throttled(body_steps: float, adoption: Adoption, **protocol: object) -> World:
    """A round every step; a body takes the slow learner so many steps, up or down."""
    world = ring_of(settings(adoption=adoption, **{"lease_s": 30.0, **protocol}), ALL)
    world.run(2 * SECOND_NS)
    size_bits = 8 * world.process("slow")._codecs.size(0)
    throttle(world, size_bits * SECOND_NS / (body_steps * STEP_NS) / 1e6)
    return world


def throttle(world: World, mbit_per_s: float) -> None:
    world.apply(tapes.Throttle(at_ns=0, target="slow", mbit_per_s=mbit_per_s), lambda name: (None, 0))


def kept(world: World) -> dict[HandedOver, Contribution]:
    """What the slow learner has handed over and not heard of, with two arrays each."""
    return world.process("slow").loop._unsettled


def run(world: World, duration_ns: int) -> int:
    """Let time pass; how many contributions the slow learner has kept at most."""
    until_ns = world.clock.now_ns() + duration_ns
    return max(len(kept(world)) for _ in world.play(until_ns))


def accepted(world: World, since_ns: int) -> list[ContributionAccepted]:
    return [e for e in of(ContributionAccepted, world.events) if e.learner == "slow" and e.at_ns >= since_ns]


def refusals(world: World) -> list[RefusalReason]:
    return [event.reason for event in of(ContributionRefused, world.events)]


def merged_share(world: World) -> float:
    ledger = world.core.status(world.clock.now_ns()).ledger
    return (ledger.merged + ledger.merged_late) / ledger.trained


@pytest.mark.parametrize("adoption", Adoption)
@pytest.mark.parametrize("body_steps", [2.0, 5.0, 8.0, 12.0])
def test_a_slow_link_is_used_up_and_nothing_that_it_carries_is_too_old(body_steps: float, adoption: Adoption) -> None:
    """It carries one body after the other, of every fragment in turn; memory is what is on its way, and of every
    fragment one that waits to be merged."""
    world = throttled(body_steps, adoption)
    since_ns, duration_ns = world.clock.now_ns(), 40 * SECOND_NS
    assert run(world, duration_ns) <= UNDER_WAY_MAX + FRAGMENTS
    assert refusals(world) == []
    arrived = accepted(world, since_ns)
    assert len(arrived) >= duration_ns / (body_steps * STEP_NS) - 1
    by_fragment = Counter(event.fragment for event in arrived)
    assert max(by_fragment.values()) - min(by_fragment[fragment] for fragment in range(FRAGMENTS)) <= 1
    throttle(world, 0)
    world.run(world.clock.now_ns() + 20 * SECOND_NS)
    end(world, transfer_ns=5 * SECOND_NS)
    if adoption is Adoption.CARRY:
        assert merged_share(world) == 1.0


@pytest.mark.parametrize("body_steps", [2.0, 5.0])
def test_the_last_rounds_wait_for_what_they_have_asked_a_slow_link_for_and_no_longer(body_steps: float) -> None:
    """Only what was on its way for an earlier round may come after the last one of its fragment."""
    world = throttled(body_steps, Adoption.CARRY)
    run(world, 20 * SECOND_NS)
    begins_ns = world.clock.now_ns()
    end(world, transfer_ns=5 * SECOND_NS)
    ledger = world.core.status(world.clock.now_ns()).ledger
    assert set(ledger.refused) <= {"run_finished"} and ledger.lost == ledger.dropped == 0
    assert sum(ledger.refused.values()) <= UNDER_WAY_MAX * FRAGMENTS * body_steps * 10 / FRAGMENTS
    assert world.clock.now_ns() - begins_ns < (2 * FRAGMENTS + 1) * body_steps * STEP_NS + SECOND_NS


def test_after_a_cut_and_a_lost_lease_only_what_was_on_its_way_comes_in_vain() -> None:
    world = throttled(5.0, Adoption.CARRY, lease_s=1.0, staleness_max=64)
    run(world, 20 * SECOND_NS)
    world.apply(tapes.Cut(at_ns=0, target="slow"), lambda name: (None, 0))
    assert run(world, 5 * SECOND_NS) <= UNDER_WAY_MAX + FRAGMENTS
    world.apply(tapes.Heal(at_ns=0, target="slow"), lambda name: (None, 0))
    assert run(world, 20 * SECOND_NS) <= UNDER_WAY_MAX + FRAGMENTS
    assert [event.reason for event in of(LearnerDeparted, world.events)] == [DepartureReason.LEASE_EXPIRED]
    assert len(refusals(world)) <= UNDER_WAY_MAX
    throttle(world, 0)
    run(world, 10 * SECOND_NS)
    end(world, transfer_ns=10 * SECOND_NS)
    assert merged_share(world) == 1.0


def test_a_syncer_that_dies_is_brought_again_what_a_slow_link_has_brought() -> None:
    world = throttled(5.0, Adoption.CARRY, staleness_max=64)
    for _ in range(3):
        run(world, 10 * SECOND_NS)
        for kind in (tapes.Kill, tapes.Restart):
            world.apply(kind(at_ns=0, target=tapes.SYNCER), lambda name: (None, 0))
        assert run(world, 10 * SECOND_NS) <= UNDER_WAY_MAX + FRAGMENTS
    throttle(world, 0)
    run(world, 10 * SECOND_NS)
    end(world, transfer_ns=10 * SECOND_NS)
    assert merged_share(world) == 1.0


def test_who_leaves_over_a_slow_link_brings_what_it_has() -> None:
    world = throttled(2.0, Adoption.CARRY)
    run(world, 10 * SECOND_NS)
    world.apply(tapes.Leave(at_ns=0, target="slow"), lambda name: (None, 0))
    world.run(world.clock.now_ns() + 5 * SECOND_NS)
    assert [event.reason for event in of(LearnerDeparted, world.events)] == [DepartureReason.LEFT]
    end(world, transfer_ns=5 * SECOND_NS)
    assert merged_share(world) == 1.0

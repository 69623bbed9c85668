"""Learners of different speed: whoever lives takes part in every fragment, at any constant ratio, and nobody waits."""

from __future__ import annotations

import itertools
import math

import pytest

from support.ring_story import MS, SECOND_NS, STEP_NS, end, of, ring_of, settings, toy
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import Event, FragmentCommitted, RoundOpened, StepReported
from unlockstep.core.options import Participation
from unlockstep.sim.weightless import WeightlessBackend, WeightlessFreight
from unlockstep.sim.world import World

RATIOS = [1, 2, 3, 4, 5, 7, 8, 10, 13, 16, 20]
"""How many times slower; those that divide H, or that H divides, alias with a schedule by ``t mod H``."""

INTERVAL_STEPS = 4
FRAGMENTS = 4


def rounds_between_contributions(events: list[Event], learner: str, fragment: int) -> list[int]:
    """For every stretch between two contributions of a learner to a fragment (the first and last stretch included):
    how many rounds of the fragment were committed in it."""
    commits = [event for event in of(FragmentCommitted, events) if event.fragment == fragment]
    mine = [number for number, event in enumerate(commits) if learner in event.weights]
    edges = [-1, *mine, len(commits)]
    return [right - left for left, right in itertools.pairwise(edges)]


def two_speeds(ratio: float, adoption: Adoption, participation: Participation, seconds: int = 0) -> World:
    """Three learners, one of them slower, long enough for twelve steps of it."""
    config = settings(
        fragments=FRAGMENTS, interval_steps=INTERVAL_STEPS, adoption=adoption, participation=participation, lease_s=10.0
    )
    ring = ring_of(config, {"fast": STEP_NS, "other": STEP_NS, "slow": round(ratio * STEP_NS)})
    ring.run(max(round(12 * ratio * STEP_NS), 4 * SECOND_NS) + seconds * SECOND_NS)
    return ring


@pytest.mark.parametrize("adoption", Adoption)
@pytest.mark.parametrize("ratio", RATIOS)
def test_every_learner_contributes_to_every_fragment_within_a_bound(ratio: int, adoption: Adoption) -> None:
    """A slow learner gives to a fragment what a step of its has made of it, step after step; in between lie at most
    two steps of its, and the round it comes late for."""
    ring = two_speeds(ratio, adoption, Participation.LATEST)
    bound = math.ceil(2 * ratio / INTERVAL_STEPS) + 2
    for learner in ("fast", "other", "slow"):
        for fragment in range(FRAGMENTS):
            stretches = rounds_between_contributions(ring.events, learner, fragment)
            assert max(stretches) <= (bound if learner == "slow" else 3), (learner, fragment, stretches)
    end(ring)


@pytest.mark.parametrize("ratio", [1.5, 2.6, 3.99, 4.01, 7.3])
def test_neither_do_ratios_that_are_no_whole_numbers_shut_anybody_out(ratio: float) -> None:
    ring = two_speeds(ratio, Adoption.OVERWRITE, Participation.LATEST)
    for fragment in range(FRAGMENTS):
        assert max(rounds_between_contributions(ring.events, "slow", fragment)) <= math.ceil(ratio / 2) + 2
    end(ring)


PAPER_H = 24
"""Also P: a fragment every step. Most of the ratios below divide it."""


def a_fragment_every_step(ratio: int, participation: Participation) -> World:
    """Three learners without arrays, one of them slower: ten rotations, or as many steps of the slow one."""
    config = settings(fragments=PAPER_H, interval_steps=PAPER_H, participation=participation, lease_s=10.0)
    world = World(config, freight=WeightlessFreight())
    for name, step_ns in (("fast", STEP_NS), ("other", STEP_NS), ("slow", ratio * STEP_NS)):
        world.join(name, WeightlessBackend(PAPER_H), step_ns)
    world.run(10 * max(ratio, PAPER_H) * STEP_NS)
    return world


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 6, 8, 12, 13, 20])
def test_neither_do_ratios_that_divide_the_interval(ratio: int) -> None:
    """The bound is the one above, with a rotation of 24 steps."""
    world = a_fragment_every_step(ratio, Participation.LATEST)
    for fragment in range(PAPER_H):
        assert max(rounds_between_contributions(world.events, "slow", fragment)) <= math.ceil(2 * ratio / PAPER_H) + 2


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 6, 8, 12])
def test_under_fresh_a_learner_reaches_only_the_fragments_whose_turn_falls_on_its_steps(ratio: int) -> None:
    """Fragment p is due at steps p, p + 24, ... and the slow learner stands at multiples of its ratio: of 24 fragments
    it meets 24 / gcd(ratio, 24), the same ones for ever."""
    world = a_fragment_every_step(ratio, Participation.FRESH)
    reached = {event.fragment for event in of(FragmentCommitted, world.events) if "slow" in event.weights}
    assert len(reached) == PAPER_H // math.gcd(ratio, PAPER_H)


def share_of_rounds(ring: World, learner: str) -> float:
    commits = of(FragmentCommitted, ring.events)
    return sum(learner in event.weights for event in commits) / len(commits)


@pytest.mark.parametrize(("adoption", "steps_per_contribution"), [(Adoption.CARRY, 1), (Adoption.OVERWRITE, 2)])
def test_how_often_a_slow_learner_takes_part(adoption: Adoption, steps_per_contribution: int) -> None:
    """Under the paper's rule in one of ``ratio`` rounds at best: when the step it is due at is one that it stands at
    the end of. Under ``latest`` once for each of its steps, or every second one where it has to take a version first:
    H / ratio of the rounds, or half of that."""
    shares = {rule: share_of_rounds(two_speeds(5, adoption, rule, 10), "slow") for rule in Participation}
    assert shares[Participation.FRESH] <= 1 / 5
    assert shares[Participation.LATEST] == pytest.approx(INTERVAL_STEPS / 5 / steps_per_contribution, abs=0.1)


@pytest.mark.parametrize("ratio", [1, 3, 20])
def test_the_syncer_s_clock_keeps_every_learner_s_near(ratio: int) -> None:
    """A learner that adopts takes over the clock: the slow one is never more than two steps of its behind."""
    ring = two_speeds(ratio, Adoption.OVERWRITE, Participation.LATEST)
    clocks = {learner.learner: learner.clock for learner in ring.core.status(ring.clock.now_ns()).learners}
    assert clocks["fast"] - clocks["slow"] <= 2 * ratio + INTERVAL_STEPS


@pytest.mark.parametrize("adoption", Adoption)
def test_nobody_ever_waits_for_the_network_or_for_another(adoption: Adoption) -> None:
    """Every step follows the one before at once, whatever goes on around it."""
    ring = two_speeds(7, adoption, Participation.LATEST)
    steps = of(StepReported, ring.events)
    for learner, step_ns in (("fast", STEP_NS), ("other", STEP_NS), ("slow", 7 * STEP_NS)):
        own = [event for event in steps if event.learner == learner]
        assert {event.step_ns for event in own} == {step_ns}
        assert {later.at_ns - earlier.at_ns for earlier, later in itertools.pairwise(own)} == {step_ns}


@pytest.mark.parametrize(("fragments", "interval_steps"), [(4, 4), (3, 8), (8, 4), (1, 1)])
def test_rounds_follow_the_rhythm_while_commits_are_quick(fragments: int, interval_steps: int) -> None:
    """P rounds in H steps."""
    config = settings(fragments=fragments, interval_steps=interval_steps, overlap_steps=interval_steps)
    ring = ring_of(config, {"a": STEP_NS, "b": STEP_NS})
    ring.run(48 * STEP_NS + STEP_NS)
    clock = ring.core.status(ring.clock.now_ns()).clock
    assert abs(len(of(RoundOpened, ring.events)) - clock * fragments / interval_steps) <= max(1, fragments)
    end(ring)


def test_learners_whose_steps_become_slower_and_faster_stay_in() -> None:
    config = settings(lease_s=10.0)
    ring = ring_of(config, {"steady": STEP_NS})
    ring.join("moody", toy(config, 9), lambda step: (30 + 400 * (step % 5 == 0)) * MS)
    ring.run(10 * SECOND_NS)
    for fragment in range(4):
        assert max(rounds_between_contributions(ring.events, "moody", fragment)) <= 4
    end(ring)


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_of_ten_learners_and_a_quorum_of_four_each_is_merged_about_equally_often(spread: float) -> None:
    """C32: a round closes with the first four, whoever they are: there is no order by name or by who joined first that
    favours some, and who came late for a round counts in the fragment's next one. ``spread`` makes the last learner so
    much slower than the first: then they differ by what they have done, not by whether they are taken."""
    names = [f"learner-{number}" for number in range(10)]
    step_ns = {name: round(STEP_NS * (1 + spread * number / 9)) for number, name in enumerate(names)}
    ring = ring_of(settings(quorum=4, grace_factor=0.0, participation=Participation.LATEST), step_ns)
    while len(of(FragmentCommitted, ring.events)) < 50 * FRAGMENTS:
        ring.run(ring.clock.now_ns() + SECOND_NS)
    commits = of(FragmentCommitted, ring.events)
    taken = {name: sum(name in event.weights for event in commits) for name in names}
    assert min(taken.values()) >= 0.8 * max(taken.values()), taken
    end(ring)

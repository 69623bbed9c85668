"""Learners that die and return: what the others notice of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from support.ring_story import MS, SECOND_NS, STEP_NS, end, of, ring_of, settings, toy
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import (
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerLive,
    RoundClosed,
    RunFinished,
    StepReported,
)
from unlockstep.core.reasons import DepartureReason
from unlockstep.sim.network import Costs
from unlockstep.sim.world import World

THREE = {"a": STEP_NS, "b": STEP_NS, "c": STEP_NS}


def longest_silence_ns(ring: World, since_ns: int = 0) -> int:
    """The longest time without a commit."""
    times = [event.at_ns for event in of(FragmentCommitted, ring.events) if event.at_ns >= since_ns]
    edges = [since_ns, *times, ring.clock.now_ns()]
    return max(right - left for left, right in itertools.pairwise(edges))


def steps_of(ring: World, name: str) -> list[StepReported]:
    return [event for event in of(StepReported, ring.events) if event.learner == name]


@pytest.mark.parametrize("adoption", Adoption)
def test_one_dies_and_returns_and_nobody_else_notices(adoption: Adoption) -> None:
    """C18"""
    ring = ring_of(settings(adoption=adoption), THREE)
    ring.run(3 * SECOND_NS)
    ring.kill("b")
    ring.run(6 * SECOND_NS)
    ring.join("b", toy(ring.config, 1), STEP_NS)
    ring.run(9 * SECOND_NS)

    assert ring.core.status(ring.clock.now_ns()).downtime_ns == 0
    for name in "ac":
        assert {event.step_ns for event in steps_of(ring, name)} == {STEP_NS}
    assert longest_silence_ns(ring, SECOND_NS) <= 3 * STEP_NS
    assert [event.learner for event in of(LearnerAway, ring.events)] == ["b"]
    assert [(event.learner, event.reason) for event in of(LearnerDeparted, ring.events)] == [
        ("b", DepartureReason.LEASE_EXPIRED)
    ]
    back_ns = [event.at_ns for event in of(LearnerLive, ring.events) if event.learner == "b"][1]
    first = next(e for e in of(FragmentCommitted, ring.events) if e.at_ns > back_ns and "b" in e.weights)
    assert first.at_ns - back_ns <= 4 * STEP_NS  # a joiner takes part within a bound
    end(ring)


def test_the_death_of_the_fastest_stalls_nobody() -> None:
    """Its clock was far ahead: the others' have followed it with every version they took."""
    ring = ring_of(settings(), {"fast": STEP_NS // 10, "a": STEP_NS, "b": STEP_NS})
    ring.run(3 * SECOND_NS)
    ring.kill("fast")
    killed_ns = ring.clock.now_ns()
    ring.run(6 * SECOND_NS)
    assert longest_silence_ns(ring, killed_ns) <= 4 * STEP_NS
    settled_ns = killed_ns + 8 * STEP_NS  # its last contributions count in the next round of each fragment
    after = [event for event in of(FragmentCommitted, ring.events) if event.at_ns > settled_ns]
    assert {name for event in after for name in event.weights} == {"a", "b"}
    end(ring)


def test_with_a_quorum_of_two_one_of_three_may_die() -> None:
    ring = ring_of(settings(quorum=2), THREE)
    ring.run(3 * SECOND_NS)
    ring.kill("c")
    killed_ns = ring.clock.now_ns()
    ring.run(6 * SECOND_NS)
    assert longest_silence_ns(ring, killed_ns) <= 4 * STEP_NS
    end(ring)


def test_with_a_quorum_of_two_the_last_one_trains_on_alone_and_waits_for_a_second() -> None:
    ring = ring_of(settings(quorum=2), {"a": STEP_NS, "b": STEP_NS})
    ring.run(2 * SECOND_NS)
    ring.kill("b")
    killed_ns = ring.clock.now_ns()
    ring.run(7 * SECOND_NS)
    stopped = [event for event in of(FragmentCommitted, ring.events) if event.at_ns > killed_ns + SECOND_NS]
    assert stopped == []
    assert len(steps_of(ring, "a")) >= 68
    status = ring.core.status(ring.clock.now_ns())
    assert status.clock < max(learner.clock for learner in status.learners) - 40  # K-th highest: it stands

    ring.join("b", toy(ring.config, 1), STEP_NS)
    ring.run(10 * SECOND_NS)
    assert longest_silence_ns(ring, 8 * SECOND_NS) <= 4 * STEP_NS
    end(ring)


def test_a_run_that_cannot_reach_its_quorum_any_more_still_ends_in_time() -> None:
    ring = ring_of(settings(quorum=2), {"a": STEP_NS, "b": STEP_NS})
    ring.run(2 * SECOND_NS)
    ring.kill("b")
    ring.run(5 * SECOND_NS)
    asked_ns = ring.clock.now_ns()
    end(ring)
    finished = of(RunFinished, ring.events)[0]
    assert finished.at_ns - asked_ns <= 5 * STEP_NS


def test_with_everybody_dead_the_syncer_idles_and_a_newcomer_goes_on_where_they_stopped() -> None:
    """C30, C34"""
    ring = ring_of(settings(), THREE)
    ring.run(3 * SECOND_NS)
    for name in THREE:
        ring.kill(name)
    ring.run(8 * SECOND_NS)
    events, versions = len(ring.events), ring.core.notices
    values = [ring.global_values(fragment).copy() for fragment in range(4)]
    ring.run(3600 * SECOND_NS)
    assert len(ring.events) == events

    ring.join("fresh", toy(ring.config, 7), STEP_NS)
    ring.run(ring.clock.now_ns() + 60 * MS)
    assert ring.core.notices == versions
    for fragment in range(4):
        np.testing.assert_array_equal(ring.backend("fresh").read_fragment(fragment), values[fragment])
    ring.run(ring.clock.now_ns() + 2 * SECOND_NS)
    assert all(now.version > then.version for now, then in zip(ring.core.notices, versions, strict=True))
    end(ring)


def test_the_seeder_dies_half_way_and_another_seeds() -> None:
    ring = ring_of(settings(), {"a": STEP_NS, "b": STEP_NS})
    ring.run(3 * MS)  # asked, and uploading
    ring.kill("a")
    ring.run(SECOND_NS)
    assert [notice.version >= 0 for notice in ring.core.notices] == [True] * 4
    ring.join("a", toy(ring.config, 0), STEP_NS)
    ring.run(3 * SECOND_NS)
    assert set(of(FragmentCommitted, ring.events)[-1].weights) == {"a", "b"}
    end(ring)


@pytest.mark.parametrize("after_ms", [0, 15, 30, 45, 60, 90])
def test_a_learner_killed_while_it_joins_may_be_started_again_at_once(after_ms: int) -> None:
    """The answer to the dead process is none of the new one's business."""
    ring = ring_of(settings(), {"a": STEP_NS, "b": STEP_NS}, Costs(message_ns=30 * MS))
    ring.run(SECOND_NS)
    ring.kill("b")
    ring.run(ring.clock.now_ns() + SECOND_NS)
    ring.join("b", toy(ring.config, 1), STEP_NS)
    ring.run(ring.clock.now_ns() + after_ms * MS)
    ring.kill("b")
    ring.join("b", toy(ring.config, 1), STEP_NS)
    ring.run(ring.clock.now_ns() + 2 * SECOND_NS)
    states = {learner.learner: learner.state for learner in ring.core.status(ring.clock.now_ns()).learners}
    assert states == {"a": "live", "b": "live"}
    end(ring)


def test_every_learner_is_killed_in_turn_and_the_model_still_reaches_the_optimum() -> None:
    """Rolling restarts: nine deaths, no time without a commit, and nearly the optimum in the end."""
    ring = ring_of(settings(adoption=Adoption.CARRY, outer_rate=1.0), THREE)
    optimum = toy(ring.config).optimum
    for cycle in range(9):
        name = "abc"[cycle % 3]
        ring.run((2 + 2 * cycle) * SECOND_NS)
        ring.kill(name)
        ring.run((3 + 2 * cycle) * SECOND_NS)
        ring.join(name, toy(ring.config, cycle), STEP_NS)
    ring.run(22 * SECOND_NS)
    assert longest_silence_ns(ring, SECOND_NS) <= 4 * STEP_NS
    backend = toy(ring.config)
    layout = ring.core.layout
    assert layout is not None
    backend.bind(layout)
    for fragment in range(4):
        backend.write_fragment(fragment, ring.global_values(fragment))
    assert np.linalg.norm(backend.values - optimum) < 0.1 * np.linalg.norm(optimum)
    end(ring)


def test_rounds_close_by_the_clock_when_a_learner_dies_in_the_middle_of_one() -> None:
    """C21: no message comes; the window ends all the same."""
    ring = ring_of(settings(lease_s=60.0), {"a": STEP_NS, "slow": 50 * STEP_NS})
    ring.run(12 * SECOND_NS)
    ring.kill("slow")
    ring.run(14 * SECOND_NS)
    assert all(
        event.open_ns <= event.quorum_ns + STEP_NS for event in of(RoundClosed, ring.events) if event.at_ns > SECOND_NS
    )
    end(ring)

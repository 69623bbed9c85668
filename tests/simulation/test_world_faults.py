"""What each action of a tape does to a run: one at a time, told like a story."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from support.ring_story import MS, SECOND_NS, STEP_NS, end, of, ring_of, settings, toy
from unlockstep import tape as tapes
from unlockstep.config import Durability, DurabilitySection
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    FragmentAdopted,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    RoundOpened,
    RunSeeded,
    StepReported,
    SyncerResumed,
)
from unlockstep.core.reasons import DepartureReason, RefusalReason
from unlockstep.sim.network import SILENCE_NS, Costs, LinkModel, Way
from unlockstep.sim.weightless import WeightlessBackend, WeightlessFreight
from unlockstep.sim.world import World

TWO = {"a": STEP_NS, "b": STEP_NS}


def do(world: World, action: tapes.Action) -> None:
    world.apply(action, lambda name: (toy(world.config, 5), STEP_NS))


def departures(world: World) -> list[tuple[str, DepartureReason]]:
    return [(event.learner, event.reason) for event in of(LearnerDeparted, world.events)]


def is_live(world: World, name: str) -> bool:
    learners = world.core.status(world.clock.now_ns()).learners
    return any(learner.learner == name and learner.state == "live" for learner in learners)


def test_a_stopped_learner_is_given_up_and_takes_part_again_when_it_is_continued() -> None:
    """C19: its lease ends; what it says of its old incarnation is fenced; it goes on with the progress it has."""
    world = ring_of(settings(lease_s=1.0), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Stop(at_ns=0, target="b"))
    world.run(5 * SECOND_NS)
    assert departures(world) == [("b", DepartureReason.LEASE_EXPIRED)]
    assert of(FragmentCommitted, world.events)[-1].at_ns > 4 * SECOND_NS
    steps = world.process("b").steps
    do(world, tapes.Continue(at_ns=0, target="b"))
    world.run(7 * SECOND_NS)
    assert is_live(world, "b") and world.process("b").steps > steps
    assert [event.resumed for event in of(LearnerJoined, world.events) if event.learner == "b"] == [False, True]
    end(world)


AWAY: dict[str, tuple[tapes.Action, tapes.Action]] = {
    "stopped": (tapes.Stop(at_ns=0, target="b"), tapes.Continue(at_ns=0, target="b")),
    "cut off": (tapes.Cut(at_ns=0, target="b"), tapes.Heal(at_ns=0, target="b")),
    "unheard": (tapes.Cut(at_ns=0, target="b", direction="up"), tapes.Heal(at_ns=0, target="b")),
    "syncer stopped": (tapes.Stop(at_ns=0, target=tapes.SYNCER), tapes.Continue(at_ns=0, target=tapes.SYNCER)),
}


@pytest.mark.parametrize("how", AWAY)
def test_who_comes_back_after_its_lease_loses_no_token(how: str) -> None:
    """C19: whether it was asked, or its body was on its way, when the lease ended: what it answers under its old
    incarnation is refused, and merged when it is handed over once more under the new one."""
    departed = fenced = 0
    for phase in range(6):
        config = settings(lease_s=1.0, adoption=Adoption.CARRY, staleness_max=64)
        world = ring_of(config, TWO, Costs(body_ns=70 * MS))
        world.run(2 * SECOND_NS + phase * 17 * MS)
        begins, ends = AWAY[how]
        do(world, begins)
        world.run(world.clock.now_ns() + 2500 * MS + phase * 119 * MS)
        do(world, ends)
        world.run(world.clock.now_ns() + 6 * SECOND_NS)
        end(world, transfer_ns=5 * SECOND_NS)
        ledger = world.core.status(world.clock.now_ns()).ledger
        assert ledger.merged + ledger.merged_late == ledger.trained, (phase, ledger)
        departed += len(departures(world))
        fenced += len(of(ContributionRefused, world.events))
    assert departed > 0 and fenced > 0


def test_a_step_takes_as_much_longer_as_its_learner_was_stopped() -> None:
    world = ring_of(settings(lease_s=60.0), TWO)
    world.run(SECOND_NS + STEP_NS // 2)
    do(world, tapes.Stop(at_ns=0, target="b"))
    world.run(world.clock.now_ns() + 3 * SECOND_NS)
    do(world, tapes.Continue(at_ns=0, target="b"))
    world.run(8 * SECOND_NS)
    durations = [event.step_ns for event in of(StepReported, world.events) if event.learner == "b"]
    assert sorted(set(durations)) == [STEP_NS, STEP_NS + 3 * SECOND_NS]
    end(world)


def test_a_slow_learner_is_slow_from_the_middle_of_its_step_on() -> None:
    calm = ring_of(settings(), {"a": STEP_NS, "b": SECOND_NS})
    calm.run(2 * SECOND_NS)
    ends_ns = next(event.at_ns for event in of(StepReported, calm.events) if event.learner == "b")

    world = ring_of(settings(), {"a": STEP_NS, "b": SECOND_NS})
    world.run(ends_ns - SECOND_NS // 2)
    begun_ns = world.clock.now_ns()
    do(world, tapes.Slow(at_ns=0, target="b", factor=4.0))
    world.run(20 * SECOND_NS)
    do(world, tapes.Slow(at_ns=0, target="b", factor=1.0))
    world.run(30 * SECOND_NS)
    times = [event.at_ns for event in of(StepReported, world.events) if event.learner == "b"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] - begun_ns == pytest.approx(2 * SECOND_NS, abs=200 * MS)
    assert gaps[:3] == [4 * SECOND_NS] * 3
    assert gaps[-3:] == [SECOND_NS] * 3
    end(world)


def test_a_short_cut_delays_and_a_long_one_breaks_the_connection() -> None:
    world = ring_of(settings(lease_s=120.0), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Cut(at_ns=0, target="b"))
    world.run(world.clock.now_ns() + SILENCE_NS // 2)
    do(world, tapes.Heal(at_ns=0, target="b"))
    world.run(world.clock.now_ns() + SECOND_NS)
    assert of(LearnerAway, world.events) == [] and is_live(world, "b")

    do(world, tapes.Cut(at_ns=0, target="b"))
    cut_ns = world.clock.now_ns()
    world.run(cut_ns + 2 * SILENCE_NS)
    assert [(event.learner, event.at_ns - cut_ns) for event in of(LearnerAway, world.events)] == [("b", SILENCE_NS)]
    do(world, tapes.Heal(at_ns=0, target="b"))
    world.run(world.clock.now_ns() + 10 * SECOND_NS)
    assert is_live(world, "b") and departures(world) == []
    assert world.process("b").steps > 700  # it has trained all the time
    end(world)


@pytest.mark.parametrize("direction", ["up", "down", "both"])
def test_learners_train_on_behind_a_cut_in_any_direction(direction: str) -> None:
    world = ring_of(settings(lease_s=1.0), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Cut(at_ns=0, target="b", direction=direction))  # type: ignore[arg-type]
    world.run(20 * SECOND_NS)
    assert world.process("b").steps >= 190
    do(world, tapes.Heal(at_ns=0, target="b"))
    world.run(30 * SECOND_NS)
    assert is_live(world, "b")
    end(world, transfer_ns=10 * SECOND_NS)


def test_a_damaged_body_is_refused_by_its_digest_and_its_tokens_are_accounted_for() -> None:
    world = ring_of(settings(), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Corrupt(at_ns=0, target="b", bodies=2))
    world.run(4 * SECOND_NS)
    refused = of(ContributionRefused, world.events)
    assert [(event.learner, event.reason) for event in refused] == [("b", RefusalReason.DIGEST_MISMATCH)] * 2
    end(world)


def test_a_throttled_link_makes_contributions_late_and_nobody_waits_for_it() -> None:
    """A body of some hundred bytes takes seconds over 1 kbit/s."""
    world = ring_of(settings(lease_s=30.0), {"a": STEP_NS, "b": STEP_NS})
    world.run(2 * SECOND_NS)
    do(world, tapes.Throttle(at_ns=0, target="b", mbit_per_s=0.001))
    world.run(12 * SECOND_NS)
    late = [event for event in of(ContributionAccepted, world.events) if event.learner == "b" and event.late]
    assert late
    steps_of_a = [event for event in of(StepReported, world.events) if event.learner == "a"]
    assert {event.step_ns for event in steps_of_a} == {STEP_NS}
    do(world, tapes.Throttle(at_ns=0, target="b", mbit_per_s=0))
    world.run(60 * SECOND_NS)
    assert not of(ContributionAccepted, world.events)[-1].late
    end(world, transfer_ns=20 * SECOND_NS)


def test_a_delay_comes_on_top_of_every_way_and_is_lifted() -> None:
    """A message of 1 ms takes 251 ms, a body of 20 ms 270 ms; afterwards both are as before."""
    world = ring_of(settings(), TWO)
    world.run(1 * SECOND_NS)
    do(world, tapes.Delay(at_ns=0, target="b", seconds=0.25))
    wire = world._host("b").wire
    assert wire.message_ns() == 251 * MS
    assert wire.body_arrives_ns(Way.UP, 10) - world.clock.now_ns() == 270 * MS
    assert world._host("a").wire.message_ns() == 1 * MS
    world.run(4 * SECOND_NS)
    assert is_live(world, "b")
    do(world, tapes.Delay(at_ns=0, target="b", seconds=0))
    assert wire.message_ns() == 1 * MS
    end(world)


def test_a_syncer_whose_disk_is_full_ends_at_its_next_save_and_returns_when_there_is_room() -> None:
    world = ring_of(settings(adoption=Adoption.CARRY), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Fill(at_ns=0, target=tapes.SYNCER))
    world.run(4 * SECOND_NS)
    assert not world.syncer.life.is_alive and world.syncer.is_starved
    do(world, tapes.Free(at_ns=0, target=tapes.SYNCER))
    world.run(8 * SECOND_NS)
    assert [event.life for event in of(SyncerResumed, world.events)] == [2]
    end(world)
    ledger = world.core.status(world.clock.now_ns()).ledger
    assert ledger.merged + ledger.merged_late == ledger.trained


def test_room_does_not_bring_back_a_syncer_that_was_killed() -> None:
    world = ring_of(settings(), TWO)
    world.run(2 * SECOND_NS)
    for kind in (tapes.Fill, tapes.Kill, tapes.Free):
        do(world, kind(at_ns=0, target=tapes.SYNCER))
    assert not world.syncer.life.is_alive
    do(world, tapes.Restart(at_ns=0, target=tapes.SYNCER))
    world.run(6 * SECOND_NS)
    end(world)


@pytest.mark.parametrize("target", ["a", tapes.SYNCER])
def test_a_jump_of_a_wall_clock_changes_nothing(target: str) -> None:
    calm, jumped = ring_of(settings(), TWO), ring_of(settings(), TWO)
    for world in (calm, jumped):
        world.run(1 * SECOND_NS)
    do(jumped, tapes.Jump(at_ns=0, target=target, seconds=-86_400.0))
    for world in (calm, jumped):
        world.run(4 * SECOND_NS)
    assert calm.events == jumped.events


def test_one_who_leaves_says_what_it_drops_and_is_gone() -> None:
    """C23"""
    world = ring_of(settings(), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Leave(at_ns=0, target="b"))
    world.run(3 * SECOND_NS)
    assert departures(world) == [("b", DepartureReason.LEFT)]
    assert not world.is_up("b")
    ledger = world.core.status(world.clock.now_ns()).ledger
    assert ledger.lost == 0
    do(world, tapes.Restart(at_ns=0, target="b"))
    world.run(5 * SECOND_NS)
    assert is_live(world, "b")
    end(world)


@pytest.mark.parametrize("lease_s", [0.5, 10.0])
def test_of_two_processes_under_one_name_the_later_one_counts(lease_s: float) -> None:
    """C20: whoever starts learners lost sight of one. What the old one still sends is fenced, before its lease ends
    and after, and when it is told it stops."""
    world = ring_of(settings(lease_s=lease_s), TWO)
    world.run(2 * SECOND_NS)
    old = world.process("b")
    do(world, tapes.Replace(at_ns=0, target="b"))
    world.run(4 * SECOND_NS)
    assert old.life.is_alive and old.steps > 35 and world.process("b") is not old
    world.run(8 * SECOND_NS)
    assert not old.life.is_alive
    assert old.loop.done is not None and old.loop.done.reason == "another process has joined under the name b"
    joins = [(event.incarnation, event.resumed) for event in of(LearnerJoined, world.events) if event.learner == "b"]
    assert joins == [(1, False), (2, False)]
    accepted = [event.incarnation for event in of(ContributionAccepted, world.events) if event.learner == "b"]
    assert accepted == sorted(accepted)
    end(world)


def test_a_stopped_learner_that_is_replaced_comes_to_itself_and_stops() -> None:
    world = ring_of(settings(lease_s=1.0), TWO)
    world.run(2 * SECOND_NS)
    old = world.process("b")
    do(world, tapes.Stop(at_ns=0, target="b"))
    do(world, tapes.Replace(at_ns=0, target="b"))
    world.run(world.clock.now_ns() + tapes.UNSEEN_NS - 1)
    assert old.life.is_stopped
    world.run(8 * SECOND_NS)
    assert not old.life.is_alive and is_live(world, "b")
    end(world)


def test_a_process_of_a_run_that_was_lost_is_none_of_the_next_whatever_its_number() -> None:
    """Names and incarnations begin anew with a syncer that knows nothing: the run's id tells its learners apart."""
    world = ring_of(settings(), TWO)
    world.run(2 * SECOND_NS)
    old = world.process("b")
    do(world, tapes.Kill(at_ns=0, target=tapes.SYNCER))
    world.lose_disk()
    do(world, tapes.Replace(at_ns=0, target="b"))
    do(world, tapes.Restart(at_ns=0, target=tapes.SYNCER))
    world.run(10 * SECOND_NS)
    assert old.loop.incarnation == world.process("b").loop.incarnation == 1
    assert old.loop.done is not None and "does not know this process" in old.loop.done.reason
    assert is_live(world, "b") and not is_live(world, "a")
    end(world)


def test_damaged_bodies_cost_a_second_attempt_and_are_never_used() -> None:
    world = World(settings(), links=LinkModel(damage=0.2), seed=2)
    for seed, name in enumerate("ab"):
        world.join(name, toy(world.config, seed), STEP_NS + seed * MS)
    world.run(20 * SECOND_NS)
    refused = of(ContributionRefused, world.events)
    assert {event.reason for event in refused} == {RefusalReason.DIGEST_MISMATCH}
    assert len(of(FragmentCommitted, world.events)) > 150
    end(world, transfer_ns=2 * SECOND_NS)


def test_lost_packets_and_uploads_that_arrive_twice_cost_no_token() -> None:
    world = World(settings(lease_s=5.0), links=LinkModel(jitter_ns=40 * MS, loss=0.1, repeats=0.3), seed=4)
    for seed, name in enumerate("abc"):
        world.join(name, toy(world.config, seed), STEP_NS + seed * MS)
    world.run(30 * SECOND_NS)
    duplicates = [e for e in of(ContributionRefused, world.events) if e.reason is RefusalReason.DUPLICATE]
    assert duplicates
    end(world, transfer_ns=5 * SECOND_NS)  # Four attempts, with pauses of up to 0.2, 0.8 and 3.2 s.


def test_while_the_syncer_is_frozen_learners_train_on() -> None:
    world = ring_of(settings(lease_s=2.0), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Stop(at_ns=0, target=tapes.SYNCER))
    world.run(6 * SECOND_NS)
    assert world.process("a").steps >= 58
    do(world, tapes.Continue(at_ns=0, target=tapes.SYNCER))
    world.run(9 * SECOND_NS)
    assert is_live(world, "a") and is_live(world, "b")
    end(world)


def die(world: World, away_ns: int = 0) -> None:
    """The syncer is killed, and started again after a while."""
    do(world, tapes.Kill(at_ns=0, target=tapes.SYNCER))
    if away_ns:
        world.run(world.clock.now_ns() + away_ns)
    do(world, tapes.Restart(at_ns=0, target=tapes.SYNCER))


def test_without_the_syncer_learners_train_on_and_when_it_returns_all_go_on_with_what_they_have() -> None:
    """C34: versions go on from those that were published, and what was trained meanwhile is merged."""
    world = ring_of(settings(adoption=Adoption.CARRY, lease_s=10.0), TWO)
    world.run(2 * SECOND_NS)
    before = {notice.fragment: notice.version for notice in world.core.notices}
    die(world, 6 * SECOND_NS)
    kept = {notice.fragment: notice.version for notice in world.core.notices}
    assert all(kept[fragment] >= before[fragment] - 1 for fragment in before)  # one was being committed
    assert all(world.process(name).steps >= 78 for name in TWO)
    world.run(20 * SECOND_NS)
    (resumed,) = of(SyncerResumed, world.events)
    assert (resumed.life, dict(enumerate(resumed.versions))) == (2, kept)
    assert of(LearnerDeparted, world.events) == [] and all(is_live(world, name) for name in TWO)
    joins = [(event.incarnation, event.resumed) for event in of(LearnerJoined, world.events) if event.learner == "a"]
    assert joins == [(1, False), (1, True)]
    first = next(event for event in of(FragmentCommitted, world.events) if event.at_ns > resumed.at_ns)
    assert first.tokens > 60 * 10  # what at least one of them has trained in six seconds
    end(world)
    ledger = world.core.status(world.clock.now_ns()).ledger
    assert ledger.merged + ledger.merged_late == ledger.trained == 10 * sum(world.process(name).steps for name in TWO)


def test_a_run_whose_syncer_dies_again_and_again_loses_no_token() -> None:
    """C34: with contributions in the air, held, merging and merged and not yet told of, at every moment of a round."""
    world = ring_of(settings(adoption=Adoption.CARRY, lease_s=10.0), TWO, Costs(save_ns=15 * MS))
    for number in range(40):
        world.run(world.clock.now_ns() + 3 * SECOND_NS + 7 * number * MS)
        die(world, away_ns=number % 3 * SECOND_NS // 2)
    world.run(world.clock.now_ns() + 10 * SECOND_NS)
    assert [event.life for event in of(SyncerResumed, world.events)] == list(range(2, 42))
    end(world)
    ledger = world.core.status(world.clock.now_ns()).ledger
    assert ledger.merged + ledger.merged_late == ledger.trained == 10 * sum(world.process(name).steps for name in TWO)
    assert of(ContributionUndelivered, world.events) == []
    assert not any(event.reason is not RefusalReason.DUPLICATE for event in of(ContributionRefused, world.events))


def test_what_was_handed_over_for_a_round_that_had_opened_after_the_last_save_is_merged_once() -> None:
    """The rounds open again, under their numbers, when they are due; the log knows nothing of the first time."""
    world = ring_of(settings(quorum=2, adoption=Adoption.CARRY, lease_s=60.0), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Throttle(at_ns=0, target="b", mbit_per_s=1e-6))
    world.run(3 * SECOND_NS)
    waiting = {status.round: status.contributions for status in world.core.status(world.clock.now_ns()).rounds}
    assert set(waiting.values()) == {("a",)}
    die(world)
    assert world.core.status(world.clock.now_ns()).rounds == ()
    do(world, tapes.Throttle(at_ns=0, target="b", mbit_per_s=0))
    world.run(10 * SECOND_NS)
    for number in waiting:
        assert [event.round for event in of(RoundOpened, world.events)].count(number) == 1
        early = [
            e for e in of(ContributionAccepted, world.events) if (e.round, e.learner, e.late) == (number, "a", True)
        ]
        assert len(early) == 1
    end(world)
    ledger = world.core.status(world.clock.now_ns()).ledger
    assert ledger.merged + ledger.merged_late == ledger.trained


def test_rounds_in_flight_begin_anew_under_their_numbers_and_what_they_held_is_merged_once() -> None:
    """Bodies of b take for ever, so that rounds wait for it when the syncer dies; a hands over once more. That c joins
    is saved, and with it what is in flight."""
    world = ring_of(settings(quorum=2, lease_s=60.0), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Throttle(at_ns=0, target="b", mbit_per_s=1e-6))
    world.run(3 * SECOND_NS)
    do(world, tapes.Join(at_ns=0, target="c"))
    world.run(3 * SECOND_NS + 10 * MS)
    waiting = {status.round: status.contributions for status in world.core.status(world.clock.now_ns()).rounds}
    assert any("a" in names for names in waiting.values())
    die(world)
    do(world, tapes.Throttle(at_ns=0, target="b", mbit_per_s=0))
    assert {status.round for status in world.core.status(world.clock.now_ns()).rounds} == waiting.keys()
    world.run(10 * SECOND_NS)
    opened = [event.round for event in of(RoundOpened, world.events)]
    assert [number for number in opened if opened.count(number) == 2] == 2 * sorted(waiting)
    for number, names in waiting.items():
        (merged,) = [event for event in of(FragmentCommitted, world.events) if event.round == number]
        assert set(names) <= set(merged.weights)
        taken = [(e.learner, e.tokens) for e in of(ContributionAccepted, world.events) if e.round == number]
        assert all(taken.count((name, tokens)) == 2 for name, tokens in taken if name in names)
    end(world)


def test_what_is_lost_under_interval_is_at_most_so_many_commits_and_learners_load_what_is_left() -> None:
    config = msgspec.structs.replace(
        settings(lease_s=10.0), durability=DurabilitySection(mode=Durability.INTERVAL, interval_commits=40)
    )
    world = ring_of(config, TWO)
    world.run(5 * SECOND_NS)
    before = sum(notice.version for notice in world.core.notices)
    die(world)
    kept = {notice.fragment: notice.version for notice in world.core.notices}
    assert 0 < before - sum(kept.values()) <= 40
    lost = {name: world.process(name).loop._core.versions for name in TWO}
    assert all(any(version > kept[p] for p, version in enumerate(versions)) for versions in lost.values())
    world.run(7 * SECOND_NS)
    assert all(is_live(world, name) for name in TWO)
    (resumed,) = of(SyncerResumed, world.events)
    for name in TWO:
        again = [e for e in of(FragmentAdopted, world.events) if e.learner == name and e.at_ns > resumed.at_ns]
        assert [event.version for event in again[:4]] == [kept[event.fragment] for event in again[:4]]
    end(world)


def test_a_syncer_that_has_lost_its_disk_begins_another_run_and_its_learners_say_so() -> None:
    """C34: nobody takes up the run with parameters of its own; what comes after is another run, seeded anew."""
    world = ring_of(settings(), TWO)
    world.run(2 * SECOND_NS)
    do(world, tapes.Kill(at_ns=0, target=tapes.SYNCER))
    world.lose_disk()
    world.run(8 * SECOND_NS)
    assert world.process("a").steps >= 78
    do(world, tapes.Restart(at_ns=0, target=tapes.SYNCER))
    world.run(20 * SECOND_NS)
    for name in TWO:
        done = world.process(name).loop.done
        assert done is not None and done.failed and "lost the run's parameters" in done.reason
    assert len(world.lives) == 2 and of(RunSeeded, world.events) == []

    for name in TWO:
        do(world, tapes.Restart(at_ns=0, target=name))
    world.run(25 * SECOND_NS)
    assert len(of(RunSeeded, world.events)) == 1 and of(SyncerResumed, world.events) == []
    assert len(of(FragmentCommitted, world.events)) > 20
    end(world)


def test_whose_welcome_waits_for_saves_is_not_given_up_when_it_comes() -> None:
    """The lease has begun with the question; the answer waits for the save under way, and for one more."""
    config = settings(lease_s=0.5)
    world = ring_of(config, {"a": STEP_NS, "b": 400 * MS}, Costs(save_ns=200 * MS))
    world.run(3 * SECOND_NS)
    do(world, tapes.Kill(at_ns=0, target="b"))
    world.run(4 * SECOND_NS)
    do(world, tapes.Restart(at_ns=0, target="b"))
    world.run(10 * SECOND_NS)
    assert is_live(world, "b")
    assert [event.incarnation for event in of(LearnerJoined, world.events) if event.learner == "b"] == [1, 2]
    end(world)


def test_a_tape_is_played_from_its_beginning_to_its_end() -> None:
    tape = tapes.Tape(
        name="short",
        learners=("a", "b"),
        actions=(
            tapes.Kill(at_ns=2 * SECOND_NS, target="b"),
            tapes.Join(at_ns=3 * SECOND_NS, target="c"),
            tapes.Restart(at_ns=4 * SECOND_NS, target="b"),
        ),
    )
    world = World(settings())
    world.schedule(tape, lambda name: (toy(world.config, ord(name)), STEP_NS))
    world.run(8 * SECOND_NS)
    joins = [(event.learner, event.at_ns // SECOND_NS) for event in of(LearnerJoined, world.events)]
    assert joins == [("a", 0), ("b", 0), ("c", 3), ("b", 4)]
    end(world)


def test_a_world_without_arrays_tells_the_same_story_as_one_with_them() -> None:
    """Same rounds, same participants, same times: only norms, losses and digests differ."""

    def story(world: World, weightless: bool) -> list[tuple[object, ...]]:
        for seed, name in enumerate("abc"):
            backend = WeightlessBackend(4, tokens_per_step=10) if weightless else toy(world.config, seed)
            world.join(name, backend, STEP_NS + 7 * seed * MS)
        world.run(3 * SECOND_NS)
        world.kill("b")
        world.run(9 * SECOND_NS)
        return [(e.at_ns, e.round, e.version, tuple(e.weights.items())) for e in of(FragmentCommitted, world.events)]

    heavy = story(World(settings()), weightless=False)
    light = story(World(settings(), freight=WeightlessFreight()), weightless=True)
    assert light == heavy and len(light) > 50


def test_a_weightless_body_can_be_damaged_too() -> None:
    world = World(settings(), freight=WeightlessFreight(body_bytes=1000))
    for name in "ab":
        world.join(name, WeightlessBackend(4), STEP_NS)
    world.run(SECOND_NS)
    do(world, tapes.Corrupt(at_ns=0, target="b"))
    world.run(2 * SECOND_NS)
    assert [event.reason for event in of(ContributionRefused, world.events)] == [RefusalReason.DIGEST_MISMATCH]


def test_chance_on_one_link_does_not_disturb_another() -> None:
    """The learners that both worlds have see the same network, message by message."""

    def times(names: str) -> list[int]:
        world = World(settings(), links=LinkModel(jitter_ns=30 * MS), seed=1)
        for name in names:
            world.join(name, toy(world.config), STEP_NS)
        world.run(300 * MS)
        return [event.at_ns for event in of(LearnerJoined, world.events) if event.learner == "a"]

    assert times("a") == times("ab")


def test_an_action_on_one_that_has_ended_by_itself_has_no_effect() -> None:
    world = ring_of(settings(steps=8), TWO)
    world.run()
    assert world.ended
    for kind in (tapes.Kill, tapes.Stop, tapes.Continue, tapes.Leave):
        do(world, kind(at_ns=0, target="a"))
    assert np.isfinite(world.global_values(0)).all()

"""Who gives its state to a new process, and what becomes of that: the syncer's side."""

from __future__ import annotations

from support.core_builders import LEASE_NS, STEP_NS, options
from support.syncer_stage import Puppet, SyncerStage
from unlockstep.core.actions import ForgetState
from unlockstep.core.donation import DONORS_MAX
from unlockstep.core.events import LearnerLive, StateHandedOver, StateNotHandedOver
from unlockstep.core.messages import (
    EndRun,
    NoDonor,
    StateArrived,
    StateAsked,
    StateComing,
    StateDeclined,
    StateLost,
    StateReady,
    StateWanted,
)
from unlockstep.core.reasons import Recovered

H = 4


def run(*names: str, steps: int = H) -> SyncerStage:
    """Learners that have taken so many steps each, the first more than the others."""
    stage = SyncerStage(options(learners_max=16))
    for name in names:
        stage.join(name)
    stage.seed(names[0])
    for _ in range(steps):
        for name in names:
            stage.now_ns += STEP_NS
            stage.step(name)
    stage.step(names[0])
    return stage


def newcomer(stage: SyncerStage, name: str = "new", failed: int = 0) -> Puppet:
    """It joins and asks."""
    stage.join(name)
    stage.tell(StateWanted(name, stage.puppets[name].incarnation, failed))
    return stage.puppets[name]


def asked(stage: SyncerStage, name: str) -> list[int]:
    """Tickets under which this learner was asked for its state."""
    return [message.ticket for message in stage.puppets[name].heard_of(StateAsked)]


def arrive(stage: SyncerStage, ticket: int) -> None:
    stage.tell(StateArrived(ticket, "digest", 1000))


def test_the_live_learner_with_the_highest_clock_is_asked_and_the_new_one_hears_when_its_state_is_there() -> None:
    stage = run("a", "b", "c")
    new = newcomer(stage)
    [ticket] = asked(stage, "a")
    assert not asked(stage, "b") and not asked(stage, "c")
    assert not new.heard_of(StateReady)
    arrive(stage, ticket)
    assert new.heard_of(StateReady) == [StateReady(ticket, "digest", 1000)]
    stage.report("new", recovered=Recovered.DONOR)
    assert [(e.donor, e.learner, e.size_bytes) for e in stage.of(StateHandedOver)] == [("a", "new", 1000)]
    assert stage.acted(ForgetState) == [ForgetState(ticket)]


def test_nobody_is_asked_who_has_trained_less_than_h_steps() -> None:
    stage = run("a", "b", steps=H - 2)
    new = newcomer(stage)
    assert [none.reason for none in new.heard_of(NoDonor)] == [f"no other live learner has trained {H} steps"]
    assert [(e.donor, e.learner) for e in stage.of(StateNotHandedOver)] == [("", "new")]


def test_a_donor_that_declines_dies_or_sends_what_is_not_sound_is_followed_by_another() -> None:
    stage = run("a", "b", "c")
    new = newcomer(stage)
    [ticket] = asked(stage, "a")
    stage.tell(StateDeclined("a", 1, ticket))
    [second] = asked(stage, "b")
    stage.disconnect("b")
    [third] = asked(stage, "c")
    assert not new.heard_of(NoDonor), "it hears only that it is seen to"
    assert len({ticket, second, third}) == 3 == len(new.heard_of(StateComing))
    stage.tell(StateLost(third, "its digest is another"))
    assert len(new.heard_of(NoDonor)) == 1
    assert [e.donor for e in stage.of(StateNotHandedOver)] == ["a", "b", "c", ""]


def test_no_more_than_so_many_donors_are_asked() -> None:
    stage = run("a", "b", "c", "d", "e")
    new = newcomer(stage)
    for name in ("a", "b", "c")[:DONORS_MAX]:
        stage.tell(StateDeclined(name, 1, asked(stage, name)[0]))
    assert len(new.heard_of(NoDonor)) == 1 and not asked(stage, "d")


def test_a_silent_donor_is_given_up_after_a_lease_and_two_steps_and_each_piece_begins_that_anew() -> None:
    stage = run("a", "b")
    newcomer(stage)
    [ticket] = asked(stage, "a")
    within_ns = LEASE_NS + 2 * STEP_NS

    def pass_time(duration_ns: int) -> None:
        for _ in range(4):  # everybody shows a sign of life
            stage.wait(duration_ns // 4)
            for name in ("a", "b", "new"):
                stage.heartbeat(name)

    pass_time(within_ns - 4)
    stage.tell(StateComing(ticket))
    pass_time(within_ns - 4)
    assert not asked(stage, "b")
    stage.wait(4)
    assert len(asked(stage, "b")) == 1


def test_two_new_ones_are_served_by_one_donor_one_after_the_other_and_by_two_at_once() -> None:
    stage = run("a")
    first, second = newcomer(stage, "new-1"), newcomer(stage, "new-2")
    [ticket] = asked(stage, "a")
    assert not second.heard_of(NoDonor), "it waits"
    arrive(stage, ticket)
    assert len(asked(stage, "a")) == 2 and len(first.heard_of(StateReady)) == 1
    stage = run("a", "b")
    newcomer(stage, "new-1")
    newcomer(stage, "new-2")
    assert len(asked(stage, "a")) == len(asked(stage, "b")) == 1


def test_what_could_not_be_fetched_is_asked_for_of_another_donor() -> None:
    stage = run("a", "b")
    newcomer(stage)
    [ticket] = asked(stage, "a")
    arrive(stage, ticket)
    stage.tell(StateWanted("new", 1, failed=ticket))
    assert len(asked(stage, "b")) == 1 and len(asked(stage, "a")) == 1
    assert ForgetState(ticket) in stage.acted(ForgetState)


def test_a_state_for_somebody_who_is_gone_is_forgotten_whenever_it_comes() -> None:
    stage = run("a", "b")
    newcomer(stage)
    [ticket] = asked(stage, "a")
    stage.disconnect("new")
    assert not stage.core.donations.is_expected(ticket, "a", 1)
    arrive(stage, ticket)
    assert stage.acted(ForgetState) == [ForgetState(ticket), ForgetState(ticket)]


def test_only_who_was_asked_may_bring_it_and_only_once() -> None:
    stage = run("a", "b")
    newcomer(stage)
    [ticket] = asked(stage, "a")
    expected = stage.core.donations.is_expected
    assert expected(ticket, "a", 1)
    assert not expected(ticket, "b", 1) and not expected(ticket, "a", 2) and not expected(ticket + 1, "a", 1)
    arrive(stage, ticket)
    assert not expected(ticket, "a", 1)


def test_when_the_run_ends_nobody_waits_for_a_state() -> None:
    stage = run("a", "b")
    new = newcomer(stage)
    stage.tell(EndRun("enough"))
    assert [none.reason for none in new.heard_of(NoDonor)] == ["the run reaches its end"]


def test_the_log_says_where_a_learner_has_its_state_from() -> None:
    stage = run("a", "b")
    newcomer(stage)
    arrive(stage, asked(stage, "a")[0])
    stage.report("new", recovered=Recovered.DONOR)
    stage.step("new", recovered=Recovered.DONOR)
    stage.disconnect("new")
    stage.join("new", stage.puppets["new"].incarnation)
    stage.step("new", recovered=Recovered.DONOR)
    ways = [(e.learner, e.recovered) for e in stage.of(LearnerLive)]
    assert ways == [("a", None), ("b", None), ("new", Recovered.DONOR), ("new", Recovered.KEPT)]

"""How a run ends: the last steps, one last round of every fragment, goodbye; and that it ends whatever happens."""

from __future__ import annotations

from typing import Any

import pytest

from support.core_builders import LEASE_NS, MS, STEP_NS
from support.syncer_stage import SyncerStage, running
from unlockstep.core.actions import Announce, RunEnded
from unlockstep.core.events import (
    ContributionRefused,
    FragmentCommitted,
    LearnerDeparted,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
    RunFinished,
    RunFinishing,
)
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.messages import EndRun, Finish, JoinRefused, Published, Pull, Settled, Stop, Undelivered, Welcome
from unlockstep.core.options import Participation
from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason, WindowReason
from unlockstep.core.run_states import RunState


def announced(stage: SyncerStage) -> list[object]:
    """What everybody was told, apart from versions."""
    return [action.message for action in stage.acted(Announce) if not isinstance(action.message, Published)]


def finishing(*names: str, **changes: Any) -> SyncerStage:
    """Two learners have been told to finish; the first round has not opened yet."""
    stage = running(*names, **changes)
    stage.tell(EndRun("enough"))
    assert stage.core.state is RunState.FINISHING
    return stage


def draining(*names: str, **changes: Any) -> SyncerStage:
    """All of them have taken their last step."""
    stage = finishing(*names, **changes)
    for name in names:
        stage.step(name, last=True)
    assert stage.core.state is RunState.DRAINING
    return stage


def give_all(stage: SyncerStage, *names: str) -> None:
    """Every learner answers every pull until the run has ended; commits are instant."""
    for _ in range(100):
        waiting = [
            (name, collecting.round)
            for collecting in stage.core.status(stage.now_ns).rounds
            for name in names
            if name in collecting.asked and name not in collecting.contributions
        ]
        if not waiting and not stage.commits:
            return
        for name, round in waiting:
            stage.contribute(name, round=round)
        stage.commit()


# ----------------------------------------------------------------------------------------------- in order


def test_a_run_ends_at_its_last_step() -> None:
    stage = running("a", "b", steps_max=3)
    stage.step("a")
    give_all(stage, "a", "b")
    assert stage.core.state is RunState.RUNNING
    stage.step("a")
    (ending,) = stage.of(RunFinishing)
    assert (ending.clock, ending.reason) == (3, "3 steps of 3 are done")
    assert announced(stage) == [Finish()]


def test_a_run_ends_with_its_last_token() -> None:
    stage = running("a", "b", tokens_max=60)
    stage.step("a")
    assert stage.core.state is RunState.RUNNING
    stage.step("b", tokens=9)
    assert stage.core.state is RunState.RUNNING
    stage.step("a", tokens=1, clock=2)
    assert stage.of(RunFinishing)[0].reason == "60 tokens of 60 are trained"


@pytest.mark.parametrize(
    ("steps_max", "stops", "said"),
    [(1, False, "the run has finished"), (50, True, "the run was stopped at 2 of 50 steps")],
)
def test_a_run_that_is_stopped_early_is_not_said_to_have_finished(steps_max: int, stops: bool, said: str) -> None:
    stage = running("a", steps_max=steps_max)
    stage.step("a")
    if stops:
        stage.tell(EndRun("enough"))
    stage.step("a", last=True, clock=1)
    give_all(stage, "a")
    assert announced(stage) == [Finish(), Stop(said)]


def test_every_learner_finishes_its_step_before_the_last_rounds_begin() -> None:
    stage = finishing("a", "b")
    stage.step("a", last=True)
    assert stage.core.state is RunState.FINISHING
    stage.step("b", last=True)
    assert stage.core.state is RunState.DRAINING
    assert [event.fragment for event in stage.of(RoundOpened)] == [0]


def test_one_last_round_of_every_fragment_collects_what_is_left_and_all_say_goodbye() -> None:
    stage = draining("a", "b")
    give_all(stage, "a", "b")
    assert [(event.fragment, event.version) for event in stage.of(FragmentCommitted)] == [(0, 1), (1, 1)]
    assert stage.of(RunFinished)[0].versions == (1, 1)
    assert announced(stage) == [Finish(), Stop("the run was stopped at step 2")]
    assert stage.actions[-1] == RunEnded()
    assert len(stage.acted(RunEnded)) == 1
    ledger = stage.ledger
    assert (ledger.trained, ledger.merged, ledger.in_flight) == (60, 60, 0)


def test_who_was_given_up_for_dead_and_returns_after_the_end_opens_no_books_again() -> None:
    stage = finishing("a", "b", lease_s=1.0)
    stage.step("a", last=True)
    for _ in range(4):
        stage.wait(LEASE_NS // 20)
        stage.heartbeat("a")
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    before = stage.ledger
    answer = stage.join("b", incarnation=1)
    assert isinstance(answer, JoinRefused) and answer.reason is JoinRefusal.RUN_FINISHED
    assert stage.ledger == before
    assert before.lost == 20 and before.in_flight == 0


def test_a_fragment_of_which_nobody_has_anything_is_not_collected() -> None:
    stage = finishing("a")
    stage.step("a", last=True, c_steps=(0, 3), c_tokens=(0, 30))
    assert [event.fragment for event in stage.of(RoundOpened)] == [1]


def test_a_round_that_is_open_at_the_end_is_completed_first() -> None:
    stage = running("a", "b")
    stage.step("a")
    stage.tell(EndRun("enough"))
    stage.contribute("a")
    stage.contribute("b")
    stage.commit()
    stage.step("a", last=True)
    stage.step("b", last=True)
    give_all(stage, "a", "b")
    assert [event.round for event in stage.of(FragmentCommitted)] == [0, 1, 2]
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.in_flight == 0


def test_when_the_time_of_the_last_rounds_is_up_a_round_that_has_its_quorum_is_committed() -> None:
    """Steps take twice a lease, so its grace window would last longer; what is in counts all the same."""
    lease_ns = 500 * MS
    stage = finishing("a", "b", lease_s=lease_ns / 1e9)
    for name in "ab":
        stage.step(name, step_ns=2 * lease_ns)
    for name in "ab":
        stage.step(name, step_ns=2 * lease_ns, last=True)
    stage.contribute("a")
    assert stage.core.state is RunState.DRAINING and stage.of(RoundClosed) == []
    for _ in range(6):
        stage.wait(100 * MS)
        stage.heartbeat("a")
        stage.heartbeat("b")
    stage.commit()
    assert [event.fragment for event in stage.of(FragmentCommitted)] == [0]
    assert stage.ledger.merged == 40 / 2


def test_when_the_run_ends_no_new_round_is_scheduled() -> None:
    stage = finishing("a", "b")
    stage.step("a", clock=100)
    assert stage.of(RoundOpened) == []


def test_under_fresh_the_last_rounds_ask_everybody() -> None:
    stage = finishing("a", "b", participation=Participation.FRESH)
    stage.step("a", clock=50, last=True)
    stage.step("b", last=True)
    assert stage.of(RoundOpened)[0].asked == ("a", "b")


def test_ending_twice_changes_nothing() -> None:
    stage = finishing("a")
    stage.tell(EndRun("once more"))
    assert [event.reason for event in stage.of(RunFinishing)] == ["enough"]
    stage.step("a", last=True)
    give_all(stage, "a")
    stage.tell(EndRun("once more"))
    assert len(stage.of(RunFinished)) == 1


@pytest.mark.parametrize("seeding", [False, True])
def test_a_run_without_parameters_ends_at_once(seeding: bool) -> None:
    """C29"""
    stage = SyncerStage()
    if seeding:
        stage.join("a")
    stage.tell(EndRun("never mind"))
    assert stage.core.state is RunState.FINISHED
    assert stage.of(RunFinished)[0].versions == ()
    assert stage.acted(RunEnded) == [RunEnded()]


def test_a_run_without_learners_ends_at_once() -> None:
    """C30"""
    stage = running("a")
    stage.wait(LEASE_NS)
    stage.tell(EndRun("enough"))
    assert stage.core.state is RunState.FINISHED


def test_nobody_may_join_a_run_that_ends() -> None:
    stage = finishing("a")
    answer = stage.join("b")
    assert isinstance(answer, JoinRefused)
    assert answer.reason is JoinRefusal.RUN_FINISHED


def test_after_the_end_there_is_no_deadline() -> None:
    stage = draining("a")
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    assert stage.core.next_deadline_ns() == NEVER_NS
    stage.core.on_deadline(stage.now_ns + 10 * LEASE_NS)
    assert stage.core.take_events() == []


def test_time_after_the_end_is_no_downtime() -> None:
    stage = draining("a")
    give_all(stage, "a")
    stage.disconnect("a")
    stage.wait(LEASE_NS)
    assert stage.core.status(stage.now_ns).downtime_ns == 0


# ----------------------------------------------------------------------------------------------- whatever happens


def test_a_learner_that_never_reaches_its_boundary_is_waited_for_a_lease_and_two_steps() -> None:
    stage = finishing("a", "b")
    stage.step("a", last=True)
    began_ns = stage.now_ns
    while stage.core.state is RunState.FINISHING:
        stage.wait(STEP_NS)
        stage.heartbeat("a")
        stage.heartbeat("b")
    assert stage.now_ns - began_ns == LEASE_NS + 2 * STEP_NS
    assert stage.core.state is RunState.DRAINING


def test_a_learner_that_dies_while_finishing_is_not_waited_for() -> None:
    stage = finishing("a", "b")
    stage.step("a", last=True)
    stage.disconnect("b")
    assert stage.core.state is RunState.DRAINING
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.in_flight == 0


def test_a_learner_that_dies_while_draining_is_not_waited_for() -> None:
    stage = draining("a", "b")
    stage.contribute("a")
    stage.disconnect("b")
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.in_flight == 0


def test_a_pull_that_is_never_answered_is_given_up_after_a_lease() -> None:
    stage = draining("a", "b")
    stage.contribute("a")
    began_ns = stage.now_ns
    while stage.core.state is RunState.DRAINING and stage.now_ns < 3 * LEASE_NS:
        stage.wait(STEP_NS)
        for name in "ab":
            stage.heartbeat(name)
        stage.commit()
    assert stage.core.state is RunState.FINISHED
    assert stage.now_ns - began_ns <= LEASE_NS + 2 * STEP_NS
    assert stage.ledger.in_flight == 0


def test_what_the_end_cut_off_is_told() -> None:
    stage = running("a", "b")
    stage.step("a")
    stage.hand_over("b")
    stage.disconnect("b")
    stage.contribute("a")
    stage.commit()
    stage.join("b", incarnation=1)
    stage.tell(EndRun("enough"))
    stage.report("a", last=True)
    stage.report("b", last=True)
    give_all(stage, "a", "b")
    assert stage.core.state is RunState.FINISHED
    assert stage.of(RunFinished)[0].tokens_under_way == 20


def test_with_fewer_than_k_left_the_last_rounds_are_given_up_at_once() -> None:
    """What was handed over is refused by name; nobody waits for a quorum that cannot come."""
    stage = finishing("a", "b", quorum=2)
    stage.leave("b")
    stage.step("a", last=True)
    began_ns = stage.now_ns
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    assert stage.now_ns == began_ns
    assert [event.round for event in stage.of(RoundEmpty)] == [0, 1]
    assert stage.of(FragmentCommitted) == []
    assert stage.ledger.refused == {"run_finished": 30}
    assert stage.ledger.in_flight == 0
    outcomes = [message.refusal for message in stage.puppets["a"].heard_of(Settled)]
    assert outcomes == [RefusalReason.RUN_FINISHED] * 2
    assert stage.released == {0, 1}


def test_a_round_waiting_for_a_lost_quorum_does_not_keep_a_run_from_ending() -> None:
    stage = running("a", "b", quorum=2)
    stage.step("a")
    stage.step("b")
    stage.contribute("a")
    stage.leave("b")
    stage.tell(EndRun("enough"))
    stage.step("a", last=True)
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.in_flight == 0


def test_a_commit_that_takes_longer_than_everything_else_is_waited_for_in_peace() -> None:
    stage = draining("a", "b")
    stage.contribute("a")
    stage.contribute("b")
    assert len(stage.commits) == 1
    for _ in range(30):
        stage.wait(LEASE_NS // 2)  # fails if the deadline stays in the past
        stage.heartbeat("a")
        stage.heartbeat("b")
    assert stage.core.state is RunState.DRAINING
    stage.commit()
    give_all(stage, "a", "b")
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.in_flight == 0


def test_the_last_round_waits_for_everyone_it_has_asked_whatever_the_grace() -> None:
    stage = draining("a", "b", fragments=1, interval_steps=2, grace_factor=0.0)
    late = stage.hand_over("b")
    stage.contribute("a")
    stage.wait(STEP_NS)
    (collecting,) = stage.core.status(stage.now_ns).rounds
    assert collecting.sentence == "the last round of the fragment waits for 1 more"
    assert collecting.reason is WindowReason.WAITING_FOR_THE_LAST
    stage.tell(late)
    assert stage.of(RoundClosed)[-1].participants == ("a", "b")


def test_what_comes_late_in_the_last_round_is_settled_too() -> None:
    stage = draining("a", "b", fragments=1, interval_steps=2)
    late = stage.hand_over("b")
    stage.contribute("a")
    for _ in range(2):  # leases are kept, the patience of the end is not
        stage.heartbeat("a")
        stage.heartbeat("b")
        stage.wait(LEASE_NS // 2)
    assert stage.of(RoundClosed)[-1].participants == ("a",)
    stage.tell(late)
    stage.commit()
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.in_flight == 0
    assert late.payload in stage.released


def test_what_arrives_after_the_end_changes_no_account() -> None:
    stage = draining("a", "b")
    on_its_way = stage.hand_over("b")
    stage.disconnect("b")
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    before = stage.ledger
    assert before.in_flight == 0
    stage.tell(on_its_way)
    assert stage.of(ContributionRefused)[-1].reason is RefusalReason.RUN_FINISHED
    assert on_its_way.payload in stage.released
    stage.step("b", tokens=1000)
    stage.leave("a")
    stage.disconnect("a")
    assert stage.ledger == before


def test_an_upload_under_way_when_the_run_ends_is_dropped() -> None:
    """Its round has closed long ago; nobody knows whether it will ever arrive."""
    stage = running("a", "b")
    stage.step("a")
    stage.hand_over("b")
    stage.contribute("a")
    stage.wait(STEP_NS)
    stage.commit()
    stage.tell(EndRun("enough"))
    stage.report("a", last=True)
    stage.report("b", last=True)
    while stage.core.state is not RunState.FINISHED and stage.now_ns < 3 * LEASE_NS:
        give_all(stage, "a", "b")
        stage.wait(STEP_NS)
        for name in "ab":
            stage.heartbeat(name)
    assert stage.core.state is RunState.FINISHED
    assert (stage.ledger.dropped, stage.ledger.in_flight) == (20 / 2, 0)


def test_what_only_an_upload_has_told_of_is_dropped_too() -> None:
    stage = finishing("a", "b")
    stage.step("a", last=True)
    stage.disconnect("b")
    stage.contribute("a", tokens=stage.puppets["a"].tokens + 10)  # a step whose report never comes
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.trained == 20 + 30 + 10
    assert stage.ledger.in_flight == 0


def test_an_upload_overtaken_by_the_last_report_is_followed_by_what_came_after_it() -> None:
    """A slow upload of round 0 arrives after the last step was reported: the last round still asks for that step."""
    stage = running("a")
    stage.step("a")
    slow = stage.hand_over("a")
    stage.tell(EndRun("enough"))
    stage.step("a", last=True)
    stage.tell(slow)
    stage.commit()
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.merged == stage.ledger.trained == 40


def test_an_upload_that_fails_in_the_last_round_is_not_waited_for() -> None:
    stage = draining("a")
    lost = stage.hand_over("a")
    stage.report("a", last=True, undelivered=(Undelivered(lost.round, lost.fragment, lost.c_tokens, lost.tokens),))
    give_all(stage, "a")
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.dropped == 30 / 2
    assert stage.ledger.in_flight == 0


@pytest.mark.parametrize("state", ["finishing", "draining"])
def test_a_learner_whose_connection_breaks_at_the_end_may_come_back_and_hand_over_the_rest(state: str) -> None:
    stage = finishing("a", "b") if state == "finishing" else draining("a", "b")
    stage.disconnect("b")
    stage.join("b", incarnation=1)
    assert [type(message) for message in stage.puppets["b"].heard[-2:]] == [Welcome, Finish]
    if state == "finishing":
        stage.step("a", last=True)
    stage.report("b", last=True)
    assert Pull in [type(message) for message in stage.puppets["b"].heard]
    give_all(stage, "a", "b")
    assert stage.core.state is RunState.FINISHED
    assert stage.ledger.in_flight == 0


def test_a_silent_learner_departs_from_a_run_that_ends() -> None:
    stage = finishing("a", "b")
    stage.step("a", last=True)
    stage.wait(LEASE_NS - MS)
    stage.heartbeat("a")
    stage.wait(MS)
    assert [(event.learner, event.reason) for event in stage.of(LearnerDeparted)] == [
        ("b", DepartureReason.LEASE_EXPIRED)
    ]
    assert stage.core.state is RunState.DRAINING

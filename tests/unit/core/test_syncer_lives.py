"""What outlives the syncer's process: a run goes on in another life of it, and nothing it has promised is forgotten."""

from __future__ import annotations

import msgspec
import pytest

from support.core_builders import LEASE_NS
from support.syncer_stage import SyncerStage, commit_rounds, first_round, missed_round, running
from unlockstep.checkers import check
from unlockstep.core.actions import Announce, Save, SendTo
from unlockstep.core.events import (
    ContributionAccepted,
    FragmentCommitted,
    LearnerDeparted,
    LearnerJoined,
    RoundClosed,
    RoundOpened,
    RunFinished,
    RunFinishing,
    RunSeeded,
    SyncerResumed,
)
from unlockstep.core.messages import (
    ContributionArrived,
    EndRun,
    HandedOver,
    JoinRefused,
    Published,
    Pull,
    Settled,
    SyncerMessage,
    Welcome,
)
from unlockstep.core.options import Late
from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason
from unlockstep.core.run_states import RunState
from unlockstep.core.saved import SavedLife


def back(stage: SyncerStage, name: str, *unsettled: ContributionArrived) -> SyncerMessage:
    """The same process connects again, and says what it has not heard of."""
    puppet = stage.puppets[name]
    kept = tuple(HandedOver(made.round, made.fragment, made.tokens) for made in unsettled)
    stage.join(name, incarnation=puppet.incarnation, unsettled=kept)
    return [message for message in puppet.heard if isinstance(message, Welcome | JoinRefused)][-1]


def wanted(answer: SyncerMessage) -> list[tuple[int, int]]:
    assert isinstance(answer, Welcome)
    return [(kept.round, kept.tokens) for kept in answer.wanted]


def opened(stage: SyncerStage) -> list[int]:
    return [event.round for event in stage.of(RoundOpened)]


def mean(tokens: int) -> float:
    """Of a fragment's tokens, as the ledger shows them."""
    return tokens / 2


# ----------------------------------------------------------------------------------------------- what is kept


def test_what_another_life_saves_is_what_was_saved_but_for_what_was_in_flight() -> None:
    stage = running("a", "b")
    commit_rounds(stage, 3, "a", "b")
    assert stage.versions == (2, 1)
    before = stage.save()
    stage.die()
    assert stage.save() == msgspec.structs.replace(
        before,
        life=2,
        lives=(SavedLife(2, (2, 1)),),
        members=tuple(
            msgspec.structs.replace(member, state="away") if member.state == "live" else member
            for member in before.members
        ),
    )


def test_the_run_keeps_its_id_its_layout_its_clock_and_its_versions() -> None:
    stage = running("a", "b")
    commit_rounds(stage, 3, "a", "b")
    clock, versions, layout = stage.core.status(stage.now_ns).clock, stage.versions, stage.core.layout
    stage.die()
    assert (stage.core.run_id, stage.core.state, stage.core.life) == ("id", RunState.RUNNING, 2)
    assert (stage.core.status(stage.now_ns).clock, stage.versions, stage.core.layout) == (clock, versions, layout)
    assert stage.of(SyncerResumed) == [SyncerResumed(stage.now_ns, 2, clock, versions)]


def test_everybody_is_away_and_has_a_whole_lease_to_come_back() -> None:
    stage = running("a", "b")
    stage.die()
    assert stage.states == {"a": "away", "b": "away"}
    stage.wait(LEASE_NS - 1)
    assert stage.departures == []
    answer = back(stage, "a")
    assert isinstance(answer, Welcome)
    assert (answer.life, answer.incarnation, answer.versions_kept) == (2, 1, (0, 0))
    stage.wait(1)
    assert stage.departures == [("b", DepartureReason.LEASE_EXPIRED)]


def test_incarnations_go_on_and_an_older_process_is_known_as_such() -> None:
    stage = running("a", "b")
    stage.join("a")
    stage.die()
    assert isinstance(back(stage, "a"), Welcome)
    old = stage.join("a", incarnation=1)
    assert isinstance(old, JoinRefused) and old.reason is JoinRefusal.SUPERSEDED
    stage.join("a")
    assert [event.incarnation for event in stage.of(LearnerJoined) if event.learner == "a"] == [1, 2, 2, 3]


def test_who_was_shut_out_stays_so() -> None:
    stage = first_round("a", "b", strikes_max=1)
    stage.contribute("b", defect=RefusalReason.NON_FINITE)
    assert stage.departures == [("b", DepartureReason.QUARANTINED)]
    stage.die()
    answer = stage.join("b")
    assert isinstance(answer, JoinRefused) and answer.reason is JoinRefusal.QUARANTINED


def test_strikes_outlive_the_syncer() -> None:
    stage = first_round("a", "b", strikes_max=2)
    stage.contribute("b", defect=RefusalReason.NON_FINITE)
    stage.die()
    back(stage, "b")
    stage.step("b")
    stage.contribute("b", 0, defect=RefusalReason.NON_FINITE)
    assert stage.departures == [("b", DepartureReason.QUARANTINED)]


def test_a_run_without_parameters_is_seeded_by_who_comes_next() -> None:
    stage = SyncerStage()
    stage.join("a")
    stage.die()
    assert stage.core.state is RunState.EMPTY and stage.core.layout is None
    answer = stage.join("b")
    assert isinstance(answer, Welcome) and answer.seed and answer.versions_kept == ()
    stage.seed("b")
    assert stage.core.state is RunState.RUNNING and len(stage.of(RunSeeded)) == 1


def test_parameters_are_not_asked_for_twice() -> None:
    stage = running("a", "b")
    stage.die()
    answer = stage.join("c")
    assert isinstance(answer, Welcome) and not answer.seed
    assert [notice.digest for notice in answer.versions] == ["digest-0-0", "digest-1-0"]


# --------------------------------------------------------------------------------------------- rounds and contributions


def test_a_round_in_flight_begins_anew_and_what_it_held_is_merged_once() -> None:
    stage = first_round("a", "b", quorum=2)
    made = stage.contribute("a")
    assert stage.ledger.in_flight == stage.ledger.trained
    saved = stage.save()
    stage.die(saved)
    assert opened(stage) == [0, 0] and stage.of(RoundOpened)[-1].asked == ()
    assert stage.core.status(stage.now_ns).rounds[0].contributions == ()
    assert wanted(back(stage, "a", made)) == [(0, made.tokens)]
    back(stage, "b")
    stage.tell(made)
    stage.report("b")
    stage.contribute("b", 0)
    stage.commit()
    (merged,) = stage.of(FragmentCommitted)
    assert (set(merged.weights), merged.tokens) == ({"a", "b"}, 30 + 30)
    assert (stage.ledger.merged, stage.ledger.trained) == (mean(60), 60)
    assert stage.puppets["a"].heard_of(Settled) == [Settled(0, 0, made.tokens, late=False, refusal=None)]


def test_one_that_arrives_before_its_learner_is_back_counts_and_is_not_asked_for() -> None:
    """Its upload went on trying while the syncer was dead."""
    stage = first_round("a", "b", quorum=2)
    made = stage.contribute("a")
    stage.die()
    stage.tell(made)
    assert wanted(back(stage, "a", made)) == []
    assert stage.core.status(stage.now_ns).rounds[0].contributions == ("a",)
    stage.tell(made)  # the one it handed over once more
    assert stage.refusals == [("a", RefusalReason.DUPLICATE)]
    assert stage.puppets["a"].heard_of(Settled) == [], "it waits to be merged, and its learner keeps it until it is"


def test_a_commit_that_was_under_way_is_made_again() -> None:
    stage = first_round("a", "b")
    stage.step("b")
    made = [stage.contribute(name) for name in "ab"]
    assert len(stage.commits) == 1 and stage.of(RoundClosed)[0].participants == ("a", "b")
    stage.die()
    assert stage.commits == [] and opened(stage) == [0, 0] and stage.versions == (0, 0)
    assert [wanted(back(stage, each.learner, each)) for each in made] == [[(0, 30)], [(0, 30)]]
    for each in made:
        stage.tell(each)
    stage.commit()
    (merged,) = stage.of(FragmentCommitted)
    assert (
        stage.versions == (1, 0) and merged.tokens == 30
    )  # of the first; nobody has reported yet: it waits for nobody
    stage.step("a", clock=20)
    stage.step("b", clock=20)


def test_a_late_contribution_that_waited_is_asked_for_and_waits_again() -> None:
    stage, late = missed_round()
    stage.tell(late)
    stage.commit()
    stage.die()
    assert wanted(back(stage, "b", late)) == [(0, late.tokens)]
    stage.tell(late)
    back(stage, "a")
    for name in "ab":
        stage.step(name, clock=10)
    while len(stage.of(FragmentCommitted)) < 3:
        number = opened(stage)[-1]
        for name in "ab":
            stage.contribute(name, number)
        stage.commit()
        for name in "ab":
            stage.step(name, clock=10 * number + 20)
    merged = stage.of(FragmentCommitted)[2]
    assert (merged.round, set(merged.weights)) == (2, {"a", "b"})
    assert stage.ledger.merged_late == mean(late.c_tokens)


def test_what_was_merged_is_not_asked_for_and_its_learner_is_told_so() -> None:
    """The syncer died when the commit was saved, and before it had said so."""
    stage = first_round("a", "b")
    stage.step("b")
    made = [stage.contribute(name) for name in "ab"]
    stage.commit()
    stage.die()
    assert wanted(back(stage, "a", made[0])) == []
    told = stage.puppets["a"].heard_of(Settled)[-1]
    assert told == Settled(0, 0, made[0].tokens, late=False, refusal=RefusalReason.DUPLICATE)
    stage.tell(made[0])
    assert stage.ledger.merged == mean(30 + 30)


def test_what_was_refused_is_told_once_more_and_not_asked_for() -> None:
    stage = first_round("a", "b")
    made = stage.contribute("b", defect=RefusalReason.NON_FINITE)
    stage.die()
    assert wanted(back(stage, "b", made)) == []
    assert stage.puppets["b"].heard_of(Settled)[-1].refusal is RefusalReason.DUPLICATE
    assert stage.ledger.refused == {"non_finite": mean(made.c_tokens)}


def test_of_a_round_that_is_forgotten_it_can_say_nothing() -> None:
    stage = running("a", "b", closed_rounds_max=1)
    stage.step("a")
    made = stage.hand_over("a", 0)
    commit_rounds(stage, 6, "a", "b")
    stage.die()
    assert wanted(back(stage, "a", made)) == []
    assert stage.puppets["a"].heard_of(Settled)[-1].refusal is RefusalReason.UNKNOWN_ROUND


def later(stage: SyncerStage) -> ContributionArrived:
    """It is saved; then round 0 opens, is answered, and the syncer dies."""
    saved = stage.save()
    stage.step("b")
    stage.step("a")
    assert opened(stage) == [0]
    made = stage.contribute("a")
    stage.events.clear()
    stage.die(saved)
    assert opened(stage) == []
    return made


def test_what_was_handed_over_for_a_round_that_opened_after_the_last_save_is_merged_when_it_opens_again() -> None:
    stage = running("a", "b", quorum=2)
    made = later(stage)
    assert wanted(back(stage, "a", made)) == [(0, made.tokens)]
    stage.tell(made)
    stage.tell(made)
    assert [event.late for event in stage.of(ContributionAccepted)] == [True]
    assert stage.refusals == [("a", RefusalReason.DUPLICATE)]
    back(stage, "b")
    for name in "ab":
        stage.step(name, clock=3)
    assert opened(stage) == [0]
    for name in "ab":
        stage.contribute(name, 0)
    stage.commit()
    (merged,) = stage.of(FragmentCommitted)
    assert (merged.round, merged.tokens) == (0, 40 + 40)  # all of both, once
    told = stage.puppets["a"].heard_of(Settled)[-2:]
    assert told == [Settled(0, 0, tokens, late=False, refusal=None) for tokens in (30, 40)]


def test_where_late_ones_are_dropped_such_a_one_is_too() -> None:
    """Its round is not open: that is what the paper's way asks."""
    stage = running("a", "b", quorum=2, late=Late.DROP)
    made = later(stage)
    back(stage, "a", made)
    stage.tell(made)
    assert stage.refusals == [("a", RefusalReason.LATE)]


def test_a_syncer_in_its_first_life_knows_of_no_rounds_to_come() -> None:
    stage = running("a", "b")
    stage.step("a")
    stage.contribute("a", 7)
    assert stage.refusals == [("a", RefusalReason.UNKNOWN_ROUND)]


def test_nor_does_another_one_know_of_rounds_that_are_far_away() -> None:
    stage = running("a", "b")
    stage.die()
    back(stage, "a")
    stage.step("a")
    stage.contribute("a", 10_001)
    assert stage.refusals == [("a", RefusalReason.UNKNOWN_ROUND)]


# ----------------------------------------------------------------------------------------------- tokens


def held_by_a() -> tuple[SyncerStage, ContributionArrived]:
    """Round 0 waits for b; it holds what a has trained on fragment 0 in three steps."""
    stage = first_round("a", "b", quorum=2)
    return stage, stage.contribute("a")


def test_what_a_dead_process_had_handed_over_is_lost_with_the_syncer() -> None:
    stage, _ = held_by_a()
    stage.join("a")
    assert stage.ledger.lost == mean(30)  # of the fragment it had not handed over
    stage.die()
    assert stage.ledger.lost == mean(30 + 30)


def test_so_is_what_one_had_handed_over_that_has_left() -> None:
    stage, _ = held_by_a()
    stage.leave("a")
    stage.die()
    assert (stage.ledger.lost, stage.ledger.dropped) == (mean(30), mean(30))


def test_what_one_had_on_its_way_that_has_left_nobody_brings_again() -> None:
    """If it arrives all the same it is refused, as that of any process that is gone, and stays lost."""
    stage = first_round("a", "b", quorum=2)
    made = stage.hand_over("a")
    stage.leave("a")
    assert stage.ledger.in_flight == mean(30) + 30
    stage.die()
    assert (stage.ledger.lost, stage.ledger.in_flight) == (mean(30), 30)
    stage.tell(made)
    assert stage.refusals == [("a", RefusalReason.STALE_INCARNATION)]
    assert (stage.ledger.lost, stage.ledger.refused) == (mean(30), {})


def test_one_that_was_only_silent_brings_it_back() -> None:
    stage, made = held_by_a()
    stage.wait(LEASE_NS)
    assert len(stage.departures) == 2
    stage.die()
    assert stage.ledger.lost == 60 and stage.ledger.in_flight == 0
    assert wanted(back(stage, "a", made)) == [(0, made.tokens)]
    assert stage.ledger.lost == stage.ledger.in_flight == 30


# ----------------------------------------------------------------------------------------------- promises


def before_every(stage: SyncerStage, kind: type[object]) -> bool:
    """Whether a save stands between each message of this kind and the input before."""
    saved, found = False, False
    for action in stage.actions:
        if isinstance(action, Save):
            saved = True
        elif isinstance(action, SendTo | Announce) and isinstance(action.message, kind):
            found = True
            if not saved:
                return False
    return found


@pytest.mark.parametrize("kind", [Welcome, Published, Settled])
def test_what_must_not_be_forgotten_is_saved_before_it_is_said(kind: type[object]) -> None:
    stage = first_round("a", "b")
    stage.step("b")
    makes = {
        Welcome: lambda: stage.join("c"),
        Published: stage.commit,
        Settled: stage.commit,
    }
    for name in "ab":
        stage.contribute(name)
    stage.actions.clear()
    makes[kind]()
    assert before_every(stage, kind)


def test_a_commit_is_told_apart_from_other_promises() -> None:
    stage = first_round("a")
    stage.contribute("a")
    stage.actions.clear()
    stage.commit()
    assert stage.acted(Save)[0] == Save(is_commit=True)
    stage.actions.clear()
    stage.join("b")
    assert stage.acted(Save) == [Save(is_commit=False)]


def test_questions_and_steps_need_no_save() -> None:
    """A pull that is forgotten is asked again; counts are cumulative."""
    stage = running("a", "b")
    stage.actions.clear()
    stage.step("a")
    assert stage.puppets["a"].heard_of(Pull) and stage.acted(Save) == []
    stage.contribute("a")
    assert stage.acted(Save) == []


def test_another_life_is_saved_before_anybody_hears_of_it() -> None:
    stage = running("a")
    stage.actions.clear()
    stage.die()
    assert stage.acted(Save) == [Save(is_commit=False)]
    assert isinstance(stage.actions[0], Save)


# ----------------------------------------------------------------------------------------------- the end


def test_a_run_that_was_reaching_its_end_goes_on_doing_so() -> None:
    stage = running("a", steps_max=2)
    stage.step("a")
    assert stage.core.state is RunState.FINISHING
    stage.die()
    assert stage.core.state is RunState.FINISHING
    assert len(stage.of(RunFinishing)) == 2
    back(stage, "a")
    stage.report("a", last=True)
    number = opened(stage)[-1]
    while stage.core.state is not RunState.FINISHED:
        stage.contribute("a", number)
        stage.commit()
        number += 1
    assert stage.of(RunFinished)[0].ledger == stage.ledger and stage.ledger.in_flight == 0


def test_one_that_somebody_had_stopped_goes_on_as_before() -> None:
    stage = running("a")
    stage.tell(EndRun("enough"))
    stage.die()
    assert stage.core.state is RunState.RUNNING
    answer = back(stage, "a")
    assert isinstance(answer, Welcome)
    stage.step("a")
    assert opened(stage) == [0]


@pytest.mark.parametrize("interval_steps", [1, 3, 4])
def test_after_its_last_rounds_it_keeps_the_schedule_that_they_have_left(interval_steps: int) -> None:
    """Last rounds move the schedule on, whether they open or have nothing to collect: `report --check` knows that."""
    stage = running("a", interval_steps=interval_steps, overlap_steps=1)

    def take_part() -> None:
        answered = {made.round for made in stage.of(ContributionAccepted)}
        for pull in stage.puppets["a"].heard_of(Pull):
            if pull.round not in answered:
                stage.contribute("a", pull.round)
        stage.commit()

    for _ in range(3):
        take_part()
        stage.step("a")
    take_part()
    stage.tell(EndRun("enough"))
    stage.report("a", last=True)
    while stage.core.state is not RunState.FINISHED:
        take_part()
    before = opened(stage)[-1]
    stage.die()
    back(stage, "a")
    for _ in range(4):
        stage.step("a")
        take_part()
    assert opened(stage)[-1] > before + 1
    assert check(stage.events, stage.options) == []


@pytest.mark.parametrize("leaves", [False, True])
def test_one_that_had_ended_may_be_taken_up_and_no_token_is_counted_twice(leaves: bool) -> None:
    """The learner had not heard of the end, or had: then another process comes under its name."""
    stage = running("a", "b", quorum=2)
    stage.leave("b")
    stage.step("a")
    stage.tell(EndRun("enough"))
    stage.report("a", last=True)
    stage.wait(LEASE_NS - 1)
    stage.heartbeat("a")
    stage.wait(1)  # Alone it reaches no quorum: what it holds is dropped.
    assert stage.core.state is RunState.FINISHED
    assert (stage.ledger.dropped, stage.ledger.in_flight) == (20 + 30, 0)
    stage.die()
    assert (stage.ledger.dropped, stage.ledger.in_flight) == (20, 30)
    if leaves:
        stage.join("a")
        assert (stage.ledger.lost, stage.ledger.in_flight) == (30, 0)
        return
    back(stage, "a")
    stage.join("b")
    for name in "ab":
        stage.report(name)
        stage.step(name, clock=20)
    for name in "ab":
        stage.contribute(name, opened(stage)[-1])
    stage.commit()
    assert stage.ledger.merged == mean(40 + 10) and stage.ledger.lost == 0
    assert stage.ledger.in_flight == mean(40 + 10)


def test_nobody_is_given_up_in_the_end_before_it_could_come_back() -> None:
    """A run that reaches its end waits for the last steps of those who were there when the syncer died."""
    stage = running("a", "b", steps_max=2)
    stage.step("a")
    stage.die()
    back(stage, "a")
    stage.report("a", last=True)
    assert stage.core.state is RunState.FINISHING
    stage.wait(LEASE_NS - 1)
    assert stage.core.state is RunState.FINISHING
    stage.heartbeat("a")
    stage.wait(1)
    assert [event.learner for event in stage.of(LearnerDeparted)] == ["b"]
    assert stage.core.state is RunState.DRAINING

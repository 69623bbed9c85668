"""A learner's half of the protocol: what it says and wants, at a step boundary, in the middle of a step, and away."""

from __future__ import annotations

import itertools
import math

import pytest

from support.core_builders import LEASE_NS, MS, STEP_NS, learner_core, options
from support.learner_stage import LearnerStage, adoptions, notice, only, seeding, sent, training
from unlockstep.core.actions import (
    Adopt,
    Discard,
    Done,
    Fetch,
    Forget,
    ResetOptimizer,
    Send,
    TakeSnapshot,
    Upload,
    UploadSeed,
)
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.ids import NEVER_NS, PROTOCOL_VERSION
from unlockstep.core.learner import MOVES, LearnerMove, LearnerState
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Farewell,
    Fenced,
    FetchFailed,
    Finish,
    Heartbeat,
    HostFailed,
    Join,
    JoinRefused,
    Leave,
    LeaveRequested,
    Leaving,
    Progress,
    Published,
    Pull,
    SeedStored,
    StepFinished,
    Stop,
    Undelivered,
    UploadFailed,
)
from unlockstep.core.reasons import DepartureReason, JoinRefusal

# ----------------------------------------------------------------------------------------------- the state table


@pytest.mark.parametrize(("state", "move"), list(itertools.product(LearnerState, LearnerMove)))
def test_every_move_is_listed_or_a_bug(state: LearnerState, move: LearnerMove) -> None:
    core = learner_core("a", options())
    core._state = state
    if move in MOVES[state]:
        core._move(move)
        assert core.state is MOVES[state][move]
    else:
        with pytest.raises(LocalProtocolError, match=f"a learner cannot {move.value} while it is {state.value}"):
            core._move(move)
        assert core.state is state


def test_every_state_is_in_the_table_and_reachable_from_joining() -> None:
    assert set(MOVES) == set(LearnerState)
    reached = {LearnerState.JOINING}
    for _ in LearnerState:
        reached |= {target for state in reached for target in MOVES[state].values()}
    assert reached == set(LearnerState)


def test_only_done_is_final_and_every_other_state_can_be_stopped() -> None:
    """C29"""
    assert [state for state, moves in MOVES.items() if not moves] == [LearnerState.DONE]
    stoppable = [state for state, moves in MOVES.items() if moves.get(LearnerMove.STOP) is LearnerState.DONE]
    assert set(stoppable) == set(LearnerState) - {LearnerState.DONE}


# ----------------------------------------------------------------------------------------------- joining


def test_says_who_it_is_once_connected() -> None:
    stage = LearnerStage()
    (joining,) = sent(stage.tell(Connected()))
    assert isinstance(joining, Join)
    assert (joining.learner, joining.incarnation, joining.protocol_version) == ("a", 0, PROTOCOL_VERSION)
    assert stage.core.next_deadline_ns() == NEVER_NS  # nothing more to say before the answer


def test_takes_no_step_before_it_holds_every_version() -> None:
    stage = LearnerStage()
    stage.tell(Connected())
    wanted = stage.welcome(version=5)
    assert wanted == [Fetch(notice(0, 5)), Fetch(notice(1, 5)), Send(Heartbeat("a", 1))]
    assert not stage.core.may_step
    assert stage.fetched(0, 5, payload=8) == []
    assert not stage.core.may_step
    wanted = stage.fetched(1, 5, payload=9)
    assert wanted[:2] == [Adopt(0, 5, 8, load=True), Adopt(1, 5, 9, load=True)]
    (progress,) = sent(wanted)
    assert isinstance(progress, Progress)
    assert (progress.steps, progress.tokens, progress.c_steps) == (0, 0, (0, 0))
    assert [(adopted.fragment, adopted.version) for adopted in adoptions(progress)] == [(0, 5), (1, 5)]
    assert stage.core.may_step
    assert stage.core.versions == (5, 5)


def test_a_step_before_everything_is_loaded_is_a_bug_of_the_host() -> None:
    stage = LearnerStage()
    with pytest.raises(LocalProtocolError, match="an inner step was reported while the learner is joining"):
        stage.tell(StepFinished(10, STEP_NS, 1.0))


def test_loads_the_newest_version_announced_while_it_was_loading() -> None:
    """C38: version 5 arrives, version 6 is announced, and both fragments are then taken as they are newest here."""
    stage = LearnerStage()
    stage.tell(Connected())
    stage.welcome(version=5)
    stage.fetched(0, 5, payload=8)
    assert stage.publish(0, 6) == [Fetch(notice(0, 6))]
    assert stage.fetched(0, 6, payload=10) == [Discard(8)]
    wanted = stage.fetched(1, 5, payload=9)
    assert only(Adopt, wanted) == [Adopt(0, 6, 10, load=True), Adopt(1, 5, 9, load=True)]


def test_waits_for_parameters_that_another_learner_seeds() -> None:
    stage = LearnerStage()
    stage.tell(Connected())
    assert only(Fetch, stage.welcome(version=-1)) == []
    assert stage.core.state is LearnerState.LOADING
    assert stage.publish(0, 0) == [Fetch(notice(0, 0))]


def test_starts_at_the_syncer_s_clock_and_where_its_data_goes_on() -> None:
    """C33"""
    stage = LearnerStage()
    stage.tell(Connected())
    stage.welcome(clock=40, steps_before=17)
    assert (stage.core.clock, stage.core.steps_before, stage.core.steps) == (40, 17, 0)


@pytest.mark.parametrize("reason", JoinRefusal)
def test_a_refused_process_is_done_with_the_syncer_s_words(reason: JoinRefusal) -> None:
    stage = LearnerStage()
    stage.tell(Connected())
    failed = reason is not JoinRefusal.RUN_FINISHED
    assert stage.tell(JoinRefused(reason, "because")) == [Done("because", failed=failed)]
    assert stage.core.state is LearnerState.DONE


def test_that_the_run_has_ended_in_the_meantime_is_no_failure() -> None:
    stage = training()
    stage.step()
    stage.tell(Disconnected())
    stage.tell(Connected())
    assert stage.tell(JoinRefused(JoinRefusal.RUN_FINISHED, "over")) == [Done("over", failed=False)]


# ----------------------------------------------------------------------------------------------- seeding


def test_the_first_learner_uploads_its_parameters_and_trains_once_they_are_the_run_s() -> None:
    stage = seeding()
    assert stage.of(UploadSeed) == [UploadSeed(0), UploadSeed(1)]
    assert stage.tell(SeedStored(0)) == []
    assert stage.tell(SeedStored(1)) == []
    assert stage.publish(0, 0) == []
    assert not stage.core.may_step
    (progress,) = sent(stage.publish(1, 0))
    assert isinstance(progress, Progress) and progress.steps == 0
    assert stage.core.may_step
    assert stage.core.versions == (0, 0)


def test_a_seeder_does_not_fetch_its_own_parameters() -> None:
    stage = seeding()
    stage.publish(0, 0)
    stage.publish(1, 0)
    stage.tell(SeedStored(0))
    stage.tell(SeedStored(1))
    stage.publish(0, 0)
    assert stage.of(Fetch) == []


def test_a_seeder_that_is_asked_again_starts_from_the_first_fragment() -> None:
    stage = seeding()
    stage.tell(SeedStored(0))
    stage.tell(Disconnected())
    stage.tell(Connected())
    assert stage.welcome(version=-1, seed=True) == [UploadSeed(0), UploadSeed(1)]
    stage.tell(SeedStored(1))
    assert not stage.core.may_step


def test_a_seeder_that_was_replaced_loads_the_other_one_s_parameters() -> None:
    stage = seeding()
    stage.tell(SeedStored(0))
    stage.tell(Disconnected())
    stage.tell(Connected())
    stage.welcome(version=-1)
    assert stage.publish(0, 0) == [Fetch(notice(0, 0))]
    assert stage.publish(1, 0) == [Fetch(notice(1, 0))]
    stage.fetched(0, 0, payload=8)
    wanted = stage.fetched(1, 0, payload=9)
    assert only(Adopt, wanted) == [Adopt(0, 0, 8, load=True), Adopt(1, 0, 9, load=True)]
    assert stage.core.may_step


def test_a_seed_stored_after_the_learner_was_replaced_means_nothing() -> None:
    stage = seeding()
    stage.tell(Disconnected())
    stage.tell(Connected())
    stage.welcome(version=-1)
    stage.tell(SeedStored(0))
    stage.tell(SeedStored(1))
    assert not stage.core.may_step


def test_a_seeder_does_not_train_on_what_was_stored_while_another_was_asked_to_seed() -> None:
    """It stood still for longer than its lease: what was stored is void, and what is published is another's."""
    stage = seeding()
    stage.tell(SeedStored(0))
    stage.tell(SeedStored(1))
    stage.tell(Fenced(DepartureReason.LEASE_EXPIRED))
    stage.publish(0, 0)
    stage.publish(1, 0)
    assert not stage.core.may_step
    stage.welcome(incarnation=2)
    assert stage.of(Fetch) == [Fetch(notice(0, 0)), Fetch(notice(1, 0))]
    assert not stage.core.may_step


def test_a_learner_that_trains_does_not_seed_a_syncer_that_forgot_everything() -> None:
    stage = training()
    stage.step()
    stage.tell(Disconnected())
    stage.tell(Connected())
    (done,) = stage.welcome(version=-1, seed=True)
    assert isinstance(done, Done) and done.failed
    assert "has lost the run's parameters" in done.reason


# ----------------------------------------------------------------------------------------------- heartbeats


def test_a_heartbeat_is_sent_only_after_a_third_of_a_lease_of_silence() -> None:
    """C27"""
    stage = training()
    for _ in range(100):
        assert stage.wait(LEASE_NS // 3 - STEP_NS - 1) == []
        stage.step()
    assert sent(stage.wait(LEASE_NS)) == [Heartbeat("a", 1)] * 3


def test_a_fetch_that_failed_is_tried_again_though_every_step_is_reported() -> None:
    """No heartbeat is due while there are steps to report."""
    stage = training()
    stage.publish(0, 1)
    stage.tell(FetchFailed(0, 1))
    steps = LEASE_NS // 3 // STEP_NS
    for _ in range(steps):
        stage.step()
    assert stage.of(Fetch).count(Fetch(notice(0, 1))) == 1
    assert stage.wait(STEP_NS) == [Fetch(notice(0, 1))]
    stage.fetched(0, 1)
    stage.wait(LEASE_NS)
    assert stage.of(Fetch).count(Fetch(notice(0, 1))) == 2


def test_heartbeats_go_on_while_the_model_is_loading() -> None:
    """C26"""
    stage = LearnerStage()
    stage.tell(Connected())
    stage.welcome()
    assert sent(stage.wait(LEASE_NS)) == [Heartbeat("a", 1)] * 3


def test_without_a_connection_there_is_nothing_to_say() -> None:
    stage = training(options(away_s_max=0))
    stage.tell(Disconnected())
    assert stage.core.next_deadline_ns() == NEVER_NS
    assert stage.wait(10 * LEASE_NS) == []


def test_calling_too_early_says_nothing() -> None:
    stage = training()
    stage.core.on_deadline(stage.now_ns)
    assert stage.core.take_actions() == []


# ----------------------------------------------------------------------------------------------- away and back


def test_training_goes_on_without_a_connection_and_everything_is_told_afterwards() -> None:
    stage = training()
    stage.publish(0, 1)
    stage.step()
    stage.tell(Pull(0, 0))
    stage.fetched(0, 1)
    stage.tell(Disconnected())
    before = len(stage.said(Progress))
    for _ in range(3):
        stage.step()
    assert len(stage.said(Progress)) == before
    stage.tell(Connected())
    (joining,) = stage.said(Join)[-1:]
    assert joining.incarnation == 1
    stage.welcome(version=1)
    stage.step()
    progress = stage.last_progress
    assert (progress.steps, progress.tokens) == (5, 50)
    assert progress.c_tokens == (30, 50)
    assert progress.overwritten == (10, 0)
    assert [(adopted.fragment, adopted.version) for adopted in adoptions(progress)] == [(0, 1)]


def test_a_syncer_that_has_gone_back_behind_what_was_adopted_is_not_followed() -> None:
    """Progress made on a version that never was cannot be measured against anything."""
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    stage.publish(0, 1)
    stage.fetched(0, 1)
    stage.step()
    stage.tell(Disconnected())
    stage.tell(Connected())
    (done,) = only(Done, stage.welcome(version=0))
    assert done.failed
    assert "has gone back behind what this learner has adopted" in done.reason


def test_a_link_that_fails_for_good_ends_the_learner() -> None:
    assert training().tell(HostFailed("a bug")) == [Done("a bug", failed=True)]


def test_what_was_asked_over_a_broken_connection_is_void() -> None:
    stage = training()
    stage.tell(Pull(0, 0))
    stage.tell(Disconnected())
    assert only(Upload, stage.step()) == []


def test_versions_missed_while_away_are_fetched_after_the_welcome() -> None:
    stage = training()
    stage.tell(Disconnected())
    stage.tell(Connected())
    assert only(Fetch, stage.welcome(version=4)) == [Fetch(notice(0, 4)), Fetch(notice(1, 4))]


def test_a_fetch_broken_off_with_the_connection_is_started_again() -> None:
    stage = training()
    stage.publish(0, 1)
    stage.tell(Disconnected())
    stage.tell(Connected())
    assert only(Fetch, stage.welcome(version=1)) == [Fetch(notice(0, 1)), Fetch(notice(1, 1))]


def test_a_learner_whose_lease_ended_joins_again_with_the_progress_it_has() -> None:
    """C19"""
    stage = training()
    stage.step()
    stage.step()
    (joining,) = sent(stage.tell(Fenced(DepartureReason.LEASE_EXPIRED)))
    assert isinstance(joining, Join) and joining.incarnation == 1
    assert stage.tell(Fenced(DepartureReason.LEASE_EXPIRED)) == []  # an answer to something said earlier
    assert stage.core.may_step
    stage.welcome(incarnation=2, clock=30, steps_before=99)
    stage.step()
    progress = stage.last_progress
    assert (progress.incarnation, progress.steps, progress.c_steps, progress.c_tokens) == (2, 3, (3, 3), (30, 30))
    (upload,) = only(Upload, stage.tell(Pull(8, 0)))
    assert (upload.incarnation, upload.c_steps) == (2, 3)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (DepartureReason.SUPERSEDED, "another process has joined under the name a"),
        (DepartureReason.QUARANTINED, "the syncer refused too many of this learner's contributions"),
    ],
)
def test_a_learner_that_is_not_wanted_any_more_gives_up(reason: DepartureReason, words: str) -> None:
    stage = training()
    assert stage.tell(Fenced(reason)) == [Done(words, failed=True)]
    assert stage.core.state is LearnerState.DONE


QUARANTINE = Fenced(DepartureReason.QUARANTINED, retry_ns=60 * 10**9)


def test_a_quarantined_learner_begins_anew_at_the_next_boundary() -> None:
    """C9, C25: with the syncer's parameters and without anything of its own, its optimizer's state included."""
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    assert stage.tell(QUARANTINE) == []  # a step is under way, and the model is its
    assert stage.core.may_step
    wanted = stage.step()
    assert [type(action) for action in wanted] == [Forget, ResetOptimizer]
    assert not stage.core.may_step
    assert stage.tell(Disconnected()) == []
    (joining,) = [action.message for action in only(Send, stage.tell(Connected()))]
    assert isinstance(joining, Join)
    assert (joining.incarnation, joining.run_id, joining.unsettled) == (0, "", ())
    stage.welcome(incarnation=2, clock=30, version=5, steps_before=7)
    for fragment in range(2):
        stage.fetched(fragment, 5, payload=fragment)
    assert all(action.load for action in stage.actions[-3:] if isinstance(action, Adopt))
    assert stage.core.may_step
    stage.step(tokens=10)
    progress = stage.last_progress
    assert (progress.steps, progress.tokens, progress.c_tokens, progress.overwritten) == (1, 10, (10, 10), (0, 0))


def test_what_an_earlier_start_could_not_deliver_is_not_declared_by_the_next() -> None:
    stage = training()
    stage.step()
    (upload,) = only(Upload, stage.tell(Pull(0, 0)))
    stage.tell(QUARANTINE)
    stage.step()
    stage.tell(Connected())
    stage.welcome(incarnation=2, version=5)
    for fragment in range(2):
        stage.fetched(fragment, 5, payload=fragment)
    stage.tell(UploadFailed(upload.round, upload.fragment, upload.c_tokens, upload.tokens))
    stage.step()
    assert stage.last_progress.undelivered == ()


def test_a_learner_that_is_told_to_connect_in_the_middle_of_its_last_step_joins_after_it() -> None:
    stage = training()
    stage.tell(QUARANTINE)
    stage.tell(Disconnected())
    assert stage.tell(Connected()) == []
    (joining,) = [action.message for action in only(Send, stage.step())]
    assert isinstance(joining, Join) and joining.incarnation == 0


def test_a_start_that_may_not_join_yet_waits() -> None:
    """C9"""
    stage = LearnerStage()
    stage.tell(Connected())
    assert stage.tell(JoinRefused(JoinRefusal.QUARANTINED, "not yet", retry_ns=1)) == [ResetOptimizer()]
    stage.tell(Disconnected())
    assert len(only(Send, stage.tell(Connected()))) == 1


# ----------------------------------------------------------------------------------------------- the end


def test_finishing_takes_effect_at_the_next_boundary() -> None:
    stage = training()
    stage.step()
    assert stage.tell(Finish()) == []
    assert stage.core.may_step
    wanted = stage.step()
    assert stage.core.state is LearnerState.FINISHING
    assert not stage.core.may_step
    assert stage.last_progress.last
    assert only(TakeSnapshot, wanted) == []


def test_while_finishing_pulls_are_answered_at_once_with_all_there_is() -> None:
    stage = training()
    stage.tell(Finish())
    stage.step()
    assert stage.tell(Pull(7, 1)) == [TakeSnapshot(1), Upload(7, 1, 1, 0, 1, 10, 10, steps=1, deed=4)]
    assert stage.tell(Pull(9, 1)) == []  # nothing is left of it


def test_a_pull_that_waited_is_answered_at_the_last_boundary() -> None:
    stage = training()
    stage.tell(Pull(0, 0))
    stage.tell(Finish())
    assert [upload.round for upload in only(Upload, stage.step())] == [0]


def test_while_finishing_nothing_is_adopted_any_more() -> None:
    stage = training()
    stage.publish(0, 1)
    stage.tell(Finish())
    stage.step()
    assert stage.fetched(0, 1, payload=4) == [Discard(4)]
    assert stage.publish(1, 1) == []


def test_a_contribution_that_fails_while_finishing_is_declared_at_once() -> None:
    stage = training()
    stage.tell(Finish())
    stage.step()
    stage.tell(Pull(0, 0))
    (progress,) = sent(stage.tell(UploadFailed(0, 0, 10, 10)))
    assert isinstance(progress, Progress)
    assert progress.undelivered == (Undelivered(0, 0, 10, 10),)
    assert progress.last


def test_a_learner_that_returns_while_finishing_says_at_once_what_it_holds() -> None:
    stage = training()
    stage.tell(Finish())
    stage.tell(Disconnected())
    stage.step()
    stage.tell(Connected())
    (progress,) = sent(stage.welcome())
    assert isinstance(progress, Progress)
    assert (progress.steps, progress.c_steps, progress.last) == (1, (1, 1), True)


def test_a_learner_told_to_finish_before_its_first_step_takes_one() -> None:
    stage = LearnerStage()
    stage.tell(Connected())
    stage.welcome()
    stage.tell(Finish())
    stage.fetched(0, 0)
    stage.fetched(1, 0)
    stage.step()
    assert stage.last_progress.last


@pytest.mark.parametrize("state", ["joining", "loading", "seeding", "training", "finishing"])
def test_goodbye_ends_it_in_any_state(state: str) -> None:
    """C29"""
    match state:
        case "joining":
            stage = LearnerStage()
        case "loading":
            stage = LearnerStage()
            stage.tell(Connected())
            stage.welcome()
        case "seeding":
            stage = seeding()
        case _:
            stage = training()
            if state == "finishing":
                stage.tell(Finish())
                stage.step()
    assert stage.core.state.value == state
    assert stage.tell(Stop("over")) == [Done("over", failed=False)]
    assert stage.core.next_deadline_ns() == NEVER_NS
    for message in (Pull(0, 0), Published(notice(0, 9), 9), Connected(), Stop("again"), LeaveRequested()):
        assert stage.tell(message) == []


def test_who_leaves_hands_over_what_the_syncer_wants_and_declares_the_rest_dropped() -> None:
    """C23"""
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    stage.step()
    assert sent(stage.tell(LeaveRequested()))[-1] == Leaving("a", 1)
    assert not stage.core.may_step
    wanted = stage.tell(Farewell((Pull(0, 0),)))
    (made,) = only(Upload, wanted)
    assert (made.round, made.fragment, made.c_steps, made.c_tokens, made.tokens) == (0, 0, 1, 10, 20)
    assert sent(wanted)[-1] == Leave("a", 1, tokens_dropped=(0, 20))
    assert wanted[-1] == Done("left the run", failed=False)


def test_who_has_nothing_to_hand_over_leaves_at_once() -> None:
    wanted = training().tell(LeaveRequested())
    assert sent(wanted)[-1] == Leave("a", 1, tokens_dropped=(0, 0))


def test_asked_to_leave_once_more_a_learner_does_not_wait_for_the_syncer() -> None:
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    stage.step()
    stage.tell(LeaveRequested())
    wanted = stage.tell(LeaveRequested())
    assert sent(wanted)[-1] == Leave("a", 1, tokens_dropped=(10, 20))
    assert wanted[-1] == Done("left the run", failed=False)


def test_a_pull_is_answered_while_leaving() -> None:
    stage = training()
    stage.step()
    stage.tell(LeaveRequested())
    assert len(only(Upload, stage.tell(Pull(0, 0)))) == 1


def test_who_leaves_and_loses_its_connection_says_so_to_the_next_one() -> None:
    stage = training()
    stage.step()
    stage.tell(LeaveRequested())
    stage.tell(Disconnected())
    stage.tell(Connected())
    assert sent(stage.welcome())[-1] == Leaving("a", 1)


def test_leaving_first_tells_what_was_not_said_yet() -> None:
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    stage.tell(UploadFailed(0, 0, 10, 10))
    stage.tell(Disconnected())
    stage.step()
    stage.tell(Connected())
    stage.welcome()
    progress, leaving = sent(stage.tell(LeaveRequested()))
    assert isinstance(progress, Progress) and isinstance(leaving, Leaving)
    assert (progress.steps, progress.tokens, progress.undelivered) == (2, 20, (Undelivered(0, 0, 10, 10),))
    assert sent(stage.tell(Farewell(())))[-1] == Leave("a", 1, tokens_dropped=(10, 20))


def test_leaving_without_a_connection_ends_when_nobody_waits_any_more() -> None:
    stage = training()
    stage.step()
    stage.tell(Disconnected())
    assert stage.tell(LeaveRequested()) == []
    assert stage.tell(LeaveRequested()) == [Done("left the run", failed=False)]


def test_the_loss_of_a_report_without_a_step_is_unknown() -> None:
    assert math.isnan(training().last_progress.loss)


def test_times_are_those_of_the_host() -> None:
    stage = training()
    stage.wait(5 * MS)
    stage.publish(0, 1)
    stage.wait(7 * MS)
    stage.fetched(0, 1)
    stage.tell(Pull(0, 0))
    stage.step()
    assert adoptions(stage.last_progress)[0].fetch_ns == 7 * MS


def test_a_learner_trains_on_while_the_syncer_is_away_and_stops_when_that_lasts_too_long() -> None:
    """C28"""
    stage = training(options(away_s_max=60.0))
    stage.tell(Disconnected())
    stage.wait(30_000 * MS)
    stage.step()
    stage.tell(Connected())  # it answers, and goes away again before it has welcomed anybody
    stage.tell(Disconnected())
    assert stage.core.next_deadline_ns() == 60_000 * MS
    stage.wait(59_999 * MS - stage.now_ns)
    assert stage.core.may_step
    (done,) = only(Done, stage.wait(1 * MS))
    assert done.failed and done.is_alone
    assert "the syncer has been away for 60 s (protocol.away_s_max); start this learner again when it is back" in str(
        done
    )


def test_the_time_without_a_syncer_counts_anew_after_it_was_there() -> None:
    stage = training(options(away_s_max=60.0))
    stage.tell(Disconnected())
    stage.wait(59_000 * MS)
    stage.tell(Connected())
    stage.welcome()
    stage.tell(Disconnected())
    assert only(Done, stage.wait(59_000 * MS)) == []

"""A run as the syncer sees it: who joins, seeds, falls silent and returns, and what everybody is told."""

from __future__ import annotations

import itertools

import pytest

from support.core_builders import LEASE_NS, MS, STEP_NS, join
from support.syncer_stage import SyncerStage, commit_rounds, first_round, running
from unlockstep.core.actions import Announce, SendTo
from unlockstep.core.deeds import AdoptionNotice
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.events import (
    EvaluationReported,
    FragmentAdopted,
    JoinWasRefused,
    LearnerLive,
    MessageIgnored,
    RoundClosed,
    RunSeeded,
    StepReported,
)
from unlockstep.core.messages import (
    Evaluation,
    Fenced,
    JoinRefused,
    Published,
    SeedArrived,
    VersionNotice,
    Welcome,
)
from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason, WindowReason
from unlockstep.core.run_states import MOVES, RunMove, RunState
from unlockstep.core.status import Score

VERSIONS_0 = (VersionNotice(0, 0, "digest-0-0"), VersionNotice(1, 0, "digest-1-0"))


# ----------------------------------------------------------------------------------------------- the state table


@pytest.mark.parametrize(("state", "move"), list(itertools.product(RunState, RunMove)))
def test_every_move_is_listed_or_a_bug(state: RunState, move: RunMove) -> None:
    core = SyncerStage().core
    core._state = state
    if move in MOVES[state]:
        core._move(move)
        assert core.state is MOVES[state][move]
    else:
        with pytest.raises(LocalProtocolError, match=f"the run cannot {move.value} while it is {state.value}"):
            core._move(move)
        assert core.state is state


def test_every_state_is_in_the_table_and_reachable_from_empty() -> None:
    assert set(MOVES) == set(RunState)
    reached = {RunState.EMPTY}
    for _ in RunState:
        reached |= {target for state in reached for target in MOVES[state].values()}
    assert reached == set(RunState)


def test_only_finished_is_final_and_every_other_state_leads_there() -> None:
    assert [state for state, moves in MOVES.items() if not moves] == [RunState.FINISHED]
    ending = {RunState.FINISHED}
    for _ in RunState:
        ending |= {state for state, moves in MOVES.items() if ending & set(moves.values())}
    assert ending == set(RunState)


# ----------------------------------------------------------------------------------------------- seeding


def test_the_first_learner_gives_the_run_its_parameters() -> None:
    stage = SyncerStage()
    assert stage.join("a") == Welcome(1, 0, LEASE_NS, versions=(), seed=True, steps_before=0, run_id="id")
    assert stage.join("b") == Welcome(1, 0, LEASE_NS, versions=(), seed=False, steps_before=0, run_id="id")
    assert (stage.core.state, stage.core.notices) == (RunState.SEEDING, ())
    stage.seed("a")
    assert [event.learner for event in stage.of(RunSeeded)] == ["a"]
    assert (stage.core.state, stage.core.notices) == (RunState.RUNNING, VERSIONS_0)
    assert stage.puppets["b"].heard_of(Published) == [Published(notice, 0) for notice in VERSIONS_0]


def test_a_part_of_the_parameters_is_not_enough() -> None:
    stage = SyncerStage()
    stage.join("a")
    for _ in range(2):
        stage.tell(SeedArrived("a", 1, 0, "digest-0-0"))
    assert (stage.core.state, stage.acted(Announce)) == (RunState.SEEDING, [])


def test_nobody_but_the_seeder_may_seed() -> None:
    stage = SyncerStage()
    stage.join("a")
    stage.join("b")
    stage.seed("b")
    assert stage.core.state is RunState.SEEDING
    assert [event.reason for event in stage.of(MessageIgnored)] == [RefusalReason.STALE_INCARNATION] * 2


@pytest.mark.parametrize("how", ["disconnected", "silent", "superseded", "left"])
def test_when_the_seeder_is_gone_half_way_another_one_s_parameters_are_taken_whole(how: str) -> None:
    stage = SyncerStage()
    stage.join("a")
    stage.join("b")
    stage.tell(SeedArrived("a", 1, 0, "digest-of-a"))
    match how:
        case "disconnected":
            stage.disconnect("a")
        case "silent":
            stage.wait(LEASE_NS - MS)
            stage.heartbeat("b")
            stage.wait(MS)
        case "superseded":
            stage.join("a")
        case "left":
            stage.leave("a")
    assert stage.puppets["b"].heard[-1] == Welcome(1, 0, LEASE_NS, versions=(), seed=True, steps_before=0, run_id="id")
    stage.tell(SeedArrived("a", 1, 1, "digest-of-a"))
    assert stage.core.state is RunState.SEEDING
    stage.seed("b")
    assert [event.learner for event in stage.of(RunSeeded)] == ["b"]
    assert stage.core.notices == VERSIONS_0


def test_without_another_the_run_is_empty_again_and_the_next_one_seeds() -> None:
    stage = SyncerStage()
    stage.join("a")
    stage.tell(SeedArrived("a", 1, 0, "digest-of-a"))
    stage.disconnect("a")
    assert stage.core.state is RunState.EMPTY
    answer = stage.join("c")
    assert isinstance(answer, Welcome) and answer.seed
    answer = stage.join("a", incarnation=1)
    assert isinstance(answer, Welcome) and not answer.seed
    stage.seed("c")
    assert stage.core.notices == VERSIONS_0


def test_a_seeder_whose_connection_broke_seeds_anew_if_nobody_else_has_come() -> None:
    stage = SyncerStage()
    stage.join("a")
    stage.disconnect("a")
    answer = stage.join("a", incarnation=1)
    assert isinstance(answer, Welcome) and answer.seed


# ----------------------------------------------------------------------------------------------- joining


def test_a_late_joiner_gets_the_newest_versions_and_the_present_clock() -> None:
    """C33"""
    stage = running("a")
    commit_rounds(stage, 3, "a")
    answer = stage.join("b")
    assert isinstance(answer, Welcome)
    assert answer.versions == (VersionNotice(0, 2, "digest-0-2"), VersionNotice(1, 1, "digest-1-1"))
    assert (answer.clock, answer.seed, answer.steps_before) == (7, False, 0)


def test_a_learner_becomes_live_with_its_first_step() -> None:
    stage = running("a")
    stage.join("b")
    stage.report("b")
    assert stage.states == {"a": "live", "b": "joining"}
    stage.step("b", clock=1)
    assert stage.states == {"a": "live", "b": "live"}
    assert [event.learner for event in stage.of(LearnerLive)] == ["a", "b"]


def test_a_refused_process_is_told_why_and_the_reason_is_logged() -> None:
    """C17"""
    stage = running("a")
    answer = stage.join("b", tensors=(), layout_digest="another")
    assert isinstance(answer, JoinRefused)
    assert answer.reason is JoinRefusal.LAYOUT_MISMATCH
    (event,) = stage.of(JoinWasRefused)
    assert (event.learner, event.reason, event.detail) == ("b", JoinRefusal.LAYOUT_MISMATCH, answer.detail)
    assert "b" not in stage.states


def test_a_process_of_another_model_does_not_end_the_one_that_runs_under_its_name() -> None:
    stage = running("a")
    stage.join("a", tensors=(), layout_digest="another")
    assert stage.states == {"a": "live"}


def test_a_newer_start_supersedes_an_older_one() -> None:
    stage = running("a", "b")
    old = stage.puppets["a"]
    answer = stage.join("a")
    assert old.heard[-1] == Fenced(DepartureReason.SUPERSEDED)
    assert stage.departures == [("a", DepartureReason.SUPERSEDED)]
    assert isinstance(answer, Welcome)
    assert (answer.incarnation, answer.steps_before) == (2, 2)
    assert stage.states == {"a": "joining", "b": "live"}
    assert stage.ledger.lost == old.tokens


def test_what_a_superseded_process_still_says_is_answered_with_a_fence() -> None:
    stage = running("a", "b")
    old = stage.puppets["a"]
    stage.join("a")
    new, stage.puppets["a"] = stage.puppets["a"], old
    stage.step("a", clock=10**6)
    assert stage.of(MessageIgnored)[-1].message == "Progress"
    assert stage.acted(SendTo)[-1] == SendTo("a", 1, Fenced(DepartureReason.SUPERSEDED))
    stage.heartbeat("a")
    assert stage.of(MessageIgnored)[-1].message == "Heartbeat"
    stage.tell(join("a", incarnation=1))
    assert stage.of(JoinWasRefused)[-1].reason is JoinRefusal.SUPERSEDED
    assert stage.states["a"] == "joining"
    assert stage.core.status(stage.now_ns).clock == 1
    stage.puppets["a"] = new


def test_a_round_that_waited_for_a_superseded_process_closes_at_once() -> None:
    stage = first_round("a", "b")
    stage.step("b")
    stage.contribute("a")
    assert stage.of(RoundClosed) == []
    stage.join("b")
    assert [event.reason for event in stage.of(RoundClosed)] == [WindowReason.EVERYONE_IN]


# ----------------------------------------------------------------------------------------------- what is reported


def test_steps_and_adoptions_are_logged_as_reported() -> None:
    stage = running("a")
    stage.step("a", deeds=(AdoptionNotice(1, 0, "digest-1-0", 5 * MS, number=1),))
    step = stage.of(StepReported)[-1]
    assert (step.learner, step.clock, step.steps, step.tokens, step.step_ns) == ("a", 2, 3, 30, STEP_NS)
    adopted = stage.of(FragmentAdopted)[-1]
    assert (adopted.learner, adopted.fragment, adopted.version, adopted.digest) == ("a", 1, 0, "digest-1-0")


def test_overwritten_tokens_are_cumulative_so_that_a_lost_message_loses_none() -> None:
    stage = running("a")
    stage.report("a", overwritten=(10, 0), c_tokens=(10, 20), c_steps=(1, 2))
    stage.report("a", overwritten=(10, 0), c_tokens=(10, 20), c_steps=(1, 2))
    assert stage.ledger.overwritten == 10 / 2
    stage.disconnect("a")  # with it a report of (15, 5) was lost
    stage.join("a", incarnation=1)
    stage.report("a", overwritten=(20, 5), c_tokens=(0, 15), c_steps=(0, 1))
    assert stage.ledger.overwritten == 25 / 2
    stage.leave("a")
    assert stage.ledger.in_flight == 20 - (20 + 5 + 20 + 20) / 2 + 0  # the puppet still declares (20, 20)


def test_an_evaluation_is_logged_and_shown() -> None:
    stage = running("a")
    scores = (Score("label", 0.5, 0.75),)
    stage.tell(Evaluation("evaluator", 1, 2.5, 1.25, (0, 0), scores))
    assert [(event.loss, event.scores) for event in stage.of(EvaluationReported)] == [(2.5, scores)]
    (shown,) = stage.core.status(stage.now_ns).evaluations
    assert (shown.clock, shown.loss, shown.nats_per_byte, shown.scores) == (1, 2.5, 1.25, scores)


def test_the_status_shows_every_learner_and_why_a_round_is_open() -> None:
    stage = running("a", "b")
    stage.step("a")
    stage.contribute("a")
    stage.wait(30 * MS)
    status = stage.core.status(stage.now_ns)
    assert (status.run, status.state, status.clock, status.versions) == ("run", "running", 2, (0, 0))
    a, b = status.learners
    assert (a.learner, a.steps, a.tokens, a.tokens_per_step, a.step_ns) == ("a", 3, 30, 10.0, STEP_NS)
    assert (b.learner, b.clock, b.silent_ns) == ("b", 1, 30 * MS)
    (open_round,) = status.rounds
    assert (open_round.contributions, open_round.asked, open_round.open_ns) == (("a",), ("a", "b"), 30 * MS)
    assert open_round.sentence == "1 in, quorum 1; waits up to 0.1 s for 1 more"


def test_participation_is_the_mean_share_of_the_live_that_took_part() -> None:
    stage = running("a", "b")
    assert stage.core.status(stage.now_ns).participation is None
    commit_rounds(stage, 1, "a", "b")
    stage.step("a", clock=5)
    stage.contribute("a")
    stage.wait(STEP_NS)
    assert stage.core.status(stage.now_ns).participation == (2 / 2 + 1 / 2) / 2


def test_downtime_is_time_without_a_single_live_learner() -> None:
    stage = running("a", "b")
    stage.disconnect("a")
    stage.wait(300 * MS)
    assert stage.core.status(stage.now_ns).downtime_ns == 0  # b is there
    stage.disconnect("b")
    stage.wait(500 * MS)
    assert stage.core.status(stage.now_ns).downtime_ns == 500 * MS
    stage.join("b", incarnation=1)
    stage.step("b", clock=1)
    stage.wait(300 * MS)
    assert stage.core.status(stage.now_ns).downtime_ns == 500 * MS


def test_before_the_first_step_there_is_no_downtime() -> None:
    stage = SyncerStage()
    stage.join("a")
    stage.wait(LEASE_NS // 2)
    assert stage.core.status(stage.now_ns).downtime_ns == 0


def test_taking_empties_what_is_taken() -> None:
    core = SyncerStage().core
    core.receive(join("a"), 0)
    assert core.take_actions() and core.take_events()
    assert (core.take_actions(), core.take_events()) == ([], [])

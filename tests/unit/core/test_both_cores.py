"""A syncer and its learners together: stories in which each side's rules must fit the other's."""

from __future__ import annotations

import pytest

from support.core_builders import LEASE_NS, MS, STEP_NS
from support.core_pair import CorePair, running
from unlockstep.checkers import check
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    FragmentAdopted,
    FragmentCommitted,
    LearnerDeparted,
    LearnerJoined,
    RoundClosed,
    RunFinished,
    RunSeeded,
    TokensOverwritten,
)
from unlockstep.core.messages import EndRun, UploadFailed
from unlockstep.core.reasons import DepartureReason, RefusalReason, WindowReason
from unlockstep.core.syncer import RunState


def finish(pair: CorePair) -> None:
    """End the run in order and check its books."""
    pair.tell(EndRun("enough"))
    pair.exchange()
    for process in pair.processes:
        if process.may_run and process.core.may_step:
            pair.step(process.name)
    pair.wait(3 * LEASE_NS)
    assert pair.syncer.state is RunState.FINISHED
    assert pair.ended
    assert check(pair.events, pair.options) == []
    assert [event.tokens_under_way for event in pair.of(RunFinished)] == [0]
    assert pair.payloads == set()


@pytest.mark.parametrize("adoption", Adoption)
def test_from_the_first_step_to_goodbye(adoption: Adoption) -> None:
    pair = running("a", "b", "c", adoption=adoption)
    for _ in range(20):
        pair.wait(STEP_NS)
        pair.step("a", "b", "c")
    assert [event.learner for event in pair.of(RunSeeded)] == ["a"]
    assert min(pair.versions) >= 4
    assert {event.learner for event in pair.of(FragmentAdopted)} == {"a", "b", "c"}
    assert all(event.participants == ("a", "b", "c") for event in pair.of(RoundClosed)[1:])
    finish(pair)
    assert [process.done.failed for process in pair.processes if process.done] == [False] * 3


def test_a_run_ends_by_itself_at_its_last_step() -> None:
    pair = running("a", "b", steps_max=6)
    for _ in range(20):
        for process in pair.processes:
            if process.may_run and process.core.may_step:
                pair.step(process.name)
    assert pair.ended
    assert pair.ledger.in_flight == 0
    assert pair.ledger.trained == sum(process.trained for process in pair.processes)


@pytest.mark.parametrize("adoption", Adoption)
def test_a_learner_that_adopts_late_still_gives_everything_it_has(adoption: Adoption) -> None:
    """One takes a step for every ten of the other."""
    pair = running("fast", "slow", adoption=adoption)
    for number in range(200):
        pair.wait(STEP_NS)
        pair.step("fast")
        if number % 10 == 0:
            pair.step("slow")
    contributed = {event.fragment for event in pair.of(FragmentCommitted) if "slow" in event.weights}
    assert contributed == {0, 1}
    finish(pair)


def test_a_refused_contribution_does_not_end_the_run() -> None:
    """C9: one learner, quorum 1: the round it spoiled must still end."""
    pair = running("a")
    pair.holds_uploads.add("a")
    pair.step("a")
    pair.arrive(pair["a"], defect=RefusalReason.NON_FINITE)
    pair.holds_uploads.clear()
    for _ in range(5):
        pair.step("a")
    assert pair.of(ContributionRefused)[0].reason is RefusalReason.NON_FINITE
    assert len(pair.of(FragmentCommitted)) >= 2
    finish(pair)


def test_a_failed_upload_does_not_end_the_run() -> None:
    pair = running("a")
    pair.holds_uploads.add("a")
    pair.step("a")
    pair.lose_upload("a")
    pair.holds_uploads.clear()
    for _ in range(5):
        pair.step("a")
    assert len(pair.of(FragmentCommitted)) >= 2
    finish(pair)
    assert pair.ledger.dropped > 0


@pytest.mark.parametrize("arrives", ["first", "second", "never"])
def test_progress_after_an_upload_under_way_when_the_connection_broke_is_not_lost(arrives: str) -> None:
    """The learner is asked again in the same round and gives what came after: both count, in whatever order."""
    pair = running("a", "b", quorum=2)
    pair.holds_uploads.add("b")
    pair.step("a", "b")
    pair.cut("b")
    pair.connect("b")
    pair.exchange()
    pair.step("b")
    assert [(upload.round, upload.c_tokens) for upload in pair["b"].uploads] == [(0, 20), (0, 10)]
    match arrives:
        case "second":
            pair["b"].uploads.rotate()
        case "never":
            pair.lose_upload("b")
    pair.holds_uploads.clear()
    pair.exchange()
    assert pair.of(RoundClosed)[0].participants == ("a", "b")
    for _ in range(6):
        pair.step("a", "b")
    finish(pair)
    assert pair.ledger.refused == {}
    assert (pair.ledger.merged_late > 0) is (arrives != "never")


def test_an_upload_that_arrived_although_its_sender_saw_it_fail_counts_once() -> None:
    pair = running("a", "b", quorum=2)
    pair.holds_uploads.add("b")
    pair.step("a", "b")
    pair.arrive(pair["b"], keep=True)
    pair.lose_upload("b")
    pair.holds_uploads.clear()
    for _ in range(4):
        pair.step("a", "b")
    finish(pair)
    assert pair.ledger.dropped == 0


def test_an_upload_that_was_refused_although_its_sender_saw_it_fail_counts_once() -> None:
    pair = running("a", "b", quorum=2)
    pair.holds_uploads.add("b")
    pair.step("a", "b")
    upload = pair["b"].uploads[0]
    pair.arrive(pair["b"], defect=RefusalReason.DIGEST_MISMATCH)
    pair.hear(pair["b"], UploadFailed(upload.round, upload.fragment, upload.c_tokens, upload.tokens))
    pair.holds_uploads.clear()
    for _ in range(4):
        pair.step("a", "b")
    finish(pair)


def test_the_same_holds_if_the_round_has_closed_and_the_lease_has_ended_in_between() -> None:
    pair = running("a", "b", quorum=1)
    pair.holds_uploads.add("b")
    pair.step("a", "b")
    pair.arrive(pair["b"], keep=True)
    pair.exchange()
    pair.freeze("b")
    for _ in range(3):
        pair.wait(LEASE_NS // 2)
        pair.step("a")
    assert pair.of(LearnerDeparted)[-1].learner == "b"
    pair.thaw("b")
    pair.lose_upload("b")
    pair.holds_uploads.clear()
    pair.exchange()
    pair.step("b")
    finish(pair)


# ----------------------------------------------------------------------------------------------- stopped, killed, cut


def test_stopped_and_continued_after_its_eviction_a_learner_rejoins_and_goes_on() -> None:
    """C19"""
    pair = running("a", "b")
    pair.holds_uploads.add("b")
    pair.step("a", "b")
    assert len(pair["b"].uploads) == 1
    pair.freeze("b")
    for _ in range(4):
        pair.wait(LEASE_NS // 3)
        pair.step("a")
    assert [(event.learner, event.reason) for event in pair.of(LearnerDeparted)] == [
        ("b", DepartureReason.LEASE_EXPIRED)
    ]
    pair.thaw("b")
    pair.holds_uploads.clear()
    pair.exchange()
    fenced = pair.of(ContributionRefused)
    assert {(event.incarnation, event.reason) for event in fenced} == {(1, RefusalReason.STALE_INCARNATION)}
    again = [event for event in pair.of(ContributionAccepted) if event.incarnation == 2]
    assert {event.tokens for event in again} >= {event.tokens for event in fenced}
    rejoined = pair.of(LearnerJoined)[-1]
    assert (rejoined.learner, rejoined.incarnation, rejoined.resumed) == ("b", 2, True)
    for _ in range(6):
        pair.step("a", "b")
    assert "b" in pair.of(FragmentCommitted)[-1].weights
    assert pair["b"].core.steps == 1 + 1 + 6  # its work went on where it was
    finish(pair)
    assert (pair.ledger.refused, pair.ledger.lost) == ({}, 0)


def test_a_welcome_lost_with_the_connection_is_asked_for_again() -> None:
    pair = running("a", "b")
    pair.freeze("b")
    for _ in range(4):
        pair.wait(LEASE_NS // 3)
        pair.step("a")
    pair.thaw("b")
    for _ in range(10):  # until the Welcome is on its way, and not further
        if pair.of(LearnerJoined)[-1].incarnation == 2:
            break
        pair.carry_message(pair["b"])
    pair.cut("b")
    pair.connect("b")
    pair.exchange()
    assert pair["b"].done is None
    pair.step("b")
    assert pair.state("b") == "live"
    finish(pair)


def test_a_killed_learner_that_returns_takes_part_again_from_the_newest_versions() -> None:
    """C33"""
    pair = running("a", "b")
    for _ in range(6):
        pair.step("a", "b")
    pair.kill("b")
    for _ in range(6):
        pair.step("a")
    pair.start("b")
    pair.exchange()
    assert pair["b"].core.versions == pair.versions
    assert pair["b"].core.steps_before == 7
    for _ in range(4):
        pair.step("a", "b")
    assert "b" in pair.of(FragmentCommitted)[-1].weights
    finish(pair)
    assert pair.ledger.lost > 0


def test_a_process_superseded_while_it_was_away_is_told_when_it_returns() -> None:
    """Left without an answer it would train on for ever, unheard."""
    pair = running("a", "b")
    old = pair["b"]
    pair.cut(old)
    pair.start("b")
    pair.exchange()
    pair.connect(old)
    pair.exchange()
    assert old.done is not None and old.done.failed
    assert old.done.reason == "another process has joined under the name b"
    assert pair["b"].done is None
    pair.step("a", "b")
    finish(pair)


def test_reports_lost_with_a_connection_leave_no_token_unaccounted_for() -> None:
    pair = running("a", "b")
    for number in range(12):
        pair.step("a")
        pair.step("b")
        if number % 3 == 0:
            pair.cut("b")
            if pair["b"].core.may_step:
                pair.step("b")
            pair.connect("b")
            pair.exchange()
    assert pair.of(TokensOverwritten)
    finish(pair)


def test_a_failure_declared_in_a_lost_report_is_declared_again() -> None:
    pair = running("a", "b")
    pair.holds_uploads.add("b")
    pair.step("a", "b")
    pair.lose_upload("b")
    pair.end_step(pair["b"])  # its report, in which the failure is declared, does not arrive
    pair.cut("b")
    pair.holds_uploads.clear()
    pair.connect("b")
    pair.exchange()
    pair.step("a", "b")
    dropped = pair.ledger.dropped
    assert dropped == 20 / 2
    pair.cut("b")
    pair.connect("b")
    pair.exchange()
    pair.step("a", "b")
    assert pair.ledger.dropped == dropped
    finish(pair)


def test_a_report_on_its_way_when_the_connection_breaks_is_made_up_for() -> None:
    pair = running("a", "b")
    pair.step("a", "b")
    pair.exchange()
    pair.end_step(pair["b"])  # its report does not arrive
    pair.cut("b")
    pair.connect("b")
    pair.exchange()
    pair.step("b")
    finish(pair)
    assert pair.ledger.trained == sum(each.trained for each in pair.processes)


def test_a_learner_that_leaves_while_its_upload_is_under_way_loses_nothing_unnoticed() -> None:
    """C23"""
    pair = running("a", "b")
    pair.holds_uploads.add("b")
    pair.step("a", "b")
    pair.leave("b")
    pair.holds_uploads.clear()
    pair.exchange()
    pair.step("a")
    finish(pair)


def test_leaving_right_after_a_reconnection_tells_all() -> None:
    """C23"""
    pair = running("a", "b")
    pair.cut("b")
    pair.step("b")
    pair.connect("b")
    pair.exchange()
    pair.leave("b")
    assert pair.state("b") == "gone"
    pair.step("a")
    finish(pair)
    assert pair.ledger.trained == sum(each.trained for each in pair.processes)


# ----------------------------------------------------------------------------------------------- seeding


def test_a_seeder_killed_half_way_is_replaced() -> None:
    pair = CorePair()
    pair.start("a")
    pair.carry_message(pair["a"])
    pair.carry_message(pair["a"])
    pair["a"].seeds.pop()  # the second fragment never leaves
    pair.start("b")
    pair.exchange()
    assert pair.syncer.state is RunState.SEEDING
    pair.kill("a")
    pair.exchange()
    assert [event.learner for event in pair.of(RunSeeded)] == ["b"]
    pair.step("b")
    pair.start("a")
    pair.exchange()
    pair.step("a", "b")
    finish(pair)


def test_a_seeder_cut_half_way_loads_what_another_has_seeded() -> None:
    pair = CorePair()
    pair.start("a")
    pair.carry_message(pair["a"])
    pair.carry_message(pair["a"])
    pair["a"].seeds.pop()
    pair.start("b")
    pair.exchange()
    pair.cut("a")
    pair.connect("a")
    pair.exchange()
    assert [event.learner for event in pair.of(RunSeeded)] == ["b"]
    assert pair["a"].core.may_step
    assert [adopt.load for adopt in pair["a"].adopted] == [True, True]
    pair.step("a", "b")
    finish(pair)


def test_a_fresh_process_takes_the_run_s_parameters_even_if_it_is_alone() -> None:
    """C34"""
    pair = running("a", fragments=1, interval_steps=2)
    while pair.versions[0] < 50:
        pair.step("a")
    pair.kill("a")
    pair.wait(2 * LEASE_NS)
    pair.start("fresh")
    pair.exchange()
    assert pair["fresh"].core.versions == (pair.versions[0],)
    assert pair["fresh"].seeds == pair["a"].seeds
    pair.step("fresh")
    pair.step("fresh")
    assert pair.of(FragmentCommitted)[-1].version == 51
    finish(pair)


# ----------------------------------------------------------------------------------------------- slow bodies


def test_a_slow_upload_joins_the_next_round_and_its_fragment_s_counters_start_anew() -> None:
    pair = running("a", "b")
    pair.wait(STEP_NS)
    pair.holds_uploads.add("b")
    pair.step("a", "b")
    pair.wait(STEP_NS)  # the grace window ends
    assert pair.of(RoundClosed)[0].reason in (WindowReason.GRACE_ENDED, WindowReason.NO_GRACE)
    for _ in range(2):
        pair.step("a", "b")
    pair.holds_uploads.clear()
    for _ in range(6):
        pair.step("a", "b")
    late = [event for event in pair.of(ContributionAccepted) if event.late]
    assert late and late[0].learner == "b"
    finish(pair)
    assert pair.ledger.merged_late > 0


def test_a_slow_commit_holds_up_nobody() -> None:
    pair = running("a", "b")
    pair.holds_commits = True
    for _ in range(20):
        pair.step("a", "b")
    assert pair["a"].core.steps == 21
    assert len(pair.commits) == 1
    pair.holds_commits = False
    pair.exchange()
    finish(pair)


def test_a_slow_download_holds_up_nobody_and_the_newest_version_is_taken() -> None:
    pair = running("a", "b")
    pair.holds_fetches.add("b")
    for _ in range(12):
        pair.step("a", "b")
    assert pair["b"].core.versions == (0, 0)
    assert max(pair.versions) >= 3
    pair.holds_fetches.clear()
    pair.exchange()
    pair.step("a", "b")
    pair.step("a", "b")
    assert min(pair["b"].core.versions) >= 2
    finish(pair)


def test_a_learner_slower_than_a_lease_lives_on_by_its_heartbeats() -> None:
    """C27"""
    pair = running("a", "b")
    for _ in range(5):
        pair.wait(2 * LEASE_NS)
        pair.step("a")
    assert pair.of(LearnerDeparted) == []
    pair.wait(MS)
    pair.step("b")
    finish(pair)

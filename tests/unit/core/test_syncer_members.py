"""Learners that fall silent, return, leave or misbehave, as the syncer sees them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.core_builders import LEASE_NS, MS, STEP_NS
from support.syncer_stage import SyncerStage, commit_rounds, running
from unlockstep.checkers import imbalances
from unlockstep.core.events import (
    ContributionRefused,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    RunSeeded,
)
from unlockstep.core.ids import NANOSECONDS_PER_SECOND as SECOND_NS
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.messages import (
    ContributionArrived,
    Disconnected,
    Fenced,
    HandedOver,
    JoinRefused,
    SeedArrived,
    Transferring,
    VersionNotice,
    Welcome,
)
from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason


def handed_over(made: ContributionArrived) -> HandedOver:
    return HandedOver(made.round, made.fragment, made.tokens)


# ----------------------------------------------------------------------------------------------- connections


def test_a_learner_whose_connection_broke_resumes_under_its_incarnation() -> None:
    stage = running("a", "b")
    stage.disconnect("b")
    assert stage.states["b"] == "away"
    answer = stage.join("b", incarnation=1)
    assert isinstance(answer, Welcome) and answer.incarnation == 1
    assert [(event.learner, event.incarnation) for event in stage.of(LearnerAway)] == [("b", 1)]
    resumed = stage.of(LearnerJoined)[-1]
    assert (resumed.incarnation, resumed.resumed) == (1, True)
    stage.step("b", clock=1)
    assert stage.states["b"] == "live"
    assert stage.departures == []


def test_a_connection_that_breaks_unnoticed_is_simply_replaced() -> None:
    stage = running("a", "b")
    answer = stage.join("b", incarnation=1)
    assert isinstance(answer, Welcome) and answer.incarnation == 1
    assert stage.departures == []


def test_an_away_learner_may_come_back_until_its_lease_ends() -> None:
    stage = running("a", "b")
    stage.disconnect("b")
    stage.wait(LEASE_NS - 1)
    stage.heartbeat("a")
    assert stage.states["b"] == "away"
    stage.wait(1)
    assert stage.departures == [("b", DepartureReason.LEASE_EXPIRED)]


def test_a_connection_that_was_replaced_may_break_without_effect() -> None:
    stage = running("a", "b")
    old = stage.puppets["b"]
    stage.join("b")
    new, stage.puppets["b"] = stage.puppets["b"], old
    stage.disconnect("b")
    stage.puppets["b"] = new
    assert stage.states["b"] == "joining"


# ----------------------------------------------------------------------------------------------- leases


def test_silence_for_a_whole_lease_ends_it() -> None:
    """C18"""
    stage = running("a", "b")
    stage.wait(LEASE_NS - 1)
    stage.heartbeat("a")
    assert stage.departures == []
    stage.wait(1)
    assert stage.departures == [("b", DepartureReason.LEASE_EXPIRED)]
    assert stage.puppets["b"].heard[-1] == Fenced(DepartureReason.LEASE_EXPIRED)
    assert stage.states == {"a": "live", "b": "gone"}


@pytest.mark.parametrize("sign", ["heartbeat", "step", "contribution", "join", "bytes"])
def test_every_sign_of_life_renews_a_lease(sign: str) -> None:
    stage = running("a")
    stage.step("a")
    stage.wait(LEASE_NS - 1)
    match sign:
        case "heartbeat":
            stage.heartbeat("a")
        case "step":
            stage.step("a")
        case "contribution":
            stage.contribute("a")
        case "join":
            stage.join("a", incarnation=1)
        case "bytes":
            stage.tell(Transferring("a", 1))
    assert stage.core.next_deadline_ns() == stage.now_ns + LEASE_NS


@pytest.mark.parametrize("which", ["of nobody", "of another start", "without a connection"])
def test_bytes_that_prove_nothing_renew_no_lease(which: str) -> None:
    stage = running("a")
    until_ns = stage.core.next_deadline_ns()
    stage.wait(LEASE_NS // 2)
    match which:
        case "of nobody":
            stage.tell(Transferring("b", 1))
        case "of another start":
            stage.tell(Transferring("a", 2))
        case "without a connection":
            stage.tell(Disconnected("a", 1))
            stage.tell(Transferring("a", 1))
    assert stage.core.next_deadline_ns() == until_ns


def test_a_learner_stopped_and_continued_after_its_eviction_goes_on_where_it_was() -> None:
    """C19: its upload of before is fenced, it joins again under a new incarnation and hands it over once more, and no
    token is lost, refused or doubled."""
    stage = running("a", "b", quorum=2)
    stage.step("a")
    stage.step("b")
    upload = stage.hand_over("b")  # SIGSTOP here
    stage.wait(LEASE_NS - MS)
    stage.heartbeat("a")
    stage.wait(MS)
    assert stage.departures == [("b", DepartureReason.LEASE_EXPIRED)]
    assert stage.ledger.lost == 30

    stage.tell(upload)  # SIGCONT
    assert stage.of(ContributionRefused)[-1].reason is RefusalReason.STALE_INCARNATION
    stage.step("b", clock=2)
    assert stage.puppets["b"].heard[-1] == Fenced(DepartureReason.LEASE_EXPIRED)
    answer = stage.join("b", incarnation=1, unsettled=(handed_over(upload),))
    assert isinstance(answer, Welcome)
    assert (answer.incarnation, answer.steps_before, answer.wanted) == (2, 0, (handed_over(upload),))
    stage.tell(msgspec.structs.replace(upload, incarnation=2))
    stage.step("b", clock=2)
    assert stage.states["b"] == "live"
    assert stage.core.status(stage.now_ns).learners[1].steps == 5

    stage.contribute("a")
    stage.contribute("b")
    stage.commit()
    stage.leave("a")
    stage.leave("b")
    ledger = stage.ledger
    assert (ledger.trained, ledger.lost, ledger.refused) == (30 + 50, 0, {})
    assert (ledger.merged, ledger.in_flight) == ((30 + 30) / 2, 20 / 2)  # its second one waits for the next round


@pytest.mark.parametrize("upload_arrives", ["while gone", "after the return", "after it was handed over again"])
def test_an_old_upload_is_in_the_ledger_once_whenever_it_arrives(upload_arrives: str) -> None:
    """C19"""
    stage = running("a", "b")
    stage.step("a")
    upload = stage.hand_over("b")
    stage.wait(LEASE_NS)
    if upload_arrives == "while gone":
        stage.tell(upload)
        assert stage.ledger.lost == 50
    stage.join("b", incarnation=1)
    if upload_arrives == "after the return":
        stage.tell(upload)
    assert (stage.ledger.lost, stage.ledger.in_flight) == (30, 20)  # a is silent as well, with all it had
    stage.tell(msgspec.structs.replace(upload, incarnation=2))
    if upload_arrives == "after it was handed over again":
        stage.tell(upload)
    assert stage.refusals == [("b", RefusalReason.STALE_INCARNATION)]
    stage.report("b", steps=2)
    stage.leave("b")
    ledger = stage.ledger
    assert (ledger.refused, ledger.dropped, ledger.lost) == ({}, 20 / 2, 30)
    assert ledger.merged + ledger.in_flight == 20 / 2


def test_an_old_upload_of_a_learner_that_never_returns_is_refused_and_nothing_is_counted_twice() -> None:
    stage = running("a", "b")
    stage.step("a")
    upload = stage.hand_over("b")
    stage.wait(LEASE_NS)
    stage.tell(upload)
    ledger = stage.ledger
    assert stage.refusals == [("b", RefusalReason.STALE_INCARNATION)]
    assert (ledger.trained, ledger.in_flight, ledger.lost, ledger.refused) == (50, 0, 50, {})


def test_a_welcome_lost_with_the_connection_does_not_turn_a_learner_against_itself() -> None:
    """Fenced, it asked to join again; the answer never came. It still knows its first incarnation only."""
    stage = running("a", "b")
    stage.wait(LEASE_NS)
    stage.join("b", incarnation=1)
    stage.disconnect("b")
    answer = stage.join("b", incarnation=1)
    assert isinstance(answer, Welcome)
    assert stage.states["b"] == "joining"
    stage.step("b", clock=1)
    stage.leave("b")
    stage.join("a", incarnation=1)
    assert stage.ledger.in_flight == stage.ledger.trained - 30


def test_progress_of_a_revoked_incarnation_is_never_picked_however_far_it_claims_to_be() -> None:
    """C20"""
    stage = running("a", "b")
    old = stage.puppets["b"]
    stage.join("b")
    new, stage.puppets["b"] = stage.puppets["b"], old
    for _ in range(5):
        stage.step("b", clock=10**6)
    stage.puppets["b"] = new
    stage.report("b")
    stage.step("b", clock=2)
    stage.step("a")
    assert stage.core.status(stage.now_ns).clock == 2
    stage.tell(stage.hand_over("a"))
    stage.contribute("b", incarnation=1, tokens=10**9, c_tokens=10**9, c_steps=1)
    stage.tell(stage.hand_over("b", c_steps=1, c_tokens=10))
    stage.commit()
    (committed,) = stage.of(FragmentCommitted)
    assert committed.weights == pytest.approx({"a": 3 / 4, "b": 1 / 4})
    assert stage.of(ContributionRefused)[-1].reason is RefusalReason.STALE_INCARNATION


def test_with_everybody_gone_the_syncer_idles_and_a_newcomer_gets_the_present_version() -> None:
    """C30"""
    stage = running("a", "b")
    commit_rounds(stage, 2, "a", "b")
    stage.wait(LEASE_NS)
    assert stage.states == {"a": "gone", "b": "gone"}
    assert stage.core.next_deadline_ns() == NEVER_NS
    events = len(stage.events)
    stage.wait(1000 * LEASE_NS)
    assert len(stage.events) == events
    answer = stage.join("c")
    assert isinstance(answer, Welcome)
    assert [notice.version for notice in answer.versions] == [1, 1]


def test_a_fresh_process_alone_adopts_the_newest_version_and_never_becomes_the_source() -> None:
    """C34"""
    stage = running("a", fragments=1, interval_steps=2)
    commit_rounds(stage, 50, "a")
    stage.wait(LEASE_NS)
    assert stage.states == {"a": "gone"}
    for name in ("a", "fresh"):
        answer = stage.join(name)
        assert isinstance(answer, Welcome)
        assert (answer.seed, answer.versions) == (False, (VersionNotice(0, 50, "digest-0-50"),))
        stage.tell(SeedArrived(name, answer.incarnation, 0, "random weights"))
    assert stage.core.notices == (VersionNotice(0, 50, "digest-0-50"),)
    assert len(stage.of(RunSeeded)) == 1


# ----------------------------------------------------------------------------------------------- leaving


def test_a_learner_that_leaves_is_gone_at_once_and_declares_what_it_drops() -> None:
    """C23"""
    stage = running("a", "b")
    stage.leave("b")
    assert stage.departures == [("b", DepartureReason.LEFT)]
    assert (stage.ledger.dropped, stage.ledger.in_flight) == (20, 20)
    assert stage.puppets["b"].heard_of(Fenced) == []


def test_an_upload_on_its_way_when_its_learner_left_is_accounted_for() -> None:
    """C23"""
    stage = running("a", "b")
    stage.step("a")
    upload = stage.hand_over("b")
    stage.leave("b")
    stage.tell(upload)
    assert stage.refusals == [("b", RefusalReason.LEFT)]
    assert stage.ledger.in_flight == 30  # of a
    assert stage.ledger.trained == 50


def test_an_upload_under_way_when_its_learner_left_and_was_started_anew_is_lost() -> None:
    stage = running("a", "b")
    stage.step("a")
    upload = stage.hand_over("b")
    stage.leave("b")
    stage.join("b")
    assert (stage.ledger.lost, stage.ledger.in_flight) == (20 / 2, 30)
    stage.tell(upload)
    assert stage.of(ContributionRefused)[-1].reason is RefusalReason.STALE_INCARNATION
    assert stage.ledger.in_flight == 30  # of a


# ----------------------------------------------------------------------------------------------- quarantine


def refuse(stage: SyncerStage, name: str, reason: RefusalReason) -> None:
    stage.step(name, clock=stage.core.status(stage.now_ns).clock)
    stage.contribute(name, defect=reason, payload=-1)


def shut_out(**changes: Any) -> SyncerStage:
    """``b`` has just had its third strike."""
    stage = running("a", "b", quorum=2, **changes)
    stage.step("a")
    stage.step("b")
    for _ in range(3):
        refuse(stage, "b", RefusalReason.NON_FINITE)
    return stage


def test_three_bad_contributions_in_a_row_and_a_learner_is_out() -> None:
    """C9"""
    stage = shut_out(quarantine_s=0)
    assert [event.strikes for event in stage.of(ContributionRefused)] == [1, 2, 3]
    assert stage.departures == [("b", DepartureReason.QUARANTINED)]
    assert Fenced(DepartureReason.QUARANTINED) in stage.puppets["b"].heard
    assert stage.states["b"] == "quarantined"

    stage.contribute("b", round=0)
    assert stage.of(ContributionRefused)[-1].reason is RefusalReason.QUARANTINED
    for incarnation in (1, 0):
        answer = stage.join("b", incarnation=incarnation)
        assert isinstance(answer, JoinRefused)
        assert answer.reason is JoinRefusal.QUARANTINED
    assert stage.states["a"] == "live"


def test_a_quarantined_learner_that_goes_on_talking_is_told_that_it_is_out() -> None:
    stage = shut_out()
    stage.now_ns += STEP_NS
    stage.heartbeat("b")
    assert stage.puppets["b"].heard[-1] == Fenced(DepartureReason.QUARANTINED, retry_ns=60 * SECOND_NS - STEP_NS)


def test_a_quarantine_ends_and_the_learner_begins_anew() -> None:
    """C9: neither the process that was shut out nor another one under its name is let in before."""
    stage = shut_out(quarantine_s=1.0)
    (departed,) = stage.of(LearnerDeparted)
    assert departed.pause_ns == SECOND_NS
    under_way = stage.hand_over("b", round=0)
    for incarnation in (1, 0):
        answer = stage.join("b", incarnation=incarnation)
        assert isinstance(answer, JoinRefused)
        assert answer.retry_ns == SECOND_NS
    for _ in range(9):
        stage.now_ns += SECOND_NS // 10
        stage.heartbeat("a")
    assert isinstance(stage.join("b"), JoinRefused)
    stage.now_ns += SECOND_NS // 10
    answer = stage.join("b", incarnation=1)  # Its parameters are those that were refused.
    assert isinstance(answer, JoinRefused) and answer.retry_ns > 0
    answer = stage.join("b")
    assert isinstance(answer, Welcome) and answer.incarnation == 2
    assert not stage.of(LearnerJoined)[-1].resumed
    stage.tell(under_way)
    assert stage.of(ContributionRefused)[-1].reason is RefusalReason.STALE_INCARNATION
    stage.step("b")
    assert stage.states["b"] == "live"
    assert stage.core.status(stage.now_ns).learners[1].strikes == 0
    assert not list(imbalances(stage.ledger))


def test_who_is_quarantined_again_stays_out_twice_as_long() -> None:
    """C9"""
    stage = shut_out(quarantine_s=1.0)
    stage.now_ns += SECOND_NS
    stage.heartbeat("a")
    stage.join("b")
    stage.step("b")
    for _ in range(3):
        refuse(stage, "b", RefusalReason.NON_FINITE)
    assert [event.pause_ns for event in stage.of(LearnerDeparted)] == [SECOND_NS, 2 * SECOND_NS]


def test_strikes_outlive_a_process() -> None:
    """C9: a supervisor that starts it again does not wipe them out."""
    stage = running("a", "b", quorum=2)
    stage.step("a")
    stage.step("b")
    for _ in range(2):
        refuse(stage, "b", RefusalReason.NON_FINITE)
    stage.join("b")
    stage.step("b")
    refuse(stage, "b", RefusalReason.NON_FINITE)
    assert stage.states["b"] == "quarantined"


def test_a_good_contribution_wipes_out_the_strikes() -> None:
    """C9"""
    stage = running("a", "b", quorum=2)
    stage.step("a")
    stage.step("b")
    for _ in range(2):
        refuse(stage, "b", RefusalReason.ABSURD_NORM)
    stage.step("b")
    stage.contribute("b")
    stage.contribute("a")
    stage.commit()
    stage.step("a", clock=4)
    stage.step("b", clock=4)
    refuse(stage, "b", RefusalReason.ABSURD_NORM)
    assert stage.of(ContributionRefused)[-1].strikes == 1


@pytest.mark.parametrize("reason", [RefusalReason.DIGEST_MISMATCH, RefusalReason.LATE, RefusalReason.STALE_BASE])
def test_a_damaged_or_late_body_never_leads_to_quarantine(reason: RefusalReason) -> None:
    stage = running("a", "b", quorum=2)
    stage.step("a")
    stage.step("b")
    for _ in range(10):
        refuse(stage, "b", reason)
    assert stage.states["b"] == "live"

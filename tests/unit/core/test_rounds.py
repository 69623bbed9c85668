"""Rounds: when they open, whom they ask, when they close and why, and what becomes of every contribution."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.core_builders import LEASE_NS, MS, STEP_NS
from support.syncer_stage import SyncerStage, running
from unlockstep.core.actions import Announce, Commit, Release
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    FragmentCommitted,
    LearnerDeparted,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
)
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.messages import (
    Committed,
    ContributionArrived,
    EndRun,
    Published,
    Pull,
    Settled,
    Undelivered,
    VersionNotice,
)
from unlockstep.core.options import Late, Participation
from unlockstep.core.reasons import DepartureReason, RefusalReason, WindowReason


def first_round(*names: str, **changes: Any) -> SyncerStage:
    """Round 0 has just opened, at clock 2: K learners have taken the step it was due at, the others are one behind."""
    stage = running(*names, **changes)
    for name in names[: stage.options.quorum]:
        stage.step(name)
    assert [event.round for event in stage.of(RoundOpened)] == [0]
    return stage


def refusals(stage: SyncerStage) -> list[tuple[str, RefusalReason]]:
    return [(event.learner, event.reason) for event in stage.of(ContributionRefused)]


# ----------------------------------------------------------------------------------------------- a whole round


def test_a_round_from_its_opening_to_its_commit() -> None:
    stage = first_round("a", "b", "c")
    (opened,) = stage.of(RoundOpened)
    assert (opened.fragment, opened.clock, opened.live, opened.asked) == (0, 2, 3, ("a", "b", "c"))
    assert [stage.puppets[name].heard_of(Pull) for name in "abc"] == [[Pull(0, 0)]] * 3

    made = [stage.contribute(name) for name in "abc"]  # 30 tokens in 3 steps, 20 in 2, 20 in 2
    (closed,) = stage.of(RoundClosed)
    assert (closed.reason, closed.participants, closed.open_ns) == (WindowReason.EVERYONE_IN, ("a", "b", "c"), 0)
    (asked_for,) = stage.commits
    assert (asked_for.round, asked_for.fragment, asked_for.version) == (0, 0, 1)
    assert {share.learner: share.payloads for share in asked_for.shares} == {
        each.learner: (each.payload,) for each in made
    }

    stage.commit()
    assert stage.acted(Announce)[-1].message == Published(VersionNotice(0, 1, "digest-0-1"), clock=2)
    assert [stage.puppets[name].heard_of(Settled) for name in "abc"] == [[Settled(0, 0, late=False, refusal=None)]] * 3
    (committed,) = stage.of(FragmentCommitted)
    assert committed.weights == pytest.approx({"a": 3 / 7, "b": 2 / 7, "c": 2 / 7})
    assert committed.tokens == 30 + 20 + 20
    assert stage.versions == (1, 0)
    assert stage.released == {each.payload for each in made}
    assert stage.ledger.merged == 70 / 2
    assert stage.ledger.in_flight == 70 / 2  # of the other fragment


def test_a_commit_that_was_not_asked_for_is_a_bug_of_the_host() -> None:
    stage = first_round("a")
    with pytest.raises(LocalProtocolError, match="version 1 of round 0 was not asked for"):
        stage.tell(Committed(0, 0, 1, "digest", 1.0))
    stage.contribute("a")
    with pytest.raises(LocalProtocolError, match="version 2 of round 0 was not asked for"):
        stage.tell(Committed(0, 0, 2, "digest", 1.0))
    stage.commit()
    with pytest.raises(LocalProtocolError, match="version 2 of round 0 was not asked for"):
        stage.tell(Committed(0, 0, 2, "digest", 1.0))


# ----------------------------------------------------------------------------------------------- opening


def test_no_round_opens_before_it_is_due() -> None:
    assert running("a", "b").of(RoundOpened) == []


def test_a_round_waits_while_too_many_are_in_flight_and_those_after_it_slip() -> None:
    """tau * P / H = 1 round in flight: round 1, due at clock 4, opens when round 0 is committed."""
    stage = first_round("a")
    stage.contribute("a")
    for _ in range(5):
        stage.step("a")
    assert len(stage.of(RoundOpened)) == 1
    stage.commit()
    assert [(event.round, event.fragment, event.clock) for event in stage.of(RoundOpened)] == [(0, 0, 2), (1, 1, 7)]
    stage.contribute("a")
    stage.commit()
    stage.step("a")
    assert len(stage.of(RoundOpened)) == 2  # two steps after clock 7, not at once
    stage.step("a")
    assert stage.of(RoundOpened)[-1].clock == 9


def test_two_rounds_may_be_in_flight_for_two_fragments() -> None:
    stage = first_round("a", overlap_steps=4)
    stage.step("a")
    stage.step("a")
    assert [event.fragment for event in stage.of(RoundOpened)] == [0, 1]


def test_a_fragment_is_never_in_flight_twice() -> None:
    stage = first_round("a", "b", overlap_steps=4, quorum=2)
    for _ in range(10):
        stage.step("a")
        stage.step("b")
    assert [event.fragment for event in stage.of(RoundOpened)] == [0, 1]


def test_without_a_live_learner_no_round_opens() -> None:
    """C30"""
    stage = running("a")
    stage.disconnect("a")
    stage.wait(LEASE_NS)
    assert stage.of(RoundOpened) == []


# ----------------------------------------------------------------------------------------------- who takes part


def test_latest_asks_every_live_learner_with_a_step_on_the_fragment() -> None:
    assert first_round("a", "b").of(RoundOpened)[0].asked == ("a", "b")


def test_latest_neither_asks_nor_awaits_a_learner_with_nothing_to_give() -> None:
    stage = running("a", "b")
    stage.report("b", c_steps=(0, 2), c_tokens=(0, 20))
    stage.step("a")
    assert stage.of(RoundOpened)[0].asked == ("a",)
    stage.contribute("a")
    assert stage.of(RoundClosed)[0].reason is WindowReason.EVERYONE_IN


def test_latest_asks_a_learner_as_soon_as_it_has_something() -> None:
    stage = running("a", "b", quorum=2)
    stage.report("b", c_steps=(0, 2), c_tokens=(0, 20))
    stage.step("a")
    assert stage.puppets["b"].heard_of(Pull) == []
    stage.step("b")
    assert stage.puppets["b"].heard_of(Pull) == [Pull(0, 0)]


def test_fresh_asks_only_those_that_have_reached_the_step_it_is_due_at() -> None:
    stage = first_round("a", "b", participation=Participation.FRESH)
    assert stage.of(RoundOpened)[0].asked == ("a",)
    stage.step("b")
    assert stage.puppets["b"].heard_of(Pull) == [Pull(0, 0)]


def test_fresh_waits_in_grace_for_a_learner_that_is_behind() -> None:
    stage = first_round("a", "b", participation=Participation.FRESH)
    stage.contribute("a")
    assert stage.of(RoundClosed) == []
    stage.wait(30 * MS)
    stage.step("b")
    stage.contribute("b")
    (closed,) = stage.of(RoundClosed)
    assert (closed.reason, closed.participants, closed.open_ns) == (WindowReason.EVERYONE_IN, ("a", "b"), 30 * MS)


def test_nobody_is_asked_twice_for_one_round() -> None:
    stage = first_round("a", "b", quorum=2)
    for _ in range(3):
        stage.step("a")
        stage.heartbeat("b")
    assert stage.puppets["a"].heard_of(Pull) == [Pull(0, 0)]


def test_a_learner_that_is_loading_is_neither_asked_nor_awaited() -> None:
    """C26: one is ready after a second, the other compiles for a minute and a half."""
    stage = running("a")
    stage.join("b")
    stage.step("a")
    stage.contribute("a")
    assert stage.of(RoundOpened)[0].asked == ("a",)
    assert stage.of(RoundClosed)[0].reason is WindowReason.EVERYONE_IN
    for _ in range(30):
        stage.wait(3_000 * MS)
        stage.heartbeat("a")
        stage.heartbeat("b")
    assert stage.of(LearnerDeparted) == []


# ----------------------------------------------------------------------------------------------- quorum and grace


def test_a_round_waits_for_its_quorum_whatever_it_takes() -> None:
    stage = first_round("a", "b", quorum=2)
    stage.contribute("a")
    for _ in range(100):
        stage.wait(LEASE_NS // 2)
        stage.heartbeat("a")
        stage.heartbeat("b")
    assert stage.of(RoundClosed) == []
    (status,) = stage.core.status(stage.now_ns).rounds
    assert status.sentence == "waits for its quorum: 1 of 2 contributions are in"
    stage.contribute("b")
    (closed,) = stage.of(RoundClosed)
    assert closed.reason is WindowReason.EVERYONE_IN
    assert closed.quorum_ns == closed.open_ns == 100 * LEASE_NS // 2


def test_the_window_stays_open_for_a_late_learner() -> None:
    """grace = min(0.8 * (2 * 100 ms - 0), 100 ms)."""
    stage = first_round("a", "b", "c")
    stage.contribute("a")
    stage.wait(60 * MS)
    stage.contribute("b")
    stage.wait(39 * MS)
    assert stage.of(RoundClosed) == []
    stage.contribute("c")
    (closed,) = stage.of(RoundClosed)
    assert (closed.reason, closed.participants) == (WindowReason.EVERYONE_IN, ("a", "b", "c"))
    assert (closed.quorum_ns, closed.open_ns, closed.grace_ns) == (0, 99 * MS, 100 * MS)


def test_the_window_ends_by_the_clock_without_any_message() -> None:
    """C21"""
    stage = first_round("a", "b")
    stage.wait(20 * MS)
    stage.contribute("a")
    opened_ns = stage.of(RoundOpened)[0].at_ns
    assert stage.core.next_deadline_ns() == opened_ns + 20 * MS + 100 * MS
    stage.wait(LEASE_NS // 2)
    (closed,) = stage.of(RoundClosed)
    assert (closed.reason, closed.participants) == (WindowReason.GRACE_ENDED, ("a",))
    assert closed.sentence == "closes: grace of 0.1 s ended, 1 missing"
    assert closed.at_ns == opened_ns + 120 * MS
    assert [commit.round for commit in stage.commits] == [0]


def test_the_window_shrinks_by_what_quorum_and_commit_take() -> None:
    """grace = 0.8 * (2 * 100 ms - (80 ms + 0)), the averages being the first samples taken whole."""
    stage = first_round("a", "b")
    stage.wait(80 * MS)
    stage.contribute("a")
    assert stage.core.next_deadline_ns() - stage.now_ns == 0.8 * (200 - 80) * MS


def test_without_slack_the_round_closes_at_its_quorum() -> None:
    stage = first_round("a", "b", grace_factor=0)
    stage.contribute("a")
    assert stage.of(RoundClosed)[0].reason is WindowReason.NO_GRACE


def test_calling_too_early_closes_nothing() -> None:
    stage = first_round("a", "b")
    stage.contribute("a")
    stage.core.on_deadline(stage.now_ns + 99 * MS)
    assert [event for event in stage.core.take_events() if isinstance(event, RoundClosed)] == []


def test_a_learner_that_dies_is_no_longer_awaited() -> None:
    """C18: one of three is killed, quorum 1: the round ends with its grace, and the dead one leaves with its lease."""
    stage = first_round("a", "b", "c")
    silent_since_ns = stage.now_ns
    stage.contribute("a")
    stage.contribute("b")
    stage.wait(STEP_NS)
    assert stage.of(RoundClosed)[0].reason is WindowReason.GRACE_ENDED
    stage.commit()
    stage.wait(LEASE_NS - 2 * STEP_NS)
    stage.heartbeat("a")
    stage.heartbeat("b")
    stage.wait(2 * STEP_NS)
    (departed,) = stage.of(LearnerDeparted)
    assert (departed.learner, departed.reason) == ("c", DepartureReason.LEASE_EXPIRED)
    assert departed.at_ns <= silent_since_ns + LEASE_NS
    stage.step("a", clock=4)
    assert stage.of(RoundOpened)[-1].asked == ("a", "b")


def test_a_broken_connection_ends_the_waiting_at_once() -> None:
    stage = first_round("a", "b")
    stage.contribute("a")
    stage.disconnect("b")
    (closed,) = stage.of(RoundClosed)
    assert (closed.reason, closed.participants, closed.live) == (WindowReason.EVERYONE_IN, ("a",), 1)


def test_a_learner_that_is_back_is_asked_again() -> None:
    stage = first_round("a", "b", quorum=2)
    stage.disconnect("b")
    stage.join("b", incarnation=1)
    assert stage.puppets["b"].heard_of(Pull) == [Pull(0, 0)]
    stage.step("b")
    assert stage.puppets["b"].heard_of(Pull) == [Pull(0, 0), Pull(0, 0)]


def test_what_a_learner_gave_before_it_died_still_counts() -> None:
    stage = first_round("a", "b", quorum=2)
    stage.contribute("a")
    stage.disconnect("a")
    stage.contribute("b")
    (closed,) = stage.of(RoundClosed)
    assert closed.participants == ("a", "b")


def test_with_nobody_left_the_round_says_so_and_waits_without_a_deadline() -> None:
    """C30"""
    stage = first_round("a", "b", quorum=2)
    stage.contribute("a")
    stage.wait(2 * LEASE_NS)
    assert stage.core.next_deadline_ns() == NEVER_NS
    (status,) = stage.core.status(stage.now_ns).rounds
    assert status.sentence == "1 of 2 contributions are in and no learner is alive"


# ----------------------------------------------------------------------------------------------- zero tokens


def test_a_round_without_a_single_token_commits_nothing() -> None:
    """C3"""
    stage = first_round("a", "b")
    made = [stage.contribute(name, c_tokens=0) for name in "ab"]
    assert [event.round for event in stage.of(RoundEmpty)] == [0]
    assert stage.acted(Commit) == []
    assert stage.versions == (0, 0)
    assert stage.released == {each.payload for each in made}
    stage.step("a", clock=4)
    assert stage.of(RoundOpened)[-1].fragment == 1  # the rotation goes on


def test_a_learner_without_tokens_changes_nothing_for_the_others() -> None:
    """C3"""
    stage = first_round("a", "b")
    stage.contribute("a", c_tokens=0)
    normal = stage.contribute("b")
    (share,) = stage.commits[0].shares
    assert (share.learner, share.weight, share.payloads) == ("b", 1.0, (normal.payload,))
    stage.commit()
    assert stage.of(FragmentCommitted)[0].weights == {"b": 1.0}


# ----------------------------------------------------------------------------------------------- late


def missed_round(**changes: Any) -> tuple[SyncerStage, ContributionArrived]:
    """Round 0 has closed without ``b``, whose upload is still on its way."""
    stage = first_round("a", "b", **changes)
    late = stage.hand_over("b")
    stage.contribute("a")
    stage.wait(STEP_NS)
    assert stage.of(RoundClosed)[0].participants == ("a",)
    return stage, late


@pytest.mark.parametrize("committed", [False, True], ids=["while it commits", "after its commit"])
def test_a_late_contribution_counts_in_the_next_round_of_its_fragment(committed: bool) -> None:
    stage, late = missed_round()
    if committed:
        stage.commit()
    stage.tell(late)
    assert stage.of(ContributionAccepted)[-1].late
    assert late.payload not in stage.released
    stage.commit()
    for clock in (4, 6):  # round 1 of fragment 1, then round 2 of fragment 0
        stage.step("a", clock=clock)
        stage.contribute("a")
        stage.wait(STEP_NS)
        stage.commit()
    committed_events = stage.of(FragmentCommitted)
    assert [event.round for event in committed_events] == [0, 1, 2]
    assert set(committed_events[1].weights) == {"a"}
    assert set(committed_events[2].weights) == {"a", "b"}
    assert Settled(0, 0, late=True, refusal=None) in stage.puppets["b"].heard
    assert stage.ledger.merged_late == late.c_tokens / 2


def test_a_late_contribution_neither_makes_a_quorum_nor_ends_the_waiting() -> None:
    stage, late = missed_round()
    stage.tell(late)
    stage.commit()
    stage.step("a", clock=4)
    stage.contribute("a")
    stage.wait(STEP_NS)
    stage.commit()
    stage.step("a", clock=6)
    stage.step("b", clock=6)
    assert stage.of(RoundOpened)[-1].round == 2
    assert len(stage.of(RoundClosed)) == 2
    stage.contribute("a", round=2)
    assert len(stage.of(RoundClosed)) == 2  # b has new progress and is waited for
    stage.contribute("b", round=2)
    assert stage.of(RoundClosed)[-1].participants == ("a", "b")
    shares = {share.learner: len(share.payloads) for share in stage.commits[-1].shares}
    assert shares == {"a": 1, "b": 2}


def test_a_late_contribution_joins_the_round_that_is_open_for_its_fragment() -> None:
    stage, late = missed_round()
    stage.commit()
    stage.step("a", clock=4)
    stage.contribute("a")
    stage.wait(STEP_NS)
    stage.commit()
    stage.step("a", clock=6)
    stage.tell(late)
    stage.contribute("a")
    stage.wait(STEP_NS)
    assert {share.learner for share in stage.commits[-1].shares} == {"a", "b"}


def test_late_contributions_are_refused_where_the_run_says_so() -> None:
    stage, late = missed_round(late=Late.DROP)
    stage.tell(late)
    assert refusals(stage) == [("b", RefusalReason.LATE)]
    assert stage.puppets["b"].heard[-1] == Settled(0, 0, late=False, refusal=RefusalReason.LATE)
    assert late.payload in stage.released
    assert stage.ledger.refused == {"late": late.c_tokens / 2}


# ----------------------------------------------------------------------------------------------- refused


def test_the_same_contribution_counts_once_while_its_round_is_open() -> None:
    stage = first_round("a", "b", quorum=2)
    made = stage.contribute("a")
    stage.tell(made)
    assert refusals(stage) == [("a", RefusalReason.DUPLICATE)]
    stage.contribute("b")
    (share, _) = stage.commits[0].shares
    assert share.payloads == (made.payload,)
    stage.commit()
    assert stage.ledger.in_flight == (30 + 30) / 2  # of the other fragment: the duplicate is in no account


@pytest.mark.parametrize("committed", [False, True])
def test_the_same_contribution_counts_once_after_its_round_has_closed(committed: bool) -> None:
    """C37"""
    stage = first_round("a")
    made = stage.contribute("a")
    if committed:
        stage.commit()
    stage.tell(made)
    assert refusals(stage) == [("a", RefusalReason.DUPLICATE)]
    assert stage.ledger.refused == {}


@pytest.mark.parametrize("first", ["merged", "refused"])
@pytest.mark.parametrize("gone", ["left", "silent"])
def test_the_same_contribution_counts_once_even_if_its_learner_is_gone(first: str, gone: str) -> None:
    stage = first_round("a", "b")
    made = stage.hand_over("b")
    if first == "merged":
        stage.tell(made)
    if gone == "left":
        stage.leave("b")
    else:
        stage.disconnect("b")
        stage.wait(LEASE_NS - STEP_NS)
        stage.heartbeat("a")
        stage.wait(STEP_NS)
    before = stage.ledger if first == "merged" else None
    stage.tell(made)
    before = before or stage.ledger
    stage.tell(made)
    assert stage.ledger == before
    assert stage.ledger.in_flight >= 30  # what a holds is still there


def test_a_late_contribution_that_comes_twice_counts_once() -> None:
    stage, late = missed_round()
    stage.tell(late)
    stage.tell(late)
    assert refusals(stage) == [("b", RefusalReason.DUPLICATE)]


@pytest.mark.parametrize(
    ("round", "fragment"), [(7, 1), (10**9, 0), (0, 1)], ids=["not opened", "far ahead", "of another fragment"]
)
def test_a_round_that_does_not_exist_takes_nothing(round: int, fragment: int) -> None:
    stage = first_round("a", "b")
    stage.contribute("a", round=0)
    made = stage.hand_over("b", round=0)
    stage.tell(msgspec.structs.replace(made, round=round, fragment=fragment))
    assert refusals(stage) == [("b", RefusalReason.UNKNOWN_ROUND)]


def test_a_closed_round_takes_nothing_for_another_fragment() -> None:
    stage, _ = missed_round()
    stage.commit()
    stage.contribute("b", round=0, fragment=1)
    assert refusals(stage) == [("b", RefusalReason.UNKNOWN_ROUND)]


@pytest.mark.parametrize("base_version", [1, 5, -1])
def test_a_base_that_never_existed_is_refused(base_version: int) -> None:
    stage = first_round("a", "b")
    stage.contribute("b", base_version=base_version)
    assert refusals(stage) == [("b", RefusalReason.STALE_BASE)]


@pytest.mark.parametrize(("behind", "refused"), [(2, False), (3, True)])
def test_a_base_may_be_so_many_versions_behind_and_no_more(behind: int, refused: bool) -> None:
    stage = running("a", "b", fragments=1, interval_steps=2, staleness_max=2)
    for clock in range(2, 2 + 2 * behind, 2):
        stage.step("a", clock=clock)
        stage.contribute("a")
        stage.wait(STEP_NS)
        stage.commit()
    assert stage.versions == (behind,)
    stage.step("a", clock=2 + 2 * behind)
    stage.contribute("b", base_version=0)
    assert (refusals(stage) == [("b", RefusalReason.STALE_BASE)]) is refused
    if not refused:
        assert stage.of(ContributionAccepted)[-1].staleness == behind


@pytest.mark.parametrize(
    "defect",
    [
        RefusalReason.NON_FINITE,
        RefusalReason.WRONG_SIZE,
        RefusalReason.MALFORMED,
        RefusalReason.ABSURD_NORM,
        RefusalReason.BAD_COUNTS,
    ],
)
def test_a_defective_contribution_is_refused_and_the_others_are_merged(defect: RefusalReason) -> None:
    """C9"""
    stage = first_round("a", "b", "c")
    stage.contribute("a")
    stage.contribute("b", defect=defect, payload=-1)
    stage.contribute("c")
    (refused,) = stage.of(ContributionRefused)
    assert (refused.learner, refused.reason, refused.strikes, refused.c_tokens) == ("b", defect, 1, 20)
    assert stage.puppets["b"].heard[-1] == Settled(0, 0, late=False, refusal=defect)
    assert stage.of(RoundClosed)[0].participants == ("a", "c")
    assert stage.of(RoundClosed)[0].reason is WindowReason.EVERYONE_IN
    status = stage.core.status(stage.now_ns)
    assert status.refusals == {defect.value: 1}
    assert status.ledger.refused == {defect.value: 20 / 2}
    assert -1 not in stage.released


def test_a_body_damaged_on_the_way_does_not_speak_against_the_learner() -> None:
    stage = first_round("a", "b")
    stage.contribute("b", defect=RefusalReason.DIGEST_MISMATCH, payload=-1)
    assert stage.of(ContributionRefused)[0].strikes == 0


@pytest.mark.parametrize(
    "counts",
    [{"c_tokens": -5}, {"c_steps": 0}, {"c_steps": -1}, {"c_tokens": 21}, {"c_tokens": 10**30}],
    ids=["negative tokens", "no steps", "negative steps", "more than it has trained", "absurd"],
)
def test_counts_that_cannot_be_are_refused(counts: dict[str, int]) -> None:
    """C9"""
    stage = first_round("a", "b")
    stage.contribute("b", **counts)
    assert refusals(stage) == [("b", RefusalReason.BAD_COUNTS)]
    assert stage.of(ContributionRefused)[0].strikes == 1


def test_a_refused_learner_is_asked_again_when_it_has_new_progress() -> None:
    stage = first_round("a", "b", quorum=2)
    stage.contribute("b", defect=RefusalReason.NON_FINITE, payload=-1)
    assert len(stage.puppets["b"].heard_of(Pull)) == 1
    stage.step("b")
    assert stage.puppets["b"].heard_of(Pull) == [Pull(0, 0), Pull(0, 0)]


def test_an_upload_that_failed_is_asked_for_again() -> None:
    """One learner, quorum 1: without this the round would wait for ever for what will never come."""
    stage = first_round("a")
    lost = stage.hand_over("a")
    stage.step("a", undelivered=(Undelivered(lost.round, lost.fragment, lost.c_tokens, lost.tokens),))
    assert stage.puppets["a"].heard_of(Pull) == [Pull(0, 0), Pull(0, 0)]
    stage.contribute("a")
    stage.commit()
    assert stage.versions == (1, 0)
    assert stage.ledger.dropped == lost.c_tokens / 2


@pytest.mark.parametrize("closed", [False, True])
def test_an_upload_that_arrived_although_its_sender_does_not_know_counts_once(closed: bool) -> None:
    stage = first_round("a", "b", quorum=2)
    made = stage.contribute("a")
    if closed:
        stage.contribute("b")
    stage.step("a", undelivered=(Undelivered(made.round, made.fragment, made.c_tokens, made.tokens),))
    assert stage.ledger.dropped == 0


def test_progress_reported_while_an_upload_is_on_its_way_is_not_forgotten_when_it_arrives() -> None:
    """A slow upload: by the time it is here, the learner has told of a step that came after the hand-over."""
    stage = first_round("a", fragments=1, interval_steps=2)
    slow = stage.hand_over("a")
    stage.step("a")
    stage.tell(slow)
    stage.commit()
    stage.step("a", clock=4)
    assert stage.of(RoundOpened)[-1].asked == ("a",)
    stage.contribute("a")
    stage.commit()
    assert stage.ledger.in_flight == 0


def test_a_report_overtaken_by_an_upload_does_not_bring_back_what_has_arrived() -> None:
    """Bodies and messages travel apart: the report of the boundary before the hand-over comes after the body."""
    stage = running("a", "b", quorum=2)
    puppet = stage.puppets["b"]
    stage.step("a")
    stage.step("b")
    before = {"c_steps": tuple(puppet.c_steps), "c_tokens": tuple(puppet.c_tokens)}
    stage.contribute("b")
    stage.report("b", **before)
    stage.contribute("a")
    stage.commit()
    stage.tell(EndRun("enough"))
    stage.report("b", last=True, **before)
    stage.step("a", clock=2, last=True)
    assert [(event.fragment, event.asked) for event in stage.of(RoundOpened)[1:]] == [(1, ("a", "b"))]
    stage.contribute("a")
    stage.contribute("b")
    stage.commit()
    assert [(event.fragment, event.asked) for event in stage.of(RoundOpened)[2:]] == [(0, ("a",))]
    stage.contribute("a")
    stage.commit()
    assert stage.ledger.in_flight == 0


# ----------------------------------------------------------------------------------------------- limits


def test_the_memory_of_closed_rounds_may_be_shorter_than_the_rounds_in_flight() -> None:
    stage = first_round("a", "b", overlap_steps=4, closed_rounds_max=1)
    late = stage.hand_over("b")
    stage.contribute("a")
    stage.wait(STEP_NS)
    stage.step("a", clock=4)
    stage.contribute("a", round=1)
    stage.contribute("b", round=1)
    assert [event.round for event in stage.of(RoundClosed)] == [0, 1]
    stage.tell(late)  # round 0 commits and is out of memory
    stage.commit()
    assert len(stage.of(ContributionRefused)) + len([e for e in stage.of(ContributionAccepted) if e.late]) == 1


def test_beyond_the_memory_of_closed_rounds_a_contribution_is_of_an_unknown_round() -> None:
    """Remembered are ``closed_rounds_max`` rounds beside those in flight."""
    stage, late = missed_round(closed_rounds_max=1)
    stage.commit()
    for clock in (4, 6):
        assert refusals(stage) == []
        stage.step("a", clock=clock)
        stage.contribute("a")
        stage.wait(STEP_NS)
        stage.commit()
    stage.tell(late)
    assert refusals(stage) == [("b", RefusalReason.UNKNOWN_ROUND)]


def test_every_contribution_is_released_once() -> None:
    stage, late = missed_round()
    stage.tell(late)
    stage.commit()
    for clock in (4, 6):
        stage.step("a", clock=clock)
        stage.contribute("a")
        stage.wait(STEP_NS)
        stage.commit()
    payloads = [action.payload for action in stage.acted(Release)]
    assert sorted(payloads) == sorted(set(payloads)) == list(range(4))

"""What becomes of a contribution: merged, merged late, refused, and entered once whatever happens."""

from __future__ import annotations

import msgspec
import pytest

from support.core_builders import LEASE_NS, STEP_NS
from support.syncer_stage import first_round, missed_round, running
from unlockstep.core.actions import Release
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    FragmentCommitted,
    RoundClosed,
    RoundOpened,
)
from unlockstep.core.messages import (
    EndRun,
    Pull,
    Settled,
    Undelivered,
)
from unlockstep.core.options import Late
from unlockstep.core.reasons import RefusalReason, WindowReason
from unlockstep.core.run_states import RunState

# ----------------------------------------------------------------------------------------------- late


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
    assert Settled(0, 0, late.tokens, late=True, refusal=None) in stage.puppets["b"].heard
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
    assert stage.refusals == [("b", RefusalReason.LATE)]
    assert stage.puppets["b"].heard[-1] == Settled(0, 0, late.tokens, late=False, refusal=RefusalReason.LATE)
    assert late.payload in stage.released
    assert stage.ledger.refused == {"late": late.c_tokens / 2}


# ----------------------------------------------------------------------------------------------- refused


def test_the_same_contribution_counts_once_while_its_round_is_open() -> None:
    stage = first_round("a", "b", quorum=2)
    made = stage.contribute("a")
    stage.tell(made)
    assert stage.refusals == [("a", RefusalReason.DUPLICATE)]
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
    assert stage.refusals == [("a", RefusalReason.DUPLICATE)]
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
    assert stage.refusals == [("b", RefusalReason.DUPLICATE)]


@pytest.mark.parametrize(
    ("round", "fragment"), [(7, 1), (10**9, 0), (0, 1)], ids=["not opened", "far ahead", "of another fragment"]
)
def test_a_round_that_does_not_exist_takes_nothing(round: int, fragment: int) -> None:
    stage = first_round("a", "b")
    stage.contribute("a", round=0)
    made = stage.hand_over("b", round=0)
    stage.tell(msgspec.structs.replace(made, round=round, fragment=fragment))
    assert stage.refusals == [("b", RefusalReason.UNKNOWN_ROUND)]


def test_a_closed_round_takes_nothing_for_another_fragment() -> None:
    stage, _ = missed_round()
    stage.commit()
    stage.contribute("b", round=0, fragment=1)
    assert stage.refusals == [("b", RefusalReason.UNKNOWN_ROUND)]


@pytest.mark.parametrize("base_version", [1, 5, -1])
def test_a_base_that_never_existed_is_refused(base_version: int) -> None:
    stage = first_round("a", "b")
    stage.contribute("b", base_version=base_version)
    assert stage.refusals == [("b", RefusalReason.STALE_BASE)]


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
    assert (stage.refusals == [("b", RefusalReason.STALE_BASE)]) is refused
    if not refused:
        assert stage.of(ContributionAccepted)[-1].staleness == behind


def test_who_was_away_for_long_is_too_old_and_not_absurd() -> None:
    """A learner that was cut off has moved far from everybody on a version nobody has any more: no strike for that."""
    stage = running("a", "b", fragments=1, interval_steps=2, staleness_max=0, strikes_max=1)
    stage.step("a", clock=2)
    stage.contribute("a")
    stage.wait(STEP_NS)
    stage.commit()
    stage.step("a", clock=4)
    stage.contribute("b", base_version=0, defect=RefusalReason.ABSURD_NORM, payload=-1)
    assert stage.refusals == [("b", RefusalReason.STALE_BASE)]
    assert stage.of(ContributionRefused)[0].strikes == 0 and stage.departures == []


@pytest.mark.parametrize(
    "defect",
    [
        RefusalReason.NON_FINITE,
        RefusalReason.WRONG_SIZE,
        RefusalReason.MALFORMED,
        RefusalReason.ABSURD_NORM,
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
    assert stage.puppets["b"].heard[-1] == Settled(0, 0, refused.tokens, late=False, refusal=defect)
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
    assert stage.refusals == [("b", RefusalReason.BAD_COUNTS)]
    assert stage.of(ContributionRefused)[0].strikes == 1


def test_counts_that_are_refused_are_not_believed() -> None:
    """The storehouse found them absurd: they neither end the run nor enter the books. Without a fate the tokens stay in
    flight."""
    stage = first_round("a", "b", tokens_max=10**6)
    stage.contribute("b", c_tokens=2**40, tokens=2**40, defect=RefusalReason.BAD_COUNTS, payload=-1)
    ledger = stage.core.status(stage.now_ns).ledger
    assert (ledger.trained, ledger.refused) == (50, {})  # as they have reported
    assert stage.core.state is RunState.RUNNING


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
    """Remembered are ``closed_rounds_max`` rounds and P more. Its tokens stay with the learner: it can have counted."""
    stage, late = missed_round(closed_rounds_max=1)
    stage.commit()
    for clock in (4, 6, 8):
        stage.step("a", clock=clock)
        stage.contribute("a")
        stage.wait(STEP_NS)
        stage.commit()
    before = stage.ledger
    stage.tell(late)
    assert stage.refusals == [("b", RefusalReason.UNKNOWN_ROUND)]
    assert stage.ledger == before


def test_an_upload_repeated_after_its_round_is_forgotten_is_not_entered_again() -> None:
    stage = first_round("a", closed_rounds_max=1)
    made = stage.contribute("a")
    stage.commit()
    for clock in (4, 6, 8):
        stage.step("a", clock=clock)
        stage.contribute("a")
        stage.commit()
    before = stage.ledger
    stage.tell(msgspec.structs.replace(made, payload=99))
    assert stage.ledger == before


def test_a_round_that_is_open_is_not_forgotten_however_many_come_and_go() -> None:
    """P - 1 of them do: the one after has its fragment."""
    stage = first_round("a", fragments=6, interval_steps=12, overlap_steps=4, closed_rounds_max=1)
    first = stage.hand_over("a", round=0)
    for number in range(1, 6):
        stage.step("a", clock=2 + 2 * number)
        stage.contribute("a", round=number)
        stage.commit()
    assert [event.round for event in stage.of(FragmentCommitted)] == [1, 2, 3, 4, 5]
    stage.tell(first)
    assert stage.refusals == []
    stage.commit()
    assert [event.round for event in stage.of(FragmentCommitted)] == [1, 2, 3, 4, 5, 0]


def test_an_upload_of_who_has_left_may_tell_of_steps_that_it_had_not_reported() -> None:
    stage = first_round("a", "b", lease_s=1.0)
    puppet = stage.puppets["b"]
    puppet.tokens += 10
    puppet.c_tokens = [count + 10 for count in puppet.c_tokens]
    made = stage.hand_over("b")
    stage.leave("b")
    stage.tell(made)
    assert stage.refusals == [("b", RefusalReason.LEFT)]
    ledger = stage.ledger
    assert ledger.trained == 30 + 30
    assert ledger.refused == {"left": made.c_tokens / 2}
    assert (ledger.dropped, ledger.lost) == (30 / 2, 0)


def test_an_upload_of_a_dead_process_counts_for_nothing_until_it_is_back() -> None:
    stage = first_round("a", "b", lease_s=1.0)
    puppet = stage.puppets["b"]
    puppet.tokens += 10
    puppet.c_tokens = [count + 10 for count in puppet.c_tokens]
    made = stage.hand_over("b")
    for _ in range(2):
        stage.wait(LEASE_NS // 20)
        stage.heartbeat("a")
    assert [name for name, _ in stage.departures] == ["b"]
    before = stage.ledger
    stage.tell(made)
    assert stage.refusals == [("b", RefusalReason.STALE_INCARNATION)]
    assert stage.ledger == before and before.lost == before.trained - 30
    stage.join("b", incarnation=1)
    stage.tell(msgspec.structs.replace(made, incarnation=2))
    ledger = stage.ledger
    assert (ledger.trained, ledger.lost, ledger.refused) == (before.trained + 10, 0, {})


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

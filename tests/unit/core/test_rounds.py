"""Rounds: when they open, whom they ask, when they close and why."""

from __future__ import annotations

import pytest

from support.core_builders import LEASE_NS, MS, STEP_NS
from support.syncer_stage import first_round, running
from unlockstep.core.actions import Announce, Commit
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.events import (
    FragmentCommitted,
    LearnerDeparted,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
)
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.messages import (
    Committed,
    Published,
    Pull,
    Settled,
    VersionNotice,
)
from unlockstep.core.options import Participation
from unlockstep.core.reasons import DepartureReason, WindowReason

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
    assert [stage.puppets[name].heard_of(Settled) for name in "abc"] == [
        [Settled(0, 0, each.tokens, late=False, refusal=None)] for each in made
    ]
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


def test_the_status_says_which_round_comes_next_and_when_it_is_due() -> None:
    stage = running("a", "b")
    coming = stage.core.status(stage.now_ns).round_next
    assert (coming.round, coming.fragment, coming.due_clock) == (0, 0, 2)
    stage.step("a")
    coming = stage.core.status(stage.now_ns).round_next
    assert (coming.round, coming.fragment, coming.due_clock) == (1, 1, 4)


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

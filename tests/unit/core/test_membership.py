"""Who is a learner, which start of it counts, how long it is believed to be alive, and what time it is."""

from __future__ import annotations

import itertools

import pytest

from support.core_builders import LEASE_NS, MS, STEP_NS, options
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND as SECOND_NS
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.membership import MOVES, PRESENT, Member, MemberMove, Membership, MemberState


def joined(*names: str, quorum: int = 1) -> Membership:
    members = Membership(options(quorum=quorum))
    for name in names:
        members.join(name, now_ns=0)
    return members


def live(clocks: dict[str, int], quorum: int = 1) -> Membership:
    members = joined(*clocks, quorum=quorum)
    for name, clock in clocks.items():
        tick(members, name, clock)
    return members


def tick(members: Membership, name: str, clock: int) -> None:
    member = members.get(name)
    assert member is not None
    member.move(MemberMove.STEP)
    member.clock = clock
    members.advance_clock()


# ----------------------------------------------------------------------------------------------- the state table


@pytest.mark.parametrize(("state", "move"), list(itertools.product(MemberState, MemberMove)))
def test_every_move_is_listed_or_a_bug(state: MemberState, move: MemberMove) -> None:
    member = Member("a", 2, 0.25)
    member.state = state
    if move in MOVES[state]:
        member.move(move)
        assert member.state is MOVES[state][move]
    else:
        with pytest.raises(LocalProtocolError, match=f"learner a cannot {move.value} while it is {state.value}"):
            member.move(move)
        assert member.state is state


def test_every_state_is_in_the_table_and_reachable_from_joining() -> None:
    assert set(MOVES) == set(MemberState)
    reached = {MemberState.JOINING}
    for _ in MemberState:
        reached |= {target for state in reached for target in MOVES[state].values()}
    assert reached == set(MemberState)


def test_nothing_is_final() -> None:
    """C9: how long a quarantine lasts is a matter of time, see ``out_until_ns``."""
    assert all(MOVES.values())
    assert MOVES[MemberState.QUARANTINED] == {MemberMove.JOIN: MemberState.JOINING}


def test_every_quarantine_is_twice_as_long_up_to_a_maximum() -> None:
    """C9"""
    protocol = options(quarantine_s=60, quarantine_s_max=200)
    assert [protocol.quarantine_ns(times) // SECOND_NS for times in (1, 2, 3, 4, 10_000)] == [60, 120, 200, 200, 200]
    assert options(quarantine_s=0).quarantine_ns(1) == NEVER_NS


def test_a_quarantine_is_remembered_by_the_next_life_of_the_syncer() -> None:
    """C9, C25"""
    members = Membership(options(quarantine_s=60))
    member = members.join("a", 0)
    assert members.quarantine(member, 5 * SECOND_NS) == 60 * SECOND_NS
    others = Membership(options(quarantine_s=60))
    others.restore(members.saved(), 0, 20 * SECOND_NS)
    again = others.get("a")
    assert again is not None
    assert (again.state, others.retry_ns(again, 20 * SECOND_NS)) == (MemberState.QUARANTINED, 45 * SECOND_NS)
    again = others.join("a", 65 * SECOND_NS)
    assert (again.incarnation, again.strikes) == (2, 0)
    assert others.quarantine(again, 70 * SECOND_NS) == 120 * SECOND_NS


def test_whoever_holds_a_lease_can_lose_it() -> None:
    for state in PRESENT:
        assert MOVES[state][MemberMove.DEPART] is MemberState.GONE


# ----------------------------------------------------------------------------------------------- incarnations


def test_every_process_of_a_learner_gets_its_own_incarnation() -> None:
    members = joined("a")
    first = members.get("a")
    assert first is not None
    first.move(MemberMove.DEPART)
    assert members.join("a", now_ns=5).incarnation == 2
    assert members.current("a", 1) is None
    assert members.current("a", 2) is first


def test_a_new_process_starts_counting_anew_and_remembers_what_came_before() -> None:
    members = joined("a")
    member = members.get("a")
    assert member is not None
    member.steps, member.last, member.c_steps, member.c_tokens = 7, True, (3, 4), (30, 40)
    assert member.count_tokens(70) == 70
    member.move(MemberMove.DEPART)
    members.join("a", now_ns=5)
    assert (member.steps, member.steps_before, member.tokens, member.tokens_before) == (0, 7, 0, 70)
    assert (member.c_steps, member.c_tokens, member.last) == ((0, 0), (0, 0), False)
    assert member.count_tokens(10) == 80


def test_a_process_that_comes_back_keeps_its_counts_under_a_new_incarnation() -> None:
    """C19"""
    members = joined("a")
    member = members.get("a")
    assert member is not None
    member.steps, member.c_steps = 7, (3, 4)
    member.move(MemberMove.DEPART)
    member.come_back(now_ns=9)
    assert (member.incarnation, member.steps, member.steps_before, member.c_steps) == (2, 7, 0, (3, 4))
    assert [member.owns(incarnation) for incarnation in (0, 1, 2, 3)] == [False, True, True, False]


def test_a_new_process_does_not_own_what_an_earlier_one_sent() -> None:
    members = joined("a")
    member = members.get("a")
    assert member is not None
    member.move(MemberMove.DEPART)
    members.join("a", now_ns=5)
    assert [member.owns(incarnation) for incarnation in (1, 2)] == [False, True]


def test_nobody_else_and_no_departed_learner_is_current() -> None:
    members = joined("a")
    assert members.current("b", 1) is None
    assert members.current("a", 0) is None
    member = members.get("a")
    assert member is not None
    member.move(MemberMove.DEPART)
    assert members.current("a", 1) is None


def test_an_older_count_that_arrives_later_changes_nothing() -> None:
    member = Member("a", 2, 0.25)
    assert member.count_tokens(50) == 50
    assert member.count_tokens(40) == 50


# ----------------------------------------------------------------------------------------------- leases


def test_a_lease_ends_exactly_after_its_length() -> None:
    """C18"""
    members = joined("a")
    assert members.next_expiry_ns() == LEASE_NS
    assert members.expired(LEASE_NS - 1) == []
    assert [member.learner for member in members.expired(LEASE_NS)] == ["a"]


def test_the_next_lease_to_end_is_that_of_the_learner_silent_for_longest() -> None:
    members = joined("a", "b")
    member = members.get("a")
    assert member is not None
    member.heard_ns = 300 * MS
    assert members.next_expiry_ns() == LEASE_NS
    member = members.get("b")
    assert member is not None
    member.heard_ns = 500 * MS
    assert members.next_expiry_ns() == 300 * MS + LEASE_NS


def test_without_anybody_no_lease_ends() -> None:
    """C30"""
    assert Membership(options()).next_expiry_ns() == NEVER_NS


# ----------------------------------------------------------------------------------------------- the clock


@pytest.mark.parametrize(("quorum", "expected"), [(1, 9), (2, 7), (3, 4)])
def test_the_clock_is_the_kth_highest_of_the_live(quorum: int, expected: int) -> None:
    assert live({"a": 4, "b": 9, "c": 7}, quorum).clock == expected


def test_the_clock_does_not_follow_learners_that_are_loading() -> None:
    members = joined("a", "b")
    member = members.get("a")
    assert member is not None
    member.clock = 50
    members.advance_clock()
    assert members.clock == 0


def test_the_clock_stands_while_fewer_than_k_are_live() -> None:
    members = live({"a": 4, "b": 9}, quorum=2)
    member = members.get("b")
    assert member is not None
    member.move(MemberMove.DEPART)
    tick(members, "a", 20)
    assert members.clock == 4


def test_the_clock_never_goes_back() -> None:
    members = live({"a": 4, "b": 9})
    member = members.get("b")
    assert member is not None
    member.move(MemberMove.DEPART)
    tick(members, "a", 5)
    assert members.clock == 9
    tick(members, "a", 10)
    assert members.clock == 10


def test_a_new_learner_starts_at_the_present_clock() -> None:
    assert live({"a": 9}).join("b", now_ns=0).clock == 9


# ----------------------------------------------------------------------------------------------- the step time


def with_step_times(*times_ns: int | None) -> Membership:
    members = live({f"learner-{number}": 1 for number in range(len(times_ns))})
    for member, time_ns in zip(members, times_ns, strict=True):
        if time_ns is not None:
            member.step_average.add(time_ns)
    return members


@pytest.mark.parametrize(
    ("times_ms", "expected_ms"), [([100], 100), ([100, 300], 100), ([100, 120, 900], 120), ([1, 2, 3, 4], 2)]
)
def test_a_step_takes_as_long_as_the_median_learner_needs(times_ms: list[int], expected_ms: int) -> None:
    assert with_step_times(*(time * MS for time in times_ms)).step_ns() == expected_ms * MS


def test_a_learner_whose_step_time_is_not_known_yet_does_not_count() -> None:
    """One veteran and one newcomer: the grace window must not shrink to nothing."""
    assert with_step_times(STEP_NS, None).step_ns() == STEP_NS


def test_without_any_sample_the_step_time_is_unknown() -> None:
    assert with_step_times(None).step_ns() == 0
    assert Membership(options()).step_ns() == 0


def test_members_come_in_ascending_name_whoever_joined_first() -> None:
    assert [member.learner for member in joined("c", "a", "b")] == ["a", "b", "c"]

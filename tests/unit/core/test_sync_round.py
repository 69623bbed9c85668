"""One round: its life, its order, and how contributions become shares of a merge."""

from __future__ import annotations

import itertools
import random

import pytest

from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.sync_round import MOVES, Held, RoundMemory, RoundMove, RoundState, SyncRound


def held(learner: str, c_steps: int = 10, c_tokens: int = 100, round: int = 4, incarnation: int = 1) -> Held:
    return Held(
        learner=learner,
        incarnation=incarnation,
        round=round,
        fragment=0,
        base_version=3,
        c_steps=c_steps,
        c_tokens=c_tokens,
        tokens=100 * round,
        payload=1000 * round + 10 * ord(learner[0]) + incarnation,
        process=1,
    )


def collecting(*contributions: Held, late: tuple[Held, ...] = (), round: int = 4) -> SyncRound:
    made = SyncRound(round, 0, clock=8, opened_ns=0, late=list(late))
    made.contributions = {contribution.learner: contribution for contribution in contributions}
    return made


# ----------------------------------------------------------------------------------------------- the state table


@pytest.mark.parametrize(("state", "move"), list(itertools.product(RoundState, RoundMove)))
def test_every_move_is_listed_or_a_bug(state: RoundState, move: RoundMove) -> None:
    made = collecting()
    made.state = state
    if move in MOVES[state]:
        made.move(move)
        assert made.state is MOVES[state][move]
    else:
        with pytest.raises(LocalProtocolError, match=f"round 4 cannot {move.value} while it is {state.value}"):
            made.move(move)
        assert made.state is state


def test_every_state_is_in_the_table_and_reachable_from_open() -> None:
    assert set(MOVES) == set(RoundState)
    reached = {RoundState.OPEN}
    for _ in RoundState:
        reached |= {target for state in reached for target in MOVES[state].values()}
    assert reached == set(RoundState)


def test_committed_and_empty_are_final() -> None:
    assert [state for state, moves in MOVES.items() if not moves] == [RoundState.COMMITTED, RoundState.EMPTY]


# ----------------------------------------------------------------------------------------------- shares


def test_weights_are_tokens_squared_over_steps_and_sum_to_one() -> None:
    """C2"""
    shares = collecting(held("a", 10, 100), held("b", 10, 300)).shares()
    assert [(share.learner, share.weight) for share in shares] == [("a", 1000 / 10000), ("b", 9000 / 10000)]


def test_order_is_by_learner_whoever_came_first() -> None:
    """C2"""
    contributions = [held(name) for name in "abcde"]
    expected = collecting(*contributions).shares()
    for seed in range(5):
        random.Random(seed).shuffle(contributions)
        assert collecting(*contributions).shares() == expected
    assert [share.learner for share in expected] == list("abcde")


def test_nobody_with_weight_means_nothing_to_commit() -> None:
    """C3"""
    assert collecting(held("a", 3, 0), held("b", 5, 0)).shares() == ()
    assert collecting().shares() == ()


def test_a_contribution_without_tokens_leaves_the_other_as_it_is() -> None:
    """C3"""
    (share,) = collecting(held("a", 3, 0), held("b")).shares()
    assert (share.learner, share.weight, share.payloads) == ("b", 1.0, (held("b").payload,))


def test_a_late_contribution_and_an_on_time_one_of_the_same_learner_are_one_share() -> None:
    early, now = held("a", 4, 40, round=2), held("a", 6, 60)
    made = collecting(now, held("b", 10, 100), late=(early,))
    first, second = made.shares()
    assert (first.payloads, first.base_versions) == ((early.payload, now.payload), (3, 3))
    assert first.weight == second.weight == 0.5  # 100 tokens in 10 steps, both
    assert made.participants() == ("a", "b")


def test_contributions_of_one_learner_come_in_the_order_in_which_they_were_made() -> None:
    late = (held("a", round=2, incarnation=2), held("a", round=0, incarnation=2), held("a", round=2, incarnation=1))
    order = [(each.incarnation, each.round) for each in collecting(held("a", incarnation=2), late=late).held()]
    assert order == [(1, 2), (2, 0), (2, 2), (2, 4)]


# ----------------------------------------------------------------------------------------------- memory


def test_knows_a_contribution_by_its_learner_its_process_and_what_that_had_trained() -> None:
    memory = RoundMemory(8)
    memory.open(4)
    assert 4 in memory and 3 not in memory
    assert memory.enter(4, "a", 1, tokens=100)
    assert not memory.enter(4, "a", 1, tokens=100)
    assert memory.has(4, "a", 1, 100)
    for other in ((5, "a", 1, 100), (4, "b", 1, 100), (4, "a", 2, 100), (4, "a", 1, 110)):
        assert not memory.has(*other)


def test_of_a_round_it_has_forgotten_it_knows_nothing() -> None:
    memory = RoundMemory(1)
    memory.open(0)
    memory.enter(0, "a", 1, 100)
    memory.open(1)
    assert 0 not in memory
    assert not memory.enter(0, "a", 1, 100)  # perhaps once more


def test_forgets_the_oldest_rounds_first() -> None:
    """C50"""
    memory = RoundMemory(3)
    for number in range(10_000):
        memory.open(number)
        memory.enter(number, "a", 1, number)
    assert [number for number in range(10_000) if number in memory] == [9997, 9998, 9999]


# ----------------------------------------------------------------------------------------------- over lives


def test_what_is_forgotten_of_it_may_be_entered_again() -> None:
    memory = RoundMemory(8)
    memory.open(4)
    memory.enter(4, "a", 1, 100)
    memory.forget(4, "a", 1, 100)
    memory.forget(7, "a", 1, 100)  # nothing is known of it
    assert memory.enter(4, "a", 1, 100) and not memory.enter(4, "a", 1, 100)


def test_another_life_remembers_the_newest_rounds() -> None:
    memory, again = RoundMemory(8), RoundMemory(8)
    for number in range(6):
        memory.open(number)
        memory.enter(number, "a", 1, 10 * number)
    again.restore(memory.saved(rounds_max=2))
    assert [number for number in range(6) if number in again] == [4, 5]
    assert not again.enter(5, "a", 1, 50) and again.enter(5, "a", 1, 51)


def test_what_is_made_for_a_round_to_come_is_entered_once_before_it_opens_and_after() -> None:
    """An earlier life had opened it, and died before that was saved."""
    memory = RoundMemory(2)
    memory.open(3)
    memory.expect(range(4, 7))
    assert [number for number in range(10) if number in memory] == [3, 4, 5, 6]
    assert memory.enter(6, "a", 1, 100) and not memory.enter(6, "a", 1, 100)
    for number in (4, 5):  # Rounds to come take no place of those that have opened.
        memory.open(number)
        assert number - 1 in memory
    memory.open(6)
    assert not memory.enter(6, "a", 1, 100)
    assert [number for number in range(10) if number in memory] == [5, 6]


def test_what_is_entered_for_a_round_to_come_outlives_another_death() -> None:
    memory, again = RoundMemory(1), RoundMemory(1)
    memory.open(3)
    memory.expect(range(4, 7))
    memory.enter(5, "a", 1, 100)
    again.restore(memory.saved(rounds_max=1))
    again.expect(range(4, 7))
    assert again.has(5, "a", 1, 100) and 3 in again
    again.open(4)
    assert again.has(5, "a", 1, 100)

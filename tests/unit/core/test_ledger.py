"""What became of every token: each class, and that all of them together are what was trained."""

from __future__ import annotations

import msgspec
import pytest

from unlockstep.core.ledger import Ledger
from unlockstep.core.reasons import RefusalReason


def trained(tokens: int = 100, fragment_count: int = 2) -> Ledger:
    ledger = Ledger(fragment_count)
    ledger.trained("a", tokens)
    return ledger


def total(ledger: Ledger) -> float:
    """Sum of the classes, those in flight included."""
    status = msgspec.structs.asdict(ledger.status())
    return sum(sum(v.values()) if isinstance(v, dict) else v for name, v in status.items() if name != "trained")


def test_what_is_trained_and_not_handed_over_is_in_flight() -> None:
    status = trained(100).status()
    assert (status.trained, status.in_flight) == (100.0, 100.0)


def test_what_is_accepted_is_in_flight_until_it_is_merged() -> None:
    ledger = trained(100)
    ledger.accepted("a", 0, 100)
    assert ledger.status().in_flight == 100.0
    ledger.merged("a", 0, 100, late=False)
    status = ledger.status()
    assert (status.merged, status.in_flight) == (50.0, 50.0)  # one fragment of two


def test_merged_late_is_a_class_of_its_own() -> None:
    ledger = trained(100)
    ledger.accepted("a", 0, 100)
    ledger.merged("a", 0, 100, late=True)
    assert (ledger.status().merged, ledger.status().merged_late) == (0.0, 50.0)


def test_refused_tokens_are_told_apart_by_reason() -> None:
    ledger = trained(100)
    ledger.refused("a", 0, 60, RefusalReason.NON_FINITE)
    ledger.refused("a", 1, 20, RefusalReason.LATE)
    assert ledger.status().refused == {"late": 10.0, "non_finite": 30.0}
    assert ledger.status().in_flight == 60.0


def test_what_was_accepted_can_be_refused_after_all() -> None:
    ledger = trained(100)
    ledger.accepted("a", 0, 100)
    ledger.abandoned("a", 0, 100, RefusalReason.RUN_FINISHED)
    assert ledger.status().refused == {"run_finished": 50.0}
    assert ledger.status().in_flight == 50.0


def test_overwritten_and_undelivered_tokens_are_settled() -> None:
    ledger = trained(100)
    ledger.overwritten("a", 0, 40)
    ledger.undelivered("a", 1, 60)
    status = ledger.status()
    assert (status.overwritten, status.dropped, status.in_flight) == (20.0, 30.0, 50.0)


def test_a_learner_that_leaves_declares_what_it_drops() -> None:
    """C23"""
    ledger = trained(100)
    ledger.left("a", (100, 70))
    assert (ledger.status().dropped, ledger.status().in_flight) == (85.0, 15.0)


def test_with_a_learner_that_dies_all_it_held_is_lost_but_not_what_is_pending() -> None:
    ledger = trained(100)
    ledger.accepted("a", 0, 30)
    ledger.died("a")
    status = ledger.status()
    assert (status.lost, status.in_flight) == ((70 + 100) / 2, 15.0)
    ledger.merged("a", 0, 30, late=False)
    assert ledger.status().in_flight == 0.0


def test_a_learner_that_was_only_silent_gets_its_tokens_back() -> None:
    """C19"""
    ledger = trained(100)
    ledger.died("a")
    assert ledger.status().lost == 100.0
    ledger.came_back("a")
    assert (ledger.status().lost, ledger.status().in_flight) == (0.0, 100.0)


def test_a_second_death_takes_only_what_came_after_the_first() -> None:
    ledger = trained(100)
    ledger.died("a")
    ledger.opened("a")
    ledger.trained("a", 140)
    assert ledger.status().in_flight == 40.0
    ledger.died("a")
    assert (ledger.status().lost, ledger.status().in_flight) == (140.0, 0.0)


def test_an_older_total_changes_nothing() -> None:
    ledger = trained(100)
    ledger.trained("a", 90)
    assert ledger.status().trained == 100.0


def test_an_account_is_closed_from_death_to_return() -> None:
    ledger = trained()
    assert not ledger.is_closed("a")
    ledger.died("a")
    assert ledger.is_closed("a")
    ledger.came_back("a")
    assert not ledger.is_closed("a")
    ledger.died("a")
    ledger.opened("a")
    assert not ledger.is_closed("a")


def test_the_classes_of_several_learners_add_up_to_what_they_trained() -> None:
    ledger = Ledger(2)
    for number, name in enumerate(("a", "b", "c")):
        ledger.trained(name, 100 * (number + 1))
    ledger.accepted("a", 0, 100)
    ledger.merged("a", 0, 100, late=False)
    ledger.overwritten("b", 1, 150)
    ledger.died("c")
    assert total(ledger) == pytest.approx(600.0)
    assert ledger.trained_total == 600

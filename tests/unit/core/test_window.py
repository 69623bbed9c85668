"""Quorum and grace: every answer of the decision, with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from support.core_builders import MS, options
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.reasons import WindowReason
from unlockstep.core.window import Decision, MovingAverage, TimeAverages, decide, grace_ns


def decided(quorum: int = 2, **changes: Any) -> Decision:
    """The round has its quorum of two since 100 ms and may wait 50 ms longer for one of three."""
    arguments: dict[str, Any] = {
        "now_ns": 120 * MS,
        "quorum_at_ns": 100 * MS,
        "contributed": 2,
        "awaited": 1,
        "live": 3,
        "grace_ns": 50 * MS,
    }
    return decide(options(quorum=quorum), **{**arguments, **changes})


def test_waits_for_its_quorum_without_limit() -> None:
    decision = decided(quorum_at_ns=None, contributed=1, now_ns=10**15)
    assert (decision.close, decision.until_ns, decision.reason) == (False, NEVER_NS, WindowReason.WAITING_FOR_QUORUM)
    assert decision.sentence == "waits for its quorum: 1 of 2 contributions are in"


def test_says_when_nobody_is_left_to_wait_for() -> None:
    """C30"""
    decision = decided(quorum_at_ns=None, contributed=1, awaited=0, live=0)
    assert (decision.close, decision.until_ns, decision.reason) == (False, NEVER_NS, WindowReason.NOBODY_LEFT)
    assert decision.sentence == "1 of 2 contributions are in and no learner is alive"


def test_closes_at_once_when_everyone_is_in() -> None:
    decision = decided(contributed=3, awaited=0)
    assert (decision.close, decision.reason) == (True, WindowReason.EVERYONE_IN)
    assert decision.sentence == "closes: all 3 expected are in"


def test_closes_at_the_quorum_without_slack() -> None:
    decision = decided(grace_ns=0)
    assert (decision.close, decision.reason) == (True, WindowReason.NO_GRACE)
    assert decision.sentence == "closes: 2 in, quorum 2, no slack to wait"


def test_waits_in_grace_until_the_window_ends() -> None:
    decision = decided()
    assert (decision.close, decision.until_ns, decision.reason) == (False, 150 * MS, WindowReason.WAITING_IN_GRACE)
    assert decision.sentence == "2 in, quorum 2; waits up to 0.05 s for 1 more"


@pytest.mark.parametrize(("now_ms", "closes"), [(149, False), (150, True), (151, True)])
def test_closes_exactly_when_the_window_ends(now_ms: int, closes: bool) -> None:
    """C21"""
    decision = decided(now_ns=now_ms * MS)
    assert decision.close is closes
    assert decision.reason is (WindowReason.GRACE_ENDED if closes else WindowReason.WAITING_IN_GRACE)


def test_a_grace_that_ended_says_who_is_missing() -> None:
    assert decided(now_ns=151 * MS).sentence == "closes: grace of 0.05 s ended, 1 missing"


def test_once_there_the_quorum_stays_even_if_nobody_is_left() -> None:
    """C18"""
    assert decided(awaited=0, live=0).reason is WindowReason.EVERYONE_IN


@pytest.mark.parametrize(
    ("settings", "step_ms", "quorum_ms", "sync_ms", "expected_ms"),
    [
        ({}, 100, 20, 30, 100),  # 0.8 * (2 * 100 - 50) = 120, capped at one step
        ({}, 100, 80, 40, 0.8 * (200 - 120)),
        ({}, 100, 150, 50, 0),  # no slack
        ({}, 100, 500, 500, 0),  # behind: never negative
        ({}, 0, 0, 0, 0),  # nothing known yet
        ({"grace_factor": 0.0}, 100, 0, 0, 0),  # switched off
        ({"grace_cap_steps": 0.25}, 100, 0, 0, 25),
        ({"overlap_steps": 0}, 100, 0, 0, 0),
    ],
)
def test_grace_is_equation_3(
    settings: dict[str, Any], step_ms: int, quorum_ms: int, sync_ms: int, expected_ms: float
) -> None:
    """``clamp(gamma * (tau * xi_step - (xi_quorum + xi_sync)), 0, cap * xi_step)`` (paper, Eq. 3)."""
    grace = grace_ns(options(**settings), step_ns=step_ms * MS, quorum_ns=quorum_ms * MS, sync_ns=sync_ms * MS)
    assert grace == pytest.approx(expected_ms * MS, abs=1)


def test_an_average_takes_its_first_sample_whole() -> None:
    average = MovingAverage(0.25)
    assert average.value_ns == 0
    average.add(400)
    assert average.value_ns == 400
    average.add(800)
    assert average.value_ns == 400 + 0.25 * (800 - 400)


def test_time_to_synchronise_is_commit_and_fetch() -> None:
    averages = TimeAverages(options(average_weight=1.0))
    averages.commit.add(30)
    averages.fetch.add(12)
    averages.quorum.add(5)
    assert averages.sync_ns == 30 + 12

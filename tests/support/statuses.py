"""States of a run for tests of what is shown and decided by them: everything has a value, a test names what matters.

Decides the defaults: a run of 240 steps in its middle, one learner, nothing open, nothing lost.
"""

from __future__ import annotations

from typing import Any

from unlockstep.core.status import EvaluationStatus, LearnerStatus, LedgerStatus, NextRoundStatus, RoundStatus, Status

SECOND_NS = 1_000_000_000


def learner_status(learner: str = "learner-0", **changes: Any) -> LearnerStatus:
    """Live, at clock 120, 500 tokens a step of a quarter second."""
    settings: dict[str, Any] = {
        "learner": learner,
        "incarnation": 1,
        "state": "live",
        "clock": 120,
        "steps": 120,
        "tokens": 60_000,
        "step_ns": SECOND_NS // 4,
        "tokens_per_step": 500.0,
        "loss": 2.5,
        "last_round": 119,
        "rounds_merged": 119,
        "strikes": 0,
        "silent_ns": 0,
        "codec": "bfloat16",
        "upload_bytes_per_s": 12.5e6,
    }
    return LearnerStatus(**{**settings, **changes})


def ledger_status(trained: float = 60_000.0, **changes: Any) -> LedgerStatus:
    """Everything merged but for what is named."""
    settings: dict[str, Any] = {
        "trained": trained,
        "merged": trained,
        "merged_late": 0.0,
        "refused": {},
        "overwritten": 0.0,
        "dropped": 0.0,
        "lost": 0.0,
        "in_flight": 0.0,
    }
    return LedgerStatus(**{**settings, **changes})


def round_status(round: int = 120, **changes: Any) -> RoundStatus:
    """Open, with nothing in it."""
    settings: dict[str, Any] = {
        "round": round,
        "fragment": round % 8,
        "state": "open",
        "contributions": (),
        "asked": ("learner-0",),
        "reason": None,
        "sentence": "waits for its quorum: 0 of 1 contributions are in",
        "open_ns": 0,
    }
    return RoundStatus(**{**settings, **changes})


def evaluation_status(clock: int, nats_per_byte: float) -> EvaluationStatus:
    """One second per step."""
    return EvaluationStatus(at_ns=clock * SECOND_NS, clock=clock, loss=nats_per_byte, nats_per_byte=nats_per_byte)


def status(clock: int = 120, **changes: Any) -> Status:
    """Running, at half of its 240 steps, one second per step."""
    settings: dict[str, Any] = {
        "run": "night",
        "state": "running",
        "at_ns": clock * SECOND_NS,
        "clock": clock,
        "steps_max": 240,
        "tokens_max": 0,
        "learners": (learner_status(),),
        "rounds": (),
        "round_closed": None,
        "round_next": NextRoundStatus(round=119, fragment=7, due_clock=clock + 1),
        "rounds_committed": 119,
        "rounds_empty": 0,
        "versions": (15,) * 8,
        "layout_digest": None,
        "participation": 1.0,
        "downtime_ns": 0,
        "ledger": ledger_status(),
        "evaluations": (),
        "refusals": {},
    }
    return Status(**{**settings, **changes})

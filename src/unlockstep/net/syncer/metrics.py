"""The syncer's state as Prometheus text (exposition format 0.0.4).

Decides names and types of the metrics. Where the numbers come from is ``core.status``' business.
"""

from __future__ import annotations

from collections.abc import Mapping

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.status import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus(status: Status, bytes_in: int, bytes_out: int) -> str:
    """All metrics of one run.

    Args:
        status: the run's state.
        bytes_in, bytes_out: bodies received and sent, bytes.
    """
    ledger = status.ledger
    tokens = {
        "merged": ledger.merged,
        "merged_late": ledger.merged_late,
        "overwritten": ledger.overwritten,
        "dropped": ledger.dropped,
        "lost": ledger.lost,
        "in_flight": ledger.in_flight,
        **{f"refused_{reason}": count for reason, count in ledger.refused.items()},
    }
    live = [learner for learner in status.learners if learner.state == "live"]
    bodies = {"in": bytes_in, "out": bytes_out}
    clocks = {learner.learner: learner.clock for learner in live}
    uploads = {each.learner: each.upload_bytes_per_s for each in live if each.upload_bytes_per_s is not None}
    step_times = {learner.learner: _seconds(learner.step_ns) for learner in live}
    lines = [
        *_one("clock_steps", "gauge", "The syncer's clock, inner steps.", status.clock),
        *_one("learners_live", "gauge", "Learners that hold a lease and have taken a step.", len(live)),
        *_one("rounds_committed_total", "counter", "Rounds that ended in a new version.", status.rounds_committed),
        *_one("rounds_empty_total", "counter", "Rounds that ended without one.", status.rounds_empty),
        *_one("rollbacks_total", "counter", "Times the run went back to an earlier state.", status.rollbacks),
        *_one("downtime_seconds_total", "counter", "Time without a live learner.", _seconds(status.downtime_ns)),
        *_one("tokens_trained_total", "counter", "Tokens trained by all learners.", ledger.trained),
        *_each("tokens", "gauge", "Tokens by what became of them, mean over fragments.", "fate", tokens),
        *_each("refusals_total", "counter", "Contributions refused.", "reason", status.refusals),
        *_each("learner_clock_steps", "gauge", "A live learner's clock.", "learner", clocks),
        *_each("learner_step_seconds", "gauge", "A live learner's average step time.", "learner", step_times),
        *_each(
            "learner_upload_bytes_per_second", "gauge", "Of a live learner's link, as measured.", "learner", uploads
        ),
        *_each("body_bytes_total", "counter", "Bytes of bodies.", "way", bodies),
    ]
    if status.participation is not None:
        lines += _one("participation", "gauge", "Participants over live learners, mean.", status.participation)
    loss = status.evaluations[-1].loss if status.evaluations else None
    if loss is not None:
        lines += _one("validation_loss", "gauge", "Of the global model, nats per token.", loss)
    return "\n".join(lines) + "\n"


def _one(name: str, kind: str, meaning: str, value: float) -> list[str]:
    return [*_head(name, kind, meaning), f"unlockstep_{name} {value:.10g}"]


def _each(name: str, kind: str, meaning: str, label: str, values: Mapping[str, float]) -> list[str]:
    samples = [f'unlockstep_{name}{{{label}="{key}"}} {value:.10g}' for key, value in values.items()]
    return [*_head(name, kind, meaning), *samples] if samples else []


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP unlockstep_{name} {meaning}", f"# TYPE unlockstep_{name} {kind}"]


def _seconds(ns: int) -> float:
    return ns / NANOSECONDS_PER_SECOND

"""What commands print: log lines on stderr, results on stdout, for people or as JSON.

Decides the form of a line and of a table. Does not decide what is worth a line.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

    from unlockstep.core.status import Status

LOG_EVERY_S = 10.0
"""Time between two lines about progress."""


def log_to_stderr(name: str) -> logging.Logger:
    """The logger of a command. Its lines, and warnings of the library, go to stderr as ``time name: text``."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=f"%(asctime)s {name}: %(message)s",
                        datefmt="%H:%M:%S", force=True)  # fmt: skip
    logger = logging.getLogger("unlockstep.cli")
    logger.setLevel(logging.INFO)
    return logger


def print_json(record: Any) -> None:
    """One record as one line of JSON on stdout. A number that is not finite becomes null."""
    import msgspec

    print(msgspec.json.encode(record).decode(), flush=True)


class Every:
    """Says when it is time for the next line."""

    def __init__(self, interval_s: float = LOG_EVERY_S) -> None:
        self._interval_s = interval_s
        self._next_s = time.monotonic() + interval_s

    def due(self) -> bool:
        """True once per interval."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True


def status_view(status: Status) -> Group:
    """A run's state as tables for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    end = f"of {status.steps_max}" if status.steps_max else f"({status.tokens_max:,} tokens at most)"
    head = Text(f"run {status.run}: {status.state}, clock {status.clock} {end}, {status.rounds_committed} commits")
    learners = Table("learner", "state", "clock", "steps", "tokens/s", "loss", "last round", box=None, pad_edge=False)
    for learner in status.learners:
        per_s = learner.tokens_per_step / learner.step_ns * 1e9 if learner.step_ns else 0.0
        learners.add_row(
            f"{learner.learner}.{learner.incarnation}",
            learner.state,
            str(learner.clock),
            str(learner.steps),
            f"{per_s:,.0f}" if learner.state == "live" else "-",
            "-" if learner.loss is None else f"{learner.loss:.3f}",
            "-" if learner.last_round is None else str(learner.last_round),
        )
    lines = [f"round {r.round} (fragment {r.fragment}): {r.sentence}" for r in status.rounds]
    if status.participation is not None:
        lines.append(f"participation {status.participation:.0%}, global downtime {status.downtime_ns / 1e9:.1f} s")
    lines.append(_tokens_line(status))
    if status.evaluations:
        newest = status.evaluations[-1]
        lines.append(f"validation loss {newest.loss:.4f} nats/token ({newest.nats_per_byte:.4f}/byte) "
                     f"at clock {newest.clock}")  # fmt: skip
    return Group(head, learners, *(Text(line) for line in lines))


def _tokens_line(status: Status) -> str:
    ledger = status.ledger
    parts = {
        "merged": ledger.merged,
        "merged late": ledger.merged_late,
        "in flight": ledger.in_flight,
        "overwritten": ledger.overwritten,
        "dropped": ledger.dropped,
        "lost": ledger.lost,
        **{f"refused ({reason})": tokens for reason, tokens in ledger.refused.items()},
    }
    listed = ", ".join(f"{tokens:,.0f} {name}" for name, tokens in parts.items() if tokens)
    return f"{ledger.trained:,.0f} tokens trained" + (f": {listed}" if listed else "")

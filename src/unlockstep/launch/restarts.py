"""Whether a process that has died by itself is started again, and after which pause.

Decides the rule; knows no process. Each name has a count of its own:

- the first restart comes after 0.5 s, each further one after twice the pause before, 30 s at most;
- after ``restarts_max`` restarts there is none;
- a process that has got something done since its start begins to count anew: a syncer that has committed a round, a
  learner with a part in one, an evaluator that has reported a loss. However often such a process dies, the run goes on;
- one that has found no syncer is started again after a second, as often as that happens.
"""

from __future__ import annotations

from unlockstep.core.status import Status

SYNCER, EVALUATOR = "syncer", "evaluator"

RESTART_S = 0.5
"""Pause before the first restart of a process; doubled with each further one."""

RESTART_S_MAX = 30.0

UNANSWERED_S = 1.0
"""Pause before the restart of a process that has found no syncer."""


class Restarts:
    """The counts of one run.

    Args:
        restarts_max: in a row, of each process, without anything done in between.
    """

    def __init__(self, restarts_max: int) -> None:
        self._restarts_max = restarts_max
        self._counts: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def started(self, name: str, status: Status | None) -> None:
        """A process is started; the status is the newest there is."""
        self._done[name] = max(self._done.get(name, 0), done(name, status))

    def pause_s(self, name: str, status: Status | None, is_counted: bool = True) -> float | None:
        """It has died: when to start it again, in seconds; None: not again. ``is_counted``: by a fault of its own."""
        if not is_counted:
            return UNANSWERED_S
        if done(name, status) > self._done.get(name, 0):
            self._counts[name] = 0
        count = self._counts.get(name, 0)
        if count >= self._restarts_max:
            return None
        self._counts[name] = count + 1
        return float(min(RESTART_S * 2**count, RESTART_S_MAX))


def done(name: str, status: Status | None) -> int:
    """What a process has got done in this run, as a number that rises; 0: nothing, or nobody knows."""
    if status is None:
        return 0
    if name == SYNCER:
        return status.rounds_committed
    if name == EVALUATOR:
        return status.evaluations[-1].at_ns if status.evaluations else 0
    return max((learner.rounds_merged for learner in status.learners if learner.learner == name), default=0)

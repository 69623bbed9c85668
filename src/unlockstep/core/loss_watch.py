"""Watches the validation loss of a run, and knows where to go back to when it leaps.

Decides what a spike is, which records of the store are worth keeping for it, and which of them is gone back to. Does
not decide what going back does to rounds and learners (``syncer``, ``rounds``), nor how a record is kept and read (the
host: ``keeper``).

A *good* evaluation is one that is no spike. With each goes the record that was the newest when it was reported: what an
evaluator has scored is some time older, so that record may hold what nobody has scored yet. Gone back to is therefore
the newest record that the last good evaluation has seen, and usually that is the one that goes with the good evaluation
before.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from unlockstep.core.messages import Evaluation
from unlockstep.core.options import RollbackOptions
from unlockstep.core.saved import SavedEvaluation

GOOD_MIN = 3
"""Good evaluations before any other one can be a spike; ``rollback.window`` if that is less."""


@dataclass(frozen=True, slots=True)
class Spike:
    """A validation loss that is out of all proportion."""

    loss: float
    level: float
    """Median of the good ones."""


class LossWatch:
    """The last good evaluations of a run.

    Args:
        options: what a spike is.
    """

    def __init__(self, options: RollbackOptions) -> None:
        self._options = options
        self._losses: deque[float] = deque(maxlen=options.window)
        self._good: deque[SavedEvaluation] = deque(maxlen=options.window + 1)
        """Those that can be gone back to, oldest first."""
        self._newest: tuple[int, tuple[int, ...]] | None = None

    @property
    def is_on(self) -> bool:
        return self._options.spike_factor > 0

    def recorded(self, record: int, versions: tuple[int, ...]) -> None:
        """The newest record of the store is this one, of these versions."""
        self._newest = record, versions

    def judge(self, evaluation: Evaluation) -> Spike | None:
        """A spike, or None: then it is a good one, and remembered."""
        loss = evaluation.loss
        level = statistics.median(self._losses) if self._losses else math.nan
        is_armed = len(self._losses) >= min(GOOD_MIN, self._options.window)
        if is_armed and not loss <= self._options.spike_factor * level:
            return Spike(loss, level)
        if math.isfinite(loss):
            self._losses.append(loss)
            if self._newest is not None:
                self._good.append(SavedEvaluation(loss, evaluation.versions, *self._newest))
        return None

    def target(self) -> int | None:
        """The record to go back to; None if there is none."""
        if not self._good:
            return None
        seen = self._good[-1].versions
        for each in reversed(self._good):
            if all(kept <= scored for kept, scored in zip(each.record_versions, seen, strict=True)):
                return each.record
        return self._good[0].record

    def versions_of(self, record: int) -> tuple[int, ...]:
        """What a record holds that can be gone back to."""
        return next((each.record_versions for each in self._good if each.record == record), ())

    def went_back(self, record: int) -> None:
        """It was gone back to, or cannot be: if the loss stays where it is, an earlier one is next."""
        while self._good and self._good[-1].record >= record:
            self._good.pop()

    def saved(self) -> tuple[SavedEvaluation, ...]:
        """What outlives the syncer's process. Records of these evaluations are to be kept."""
        return tuple(self._good)

    def restore(self, good: tuple[SavedEvaluation, ...]) -> None:
        """Go on from what was saved."""
        self._good.extend(good)
        self._losses.extend(each.loss for each in good)

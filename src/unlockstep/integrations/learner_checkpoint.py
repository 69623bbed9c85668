"""The checkpoint of a learner that trains: what goes into the file, when it is written, and what a new process takes.

Decides these three. Does not decide how a file is written and checked (``learners.checkpoint``), nor what a model and
its optimizers remember (``learners.torch_state``).

In the file is everything: a process that takes the place of one that has stopped for good at that boundary could go on
bit for bit (``loop.LearnerLoop.resume``). A process that comes after a crash is another one to the syncer, which has
heard of later steps and has merged them. It takes from the file

* what the optimizers and ``stateful`` remember, and what of the model is not synchronised;
* if the file was written under its own name, the random state and the entry ``data`` of ``stateful``: another learner
  with the same masks and the same batches would teach the others nothing new;

and from the syncer the synchronised parameters, in their newest versions. Its counts start at zero.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import nn
from torch.optim import Optimizer

from unlockstep.core.deeds import Moment
from unlockstep.core.errors import UsageError
from unlockstep.core.learner_record import LearnerRecord
from unlockstep.core.reasons import Recovered
from unlockstep.learners.backend import State, TensorBits
from unlockstep.learners.checkpoint import Checkpoint, CheckpointWriter, exists, load
from unlockstep.learners.random_states import load_random_state, random_state
from unlockstep.learners.torch_state import Stateful, load_training_state, training_state
from unlockstep.loop import LearnerLoop, LoopState

FIRST_S = 1.0
"""Age at which a process writes its first checkpoint. Each further one is due when it is twice as old, until the
interval is reached: so a process never loses more than half of what it has, or an interval."""

DATA = "data"
"""Entry of ``stateful`` that belongs to the learner's name."""

_log = logging.getLogger(__name__)


class LearnerCheckpoint:
    """The file of one learner, around what it trains.

    Args:
        path: of the file.
        interval_s: longest time between two; 0: only ``finish`` writes one.
        model: what is trained.
        optimizers: what steps it.
        stateful: what else is to be remembered, by name.
        now_s: a clock; monotonic.
    """

    def __init__(
        self,
        path: Path,
        interval_s: float,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        stateful: Mapping[str, Stateful],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = CheckpointWriter(path)
        self._interval_s = interval_s
        self._model, self._optimizers, self._stateful = model, optimizers, stateful
        self._now_s = now_s
        self._began_s = now_s()
        self._due_s = self._after(FIRST_S)
        self.steps_before = 0
        """Inner steps under this learner's name as of the file that was taken; 0 if there was none of that name."""

    # ------------------------------------------------------------------------------------------- writing

    def step(self, loop: LearnerLoop) -> None:
        """A step boundary: write, if it is time and the last write is done."""
        now_s = self._now_s()
        if now_s < self._due_s or self._writer.is_busy:
            return
        self._due_s = self._after(max(FIRST_S, now_s - self._began_s))
        self.write(loop)

    def write(self, loop: LearnerLoop) -> None:
        """Copy everything to the host and begin to write it; between two steps. Nothing where no step may begin."""
        state = loop.state()
        if state is not None:
            training = training_state(self._model, self._optimizers, self._stateful)
            self._writer.write(training | random_state() | state_of_loop(state))

    def wait(self) -> None:
        """Until what has begun to be written is on the disk."""
        self._writer.wait()

    def _after(self, pause_s: float) -> float:
        return self._now_s() + min(pause_s, self._interval_s) if self._interval_s else float("inf")

    # ------------------------------------------------------------------------------------------- taking

    def take(self, loop: LearnerLoop, synchronised: Sequence[str]) -> None:
        """Take what a new process takes from the file, and say so in one line; go on without if it is of no use.

        Optimizers that have a donor's state keep it: it is newer.

        Args:
            loop: the loop of this process, which has loaded the newest versions.
            synchronised: tensors of the model that are the syncer's.
        """
        path = self._writer.path
        if not exists(path):
            return
        try:
            found = load(path)
            self._writer.keep_previous = not found.passed_over
            record = _record(found)
            if record.run_id != loop.run_id:
                raise UsageError(f"checkpoint {found.path} is of another run; this learner does not take it over")
            has_donated = loop.recovered is Recovered.DONOR
            self._load(found, record.learner == loop.learner, synchronised, has_donated)
        except UsageError as error:
            _log.warning("goes on without a checkpoint: %s", error)
            return
        if record.learner == loop.learner:
            self.steps_before = record.steps_before + record.steps
        steps, deeds = record.steps, record.deeds_count
        loop.note_checkpoint(Moment(record.learner, record.incarnation, steps, deeds))
        _log.info("%s", _sentence(found, record, loop.learner, has_donated))

    def _load(self, found: Checkpoint, is_own: bool, synchronised: Sequence[str], has_donated: bool) -> None:
        skip = () if is_own else (DATA,)
        try:
            load_training_state(
                found.state.part("model.", "optimizer.", "group.", "stateful."),
                self._model,
                self._optimizers,
                self._stateful,
                keep=synchronised,
                skip=skip,
                keep_optimizers=has_donated,
            )
        except UsageError as error:
            raise UsageError(f"checkpoint {found.path} is of other training: {error}") from None
        if is_own:
            load_random_state(found.state)


def _record(found: Checkpoint) -> LearnerRecord:
    try:
        return loop_of_state(found.state).record
    except UsageError as error:
        raise UsageError(f"checkpoint {found.path} is no learner's: {error}") from None


def _sentence(found: Checkpoint, record: LearnerRecord, learner: str, has_donated: bool) -> str:
    steps = record.steps_before + record.steps
    if record.learner == learner:
        what = "random state and data position" if has_donated else "inner optimizer, random state and data position"
        taken = f"{what} from {found.path} as of step {steps}"
    else:
        what = "what is beside the optimizer" if has_donated else "inner optimizer"
        taken = (
            f"{what} from {found.path} as of step {steps} of {record.learner}, whose random state and data position "
            "are its own"
        )
    why = f" ({found.passed_over})" if found.passed_over else ""
    return f"{taken}{why}; " + ("all else from a donor" if has_donated else "parameters from the syncer")


def state_of_loop(state: LoopState) -> State:
    """The loop's part of a file: ``anchor.P`` float32, and the record."""
    anchors = {
        f"anchor.{fragment}": TensorBits("float32", values.shape, values.view(np.uint8))
        for fragment, values in enumerate(state.anchors)
    }
    return State(anchors, {"learner": msgspec.to_builtins(state.record)})


def loop_of_state(state: State) -> LoopState:
    """What ``state_of_loop`` has written. Raises UsageError if it is not there."""
    try:
        record: Any = msgspec.convert(state.facts.get("learner"), LearnerRecord)
        anchors = [state.tensors[f"anchor.{fragment}"].data for fragment in range(len(record.fragments))]
    except (msgspec.ValidationError, KeyError) as error:
        raise UsageError(f"what a learner knows is not in it ({error}); name the checkpoint of a learner") from None
    return LoopState(record, tuple(values.view(np.float32) for values in anchors))

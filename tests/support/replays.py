"""Stories that are played, logged, and done once more from their logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unlockstep.core.events import Event, StepReported
from unlockstep.learners.backend import StepStats
from unlockstep.learners.toy import ToyBackend
from unlockstep.replay.performer import PlainPerformer
from unlockstep.replay.script import Process, Script, read_script
from unlockstep.replay.stage import Replayed, replay
from unlockstep.runlog import Header, RunLogWriter, read
from unlockstep.sim.story import Story
from unlockstep.sim.swarm import Outcome, play, trainee


def recorded(story: Story, folder: Path) -> tuple[Outcome, list[Event]]:
    """What becomes of a story, and its log as it is read back from a file."""
    path = folder / f"{story.seed}.jsonl"
    with RunLogWriter(path, Header(run="story", config_digest="")) as log:
        outcome = play(story, record=log.write)
    return outcome, list(read(path)[1])


def replayed(story: Story, events: Sequence[Event], until_round: int | None = None) -> Replayed:
    """The same once more."""
    script = read_script(events, until_round)
    return replay(script, story.config, lambda process: _performer(story, script, process))


def _performer(story: Story, script: Script, process: Process) -> PlainPerformer:
    learner = process.key.learner
    step, toy = story.diverges.get(learner), trainee(story, learner)
    # A learner's model becomes NaN once: in the first process that comes so far.
    reached = (
        sorted(
            key
            for key, each in script.processes.items()
            if key.learner == learner and max(each.losses, default=0) >= step
        )
        if step
        else []
    )
    return PlainPerformer(_Diverging(toy, step if step and reached[:1] == [process.key] else 0))


class _Diverging:
    """A toy whose model becomes NaN in one step (``sim.ward.WardedBackend``)."""

    def __init__(self, toy: ToyBackend, step: int) -> None:
        self._toy = toy
        self._step = step
        self._steps = 0
        self.tensors, self.bind, self.seek = toy.tensors, toy.bind, toy.seek
        self.read_fragment, self.write_fragment = toy.read_fragment, toy.write_fragment
        self.inner_state, self.load_inner_state = toy.inner_state, toy.load_inner_state
        self.reset_optimizer = toy.reset_optimizer

    def inner_step(self, clock: int) -> StepStats:
        self._steps += 1
        stats = self._toy.inner_step(clock)
        if self._steps == self._step:
            self._toy.values[:] = np.nan
        return stats


def steps_reported(events: Sequence[Event]) -> int:
    """Inner steps that a log tells of."""
    return sum(isinstance(event, StepReported) for event in events)

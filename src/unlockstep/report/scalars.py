"""A run as scalars for TensorBoard.

Decides their names and what they are counted over: inner steps (the clock) for losses and learners, versions of a
fragment for merges. Time is that of the run, from its beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from unlockstep.core.events import (
    ContributionAccepted,
    EvaluationReported,
    Event,
    FragmentCommitted,
    RoundClosed,
    RoundOpened,
    StepReported,
)
from unlockstep.core.ids import NANOSECONDS_PER_SECOND


def write(events: Iterable[Event], folder: Path) -> None:
    """Write a run's scalars into event files in a folder, which is made if it is not there.

    Raises:
        ImportError: TensorBoard is not installed.
        OSError: the folder cannot be written.
    """
    from tensorboard.summary import Writer

    folder.mkdir(parents=True, exist_ok=True)
    writer, clock = Writer(str(folder)), 0

    def put(name: str, value: float, step: int, at_ns: int) -> None:
        if math.isfinite(value):
            writer.add_scalar(name, value, step, wall_time=at_ns / NANOSECONDS_PER_SECOND)

    for event in events:
        match event:
            case StepReported():
                put(f"training loss/{event.learner}", event.loss, event.clock, event.at_ns)
                put(f"step seconds/{event.learner}", event.step_ns / NANOSECONDS_PER_SECOND, event.clock, event.at_ns)
            case EvaluationReported():
                put("validation/loss", event.loss, event.clock, event.at_ns)
                put("validation/nats per byte", event.nats_per_byte, event.clock, event.at_ns)
            case RoundOpened():
                clock = event.clock
            case ContributionAccepted():
                put(f"staleness/{event.learner}", event.staleness, clock, event.at_ns)
            case RoundClosed() if event.live:
                put("rounds/participation", min(1.0, len(event.participants) / event.live), clock, event.at_ns)
                put("rounds/live learners", event.live, clock, event.at_ns)
                put("rounds/open seconds", event.open_ns / NANOSECONDS_PER_SECOND, clock, event.at_ns)
                put("rounds/grace seconds", event.grace_ns / NANOSECONDS_PER_SECOND, clock, event.at_ns)
            case FragmentCommitted():
                put(f"merged norm/fragment {event.fragment}", event.norm, event.version, event.at_ns)
                put("rounds/commit seconds", event.commit_ns / NANOSECONDS_PER_SECOND, clock, event.at_ns)
    writer.close()

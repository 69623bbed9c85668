"""Draws one run from its run log: who trained when, what was committed, and the validation loss.

    python docs/draw_run.py RUN docs/figures/run.png

Needs matplotlib (extra ``plots``). Reads the run log and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from unlockstep import runlog
from unlockstep.core.events import (
    EvaluationReported,
    Event,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLive,
    RunFinished,
    StepReported,
)

TRAINING, LOADING, COMMIT, LOSS = "#2a78c8", "#b9d3ee", "#8a8f98", "#c2410c"


def bars(events: list[Event], end_s: float) -> dict[str, list[tuple[float, float, str]]]:
    """Per learner: (start, length, colour) of the stretches in which it loaded parameters or trained, seconds."""
    stretches: dict[str, list[tuple[float, float, str]]] = {}
    since: dict[str, tuple[float, str]] = {}

    def turn(learner: str, at_s: float, colour: str | None) -> None:
        begun = since.pop(learner, None)
        if begun is not None:
            stretches.setdefault(learner, []).append((begun[0], at_s - begun[0], begun[1]))
        if colour is not None:
            since[learner] = (at_s, colour)

    for event in events:
        match event:
            case LearnerJoined():
                turn(event.learner, event.at_ns / 1e9, LOADING)
            case LearnerLive():
                turn(event.learner, event.at_ns / 1e9, TRAINING)
            case LearnerAway() | LearnerDeparted():
                turn(event.learner, event.at_ns / 1e9, None)
    for learner in list(since):
        turn(learner, end_s, None)
    return stretches


def draw(run: Path, picture: Path) -> None:
    """Read ``run/run.jsonl`` and write the picture."""
    events = list(runlog.read(run / "run.jsonl")[1])
    first_s = min(event.at_ns for event in events if isinstance(event, LearnerJoined)) / 1e9
    end_s = max(event.at_ns for event in events if isinstance(event, RunFinished)) / 1e9
    rows = sorted(bars(events, end_s).items(), reverse=True)
    figure, (timeline, curve) = plt.subplots(
        2, 1, figsize=(10, 5.2), sharex=True, height_ratios=(1, 1.1), layout="constrained"
    )
    for row, (_, stretches) in enumerate(rows):
        for start_s, length_s, colour in stretches:
            timeline.barh(row, length_s, left=start_s - first_s, height=0.62, color=colour)
    commits = [event.at_ns / 1e9 - first_s for event in events if isinstance(event, FragmentCommitted)]
    timeline.plot(commits, [len(rows) - 0.25] * len(commits), "|", color=COMMIT, markersize=7, markeredgewidth=0.5)
    timeline.set_yticks([*range(len(rows)), len(rows) - 0.25], [*(name for name, _ in rows), "commits"])
    timeline.set_title("One learner is killed and comes back; nobody waits for it", loc="left", fontsize=11)
    timeline.barh(0, 0, color=TRAINING, label="training")
    timeline.barh(0, 0, color=LOADING, label="joined, loading")
    timeline.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, ncols=2, frameon=False)
    evaluations = [event for event in events if isinstance(event, EvaluationReported)]
    steps = [event for event in events if isinstance(event, StepReported)]
    curve.plot(
        [event.at_ns / 1e9 - first_s for event in steps],
        [event.loss for event in steps],
        ".",
        color=LOADING,
        markersize=2,
        label="training loss of every step",
    )
    curve.plot(
        [event.at_ns / 1e9 - first_s for event in evaluations],
        [event.nats_per_byte for event in evaluations],
        "o-",
        color=LOSS,
        markersize=4,
        label="validation loss of the global model",
    )
    curve.set_xlabel("seconds since the first learner joined")
    curve.set_ylabel("nats per byte")
    curve.set_ylim(1.2, 4.2)
    curve.legend(loc="upper right", fontsize=8)
    for axes in (timeline, curve):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))

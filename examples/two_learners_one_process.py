"""The whole ring on one screen: a syncer and two learners of different speed, in one process, without sockets.

Each learner walks towards the same optimum and sees it through its own noise. Watch what comes round: a learner hands
over its progress on a fragment (contribution), the syncer merges what it got and steps (commit), and every learner
takes the result between two of its steps (adopt). Time is virtual, everything else is the production code.

    python examples/two_learners_one_process.py
"""

from __future__ import annotations

import numpy as np

from unlockstep.config import OuterSection, RunConfig, RunSection
from unlockstep.core.events import ContributionAccepted, Event, FragmentAdopted, FragmentCommitted, RoundOpened
from unlockstep.core.options import ProtocolOptions
from unlockstep.learners.toy import ToyBackend
from unlockstep.sim.world import World

MILLISECONDS = 1_000_000


def main() -> None:
    config = RunConfig(
        run=RunSection(steps=40),
        protocol=ProtocolOptions(fragments=2, interval_steps=8, quorum=2),  # each of 2 fragments once in 8 steps
        outer=OuterSection(learning_rate=1.0, momentum=0.0),
    )
    learners = {"tortoise": ToyBackend(seed=1, noise=0.1), "hare": ToyBackend(seed=2, noise=0.1)}
    ring = World(config)
    ring.join("hare", learners["hare"], step_ns=100 * MILLISECONDS)
    ring.join("tortoise", learners["tortoise"], step_ns=150 * MILLISECONDS)

    optimum = learners["hare"].optimum
    for now_ns in ring.play():
        for event in ring.events:
            if line := describe(event):
                print(f"{now_ns / 1e9:6.3f} s  {line}")
            if isinstance(event, FragmentCommitted):
                distances = (f"{name} {np.linalg.norm(it.values - optimum):.3f}" for name, it in learners.items())
                print(f"{'':10}distance to the optimum: {', '.join(distances)}")
        ring.events.clear()


def describe(event: Event) -> str | None:
    match event:
        case RoundOpened():
            return f"round {event.round} opens for fragment {event.fragment}"
        case ContributionAccepted():
            return (
                f"  {event.learner} contributes {event.c_steps} steps on fragment {event.fragment}, "
                f"an outer gradient of norm {event.norm:.3f}"
            )
        case FragmentCommitted():
            shares = ", ".join(f"{name} {weight:.0%}" for name, weight in event.weights.items())
            return f"  commit: fragment {event.fragment} is now version {event.version} ({shares})"
        case FragmentAdopted() if event.version > 0:
            return f"  {event.learner} adopts version {event.version} of fragment {event.fragment}"
    return None


if __name__ == "__main__":
    main()

"""What a replay costs beside the inner steps it repeats: of a run of a real model in which learners and syncer die.

    python benchmarks/replay.py --steps 60

The run is played under virtual time, and repeated from its events. *Replay* is processor seconds of an inner step that
is repeated, with everything that goes with it: adoptions, hand-overs, merges, digests, models of new processes. *Step*
is an inner step of one learner alone. *Ratio* is what a replay takes as a share of the compute of the learners whose
work is in the model; the run itself also computed what was lost.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from unlockstep import tape as tapes
from unlockstep.cli.assembly import load_text, loading, new_backend
from unlockstep.cli.replay import performer
from unlockstep.config import DataSection, LocalSection, ModelSection, RunConfig, RunSection
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.options import ProtocolOptions
from unlockstep.replay.script import read_script
from unlockstep.replay.stage import replay
from unlockstep.virtual.ring import Ring

LEARNERS = tuple(f"learner-{number}" for number in range(4))
WARM_STEPS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """Processor seconds a step, and what was repeated."""

    model: str
    steps: int
    commits: int
    processes: int
    step_s: float
    replay_s: float
    ratio: float
    is_identical: bool


def tape() -> tapes.Tape:
    """Two learners and the syncer die and come back."""
    deaths = (("learner-1", 3, 4), ("learner-2", 5, 8), (tapes.SYNCER, 6, 7))
    actions: list[tapes.Action] = []
    for target, dies_s, returns_s in deaths:
        actions += [
            tapes.Kill(at_ns=dies_s * NANOSECONDS_PER_SECOND, target=target),
            tapes.Restart(at_ns=returns_s * NANOSECONDS_PER_SECOND, target=target),
        ]
    return tapes.Tape(name="deaths", learners=LEARNERS, actions=tuple(sorted(actions, key=lambda action: action.at_ns)))


def measure(model: str, steps: int) -> Row:
    config = RunConfig(
        run=RunSection(name="replay", steps=steps),
        model=ModelSection(spec=model),
        data=DataSection(sequence_length=64),
        protocol=ProtocolOptions(fragments=4, interval_steps=8),
        local=LocalSection(learners=len(LEARNERS)),
    )
    with loading(config):
        text = load_text(config)
        ring = Ring(config, tape(), lambda shard, shards: new_backend(config, shard, shards, text, is_alone=False))
        for _ in ring.play():
            pass
        script = read_script([*ring.world.take_events(), *ring.world.events])
        began_s = time.process_time()
        done = replay(script, config, lambda process: performer(config, text, process))
        replay_s = time.process_time() - began_s
        alone = new_backend(config, 0, len(LEARNERS), text)
        for clock in range(WARM_STEPS):
            alone.inner_step(clock)
        began_s = time.process_time()
        for clock in range(steps):
            alone.inner_step(clock)
        step_s = (time.process_time() - began_s) / steps
    processes = sum(process.until.steps > 0 for process in script.processes.values())
    return Row(
        model=model,
        steps=done.steps,
        commits=done.commits,
        processes=processes,
        step_s=step_s,
        replay_s=replay_s / done.steps,
        ratio=replay_s / done.steps / step_s,
        is_identical=done.divergence is None,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-tiny")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    row = measure(options.model, options.steps)
    if options.json:
        print(json.dumps(asdict(row)))
        return
    print("model         steps  commits  processes  step, ms  replay, ms  ratio  identical")
    print(
        f"{row.model:12} {row.steps:6} {row.commits:8} {row.processes:10} {1e3 * row.step_s:9.1f} "
        f"{1e3 * row.replay_s:11.1f} {row.ratio:6.2f}  {'yes' if row.is_identical else 'no'}"
    )


if __name__ == "__main__":
    main()

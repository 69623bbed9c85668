"""What a learner that lost everything loses: its way back with a donor's state, with its checkpoint, with neither.

    python benchmarks/recovery_learner.py

Real training of a preset under virtual time (``sim.world``), three learners, the run's default recipe. After
``--before`` steps one is killed; its next process starts half a second later with a fresh model and AdamW, and the same
data from where it was. ``donor``: it takes the state of one of the others. ``checkpoint``: AdamW as it was
``--age`` steps before the death, parameters from the syncer. ``syncer``: parameters from the syncer, and the recipe's
warm-up over its own first steps. ``never gone`` is the same learner in a run where nothing happens.

``contributes after``: inner steps, and virtual seconds (a step takes 0.1), from its joining until the syncer has
accepted its first contribution; H is ``protocol.interval_steps``. Losses are means of training losses, nats per token,
over the first steps after the return; ``jump`` is the first of them less that of the learner never gone, on the same
batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

import msgspec

from unlockstep.cli.assembly import loading, new_backend
from unlockstep.config import RecoverySection, RunConfig, apply
from unlockstep.core.events import ContributionAccepted, Event, LearnerJoined, StepReported
from unlockstep.learners.backend import State
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.sim.network import MILLISECOND_NS
from unlockstep.sim.world import World

NAMES = ("a", "b", "c")
LOST = "c"
STEP_NS = 100 * MILLISECOND_NS
DOWN_NS = 500 * MILLISECOND_NS
SHOWN = 20
"""Steps after the return."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    way: str
    recovered: str
    steps_to_contribution: int
    seconds_to_contribution: float
    losses: list[float]


class Story:
    """One run. ``state_at``: keep the inner state of the learner as of this step."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.world = World(config, seed=1, remembers=True)
        self.kept: State | None = None

    def begin(self) -> None:
        for shard, name in enumerate(NAMES):
            self.world.join(name, new_backend(self.config, shard, len(NAMES)), STEP_NS)

    def until(self, is_so: Callable[[], bool]) -> None:
        for _ in self.world.play():
            if is_so():
                return

    def steps(self, name: str = LOST) -> int:
        return self.world.process(name).steps

    def of(self, kind: type[Event], incarnation: int) -> list[Event]:
        found = [event for event in self.world.events if isinstance(event, kind)]
        return [event for event in found if (event.learner, event.incarnation) == (LOST, incarnation)]  # type: ignore[union-attr]


def losses(story: Story, incarnation: int) -> list[float]:
    return [event.loss for event in story.of(StepReported, incarnation) if isinstance(event, StepReported)]


def returned(config: RunConfig, way: str, before: int, age: int) -> Row:
    """Killed, and back."""
    recovery = RecoverySection(donor=way == "donor")
    story = Story(msgspec.structs.replace(config, recovery=recovery))
    story.begin()
    story.until(lambda: story.steps() >= before - age)
    backend = story.world.backend(LOST)
    assert isinstance(backend, TorchBackend)
    kept = backend.inner_state()
    story.until(lambda: story.steps() >= before)
    story.world.kill(LOST)
    back_ns = story.world.clock.now_ns() + DOWN_NS
    story.world.run(back_ns)
    fresh = new_backend(story.config, NAMES.index(LOST), len(NAMES))
    if way == "checkpoint":
        fresh.load_inner_state(kept)
    story.world.join(LOST, fresh, STEP_NS)
    story.until(lambda: story.steps() > SHOWN)
    [joined] = story.of(LearnerJoined, 2)
    made = next(event for event in story.of(ContributionAccepted, 2))
    assert isinstance(made, ContributionAccepted)
    steps = sum(event.at_ns <= made.at_ns for event in story.of(StepReported, 2))
    recovered = story.world.process(LOST).loop.recovered
    return Row(
        way,
        "" if recovered is None else recovered.value,
        steps,
        (made.at_ns - joined.at_ns) / 1e9,
        losses(story, 2)[:SHOWN],
    )


def never_gone(config: RunConfig, before: int) -> Row:
    """The same learner where nothing happens: as many steps as the others take meanwhile are left out."""
    story = Story(config)
    story.begin()
    story.until(lambda: story.steps() > before + SHOWN)
    return Row("never gone", "", 0, 0.0, losses(story, 1)[before : before + SHOWN])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-tiny", help="as model.spec")
    parser.add_argument("--before", type=int, default=100, help="steps before the death")
    parser.add_argument("--age", type=int, default=10, help="steps between the checkpoint and the death")
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of the table")
    arguments = parser.parse_args()
    config = apply(RunConfig(), [f"model.spec={arguments.model}", "run.steps=512"])
    with loading(config):
        rows = [never_gone(config, arguments.before)]
        rows += [returned(config, way, arguments.before, arguments.age) for way in ("donor", "checkpoint", "syncer")]
    if arguments.json:
        for row in rows:
            print(json.dumps(asdict(row)))
        return
    print(f"H = {config.protocol.interval_steps}")
    print(f"{'':<12}{'contributes after':>20}{'jump':>8}{'loss, steps 1-5':>17}{'1-20':>8}")
    for row in rows:
        after = f"{row.steps_to_contribution} steps, {row.seconds_to_contribution:.2f} s" if row.recovered else ""
        jump = row.losses[0] - rows[0].losses[0]
        early, all_of_them = statistics.fmean(row.losses[:5]), statistics.fmean(row.losses)
        print(f"{row.way:<12}{after:>20}{jump:>+8.3f}{early:>17.3f}{all_of_them:>8.3f}")


if __name__ == "__main__":
    main()

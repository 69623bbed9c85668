"""Virtual runs of toy learners in a folder, stopped wherever a test likes.

Decides what they train and who looks on. A run goes on in this process, from its checkpoint and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from unlockstep import config as run_config
from unlockstep.config import DataSection, RunConfig, RunSection
from unlockstep.core.chunks import Float32
from unlockstep.core.status import Score, Status
from unlockstep.launch.casting import cast
from unlockstep.launch.local import Outcome
from unlockstep.learners.toy import ToyBackend
from unlockstep.runlog import Header
from unlockstep.sim import story as stories
from unlockstep.tape import Tape
from unlockstep.virtual import checkpoint
from unlockstep.virtual.ring import MakeBackend, Ring
from unlockstep.virtual.run import Examiner, Files, Stage, VirtualRun

SIGNAL = 2


class Nobody:
    """Looks on and says nothing."""

    def show(self, status: Status, now_ns: int) -> None:
        return None

    def note(self, text: str, now_ns: int) -> None:
        assert "checkpoint" not in text, text


class Gauge:
    """Its loss is the mean square of all values; the model it saves is their bytes."""

    def __init__(self) -> None:
        self._values: dict[int, Float32] = {}

    def load(self, values: dict[int, Float32]) -> None:
        self._values.update(values)

    def evaluate(self, values: dict[int, Float32]) -> tuple[float, float, tuple[Score, ...]]:
        self.load(values)
        mean = float(np.mean(np.concatenate([self._values[fragment] for fragment in sorted(self._values)]) ** 2))
        return mean, mean / 2, ()

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "values").write_bytes(b"".join(self._values[fragment].tobytes() for fragment in sorted(self._values)))


class Site:
    """One run folder.

    Args:
        folder: of the run; it is made.
        config: of the run.
        tape: that is played.
        make: what learners train.
        examiner: made anew for every process.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        tape: Tape,
        make: MakeBackend,
        examiner: Callable[[], Examiner] = Gauge,
        **constants: object,
    ) -> None:
        folder.mkdir()
        self._config, self._tape, self._make, self._examiner = config, tape, make, examiner
        self._constants = {"make": make, **constants}
        self.files = Files(folder / "run.jsonl", folder / "checkpoint", folder / "model")

    def run(self, happenings: int | None = None) -> Outcome:
        """Begin or go on, and stop after so many happenings of this process; None: at the end."""
        if self.files.checkpoint.exists():
            stage = checkpoint.read(self.files.checkpoint, self._constants)
        else:
            stage = Stage(Ring(self._config, self._tape, self._make))
        left = happenings

        def stop() -> int | None:
            nonlocal left
            left = None if left is None else left - 1
            return SIGNAL if left == 0 else None

        header = Header(run=self._config.run.name, config_digest=run_config.digest(self._config))
        return VirtualRun(
            stage,
            header,
            self.files,
            constants=self._constants,
            examiner=self._examiner(),
            watcher=Nobody(),
            stop=stop,
        ).run()

    @property
    def left_behind(self) -> tuple[bytes, bytes]:
        """Run log and model."""
        model = self.files.model
        saved = [file.read_bytes() for file in sorted(model.iterdir())] if model.exists() else []
        return self.files.run_log.read_bytes(), b"".join(saved)


def drawn(seed: int, steps: int) -> tuple[RunConfig, Tape]:
    """Settings and a tape from a seed of the swarm: anything that may happen to a ring, on shards."""
    story = stories.draw(seed)
    count, protocol = len(story.tape.learners), story.config.protocol
    config = msgspec.structs.replace(
        story.config,
        protocol=msgspec.structs.replace(
            protocol, quorum=min(protocol.quorum, count), learners_max=max(protocol.learners_max, count)
        ),
        local=run_config.LocalSection(learners=count),
        run=RunSection(seed=seed, steps=steps),
        data=DataSection(),
        inner=run_config.InnerSection(schedule="constant"),
        evaluation=run_config.EvaluationSection(interval_s=1.0),
        virtual=run_config.VirtualSection(enabled=True, jitter=0.1 * (seed % 3), start_s=0.3 * (seed % 2)),
    )
    return cast(config, story.tape), story.tape


def toys(config: RunConfig) -> MakeBackend:
    """Learners with momentum, so that there is something to recover."""

    def make(shard: int, shard_count: int) -> ToyBackend:
        return ToyBackend(seed=shard, sizes=[4] * config.protocol.fragments, noise=0.1, momentum=0.5)

    return make

"""What virtual time costs: processor time of a step in ``train --virtual`` and of the same step in plain training.

One process holds a run of M learners under virtual time, and M more models that are trained without any protocol.
Blocks of equally many steps alternate: in one the run goes on (protocol, merge, codec, run log and checkpoints
included, evaluations not), in one the plain models take steps in turn, and in one a single plain model takes all of
them. The first round of blocks is not counted. Time is that of the process (all threads), which others on the machine
disturb least.

The column *outside* is what the run spends outside of inner steps, as a share of what it spends inside: the least
disturbed figure, but blind to what the protocol does to the caches. M models in turn are the same work as in the run.
One model alone is a little less: its parameters and moments stay in the processor's caches.

    python benchmarks/virtual_overhead.py [--case tiny ...] [--rounds 10] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unlockstep import config as run_config
from unlockstep.config import RunConfig
from unlockstep.core.status import Status
from unlockstep.runlog import Header

ENOUGH = -1
"""What ``stop`` says, in place of a signal."""


@dataclass(frozen=True, slots=True)
class Case:
    """Settings beside the defaults, and the length of a block."""

    settings: tuple[str, ...]
    steps: int
    """In a block, of all learners together."""


CASES = {
    "tiny": Case(("model.spec=llama-tiny",), 40),
    "tiny, M = 8": Case(("model.spec=llama-tiny", "local.learners=8"), 40),
    "tiny, int4": Case(("model.spec=llama-tiny", 'codec.upload="int4"'), 40),
    "tiny, nobody merges": Case(("model.spec=llama-tiny", "protocol.interval_steps=1000000"), 40),
}


@dataclass(frozen=True, slots=True)
class Overhead:
    """Processor time of a step, milliseconds; medians."""

    case: str
    parameters: int
    learners: int
    rounds: int
    alone_ms: float
    turns_ms: float
    virtual_ms: float
    outside: float
    """Of the run's blocks: time outside of inner steps, as a share of the time inside."""
    overhead: tuple[float, float, float]
    """(virtual - turns) / turns: median over the rounds of blocks, and quartiles."""
    overhead_alone: tuple[float, float, float]
    """(virtual - alone) / alone."""


class Nobody:
    """Looks on and says nothing."""

    def show(self, status: Status, now_ns: int) -> None:
        return None

    def note(self, text: str, now_ns: int) -> None:
        return None


def measure(name: str, rounds: int, folder: Path) -> Overhead:
    """Let a run go on in blocks, with the plain learner's blocks between them."""
    case = CASES[name]
    config = run_config.apply(RunConfig(), [*case.settings, "run.steps=1000000", "local.kill_share=0"])
    from unlockstep.cli.assembly import load_text, loading, new_backend
    from unlockstep.virtual.ring import Ring, own_tape
    from unlockstep.virtual.run import Files, Stage, VirtualRun

    with loading(config):
        text = load_text(config)

    inside_s: list[float] = []

    def make(shard: int, shard_count: int):  # type: ignore[no-untyped-def]
        backend = new_backend(config, shard, shard_count, text, is_alone=False)
        inner_step = backend.inner_step

        def timed(clock: int) -> object:
            began_s = time.process_time()
            stats = inner_step(clock)
            inside_s.append(time.process_time() - began_s)
            return stats

        backend.inner_step = timed  # type: ignore[method-assign, assignment]
        return backend

    count = config.local.learners
    plain = [new_backend(config, shard, count, text, is_alone=False) for shard in range(count)]
    ring = Ring(config, own_tape(config), make)
    folder.mkdir()
    blocks = _Blocks(rounds, case.steps, count, lambda: sum(each.steps for each in ring.world.processes()))

    def train_plainly(models: int) -> None:
        for step in range(case.steps):
            plain[step % models].inner_step(0)

    VirtualRun(
        Stage(ring),
        Header(run=config.run.name, config_digest=run_config.digest(config)),
        Files(folder / "run.jsonl", folder / "checkpoint", folder / "model"),
        constants={"make": make, "text": text.training},
        examiner=None,
        watcher=Nobody(),
        stop=lambda: blocks.look(train_plainly, name),
    ).run()
    return Overhead(
        case=name,
        parameters=sum(parameter.numel() for parameter in plain[0].model.parameters()),
        learners=count,
        rounds=rounds,
        alone_ms=1e3 * statistics.median(blocks.alone),
        turns_ms=1e3 * statistics.median(blocks.turns),
        virtual_ms=1e3 * statistics.median(blocks.virtual),
        outside=sum(blocks.virtual) / len(blocks.virtual) * len(inside_s) / sum(inside_s) - 1,
        overhead=_overhead(blocks.virtual, blocks.turns),
        overhead_alone=_overhead(blocks.virtual, blocks.alone),
    )


def _overhead(virtual: list[float], plain: list[float]) -> tuple[float, float, float]:
    """Median and quartiles."""
    shares = sorted(v / p - 1 for v, p in zip(virtual, plain, strict=True))
    return statistics.median(shares), shares[len(shares) // 4], shares[-1 - len(shares) // 4]


class _Blocks:
    """Ends a block of the run when it has taken enough steps, and times blocks of the other kinds before the next."""

    def __init__(self, rounds: int, steps: int, models: int, taken: Callable[[], int]) -> None:
        self.virtual: list[float] = []
        self.turns: list[float] = []
        self.alone: list[float] = []
        self._rounds, self._steps, self._models, self._taken = rounds, steps, models, taken
        self._until = 0
        self._began: tuple[float, int] | None = None
        """Of the present block: processor time, and steps taken before it."""

    def look(self, train_plainly: Callable[[int], None], name: str) -> int | None:
        taken = self._taken()
        if taken < self._until:
            return None
        if self._began is not None:
            began_s, before = self._began
            self.virtual.append((time.process_time() - began_s) / (taken - before))
            print(f"{name}: round {len(self.virtual) - 1} of {self._rounds}", file=sys.stderr)
            for models, times in ((self._models, self.turns), (1, self.alone)):
                began_s = time.process_time()
                train_plainly(models)
                times.append((time.process_time() - began_s) / self._steps)
        if len(self.virtual) > self._rounds:
            del self.virtual[0], self.turns[0], self.alone[0]
            return ENOUGH
        self._until = taken + self._steps
        self._began = time.process_time(), taken
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(name, arguments.rounds, Path(folder) / name) for name in arguments.case]
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = Table(title="a step alone, in turn with others, and under virtual time (medians; quartiles in brackets)")
    for column in (
        "case",
        "parameters",
        "M",
        "alone ms",
        "in turn ms",
        "virtual ms",
        "outside",
        "over in turn",
        "over alone",
    ):
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=True)
    for r in results:
        times = (f"{ms:.1f}" for ms in (r.alone_ms, r.turns_ms, r.virtual_ms))
        shares = (f"{m:+.1%} [{low:+.1%}, {high:+.1%}]" for m, low, high in (r.overhead, r.overhead_alone))
        table.add_row(r.case, f"{r.parameters:,}", str(r.learners), *times, f"{r.outside:.1%}", *shares)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

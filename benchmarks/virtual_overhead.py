"""What virtual time costs: processor time of a step in ``train --virtual`` and of the same step in plain training.

One process holds a run of several learners under virtual time, and one more learner that trains by itself. Blocks of
equally many steps alternate: in one the run goes on (protocol, merge, codec, run log and checkpoints included,
evaluations not), in the other the plain learner does. The order within a pair of blocks alternates, so that a drift of
the machine favours neither. The first pair is not counted. Time is that of the process (all threads), which others on
the machine disturb least.

    python benchmarks/virtual_overhead.py [--case tiny ...] [--pairs 10] [--json]
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
    pairs: int
    plain_ms: float
    virtual_ms: float
    overhead_median: float
    """Median over pairs of (virtual - plain) / plain."""
    overhead_low: float
    overhead_high: float


class Nobody:
    """Looks on and says nothing."""

    def show(self, status: Status, now_ns: int) -> None:
        return None

    def note(self, text: str, now_ns: int) -> None:
        return None


def measure(name: str, pairs: int, folder: Path) -> Overhead:
    """Let a run go on in blocks, with the plain learner's blocks between them."""
    case = CASES[name]
    config = run_config.apply(RunConfig(), [*case.settings, "run.steps=1000000", "local.kill_share=0"])
    from unlockstep.cli.assembly import load_text, loading, new_backend
    from unlockstep.virtual.ring import Ring, own_tape
    from unlockstep.virtual.run import Files, Stage, VirtualRun

    with loading(config):
        text = load_text(config)

    def make(shard: int, shard_count: int):  # type: ignore[no-untyped-def]
        return new_backend(config, shard, shard_count, text, is_alone=False)

    plain = new_backend(config, 0, 1, text)
    ring = Ring(config, own_tape(config), make)
    folder.mkdir()
    blocks = _Blocks(pairs, case.steps, lambda: sum(each.steps for each in ring.world.processes()))

    def train_plainly() -> None:
        for _ in range(case.steps):
            plain.inner_step(0)

    VirtualRun(
        Stage(ring),
        Header(run=config.run.name, config_digest=run_config.digest(config)),
        Files(folder / "run.jsonl", folder / "checkpoint", folder / "model"),
        constants={"make": make, "text": text.training},
        examiner=None,
        watcher=Nobody(),
        stop=lambda: blocks.look(train_plainly, name),
    ).run()
    shares = sorted((virtual - alone) / alone for virtual, alone in zip(blocks.virtual, blocks.plain, strict=True))
    return Overhead(
        case=name,
        parameters=sum(parameter.numel() for parameter in plain.model.parameters()),
        learners=config.local.learners,
        pairs=pairs,
        plain_ms=1e3 * statistics.median(blocks.plain),
        virtual_ms=1e3 * statistics.median(blocks.virtual),
        overhead_median=statistics.median(shares),
        overhead_low=shares[len(shares) // 4],
        overhead_high=shares[-1 - len(shares) // 4],
    )


class _Blocks:
    """Ends a block of the run when it has taken enough steps, and times one of the other kind before the next."""

    def __init__(self, pairs: int, steps: int, taken: Callable[[], int]) -> None:
        self.virtual: list[float] = []
        self.plain: list[float] = []
        self._pairs, self._steps, self._taken = pairs, steps, taken
        self._until = 0
        self._began: tuple[float, int] | None = None
        """Of the present block: processor time, and steps taken before it."""

    def look(self, train_plainly: Callable[[], None], name: str) -> int | None:
        taken = self._taken()
        if taken < self._until:
            return None
        if self._began is not None:
            began_s, before = self._began
            self.virtual.append((time.process_time() - began_s) / (taken - before))
            print(f"{name}: pair {len(self.virtual) - 1} of {self._pairs}", file=sys.stderr)
        if len(self.plain) <= self._pairs:
            began_s = time.process_time()
            train_plainly()
            self.plain.append((time.process_time() - began_s) / self._steps)
        if len(self.virtual) > self._pairs:
            del self.virtual[0], self.plain[0]
            return ENOUGH
        self._until = taken + self._steps
        self._began = time.process_time(), taken
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(name, arguments.pairs, Path(folder) / name) for name in arguments.case]
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = Table(title="a step in plain training and under virtual time (medians; quartiles of the pairs in brackets)")
    for column in ("case", "parameters", "learners", "plain ms", "virtual ms", "overhead"):
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=True)
    for r in results:
        spread = f"{r.overhead_median:+.1%} [{r.overhead_low:+.1%}, {r.overhead_high:+.1%}]"
        table.add_row(r.case, f"{r.parameters:,}", str(r.learners), f"{r.plain_ms:.1f}", f"{r.virtual_ms:.1f}", spread)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

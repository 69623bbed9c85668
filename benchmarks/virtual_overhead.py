"""What virtual time costs: a step in ``train --virtual``, and the same step in plain training.

One process holds a run of M learners under virtual time, and M more models that are trained without any protocol.
Short blocks of equally many steps alternate: in one the run goes on (protocol, merge, codec and run log included,
evaluations not), in one the plain models take steps in turn, and in one a single plain model takes all of them. The
first round of blocks is not counted.

*In turn* is the same work as in the run, and the comparison that is meant by overhead: M models do not stay in the
processor's caches. *Alone* is what somebody sees who trains one model. Both are of processor time of all threads, which
others on the machine disturb least; the wall time is beside it. *Outside* is what the run spends outside of inner
steps, as a share of what it spends inside: blind to what the protocol does to the caches of the steps.

A run writes a checkpoint every 30 s, or less often where one takes long. It is no part of the medians of short blocks,
so it is timed by itself, at the end: *checkpoint*, and its share of the time between two. Whatever the run does by the
clock is done by the processor time of its own blocks, so as often as on a machine with nobody else.

    python benchmarks/virtual_overhead.py [--case tiny ...] [--rounds 16] [--json]
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
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from unlockstep import config as run_config
from unlockstep.config import RunConfig
from unlockstep.core.status import Status
from unlockstep.learners.backend import StepStats
from unlockstep.runlog import Header

ENOUGH = -1
"""What ``stop`` says, in place of a signal."""


@dataclass(frozen=True, slots=True)
class Case:
    """Settings beside the defaults, and the length of a block."""

    settings: tuple[str, ...]
    steps: int = 16
    """In a block, of all learners together: of each equally many."""


CASES = {
    "tiny": Case(("model.spec=llama-tiny",)),
    "tiny, M = 8": Case(("model.spec=llama-tiny", "local.learners=8"), 32),
    "tiny, batch 16": Case(("model.spec=llama-tiny", "inner.batch_size=16")),
    "tiny, int4": Case(("model.spec=llama-tiny", 'codec.upload="int4"')),
    "tiny, nobody merges": Case(("model.spec=llama-tiny", "protocol.interval_steps=1000000")),
    "20m": Case(("model.spec=llama-20m",), 4),
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Over the rounds: median and quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.1%} [{self.low:+.1%}, {self.high:+.1%}]"


@dataclass(frozen=True, slots=True)
class Overhead:
    """Of one case. Times are of a step, milliseconds, medians; of the processor unless they are named wall."""

    case: str
    parameters: int
    learners: int
    rounds: int
    alone_ms: float
    turns_ms: float
    virtual_ms: float
    turns_wall_ms: float
    virtual_wall_ms: float
    outside: Spread
    """Of the run's blocks: time outside of inner steps, as a share of the time inside."""
    over_turns: Spread
    """(virtual - turns) / turns."""
    over_alone: Spread
    """(virtual - alone) / alone."""
    over_turns_wall: Spread
    checkpoint_ms: float
    """Processor time of the one at the end, the first of the process."""
    checkpoint_share: float
    """Of the time between two: ``checkpoint.interval_s``, or more where one takes long."""


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

    blocks = _Blocks(name, rounds, case.steps)

    def make(shard: int, shard_count: int):  # type: ignore[no-untyped-def]
        backend = new_backend(config, shard, shard_count, text, is_alone=False)
        backend.inner_step = blocks.inside(backend.inner_step)  # type: ignore[method-assign]
        return backend

    count = config.local.learners
    plain = [new_backend(config, shard, count, text, is_alone=False) for shard in range(count)]
    ring = Ring(config, own_tape(config), make)
    folder.mkdir()

    def train_plainly(models: int) -> None:
        for step in range(case.steps):
            plain[step % models].inner_step(0)

    VirtualRun(
        Stage(ring),
        Header(run=config.run.name, config_digest=run_config.digest(config)),
        Files(folder / "run.jsonl", folder / "checkpoint", folder / "model"),
        constants={"make": make, "text": text.training, "blocks": blocks},
        examiner=None,
        watcher=Nobody(),
        stop=lambda: blocks.look(lambda: train_plainly(count), lambda: train_plainly(1)),
        now_ns=blocks.now_ns,
    ).run()
    checkpoint_s = time.process_time() - blocks.ended_s
    parameters = sum(parameter.numel() for parameter in plain[0].model.parameters())
    return _summed_up(config, parameters, blocks, checkpoint_s)


def _summed_up(config: RunConfig, parameters: int, blocks: _Blocks, checkpoint_s: float) -> Overhead:
    from unlockstep.virtual.run import CHECKPOINT_SHARE_MAX

    virtual, turns, alone = blocks.virtual, blocks.turns, blocks.alone
    return Overhead(
        case=blocks.name,
        parameters=parameters,
        learners=config.local.learners,
        rounds=len(virtual),
        alone_ms=_median_ms(alone, 0),
        turns_ms=_median_ms(turns, 0),
        virtual_ms=_median_ms(virtual, 0),
        turns_wall_ms=_median_ms(turns, 1),
        virtual_wall_ms=_median_ms(virtual, 1),
        outside=_spread([taken.cpu_s / taken.inside_s - 1 for taken in virtual]),
        over_turns=_over(virtual, turns, 0),
        over_alone=_over(virtual, alone, 0),
        over_turns_wall=_over(virtual, turns, 1),
        checkpoint_ms=1e3 * checkpoint_s,
        checkpoint_share=checkpoint_s / max(config.checkpoint.interval_s, checkpoint_s / CHECKPOINT_SHARE_MAX),
    )


class _Taken(NamedTuple):
    """By a step of a block, seconds."""

    cpu_s: float
    wall_s: float
    inside_s: float
    """Processor time of the inner step itself."""


def _median_ms(blocks: list[_Taken], which: int) -> float:
    return 1e3 * statistics.median(block[which] for block in blocks)


def _over(virtual: list[_Taken], plain: list[_Taken], which: int) -> Spread:
    """Each block of the run with the plain one beside it."""
    return _spread([v[which] / p[which] - 1 for v, p in zip(virtual, plain, strict=True)])


def _spread(shares: list[float]) -> Spread:
    ordered = sorted(shares)
    quarter = len(ordered) // 4
    return Spread(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])


class _Blocks:
    """Ends a block of the run when it has taken enough steps, and times blocks of the other kinds before the next."""

    def __init__(self, name: str, rounds: int, steps: int) -> None:
        self.virtual: list[_Taken] = []
        self.turns: list[_Taken] = []
        self.alone: list[_Taken] = []
        self.name, self._rounds, self._steps = name, rounds, steps
        self._count = 0
        """Steps of the present block of the run."""
        self._inside_s = 0.0
        self.ended_s = 0.0
        """When the last block had ended: what follows is a checkpoint."""
        self._elsewhere_ns = 0
        """Processor time of the plain blocks."""
        self._began: tuple[float, float] | None = None

    def now_ns(self) -> int:
        """Processor time of the run's own blocks."""
        return time.process_time_ns() - self._elsewhere_ns

    def inside(self, inner_step: Callable[[int], StepStats]) -> Callable[[int], StepStats]:
        """The same, counted and timed."""

        def timed(clock: int) -> StepStats:
            began_s = time.process_time()
            stats = inner_step(clock)
            self._inside_s += time.process_time() - began_s
            self._count += 1
            return stats

        return timed

    def look(self, in_turn: Callable[[], None], alone: Callable[[], None]) -> int | None:
        """Called after whatever happens in the run."""
        if self._began is not None and self._count < self._steps:
            return None
        if self._began is not None:
            self.virtual.append(self._since(*self._began, self._count))
            print(f"{self.name}: round {len(self.virtual) - 1} of {self._rounds}", file=sys.stderr)
            began_ns = time.process_time_ns()
            for train, times in ((in_turn, self.turns), (alone, self.alone)):
                began = time.process_time(), time.perf_counter()
                train()
                times.append(self._since(*began, self._steps))
            self._elsewhere_ns += time.process_time_ns() - began_ns
        if len(self.virtual) > self._rounds:
            del self.virtual[0], self.turns[0], self.alone[0]
            self.ended_s = time.process_time()
            return ENOUGH
        self._count, self._inside_s = 0, 0.0
        self._began = time.process_time(), time.perf_counter()
        return None

    def _since(self, cpu_s: float, wall_s: float, steps: int) -> _Taken:
        return _Taken(
            (time.process_time() - cpu_s) / steps, (time.perf_counter() - wall_s) / steps, self._inside_s / steps
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=sorted(CASES), default=["tiny"])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(name, arguments.rounds, Path(folder) / name) for name in arguments.case]
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = Table(title="a step, and what virtual time adds to it (medians; quartiles in brackets)", show_lines=True)
    for column in ("case", "parameters", "M", "", "alone", "in turn", "virtual", "over in turn", "over alone"):
        table.add_column(column, justify="left" if column in ("case", "") else "right", no_wrap=True)
    for r in results:
        table.add_row(
            r.case,
            f"{r.parameters:,}",
            str(r.learners),
            "processor, ms\nwall, ms\noutside\ncheckpoint",
            f"{r.alone_ms:.1f}",
            f"{r.turns_ms:.1f}\n{r.turns_wall_ms:.1f}",
            f"{r.virtual_ms:.1f}\n{r.virtual_wall_ms:.1f}\n{r.outside}\n{r.checkpoint_ms:.0f} ms",
            f"{r.over_turns}\n{r.over_turns_wall}\n\n{r.checkpoint_share:+.1%}",
            str(r.over_alone),
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

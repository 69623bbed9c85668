"""What joining costs a learner: step time of the same loop alone and joined to a syncer, in alternating blocks.

One process trains; a syncer runs in another, pinned to the last core where the system allows it. In the blocks called
*alone* the loop takes optimizer steps and nothing else; in those called *joined* it reports every step, hands over
fragments and adopts commits. The order within a pair of blocks alternates, so that a drift of the machine favours
neither. The first pair is not counted.

    python benchmarks/learner_overhead.py [--case tiny tiny-rare 20m] [--pairs 10] [--courier process] [--json]

A round costs the learner a fixed amount of Python in the link's thread (messages, two jobs for the courier), which
takes turns with the training thread at the interpreter lock. Against a step of 600 ms that is nothing; against one of
40 ms it is what the case ``tiny`` shows, and ``tiny-rare``, with a round every sixth step, shows that it is per round.
With ``--courier thread`` bodies are carried by threads of the learner, which take turns there too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table

from unlockstep.net.clients.learner import CourierKind


@dataclass(frozen=True, slots=True)
class Case:
    """A model and how often its fragments are merged."""

    model: str
    fragments: int
    interval_steps: int
    block_s: float
    """Length of a block, seconds."""


CASES = {
    "tiny": Case("llama-tiny", fragments=4, interval_steps=4, block_s=2.0),
    "tiny-rare": Case("llama-tiny", fragments=4, interval_steps=24, block_s=2.0),
    "20m": Case("llama-20m", fragments=24, interval_steps=24, block_s=8.0),
}


@dataclass(frozen=True, slots=True)
class Overhead:
    """Step times of one model, milliseconds; medians."""

    case: str
    parameters: int
    steps_per_round: float
    pairs: int
    steps_per_block: int
    alone_ms: float
    joined_ms: float
    overhead_median: float
    """Median over pairs of (joined - alone) / alone, of the blocks' mean step times."""
    overhead_low: float
    overhead_high: float
    boundary_ms: float
    """Median time inside ``learner.step``."""


def measure(name: str, pairs: int, folder: Path, courier: CourierKind) -> Overhead:
    """Start a syncer for this case, join it, and time alternating blocks."""
    case = CASES[name]
    settings = [
        f"model.spec={case.model}",
        "run.steps=1000000000",
        f"protocol.fragments={case.fragments}",
        f"protocol.interval_steps={case.interval_steps}",
        "limits.outlier_factor=0",  # After a block alone, the way of all its steps is in one contribution.
    ]
    command = [sys.executable, "-m", "unlockstep", "syncer", "--listen", "127.0.0.1:0", "--run-dir", str(folder / name)]
    for setting in settings:
        command += ["--set", setting]
    syncer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(syncer.pid, {max(os.sched_getaffinity(0))})
        assert syncer.stdout is not None
        words = (word for line in syncer.stdout for word in line.split())
        url = next(word for word in words if word.startswith("http://")).rstrip(",")
        return _time_blocks(name, url, pairs, courier)
    finally:
        syncer.terminate()
        syncer.wait(timeout=10)


def _time_blocks(name: str, url: str, pairs: int, courier: CourierKind) -> Overhead:
    case = CASES[name]
    from unlockstep import Learner
    from unlockstep import config as run_config
    from unlockstep.cli.assembly import loading, new_backend
    from unlockstep.net.clients.observer import read_config

    config = run_config.loads(read_config(url), source=url)
    with loading(config):
        backend = new_backend(config, shard=0, shard_count=1)
    began_s = time.perf_counter()
    for _ in range(3):
        backend.inner_step(0)
    steps = max(2, round(case.block_s / ((time.perf_counter() - began_s) / 3)))
    alone: list[float] = []
    joined: list[float] = []
    boundaries: list[float] = []
    with Learner(backend.model, backend.optimizer, syncer=url, name="measured", courier=courier) as learner:

        def block(join: bool) -> float:
            began_s = time.perf_counter()
            for _ in range(steps):
                stats = backend.inner_step(0)
                if join:
                    boundary_s = time.perf_counter()
                    learner.step(stats.tokens)
                    boundaries.append(time.perf_counter() - boundary_s)
            return (time.perf_counter() - began_s) / steps

        for pair in range(pairs + 1):
            order = (False, True) if pair % 2 else (True, False)
            times = {join: block(join) for join in order}
            if pair > 0:
                alone.append(times[False])
                joined.append(times[True])
            print(f"{name}: pair {pair} of {pairs}", file=sys.stderr)
    shares = sorted((j - a) / a for a, j in zip(alone, joined, strict=True))
    return Overhead(
        case=name,
        steps_per_round=case.interval_steps / case.fragments,
        parameters=sum(parameter.numel() for parameter in backend.model.parameters()),
        pairs=pairs,
        steps_per_block=steps,
        alone_ms=1e3 * statistics.median(alone),
        joined_ms=1e3 * statistics.median(joined),
        overhead_median=statistics.median(shares),
        overhead_low=shares[len(shares) // 4],
        overhead_high=shares[-1 - len(shares) // 4],
        boundary_ms=1e3 * statistics.median(boundaries),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--courier", choices=get_args(CourierKind), default="process")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(name, arguments.pairs, Path(folder), arguments.courier) for name in arguments.case]
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = Table(title="a learner's step, alone and joined (medians; quartiles of the pairs in brackets)")
    for column in ("case", "parameters", "steps a round", "alone ms", "joined ms", "overhead", "in step()"):
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=True)
    for r in results:
        spread = f"{r.overhead_median:+.2%} [{r.overhead_low:+.2%}, {r.overhead_high:+.2%}]"
        times = (f"{r.alone_ms:.1f}", f"{r.joined_ms:.1f}", spread, f"{r.boundary_ms:.2f} ms")
        table.add_row(r.case, f"{r.parameters:,}", f"{r.steps_per_round:g}", *times)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

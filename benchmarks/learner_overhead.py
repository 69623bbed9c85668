"""What joining costs a learner: step time of the same loop alone and joined to a syncer, in alternating blocks.

One process trains; a syncer runs in another, pinned to the last core where the system allows it. In the blocks called
*alone* the loop takes optimizer steps and nothing else; in those called *joined* it reports every step, hands over
fragments and adopts commits. The order within a pair of blocks alternates, so that a drift of the machine favours
neither. The first pair is not counted.

    python benchmarks/learner_overhead.py [--model llama-tiny llama-20m] [--pairs 10] [--json]
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

from rich.console import Console
from rich.table import Table

SECONDS_PER_BLOCK = {"llama-tiny": 2.0, "llama-20m": 8.0}
FRAGMENTS = {"llama-tiny": 8, "llama-20m": 24}


@dataclass(frozen=True, slots=True)
class Overhead:
    """Step times of one model, milliseconds; medians."""

    model: str
    parameters: int
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
    rounds: int


def measure(model: str, pairs: int, folder: Path) -> Overhead:
    """Start a syncer for this model, join it, and time alternating blocks."""
    fragments = FRAGMENTS[model]
    settings = [
        f"model.spec={model}",
        "run.steps=1000000000",
        f"protocol.fragments={fragments}",
        f"protocol.interval_steps={fragments}",
    ]
    command = [sys.executable, "-m", "unlockstep", "syncer", "--port", "0", "--run-dir", str(folder / model)]
    for setting in settings:
        command += ["--set", setting]
    syncer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(syncer.pid, {max(os.sched_getaffinity(0))})
        assert syncer.stdout is not None
        words = (word for line in syncer.stdout for word in line.split())
        url = next(word for word in words if word.startswith("http://")).rstrip(",")
        return _time_blocks(model, url, pairs)
    finally:
        syncer.terminate()
        syncer.wait(timeout=10)


def _time_blocks(model: str, url: str, pairs: int) -> Overhead:
    from unlockstep import Learner
    from unlockstep import config as run_config
    from unlockstep.cli.assembly import loading, new_backend
    from unlockstep.net.observer_client import read_config

    config = run_config.loads(read_config(url), source=url)
    with loading(config):
        backend = new_backend(config, shard=0, shard_count=1)
    began_s = time.perf_counter()
    for _ in range(3):
        backend.inner_step(0)
    steps = max(2, round(SECONDS_PER_BLOCK[model] / ((time.perf_counter() - began_s) / 3)))
    alone: list[float] = []
    joined: list[float] = []
    boundaries: list[float] = []
    with Learner(backend.model, backend.optimizer, syncer=url, name="measured") as learner:

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
            print(f"{model}: pair {pair} of {pairs}", file=sys.stderr)
        rounds = learner.clock // config.protocol.interval_steps * config.protocol.fragments
    shares = sorted((j - a) / a for a, j in zip(alone, joined, strict=True))
    return Overhead(
        model=model,
        parameters=sum(parameter.numel() for parameter in backend.model.parameters()),
        pairs=pairs,
        steps_per_block=steps,
        alone_ms=1e3 * statistics.median(alone),
        joined_ms=1e3 * statistics.median(joined),
        overhead_median=statistics.median(shares),
        overhead_low=shares[len(shares) // 4],
        overhead_high=shares[-1 - len(shares) // 4],
        boundary_ms=1e3 * statistics.median(boundaries),
        rounds=rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=sorted(FRAGMENTS), default=["llama-tiny", "llama-20m"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(model, arguments.pairs, Path(folder)) for model in arguments.model]
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = Table(title="a learner's step, alone and joined (medians; quartiles of the pairs in brackets)")
    for column in ("model", "parameters", "alone ms", "joined ms", "overhead", "in learner.step ms"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for r in results:
        spread = f"{r.overhead_median:+.2%} [{r.overhead_low:+.2%}, {r.overhead_high:+.2%}]"
        table.add_row(
            r.model, f"{r.parameters:,}", f"{r.alone_ms:.1f}", f"{r.joined_ms:.1f}", spread, f"{r.boundary_ms:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()

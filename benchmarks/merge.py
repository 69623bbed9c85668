"""How fast the syncer merges one fragment and takes the outer step, against a copy measured in the same run.

    python benchmarks/merge.py --size 16777216 --contributions 8 --repeats 9

Every step allocates its result, as a commit does. ``GB/s`` counts the bytes of all contributions once, although
radial-directional averaging reads them twice. ``floor`` is the time to copy every contribution twice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np

from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.core.merge import Entry, MergeRule, merge
from unlockstep.core.outer import Nesterov

THREADS = (1, 2)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    threads: int
    median_ms: float
    gigabytes_per_s: float
    share_of_floor: float | None


def median_ms(step: Callable[[], object], repeats: int) -> float:
    """Median wall time of ``step`` after one run that does not count."""
    step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def measure(size: int, contributions: int, repeats: int) -> list[Row]:
    """The copy, then both rules with the Nesterov step, on each number of threads."""
    random = np.random.default_rng(0)
    entries = [
        Entry(learner=f"learner{i}", delta=random.standard_normal(size, np.float32), weight=1.0 + i)
        for i in range(contributions)
    ]
    tensor = TensorSpec(name="weight", shape=(size,), dtype="float32", role=Role.PARAMETER)
    (slots,) = build_layout([tensor], 1, LayoutMethod.BALANCED).fragments
    optimizer = Nesterov(learning_rate=0.7, momentum=0.9)
    params, state, target = np.zeros((3, size), np.float32)
    gigabytes = 4e-9 * size

    def commit(rule: MergeRule, executor: Executor | None) -> None:
        delta = merge(entries, slots, rule, executor=executor)
        optimizer.update(delta, state, params, out=delta, executor=executor)

    copy_ms = median_ms(lambda: np.copyto(target, entries[0].delta), repeats)
    floor_ms = 2 * contributions * copy_ms
    rows = [Row("copy of one contribution", 1, copy_ms, gigabytes / copy_ms * 1e3, None)]
    for rule, what in ((MergeRule.MEAN, "weighted mean"), (MergeRule.RADIAL_DIRECTIONAL, "radial-directional")):
        for threads in THREADS:
            with ThreadPoolExecutor(threads) as executor:
                lent = None if threads == 1 else executor
                elapsed_ms = median_ms(lambda: commit(rule, lent), repeats)  # noqa: B023, run before they change
            rate = contributions * gigabytes / elapsed_ms * 1e3
            rows.append(Row(f"{what} + Nesterov", threads, elapsed_ms, rate, elapsed_ms / floor_ms))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Merge and outer step of one fragment, against a copy.")
    parser.add_argument("--size", type=int, default=16 * 1024 * 1024, help="float32 elements per contribution")
    parser.add_argument("--contributions", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    rows = measure(arguments.size, arguments.contributions, arguments.repeats)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{arguments.contributions} contributions of {arguments.size} float32")
    print(f"{'':36}{'threads':>8}{'median ms':>12}{'GB/s':>8}{'x floor':>9}")
    for row in rows:
        share = "" if row.share_of_floor is None else f"{row.share_of_floor:.2f}"
        print(f"{row.what:36}{row.threads:>8}{row.median_ms:>12.1f}{row.gigabytes_per_s:>8.1f}{share:>9}")


if __name__ == "__main__":
    main()

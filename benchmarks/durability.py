"""What it takes to make a commit durable, and what that costs a run in each mode of ``[durability]``.

    python benchmarks/durability.py --folder . --repeats 15

First table: a fragment file and a record, against writing the same bytes and not waiting. A fragment file holds values
and outer state, half and half. ``fsync`` is the time spent waiting for the disk, ``SHA-256`` that of hashing the bytes
once; the rest is copying them to the operating system. Medians of all but the first commit.

Second table: commits of a model in 24 fragments, one after the other as fast as they come: merge of two contributions,
outer step, save. ``told after`` is the time from a commit's being computed to its being announced, ``a commit`` the
time from one to the next. In a syncer the next merge goes on while the last is saved; here it waits.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from unlockstep.config import Durability, DurabilitySection, RunConfig
from unlockstep.core.actions import Commit, Save, Share
from unlockstep.core.layout import Layout, LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.syncer import SyncerCore
from unlockstep.keeper import Keeper, Snapshot
from unlockstep.promises import Promises
from unlockstep.runlog import Mark
from unlockstep.store.place import Disk, LocalPlace
from unlockstep.store.run_store import Record, RunStore
from unlockstep.storehouse import Inspection, Storehouse

SIZES_MB = (1, 16, 64)
FRAGMENTS = 24
MODES = {
    "not at all": None,
    "interval, 64 commits": DurabilitySection(mode=Durability.INTERVAL, interval_commits=64),
    "interval, 16 commits": DurabilitySection(mode=Durability.INTERVAL, interval_commits=16),
    "commit": DurabilitySection(),
}


class TimingDisk(Disk):
    """Adds up the time spent waiting for the disk."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def fsync(self, descriptor: int) -> None:
        start = time.perf_counter()
        super().fsync(descriptor)
        self.waited_s += time.perf_counter() - start

    def fsync_folder(self, path: str) -> None:
        start = time.perf_counter()
        super().fsync_folder(path)
        self.waited_s += time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times are medians."""

    size_mb: int
    commit_ms: float
    fsync_ms: float
    sha256_ms: float
    plain_ms: float


def measure(folder: Path, size_mb: int, repeats: int) -> Row:
    """Commits of one fragment of ``size_mb`` * 10**6 bytes, each followed by pruning, which is not timed."""
    elements = size_mb * 10**6 // 8
    tensor = TensorSpec(name="weight", shape=(elements,), dtype="float32", role=Role.PARAMETER)
    layout = build_layout([tensor], 1, LayoutMethod.BALANCED)
    values, state = np.random.default_rng(0).standard_normal((2, elements), np.float32)
    disk = TimingDisk()
    store = RunStore(LocalPlace(folder / "store", disk))
    plain_file = folder / "plain"
    columns: list[tuple[float, float, float, float]] = []
    for number in range(1, repeats + 2):
        values[0] = number
        disk.waited_s = 0.0
        start = time.perf_counter()
        file = store.write_fragment(layout, 0, number, "digest", values, state)
        record = Record(
            number=number,
            epoch=1,
            run="run",
            run_id="id",
            config_digest="config",
            layout_digest=layout.digest,
            written_at=time.time(),
            fragments=(file,),
            state=msgspec.Raw(b"{}"),
        )
        assert store.write_record(record)
        committed = time.perf_counter()
        hashlib.sha256(values).update(state)
        hashed = time.perf_counter()
        with plain_file.open("wb", buffering=0) as plain:
            plain.write(values)
            plain.write(state)
        written = time.perf_counter()
        columns.append((committed - start, disk.waited_s, hashed - committed, written - hashed))
        plain_file.unlink()
        store.prune()
    commit, fsync, sha256, plain = (1e3 * statistics.median(column) for column in zip(*columns[1:], strict=True))
    return Row(size_mb, commit, fsync, sha256, plain)


def fragments_of(elements: int) -> Layout:
    """24 equal ones."""
    tensors = [
        TensorSpec(name=f"layers.{number}.weight", shape=(elements,), dtype="float32", role=Role.PARAMETER)
        for number in range(FRAGMENTS)
    ]
    return build_layout(tensors, FRAGMENTS, LayoutMethod.TENSOR)


def measure_mode(folder: Path, elements: int, commits: int, mode: DurabilitySection | None) -> tuple[float, float]:
    """Median milliseconds from a commit to its announcement, and mean milliseconds from one commit to the next."""
    durability = mode or DurabilitySection()
    config = RunConfig(protocol=ProtocolOptions(fragments=FRAGMENTS), durability=durability)
    layout = fragments_of(elements)
    house = Storehouse(layout, config)
    random = np.random.default_rng(0)
    for fragment in range(FRAGMENTS):
        house.seed(fragment, random.standard_normal(elements, np.float32))
    delta = random.standard_normal(elements, np.float32)
    store = RunStore(LocalPlace(folder), FRAGMENTS + 2)
    keeper = Keeper(store, "run", "config", 1, 0, {})
    promises = Promises(durability.commits_lost_max)
    run = SyncerCore("run", config.protocol, 0, 0, "id").saved(0)

    def save() -> None:
        if mode is not None:
            keeper.save(
                Snapshot(run=run, layout=layout, kept=house.kept(), norms=house.norms, log=Mark("run.jsonl", 0))
            )

    save()
    told_s: list[float] = []
    began_s = time.perf_counter()
    for number in range(commits):
        fragment = number % FRAGMENTS
        payloads = [house.hold(fragment, Inspection(None, "", 1.0, delta)) for _ in range(2)]
        shares = tuple(Share(str(payload), 0.5, (payload,), (0,)) for payload in payloads)
        commit = Commit(number, fragment, number // FRAGMENTS + 1, shares)
        house.publish(commit, house.prepare(commit))
        computed_s = time.perf_counter()
        promises.need(Save(is_commit=True))
        promises.send(lambda computed_s=computed_s: told_s.append(time.perf_counter() - computed_s))  # type: ignore[misc]
        while promises.begin_save():
            save()
            promises.end_save()
    return 1e3 * statistics.median(told_s), 1e3 * (time.perf_counter() - began_s) / commits


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Durable commits, against writes nobody waits for.")
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--commits", type=int, default=192, help="of the second table, each")
    arguments = parser.parse_args()
    print(f"{'file, MB':>8}{'commit, ms':>12}{'fsync, ms':>12}{'SHA-256, ms':>13}{'MB/s':>8}{'plain write, ms':>17}")
    for size_mb in SIZES_MB:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            row = measure(Path(folder), size_mb, arguments.repeats)
        rate = 1e3 * row.size_mb / row.commit_ms
        print(
            f"{row.size_mb:>8}{row.commit_ms:>12.1f}{row.fsync_ms:>12.1f}{row.sha256_ms:>13.1f}{rate:>8.0f}"
            f"{row.plain_ms:>17.1f}"
        )
    print(f"\n{'fragment, MB':>12}  {'saved':<22}{'told after, ms':>16}{'a commit, ms':>14}")
    for size_mb in SIZES_MB[:2]:
        for name, mode in MODES.items():
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                told_ms, commit_ms = measure_mode(Path(folder), size_mb * 10**6 // 8, arguments.commits, mode)
            print(f"{size_mb:>12}  {name:<22}{told_ms:>16.2f}{commit_ms:>14.1f}")


if __name__ == "__main__":
    main()

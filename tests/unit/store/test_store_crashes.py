"""A syncer that dies at any call to the operating system leaves the old record or the new one, whole."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from support.stores import Crash, FailingDisk, Leader, UnpluggedDisk, check_whole, small_layout
from unlockstep.store.place import LocalPlace
from unlockstep.store.run_store import RunStore

LAYOUT = small_layout()
COMMITS = 4


def commit_until_it_dies(folder: Path, disk: FailingDisk, *, prune: bool) -> int:
    """Returns the last number that ``write_record`` said is written."""
    committed = 0
    try:
        store = RunStore(LocalPlace(folder, disk), records_kept=2)
        leader = Leader(store, LAYOUT)
        for _ in range(COMMITS):
            assert leader.commit()
            committed = leader.number
            if prune:
                store.prune()
    except Crash:
        pass
    return committed


def check_and_go_on(folder: Path, committed: int) -> int:
    """What the next life finds, and that it can go on; returns the number it found."""
    store = RunStore(LocalPlace(folder), records_kept=2)
    loaded = store.load()
    found = 0 if loaded is None else check_whole(loaded, LAYOUT)
    assert found in (committed, committed + 1)
    assert loaded is None or loaded.damaged == ()
    leader = Leader(store, LAYOUT, epoch=2)
    assert leader.commit()
    assert leader.number == found + 1
    store.sweep()
    again = store.load()
    assert again is not None
    assert check_whole(again, LAYOUT) == found + 1
    return found


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("moment", FailingDisk.MOMENTS)
@pytest.mark.parametrize("kind", [FailingDisk, UnpluggedDisk])
def test_a_crash_at_any_call_leaves_the_old_record_or_the_new_one(
    tmp_path: Path, kind: type[FailingDisk], moment: str, prune: bool
) -> None:
    found = set()
    for fatal in itertools.count(1):
        folder = tmp_path / f"{fatal}" / "run"
        folder.parent.mkdir()
        disk = kind(fatal, moment)
        committed = commit_until_it_dies(folder, disk, prune=prune)
        if isinstance(disk, UnpluggedDisk):
            disk.lose_power()
        found.add(check_and_go_on(folder, committed))
        if not disk.crashed:
            break
    assert found == set(range(COMMITS + 1))
    assert fatal > COMMITS * 10


def test_two_crashes_one_after_the_other_lose_nothing(tmp_path: Path) -> None:
    for first, second in itertools.product(range(1, 30, 4), range(1, 30, 4)):
        folder = tmp_path / f"{first}-{second}"
        committed = commit_until_it_dies(folder, FailingDisk(first, "after"), prune=True)
        after = commit_until_it_dies(folder, FailingDisk(second, "half-way"), prune=True)
        store = RunStore(LocalPlace(folder), records_kept=2)
        loaded = store.load()
        found = 0 if loaded is None else check_whole(loaded, LAYOUT)
        assert found >= max(committed, after)


def test_a_published_version_outlives_the_loss_of_power_that_follows_a_restart(tmp_path: Path) -> None:
    """The first life dies before it has waited for the name of its last record; the second one leads; power goes."""
    folder = tmp_path / "run"
    probe = FailingDisk(0, "before")
    commit_until_it_dies(tmp_path / "probe", probe, prune=False)
    committed = commit_until_it_dies(folder, FailingDisk(probe.calls, "before"), prune=False)
    assert committed == COMMITS - 1
    disk = UnpluggedDisk(0, "before")
    leader = Leader(RunStore(LocalPlace(folder, disk)), LAYOUT, epoch=2)
    assert leader.number == COMMITS
    assert leader.commit()
    disk.lose_power()
    assert check_and_go_on(folder, COMMITS + 1) == COMMITS + 1

"""What ``prune`` and ``sweep`` leave: enough to resume from, nothing half deleted, and no more files with time."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

import pytest

from support.stores import Crash, FailingDisk, Leader, check_whole, files_under, small_layout, write_version
from unlockstep.core.errors import UsageError
from unlockstep.store.place import LocalPlace
from unlockstep.store.run_store import RunStore

LAYOUT = small_layout(3)


class CountingPlace(LocalPlace):
    """Counts what is asked of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, FailingDisk(0, "before"))
        self.calls: list[str] = []

    def read(self, name: str) -> bytes:
        self.calls.append(f"read {name}")
        return super().read(name)

    def names(self, folder: str) -> list[str]:
        self.calls.append(f"names {folder}")
        return super().names(folder)

    def delete(self, name: str) -> None:
        self.calls.append(f"delete {name}")
        super().delete(name)


def expected_files(store: RunStore, numbers: set[int]) -> set[str]:
    """Those records, and what they name."""
    files = {file.name for number in numbers for file in store.read(number).record.fragments}
    return files | {f"records/{number:010}.json" for number in numbers}


def test_at_least_one_record_is_kept() -> None:
    with pytest.raises(UsageError, match="records_kept is 0"):
        RunStore(LocalPlace(Path("run")), records_kept=0)


def test_the_newest_records_the_kept_and_the_pinned_stay_with_their_files(tmp_path: Path) -> None:
    store = RunStore(LocalPlace(tmp_path), records_kept=2)
    leader = Leader(store, LAYOUT)
    for _ in range(10):
        assert leader.commit()
    store.keep([4])
    with store.pin(6), store.pin(6):
        store.prune()
        assert files_under(tmp_path) == expected_files(store, {4, 6, 9, 10})
        for number in (4, 6, 9, 10):
            assert check_whole(store.read(number), LAYOUT) == number
        store.keep([])
        store.prune()
        assert files_under(tmp_path) == expected_files(store, {6, 9, 10})
    store.prune()
    assert files_under(tmp_path) == expected_files(store, {9, 10})


def test_a_fragment_that_no_record_has_named_yet_stays(tmp_path: Path) -> None:
    store = RunStore(LocalPlace(tmp_path), records_kept=1)
    leader = Leader(store, LAYOUT)
    for _ in range(4):
        assert leader.commit()
    # The bytes, and so the names, of files that only records to be pruned have named so far.
    files = {fragment: write_version(store, LAYOUT, fragment, 1) for fragment in range(3)}
    store.prune()
    store.sweep()
    for file in files.values():
        store.read_fragment(file)
    leader.files = files
    assert leader.commit()
    loaded = store.load()
    assert loaded is not None
    assert check_whole(loaded, LAYOUT) == 5


def test_a_new_leader_sweeps_what_nobody_can_name_any_more(tmp_path: Path) -> None:
    dead = RunStore(LocalPlace(tmp_path))
    assert Leader(dead, LAYOUT).commit()
    orphan = write_version(dead, LAYOUT, 0, 77)
    stranger = tmp_path / "fragments/000/notes.txt"
    stranger.write_text("not ours")
    (tmp_path / "fragments/.DS_Store").write_text("not ours either, and where only folders are ours")
    store = RunStore(LocalPlace(tmp_path))
    leader = Leader(store, LAYOUT, epoch=2)
    own = write_version(store, LAYOUT, 1, 78)
    assert leader.commit()
    store.prune()
    assert (tmp_path / orphan.name).exists()
    store.sweep()
    assert files_under(tmp_path) == expected_files(store, {1, 2}) | {
        own.name,
        "fragments/000/notes.txt",
        "fragments/.DS_Store",
    }


def test_who_leads_again_knows_what_others_have_written_meanwhile(tmp_path: Path) -> None:
    store = RunStore(LocalPlace(tmp_path), records_kept=2)
    assert Leader(store, LAYOUT).commit()
    store.prune()
    other = Leader(RunStore(LocalPlace(tmp_path)), LAYOUT, epoch=2)
    for _ in range(5):
        assert other.commit()
    again = Leader(store, LAYOUT, epoch=3)
    assert again.commit()
    store.prune()
    assert files_under(tmp_path) == expected_files(store, {6, 7})


def test_a_sweep_spares_what_others_have_named(tmp_path: Path) -> None:
    store = RunStore(LocalPlace(tmp_path))
    assert Leader(store, LAYOUT).commit()
    store.prune()
    other = Leader(RunStore(LocalPlace(tmp_path)), LAYOUT, epoch=2)
    assert other.commit()
    store.sweep()
    assert files_under(tmp_path) == expected_files(store, {1, 2})


def test_records_that_cannot_be_used_do_not_push_out_those_that_can(tmp_path: Path) -> None:
    leader = Leader(RunStore(LocalPlace(tmp_path)), LAYOUT)
    for _ in range(8):
        assert leader.commit()
    for number in (7, 8):
        (tmp_path / f"records/{number:010}.json").write_bytes(b"")
    fragment = RunStore(LocalPlace(tmp_path)).read(6).record.fragments[6 % 3]
    (tmp_path / fragment.name).write_bytes(b"")
    store = RunStore(LocalPlace(tmp_path), records_kept=2)
    loaded = store.load()
    assert loaded is not None
    assert check_whole(loaded, LAYOUT) == 5
    store.prune()
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == [f"{n:010}.json" for n in range(4, 9)]
    again = store.load()
    assert again is not None
    assert again.record == loaded.record


def test_a_crash_while_pruning_leaves_every_record_that_is_there_whole(tmp_path: Path) -> None:
    for fatal in itertools.count(1):
        folder = tmp_path / f"{fatal}"
        leader = Leader(RunStore(LocalPlace(folder, FailingDisk(0, "before"))), LAYOUT)
        for _ in range(8):
            assert leader.commit()
        disk = FailingDisk(fatal, "after")
        with suppress(Crash):
            RunStore(LocalPlace(folder, disk), records_kept=2).prune()
        store = RunStore(LocalPlace(folder), records_kept=2)
        for name in store.place.names("records"):
            check_whole(store.read(int(name.removesuffix(".json"))), LAYOUT)
        store.prune()
        store.sweep()
        assert files_under(folder) == expected_files(store, {7, 8})
        if not disk.crashed:
            break
    assert fatal == 6 + 6 + 1  # Records 1 to 6, as many files that only they named, and the round without a crash.


def test_files_and_work_per_commit_stay_the_same_over_many_commits(tmp_path: Path) -> None:
    place = CountingPlace(tmp_path)
    store = RunStore(place, records_kept=4)
    leader = Leader(store, LAYOUT)
    for number in range(1, 301):
        place.calls.clear()
        assert leader.commit()
        store.prune()
        if number > 10:
            assert len(files_under(tmp_path)) == 4 + 3 + 3
            assert [call.split("/")[0] for call in place.calls] == [
                "names records",
                "delete records",
                "delete fragments",
            ]

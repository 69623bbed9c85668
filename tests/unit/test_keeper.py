"""How long a run was without a syncer, by the clocks that its two lives can compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.core_builders import options
from unlockstep import keeper
from unlockstep.core.syncer import SyncerCore
from unlockstep.keeper import Snapshot, take_up
from unlockstep.runlog import Mark
from unlockstep.store.boot_time import BootTime, boot_time, elapsed_ns
from unlockstep.store.place import LocalPlace
from unlockstep.store.run_store import RunStore

SECOND_NS = 1_000_000_000
SAVED_NS = 100 * SECOND_NS
DAY_S = 86_400.0
WRITTEN = BootTime("first", 50 * SECOND_NS)

Save = Callable[[BootTime | None], RunStore]


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    """Save a run of 100 s when the wall clock shows 1000 s, and the machine's own clock what is given."""

    def saved(up: BootTime | None) -> RunStore:
        store = RunStore(LocalPlace(tmp_path / "store"))
        monkeypatch.setattr(keeper, "boot_time", lambda: up)
        monkeypatch.setattr(keeper.time, "time", lambda: 1000.0)
        run = SyncerCore("run", options(), 100, 0, "id").saved(SAVED_NS)
        first, taken = take_up(store, "run", "digest")
        assert taken is None
        first.save(Snapshot(run=run, layout=None, kept={}, norms=(), log=Mark("run.jsonl", 0)))
        return store

    return saved


def away_s(store: RunStore, wall_s: float, up: BootTime | None) -> float:
    """How long a life that begins then takes the run to have been without a syncer."""
    _, taken = take_up(store, "run", "digest", lambda: wall_s, lambda: up)
    assert taken is not None
    return (taken.now_ns - SAVED_NS) / SECOND_NS


@pytest.mark.parametrize("jump_s", [0.0, DAY_S, -DAY_S])
def test_a_wall_clock_that_jumps_meanwhile_is_no_time_away_on_the_same_machine(save: Save, jump_s: float) -> None:
    assert away_s(save(WRITTEN), 1007.0 + jump_s, BootTime("first", 57 * SECOND_NS)) == 7.0


@pytest.mark.parametrize(
    ("written", "now"),
    [(WRITTEN, BootTime("second", 9 * SECOND_NS)), (None, WRITTEN), (WRITTEN, None), (None, None)],
    ids=["another start or machine", "an earlier program", "no such clock", "none at all"],
)
def test_elsewhere_there_is_only_the_wall_clock(save: Save, written: BootTime | None, now: BootTime | None) -> None:
    store = save(written)
    assert away_s(store, 1007.0, now) == 7.0
    assert away_s(store, 1007.0 - DAY_S, now) == 0.0


def test_the_clock_of_this_machine_does_not_go_back() -> None:
    first, second = boot_time(), boot_time()
    assert elapsed_ns(second, first) in (None, 0)
    if first is not None:
        assert second is not None and 0 <= second.ns - first.ns == elapsed_ns(first, second)
    assert elapsed_ns(WRITTEN, BootTime("first", 0)) == 0

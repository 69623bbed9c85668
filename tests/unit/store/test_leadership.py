"""When a leader counts as silent: after a whole lease without a change, by the watcher's own clock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unlockstep.store import leadership
from unlockstep.store.leadership import Beat, LeaderWatch, is_gone, read_beat, this_holder, write_beat
from unlockstep.store.place import LocalPlace

LEASE_NS = 10


def beat(count: int, epoch: int = 1) -> Beat:
    return Beat(epoch=epoch, holder="a", url="http://a", count=count)


def test_a_beat_is_read_as_it_was_left(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    assert read_beat(place) is None
    for count in range(3):
        write_beat(place, beat(count))
        assert read_beat(place) == beat(count)
    (tmp_path / "leader.json").write_bytes(b"\xff")
    assert read_beat(place) is None


def test_nobody_is_silent_before_the_watcher_has_looked_for_a_whole_lease() -> None:
    watch = LeaderWatch(LEASE_NS)
    assert watch.silent_at_ns() is None
    assert not watch.is_silent(1_000)
    watch.see(None, 0, 1_000)
    assert watch.silent_at_ns() == 1_010
    assert not watch.is_silent(1_009)
    watch.see(None, 0, 1_009)
    assert watch.is_silent(1_010)


def test_a_new_beat_or_a_new_record_is_a_sign_of_life() -> None:
    watch = LeaderWatch(LEASE_NS)
    watch.see(beat(1), 5, 0)
    watch.see(beat(2), 5, 9)
    assert not watch.is_silent(18)
    watch.see(beat(2), 6, 18)
    assert not watch.is_silent(27)
    watch.see(None, 6, 27)
    assert watch.is_silent(28)


def test_the_same_beat_and_a_lower_number_are_not() -> None:
    watch = LeaderWatch(LEASE_NS)
    watch.see(beat(1), 5, 0)
    watch.see(beat(1), 4, 9)
    watch.see(beat(1), 5, 9)
    assert watch.is_silent(10)


def test_a_beat_of_a_lower_epoch_is_ignored() -> None:
    watch = LeaderWatch(LEASE_NS)
    watch.see(beat(1, epoch=2), 0, 0)
    watch.see(beat(99, epoch=1), 0, 9)
    assert watch.leader == beat(1, epoch=2)
    assert watch.is_silent(10)
    watch.see(beat(1, epoch=2), 0, 11)
    assert watch.is_silent(11)


def test_a_silent_leader_that_gives_a_sign_is_silent_no_more() -> None:
    watch = LeaderWatch(LEASE_NS)
    watch.see(beat(1), 0, 0)
    assert watch.is_silent(10)
    watch.see(beat(1, epoch=2), 0, 15)
    assert not watch.is_silent(24)
    assert watch.is_silent(25)


def test_a_leader_is_known_to_be_gone_where_its_process_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers may share a name, and each has processes that the other does not see."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = this_holder().rpartition(":")[0]
    gone, alive = (Beat(1, f"{here}:{pid}", "http://a", 1) for pid in (ended.pid, os.getpid()))
    assert is_gone(gone)
    assert not is_gone(alive)
    assert not is_gone(Beat(1, "another", "http://a", 1))
    monkeypatch.setattr(leadership, "HOST", "another container")
    assert not is_gone(gone)

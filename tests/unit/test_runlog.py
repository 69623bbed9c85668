"""The run log comes back as it was written; a write cut short by a crash counts for nothing, other damage is named."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from unlockstep import runlog
from unlockstep.core.errors import UsageError
from unlockstep.core.events import Event, FragmentCommitted, RoundClosed, RoundOpened, RunSeeded, StepReported
from unlockstep.core.reasons import WindowReason

HEADER = runlog.Header(run="night", config_digest="9f86d081884c7d65")
OPENED = RoundOpened(at_ns=2, round=0, fragment=0, clock=1, live=2, asked=("a", "b"))
CLOSED = RoundClosed(
    at_ns=3,
    round=0,
    fragment=0,
    reason=WindowReason.EVERYONE_IN,
    sentence="everyone is in",
    participants=("a", "b"),
    live=2,
    open_ns=1,
    quorum_ns=1,
    grace_ns=0,
)
COMMITTED = FragmentCommitted(
    at_ns=4,
    round=0,
    fragment=0,
    version=1,
    digest="ab" * 32,
    norm=0.1,
    weights={"a": 0.25, "b": 0.75},
    tokens=96,
    commit_ns=1,
)
EVENTS: list[Event] = [RunSeeded(at_ns=1, learner="a"), OPENED, CLOSED, COMMITTED]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def write(path: Path, events: list[Event], header: runlog.Header = HEADER) -> None:
    with runlog.RunLogWriter(path, header) as log:
        log.write(events)


def complaint(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        list(runlog.read(path)[1])
    return str(caught.value)


def test_events_come_back_as_they_were_written(path: Path) -> None:
    write(path, EVENTS)
    header, events = runlog.read(path)
    assert header == HEADER
    assert list(events) == EVENTS
    assert list(events) == EVENTS, "a second look starts over"
    assert events.torn_bytes == 0


def test_a_line_is_json_with_its_kind_and_time_first(path: Path) -> None:
    write(path, [OPENED])
    assert path.read_text(encoding="utf-8").splitlines() == [
        '{"schema":3,"run":"night","config_digest":"9f86d081884c7d65"}',
        '{"event":"RoundOpened","at_ns":2,"round":0,"fragment":0,"clock":1,"live":2,"asked":["a","b"]}',
    ]


def test_what_is_flushed_can_be_read_while_the_run_goes_on(path: Path) -> None:
    with runlog.RunLogWriter(path, HEADER) as log:
        log.write([OPENED])
        log.flush()
        assert list(runlog.read(path)[1]) == [OPENED]


def test_a_log_is_never_written_over(path: Path) -> None:
    write(path, EVENTS)
    with pytest.raises(UsageError, match=r"is there already; choose another folder"):
        write(path, EVENTS)
    assert list(runlog.read(path)[1]) == EVENTS


def test_another_life_goes_on_where_the_one_before_had_saved_and_the_rest_is_void(path: Path) -> None:
    with runlog.RunLogWriter(path, HEADER) as first:
        first.write(EVENTS[:2])
        saved = first.mark
        first.write(EVENTS[1:3])
    with runlog.RunLogWriter(path, HEADER, life=2, continues=saved) as second:
        second.confirm()
        assert list(runlog.read(path)[1]) == EVENTS[:2]
        second.write(EVENTS[2:3])
        saved = second.mark
        second.write(EVENTS[:1])
    with runlog.RunLogWriter(path, HEADER, life=5, continues=saved) as third:
        third.confirm()
        third.write(EVENTS[3:])
    assert list(runlog.read(path)[1]) == EVENTS


def test_what_an_earlier_life_still_writes_changes_nothing(path: Path) -> None:
    """It was frozen, and wakes up when another one has taken the run over."""
    late = runlog.RunLogWriter(path, HEADER)
    late.write(EVENTS[:1])
    with runlog.RunLogWriter(path, HEADER, life=2, continues=late.mark) as leads:
        leads.confirm()
        leads.write(EVENTS[1:])
    with late:
        late.write(EVENTS)
    assert list(runlog.read(path)[1]) == EVENTS


def test_a_life_that_died_before_its_first_save_is_passed_over(path: Path) -> None:
    """The one before was only frozen: it goes on, and what the log says is what it did."""
    with runlog.RunLogWriter(path, HEADER) as leads:
        leads.write(EVENTS[:1])
        with runlog.RunLogWriter(path, HEADER, life=2, continues=leads.mark) as killed:
            killed.write(EVENTS[1:2])
            assert runlog.newest_life(path) == 2
        leads.write(EVENTS[1:])
    assert list(runlog.read(path)[1]) == EVENTS


def test_unless_its_save_had_come_to_its_end_and_the_next_one_goes_on_from_it(path: Path) -> None:
    with runlog.RunLogWriter(path, HEADER) as first:
        first.write(EVENTS[:1])
    with runlog.RunLogWriter(path, HEADER, life=2, continues=first.mark) as killed:
        killed.write(EVENTS[1:2])
    with runlog.RunLogWriter(path, HEADER, life=3, continues=killed.mark) as third:
        third.confirm()
        third.write(EVENTS[2:])
    assert list(runlog.read(path)[1]) == EVENTS


def test_a_long_log_has_several_files_and_nobody_notices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlog, "PART_BYTES_MAX", 300)
    with runlog.RunLogWriter(path, HEADER) as log:
        for event in EVENTS * 5:
            log.write([event])
    assert len(list(path.parent.iterdir())) > 3
    assert all(file.stat().st_size < 1000 for file in path.parent.iterdir())
    assert list(runlog.read(path)[1]) == EVENTS * 5


def test_a_file_that_does_not_belong_to_the_log_is_refused(path: Path) -> None:
    write(path, EVENTS)
    other = runlog.Header(run="day", config_digest="00")
    with runlog.RunLogWriter(path, other, life=2, continues=runlog.Mark(path.name, 10)) as log:
        log.confirm()
    assert "events.0002-0001.jsonl does not go on where" in complaint(path)


def test_a_file_that_lost_its_end_in_a_crash_of_the_machine_is_named(path: Path) -> None:
    """A save waits for the disk, the log does not: the syncer goes on, and the log has a hole."""
    write(path, EVENTS)
    size = path.stat().st_size
    with runlog.RunLogWriter(path, HEADER, life=2, continues=runlog.Mark(path.name, size)) as log:
        log.confirm()
    os.truncate(path, 100)
    assert complaint(path) == (
        f"run log {path} was cut short: events.0002-0001.jsonl goes on after {size} bytes of it, and it has 100; "
        "restore it"
    )


def test_a_log_of_the_first_schema_is_read(path: Path) -> None:
    write(path, EVENTS)
    path.write_bytes(path.read_bytes().replace(b'"schema":3', b'"schema":1'))
    assert list(runlog.read(path)[1]) == EVENTS


def test_a_log_cut_anywhere_keeps_its_complete_lines(path: Path) -> None:
    events = EVENTS[:2]
    write(path, events)
    whole = path.read_bytes()
    for length in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:length])
        complete = whole[:length].count(b"\n") - 1
        found = runlog.read(path)[1]
        assert list(found) == events[:complete]
        assert found.torn_bytes == length - (whole[:length].rindex(b"\n") + 1)


def test_a_torn_line_longer_than_one_look_at_the_end_is_found(path: Path) -> None:
    write(path, EVENTS)
    with path.open("ab") as file:
        file.write(b"x" * 200_000)
    _, events = runlog.read(path)
    assert events.torn_bytes == 200_000
    assert list(events) == EVENTS


@pytest.mark.parametrize("line", [b"", b"{}", b"nonsense", b"\xff", b'{"event":"Unheard"}', b'{"event":"RunSeeded"}'])
def test_damage_before_the_last_line_is_refused_with_file_and_line(path: Path, line: bytes) -> None:
    write(path, EVENTS)
    header, first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([header, first, line + b"\n", *rest]))
    assert f"run log {path}, line 3 is not an event" in complaint(path)


@pytest.mark.parametrize("damage", [b"", b"\n", b"{}\n", b'{"schema":1,"run":"night"', b"\xff\n"])
def test_a_log_without_a_header_is_refused(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    assert f"run log {path}, line 1 is not a header" in complaint(path)


def test_a_log_of_another_schema_is_refused(path: Path) -> None:
    path.write_text('{"schema":4,"run":"night","config_digest":"00","more":1}\n', encoding="utf-8")
    assert "has schema 4 but this version reads 1 to 3; use the version that wrote it" in complaint(path)


def test_a_file_that_cannot_be_opened_is_said(path: Path) -> None:
    assert f"run log {path} cannot be read" in complaint(path)
    with pytest.raises(UsageError, match=r"cannot be written .*; choose a folder you may write to"):
        runlog.RunLogWriter(path / "nowhere", HEADER)


def test_a_loss_that_is_not_a_number_is_read_as_nan(path: Path) -> None:
    """The log of a run in which a learner diverges stays readable."""
    losses = [math.nan, math.inf, 2.5]
    write(
        path,
        [
            StepReported(at_ns=0, learner="a", incarnation=1, clock=1, steps=1, tokens=1, step_ns=1, loss=loss)
            for loss in losses
        ],
    )
    read = [event.loss for event in runlog.read(path)[1] if isinstance(event, StepReported)]
    assert math.isnan(read[0]) and math.isnan(read[1])
    assert read[2] == 2.5


def test_a_log_whose_beginning_is_elsewhere_is_read_from_where_it_begins(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    with runlog.RunLogWriter(path, HEADER) as first:
        first.write(EVENTS[:2])
    with runlog.RunLogWriter(elsewhere / path.name, HEADER, life=2, continues=first.mark) as second:
        second.write(EVENTS[2:])
    header, events = runlog.read(elsewhere / path.name)
    assert header.continues == first.mark
    assert list(events) == EVENTS[2:]


def test_a_life_that_died_before_it_could_save_has_its_number_all_the_same(path: Path) -> None:
    assert runlog.newest_life(path) == 0
    with runlog.RunLogWriter(path, HEADER) as first:
        first.write(EVENTS)
    assert runlog.newest_life(path) == 1
    runlog.RunLogWriter(path, HEADER, life=4, continues=first.mark).close()
    assert runlog.newest_life(path) == 4


def test_a_file_that_is_withdrawn_leaves_the_log_as_it_was(path: Path) -> None:
    write(path, EVENTS)
    with runlog.RunLogWriter(path, HEADER, life=2, continues=runlog.Mark(path.name, 10)) as late:
        late.write(EVENTS)
        late.withdraw()
    assert list(runlog.read(path)[1]) == EVENTS


def test_a_life_that_had_no_room_for_its_header_is_void(path: Path) -> None:
    """C28: a syncer that was started while the disk was full, or died at once, leaves the log as it was."""
    write(path, EVENTS)
    for life, left in ((2, b""), (3, b'{"schema":3,"ru')):
        path.with_name(f"events.{life:04}-0001.jsonl").write_bytes(left)
        assert list(runlog.read(path)[1]) == EVENTS


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full exists on Linux only")
def test_a_file_whose_header_cannot_be_written_does_not_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, EVENTS)

    def on_a_full_disk(at: Path, mode: str) -> BinaryIO:
        at.touch()
        return open("/dev/full", "wb")

    monkeypatch.setattr(Path, "open", on_a_full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        runlog.RunLogWriter(path, HEADER, life=2, continues=runlog.Mark(path.name, 10))
    monkeypatch.undo()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_end_that_was_saved_and_is_not_there_is_named(path: Path) -> None:
    with runlog.RunLogWriter(path, HEADER) as first:
        first.write(EVENTS)
        first.flush()
        saved = first.mark
        assert runlog.missing_end(path, saved) is None
        with runlog.RunLogWriter(path, HEADER, life=2, continues=saved) as second:
            second.flush()
            assert runlog.missing_end(path, second.mark) is None  # Its writer is about to call it otherwise.
        cut = runlog.missing_end(path, second.mark)
        unsaved = path.with_name("events.0002-0001.jsonl.unsaved")
        assert cut is not None and f"killed before it could call it {second.mark.file}; do that" in cut
        assert cut.startswith(f"run log {unsaved} counts for nothing by its name")
    unsaved.unlink()
    missing = runlog.missing_end(path, second.mark)
    assert missing is not None and missing.startswith(f"run log {path.with_name(second.mark.file)} is missing, and ")
    path.write_bytes(path.read_bytes()[:-3])
    assert runlog.missing_end(path, saved) == (
        f"run log {path} was cut short: it has {saved.bytes - 3} bytes, and the run was saved when it had "
        f"{saved.bytes}; restore it"
    )


def test_only_a_log_without_parameters_whose_writer_is_gone_is_removed(path: Path) -> None:
    with runlog.RunLogWriter(path, HEADER) as log:
        assert runlog.is_being_written(path)
        assert not runlog.remove_unused(path) and path.exists()
        log.write([OPENED])
    assert not runlog.is_being_written(path)
    assert runlog.remove_unused(path) and not path.exists()
    path.touch()
    assert runlog.remove_unused(path) and not path.exists()
    write(path, EVENTS)
    assert not runlog.remove_unused(path) and list(runlog.read(path)[1]) == EVENTS
    path.write_bytes(b"not a log")
    assert not runlog.remove_unused(path) and path.exists()
    assert runlog.remove_unused(path.with_name("nothing"))


def test_a_file_that_is_another_ones_by_now_is_not_withdrawn(path: Path) -> None:
    late = runlog.RunLogWriter(path, HEADER)
    path.unlink()
    write(path, EVENTS)
    late.withdraw()
    assert list(runlog.read(path)[1]) == EVENTS

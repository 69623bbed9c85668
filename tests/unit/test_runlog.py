"""The run log comes back as it was written; a write cut short by a crash counts for nothing, other damage is named."""

from __future__ import annotations

import math
from pathlib import Path

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
        '{"schema":1,"run":"night","config_digest":"9f86d081884c7d65"}',
        '{"event":"RoundOpened","at_ns":2,"round":0,"fragment":0,"clock":1,"live":2,"asked":["a","b"]}',
    ]


def test_what_is_flushed_can_be_read_while_the_run_goes_on(path: Path) -> None:
    with runlog.RunLogWriter(path, HEADER) as log:
        log.write([OPENED])
        log.flush()
        assert list(runlog.read(path)[1]) == [OPENED]


def test_a_run_that_starts_again_goes_on_in_its_log(path: Path) -> None:
    write(path, EVENTS[:2])
    write(path, EVENTS[2:])
    assert list(runlog.read(path)[1]) == EVENTS


def test_the_log_of_another_run_is_not_continued(path: Path) -> None:
    write(path, EVENTS)
    with pytest.raises(UsageError, match=r"belongs to run 'night' with configuration 9f86d0.*not to 'day' with 00"):
        write(path, EVENTS, runlog.Header(run="day", config_digest="00"))
    assert list(runlog.read(path)[1]) == EVENTS


def test_a_log_cut_anywhere_keeps_its_complete_lines_and_goes_on_after_them(path: Path) -> None:
    events = EVENTS[:2]
    write(path, events)
    whole = path.read_bytes()
    for length in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:length])
        complete = whole[:length].count(b"\n") - 1
        found = runlog.read(path)[1]
        assert list(found) == events[:complete]
        assert found.torn_bytes == length - (whole[:length].rindex(b"\n") + 1)
        write(path, [OPENED])
        assert list(runlog.read(path)[1]) == [*events[:complete], OPENED]


def test_a_torn_line_longer_than_one_look_at_the_end_is_found(path: Path) -> None:
    write(path, EVENTS)
    with path.open("ab") as file:
        file.write(b"x" * 200_000)
    _, events = runlog.read(path)
    assert events.torn_bytes == 200_000
    assert list(events) == EVENTS


@pytest.mark.parametrize("line", [b"", b"{}", b"nonsense", b"\xff", b'{"event":"Unheard"}', b'{"event":"RunSeeded"}'])
def test_damage_before_the_last_line_is_refused_with_file_and_line(path: Path, line: bytes) -> None:
    write(path, EVENTS[:1])
    with path.open("ab") as file:
        file.write(line + b"\n")
    write(path, EVENTS[1:])
    assert f"run log {path}, line 3 is not an event" in complaint(path)


@pytest.mark.parametrize("damage", [b"", b"\n", b"{}\n", b'{"schema":1,"run":"night"', b"\xff\n"])
def test_a_log_without_a_header_is_refused(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    assert f"run log {path}, line 1 is not a header" in complaint(path)


def test_a_log_of_another_schema_is_refused(path: Path) -> None:
    path.write_text('{"schema":2,"run":"night","config_digest":"00","more":1}\n', encoding="utf-8")
    assert "has schema 2 but this version reads schema 1; use the version that wrote it" in complaint(path)


def test_a_file_that_cannot_be_opened_is_said(path: Path) -> None:
    assert f"run log {path} cannot be read" in complaint(path)
    with pytest.raises(UsageError, match=r"cannot be written .*; choose a folder you may write to"):
        runlog.RunLogWriter(path.parent, HEADER)


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

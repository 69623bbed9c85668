"""What becomes of a command when nobody takes what it prints."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from support.full_disk import files_of_at_most
from support.lost_output import without_reader, without_room
from unlockstep.cli import app, exits
from unlockstep.cli.streams import Stream, outlasting_streams

NO_READER = "standard output takes no more (Broken pipe); the command goes on without it\n"
NO_ROOM = "error: standard output cannot be written (File too large); send it elsewhere, or make room for it\n"


def say(count: int, is_result: bool) -> bool:
    """Print so many lines, each at once; returns whether a part of the result is lost."""
    with outlasting_streams() as output:
        assert output is not None
        output.is_result = is_result
        for number in range(count):
            print(f"line {number:04}", flush=True)
    return output.is_lost


def test_what_is_only_watched_is_given_up_once_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with without_reader(monkeypatch, "stdout"):
        assert not say(10, is_result=False)
    assert capsys.readouterr().err == NO_READER


def test_who_wants_no_more_of_a_result_has_lost_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with without_reader(monkeypatch, "stdout"):
        assert not say(10, is_result=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_result", [True, False])
def test_a_result_for_which_there_is_no_room_is_lost(
    is_result: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with without_room(monkeypatch, tmp_path, "stdout") as file:
        assert say(10, is_result) == is_result
    assert file.read_text() == "line 0000\nline 0001\n"
    assert (capsys.readouterr().err == NO_ROOM) == is_result


def test_there_is_more_to_see_when_there_is_room_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with without_room(monkeypatch, tmp_path, "stdout") as file, outlasting_streams() as output:
        assert output is not None
        output.is_result = False
        for number in range(10):
            print(f"line {number:04}", flush=True)
        with files_of_at_most(1000):
            print("the last line", flush=True)
    assert file.read_text().startswith("line 0000\nline 0001\n") and file.read_text().endswith("the last line\n")
    assert capsys.readouterr().err == NO_READER.replace("Broken pipe", "File too large")


def test_what_is_held_back_is_missed_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with without_room(monkeypatch, tmp_path, "stdout"), outlasting_streams() as output:
        assert output is not None
        print("a line that is not written before the end")
        assert not output.is_lost
    assert output.is_lost
    assert capsys.readouterr().err == NO_ROOM


def test_where_neither_stream_takes_any_more_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with without_reader(monkeypatch, "stdout", "stderr"):
        assert not say(10, is_result=False)
    with without_room(monkeypatch, tmp_path, "stdout", "stderr"):
        assert say(10, is_result=True)


def test_nobody_who_watches_a_result_come_about_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with without_reader(monkeypatch, "stderr"), outlasting_streams() as output:
        print("half way", file=sys.stderr, flush=True)
        print("through", flush=True)
    assert output is not None and not output.is_lost
    assert capsys.readouterr().out == "through\n"


def test_a_process_without_streams_stays_without(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, None)
        with outlasting_streams() as output:
            print("nobody hears")
        assert output is None and sys.stdout is None


def test_a_letter_that_the_stream_does_not_have_is_written_as_its_number() -> None:
    written = io.BytesIO()
    plain = io.TextIOWrapper(written, "ascii")
    print("\u2581 \udcff", file=Stream(plain, is_result=False, told=None), flush=True)
    assert written.getvalue() == b"\\u2581 \\udcff\n"


def test_a_result_that_is_lost_fails_a_command_and_a_reader_who_has_left_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tape", "show", "calm"]
    with without_room(monkeypatch, tmp_path, "stdout"):
        assert app.run(command) == exits.FAILED
    assert capsys.readouterr().err == NO_ROOM
    with without_reader(monkeypatch, "stdout"):
        assert app.run(command) == exits.DONE
    assert capsys.readouterr().err == ""


def test_a_log_that_outlives_its_command_writes_to_nobody() -> None:
    """As that of a command that was run in a process which goes on: its stream is closed by then."""
    inner = io.StringIO()
    stream = Stream(inner, is_result=False, told=None)
    inner.close()
    stream.write("late\n")
    stream.flush()

"""``unlockstep train``, interrupted, or killed with all its processes, and taken up again."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec
import pytest

from support.commands import processes
from support.train_process import TINY, Train, is_gone
from unlockstep.cli import exits
from unlockstep.cli.app import run
from unlockstep.cli.run_folder import new_run_log
from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError
from unlockstep.core.events import LearnerJoined, SyncerResumed
from unlockstep.launch.folders import old_run_folder
from unlockstep.report.summary import Summary

pytestmark = pytest.mark.chaos

STEPS = 200
ARGUMENTS = (
    *("--learners", "2", "--steps", str(STEPS), "--no-kill", *TINY),
    *("--set", "local.slowdown=[30,30]", "--set", "evaluation.interval_s=0.2"),
)


def interrupt(train: Train, number: signal.Signals) -> None:
    """... in the middle of the run."""
    train.until("learner-0 trains", "learner-1 trains", "validation loss")
    pids = train.pids()
    train.process.send_signal(number)
    train.end()
    assert all(is_gone(pid, 10) for pid in pids.values())


def refused_with_a_damaged_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The syncer says so; what is known of the run stays."""
    layout, told = folder / "store" / "layout.json", (folder / "summary.json").read_bytes()
    content = layout.read_bytes()
    layout.write_bytes(content[:-10])
    assert run(["train", "--resume", str(folder), "--plain"]) == 2
    assert "layout.json is damaged" in capsys.readouterr().err
    assert (folder / "summary.json").read_bytes() == told
    layout.write_bytes(content)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_goes_on_where_it_was_interrupted(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C44: its last state is that somebody has stopped it, which does not end it once more."""
    with Train(tmp_path, *ARGUMENTS) as train:
        interrupt(train, number)
    if number is signal.SIGINT:
        assert f"go on with it: unlockstep train --resume {train.run}" in train.output
        refused_with_a_damaged_store(train.run, capsys)
    with Train(tmp_path, "--json", resumes=True) as again:
        said = again.end()
        assert again.process.returncode == 0, said
    events = again.events()
    (resumed,) = (event for event in events if isinstance(event, SyncerResumed))
    assert resumed.life == 2 and resumed.clock > 0
    assert [event.incarnation for event in events if isinstance(event, LearnerJoined)] == [1, 1, 2, 2]
    summary = msgspec.json.decode(again.output, type=Summary)
    accounting = summary.accounting
    assert (summary.ending, accounting.balance) == ("finished", 0)
    assert accounting.clock >= STEPS
    for learner in accounting.learners:
        assert learner.starts == 2
        assert learner.steps > resumed.clock  # Those before the interruption count, too.
    assert (again.run / "model").is_dir()
    assert run(["report", str(again.run), "--check"]) == 0
    assert run(["train", "--resume", str(again.run)]) == 2
    assert capsys.readouterr().err == f"error: the run in {again.run} has finished; there is nothing to go on with\n"


def test_of_two_that_go_on_with_a_run_at_once_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The learners of one would look for the syncer of the other, for ever."""
    with Train(tmp_path, *ARGUMENTS, "--steps", "120") as train:
        interrupt(train, signal.SIGINT)
    with Train(tmp_path, resumes=True) as one, Train(tmp_path, resumes=True) as other:
        said = [one.end(), other.end()]
    ends = sorted(zip((one.process.returncode, other.process.returncode), said, strict=True))
    assert [code for code, _ in ends] == [0, 2], said
    assert ends[1][1].startswith(f"error: the run in {train.run} ") and ends[1][1].count("\n") == 1
    assert run(["report", str(train.run), "--check"]) == 0


def test_a_folder_is_held_by_one_process_and_free_when_that_is_killed_whatever_it_has_started(tmp_path: Path) -> None:
    """Neither a program it started nor a fork of it holds the folder any longer."""
    hold = f"""
import os, subprocess, sys
from pathlib import Path
from unlockstep.launch.folders import old_run_folder
with old_run_folder(Path({str(tmp_path)!r})):
    fork = os.fork()
    if fork == 0:
        sys.stdin.read()
        os._exit(0)
    started = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
    print(fork, started.pid, flush=True)
    sys.stdin.read()
"""
    with processes() as launch:
        holder = launch(sys.executable, "-c", hold)
        assert holder.stdout is not None
        children = [int(pid) for pid in holder.stdout.readline().split()]
        with pytest.raises(UsageError, match="goes on: its unlockstep train is at work"), old_run_folder(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with old_run_folder(tmp_path):
            assert not any(is_gone(pid) for pid in children)


@pytest.mark.parametrize("setting", [("--set", "run.steps=9"), ("--steps", "9"), ("--no-kill",), ("--recipe", "quick")])
def test_a_run_that_is_resumed_has_its_settings(
    setting: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "--resume", str(tmp_path), *setting]) == 2
    said = capsys.readouterr().err
    assert said == f"error: --resume goes on with the run in {tmp_path} as it was begun; leave out all other settings\n"


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--resume", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == f"error: there is no run in {tmp_path}; give the folder of one that was begun\n"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_cannot_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be told that it has failed, and lose the list of its processes."""
    monkeypatch.setattr(exits, "ENDING_S_MAX", 0.0)
    monkeypatch.setattr(exits, "PARENT_LOOK_S", 0.0)
    (tmp_path / "processes.json").write_text("precious")
    with new_run_log(tmp_path, RunConfig()):
        assert run(["train", "--resume", str(tmp_path)]) == 2
    _, said = capsys.readouterr()
    assert said == f"error: the run in {tmp_path} goes on: its syncer is at work; end that run first\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.toml", "processes.json", "run.jsonl"]
    assert (tmp_path / "processes.json").read_text() == "precious"

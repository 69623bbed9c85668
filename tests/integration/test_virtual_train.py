"""``unlockstep train --virtual`` from the command line: the same bits again, whatever stops it, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from support.full_disk import files_of_at_most
from support.lost_output import without_reader
from support.train_process import SMALL, TESTS, TINY
from unlockstep import config as run_config
from unlockstep import runlog
from unlockstep.cli.app import run
from unlockstep.core.events import EvaluationReported, LearnerAway, RunFinished
from unlockstep.learners.toy import ToyBackend
from unlockstep.report.summary import Summary
from unlockstep.virtual import checkpoint
from unlockstep.virtual.ring import Ring, own_tape
from unlockstep.virtual.run import Stage

TAPE = """
name = "trouble"
learners = ["a", "b", "c"]
action = [
    { at_s = 1.0, do = "kill", target = "a" },
    { at_s = 1.5, do = "slow", target = "b", factor = 2.0 },
    { at_s = 2.0, do = "cut", target = "c" },
    { at_s = 3.0, do = "restart", target = "a" },
    { at_s = 4.0, do = "heal", target = "c" },
]
"""

FILES = ("run.jsonl", "config.toml", "tape.jsonl", "model/model.safetensors")
"""Of a run that is over; the summary too, but for the folder's name in it."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a corpus and a tape."""
    lines = (f"{number} times {number} is {number * number}.\n" for number in range(2000))
    (tmp_path / "corpus.txt").write_text("".join(lines))
    (tmp_path / "trouble.toml").write_text(TAPE)
    return tmp_path


def calm(place: Path, name: str, *more: str) -> list[str]:
    data = ("--data", str(place / "corpus.txt"), "--out", str(place / name), "--plain")
    return ["train", "--virtual", *TINY, *SMALL, *data, *more]


def arguments(place: Path, name: str, *more: str) -> list[str]:
    tape = () if "--tape" in more else ("--tape", str(place / "trouble.toml"))
    return calm(place, name, *tape, "--set", "virtual.jitter=0.1", *more)


@contextmanager
def started(*line: str, hash_seed: str = "0") -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which is gone behind the block."""
    python_path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        (sys.executable, "-m", "unlockstep", *line),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": python_path, "PYTHONHASHSEED": hash_seed},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finished(*line: str, hash_seed: str = "0") -> str:
    with started(*line, hash_seed=hash_seed) as process:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    return output


def left_in(folder: Path) -> dict[str, bytes]:
    summary = (folder / "summary.json").read_bytes().replace(str(folder).encode(), b"FOLDER")
    return {name: (folder / name).read_bytes() for name in FILES} | {"summary.json": summary}


def left_there(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def wait_for(text: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = next((line for line in process.stdout if text in line), None)
    assert line is not None, f"it ended without saying {text!r}"


# ------------------------------------------------------------------------------------------------- what it leaves


def test_two_processes_leave_the_same_bytes_and_a_run_that_keeps_every_rule(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = finished(*arguments(place, "one", "--steps", "80"), hash_seed="1")
    summary = msgspec.json.decode(finished(*arguments(place, "two", "--steps", "80", "--json")), type=Summary)
    assert left_in(place / "one") == left_in(place / "two")
    assert msgspec.json.decode((place / "two" / "summary.json").read_bytes(), type=Summary) == summary
    assert "virtual time" in output and "learners: 3" in output
    assert not (place / "one" / "checkpoint").exists()
    assert (summary.ending, summary.files.logs) == ("finished", None)
    assert [learner.learner for learner in summary.accounting.learners] == ["a", "b", "c"]
    assert run(["report", str(place / "one"), "--check"]) == 0
    assert "breaks" not in capsys.readouterr().out
    events = list(runlog.read(place / "one" / "run.jsonl")[1])
    assert [event.learner for event in events if isinstance(event, LearnerAway)][:1] == ["a"]
    evaluations = [event for event in events if isinstance(event, EvaluationReported)]
    (end,) = (event for event in events if isinstance(event, RunFinished))
    assert evaluations[-1].versions == end.versions
    assert evaluations[-1].loss < evaluations[0].loss


def test_without_a_tape_the_drill_kills_the_last_learner(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a third of the steps would be done, for ``local.kill_down_s``; ``--no-kill`` kills nobody."""
    two = ("--steps", "60", "--learners", "2", "--json")
    assert run(calm(place, "drill", *two, "--set", "local.kill_down_s=1")) == 0
    summary = msgspec.json.decode(capsys.readouterr().out, type=Summary)
    (absence,) = summary.accounting.absences
    assert (absence.learner, absence.gone_ns // 10**9) == ("learner-1", 2)
    assert run(calm(place, "calm", *two, "--no-kill")) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Summary).accounting.absences == ()


@pytest.mark.parametrize(
    ("killed_s", "back_s", "said"),
    [
        (1, 20, "1 of its 2 actions was not played"),
        (10, 20, "2 of its 2 actions were not played"),
        (1, 1.5, ""),
    ],
)
def test_actions_behind_the_end_of_the_run_are_counted(
    killed_s: float, back_s: float, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the words of a run of real processes."""
    kill, restart = (f'{{ at_s = {at_s}, do = "{do}", target = "a" }}'
                     for at_s, do in ((killed_s, "kill"), (back_s, "restart")))  # fmt: skip
    (place / "trouble.toml").write_text(f'name = "t"\nlearners = ["a", "b"]\naction = [{kill}, {restart}]\n')
    assert run(arguments(place, "run", "--steps", "30")) == 0
    shown = capsys.readouterr().out
    assert f"ended before the tape was over: {said}\n" in shown if said else "not played" not in shown


def test_what_the_tape_does_is_said_with_its_values(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, back = (f'{{ at_s = {at_s}, do = "slow", target = "a", factor = {factor} }}'
                  for at_s, factor in ((0.5, 4), (1, 1)))  # fmt: skip
    (place / "trouble.toml").write_text(f'name = "t"\nlearners = ["a", "b"]\naction = [{slow}, {back}]\n')
    assert run(arguments(place, "run", "--steps", "20")) == 0
    shown = capsys.readouterr().out
    assert "the tape at 0.5 s: slow a (factor 4)\n" in shown
    assert "the tape at 1 s: slow a (factor 1: its own speed)\n" in shown


def test_who_is_starting_when_the_run_ends_is_said_to(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``a`` is started again after three seconds; that takes it five more, and the run is over before."""
    assert run(arguments(place, "run", "--steps", "60", "--set", "virtual.start_s=5")) == 0
    said = "a went away and the run ended while it was starting again"
    assert said in capsys.readouterr().out
    summary = msgspec.json.decode((place / "run" / "summary.json").read_bytes(), type=Summary)
    assert summary.starting == ("a",)
    assert run(["report", str(place / "run")]) == 0
    assert said in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------- what stops it


@pytest.mark.chaos
def test_what_was_killed_or_interrupted_goes_on_to_the_same_bytes(place: Path) -> None:
    """SIGKILL loses what was after the last checkpoint, Ctrl-C nothing; neither changes what comes out."""
    long = ("--steps", "200", "--set", "checkpoint.interval_s=0.1")
    finished(*arguments(place, "straight", *long))
    with started(*arguments(place, "cut", *long)) as process:
        wait_for("; virtual time", process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert run(["report", str(place / "cut")]) == 0
    with started("train", "--resume", str(place / "cut"), "--plain") as process:
        wait_for("; virtual time", process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert f"go on with it: unlockstep train --resume {place / 'cut'}" in output
    assert msgspec.json.decode((place / "cut" / "summary.json").read_bytes(), type=Summary).ending == "interrupted"
    finished("train", "--resume", str(place / "cut"), "--plain")
    assert left_in(place / "cut") == left_in(place / "straight")


@pytest.mark.chaos
def test_of_two_that_go_on_with_a_run_at_once_one_is_refused_and_changes_nothing(place: Path) -> None:
    """The second one would wait for the log, then go back in what the first has finished."""
    long = ("--steps", "200", "--set", "checkpoint.interval_s=0.1")
    finished(*arguments(place, "straight", *long))
    with started(*arguments(place, "cut", *long)) as process:
        wait_for("; virtual time", process)
        process.kill()
    again = ("train", "--resume", str(place / "cut"), "--plain")
    with started(*again) as one, started(*again) as other:
        errors = [process.communicate(timeout=60)[1] for process in (one, other)]
    ends = sorted(zip((one.returncode, other.returncode), errors, strict=True))
    assert [code for code, _ in ends] == [0, 2], errors
    assert ends[1][1].startswith(f"error: the run in {place / 'cut'} ") and ends[1][1].count("\n") == 1
    assert left_in(place / "cut") == left_in(place / "straight")


def test_one_that_was_killed_before_its_first_checkpoint_begins_anew(place: Path) -> None:
    assert run(arguments(place, "run", "--steps", "20")) == 0
    expected = left_in(place / "run")
    (place / "run" / "summary.json").unlink()
    assert run(["train", "--resume", str(place / "run"), "--plain"]) == 0
    assert left_in(place / "run") == expected


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ('{ at_s = 0.5, do = "kill", target = "a" }', "leaves no learner that trains, so the run cannot go on"),
        ('{ at_s = 0.5, do = "kill", target = "syncer" }', "leaves the syncer dead, so the run cannot go on"),
        ('{ at_s = 0.5, do = "stop", target = "syncer" }', "leaves the syncer stopped, so the run cannot go on"),
        ('{ at_s = 0.5, do = "cut", target = "a" }', "leaves no learner that trains, so the run cannot go on"),
    ],
)
def test_a_tape_that_leaves_nobody_is_one_sentence_and_a_failure(
    action: str, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "trouble.toml").write_text(f'name = "end"\nlearners = ["a"]\naction = [{action}]\n')
    assert run(arguments(place, "run", "--steps", "200")) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"error: tape 'end' is over after 0.5 s and {said}" in error
    summary = msgspec.json.decode((place / "run" / "summary.json").read_bytes(), type=Summary)
    assert summary.ending == "failed"
    assert run(["train", "--resume", str(place / "run")]) == 2
    assert capsys.readouterr().err == (
        f"error: the run in {place / 'run'} has failed, and would again under virtual time ({summary.sentence}); "
        "begin another one, with other settings or another tape\n"
    )


@pytest.mark.parametrize(
    ("full", "steps", "size_bytes"), [("run.jsonl", "60", 100_000), ("model", "1", 14_000)], ids=["log", "model"]
)
def test_a_run_without_room_says_for_what_and_goes_on_to_the_same_bytes_when_there_is_some(
    full: str, steps: str, size_bytes: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(place, "straight", "--steps", steps)) == 0
    capsys.readouterr()
    with files_of_at_most(size_bytes):
        assert run(arguments(place, "cut", "--steps", steps)) == 1
    assert capsys.readouterr().err == (
        f"error: {place / 'cut' / full} cannot be written (File too large); free some space, then go on with the run: "
        f"unlockstep train --resume {place / 'cut'}\n"
    )
    assert run(["train", "--resume", str(place / "cut"), "--plain"]) == 0
    assert left_in(place / "cut") == left_in(place / "straight")


def test_a_run_that_nobody_can_be_shown_is_the_same_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(calm(place, "seen", "--steps", "12")) == 0
    with without_reader(monkeypatch, "stdout", "stderr"):
        assert run(calm(place, "unseen", "--steps", "12")) == 0
    assert left_in(place / "unseen") == left_in(place / "seen")


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--learners", "4"], "--learners is 4 but tape 'trouble' begins with 3; leave it out, or change the tape"),
        (["--kill"], "--kill is the drill of a run without a tape; put what is to happen on the tape"),
        (["--tape", "nowhere"], "tape 'nowhere' is neither a file that ends in .toml or .jsonl nor one of calm,"),
        (["--tape", "none.toml"], "tape none.toml does not exist; check the path"),
        (["--set", "virtual.step_s=0"], "virtual.step_s is 0.0; it must be above 0 and finite"),
        (["--set", "virtual.jitter=1.5"], "virtual.jitter is 1.5; it must be from 0 to 1"),
        (["--set", "virtual.start_s=-1"], "virtual.start_s is -1.0; it must be at least 0 and finite"),
        (["--set", "virtual.mbit_per_s=-1"], "virtual.mbit_per_s is -1.0; it must be at least 0 and finite"),
        (["--resume", "run"], "--resume goes on with the run in run as it was begun; leave out all other settings"),
        (["--model", "support.tiny_lm:frozen_lm"], "model has no trainable parameter"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_leaves_nothing(
    more: list[str], sentence: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(place, "run", *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {sentence}") and error.count("\n") == 1
    assert sorted(path.name for path in place.iterdir()) == ["corpus.txt", "trouble.toml"]


def test_a_checkpoint_that_is_damaged_is_one_sentence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(place, "run", "--steps", "20")) == 0
    expected = left_in(place / "run")
    summary = place / "run" / "summary.json"
    summary.write_bytes(summary.read_bytes().replace(b'"ending": "finished"', b'"ending": "interrupted"'))
    checkpoint.write(place / "run" / "checkpoint", None, {})
    data = (place / "run" / "checkpoint").read_bytes()
    (place / "run" / "checkpoint").write_bytes(data[:-1])
    there = left_there(place / "run")
    capsys.readouterr()
    assert run(["train", "--resume", str(place / "run"), "--plain"]) == 2
    assert left_there(place / "run") == there
    file = place / "run" / "checkpoint"
    assert capsys.readouterr().err == f"error: checkpoint {file} is damaged; restore it, or remove it: the run then " \
        "begins anew\n"  # fmt: skip
    file.unlink()
    assert run(["train", "--resume", str(place / "run"), "--plain"]) == 0
    assert left_in(place / "run") == expected


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_settings_that_were_changed_are_refused_before_anything_is(
    with_checkpoint: bool, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be found out at the end, which nobody could sum up then."""
    folder = place / "run"
    assert run(arguments(place, "run", "--steps", "20")) == 0
    summary = folder / "summary.json"
    summary.write_bytes(summary.read_bytes().replace(b'"ending": "finished"', b'"ending": "interrupted"'))
    begun = run_config.load(folder / "config.toml")
    if with_checkpoint:
        ring = Ring(begun, own_tape(begun), lambda shard, shards: ToyBackend())
        checkpoint.write(folder / "checkpoint", Stage(ring), {})
    changed = run_config.apply(begun, ["run.seed=5"])
    (folder / "config.toml").write_text(run_config.dumps(changed))
    there = left_there(folder)
    assert run(["train", "--resume", str(folder), "--plain"]) == 2
    assert left_there(folder) == there
    where = folder / ("checkpoint" if with_checkpoint else "run.jsonl")
    digests = [run_config.digest(config)[:12] for config in (begun, changed)]
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {where} belongs to run 'run' with configuration {digests[0]}, not to 'run' with {digests[1]}; leave "
        "out --config and --set to resume it (restore its config.toml if that has been changed), or choose another "
        "folder"
    )


def test_what_is_refused_before_it_begins_anew_leaves_what_there_was(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that was killed before it had written anything but its settings, and a part of the log's first line."""
    assert run(arguments(place, "run", "--steps", "20", "--set", "local.evaluator=false")) == 0
    folder = place / "run"
    (folder / "summary.json").unlink()
    config = run_config.apply(run_config.load(folder / "config.toml"), ["protocol.fragments=400"])
    (folder / "config.toml").write_text(run_config.dumps(config))
    (folder / "run.jsonl").write_text('{"schema"')
    there = left_there(folder)
    assert run(["train", "--resume", str(folder), "--plain"]) == 2
    assert "protocol.fragments is 400, but this model has" in capsys.readouterr().err
    assert left_there(folder) == there


def test_a_run_that_another_process_trains_is_left_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with started(*arguments(place, "run", "--steps", "1000000", "--set", "evaluation.interval_s=1000")) as process:
        wait_for("; virtual time", process)
        assert run(["train", "--resume", str(place / "run")]) == 2
        assert "the run in" in capsys.readouterr().err
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and "go on with it" in output

"""Trouble of the process that looks after a run: it is killed, has no room for its files, cannot start anybody.

Whatever it is, what has been trained stays, and can be gone on with.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import msgspec
import pytest

from support.train_process import TINY, Train, is_gone
from unlockstep import tape as tapes
from unlockstep.cli.app import run
from unlockstep.report.summary import Summary
from unlockstep.tape import Jump, Slow, Tape

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the disk of another process is filled by its limit"),
]

SECOND_NS = 1_000_000_000
STEPS = 80
SETTINGS = (*TINY, "--steps", str(STEPS), "--set", "local.slowdown=[20,20]", "--set", "evaluation.interval_s=0.2")
ALONE = (*TINY, "--steps", "40", "--learners", "1", "--no-kill", "--set", "evaluation.interval_s=0.2")

JUMPS = tuple(Jump(at_ns=number * SECOND_NS // 10, target="a", seconds=1.0) for number in range(1, 6))


@pytest.fixture
def tape(tmp_path: Path) -> str:
    """Five harmless things in the first half second, and one that never comes."""
    late = Slow(at_ns=1000 * SECOND_NS, target="b", factor=2.0)
    tapes.write(Tape(name="jumps", learners=("a", "b"), actions=(*JUMPS, late)), tmp_path / "given.toml")
    return str(tmp_path / "given.toml")


def test_a_run_whose_tape_was_being_played_when_all_was_killed_can_be_reported_and_gone_on_with(
    tape: str, tmp_path: Path
) -> None:
    with Train(tmp_path, "--tape", tape, *SETTINGS) as train:
        train.until("a trains", "b trains", "the tape: jump a")
        while len(tapes.read(train.run / "tape.jsonl").actions) < len(JUMPS):
            train.until("the tape: jump a")
        assert run(["report", str(train.run)]) == 0, "of a run that goes on"
        pids = train.pids()
        train.process.kill()
        train.process.wait()
        assert all(is_gone(pid, 10) for pid in pids.values())
    with (train.run / "tape.jsonl").open("a") as file:
        file.write('{"do":"jump","at_')  # As if it had been killed in the middle of a line.
    assert [type(action) for action in tapes.read(train.run / "tape.jsonl").actions] == [Jump] * len(JUMPS)
    assert run(["report", str(train.run), "--check"]) == 0
    with Train(tmp_path, resumes=True) as again:
        said = again.end()
    assert again.process.returncode == 0, said
    assert "a trains" in again.output and "learner-0" not in again.output
    assert run(["replay", str(again.run), "--until", "1"]) == 0


def test_a_run_that_was_killed_before_its_tape_began_goes_on_with_the_learners_of_the_tape(
    tape: str, tmp_path: Path
) -> None:
    with Train(tmp_path, "--tape", tape, *SETTINGS) as train:
        train.until("the syncer listens at")
        pids = train.pids()
        train.process.kill()
        train.process.wait()
        assert all(is_gone(pid, 10) for pid in pids.values())
    played = tapes.read(train.run / "tape.jsonl")
    assert (played.learners, played.actions, played.began_ns) == (("a", "b"), (), None)
    assert run(["simulate", "tape", str(train.run / "tape.jsonl")]) == 0
    assert run(["report", str(train.run)]) == 0
    with Train(tmp_path, resumes=True) as again:
        said = again.end()
    assert again.process.returncode == 0, said
    assert "a trains" in again.output and "learner-0" not in again.output
    assert run(["report", str(again.run), "--check"]) == 0


def test_a_model_that_was_not_written_can_be_made_from_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Train(tmp_path, "--learners", "2", "--no-kill", *SETTINGS) as train:
        train.until("learner-0 trains", "learner-1 trains", "validation loss")
        resource.prlimit(train.pids()["evaluator"], resource.RLIMIT_FSIZE, (0, 0))
        said = train.end()
    make = f"make it from the log, unlockstep replay {train.run} --out FOLDER\n"
    assert train.process.returncode == 1
    assert said.startswith("error: the final model was not written: the evaluator exited with code ")
    assert said.endswith(make) and said.count("\n") == 1
    capsys.readouterr()
    assert run(["train", "--resume", str(train.run)]) == 2
    finished = f"error: the run in {train.run} has finished, and its final model was not written; "
    assert capsys.readouterr().err == finished + make
    assert run(["replay", str(train.run), "--out", str(tmp_path / "made")]) == 0, "that of the store, bit for bit"
    assert (tmp_path / "made" / "model.safetensors").is_file()


def test_a_run_without_room_for_its_tape_goes_on_and_one_without_room_for_its_summary_says_so(
    tape: str, tmp_path: Path
) -> None:
    with Train(tmp_path, "--tape", tape, *SETTINGS) as train:
        train.until("the tape jumps begins")
        resource.prlimit(train.process.pid, resource.RLIMIT_FSIZE, (200, 200))
        said = train.end()
    assert said == (
        f"error: the run has finished, but {train.run / 'summary.json'} cannot be written (File too large); "
        "free some space\n"
    )
    assert train.process.returncode == 1
    (note,) = (line for line in train.output.splitlines() if "tape.jsonl cannot be written" in line)
    assert "the run goes on, and it lacks what is played" in note
    assert (train.run / "model").is_dir()
    assert not list(train.run.glob("*.part"))
    tapes.read(train.run / "tape.jsonl")
    assert run(["report", str(train.run), "--check"]) == 0


def test_one_that_is_interrupted_without_room_for_its_summary_names_none(tmp_path: Path) -> None:
    with Train(tmp_path, *ALONE, "--set", "local.slowdown=[100]") as train:
        train.until("learner-0 trains")
        resource.prlimit(train.process.pid, resource.RLIMIT_FSIZE, (200, 200))
        train.process.send_signal(signal.SIGINT)
        assert train.end() == ""
    assert train.process.returncode == 130
    assert f"\n  {train.run / 'summary.json'} cannot be written (File too large); free some space\n" in train.output
    assert train.output.count("summary.json") == 1 and not (train.run / "summary.json").exists()
    assert f"go on with it: unlockstep train --resume {train.run}" in train.output


def test_a_run_goes_on_to_its_end_when_nobody_reads_what_it_prints_any_more(tmp_path: Path) -> None:
    with Train(tmp_path, *ALONE) as train:
        train.until("the syncer listens")
        assert train.process.stdout is not None and train.process.stderr is not None
        train.process.stdout.close()
        said = train.process.stderr.read()
        assert train.process.wait() == 0
    assert said == "standard output takes no more (Broken pipe); the command goes on without it\n"
    summary = msgspec.json.decode((train.run / "summary.json").read_bytes(), type=Summary)
    assert (summary.ending, summary.accounting.ended) == ("finished", True)
    assert (train.run / "model").is_dir() and (train.run / "report.html").is_file()


def test_a_run_whose_syncer_cannot_be_started_again_has_failed_and_goes_on_when_that_is_mended(tmp_path: Path) -> None:
    with Train(tmp_path, "--learners", "2", "--no-kill", *SETTINGS, "--set", "local.restarts_max=2") as train:
        train.until("learner-0 trains", "learner-1 trains", "validation loss")
        logs = train.run / "logs"
        logs.rename(tmp_path / "logs")
        logs.write_text("")
        pids = train.pids()
        os.kill(pids["syncer"], signal.SIGKILL)
        said = train.end()
    assert train.process.returncode == 1
    assert said.startswith("error: the syncer cannot be started again: syncer cannot be started (")
    assert f"go on with it: unlockstep train --resume {train.run}" in train.output
    assert (train.run / "store").is_dir() and (train.run / "run.jsonl").is_file()
    logs.unlink()
    with Train(tmp_path, resumes=True) as again:
        said = again.end()
    assert again.process.returncode == 0, said

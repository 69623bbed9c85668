"""Runs to which everything happens at random, from a seed: they end in order, and every token is accounted for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.tape_run import TapeRun, toy_config
from support.train_process import TINY, Train
from unlockstep import poisson
from unlockstep import tape as tapes
from unlockstep.cli.app import run as command
from unlockstep.launch import local, restarts
from unlockstep.launch.local import Ending
from unlockstep.poisson import Trouble

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(sys.platform != "linux", reason="limits on others are Linux's")]

TESTS = Path(__file__).parents[1]


def test_a_run_with_a_trouble_every_moment_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "POLL_S", 0.05)
    monkeypatch.setattr(restarts, "RESTART_S", 0.05)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    troubles = {
        "kill": Trouble(4.0, 1.0),
        "stop": Trouble(3.0, 0.5),
        "slow": Trouble(3.0, 1.0, {"factor": 3.0}),
        "cut": Trouble(3.0, 0.5),
        "throttle": Trouble(3.0, 1.0, {"mbit_per_s": 1.0}),
        "delay": Trouble(3.0, 1.0, {"seconds": 0.05}),
        "corrupt": Trouble(1.0),
        "fill": Trouble(3.0, 1.0),
        "jump": Trouble(1.0, 0.0, {"seconds": -3600.0}),
    }
    names = ("a", "b", "c")
    tape = poisson.draw("storm", names, 5.0, 3, troubles, {"stop": Trouble(3.0, 0.3)})
    assert len(tape.actions) > 20
    run = TapeRun(tmp_path, tape, toy_config(3))
    assert run.play().ending is Ending.FINISHED, run.notes
    run.check()
    left_out = [note for note in run.notes if note.startswith("left out: ")]
    assert len(run.played.actions) + len(left_out) == len(tape.actions)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_minutes_of_everything_with_a_model(tmp_path: Path) -> None:
    tape = tmp_path / "storm.toml"
    every = ("--kill-every-s", "60", "--stop-every-s", "60", "--slow-every-s", "60", "--cut-every-s", "60")
    every += ("--throttle-every-s", "60", "--delay-every-s", "60", "--corrupt-every-s", "20", "--fill-every-s", "60")
    every += ("--jump-every-s", "30", "--jump-seconds", "-86400", "--syncer-kill-every-s", "60")
    every += ("--syncer-fill-every-s", "90", "--syncer-stop-every-s", "90")
    assert (
        command(["tape", "draw", "--for-s", "100", "--learners", "3", "--seed", "7", "--out", str(tape), *every]) == 0
    )
    with Train(tmp_path, *TINY, "--tape", str(tape), "--steps", "200000", "--plain") as train:
        train.until("the tape is over")
        assert command(["stop", train.url]) == 0
        errors = train.end(120.0)
        assert train.process.returncode == 0, train.output + errors
    assert command(["report", str(train.run), "--check"]) == 0
    played = tapes.read(train.run / "tape.jsonl")
    assert len(played.actions) > 20
    assert command(["simulate", "tape", str(train.run / "tape.jsonl")]) == 0

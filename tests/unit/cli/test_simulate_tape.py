"""``unlockstep simulate tape``: what is summed up, what is printed and written, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unlockstep import tape as tapes
from unlockstep.cli import exits
from unlockstep.cli.app import run
from unlockstep.tape import Join, Kill, Leave, Restart, Stop

SECOND = 1_000_000_000


def account_of(source: str | Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["simulate", "tape", str(source), *arguments, "--json"]) == exits.DONE
    account: dict[str, Any] = json.loads(capsys.readouterr().out)
    return account


def goodput_of(account: dict[str, Any]) -> float:
    value: float = account["accounting"]["goodput"]["goodput"]
    return value


def roster_s(account: dict[str, Any]) -> float:
    """Seconds that all on the tape together were on it."""
    return float(account["accounting"]["goodput"]["roster_ns"] / SECOND)


def written(folder: Path, *actions: tapes.Action, learners: tuple[str, ...] = ("a",), end_s: int = 60) -> Path:
    path = folder / "mine.toml"
    tapes.write(tapes.Tape(name="mine", learners=learners, actions=actions, end_ns=end_s * SECOND), path)
    return path


def test_a_tape_is_played_and_its_folder_can_be_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    arguments = ["--run-dir", str(folder), "--seconds", "40"]
    life = account_of("one_crash", capsys, *arguments)
    assert life["violations"] == [] and life["accounting"]["ended"] and life["run_folder"] == str(folder)
    assert 0.8 < goodput_of(life) < 1
    assert run(["report", str(folder), "--check"]) == exits.DONE


def test_a_run_whose_syncer_dies_is_summed_up_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run(["simulate", "tape", "syncer_crash", "--toy", "--run-dir", str(folder)]) == exits.DONE
    said = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "simulated 1 min 30 s" in said and " the syncer 2 starts " in said
    assert "given up" not in said and "never joined" not in said
    assert sorted(path.name for path in folder.iterdir()) == ["config.toml", "run.jsonl", "tape.jsonl"]
    assert said.endswith(f"unlockstep report {folder} --check # {folder}/run.jsonl, config.toml")
    assert run(["report", str(folder), "--check"]) == exits.DONE


def test_the_death_of_the_syncer_costs_no_step_and_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten of ninety seconds it is away; every one of four learners trains a token a second all the time."""
    account = account_of("syncer_crash", capsys)
    assert (account["tape"], account["lives"], account["failed"], account["absent"]) == ("syncer_crash", 2, [], [])
    assert 90 * SECOND <= account["simulated_ns"] <= 91 * SECOND
    assert roster_s(account) == pytest.approx(4 * 90, rel=0.002)
    ledger = account["accounting"]["ledger"]
    assert ledger["merged"] + ledger["merged_late"] == ledger["trained"] == 4 * 90
    assert goodput_of(account) > 0.99


def test_what_the_syncer_had_not_saved_when_all_was_over_is_shown_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands still from the middle of a step on: what was reported since its last commit is not saved."""
    stopped = (Stop(at_ns=30_500_000_000, target=tapes.SYNCER),)
    account = account_of(written(tmp_path, *stopped), capsys, "--set", "protocol.interval_steps=4000")
    assert not account["accounting"]["ended"]
    assert account["accounting"]["ledger"]["trained"] == 30


def test_simulated_is_the_time_of_the_tape(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "tape", "calm", "--seconds", "120"]) == exits.DONE
    said = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "simulated 2 min 00 s since the first step 1 min 59 s" in said
    assert "learner-0 1 start, 120 steps, in 100.0% of its rounds" in said


def test_who_joins_later_or_leaves_counts_while_it_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calm = account_of("calm", capsys)
    assert goodput_of(calm) > 0.99
    crowd = account_of("flash_crowd", capsys)
    assert roster_s(crowd) == pytest.approx(2 * 100 + 6 * 50 + sum(range(6)), rel=0.001)
    assert goodput_of(crowd) > 0.97
    twice = (Leave(at_ns=10 * SECOND, target="b"), Join(at_ns=30 * SECOND, target="b"))
    life = account_of(written(tmp_path, *twice, learners=("a", "b")), capsys)
    assert roster_s(life) == pytest.approx(60 + 10 + 30, rel=0.01)


def test_who_is_dead_or_stopped_counts_as_possible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    down = (
        Kill(at_ns=10 * SECOND, target="b"),
        Restart(at_ns=30 * SECOND, target="b"),
        Stop(at_ns=50 * SECOND, target="b"),
    )
    life = account_of(written(tmp_path, *down, learners=("a", "b")), capsys)
    assert roster_s(life) == pytest.approx(2 * 60, rel=0.01)
    ledger = life["accounting"]["ledger"]
    assert goodput_of(life) == pytest.approx((ledger["merged"] + ledger["merged_late"]) / roster_s(life))
    assert 0.65 < goodput_of(life) < (120 - 20 - 10) / 120


def test_a_tape_on_which_nobody_trains_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, Stop(at_ns=0, target="a"))
    life = account_of(path, capsys)
    assert (roster_s(life), goodput_of(life)) == (60.0, 0.0)
    assert life["accounting"]["goodput"]["shares"]["down"] == 1.0
    assert 60 * SECOND <= life["simulated_ns"] <= 61 * SECOND
    assert life["absent"] == ["a"]
    assert run(["simulate", "tape", str(path)]) == exits.DONE
    said = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "goodput 0.0% of what all on the tape" in said and " a never joined " in said


def test_a_syncer_that_does_not_come_back_leaves_the_run_without_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    life = account_of(written(tmp_path, Kill(at_ns=30 * SECOND, target=tapes.SYNCER)), capsys)
    assert not life["accounting"]["ended"]
    assert life["simulated_ns"] == 60 * SECOND and roster_s(life) == pytest.approx(60, rel=0.001)


def test_settings_speed_and_learners_can_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--learners", "6", "--fragments", "2", "--set", "protocol.quorum=2", "--step-s", "0.5"]
    life = account_of("calm", capsys, "--seconds", "20", *arguments)
    learners = life["accounting"]["learners"]
    assert len(learners) == 6 and all(38 <= learner["steps"] <= 42 for learner in learners)
    assert goodput_of(life) > 0.99


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "tape 'nothing' is neither a file"),
        (["on_crash"], "did you mean one_crash?"),
        (["calm", "--step-s", "0"], "--step-s is 0.0; it must be from 0.001 to 1e9"),
        (["calm", "--fragments", "0"], "protocol.fragments is 0; it must be at least 1"),
        (["one_crash", "--learners", "0"], "tape 'one_crash'"),
        (["calm", "--run-dir", "."], "--run-dir . is there already; name a folder that is new or empty"),
    ],
)
def test_a_tape_that_cannot_be_played_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "tape", *arguments]) == exits.USAGE
    assert sentence in capsys.readouterr().err


def test_every_tape_that_comes_along_is_named_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    run(["simulate", "tape", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert all(name in said for name in tapes.shipped())


def test_nobody_can_train_on_with_what_was_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run(["simulate", "tape", "calm", "--run-dir", str(folder)]) == exits.DONE
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run(["train", "--resume", str(folder)]) == exits.USAGE
    assert capsys.readouterr().err == (
        f"error: the run in {folder} was simulated and has no model; give the folder of one that was trained\n"
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

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


def lives_of(source: str | Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run(["simulate", "tape", str(source), *arguments, "--json"]) == exits.DONE
    return json.loads(capsys.readouterr().out)["lives"]


def written(folder: Path, *actions: tapes.Action, learners: tuple[str, ...] = ("a",), end_s: int = 60) -> Path:
    path = folder / "mine.toml"
    tapes.write(tapes.Tape(name="mine", learners=learners, actions=actions, end_ns=end_s * SECOND), path)
    return path


def test_a_tape_is_played_and_its_folder_can_be_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    arguments = ["--run-dir", str(folder), "--seconds", "40"]
    (life,) = lives_of("one_crash", capsys, *arguments)
    assert life["violations"] == [] and life["accounting"]["ended"] and life["run_folder"] == str(folder)
    assert 0.8 < life["yielded"] < 1
    assert run(["report", str(folder), "--check"]) == exits.DONE


def test_every_life_of_the_syncer_is_summed_up_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run(["simulate", "tape", "syncer_crash", "--toy", "--run-dir", str(folder)]) == exits.DONE
    said = capsys.readouterr().out
    assert "syncer_crash, life 1 of the syncer, from 0 s" in said and "life 2 of the syncer, from 40.0 s" in said
    assert said.count("never joined") == said.count(" has given up: ") == 4
    for life in (folder, folder / "life-2"):
        assert f"\nunlockstep report {life} --check    # life " in said and f"{life}/run.jsonl, config.toml\n" in said
        assert run(["report", str(life), "--check"]) == exits.DONE


def test_the_lives_of_the_syncer_take_all_the_time_of_the_tape(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = lives_of("syncer_crash", capsys)
    assert (first["began_ns"], first["simulated_ns"], second["began_ns"]) == (0, 40 * SECOND, 40 * SECOND)
    assert 50 * SECOND <= second["simulated_ns"] <= 51 * SECOND
    assert (first["possible"], second["possible"], second["yielded"]) == (4 * 40.0, 4 * 50.0, 0.0)
    assert first["absent"] == [] and len(second["absent"]) == 4


def test_simulated_is_the_time_of_the_tape(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "tape", "calm", "--seconds", "120"]) == exits.DONE
    said = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "simulated 2 min 00 s since the first step 1 min 59 s" in said
    assert "learner-0 1 start, 120 steps, in 100.0% of its rounds" in said


def test_who_joins_later_or_leaves_counts_while_it_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (calm,) = lives_of("calm", capsys)
    assert calm["yielded"] > 0.99
    (crowd,) = lives_of("flash_crowd", capsys)
    assert crowd["possible"] == pytest.approx(2 * 100 + 6 * 50 + sum(range(6)), rel=0.001)
    assert crowd["yielded"] > 0.97
    twice = (Leave(at_ns=10 * SECOND, target="b"), Join(at_ns=30 * SECOND, target="b"))
    (life,) = lives_of(written(tmp_path, *twice, learners=("a", "b")), capsys)
    assert life["possible"] == pytest.approx(60 + 10 + 30, rel=0.01)


def test_who_is_dead_or_stopped_counts_as_possible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    down = (
        Kill(at_ns=10 * SECOND, target="b"),
        Restart(at_ns=30 * SECOND, target="b"),
        Stop(at_ns=50 * SECOND, target="b"),
    )
    (life,) = lives_of(written(tmp_path, *down, learners=("a", "b")), capsys)
    assert life["possible"] == pytest.approx(2 * 60, rel=0.01)
    ledger = life["accounting"]["ledger"]
    assert life["yielded"] == (ledger["merged"] + ledger["merged_late"]) / life["possible"]
    assert 0.65 < life["yielded"] < (120 - 20 - 10) / 120


def test_a_tape_on_which_nobody_trains_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, Stop(at_ns=0, target="a"))
    (life,) = lives_of(path, capsys)
    assert (life["possible"], life["yielded"]) == (60.0, 0.0)
    assert 60 * SECOND <= life["simulated_ns"] <= 61 * SECOND
    assert life["absent"] == ["a"]
    assert run(["simulate", "tape", str(path)]) == exits.DONE
    said = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "merged of the possible 0.0% of 60 tokens" in said and " a never joined " in said


def test_a_syncer_that_does_not_come_back_leaves_the_run_without_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (life,) = lives_of(written(tmp_path, Kill(at_ns=30 * SECOND, target=tapes.SYNCER)), capsys)
    assert not life["accounting"]["ended"]
    assert (life["simulated_ns"], life["possible"]) == (60 * SECOND, 60.0)


def test_settings_speed_and_learners_can_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--learners", "6", "--fragments", "2", "--set", "protocol.quorum=2", "--step-s", "0.5"]
    (life,) = lives_of("calm", capsys, "--seconds", "20", *arguments)
    learners = life["accounting"]["learners"]
    assert len(learners) == 6 and all(38 <= learner["steps"] <= 42 for learner in learners)
    assert life["yielded"] > 0.99


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

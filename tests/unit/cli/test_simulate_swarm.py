"""``unlockstep simulate swarm`` and ``simulate tape``: what is printed, what is written, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from unlockstep import runlog
from unlockstep.cli import exits, simulate_swarm
from unlockstep.cli.app import run
from unlockstep.cli.output import wide_console
from unlockstep.core.events import RunFinished
from unlockstep.sim import story as stories
from unlockstep.sim.swarm import Outcome, Verdict


def test_some_stories_are_played_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "swarm", "--seeds", "3", "--first", "30", "--jobs", "1", "--json"]) == exits.DONE
    said = json.loads(capsys.readouterr().out)
    assert (said["first"], said["seeds"], said["played"], said["failures"]) == (30, 3, 3, [])
    assert sum(said["verdicts"].values()) == 3 and said["commits"] > 0


def test_one_story_is_played_and_its_log_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.jsonl"
    assert run(["simulate", "swarm", "--seed", "6", "--log", str(log)]) == exits.DONE
    assert "seed 6: passed" in capsys.readouterr().out
    _, events = runlog.read(log)
    assert isinstance(list(events)[-1], RunFinished)


def test_a_story_that_fails_is_made_small_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken core stands for a fault that nobody knows of."""
    outcome = simulate_swarm.catch("skipped_fragment", range(5))
    assert outcome is not None and outcome.failed
    path = tmp_path / "failures" / f"seed-{outcome.seed}.toml"
    assert simulate_swarm.save(outcome, path.parent, wide_console(), "skipped_fragment") == str(path)
    said = capsys.readouterr().out
    assert f"replay: unlockstep simulate swarm --seed {outcome.seed}\n" in said
    assert f"unlockstep simulate swarm --story {path}\n" in said
    assert run(["simulate", "swarm", "--story", str(path), "--canary", "skipped_fragment"]) == exits.SAFETY
    assert run(["simulate", "swarm", "--story", str(path)]) == exits.DONE


def test_a_canary_that_is_caught_is_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "swarm", "--canary", "quorum_off_by_one"]) == exits.DONE
    assert "is caught, as it should be, by story 1: seed 0: safety, rule quorum" in capsys.readouterr().out


def test_a_canary_that_is_not_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """One of these stories alone does not show that an earlier start of a learner is heard."""
    arguments = ["simulate", "swarm", "--canary", "stale_incarnation", "--seeds", "1"]
    assert run(arguments) == exits.FAILED
    assert "is NOT caught within 1 seeds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.PASSED, exits.DONE),
        (Verdict.HOPELESS, exits.DONE),
        (Verdict.CRASH, exits.CRASH),
        (Verdict.SAFETY, exits.SAFETY),
        (Verdict.LIVENESS, exits.LIVENESS),
        (Verdict.OUT_OF_RESOURCES, exits.OUT_OF_RESOURCES),
    ],
)
def test_every_verdict_has_its_exit_code(verdict: Verdict, code: int) -> None:
    passed = Outcome(seed=0, verdict=Verdict.PASSED)
    assert simulate_swarm.exit_code([passed, msgspec.structs.replace(passed, verdict=verdict)]) == code


def test_a_failure_counts_for_more_than_what_cannot_be_told() -> None:
    outcomes = [Outcome(seed=0, verdict=verdict) for verdict in (Verdict.OUT_OF_RESOURCES, Verdict.LIVENESS)]
    assert simulate_swarm.exit_code(outcomes) == exits.LIVENESS


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "0"], "--seeds is 0; it must be at least 1"),
        (["--jobs", "0"], "--jobs is 0; it must be at least 1"),
        (["--seed", "1", "--story", "x.toml"], "--seed 1 and --story x.toml are two stories; give one of them"),
        (["--log", "x.jsonl"], "--log x.jsonl is given without a story; add --seed or --story"),
        (["--canary", "dodo"], "canary is 'dodo', which does not exist: choose one of "),
        (["--story", "nowhere.toml"], "story nowhere.toml cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "swarm", *arguments]) == exits.USAGE
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("", "is not a story"),
        ("name = ", "is not a story"),
        (stories.dumps(stories.draw(1)).replace("seed = 1", "sed = 1"), "is not a story"),
        (stories.dumps(stories.draw(1)).replace("learner-0 =", "learner-9 ="), "step_ns says nothing of learner-0"),
        (stories.dumps(stories.draw(1)).replace("[story.config.run]", "[story.config.rum]"), "rum is not a section"),
    ],
)
def test_a_file_that_is_no_story_is_refused(
    wrong: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "story.toml"
    path.write_text(wrong, encoding="utf-8")
    assert run(["simulate", "swarm", "--story", str(path)]) == exits.USAGE
    assert sentence in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------- tapes


def test_a_tape_is_played_and_its_folder_can_be_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    arguments = ["simulate", "tape", "one_crash", "--run-dir", str(folder), "--json", "--seconds", "40"]
    assert run(arguments) == exits.DONE
    (life,) = json.loads(capsys.readouterr().out)["lives"]
    assert life["violations"] == [] and life["accounting"]["ended"]
    assert 0.8 < life["yielded"] < 1
    assert run(["report", str(folder), "--check"]) == exits.DONE


def test_every_life_of_the_syncer_is_summed_up_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run(["simulate", "tape", "syncer_crash", "--toy", "--run-dir", str(folder)]) == exits.DONE
    said = capsys.readouterr().out
    assert "syncer_crash, life 1 of the syncer" in said and "life 2 of the syncer" in said
    assert (folder / "run.jsonl").exists() and (folder / "life-2" / "run.jsonl").exists()


def test_settings_speed_and_learners_can_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--learners", "6", "--fragments", "2", "--set", "protocol.quorum=2", "--step-s", "0.5", "--json"]
    assert run(["simulate", "tape", "calm", "--seconds", "20", *arguments]) == exits.DONE
    (life,) = json.loads(capsys.readouterr().out)["lives"]
    learners = life["accounting"]["learners"]
    assert len(learners) == 6 and all(38 <= learner["steps"] <= 42 for learner in learners)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "tape 'nothing' is neither a file"),
        (["calm", "--step-s", "0"], "--step-s is 0.0; it must be from 0.001 to 1e9"),
        (["calm", "--fragments", "0"], "protocol.fragments is 0; it must be at least 1"),
        (["one_crash", "--learners", "0"], "tape 'one_crash'"),
    ],
)
def test_a_tape_that_cannot_be_played_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "tape", *arguments]) == exits.USAGE
    assert sentence in capsys.readouterr().err

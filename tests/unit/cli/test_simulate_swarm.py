"""``unlockstep simulate swarm``: what is printed, what is written, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from unlockstep import runlog
from unlockstep import tape as tapes
from unlockstep.cli import exits, simulate_swarm
from unlockstep.cli.app import run
from unlockstep.cli.output import wide_console
from unlockstep.core.events import FragmentCommitted, SyncerResumed
from unlockstep.sim import story as stories
from unlockstep.sim.swarm import Outcome, Verdict


def test_some_stories_are_played_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "swarm", "--seeds", "3", "--first", "30", "--jobs", "1", "--json"]) == exits.DONE
    said = json.loads(capsys.readouterr().out)
    assert (said["first"], said["seeds"], said["played"], said["failures"]) == (30, 3, 3, [])
    assert sum(said["verdicts"].values()) == 3 and said["commits"] > 0


def test_one_story_is_played_and_its_log_can_be_judged_over_all_lives_of_its_syncer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example in docs/simulation.md."""
    folder = tmp_path / "story"
    assert run(["simulate", "swarm", "--seed", "12", "--run-dir", str(folder)]) == exits.DONE
    verdict, counts, report = capsys.readouterr().out.splitlines()
    assert verdict == "seed 12: passed"
    assert report == f"unlockstep report {folder} --check    # {folder}/run.jsonl, config.toml"
    assert sorted(path.name for path in folder.iterdir()) == ["config.toml", "run.jsonl"]
    assert run(["report", str(folder), "--check"]) == exits.DONE
    events = list(runlog.read(folder / "run.jsonl")[1])
    assert any(isinstance(event, SyncerResumed) for event in events)
    commits = sum(isinstance(event, FragmentCommitted) for event in events)
    assert commits > 10 and counts.endswith(f" happenings, {commits} commits")


def test_a_folder_that_is_used_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.txt").write_text("kept", encoding="utf-8")
    for place in (tmp_path, tmp_path / "kept.txt"):
        assert run(["simulate", "swarm", "--seed", "6", "--run-dir", str(place)]) == exits.USAGE
        assert f"--run-dir {place} is there already; name a folder that is new or empty" in capsys.readouterr().err
    assert run(["simulate", "swarm", "--seed", "6", "--run-dir", str(tmp_path / "kept.txt" / "run")]) == exits.USAGE
    assert "cannot be written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_one_story_as_json_says_where_its_log_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "story"
    assert run(["simulate", "swarm", "--seed", "6", "--run-dir", str(folder), "--json"]) == exits.DONE
    said = json.loads(capsys.readouterr().out)
    assert (said["story"], said["verdict"], said["run_folder"]) == ("seed 6", "passed", str(folder))


def test_a_story_in_a_file_is_called_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(stories.dumps(stories.draw(6)), encoding="utf-8")
    assert run(["simulate", "swarm", "--story", str(path)]) == exits.DONE
    assert capsys.readouterr().out.startswith(f"story {path}: passed\n")


def test_a_hopeless_story_says_why_and_many_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "swarm", "--seed", "15"]) == exits.DONE
    assert "seed 15: hopeless: too few learners are sound to form a core\n" in capsys.readouterr().out
    assert run(["simulate", "swarm", "--first", "15", "--seeds", "1"]) == exits.DONE
    assert f"\n{simulate_swarm.HOPELESS_SAID}\n" in capsys.readouterr().out
    assert run(["simulate", "swarm", "--first", "6", "--seeds", "1"]) == exits.DONE
    assert "hopeless" not in capsys.readouterr().out


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
    assert "is NOT caught within 1 seed:" in capsys.readouterr().out


def test_a_process_that_is_killed_is_neither_waited_for_nor_overlooked() -> None:
    """``os._exit`` instead of a story: the process is gone without a word."""
    played = simulate_swarm.elsewhere(os._exit, range(7, 9), jobs=2)  # type: ignore[arg-type]
    with pytest.raises(exits.RunFailed, match="after 0 of 2 stories; go on with --first 7"):
        next(played)


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
        (["--seed", "-1"], "--seed is -1; it must be from 0 to"),
        (["--first", "-5"], "--first is -5; it must be from 0 to"),
        (["--seeds", "9" * 30], "it must be from 0 to"),
        (["--seed", "1", "--seeds", "5"], "--seeds is for many stories, but seed 1 is one; leave it out"),
        (["--seed", "1", "--canary", "all"], "--canary all is for many stories, but seed 1 is one; name a canary"),
        (["--seed", "1", "--story", "x.toml"], "--seed 1 and --story x.toml are two stories; give one of them"),
        (["--run-dir", "x"], "--run-dir x is given without a story; add --seed or --story"),
        (["--canary", "dodo"], "canary is 'dodo', which does not exist: choose one of "),
        (["--story", "nowhere.toml"], "story nowhere.toml cannot be read"),
        (["--story", "calm"], "play it with unlockstep simulate tape calm"),
        (["--story", "day.jsonl"], "play it with unlockstep simulate tape day.jsonl"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "swarm", *arguments]) == exits.USAGE
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("", "is not a story"),
        (
            tapes.dumps_toml(stories.draw(1).tape),
            "has no table [story]); if it is a tape, play it with unlockstep simulate",
        ),
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

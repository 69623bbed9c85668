"""The examples run as they stand, and show what they say they show."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from support.live_run import small_config
from support.secret_files import secrets_in
from support.syncer_thread import syncer_thread

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_two_learners_in_one_process_come_to_their_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "two_learners_one_process.py"), run_name="__main__")
    shown = capsys.readouterr().out
    for name in ("hare", "tortoise"):
        assert f"  {name} contributes " in shown and f"  {name} adopts version " in shown
        distances = [float(number) for number in re.findall(rf"optimum: .*{name} ([\d.]+)", shown)]
        assert distances[-1] < 0.05 * distances[0]


def test_a_loop_of_ones_own_trains_with_a_syncer_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = str(EXAMPLES / "own_training_loop.py")
    monkeypatch.setattr(sys, "argv", [example, "--name", "a"])
    runpy.run_path(example, run_name="__main__")
    shown = capsys.readouterr().out
    assert "a: the run has finished" in shown
    losses = [float(number) for number in re.findall(r"loss ([\d.]+)$", shown, re.MULTILINE)]
    assert losses[-1] < losses[0] / 3


def test_a_loop_of_ones_own_joins_a_secured_run_or_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = str(EXAMPLES / "own_training_loop.py")
    secrets = secrets_in(tmp_path / "secrets")
    access = ["--ca", str(secrets.ca), "--token-file", str(secrets.folder / "learner.token")]

    def run(url: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [example, "--name", "a", "--syncer", url, *arguments])
        runpy.run_path(example, run_name="__main__")

    with syncer_thread(small_config(), tmp_path, security=secrets.server()) as syncer:
        with pytest.raises(SystemExit, match=r"^error: .* with --ca \(in Python: ca=\)"):
            run(syncer.url)
        with pytest.raises(SystemExit, match=r"^error: .* asks for a token; .* \(in Python: token=\)"):
            run(syncer.url, *access[:2])
        run(syncer.url, *access)
    assert "a: the run has finished" in capsys.readouterr().out


def test_at_most_four_lines_make_a_loop_a_learner() -> None:
    lines = (EXAMPLES / "own_training_loop.py").read_text().splitlines()
    assert sum("  # +" in line for line in lines) <= 4

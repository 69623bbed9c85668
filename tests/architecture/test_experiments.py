"""Every experiment can be begun: its script loads, and each of its trials makes a configuration."""

from __future__ import annotations

import signal
import sys
from types import SimpleNamespace

import pytest

from architecture.rules import ROOT
from support.scripts import imported

EXPERIMENTS = sorted(
    path.stem for path in (ROOT / "experiments").glob("*.py") if "import conduct\n" in path.read_text(encoding="utf-8")
)
"""Those that are made of trials."""


@pytest.mark.parametrize("is_quick", [True, False], ids=["quick", "whole"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_can_be_begun(name: str, is_quick: bool) -> None:
    with imported(f"experiments/{name}.py") as experiment:
        trials = experiment.trials(is_quick)
        assert len({trial.name for trial in trials}) == len(trials) > 1
        for trial in trials:
            config = sys.modules["trial"].configured(trial, seed=0)
            assert config.run.tokens == trial.tokens and config.run.steps > 0


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "file"])
def test_progress_is_never_more_than_whole_and_each_line_is_one(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with imported("experiments/learners.py"):
        times_s = iter((0.0, 20.0, 40.0))
        progress = sys.modules["sheet"]._Progress("1/2 four, seed 0", 1000, lambda: next(times_s))
        for tokens in (500, 1280):
            progress(tokens, 2.5)
        progress.ended(SimpleNamespace(loss=2.25))
    said = [
        "1/2 four, seed 0:  50%, 20 s left, 2.500 nats/byte",
        "1/2 four, seed 0: 100%, 0 s left, 2.500 nats/byte",
        "1/2 four, seed 0: 100%, 2.250 nats/byte",
    ]
    between = (
        "".join(f"\r{line:<100}" for line in said) + "\n" if is_terminal else "".join(f"{line}\n" for line in said)
    )
    assert capsys.readouterr().err == between


def test_one_that_is_stopped_shows_what_there_is_and_does_not_look_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["learners.py", "--quick"])
    with imported("experiments/learners.py") as experiment:
        sheet = sys.modules["sheet"]
        monkeypatch.setattr(sheet, "run", stopped)
        with pytest.raises(SystemExit) as ended:
            sheet.conduct("learners", None, experiment.trials)
    assert ended.value.code == 128 + signal.SIGINT
    said = capsys.readouterr()
    assert said.out.startswith("| trial | seed |") and said.err == "\nstopped; what is finished is kept\n"

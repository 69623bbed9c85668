"""Every experiment can be begun: its script loads, and each of its trials makes a configuration."""

from __future__ import annotations

import sys

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

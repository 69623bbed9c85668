"""``unlockstep train`` from the command line: a whole run, and one sentence for whatever the user can mend."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from support.train_process import Train
from unlockstep import config as configuration
from unlockstep.cli.app import run
from unlockstep.cli.train import resolve
from unlockstep.config import RunConfig
from unlockstep.report.summary import Summary
from unlockstep.tape import Tape


def test_a_run_leaves_a_summary_a_model_and_everything_to_start_it_again(tmp_path: Path) -> None:
    with Train(tmp_path, "--learners", "2", "--steps", "24", "--quorum", "2", "--no-kill", "--json") as train:
        progress = train.end()
        assert train.process.returncode == 0, progress
    summary = msgspec.json.decode(train.output, type=Summary)
    accounting = summary.accounting
    assert (summary.ending, accounting.ended) == ("finished", True)
    assert accounting.clock >= 24
    assert accounting.balance == 0
    assert accounting.ledger.lost == 0
    assert accounting.ledger.merged > 0.5 * accounting.ledger.trained
    assert accounting.evaluations[-1].clock == accounting.clock
    assert [learner.learner for learner in accounting.learners] == ["learner-0", "learner-1"]
    assert "the syncer listens at http://127.0.0.1:" in progress

    assert msgspec.json.decode((train.run / "summary.json").read_bytes(), type=Summary) == summary
    assert (train.run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    config = configuration.load(train.run / "config.toml")
    assert (config.local.learners, config.run.steps, config.local.kill_share) == (2, 24, 0)
    assert {path.name for path in (train.run / "logs").iterdir()} == {
        "evaluator.log", "learner-0.log", "learner-1.log", "syncer.log",
    }  # fmt: skip
    assert (train.run / "model" / "config.json").is_file()
    assert summary.files.model == str(train.run / "model")


def test_the_more_particular_source_of_a_setting_wins(tmp_path: Path) -> None:
    """Defaults, ``--config``, flags, ``--set``."""
    file = tmp_path / "run.toml"
    file.write_text("[run]\nname = 'file'\nseed = 1\nsteps = 1\n[inner]\nbatch_size = 2\n")
    resolved = resolve(configuration.load(file), {"run.seed": 2, "run.steps": 2, "model.spec": None}, ["run.steps=3"])
    assert (resolved.inner.batch_size, resolved.run.name) == (2, "file")
    assert (resolved.run.seed, resolved.run.steps) == (2, 3)
    assert resolved.model.spec == RunConfig().model.spec


def test_text_that_looks_like_a_number_is_still_text() -> None:
    assert resolve(RunConfig(), {"data.source": "2024"}, []).data.source == "2024"


def test_a_length_in_tokens_is_a_length_in_steps_of_all_learners() -> None:
    sizes = ["local.learners=4", "inner.batch_size=8", "inner.accumulation=2", "data.sequence_length=128"]
    config = resolve(RunConfig(), {"run.tokens": 100_000}, sizes)
    assert config.run.tokens == 100_000
    assert config.run.steps == math.ceil(100_000 / (4 * 8 * 2 * 128))
    assert resolve(RunConfig(), {"run.tokens": 100_000, "run.steps": 7}, sizes).run.steps == 7


def test_a_tape_says_how_many_learners_there_are_whatever_the_settings_say() -> None:
    tape = Tape(name="two", learners=("a", "b"))
    assert resolve(RunConfig(), {}, ["local.learners=5"], tape).local.learners == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--learners", "2", "--quorum", "3"], "protocol.quorum is 3 but local.learners is 2; "),
        (["--set", "run.stepz=3"], "run.stepz is not a setting; did you mean run.steps?"),
        (["--set", "nonsense"], "override 'nonsense' is not a setting; write section.field=value"),
        (["--steps", "0"], "run.steps and run.tokens are both 0, so the run would never end; set one of them"),
        (["--steps", "-1"], "run.steps is -1; it must be at least 0"),
        (["--config", "none.toml"], "configuration file none.toml does not exist; check the path"),
    ],
)
def test_a_configuration_that_cannot_run_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", *arguments, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {sentence}")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("keep")
    assert run(["train", "--out", str(tmp_path)]) == 2
    fix = "choose another one with --out, or remove it"
    assert capsys.readouterr().err == f"error: folder {tmp_path} is not empty; {fix}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_only_a_learner_can_find_wrong_is_one_sentence_too(tmp_path: Path) -> None:
    """The corpus is read where it is trained on; nothing is left of the run."""
    with Train(tmp_path, "--learners", "1", "--data", str(tmp_path / "nowhere")) as train:
        errors = train.end()
        assert train.process.returncode == 2
    sentence = errors.splitlines()[-1]
    assert sentence.startswith("error: ") and "nowhere" in sentence
    assert "Traceback" not in errors
    assert not train.run.exists()

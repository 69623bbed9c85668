"""What a syncer leaves on disk: a run's two files, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlockstep import config as run_config
from unlockstep import runlog
from unlockstep.cli.run_folder import new_run_log
from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError


def test_a_run_folder_holds_the_configuration_and_the_run_log(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with new_run_log(folder, RunConfig()):
        pass
    assert sorted(file.name for file in folder.iterdir()) == ["config.toml", "run.jsonl"]
    assert run_config.load(folder / "config.toml") == RunConfig()
    header, events = runlog.read(folder / "run.jsonl")
    assert header.config_digest == run_config.digest(RunConfig()) and list(events) == []


def test_a_run_that_never_began_leaves_what_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(run_config.dumps(RunConfig()))
    (tmp_path / "notes").write_text("mine")
    for folder in (tmp_path, tmp_path / "a" / "b"):
        with pytest.raises(UsageError, match="no port"), new_run_log(folder, RunConfig()):
            raise UsageError("no port")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.toml", "notes"]


def test_a_run_that_fails_later_keeps_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_run_log(tmp_path, RunConfig()):
        raise RuntimeError("a bug")
    assert (tmp_path / "run.jsonl").exists()

"""What a syncer leaves on disk: a run's two files, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlockstep import config as run_config
from unlockstep import runlog
from unlockstep.cli.run_folder import new_run_log, resumed_run_log
from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError
from unlockstep.core.events import Event, JoinWasRefused, RunSeeded
from unlockstep.core.messages import JoinRefusal
from unlockstep.keeper import Deposed


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


def test_a_run_that_has_parameters_keeps_its_log_whatever_is_to_be_mended(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no port"), new_run_log(tmp_path, RunConfig()) as log:
        log.write([RunSeeded(at_ns=1, learner="a")])
        raise UsageError("no port")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.toml", "run.jsonl"]


def begin(folder: Path, *events: Event) -> None:
    """A syncer that dies when it has logged these, without ``finally``."""
    with new_run_log(folder, RunConfig()) as log:
        log.write(events)


def test_a_run_whose_syncer_died_before_it_had_saved_anything_is_begun_anew(tmp_path: Path) -> None:
    """C28: a learner may have joined by then; it was not told so."""
    begin(tmp_path, JoinWasRefused(at_ns=1, learner="a", reason=JoinRefusal.BAD_NAME, detail="no"))
    begin(tmp_path)
    assert list(runlog.read(tmp_path / "run.jsonl")[1]) == []


def test_a_run_that_is_not_saved_where_it_is_looked_for_is_left_alone(tmp_path: Path) -> None:
    seeded = RunSeeded(at_ns=1, learner="a")
    begin(tmp_path, seeded)
    with pytest.raises(UsageError, match=r"already holds a run; .* say with --store where that run is saved"):
        begin(tmp_path)
    assert list(runlog.read(tmp_path / "run.jsonl")[1]) == [seeded]


def test_of_two_that_begin_a_run_at_once_the_second_leaves_the_log_of_the_first(tmp_path: Path) -> None:
    seeded = RunSeeded(at_ns=1, learner="a")
    with new_run_log(tmp_path, RunConfig()) as first:
        with pytest.raises(Deposed, match="another syncer begins a run"):
            begin(tmp_path)
        first.write([seeded])
    assert list(runlog.read(tmp_path / "run.jsonl")[1]) == [seeded]


def test_of_two_that_begin_a_run_at_once_the_second_leaves_the_settings_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither sees the other's log when it looks; one of them makes it."""

    def too_late(path: Path, header: runlog.Header) -> runlog.RunLogWriter:
        raise runlog.LogExists(f"run log {path} is there already; choose another folder")

    monkeypatch.setattr(runlog, "RunLogWriter", too_late)
    (tmp_path / "config.toml").write_text("of the first")
    with pytest.raises(UsageError, match="is there already"):
        begin(tmp_path)
    assert (tmp_path / "config.toml").read_text() == "of the first"


def test_of_two_that_take_a_run_over_at_once_each_has_a_life_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_run_log(tmp_path, RunConfig()) as log:
        mark = log.mark
    quick, life = resumed_run_log(tmp_path, RunConfig(), 2, mark)
    looks = iter([1])  # The other one has looked before the quick one had made its file.
    real = runlog.newest_life
    monkeypatch.setattr(runlog, "newest_life", lambda path: next(looks, None) or real(path))
    late, later_life = resumed_run_log(tmp_path, RunConfig(), 2, mark)
    assert (life, later_life) == (2, 3)
    quick.close()
    late.close()

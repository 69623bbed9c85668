"""Run folders for tests of the report: of the run told in ``logs``, and of one that an event tape was played on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from support.logs import OPTIONS
from unlockstep import config as run_config
from unlockstep.cli.report_run import find_run, sum_up, view_of
from unlockstep.core.events import Event
from unlockstep.report.run_view import RunView
from unlockstep.runlog import Header, RunLogWriter

CONFIG = run_config.RunConfig(run=run_config.RunSection(steps=5), protocol=OPTIONS)


def folder_of(
    path: Path,
    events: Iterable[Event],
    config: run_config.RunConfig = CONFIG,
    written: run_config.RunConfig | None = None,
    *,
    run: str = "night",
    simulated: bool = False,
) -> Path:
    """A run folder as a syncer leaves it."""
    path.mkdir(exist_ok=True)
    (path / "config.toml").write_text(run_config.dumps(written or config), encoding="utf-8")
    header = Header(run=run, config_digest=run_config.digest(config), simulated=simulated)
    with RunLogWriter(path / "run.jsonl", header) as log:
        log.write(events)
    return path


def view_in(folder: Path, label: str = "night") -> RunView:
    """Of the run in a folder."""
    found = find_run(folder)
    summed = sum_up(found)
    assert summed is not None
    return view_of(found, *summed, label)

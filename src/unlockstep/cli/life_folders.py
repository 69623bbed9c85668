"""Where a simulated run is kept: a folder for each life of its syncer, which ``unlockstep report`` reads as a run.

Decides names of folders, that nothing is written over, and how they are pointed to. What is in one is ``run_folder``'s.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from unlockstep.cli.run_folder import CONFIG_FILE, RUN_LOG_FILE
from unlockstep.core.errors import UsageError


def life_folder(run_dir: Path, life: int) -> Path:
    """The folder of a life, counted from 1: ``run_dir`` itself, then ``life-2`` in it, and so on."""
    return run_dir if life == 1 else run_dir / f"life-{life}"


def refuse_used(run_dir: Path) -> None:
    """Raises UsageError for what is there already, but for an empty folder."""
    with suppress(OSError):  # Where nobody may look, writing says so.
        if run_dir.exists() and not (run_dir.is_dir() and not any(run_dir.iterdir())):
            raise UsageError(f"--run-dir {run_dir} is there already; name a folder that is new or empty")


def report_lines(folders: Sequence[Path]) -> list[str]:
    """For each life the command that judges it, and what was written."""
    several = len(folders) > 1
    return [
        f"unlockstep report {shlex.quote(str(folder))} --check    # "
        + (f"life {life} of the syncer: " if several else "")
        + f"{folder / RUN_LOG_FILE}, {CONFIG_FILE}"
        for life, folder in enumerate(folders, start=1)
    ]

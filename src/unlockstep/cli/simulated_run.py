"""Where a simulated run is kept: a folder that ``unlockstep report`` reads as that of any run.

Decides that nothing is written over, and how the folder is pointed to. What is in it is ``run_folder``'s.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from unlockstep.cli.run_folder import CONFIG_FILE, RUN_LOG_FILE
from unlockstep.core.errors import UsageError


def refuse_used(run_dir: Path) -> None:
    """Raises UsageError for what is there already, but for an empty folder."""
    with suppress(OSError):  # Where nobody may look, writing says so.
        if run_dir.exists() and not (run_dir.is_dir() and not any(run_dir.iterdir())):
            raise UsageError(f"--run-dir {run_dir} is there already; name a folder that is new or empty")


def report_line(run_dir: Path) -> str:
    """The command that judges it, and what was written."""
    return f"unlockstep report {shlex.quote(str(run_dir))} --check    # {run_dir / RUN_LOG_FILE}, {CONFIG_FILE}"

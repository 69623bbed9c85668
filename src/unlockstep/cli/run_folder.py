"""A run's folder on disk: the resolved configuration and the run log, and nothing of a run that never began.

Decides names of files, and that a folder which holds a run is not used for another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unlockstep.core.errors import UsageError
from unlockstep.files import whole

if TYPE_CHECKING:
    from unlockstep.config import RunConfig
    from unlockstep.runlog import RunLogWriter

CONFIG_FILE = "config.toml"
RUN_LOG_FILE = "run.jsonl"
MODEL_FOLDER = "model"
RUNS_FOLDER = "runs"


def default_run_folder(run: str) -> Path:
    """``runs/NAME-DATE-TIME-PROCESS``, under the folder one is in: two runs begun in one second do not share it."""
    return Path(RUNS_FOLDER) / f"{run}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


@contextmanager
def new_run_log(folder: Path, config: RunConfig) -> Iterator[RunLogWriter]:
    """The run log in a folder, beside the configuration that loads back equal; made if it is not there.

    If a ``UsageError`` ends the block the run never began: what was made here is removed again.

    Raises:
        UsageError: the folder cannot be written, or holds a run.
    """
    from unlockstep import config as run_config
    from unlockstep.runlog import Header, RunLogWriter

    log_file, config_file = folder / RUN_LOG_FILE, folder / CONFIG_FILE
    if log_file.exists():
        raise UsageError(f"run folder {folder} already holds a run; choose another with --run-dir")
    made_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    made_files = [log_file] + [config_file] * (not config_file.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole(config_file) as partial:
            partial.write_text(run_config.dumps(config), encoding="utf-8")
        log = RunLogWriter(log_file, Header(run=config.run.name, config_digest=run_config.digest(config)))
    except OSError as error:
        _remove(made_files, made_folders)
        raise UsageError(
            f"run folder {folder} cannot be written ({error.strerror or error}); choose a folder you may write to "
            "with --run-dir"
        ) from None
    try:
        with log:
            yield log
    except UsageError:
        _remove(made_files, made_folders)
        raise


def _remove(files: list[Path], folders: list[Path]) -> None:
    """Files, then the folders that are empty without them, the inner ones first."""
    for file in files:
        with suppress(OSError):
            file.unlink()
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()

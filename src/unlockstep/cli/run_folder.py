"""A run's folder on disk: the resolved configuration, the run log, the store; nothing of a run that never began.

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
    from unlockstep.runlog import Mark, RunLogWriter

CONFIG_FILE = "config.toml"
RUN_LOG_FILE = "run.jsonl"
TAPE_FILE = "tape.jsonl"
"""The event tape that was played, as it was played."""

CHECKPOINT_FILE = "checkpoint"
"""Of a run under virtual time that is not over: what it goes on from."""

MODEL_FOLDER = "model"
SUMMARY_FILE = "summary.json"
LOG_FOLDER = "logs"
"""Of the processes that ``train`` has started."""

STORE_FOLDER = "store"
RUNS_FOLDER = "runs"


KEPT = (CONFIG_FILE, TAPE_FILE, CHECKPOINT_FILE, MODEL_FOLDER, SUMMARY_FILE, LOG_FOLDER, STORE_FOLDER,
        "learners", "chaos", "audit.jsonl", "processes.json")  # fmt: skip
"""What a run leaves beside its log, of whatever kind it was."""


def run_around(place: Path) -> Path | None:
    """The folder of a run that a place is, or lies in, wherever links lead; None: of none."""
    real = real_place(place)
    return next((folder for folder in (real, *real.parents) if (folder / RUN_LOG_FILE).is_file()), None)


def real_place(place: Path) -> Path:
    """Where links lead; of one that leads to itself, itself, which nothing can be written to."""
    return Path(os.path.realpath(place))


def default_run_folder(run: str) -> Path:
    """``runs/NAME-DATE-TIME-PROCESS``, under the folder one is in: two runs begun in one second do not share it."""
    return Path(RUNS_FOLDER) / f"{run}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


@contextmanager
def new_run_log(folder: Path, config: RunConfig, *, simulated: bool = False) -> Iterator[RunLogWriter]:
    """The run log in a folder, beside the configuration that loads back equal; made if it is not there. ``simulated``:
    its time is virtual.

    If a ``UsageError`` ends the block and no parameters are in the log, the run never began: what was made here is
    removed again.

    Raises:
        Deposed: another process begins a run there at this moment.
        UsageError: the folder cannot be written, or holds a run.
    """
    from unlockstep import config as run_config
    from unlockstep.keeper import Deposed
    from unlockstep.runlog import Header, RunLogWriter, is_being_written, remove_unused

    log_file, config_file = folder / RUN_LOG_FILE, folder / CONFIG_FILE
    if log_file.exists() and not remove_unused(log_file):
        if is_being_written(log_file):
            raise Deposed(f"another syncer begins a run in {folder}; this one steps down")
        raise UsageError(
            f"run folder {folder} already holds a run; choose another with --run-dir, or say with --store where that "
            "run is saved"
        )
    made_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    made_files = [log_file] + [config_file] * (not config_file.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The log first: of two that begin at this moment one cannot make it, and must leave the other's settings alone.
        header = Header(run=config.run.name, config_digest=run_config.digest(config), simulated=simulated)
        log = RunLogWriter(log_file, header)
        try:
            with whole(config_file) as partial:
                partial.write_text(run_config.dumps(config), encoding="utf-8")
        except BaseException:
            log.withdraw()
            raise
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
        if simulated or remove_unused(log_file):
            _remove(made_files, made_folders)
        raise


def resumed_run_log(folder: Path, config: RunConfig, life: int, mark: Mark) -> tuple[RunLogWriter, int]:
    """The log of another life of the syncer, which goes on where an earlier one has left off, here or elsewhere.

    Returns:
        The log, and which life it is: ``life``, or one after those that have died before they could save, or are about
        to take the run over themselves.

    Raises:
        UsageError: the folder cannot be written.
    """
    from unlockstep import config as run_config
    from unlockstep.runlog import Header, LogExists, RunLogWriter, newest_life

    header = Header(run=config.run.name, config_digest=run_config.digest(config))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / CONFIG_FILE).exists():  # An earlier life had another folder, on another host.
            with whole(folder / CONFIG_FILE) as partial:
                partial.write_text(run_config.dumps(config), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"run folder {folder} cannot be written ({error.strerror or error}); choose a folder you may write to "
            "with --run-dir"
        ) from None
    log_file = folder / RUN_LOG_FILE
    while True:
        life = max(life, newest_life(log_file) + 1)
        try:
            return RunLogWriter(log_file, header, life=life, continues=mark), life
        except LogExists:
            if newest_life(log_file) < life:  # It is not that of a life that was quicker.
                raise


def _remove(files: list[Path], folders: list[Path]) -> None:
    """Files, then the folders that are empty without them, the inner ones first."""
    for file in files:
        with suppress(OSError):
            file.unlink()
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()

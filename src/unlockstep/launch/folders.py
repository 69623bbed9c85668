"""The folder of a local run, made before the run begins.

Decides that it is nobody else's, and that nothing is left of a run that never began. What is in it is
``cli.run_folder``'s.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unlockstep import config as configuration
from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError


@contextmanager
def new_run_folder(config: RunConfig, folder: Path) -> Iterator[Callable[[], None]]:
    """A folder for the run, with ``config.toml`` in it. If UsageError ends the block, all of it is removed again.

    Yields:
        What removes it too: to be called for a run that was stopped before it began.

    Raises:
        UsageError: the folder is not empty or cannot be written.
    """
    made: list[Path] | None = _make(folder)
    try:
        try:
            with (folder / "config.toml").open("x", encoding="utf-8") as file:  # of two runs at once, one gets it
                file.write(configuration.dumps(config))
        except FileExistsError:
            made = None
            raise UsageError(f"run folder {folder} is another run's; choose another one with --out") from None
        except OSError as error:
            raise UsageError(
                f"run folder {folder} cannot be written ({error.strerror}); choose another one with --out"
            ) from None
        yield lambda: _remove(folder, made or [])
    except UsageError:
        if made is not None:
            _remove(folder, made)
        raise


def _make(folder: Path) -> list[Path]:
    """Make the folder; returns what of its path was not there, outermost first."""
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise UsageError(f"run folder {folder} is not empty; choose another one with --out, or remove it")
        missing = [path for path in (*reversed(folder.parents), folder) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"run folder {folder} cannot be made ({error.strerror}); choose another one with --out"
        ) from None
    return missing


def _remove(folder: Path, made: list[Path]) -> None:
    """What is in the folder now (it was empty before), then what was made of its path."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for path in reversed(made):
            path.rmdir()

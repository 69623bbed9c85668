"""The folder of a local run, or of guests, made before these begin, and held by one process at a time.

Decides that it is nobody else's, and that nothing is left of a run that never began. What is in it is
``cli.run_folder``'s.

The folder itself is locked (``flock``), so that nothing is written to hold it. The lock goes with its process, however
that ends: a program that it has started does not have it, and a fork of it gives it up. Where a file system has no such
locks nobody is held off.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unlockstep import config as configuration
from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError


class NewFolder:
    """The folder of something that has not begun yet: a run, or guests in another one's.

    Args:
        path: of the folder.
        made: what of its path was not there before, outermost first.
    """

    def __init__(self, path: Path, made: list[Path]) -> None:
        self._path, self._made = path, made
        self._has_begun = False

    def begun(self) -> None:
        """From now on it stays, whatever happens."""
        self._has_begun = True

    def refused(self) -> None:
        """Its processes had begun, but have done nothing: there is something that is to be mended first."""
        self._has_begun = False

    def remove(self) -> None:
        """The run was stopped before it began, or has something that is to be mended first: nothing is left of it."""
        if not self._has_begun:
            _remove(self._path, self._made)


@contextmanager
def new_folder(folder: Path) -> Iterator[NewFolder]:
    """A folder with nothing in it, held while the block runs. If UsageError or Ctrl-C ends the block before what is to
    be in it has begun, all of it is removed again; once that has, nothing is, whatever ends the block.

    Raises:
        UsageError: the folder is not empty or cannot be made, or another process holds it.
    """
    made = _make(folder)
    with _taken(folder, _in_use(folder)):
        if any(folder.iterdir()):  # Whoever had it when it was looked into has ended since.
            raise UsageError(_in_use(folder))
        new = NewFolder(folder, made)
        try:
            yield new
        except (UsageError, KeyboardInterrupt):
            new.remove()
            raise


@contextmanager
def new_run_folder(config: RunConfig, folder: Path) -> Iterator[NewFolder]:
    """A ``new_folder`` for a run, with ``config.toml`` in it.

    Raises:
        UsageError: as there, or the folder cannot be written.
    """
    with new_folder(folder) as new:
        try:
            with (folder / "config.toml").open("x", encoding="utf-8") as file:  # Where there are no locks, one gets it.
                file.write(configuration.dumps(config))
        except FileExistsError:
            new.begun()  # It is another one's.
            raise UsageError(_in_use(folder)) from None
        except OSError as error:
            raise UsageError(
                f"folder {folder} cannot be written ({error.strerror}); choose another one with --out"
            ) from None
        yield new


@contextmanager
def old_run_folder(folder: Path) -> Iterator[None]:
    """The folder of a run that is to go on, held while the block runs. Nothing in it changes by that.

    Raises:
        UsageError: there is none, or a process that has begun the run, or goes on with it, lives.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no run in {folder}; give the folder of one that was begun")
    with _taken(folder, f"the run in {folder} goes on: its unlockstep train is at work; end that run first"):
        yield


@contextmanager
def _taken(folder: Path, taken: str) -> Iterator[None]:
    """Raises UsageError with the sentence ``taken`` if another process holds the folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"folder {folder} cannot be read ({error.strerror}); choose one you may use") from None
    _held.add(descriptor)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(taken) from None
        yield
    finally:
        if descriptor in _held:  # It is not in a fork.
            _held.remove(descriptor)
            os.close(descriptor)


def _in_use(folder: Path) -> str:
    return f"folder {folder} is in use; choose another one with --out"


_held: set[int] = set()
"""Descriptors of folders that are held here."""


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


def _make(folder: Path) -> list[Path]:
    """Make the folder; returns what of its path was not there, outermost first."""
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise UsageError(f"folder {folder} is not empty; choose another one with --out, or remove it")
        missing = [path for path in (*reversed(folder.parents), folder) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"folder {folder} cannot be made ({error.strerror}); choose another one with --out") from None
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

"""A file that is written whole, or not at all, and is there after a power cut.

Decides how a file takes its place. Does not decide what is in it, nor what is said when it cannot be written.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What space that is made mends, and nothing else."""


@contextmanager
def whole(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """A place beside ``path`` to write to. What is there when the block ends takes the place of ``path``.

    It is on the disk, and not only with the operating system, before it does. If an error ends the block, ``path``
    holds what it held before, and nothing is left beside it.

    Args:
        path: the file.
        previous: what ``path`` held before is kept here, in the same folder. Once ``path`` exists, there is a whole
            file under one of the two names at every instant.

    Raises:
        OSError: ``path`` cannot be replaced, as one that is a folder.
    """
    if not path.name:  # As of "." and "/".
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with named(path):
            yield partial
        _force_to_disk(partial)
        if previous is not None:
            with suppress(FileNotFoundError):
                path.replace(previous)
        partial.replace(path)
        _force_to_disk(path.parent)
    finally:
        with suppress(OSError, ValueError):
            partial.unlink()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An OSError that ends the block says what file it is of: that of a write, as to a full disk, does not."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def remove_partial(path: Path) -> None:
    """Remove what processes that were killed while they wrote ``path`` have left beside it."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.part*"):
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def _force_to_disk(path: Path) -> None:
    """A file's bytes, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

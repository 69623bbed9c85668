"""A file that is written whole, or not at all, and is there after a power cut.

Decides how a file takes its place. Does not decide what is in it, nor what is said when it cannot be written.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What space that is made mends, and nothing else."""


@contextmanager
def whole(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """A place beside ``path`` to write to. What is there when the block ends takes the place of ``path``.

    It is on the disk, and not only with the operating system, before it does. If an error ends the block, ``path``
    holds what it held before, and nothing is left beside it. A link stays one: the file it leads to is replaced. Of a
    device, a pipe or what this process prints to nothing takes the place: it is written to when the block ends.

    Args:
        path: the file.
        previous: what ``path`` held before is kept here, in the same folder. Once ``path`` exists, there is a whole
            file under one of the two names at every instant. A link is then replaced itself.

    Raises:
        OSError: ``path`` cannot be replaced, as one that is a folder. It names a file.
    """
    if not path.name:  # As of "." and "/".
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with named(path):
        if _is_stream(path):
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder) / path.name
                _pour(Path(folder) / path.name, path)
            return
        target = path if previous is not None else _led_to(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            yield partial
            _force_to_disk(partial)
            if previous is not None:
                with suppress(FileNotFoundError):
                    path.replace(previous)
            partial.replace(target)
            _force_to_disk(target.parent)
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


def _is_stream(path: Path) -> bool:
    """Whether bytes can be written there, and no file can take its place."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)) or _printed_to(found) is not None


def _printed_to(found: os.stat_result) -> int | None:
    """The descriptor by which this process prints there already, if it does, as to /dev/stdout."""
    for descriptor in (1, 2):
        with suppress(OSError):  # It is closed.
            if os.path.samestat(found, os.fstat(descriptor)):
                return descriptor
    return None


def _led_to(path: Path) -> Path:
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _pour(source: Path, stream: Path) -> None:
    printed_to = _printed_to(stream.stat())
    if printed_to is None:
        descriptor = os.open(stream, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)
    else:
        sys.stdout.flush()
        descriptor = os.dup(printed_to)  # What is printed next comes behind it.
    with source.open("rb") as file, open(descriptor, "wb") as sink:
        shutil.copyfileobj(file, sink)


def _force_to_disk(path: Path) -> None:
    """A file's bytes, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

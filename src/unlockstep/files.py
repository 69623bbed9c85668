"""A file that is written whole, or not at all.

Decides how a file takes its place. Does not decide what is in it, nor what is said when it cannot be written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside ``path`` to write to. What is there when the block ends takes the place of ``path``.

    If an error ends the block, ``path`` holds what it held before, and nothing is left beside it.

    Raises:
        OSError: ``path`` cannot be replaced, as one that is a folder.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError, ValueError):
            partial.unlink()

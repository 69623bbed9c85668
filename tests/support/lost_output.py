"""Standard output that takes nothing more: a pipe whose reader has left, a file on a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.full_disk import files_of_at_most


@contextmanager
def without_reader(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """``stdout``, ``stderr`` or both lead into a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patch:
        streams = [os.fdopen(os.dup(writer), "w") for _ in names]
        os.close(writer)
        for name, stream in zip(names, streams, strict=True):
            patch.setattr(sys, name, stream)
        yield
        for stream in streams:
            stream.close()


@contextmanager
def without_room(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> Iterator[Path]:
    """``stdout``, ``stderr`` or both lead to the end of one file of 20 bytes, on a disk with no room for more; yields
    it. Other files are not to be written meanwhile."""
    file = folder / "printed"
    with monkeypatch.context() as patch, files_of_at_most(20):
        streams = [file.open("a") for _ in names]
        for name, stream in zip(names, streams, strict=True):
            patch.setattr(sys, name, stream)
        yield file
        for stream in streams:
            stream.close()

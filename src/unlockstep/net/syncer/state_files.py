"""States of learners on their way to others, as the syncer keeps them: in files, not in memory, and never looked into.

Decides where a body is written and read again, and that nothing is left of it. Does not decide whose state is taken, by
whom, or how long it is kept (``core.donation``), nor how much of it has arrived (``uploads``).
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from unlockstep.net.wire.ranges import BodyDigest


class FileSink:
    """A body in a file, as it arrives."""

    memory_bytes = 0

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, offset)
            view, offset = view[written:], offset + written

    def close(self) -> None:
        """All of it is here."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def discard(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class StateFile:
    """One that is here whole."""

    path: Path
    digest: BodyDigest
    chunk_digests: tuple[bytes, ...]
    """Of its chunks; none if it came in one piece."""
    size_bytes: int


class StateFiles:
    """By ticket. They are in the folder for temporary files (``TMPDIR``), and gone with the process."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._files: dict[int, StateFile] = {}
        self._numbers = itertools.count()

    def find(self, ticket: int) -> StateFile | None:
        """The file, if it is here whole."""
        return self._files.get(ticket)

    def sink(self) -> FileSink:
        """Where another one is to be written."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="unlockstep-states-")
        return FileSink(Path(self._folder.name) / str(next(self._numbers)))

    def keep(self, ticket: int, file: StateFile) -> None:
        """It is here whole."""
        self.forget(ticket)
        self._files[ticket] = file

    def forget(self, ticket: int) -> None:
        """The file is not needed. Who has it open reads on."""
        found = self._files.pop(ticket, None)
        if found is not None:
            found.path.unlink(missing_ok=True)

    def close(self) -> None:
        """All of them are gone."""
        self._files.clear()
        if self._folder is not None:
            self._folder.cleanup()

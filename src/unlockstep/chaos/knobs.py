"""What is changed in a process from outside while it runs: its wall clock, and whether it may write to its disk.

::

    supervisor ── Knobs(path) ──> 16 bytes, mapped by both <── inject, in the process

Decides the file both ends map, and how the limit on what a process writes is set so that neither end undoes what the
other has done. Does not decide when anything is changed (``supervisor``), nor how a process takes it (``inject``).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OFFSET = struct.Struct("=q")
_READY_AT = _OFFSET.size
_BYTES = 16


class Knobs:
    """One process's, or all processes' of one name.

    Args:
        path: of the file; it is made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        if path.stat().st_size < _BYTES:
            os.ftruncate(self._file.fileno(), _BYTES)
        self._map = mmap.mmap(self._file.fileno(), _BYTES)

    def close(self) -> None:
        """No more is changed or read."""
        self._map.close()
        self._file.close()

    @property
    def clock_offset_ns(self) -> int:
        """Added to the wall clock."""
        return int(_OFFSET.unpack_from(self._map)[0])

    @clock_offset_ns.setter
    def clock_offset_ns(self, value: int) -> None:
        _OFFSET.pack_into(self._map, 0, value)

    @property
    def is_ready(self) -> bool:
        """Whether the process has begun: if it is stopped now, and the supervisor ends, it is woken."""
        return self._map[_READY_AT] != 0

    @is_ready.setter
    def is_ready(self, value: bool) -> None:
        self._map[_READY_AT] = int(value)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only one of the two ends changes the limit at a time."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def limit_files(self, pid: int, is_full: bool) -> None:
        """Whether process ``pid``, a child that has not been reaped, may write to files."""
        with self.held():
            try:
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if is_full else hard, hard))
            except (ProcessLookupError, PermissionError):
                pass  # It has ended.
            except OSError as error:
                if error.errno != errno.ESRCH:
                    raise

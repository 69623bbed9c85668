"""Runs a Python program whose wall clock and disk somebody else may spoil.

::

    python -m unlockstep.chaos.inject KNOBS -m unlockstep learner ...          KNOBS: a file (``knobs``)
    python -m unlockstep.chaos.inject KNOBS program.py ...

Decides how the program sees the offset of its clock: ``time.time``, ``time.time_ns`` and what ``time`` derives from
them. Monotonic clocks, ``datetime.now``, file times, child processes and libraries that ask the system themselves see
the true time.

A full disk is a limit on the size of files (RLIMIT_FSIZE) that the supervisor sets: whatever is then written to one, by
Python or any library, fails with EFBIG, which is treated as a full disk is (``files.DISK_FULL``). Memory that has no
name (memfd) falls under that limit too, although no disk holds it: while such memory is made here, the limit is lifted.
"""

from __future__ import annotations

import os
import resource
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from unlockstep.chaos.knobs import Knobs
from unlockstep.orphans import wake_at_parents_end

_NANOSECONDS = 1_000_000_000


def shift_clock(offset_ns: Callable[[], int]) -> None:
    """From now on this process's wall clock is off by so much."""
    true_ns = time.time_ns

    def now_ns() -> int:
        return true_ns() + offset_ns()

    def now_s() -> float:
        return now_ns() / _NANOSECONDS

    formatted = time.strftime
    clock = cast("Any", time)
    clock.time, clock.time_ns = now_s, now_ns
    for name in ("localtime", "gmtime", "ctime"):
        setattr(clock, name, _AtNow(getattr(time, name), now_s))
    clock.strftime = lambda form, when=None: formatted(form, clock.localtime() if when is None else when)


class _AtNow:
    """What ``time`` says of a time, or of now. No function: ``logging`` keeps one in a class, where it would become a
    method."""

    def __init__(self, of: Callable[[float], Any], now_s: Callable[[], float]) -> None:
        self._of, self._now_s = of, now_s

    def __call__(self, seconds: float | None = None) -> Any:
        return self._of(self._now_s() if seconds is None else seconds)


def exempt_memory(knobs: Knobs) -> None:
    """From now on memory without a name is made whatever the limit on files is."""
    truncate = os.ftruncate

    def ftruncate(descriptor: int, length: int) -> None:
        if not _is_memory(descriptor):
            truncate(descriptor, length)
            return
        with knobs.held():
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            try:
                truncate(descriptor, length)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    cast("Any", os).ftruncate = ftruncate


def _is_memory(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")
    except OSError:
        return False


def main() -> None:
    """Become the program."""
    wake_at_parents_end()
    knobs = Knobs(Path(sys.argv[1]))
    knobs.is_ready = True
    shift_clock(lambda: knobs.clock_offset_ns)
    exempt_memory(knobs)
    is_module = sys.argv[2] == "-m"
    program = sys.argv[3] if is_module else sys.argv[2]
    sys.argv[:] = [program, *sys.argv[4 if is_module else 3 :]]
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()

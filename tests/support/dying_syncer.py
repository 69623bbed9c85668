"""``unlockstep syncer`` as a process that dies in call number k that changes something on its disk.

    python dying_syncer.py K before|after|half-way ARGUMENTS

Decides how it dies: at once, without a word, with exit code ``DIED``. K = 0: it does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from support.stores import Crash, FailingDisk
from unlockstep.cli import app
from unlockstep.store import place

DIED = 77


class DeadlyDisk(FailingDisk):
    """A ``FailingDisk`` whose death is that of the process."""

    def _call(self, call: Callable[[], int | None], half: Callable[[], object] | None = None) -> int | None:
        try:
            return super()._call(call, half)
        except Crash:
            os._exit(DIED)


if __name__ == "__main__":
    fatal, moment = int(sys.argv[1]), sys.argv[2]
    if fatal:
        disk = DeadlyDisk(fatal, moment)
        place.Disk = lambda: disk  # type: ignore[assignment, misc]
    raise SystemExit(app.run(["syncer", *sys.argv[3:]]))

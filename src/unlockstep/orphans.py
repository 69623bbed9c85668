"""A process that stands still when the one that started it ends is woken, so that it can notice and end too.

Decides nothing else. A process that looks now and then whether its parent lives cannot look while it is stopped
(SIGSTOP): killed parents would leave such children behind for ever. Linux only; elsewhere this changes nothing.
"""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def wake_at_parents_end() -> None:
    """From now on the end of this process's parent continues this process (SIGCONT), which otherwise does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)

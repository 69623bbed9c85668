"""Memory for bodies that arrive, used again: new pages have to be cleared first, which takes longer than receiving.

Decides how long memory that is not needed is kept, and that none is given out while anybody can still see what was in
it before. So beside what is in use there is never more than was in use at once in the last ``KEEP_S``.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

from unlockstep.core.ids import NANOSECONDS_PER_SECOND

KEEP_S = 10.0
"""Memory that nobody has needed for so long goes back to the system."""

BYTES_MIN = 1024 * 1024
"""A smaller body takes memory of its own."""

SLACK = 1.25
"""Memory is used again for a body that leaves no more than a fifth of it unused: fragments are about equally large."""

_Memory = npt.NDArray[np.uint8]


class Buffers:
    """Of one process; may be used by several threads."""

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_ns = int(keep_s * NANOSECONDS_PER_SECOND)
        self._returned: deque[_Memory] = deque()
        """Filled from whichever thread has let go of it, maybe in the middle of anything: without a lock."""
        self._free: list[tuple[int, _Memory]] = []
        """Since when, oldest first."""

    def take(self, size: int, now_ns: int) -> memoryview:
        """Memory for so many bytes; what is in it is anything. It may be used again when the view, and every view of
        it, is gone."""
        if size < BYTES_MIN:
            return np.empty(size, np.uint8).data
        self._collect(now_ns)
        fitting = [number for number, (_, memory) in enumerate(self._free) if size <= memory.size <= SLACK * size]
        memory = self._free.pop(fitting[-1])[1] if fitting else np.empty(size, np.uint8)
        lent = memory[:size]
        weakref.finalize(lent, self._returned.append, memory).atexit = False
        return lent.data

    def expire(self, now_ns: int) -> None:
        """Give back what has not been needed."""
        self._collect(now_ns)
        self._free = [(since_ns, memory) for since_ns, memory in self._free if now_ns - since_ns < self._keep_ns]

    @property
    def kept_bytes(self) -> int:
        """Memory that is not in use."""
        return sum(memory.nbytes for memory in self._returned) + sum(memory.nbytes for _, memory in self._free)

    def _collect(self, now_ns: int) -> None:
        while self._returned:
            self._free.append((now_ns, self._returned.popleft()))

"""Virtual time: a heap of things to do, played in order.

Decides the order alone: by time, and first come first served at the same time, so that a run repeats exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class VirtualClock:
    """Integer nanoseconds that pass only when there is nothing left to do at the present one."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._sequence = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []

    def now_ns(self) -> int:
        return self._now_ns

    def at(self, when_ns: int, do: Callable[[], None]) -> None:
        """Do something at a time; a time that has passed means now."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(when_ns, self._now_ns), self._sequence, do))

    def after(self, delay_ns: int, do: Callable[[], None]) -> None:
        """Do something after a while."""
        self.at(self._now_ns + delay_ns, do)

    def step(self) -> bool:
        """Play the next thing; False if there is none."""
        if not self._heap:
            return False
        self._now_ns, _, do = heapq.heappop(self._heap)
        do()
        return True

    def next_ns(self) -> int | None:
        """When the next thing happens; None if nothing will."""
        return self._heap[0][0] if self._heap else None

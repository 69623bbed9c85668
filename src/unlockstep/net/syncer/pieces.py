"""How much of a body is written at once: as much as passes in a moment, whatever the link.

A piece is told of, and counts as progress, when it has been taken from us. On a link of 0.1 Mbit/s a mebibyte takes 80
seconds, in which a transfer that moves all the time looks like one that does not; on a fast one every piece costs a
turn of the event loop and a copy of what the system does not take at once. Decides the size. Does not write.
"""

from __future__ import annotations

from unlockstep.net.wire.sockets import PIECE_BYTES_MAX

PIECE_BYTES_MIN = 16 * 1024
PIECE_BYTES_FIRST = 128 * 1024

QUICK_S = 0.02
SLOW_S = 0.5


class Pieces:
    """Of one body."""

    def __init__(self) -> None:
        self.size = PIECE_BYTES_FIRST

    def passed(self, took_s: float) -> None:
        """A piece of ``size`` took so long: the next one is twice as large, half as large, or the same."""
        if took_s < QUICK_S:
            self.size = min(2 * self.size, PIECE_BYTES_MAX)
        elif took_s > SLOW_S:
            self.size = max(self.size // 2, PIECE_BYTES_MIN)

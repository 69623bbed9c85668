"""A cap on bandwidth that all transfers of a process share: a token bucket for each direction.

Pure: time is an argument. Decides how long whoever has moved bytes waits before it moves more. Does not wait.
"""

from __future__ import annotations

import threading

from unlockstep.core.ids import NANOSECONDS_PER_SECOND

MBIT_PER_S_MIN = 0.1
"""A tighter cap is refused: the streams that share it would each move so little that either end takes them for stalled
(``wire.timeouts``), and nothing would ever arrive."""

BURST_S = 0.1
"""What may pass at once after a pause: as much as passes in this time. Long enough that a thread which wakes late loses
nothing of the rate, short enough that small messages of others hardly wait."""

PIECE_S = 0.05
"""Bytes are moved in pieces that last this long at most, so that streams take turns."""

PIECE_BYTES_MIN = 4 * 1024
PIECE_BYTES_MAX = 1024 * 1024


class Bucket:
    """One direction; may be used by several threads.

    Args:
        bytes_per_s: what passes on average, above 0; infinite: no cap.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s / NANOSECONDS_PER_SECOND
        self._burst = bytes_per_s * BURST_S
        self._left = self._burst
        self._at_ns: int | None = None
        self._lock = threading.Lock()
        piece = min(bytes_per_s * PIECE_S, PIECE_BYTES_MAX)
        self.piece_bytes = max(PIECE_BYTES_MIN, int(piece))
        """Move no more than this at once."""
        self.bytes_per_s = bytes_per_s

    def take(self, count: int, now_ns: int) -> int:
        """``count`` bytes have been moved; returns the nanoseconds to wait before the next are. A debt is allowed: who
        comes next waits for it."""
        if self._rate == float("inf"):
            return 0
        with self._lock:
            if self._at_ns is not None:
                self._left = min(self._burst, self._left + max(0, now_ns - self._at_ns) * self._rate)
            self._at_ns = now_ns if self._at_ns is None else max(self._at_ns, now_ns)
            self._left -= count
            return 0 if self._left >= 0 else round(-self._left / self._rate)


class Pace:
    """Both directions.

    Args:
        bytes_per_s: of each; None: no cap.
    """

    def __init__(self, bytes_per_s: float | None = None) -> None:
        rate = float("inf") if bytes_per_s is None else bytes_per_s
        self.up = Bucket(rate)
        self.down = Bucket(rate)

"""How fast a learner's way to the syncer is, by the uploads that have arrived over it.

Decides the estimate: ``bytes / time from the first to the last``, the median of the last few, so that one which was
broken off in the middle and went on a minute later means nothing. What follows from it is ``codec_choice``'s.
"""

from __future__ import annotations

import statistics
from collections import deque

from unlockstep.core.ids import NANOSECONDS_PER_SECOND

SAMPLES_MAX = 5


class UploadLink:
    """Of one learner."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=SAMPLES_MAX)
        self.since_change = 0
        """Uploads measured since the learner was told another format."""

    def add(self, size_bytes: int, duration_ns: int) -> None:
        """An upload has arrived."""
        self._rates.append(size_bytes * NANOSECONDS_PER_SECOND / max(1, duration_ns))
        self.since_change += 1

    @property
    def bytes_per_s(self) -> float | None:
        """None before there was an upload."""
        return statistics.median(self._rates) if self._rates else None

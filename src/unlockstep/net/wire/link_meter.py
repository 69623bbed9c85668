"""What one end knows of its link: the round trip and the rates of transfers, from what happens anyway.

Decides how measurements are smoothed. Does not decide what follows from them (``timeouts``), and measures nothing
itself: connections and transfers report here, from whatever thread they are in.
"""

from __future__ import annotations

from typing import Literal

from unlockstep.net.wire.timeouts import DEFAULTS, Leases, Measured, Timeouts, derive

WEIGHT = 0.125
"""Of a new sample of the round trip that is below the average; one that is above counts at once: a deadline that is too
long costs patience, one that is too short costs a connection."""

SAMPLE_BYTES_MIN = 256 * 1024
"""A smaller transfer says more about the round trip than about the rate."""

Way = Literal["up", "down"]


class LinkMeter:
    """Of the link between one process and its syncer.

    Args:
        leases: what a user sets.
        model_bytes: size of all fragments, once.
    """

    def __init__(self, leases: Leases = DEFAULTS, model_bytes: int = 0) -> None:
        self._leases = leases
        self._model_bytes = model_bytes
        self._round_trip_s: float | None = None
        self._bytes_per_s: dict[Way, float] = {}
        self.step_s: float | None = None
        """Time of an inner step, as far as it is known."""

    @property
    def measured(self) -> Measured:
        """All that is known."""
        rates = self._bytes_per_s
        return Measured(self._round_trip_s, rates.get("up"), rates.get("down"), self.step_s)

    @property
    def timeouts(self) -> Timeouts:
        """Every deadline, as of now."""
        return derive(self._leases, self.measured, self._model_bytes)

    def answered(self, round_trip_s: float | None) -> None:
        """Something small went there and back; None: it is not known how fast."""
        known_s = self._round_trip_s
        if round_trip_s is None or round_trip_s < 0:
            return
        if known_s is None or round_trip_s >= known_s:
            self._round_trip_s = round_trip_s
        else:
            self._round_trip_s = known_s + WEIGHT * (round_trip_s - known_s)

    def moved(self, way: Way, size_bytes: int, seconds: float) -> None:
        """A transfer is through."""
        if size_bytes < SAMPLE_BYTES_MIN or seconds <= 0:
            return
        rate = size_bytes / seconds
        known = self._bytes_per_s.get(way, rate)
        self._bytes_per_s[way] = known + 0.5 * (rate - known)

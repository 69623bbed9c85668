"""Versions that somebody is in the middle of reading, although the run has moved on.

A download of several requests must end with the version it began with. Decides for how long a version stays readable
beyond its retention (``core.global_params``): as long as somebody goes on reading it, but of every fragment no more
than ``HELD_VERSIONS_MAX``. So beside the current versions the syncer holds at most that many times the published model.
"""

from __future__ import annotations

from dataclasses import dataclass

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.wire.api import HOLD_S_MAX

HELD_VERSIONS_MAX = 2
"""Versions of one fragment that are held for those who read them; the one read last stays."""


@dataclass(slots=True)
class _Hold:
    body: memoryview
    digest: str
    read_ns: int


class Holds:
    """Of one syncer.

    Args:
        idle_s_max: after which a version that nobody reads is held no longer.
    """

    def __init__(self, idle_s_max: float = HOLD_S_MAX) -> None:
        self._idle_ns_max = int(idle_s_max * NANOSECONDS_PER_SECOND)
        self._holds: dict[int, dict[int, _Hold]] = {}

    def find(self, fragment: int, version: int) -> tuple[memoryview, str] | None:
        """Body and digest of a version that is being read."""
        hold = self._holds.get(fragment, {}).get(version)
        return None if hold is None else (hold.body, hold.digest)

    def read(self, fragment: int, version: int, body: memoryview, digest: str, now_ns: int) -> None:
        """Somebody reads this version."""
        holds = self._holds.setdefault(fragment, {})
        holds[version] = _Hold(body, digest, now_ns)
        if len(holds) > HELD_VERSIONS_MAX:
            del holds[min(holds, key=lambda number: (holds[number].read_ns, number))]

    def expire(self, now_ns: int) -> None:
        """Forget what nobody reads any more."""
        for fragment, holds in list(self._holds.items()):
            for version, hold in list(holds.items()):
                if now_ns - hold.read_ns >= self._idle_ns_max:
                    del holds[version]
            if not holds:
                del self._holds[fragment]

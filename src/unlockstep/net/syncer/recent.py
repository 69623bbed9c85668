"""Versions that were the newest a moment ago: who is far away has just heard of them and is about to ask.

Between the announcement of a version and the request for it lies at least a round trip. Where a version lives for less
than that, whoever is so far away would always come too late. Decides for how long, and up to how many bytes, a version
stays readable after the next one has taken its place. Where models are large, versions live long: nothing is kept there
that would matter.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.wire.api import RECENT_BYTES_MAX, RECENT_S_MAX


class _Version(NamedTuple):
    fragment: int
    version: int
    body: memoryview
    digest: str
    until_ns: int


class Recent:
    """Of one syncer.

    Args:
        s_max: after which a version is no longer recent.
        bytes_max: of all that are kept; the oldest go first.
    """

    def __init__(self, s_max: float = RECENT_S_MAX, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._ns_max = int(s_max * NANOSECONDS_PER_SECOND)
        self._bytes_max = bytes_max
        self._bytes = 0
        self._versions: deque[_Version] = deque()

    def find(self, fragment: int, version: int) -> tuple[memoryview, str] | None:
        """Body and digest of a version that was the newest a moment ago."""
        for each in reversed(self._versions):
            if (each.fragment, each.version) == (fragment, version):
                return each.body, each.digest
        return None

    def add(self, fragment: int, version: int, body: memoryview, digest: str, now_ns: int) -> None:
        """The next version has taken the place of this one."""
        self._versions.append(_Version(fragment, version, body, digest, now_ns + self._ns_max))
        self._bytes += body.nbytes
        self.expire(now_ns)

    def expire(self, now_ns: int) -> None:
        """Forget what is too old, or too much."""
        while self._versions and (self._bytes > self._bytes_max or self._versions[0].until_ns <= now_ns):
            self._bytes -= self._versions.popleft().body.nbytes

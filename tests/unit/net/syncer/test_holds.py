"""Versions that are being read stay readable, and no more than a few of them."""

from __future__ import annotations

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.syncer.holds import HELD_VERSIONS_MAX, Holds

BODY = memoryview(b"body")
S = NANOSECONDS_PER_SECOND


def test_a_version_is_held_as_long_as_it_is_read() -> None:
    """C40"""
    holds = Holds(idle_s_max=10)
    assert holds.find(0, 7) is None
    holds.read(0, 7, BODY, "digest", 0)
    holds.expire(10 * S - 1)
    assert holds.find(0, 7) == (BODY, "digest")
    holds.read(0, 7, BODY, "digest", 5 * S)
    holds.expire(15 * S - 1)
    assert holds.find(0, 7) == (BODY, "digest") and holds.find(1, 7) is None
    holds.expire(15 * S)
    assert holds.find(0, 7) is None


def test_of_many_versions_those_read_last_are_held() -> None:
    holds = Holds()
    for version in range(10):
        holds.read(0, version, BODY, "digest", version)
        holds.read(1, 0, BODY, "digest", version)
    held = [version for version in range(10) if holds.find(0, version) is not None]
    assert held == list(range(10 - HELD_VERSIONS_MAX, 10))
    assert holds.find(1, 0) is not None

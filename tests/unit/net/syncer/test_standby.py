"""What a standby makes of what it sees, and of not seeing anything."""

from __future__ import annotations

import asyncio

from unlockstep.net.syncer.standby import wait_for_silence
from unlockstep.store.leadership import Beat, this_holder

LEASE_S = 0.08


def leader(number: int) -> Beat:
    return Beat(1, this_holder(), "http://127.0.0.1:7077", number)


def test_who_cannot_see_the_leader_does_not_take_it_for_silent() -> None:
    """A shared folder is away for longer than a lease, and the leader is at work."""
    looks, stop = 0, asyncio.Event()

    def look() -> tuple[Beat | None, int]:
        nonlocal looks
        looks += 1
        if looks == 60:
            stop.set()
        if 2 < looks < 50:
            raise OSError("stale file handle")
        return leader(looks), 1

    assert not asyncio.run(wait_for_silence(look, LEASE_S, stop))
    assert looks >= 60


def test_a_leader_that_leaves_no_sign_for_a_lease_is_silent() -> None:
    assert asyncio.run(wait_for_silence(lambda: (leader(1), 1), LEASE_S, asyncio.Event()))

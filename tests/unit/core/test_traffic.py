"""Bytes on the wire: told now and then, none twice and none forgotten."""

from __future__ import annotations

from support.core_builders import options
from unlockstep.core.events import BytesMoved
from unlockstep.core.membership import Membership
from unlockstep.core.messages import Transferring
from unlockstep.core.outbox import Outbox
from unlockstep.core.traffic import SIGNS_PER_LEASE, PassingBytes, Traffic

SECOND = 1_000_000_000
EVERY_NS = 2 * SECOND


def passing() -> PassingBytes:
    return PassingBytes(SIGNS_PER_LEASE * EVERY_NS)


def test_the_first_bytes_are_told_at_once_and_later_ones_now_and_then() -> None:
    bytes_ = passing()
    assert bytes_.add("a", 1, 5, 0, 0) == Transferring("a", 1, 5, 0)
    assert bytes_.add("a", 1, 7, 1, 1) is None
    assert bytes_.add("a", 1, 0, 2, EVERY_NS - 1) is None
    assert bytes_.add("a", 2, 1, 0, EVERY_NS) == Transferring("a", 2, 8, 3)
    assert bytes_.add("a", 2, 0, 0, 2 * EVERY_NS) == Transferring("a", 2, 0, 0)


def test_learners_are_counted_apart() -> None:
    bytes_ = passing()
    bytes_.add("a", 1, 5, 0, 0)
    assert bytes_.add("b", 1, 6, 0, 1) == Transferring("b", 1, 6, 0)


def test_bytes_are_logged_and_a_mere_sign_of_life_is_not() -> None:
    outbox = Outbox()
    traffic = Traffic(Membership(options()), outbox)
    traffic.moved(Transferring("a", 1), 5)
    traffic.moved(Transferring("a", 1, 10, 20), 6)
    assert outbox.take_events() == [BytesMoved(6, "a", 1, 10, 20)]

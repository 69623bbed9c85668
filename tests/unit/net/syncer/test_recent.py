"""A version that was replaced stays readable for a moment, and never costs more than it may."""

from __future__ import annotations

from unlockstep.net.syncer.recent import Recent

SECOND_NS = 1_000_000_000


def body(size: int) -> memoryview:
    return memoryview(bytes(size))


def test_a_replaced_version_is_found_for_a_moment() -> None:
    recent = Recent(s_max=5.0)
    recent.add(1, 7, body(10), "seven", now_ns=0)
    recent.add(1, 8, body(10), "eight", now_ns=1)
    assert recent.find(1, 7) == (body(10), "seven")
    assert recent.find(1, 9) is recent.find(0, 7) is None
    recent.expire(5 * SECOND_NS)
    assert recent.find(1, 7) is None
    assert recent.find(1, 8) == (body(10), "eight")


def test_the_oldest_make_room() -> None:
    recent = Recent(bytes_max=25)
    for version in range(3):
        recent.add(0, version, body(10), "", now_ns=0)
    assert [recent.find(0, version) is None for version in range(3)] == [True, False, False]


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    recent = Recent(bytes_max=25)
    recent.add(0, 0, body(10), "", now_ns=0)
    recent.add(0, 1, body(26), "", now_ns=0)
    assert recent.find(0, 0) is recent.find(0, 1) is None
    recent.add(0, 2, body(25), "", now_ns=0)
    assert recent.find(0, 2) is not None

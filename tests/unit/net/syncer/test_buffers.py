"""Memory for bodies is used again, and never while somebody can see what was in it."""

from __future__ import annotations

import gc

import numpy as np

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.net.syncer.buffers import BYTES_MIN, Buffers

S = NANOSECONDS_PER_SECOND


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def test_memory_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    buffers = Buffers()
    view = buffers.take(BYTES_MIN, 0)
    where = address(view)
    seen = np.frombuffer(view, np.float32)[10:].reshape(-1, 2)[1:]
    del view
    gc.collect()
    assert buffers.kept_bytes == 0
    assert address(buffers.take(BYTES_MIN, 0)) != where
    del seen
    assert buffers.kept_bytes >= BYTES_MIN
    assert address(buffers.take(BYTES_MIN, 0)) != 0


def test_it_is_the_same_memory() -> None:
    buffers = Buffers()
    view = buffers.take(2 * BYTES_MIN, 0)
    where = address(view)
    del view
    smaller = buffers.take(2 * BYTES_MIN - 1000, 0)
    assert (address(smaller), len(smaller)) == (where, 2 * BYTES_MIN - 1000)
    assert buffers.kept_bytes == 0


def test_a_body_of_another_size_takes_other_memory() -> None:
    buffers = Buffers()
    view = buffers.take(4 * BYTES_MIN, 0)
    where = address(view)
    del view
    other, larger = buffers.take(BYTES_MIN, 0), buffers.take(5 * BYTES_MIN, 0)
    assert where not in (address(other), address(larger))
    assert buffers.kept_bytes == 4 * BYTES_MIN


def test_what_is_not_needed_goes_back() -> None:
    buffers = Buffers(keep_s=10)
    del_me = [buffers.take(BYTES_MIN, 0) for _ in range(3)]
    del_me.clear()
    buffers.expire(5 * S)
    assert buffers.kept_bytes == 3 * BYTES_MIN
    view = buffers.take(BYTES_MIN, 14 * S)
    buffers.expire(15 * S)
    assert buffers.kept_bytes == 0
    del view
    assert buffers.kept_bytes == BYTES_MIN


def test_small_bodies_have_memory_of_their_own() -> None:
    buffers = Buffers()
    assert len(buffers.take(0, 0)) == 0
    view = buffers.take(BYTES_MIN - 1, 0)
    del view
    assert buffers.kept_bytes == 0

"""The emulation of a link, frame by frame: what a test on real links rests on."""

from __future__ import annotations

from support.link_cable import MILLISECOND_NS, NEVER_NS, Cable, Shape

FRAME = bytes(1250)
"""10,000 bits: one millisecond at 10 Mbit/s."""


def numbered(count: int) -> list[bytes]:
    return [number.to_bytes(4, "big") + FRAME[4:] for number in range(count)]


def arrivals(cable: Cable, until_ns: int = 10**12) -> list[tuple[int, bytes]]:
    """(milliseconds, frame) in the order in which they arrive."""
    found = []
    while cable.next_ns() <= until_ns:
        at_ns = cable.next_ns()
        found += [(at_ns // MILLISECOND_NS, frame) for frame in cable.take(at_ns)]
    return found


def test_a_cable_without_length_delivers_at_once() -> None:
    cable = Cable(Shape(), seed=0)
    assert cable.next_ns() == NEVER_NS
    cable.arrive(FRAME, 5)
    assert cable.take(5) == [FRAME]


def test_frames_queue_for_the_sender_and_then_travel() -> None:
    cable = Cable(Shape(delay_ms=50, rate_mbit=10), seed=0)
    for frame in numbered(3):
        cable.arrive(frame, 0)
    assert [at for at, _ in arrivals(cable)] == [51, 52, 53]


def test_a_full_queue_drops_what_comes_last() -> None:
    cable = Cable(Shape(rate_mbit=10, queue_bytes=2 * len(FRAME)), seed=0)
    frames = numbered(3)
    for frame in frames:
        cable.arrive(frame, 0)
    assert [frame for _, frame in arrivals(cable)] == frames[:2]
    assert (cable.counts.overflowed, cable.counts.delivered, cable.queued_bytes) == (1, 2, 0)


def test_a_frame_larger_than_the_queue_passes_when_it_is_alone() -> None:
    cable = Cable(Shape(rate_mbit=10, queue_bytes=1), seed=0)
    cable.arrive(FRAME, 0)
    assert len(arrivals(cable)) == 1


def test_a_new_rate_holds_from_the_next_frame_on() -> None:
    cable = Cable(Shape(rate_mbit=10), seed=0)
    for frame in numbered(3):
        cable.arrive(frame, 0)
    cable.reshape(Shape(rate_mbit=1))
    assert [at for at, _ in arrivals(cable)] == [1, 11, 21]


def test_the_same_seed_loses_the_same_frames() -> None:
    def survivors(seed: int) -> list[bytes]:
        cable = Cable(Shape(loss=0.01), seed)
        for frame in numbered(10_000):
            cable.arrive(frame, 0)
        return cable.take(0)

    assert survivors(1) == survivors(1) != survivors(2)
    # 10,000 draws with probability 0.01: 100 expected, standard deviation 9.95; five of them to each side.
    assert all(50 <= 10_000 - len(survivors(seed)) <= 150 for seed in range(5))


def test_a_late_frame_is_overtaken() -> None:
    cable = Cable(Shape(delay_ms=50, rate_mbit=10, reorder=0.2, reorder_ms=10), seed=1)
    frames = numbered(100)
    for frame in frames:
        cable.arrive(frame, 0)
    arrived = arrivals(cable)
    assert sorted(frame for _, frame in arrived) == frames != [frame for _, frame in arrived]
    late = {at - int.from_bytes(frame[:4], "big") for at, frame in arrived}
    assert late == {51, 61}
    assert cable.counts.reordered == sum(at - int.from_bytes(frame[:4], "big") == 61 for at, frame in arrived)


def test_damage_is_one_bit_behind_the_headers() -> None:
    cable = Cable(Shape(damage=1.0), seed=0)
    cable.arrive(FRAME, 0)
    cable.arrive(FRAME[:40], 0)
    damaged, bare = cable.take(0)
    assert sum((a ^ b).bit_count() for a, b in zip(FRAME, damaged, strict=True)) == 1
    assert damaged[:80] == FRAME[:80] and bare == FRAME[:40]
    assert cable.counts.damaged == 1


def test_a_cut_takes_what_waits_and_what_is_on_its_way() -> None:
    cable = Cable(Shape(delay_ms=50, rate_mbit=10), seed=0)
    for frame in numbered(3):
        cable.arrive(frame, 0)
    assert cable.take(MILLISECOND_NS) == []  # The first one is sent, and on its way.
    cable.reshape(Shape(is_cut=True))
    cable.arrive(FRAME, 2 * MILLISECOND_NS)
    assert cable.next_ns() == NEVER_NS and cable.counts.cut == 4
    cable.reshape(Shape(delay_ms=50))
    cable.arrive(FRAME, 3 * MILLISECOND_NS)
    assert arrivals(cable) == [(53, FRAME)]

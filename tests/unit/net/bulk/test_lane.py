"""Places for requests: who gets the next one, and what is measured."""

from __future__ import annotations

import threading

from unlockstep.net.bulk.lane import Lane
from unlockstep.net.bulk.streams import FixedStreams

WAIT_S = 20.0


class Counted(FixedStreams):
    """Keeps what it is told."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.now = number
        self.told: list[tuple[int, int]] = []

    @property
    def number(self) -> int:
        return self.now

    def measured(self, moved_bytes: int, duration_ns: int) -> None:
        self.told.append((moved_bytes, duration_ns))


class Stage:
    """A lane whose clock is moved by hand."""

    def __init__(self, places: int) -> None:
        self.now_ns = 0
        self.streams = Counted(places)
        self.lane = Lane(self.streams, self._connect, lambda: self.now_ns)

    def _connect(self) -> None:  # type: ignore[override]
        raise OSError("nobody is there")

    @property
    def measured(self) -> tuple[int, int]:
        """Bytes, and nanoseconds."""
        return sum(count for count, _ in self.streams.told), sum(duration for _, duration in self.streams.told)


def never() -> bool:
    return False


def test_there_are_as_many_places_as_streams() -> None:
    lane = Stage(2).lane
    assert lane.enter(never) and lane.enter(never)
    assert not lane.enter(never)
    lane.leave()
    assert lane.enter(never)


def test_only_the_time_in_which_every_place_is_taken_is_measured() -> None:
    stage = Stage(2)
    lane = stage.lane
    lane.enter(never)
    lane.moved(100)
    stage.now_ns += 10
    assert stage.measured == (0, 0)
    lane.enter(never)
    stage.now_ns += 5
    lane.moved(30)
    stage.now_ns += 5
    lane.moved(20)
    stage.now_ns += 1
    lane.leave()
    stage.now_ns += 100
    lane.moved(1000)
    assert stage.measured == (50, 11)


def test_streams_that_are_too_many_are_not_measured_as_if_they_were_fewer() -> None:
    stage = Stage(2)
    lane = stage.lane
    assert lane.enter(never) and lane.enter(never)
    stage.streams.now = 1
    lane.moved(0)
    before = stage.measured
    stage.now_ns += 10
    lane.moved(200)
    assert stage.measured == before
    lane.leave()
    stage.now_ns += 10
    lane.moved(100)
    assert stage.measured == (before[0] + 100, before[1] + 10)


def test_there_is_room_while_a_place_is_free_that_nobody_waits_for() -> None:
    stage = Stage(1)
    assert stage.lane.has_room
    assert stage.lane.enter(never)
    assert not stage.lane.has_room
    stage.streams.now = 2
    assert stage.lane.has_room


def test_who_has_waited_longest_is_next_even_before_who_has_just_left() -> None:
    """Otherwise the thread that leaves takes the place again, and another transfer waits for all of its chunks."""
    lane, order = Stage(1).lane, list[str]()
    assert lane.enter(never)
    waiting = threading.Event()

    def other() -> None:
        assert lane.enter(lambda: waiting.set() or True)  # type: ignore[func-returns-value]
        order.append("other")
        lane.leave()

    thread = threading.Thread(target=other)
    thread.start()
    assert waiting.wait(WAIT_S)
    lane.leave()
    assert lane.enter(lambda: True)
    order.append("this")
    lane.leave()
    thread.join(WAIT_S)
    assert order == ["other", "this"]


def test_who_gives_up_waiting_keeps_nobody_waiting() -> None:
    lane = Stage(1).lane
    assert lane.enter(never)
    assert not lane.enter(never)
    lane.leave()
    assert lane.enter(never)

"""A process under virtual time: stopped, continued, killed."""

from __future__ import annotations

from unlockstep.sim.clock import VirtualClock
from unlockstep.sim.life import Life


def play(clock: VirtualClock, until_ns: int) -> None:
    while (next_ns := clock.next_ns()) is not None and next_ns <= until_ns:
        clock.step()


def test_things_happen_in_their_time() -> None:
    clock, said = VirtualClock(), list[str]()
    life = Life(clock)
    life.at(5, lambda: said.append("five"))
    life.after(3, lambda: said.append("three"))
    play(clock, 4)
    assert said == ["three"]
    play(clock, 5)
    assert said == ["three", "five"]


def test_what_happens_to_a_stopped_process_waits_in_order_until_it_is_continued() -> None:
    clock, said = VirtualClock(), list[int]()
    life = Life(clock)
    for when_ns in (1, 2, 3, 9):
        life.at(when_ns, lambda n=when_ns: said.append(n))  # type: ignore[misc]
    play(clock, 1)
    life.stop()
    play(clock, 5)
    assert said == [1] and not life.is_running
    life.resume()
    assert said == [1, 2, 3]
    play(clock, 9)
    assert said == [1, 2, 3, 9]


def test_one_that_is_stopped_again_while_it_catches_up_waits_with_the_rest() -> None:
    life, said = Life(VirtualClock()), list[int]()
    life.stop()
    life.happen(life.stop)
    life.happen(lambda: said.append(1))
    life.resume()
    assert said == [] and life.is_stopped
    life.resume()
    assert said == [1]


def test_nothing_happens_to_a_dead_one() -> None:
    clock, said = VirtualClock(), list[int]()
    life = Life(clock)
    life.at(5, lambda: said.append(5))
    life.stop()
    life.happen(lambda: said.append(0))
    life.end()
    play(clock, 9)
    life.happen(lambda: said.append(1))
    assert said == [] and not life.is_running

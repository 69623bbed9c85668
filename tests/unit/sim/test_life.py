"""A process under virtual time: stopped, continued, killed."""

from __future__ import annotations

from unlockstep.core.ids import NEVER_NS
from unlockstep.sim.clock import VirtualClock
from unlockstep.sim.life import Alarm, Life


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


# ----------------------------------------------------------------------------------------------- work


def test_work_takes_time_in_which_the_process_runs() -> None:
    clock, done = VirtualClock(), list[int]()
    life = Life(clock)
    life.work(10, lambda: done.append(clock.now_ns()))
    clock.at(4, life.stop)
    clock.at(7, life.resume)
    play(clock, 12)
    assert life.is_working and done == []
    play(clock, 20)
    assert not life.is_working and done == [13]


def test_work_is_paced_also_while_it_stands_still() -> None:
    clock, done = VirtualClock(), list[int]()
    life = Life(clock)
    life.pace(7)
    life.work(10, lambda: done.append(clock.now_ns()))
    clock.at(4, lambda: life.pace(2))  # 6 left, now 12
    clock.at(6, life.stop)  # 10 left
    clock.at(8, lambda: life.pace(0.5))  # 5 left
    clock.at(9, life.resume)
    play(clock, 20)
    assert done == [14]


def test_work_of_one_that_is_stopped_again_while_it_catches_up_is_not_touched() -> None:
    clock, done = VirtualClock(), list[int]()
    life = Life(clock)
    life.work(10, lambda: done.append(clock.now_ns()))
    clock.at(4, life.stop)
    clock.at(5, lambda: life.happen(life.stop))
    clock.at(20, life.resume)
    clock.at(30, life.resume)
    play(clock, 50)
    assert done == [36]


def test_the_work_of_a_dead_one_is_never_done() -> None:
    clock, done = VirtualClock(), list[int]()
    life = Life(clock)
    life.work(10, lambda: done.append(1))
    clock.at(4, life.end)
    play(clock, 50)
    assert done == []


# ----------------------------------------------------------------------------------------------- the alarm


def alarm(deadlines_ns: list[int]) -> tuple[VirtualClock, Life, Alarm, list[int]]:
    """An alarm that is set anew from a list each time it rings, and when it rang."""
    clock, rang = VirtualClock(), list[int]()
    life = Life(clock)

    def wake() -> None:
        rang.append(clock.now_ns())
        bell.set(deadlines_ns.pop(0) if deadlines_ns else NEVER_NS)

    bell = Alarm(life, wake)
    return clock, life, bell, rang


def test_an_alarm_rings_at_the_last_deadline_it_was_set_to() -> None:
    for deadlines_ns in ([5, 9, 30], [30, 9, 20], [7, 30, 7]):
        clock, _, bell, rang = alarm([])
        for deadline_ns in deadlines_ns:
            bell.set(deadline_ns)
        play(clock, 100)
        assert rang == [deadlines_ns[-1]]


def test_an_alarm_without_a_deadline_does_not_ring() -> None:
    clock, _, bell, rang = alarm([])
    bell.set(5)
    bell.set(NEVER_NS)
    play(clock, 100)
    assert rang == []


def test_one_deadline_costs_one_happening_however_often_it_was_moved() -> None:
    clock, _, bell, rang = alarm([10 * number for number in range(2, 50)])
    for deadline_ns in (10, 8, 6, 10):
        bell.set(deadline_ns)
    happenings = 0
    while clock.step():
        happenings += 1
    assert rang == [10 * number for number in range(1, 50)]
    assert happenings <= len(rang) + 4


def test_a_deadline_that_passes_while_the_process_is_stopped_rings_when_it_is_continued() -> None:
    clock, life, bell, rang = alarm([])
    bell.set(5)
    life.stop()
    clock.at(50, life.resume)
    play(clock, 100)
    assert rang == [50]

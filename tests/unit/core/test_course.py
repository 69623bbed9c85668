"""What a process holds: what a step that may have begun keeps, and when a step can be taken."""

from __future__ import annotations

from unlockstep.core.course import Course, CourseState
from unlockstep.core.data_book import Grant


def course() -> Course:
    mine = Course(sequences=100, digest="corpus", step_sequences=4)
    mine.hold([Grant(0, 0, 0, 10)], exhausted=False)
    return mine


def test_a_step_wants_all_its_sequences_unless_there_will_be_no_more() -> None:
    mine = course()
    mine.take(8)
    assert not mine.is_ready
    mine.hold([Grant(0, 0, 0, 10)], exhausted=True)
    assert mine.is_ready and mine.take(4) == (Grant(8, 0, 8, 10),)
    assert not mine.is_ready and (mine.position, mine.samples) == (10, 10)


def test_a_step_that_may_have_begun_keeps_what_is_taken_away() -> None:
    mine = course()
    mine.hold([Grant(10, 0, 50, 55)], exhausted=False, keep=4)
    assert mine.grants == (Grant(0, 0, 0, 4), Grant(10, 0, 50, 55))
    mine.take(4)
    assert mine.take(4) == (Grant(10, 0, 50, 54),)
    assert (mine.position, mine.samples) == (14, 8)


def test_what_is_held_anyway_is_not_there_twice() -> None:
    mine = course()
    mine.take(2)
    mine.hold([Grant(0, 0, 0, 10), Grant(10, 0, 20, 30)], exhausted=False, keep=4)
    assert mine.remaining == 18


def test_it_goes_on_from_its_state() -> None:
    mine = course()
    mine.take(3)
    again = Course(100, "corpus", 4, mine.state())
    assert again.state() == mine.state() == CourseState(3, 3, (Grant(3, 0, 3, 10),))

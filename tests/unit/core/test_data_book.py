"""The data book: who is granted what, what is returned, what a process that was silent gets back, and the counts."""

from __future__ import annotations

import msgspec
import pytest

from unlockstep.core.data_book import DataBook, DataBookState, Grant
from unlockstep.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError


def book(sequences: int = 20, chunk_sequences: int = 8, epochs: int = 1) -> DataBook:
    return DataBook(sequences, chunk_sequences, epochs)


def test_chunks_are_granted_in_order_and_the_last_of_an_epoch_is_what_is_left():
    a = book()
    assert a.grant("a", 1, 1) == (Grant(at=0, epoch=0, start=0, stop=8),)
    assert a.grant("b", 1, 12) == (Grant(0, 0, 8, 16), Grant(8, 0, 16, 20))
    assert a.grant("a", 1, 1) == ()
    assert a.is_exhausted and not a.is_trained and not a.is_finished


def test_the_next_epoch_begins_while_others_still_train_the_last_one():
    a = book(sequences=10, epochs=0)
    assert a.grant("a", 1, 10) == (Grant(0, 0, 0, 8), Grant(8, 0, 8, 10))
    assert a.grant("b", 1, 1) == (Grant(0, 1, 0, 8),)
    assert not a.is_exhausted


def test_a_position_tells_of_every_grant_how_far_it_has_come():
    a = book()
    a.grant("a", 1, 16)
    a.reached("a", 1, position=11, samples=11)
    assert a.held("a", 1) == (Grant(11, 0, 11, 16),)
    a.reached("a", 1, position=5, samples=5)
    assert a.held("a", 1) == (Grant(11, 0, 11, 16),), "an older position arrived later"
    a.trained("a", 1, position=14, samples=14)
    assert a.untrained("a", 1) == 2
    a.trained("a", 1, position=12, samples=12)
    assert a.untrained("a", 1) == 2, "an older report arrived later"
    assert (a.status().reached, a.status().ahead, a.status().held) == (11, 3, 5)


def test_what_the_dead_had_not_reached_comes_before_what_was_never_granted():
    a = book()
    a.grant("a", 1, 8)
    a.grant("b", 1, 8)
    a.reached("b", 1, 3, 3)
    a.ended("b", 1)
    a.ended("b", 1)
    assert a.grant("c", 1, 6) == (Grant(0, 0, 11, 16), Grant(5, 0, 16, 20))


def test_the_oldest_places_are_granted_anew_first():
    a = book()
    for learner in "abc":
        a.grant(learner, 1, 1)
    for learner in "cab":
        a.ended(learner, 1)
    assert [grant.start for grant in a.grant("d", 1, 20)] == [0, 8, 16]


def test_what_was_trained_and_not_reached_is_a_repeat_once_its_process_has_ended():
    a = book()
    a.grant("a", 1, 8)
    a.reached("a", 1, 4, 4)
    a.trained("a", 1, 7, 7)
    assert a.status().repeated == 0
    a.ended("a", 1)
    assert a.status().repeated == 3
    assert (a.status().returned, a.status().waiting) == (4, 4)


def test_who_was_silent_is_given_back_what_nobody_took_and_has_repeated_nothing():
    a = book()
    a.grant("a", 1, 8)
    a.reached("a", 1, 4, 4)
    a.ended("a", 1)
    assert a.came_back("a", 1, 7, 7) == (Grant(4, 0, 4, 8),) == a.held("a", 1)
    assert a.status().repeated == 0
    a.reached("a", 1, 8, 8)
    assert a.status().reached == 8


def test_who_was_silent_passes_over_what_was_taken_and_what_it_trained_of_it_is_a_repeat():
    a = book()
    a.grant("a", 1, 16)
    a.reached("a", 1, 4, 4)
    a.ended("a", 1)
    assert a.grant("b", 1, 1) == (Grant(0, 0, 4, 8),)
    assert a.came_back("a", 1, 6, 6) == (Grant(8, 0, 8, 16),)
    assert a.status().repeated == 2
    # One more was trained before the answer came; then it went on at 8, with 7 trained.
    a.reached("a", 1, position=10, samples=9)
    assert (a.status().repeated, a.status().reached) == (3, 6)


def test_coming_back_without_having_ended_changes_nothing():
    a = book()
    granted = a.grant("a", 1, 8)
    assert a.came_back("a", 1, 2, 2) == granted
    assert a.status().returned == 0


def test_a_new_process_starts_a_course_of_its_own():
    a = book()
    a.grant("a", 1, 8)
    with pytest.raises(LocalProtocolError, match="process 2 of a cannot be granted data: process 1 holds some"):
        a.grant("a", 2, 8)
    a.ended("a", 1)
    with pytest.raises(LocalProtocolError, match="process 1 of a cannot be granted data: process 1 has ended"):
        a.grant("a", 1, 8)
    assert a.grant("a", 2, 8) == (Grant(0, 0, 0, 8),)
    a.reached("a", 1, 8, 8)
    assert a.status().reached == 0, "the first process does not speak for the second"
    assert a.came_back("a", 1, 8, 8) == ()


def test_who_leaves_in_order_is_believed_where_it_last_handed_over():
    a = book()
    a.grant("a", 1, 8)
    a.trained("a", 1, 7, 7)
    a.left("a", 1, position=5)
    s = a.status()
    assert (s.reached, s.waiting, s.repeated) == (5, 3, 2)
    assert a.state().holdings == {}
    a.left("a", 1, position=8)
    assert a.status() == s


def test_what_a_crash_took_of_a_living_process_is_granted_anew_and_the_rest_stays_its_own():
    a = book()
    a.grant("a", 1, 16)
    a.reached("a", 1, 3, 3)
    a.trained("a", 1, 10, 10)
    a.lost("a", 1)
    assert a.held("a", 1) == (Grant(10, 0, 10, 16),)
    assert a.grant("b", 1, 7) == (Grant(0, 0, 3, 8), Grant(5, 0, 8, 10))
    assert (a.status().repeated, a.status().returned) == (7, 7)
    a.lost("a", 1)
    assert a.status().returned == 7


def test_what_a_crash_took_is_not_given_back_to_who_has_trained_it():
    a = book(sequences=8)
    a.grant("a", 1, 8)
    a.trained("a", 1, 5, 5)
    a.lost("a", 1)
    a.ended("a", 1)
    assert a.came_back("a", 1, 6, 6) == (Grant(5, 0, 5, 8),)
    a.reached("a", 1, 8, 8)
    assert not a.is_finished
    assert a.grant("a", 1, 8) == (Grant(8, 0, 0, 5),)


def test_the_end_is_trained_before_it_is_finished():
    a = book(sequences=8)
    a.grant("a", 1, 8)
    a.trained("a", 1, 8, 8)
    assert a.is_trained and not a.is_finished
    a.reached("a", 1, 8, 8)
    assert a.is_finished
    assert a.status().epoch == 1.0


def test_who_dies_at_the_end_leaves_something_to_be_granted():
    a = book(sequences=8)
    a.grant("a", 1, 8)
    a.trained("a", 1, 8, 8)
    a.ended("a", 1)
    assert not a.is_exhausted and not a.is_trained


@pytest.mark.parametrize(("position", "samples"), [(9, 9), (4, 5), (4, -1), (-1, -1)])
def test_more_than_was_granted_is_not_believed(position: int, samples: int):
    a = book()
    a.grant("a", 1, 8)
    before = a.state()
    with pytest.raises(RemoteProtocolError, match=f"trained {samples} .* position {position} of 8 it was granted"):
        a.reached("a", 1, position, samples)
    assert a.state() == before


def test_a_state_is_a_copy_that_an_older_syncer_goes_on_from():
    a = book()
    a.grant("a", 1, 8)
    a.reached("a", 1, 3, 3)
    state = a.state()
    written = msgspec.msgpack.encode(state)
    a.reached("a", 1, 6, 6)
    a.ended("a", 1)
    assert msgspec.msgpack.encode(state) == written
    later = a.state()
    a.grant("b", 1, 1)
    assert len(later.waiting) == 1
    restored = book()
    restored.restore(msgspec.msgpack.decode(written, type=DataBookState))
    assert restored.held("a", 1) == (Grant(3, 0, 3, 8),)
    restored.reached("a", 1, 7, 7)
    assert (restored.status().reached, restored.status().trained) == (7, 7)


def test_another_corpus_is_not_gone_on_with():
    with pytest.raises(ConfigError, match="holds 21 training sequences and held 20 when the run began"):
        book(sequences=21).restore(book(sequences=20).state())


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [((0, 1, 1), "data.source"), ((1, 0, 1), "data.chunk_sequences is 0"), ((1, 1, -1), "data.epochs is -1")],
)
def test_numbers_out_of_range_are_refused(numbers: tuple[int, int, int], complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        DataBook(*numbers)


def test_the_state_stays_small_however_long_the_run_and_however_many_die():
    a = book(sequences=1000, chunk_sequences=10, epochs=0)
    processes = {"a": 1, "b": 1, "c": 1}
    largest = 0
    for turn in range(30_000):
        learner = "abc"[turn % 3]
        grants = a.grant(learner, processes[learner], 10)
        if turn % 7 == 0:
            a.ended(learner, processes[learner])
            processes[learner] += 1
        else:
            a.reached(learner, processes[learner], grants[-1].end - 3, grants[-1].end - 3)
        largest = max(largest, len(msgspec.msgpack.encode(a.state())))
    assert a.status().reached > 200 * 1000
    assert largest < 300

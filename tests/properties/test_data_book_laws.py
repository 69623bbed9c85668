"""Laws of the data book: whoever comes and goes, each sequence is trained as often as the corpus asks for."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.data_story import DataStory, Plot
from unlockstep.core.data_book import DataBook, DataBookState, Grant, Returned
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.sim.canaries import GivingBook, HurriedBook, StingyBook, TrustingBook, UngratefulBook

seeds = st.integers(0, 2**32)
plots = st.builds(
    Plot,
    sequences=st.integers(1, 80),
    chunk_sequences=st.integers(1, 12),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 9),
    learners=st.integers(1, 5),
    silence=st.booleans(),
    crashes=st.booleans(),
)


def judge_world(story: DataStory) -> None:
    """What must have happened by the end of every story."""
    asked_for = {(epoch, place) for epoch in range(story.plot.epochs) for place in range(story.plot.sequences)}
    counted = story.times_counted()
    assert counted.keys() == asked_for, "a place is in no contribution, or there is none such"
    assert max(story.times_counted_of_the_steady().values(), default=0) <= 1, "counted twice, and nobody was silent"
    assert sum(counted.values()) - len(asked_for) <= story.book.status().repeated, "counted twice, and not declared"


def judge(story: DataStory) -> None:
    """... and what the book must say of it."""
    judge_world(story)
    asked_for, status = story.plot.epochs * story.plot.sequences, story.book.status()
    assert status.reached == status.dealt == asked_for
    assert status.held == status.waiting == status.ahead == 0
    assert status.trained == asked_for + status.repeated <= sum(story.times_trained().values())


@given(plot=plots, seed=seeds)
@example(plot=Plot(sequences=14, chunk_sequences=3, epochs=3, batch_size=4, learners=2), seed=3935607016)
@settings(deadline=None, max_examples=150)
def test_every_place_is_trained_as_often_as_asked_for(plot: Plot, seed: int):
    story = DataStory(plot, seed)
    story.play()
    judge(story)


@given(seed=seeds)
@settings(deadline=None, max_examples=50)
def test_where_nobody_was_only_silent_every_place_counts_once(seed: int):
    story = DataStory(Plot(silence=False), seed)
    story.play()
    assert set(story.times_counted().values()) == {1}


@given(plot=plots, seed=seeds)
@settings(deadline=None, max_examples=50)
def test_where_nothing_goes_wrong_nothing_is_trained_twice(plot: Plot, seed: int):
    story = DataStory(plot, seed)
    for _ in range(plot.learners):
        story.start()
    story.finish()
    judge(story)
    assert set(story.times_trained().values()) == {1}
    assert story.book.status().repeated == story.book.status().returned == 0


class TooMany(DataBook):
    """Returns one place more than was left."""

    def ended(self, learner: str, process: int) -> None:
        before = list(self._waiting)
        super().ended(learner, process)
        for index, returned in enumerate(self._waiting):
            grant = returned.grant
            if returned not in before and grant.start > 0:
                longer = Grant(grant.at, grant.epoch, grant.start - 1, grant.stop)
                self._waiting[index] = Returned(learner, process, longer)


class Greedy(DataBook):
    """Gives back to who was silent what others have taken, too."""

    def __init__(self, sequences: int, chunk_sequences: int, epochs: int) -> None:
        super().__init__(sequences, chunk_sequences, epochs)
        self._had: dict[tuple[str, int], tuple[Grant, ...]] = {}

    def ended(self, learner: str, process: int) -> None:
        self._had[learner, process] = self.held(learner, process)
        super().ended(learner, process)

    def came_back(self, learner: str, process: int, position: int, samples: int) -> tuple[Grant, ...]:
        super().came_back(learner, process, position, samples)
        had = self._had.get((learner, process), ())
        if had:
            self._holdings[learner] = msgspec.structs.replace(self._holdings[learner], grants=had)
        return had


class Amnesiac(DataBook):
    """Forgets at a restart what waited to be granted anew."""

    def restore(self, state: DataBookState) -> None:
        super().restore(msgspec.structs.replace(state, waiting=()))


class Patient(DataBook):
    """Waits for ever for what a crash took."""

    def lost(self, learner: str, process: int) -> None:
        pass


CANARIES = [
    *(StingyBook, TrustingBook, GivingBook, UngratefulBook, HurriedBook),
    *(TooMany, Greedy, Amnesiac, Patient),
]


def is_found(plot: Plot, seed: int, book_type: type[DataBook], balances: bool) -> bool:
    """Whether the checks notice; without ``balances``, those alone that look at what really happened in the end."""
    story = DataStory(plot, seed, book_type)
    if not balances:
        story.check = lambda: None  # type: ignore[method-assign]
    try:
        story.play()
        (judge if balances else judge_world)(story)
    except (AssertionError, RemoteProtocolError):
        return True
    return False


@pytest.mark.parametrize("book_type", CANARIES, ids=lambda book_type: book_type.__name__)
@pytest.mark.parametrize("balances", [True, False], ids=["all checks", "the world only"])
def test_a_broken_book_is_found(book_type: type[DataBook], balances: bool):
    assert any(is_found(Plot(), seed, book_type, balances) for seed in range(100))


def test_a_grant_told_before_it_is_durable_is_found():
    assert any(is_found(Plot(durable_first=False), seed, DataBook, True) for seed in range(30))
    assert not any(is_found(Plot(durable_first=False, crashes=False), seed, DataBook, True) for seed in range(30))

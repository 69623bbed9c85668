"""Laws of saving before sending: whatever is promised and sent, and however long saves take."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.actions import Save
from unlockstep.promises import Promises

COMMIT, OTHER, SEND, BEGIN, END = "commit", "other", "send", "begin", "end"
stories = st.lists(st.sampled_from([COMMIT, OTHER, SEND, SEND, BEGIN, END]), max_size=60)


@dataclass
class Told:
    """One message: what was promised before it, and how it went."""

    number: int
    needs: int
    commits: int
    delivered_after: int | None = None
    """How many promises the saves that had ended by then covered; None: not delivered."""


class Story:
    """A queue, and beside it the plainest model: what every save that has begun covers."""

    def __init__(self, commits_lost_max: int) -> None:
        self.commits_lost_max = commits_lost_max
        self.promises = Promises(commits_lost_max)
        self.told: list[Told] = []
        self.order: list[int] = []
        self.needs = self.commits = 0
        """Promised so far and not exempt, as far as that is certain; and commits."""
        self.commits_covered = self.covered = 0
        self.saving: tuple[int, int] | None = None

    def play(self, story: list[str]) -> None:
        for what in story:
            match what:
                case "commit" | "other":
                    self.promises.need(Save(is_commit=what == COMMIT))
                    self.commits += what == COMMIT
                    self.needs += what == OTHER or self.commits - self.commits_covered > self.commits_lost_max
                case "send":
                    self.send()
                case "begin":
                    self.begin()
                case "end" if self.saving is not None:
                    self.end()

    def send(self) -> None:
        message = Told(len(self.told), self.needs, self.commits)
        self.told.append(message)

        def deliver() -> None:
            message.delivered_after = self.covered
            self.order.append(message.number)

        self.promises.send(deliver)

    def begin(self) -> None:
        if self.promises.begin_save():
            assert self.saving is None, "one save at a time"
            self.saving = (self.needs, self.commits)

    def end(self) -> None:
        assert self.saving is not None
        (self.covered, self.commits_covered), self.saving = self.saving, None
        self.promises.end_save()

    def settle(self) -> None:
        """Everything is saved that is due."""
        for _ in range(3):
            if self.saving is not None:
                self.end()
            self.begin()
        assert self.saving is None, "saves are due for ever"


@given(stories, st.sampled_from([0, 1, 4]))
def test_nothing_is_delivered_before_what_was_promised_before_it_is_saved(story: list[str], commits: int) -> None:
    played = Story(commits)
    played.play(story)
    for message in played.told:
        assert message.delivered_after is None or message.delivered_after >= message.needs


@given(stories, st.sampled_from([0, 1, 4]))
def test_everything_is_delivered_once_and_in_the_order_in_which_it_was_sent(story: list[str], commits: int) -> None:
    played = Story(commits)
    played.play(story)
    assert played.order == list(range(len(played.order)))
    played.settle()
    assert played.order == list(range(len(played.told)))


@given(stories)
def test_what_waits_for_nothing_is_delivered_at_once(story: list[str]) -> None:
    played = Story(0)
    played.play([*story, BEGIN, END, BEGIN, END, SEND])
    if played.covered == played.needs:
        assert len(played.order) == len(played.told)


@given(stories, st.sampled_from([1, 4]))
def test_commits_alone_hold_nothing_up_while_saves_keep_pace(story: list[str], commits: int) -> None:
    played = Story(commits)
    for what in [each for each in story if each != OTHER]:
        played.play([what, BEGIN, END])
        assert len(played.order) == len(played.told)
        assert played.commits - played.commits_covered <= commits // 2


@given(stories, st.sampled_from([0, 1, 4]))
def test_nobody_hears_of_more_unsaved_commits_than_may_be_lost(story: list[str], commits: int) -> None:
    """However long a save takes."""
    played = Story(commits)
    for what in story:
        played.play([what])
        told = max((message.commits for message in played.told if message.delivered_after is not None), default=0)
        assert told - played.commits_covered <= commits


@given(stories, st.sampled_from([2, 5]))
def test_however_long_saves_take_few_commits_are_told_of_and_not_saved(story: list[str], commits_per_save: int) -> None:
    """A message follows each commit: it says what has been told."""
    played = Story(commits_per_save)
    for what in story:
        played.play([what, SEND])
        told = max((message.commits for message in played.told if message.delivered_after is not None), default=0)
        assert told - played.commits_covered <= commits_per_save


@given(stories)
def test_where_every_commit_is_saved_it_is_a_promise_like_any_other(story: list[str]) -> None:
    with_commits, with_others = Story(0), Story(0)
    with_commits.play(story)
    with_others.play([OTHER if what == COMMIT else what for what in story])
    assert with_commits.order == with_others.order

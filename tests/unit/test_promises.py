"""Saving before sending: what waits for what, and when a save is due."""

from __future__ import annotations

from unlockstep.core.actions import Save
from unlockstep.promises import Promises


class Post:
    """What has been delivered."""

    def __init__(self, commits_lost_max: int = 0) -> None:
        self.promises = Promises(commits_lost_max)
        self.delivered: list[str] = []

    def send(self, message: str) -> None:
        self.promises.send(lambda: self.delivered.append(message))


def test_what_promises_nothing_goes_out_at_once() -> None:
    post = Post()
    post.send("a")
    assert post.delivered == ["a"] and not post.promises.begin_save()


def test_what_follows_a_promise_waits_for_a_save_that_began_after_it() -> None:
    post = Post()
    post.promises.need(Save())
    assert post.promises.begin_save()
    post.send("covered")
    post.promises.need(Save())
    post.send("not covered")
    assert not post.promises.begin_save(), "one save at a time"
    post.promises.end_save()
    assert post.delivered == ["covered"]
    assert post.promises.begin_save()
    post.promises.end_save()
    assert post.delivered == ["covered", "not covered"]
    assert not post.promises.begin_save()


def test_what_promises_nothing_does_not_overtake() -> None:
    post = Post()
    post.promises.need(Save(is_commit=True))
    post.send("promise")
    post.send("chat")
    assert post.delivered == []
    post.promises.begin_save()
    post.promises.end_save()
    assert post.delivered == ["promise", "chat"]


def test_commits_may_be_told_before_they_are_saved_together() -> None:
    post = Post(commits_lost_max=4)
    for number in range(2):
        post.promises.need(Save(is_commit=True))
        post.send(f"commit {number}")
        assert not post.promises.begin_save()
    post.promises.need(Save(is_commit=True))
    post.send("commit 2")
    assert post.delivered == ["commit 0", "commit 1", "commit 2"]
    assert post.promises.begin_save()
    post.promises.end_save()
    assert not post.promises.begin_save()


def test_of_more_than_may_be_lost_nobody_hears_before_they_are_saved() -> None:
    post = Post(commits_lost_max=2)
    for number in range(4):
        post.promises.need(Save(is_commit=True))
        post.send(f"commit {number}")
        post.promises.begin_save()  # with the second commit; it takes long
    assert post.delivered == ["commit 0", "commit 1"]
    post.promises.end_save()
    assert post.promises.begin_save()
    post.promises.end_save()
    assert len(post.delivered) == 4


def test_another_promise_saves_the_commits_before_it_too() -> None:
    post = Post(commits_lost_max=4)
    for is_commit in (True, True, False):
        post.promises.need(Save(is_commit=is_commit))
    post.send("joined")
    assert post.delivered == [] and post.promises.begin_save()
    post.promises.end_save()
    for _ in range(2):
        post.promises.need(Save(is_commit=True))
    assert post.delivered == ["joined"] and not post.promises.begin_save()


def test_a_message_may_send_another_one_when_it_is_delivered() -> None:
    post = Post()
    post.promises.need(Save())
    post.promises.send(lambda: post.send("second"))
    post.send("third")
    post.promises.begin_save()
    post.promises.end_save()
    assert sorted(post.delivered) == ["second", "third"]

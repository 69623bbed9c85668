"""A step boundary, and how a learner hands progress over: at once, later, once."""

from __future__ import annotations

import pytest

from support.core_builders import STEP_NS, options
from support.learner_stage import only, training
from unlockstep.core.actions import TakeSnapshot, Upload
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Pull,
    Settled,
    Undelivered,
    UploadArrived,
    UploadFailed,
)
from unlockstep.core.reasons import RefusalReason

# ----------------------------------------------------------------------------------------------- a step boundary


def test_counts_every_step_for_every_fragment_and_reports_it() -> None:
    stage = training()
    stage.step(tokens=10)
    stage.step(tokens=7)
    progress = stage.last_progress
    assert (progress.clock, progress.steps, progress.tokens, progress.step_ns) == (2, 2, 17, STEP_NS)
    assert (progress.c_steps, progress.c_tokens, progress.last) == ((2, 2), (17, 17), False)


def test_copies_the_fragments_due_next_after_a_step() -> None:
    """One round in flight: the next fragment, and the one after it."""
    stage = training(options(fragments=4, interval_steps=8, overlap_steps=2))
    assert only(TakeSnapshot, stage.step()) == [TakeSnapshot(0), TakeSnapshot(1)]
    stage.tell(Pull(5, 1))
    assert only(TakeSnapshot, stage.step()) == [TakeSnapshot(2), TakeSnapshot(3)]


def test_copies_more_when_more_was_asked_for_in_the_step_before() -> None:
    stage = training(options(fragments=8, interval_steps=8, overlap_steps=1))
    stage.step()
    for round in range(5):
        stage.tell(Pull(round, round))
    copied = [action.fragment for action in only(TakeSnapshot, stage.step())]
    assert copied == [2, 3, 4, 5, 6, 7, 0, 1]  # three answers that had to wait; six ahead, 2 having nothing new
    for made in stage.of(Upload):
        stage.tell(UploadArrived(made.round, made.fragment, made.tokens))
    assert len(only(TakeSnapshot, stage.step())) == 2


def test_what_was_copied_is_reported_first_and_copied_last() -> None:
    """The syncer hears of a step as soon as it is done, not after the copying."""
    kinds = [type(action).__name__ for action in training().step()]
    assert kinds == ["Send", "TakeSnapshot", "TakeSnapshot"]


# ----------------------------------------------------------------------------------------------- handing over


def test_a_pull_in_the_middle_of_a_step_is_answered_at_once_from_the_copy() -> None:
    stage = training()
    stage.step()
    stage.step()
    assert stage.tell(Pull(0, 0)) == [
        Upload(round=0, fragment=0, incarnation=1, base_version=0, c_steps=2, c_tokens=20, tokens=20, steps=2, deed=4)
    ]


def test_a_pull_before_any_step_waits_for_one() -> None:
    stage = training()
    assert stage.tell(Pull(0, 0)) == []
    wanted = stage.step()
    assert wanted[0] == TakeSnapshot(0)
    (upload,) = only(Upload, wanted)
    assert (upload.c_steps, upload.c_tokens) == (1, 10)


def test_a_pull_of_a_fragment_that_was_not_copied_waits_for_the_step_in_progress() -> None:
    stage = training(options(fragments=4, interval_steps=8))
    stage.step()
    assert stage.tell(Pull(3, 3)) == []
    (upload,) = only(Upload, stage.step())
    assert (upload.fragment, upload.c_steps) == (3, 2)


def test_a_hand_over_moves_the_anchor_so_that_no_token_is_in_two_contributions() -> None:
    stage = training()
    stage.step(10)
    (first,) = only(Upload, stage.tell(Pull(0, 0)))
    stage.step(7)
    stage.step(5)
    (second,) = only(Upload, stage.tell(Pull(2, 0)))
    assert (first.c_steps, first.c_tokens, first.base_version) == (1, 10, 0)
    assert (second.c_steps, second.c_tokens, second.base_version) == (2, 12, 0)
    assert stage.last_progress.c_tokens == (12, 22)


def test_asked_twice_within_one_step_it_answers_the_second_time_with_the_next_step() -> None:
    stage = training()
    stage.step(10)
    assert len(only(Upload, stage.tell(Pull(0, 0)))) == 1
    assert stage.tell(Pull(2, 0)) == []
    (second,) = only(Upload, stage.step(7))
    assert (second.round, second.c_steps, second.c_tokens) == (2, 1, 7)


def test_of_two_pulls_that_wait_only_the_newer_is_answered() -> None:
    stage = training()
    stage.tell(Pull(0, 0))
    stage.tell(Pull(2, 0))
    assert [upload.round for upload in only(Upload, stage.step())] == [2]


@pytest.mark.parametrize("meanwhile", ["reconnected", "refused", "failed"])
def test_asked_again_for_the_same_round_it_gives_what_came_since(meanwhile: str) -> None:
    stage = training()
    stage.step(10)
    (first,) = only(Upload, stage.tell(Pull(0, 0)))
    match meanwhile:
        case "reconnected":
            stage.tell(Disconnected())
            stage.tell(Connected())
            stage.welcome()
        case "refused":
            stage.tell(Settled(0, 0, first.tokens, late=False, refusal=RefusalReason.NON_FINITE))
        case "failed":
            stage.tell(UploadFailed(0, 0, first.c_tokens, first.tokens))
    stage.tell(Pull(0, 0))
    (second,) = only(Upload, stage.step(7))
    assert (second.round, second.c_tokens) == (0, 7)
    assert (first.tokens, second.tokens) == (10, 17)  # by which the syncer tells them apart


def test_an_undelivered_contribution_is_declared_once() -> None:
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    stage.tell(UploadFailed(0, 0, 10, 10))
    stage.step()
    assert stage.last_progress.undelivered == (Undelivered(0, 0, 10, 10),)
    stage.step()
    assert stage.last_progress.undelivered == ()

"""How much a learner has on its way at once, and what becomes of what it is asked for while its link is full."""

from __future__ import annotations

import pytest

from support.core_builders import options
from support.learner_stage import LearnerStage, only, sent, training
from unlockstep.core.actions import Done, Fetch, LearnerAction, Resend, TakeSnapshot, Upload
from unlockstep.core.adoption import Adoption
from unlockstep.core.hand_overs import UNDER_WAY_MAX
from unlockstep.core.learner import LearnerState
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Farewell,
    Fenced,
    FetchFailed,
    Finish,
    HandedOver,
    LearnerInput,
    Leave,
    LeaveRequested,
    Pull,
    Settled,
    UploadArrived,
    UploadFailed,
)
from unlockstep.core.pace import BEHIND_STEPS
from unlockstep.core.reasons import DepartureReason

P = 6


def stage_of(adoption: Adoption = Adoption.CARRY) -> LearnerStage:
    return training(options(fragments=P, interval_steps=P, overlap_steps=1), adoption)


def of(upload: Upload) -> HandedOver:
    return HandedOver(upload.round, upload.fragment, upload.tokens)


def arrived(upload: Upload) -> UploadArrived:
    return UploadArrived(upload.round, upload.fragment, upload.tokens)


def failed(upload: Upload) -> UploadFailed:
    return UploadFailed(upload.round, upload.fragment, upload.c_tokens, upload.tokens)


def settled(upload: Upload) -> Settled:
    return Settled(upload.round, upload.fragment, upload.tokens, late=False, refusal=None)


def full(adoption: Adoption = Adoption.CARRY) -> tuple[LearnerStage, list[Upload]]:
    """Asked for as many as its link carries, and two steps later, when none of them is there, for all others."""
    stage = stage_of(adoption)
    for round in range(UNDER_WAY_MAX):
        stage.tell(Pull(round, round))
    uploads = only(Upload, stage.step())
    assert [upload.round for upload in uploads] == list(range(UNDER_WAY_MAX))
    for _ in range(BEHIND_STEPS):
        assert only(Upload, stage.step()) == []
    for round in range(UNDER_WAY_MAX, P):
        assert only(Upload, stage.tell(Pull(round, round))) == []
    return stage, uploads


def test_a_link_that_keeps_up_takes_whatever_is_asked_for() -> None:
    stage = stage_of()
    for round in range(P):
        stage.tell(Pull(round, round))
    assert [upload.round for upload in only(Upload, stage.step())] == list(range(P))


def test_as_many_as_the_link_takes_are_on_their_way_and_training_goes_on() -> None:
    stage, _ = full()
    for _ in range(10):
        assert only(Upload, stage.step()) == []
    assert stage.core.may_step
    assert stage.last_progress.c_steps == (12,) * UNDER_WAY_MAX + (13,) * (P - UNDER_WAY_MAX)
    assert stage.last_progress.unsettled == UNDER_WAY_MAX


@pytest.mark.parametrize("ends", [arrived, failed, settled])
def test_however_one_ends_the_fragment_that_has_waited_longest_is_next_with_all_it_has_by_then(
    ends: type[LearnerInput],
) -> None:
    stage, (first, *_) = full()
    stage.step()
    assert only(Upload, stage.tell(ends(first))) == []  # In the middle of a step there is no copy of it.
    (following,) = only(Upload, stage.step())
    assert (following.round, following.fragment) == (UNDER_WAY_MAX, UNDER_WAY_MAX)
    assert (following.c_steps, following.c_tokens, following.tokens) == (5, 50, 50)


def test_said_twice_it_makes_room_once() -> None:
    stage, (first, *_) = full()
    for said in (arrived(first), arrived(first), settled(first), settled(first), failed(first)):
        stage.tell(said)
    assert len(only(Upload, stage.step())) == 1


def test_a_newer_pull_takes_the_place_of_an_older_one_and_keeps_its_turn() -> None:
    stage, (first, *_) = full()
    stage.tell(Pull(P + UNDER_WAY_MAX, UNDER_WAY_MAX))
    stage.tell(arrived(first))
    (following,) = only(Upload, stage.step())
    assert (following.round, following.fragment) == (P + UNDER_WAY_MAX, UNDER_WAY_MAX)


def test_no_fragment_is_overtaken_for_ever() -> None:
    """All are asked for again and again, in an order that favours some; every fragment has its turn."""
    stage, _ = full()
    for ended in range(5 * P):
        for fragment in (0, 0, 5, 1, 4, 2, 3):
            stage.tell(Pull((ended + 1) * P + fragment, fragment))
        stage.tell(arrived(stage.of(Upload)[ended]))
        for _ in range(BEHIND_STEPS):
            stage.step()
        assert len(stage.of(Upload)) == ended + 1 + UNDER_WAY_MAX
    given = [upload.fragment for upload in stage.of(Upload)]
    for start in range(0, len(given) - P):
        assert set(given[start : start + P]) == set(range(P))


def test_nothing_is_copied_while_the_link_is_full() -> None:
    stage, (first, second, *_) = full()
    assert only(TakeSnapshot, stage.step()) == []
    stage.tell(arrived(first))
    copied = [action.fragment for action in only(TakeSnapshot, stage.step())]
    assert copied == [UNDER_WAY_MAX, UNDER_WAY_MAX + 1, UNDER_WAY_MAX + 2]  # One that is handed over, two ahead.
    (third,) = only(Upload, stage.tell(arrived(second)))  # At once, in the middle of the step.
    assert third.fragment == copied[1]
    (fourth,) = only(Upload, stage.tell(arrived(third)))  # It took no step: the link is not behind any more, and takes
    assert fourth.fragment == copied[2]  # whatever there is a copy of.


def published(stage: LearnerStage, version: int) -> list[LearnerAction]:
    """Of every fragment."""
    return [action for fragment in range(P) for action in stage.publish(fragment, version)]


def fetched_ones(actions: list[LearnerAction]) -> list[tuple[int, int]]:
    return [(action.notice.fragment, action.notice.version) for action in only(Fetch, actions)]


def test_what_would_be_too_old_when_it_arrives_waits_for_a_newer_base() -> None:
    """While the first two were on their way, as many versions were published as they may be behind."""
    stage, (first, second) = full()
    published(stage, stage.options.staleness_max)
    for each in (first, second):
        assert only(Upload, stage.tell(arrived(each))) == []
    (oldest,) = only(Upload, stage.step())  # With nothing else to carry it is tried all the same.
    assert oldest.base_version == 0
    for _ in range(BEHIND_STEPS):
        assert only(Upload, stage.step()) == []
    stage.fetched(5, stage.options.staleness_max)
    (fresh,) = only(Upload, stage.step())
    assert (fresh.fragment, fresh.base_version) == (5, stage.options.staleness_max)


def test_a_link_that_keeps_up_brings_whatever_is_published() -> None:
    stage = stage_of()
    assert fetched_ones(published(stage, 1)) == [(fragment, 1) for fragment in range(P)]


def behind_with(versions: list[int]) -> LearnerStage:
    """All fragments were published at once, and took their time; the newest are these now, and fragment 0's is on its
    way."""
    stage = stage_of()
    published(stage, 1)
    for _ in range(BEHIND_STEPS):
        stage.step()
    for fragment in range(P):
        assert fetched_ones(stage.fetched(fragment, 1)) == []
    stage.step()
    begun = [action for fragment, version in enumerate(versions) for action in stage.publish(fragment, version)]
    assert fetched_ones(begun) == [(0, versions[0])]
    return stage


def test_over_a_link_that_is_behind_versions_come_one_after_the_other_the_oldest_parameters_first() -> None:
    """What is fetched is the newest by then."""
    stage = behind_with([2] * P)
    for _ in range(BEHIND_STEPS):
        stage.step()
    assert fetched_ones(published(stage, 3)) == []
    assert fetched_ones(stage.fetched(0, 2)) == [(1, 3)]
    for following in range(2, P):
        for _ in range(BEHIND_STEPS):
            stage.step()
        assert fetched_ones(stage.fetched(following - 1, 3)) == [(following, 3)]
    stage.step()
    stage.step()
    assert fetched_ones(stage.fetched(P - 1, 3)) == [(0, 3)]


@pytest.mark.parametrize("ends", ["connection", "fetch"])
def test_a_link_that_breaks_before_anything_has_passed_is_behind_too(ends: str) -> None:
    stage = stage_of()
    published(stage, 1)
    for _ in range(BEHIND_STEPS):
        stage.step()
    if ends == "connection":
        stage.tell(Disconnected())
        stage.tell(Connected())
        begun = stage.welcome(version=1)
    else:
        for fragment in range(P):
            stage.tell(FetchFailed(fragment, 1))
        begun = stage.publish(0, 2)
    assert len(fetched_ones(begun)) == 1


def test_over_a_link_that_is_slow_down_alone_nothing_goes_up_that_would_be_refused() -> None:
    """It waits for a newer base, and has lost nothing."""
    stage = stage_of()
    stage.step()
    stage.step()
    too_many = stage.options.staleness_max + 1
    published(stage, too_many)
    assert only(Upload, [*stage.tell(Pull(2, 2)), *stage.step()]) == []
    stage.fetched(2, too_many)
    (upload,) = only(Upload, stage.step())
    assert (upload.fragment, upload.base_version, upload.c_steps) == (2, too_many, 4)


def test_who_ends_hands_over_whatever_it_is_asked_for_since_no_newer_base_comes() -> None:
    stage = stage_of()
    stage.step()
    published(stage, stage.options.staleness_max + 1)
    stage.tell(Finish())
    stage.step()
    (upload,) = only(Upload, stage.tell(Pull(2, 2)))
    assert upload.base_version == 0


def test_turns_outlive_a_connection() -> None:
    """After it every fragment is asked for anew, in an order that favours those that have just been handed over."""
    stage, (first, second) = full()
    stage.tell(Disconnected())
    stage.tell(Connected())
    stage.welcome(wanted=())
    for fragment in range(P):
        stage.tell(Pull(2 * P + fragment, fragment))
    stage.tell(arrived(first))
    stage.tell(arrived(second))
    given = [upload.fragment for upload in only(Upload, stage.step())]
    assert given == list(range(UNDER_WAY_MAX, 2 * UNDER_WAY_MAX))


def test_a_body_that_comes_within_a_step_says_that_the_link_keeps_up() -> None:
    stage = behind_with([2] * P)
    assert fetched_ones(stage.fetched(0, 2)) == [(fragment, 2) for fragment in range(1, P)]


# ----------------------------------------------------------------------------------------------- broken connections


def test_what_waits_is_void_when_the_connection_is_lost_and_room_is_not() -> None:
    stage, (first, second, *_) = full()
    stage.tell(Disconnected())
    assert stage.tell(failed(first)) == [] and only(Upload, stage.step()) == []
    stage.tell(Connected())
    (again,) = only(Resend, stage.welcome(wanted=(of(first),)))  # The other is on its way still.
    assert again == Resend(of(first), 1)
    stage.tell(Pull(3, 3))
    assert only(Upload, stage.step()) == []
    stage.tell(arrived(second))
    assert [upload.round for upload in only(Upload, stage.step())] == [3]


def resent_by(stage: LearnerStage, actions: list[LearnerAction]) -> list[HandedOver]:
    assert only(Upload, actions) == []
    return [action.handed_over for action in only(Resend, actions)]


def test_what_is_handed_over_once_more_goes_so_many_at_a_time_and_first() -> None:
    """Everything had arrived, and died with the syncer."""
    stage = stage_of()
    for round in range(P):
        stage.tell(Pull(round, round))
        stage.step()
        stage.tell(arrived(stage.of(Upload)[-1]))
    made = stage.of(Upload)
    wanted = [of(upload) for upload in made]
    resent = resent_by(stage, stage.return_to(life=2, kept=0, wanted=tuple(wanted)))
    assert resent == wanted[:UNDER_WAY_MAX]
    for count, upload in enumerate(made[: P - UNDER_WAY_MAX], UNDER_WAY_MAX):
        assert resent_by(stage, stage.tell(arrived(upload))) == [wanted[count]]


def test_an_attempt_under_an_old_incarnation_that_fails_is_not_missed_while_the_next_one_waits() -> None:
    stage, (first, second, *_) = full()
    stage.tell(arrived(first))
    (third,) = only(Upload, stage.step())
    stage.tell(Fenced(DepartureReason.LEASE_EXPIRED))
    made = [first, second, third]
    resent = resent_by(stage, stage.welcome(incarnation=2, wanted=tuple(of(each) for each in made)))
    assert resent == [of(each) for each in made[:UNDER_WAY_MAX]]
    assert stage.tell(failed(third)) == []
    assert resent_by(stage, stage.tell(arrived(first))) == [of(third)]
    stage.step()
    assert stage.last_progress.undelivered == ()


def test_what_waits_to_be_handed_over_once_more_outlives_the_connection() -> None:
    stage, (first, second, *_) = full()
    stage.tell(arrived(first))
    (third,) = only(Upload, stage.step())
    wanted = tuple(of(each) for each in (first, second, third))
    assert len(resent_by(stage, stage.return_to(life=2, kept=0, wanted=wanted))) == UNDER_WAY_MAX
    stage.tell(Disconnected())
    stage.tell(failed(first))
    stage.tell(Connected())
    assert resent_by(stage, stage.welcome(life=2, wanted=wanted)) == [of(first)]
    assert resent_by(stage, stage.tell(arrived(second))) == [of(third)]


def test_a_process_that_begins_anew_has_its_link_to_itself() -> None:
    stage, _ = full()
    stage.tell(Fenced(DepartureReason.QUARANTINED, retry_ns=10))
    stage.step()
    stage.tell(Connected())
    stage.welcome(incarnation=2)
    for fragment in range(P):
        stage.fetched(fragment, 0)
    for round in range(P):
        stage.tell(Pull(round, round))
    assert len(only(Upload, stage.step())) == P


# ----------------------------------------------------------------------------------------------- the end


def test_the_last_rounds_are_handed_over_as_the_link_takes_them() -> None:
    stage, under_way = full()
    stage.tell(Finish())
    stage.step()
    assert stage.core.state is LearnerState.FINISHING
    given = [upload.fragment for upload in under_way]
    while under_way:
        following = only(Upload, stage.tell(arrived(under_way.pop(0))))
        under_way += following
        given += [upload.fragment for upload in following]
    assert sorted(given) == list(range(P))


def test_who_leaves_hands_over_at_once_whatever_it_is_asked_for() -> None:
    """It goes as soon as all is with its link; there is no more progress that could add up."""
    stage, _ = full()
    stage.tell(LeaveRequested())
    wanted = stage.tell(Farewell(tuple(Pull(P + fragment, fragment) for fragment in range(P))))
    assert sorted(upload.fragment for upload in only(Upload, wanted)) == list(range(P))
    assert isinstance(wanted[-1], Done)
    (leave,) = [message for message in sent(wanted) if isinstance(message, Leave)]
    assert leave.tokens_dropped == (0,) * P


# ----------------------------------------------------------------------------------------------- adopting


def test_what_must_be_handed_over_before_it_is_overwritten_waits_for_the_link() -> None:
    stage, (first, *_) = full(adoption=Adoption.OVERWRITE)
    stage.publish(UNDER_WAY_MAX, 1)
    stage.fetched(UNDER_WAY_MAX, 1)
    stage.step()
    assert stage.core.versions[UNDER_WAY_MAX] == 0
    stage.tell(arrived(first))
    (upload,) = only(Upload, stage.step())
    assert (upload.fragment, upload.base_version, upload.c_steps) == (UNDER_WAY_MAX, 0, 5)
    assert stage.core.versions[UNDER_WAY_MAX] == 1
    assert stage.last_progress.overwritten == (0,) * P

"""What a learner does when the syncer has died: it keeps what it handed over, and takes what the syncer has now."""

from __future__ import annotations

import pytest

from support.core_builders import options
from support.learner_stage import LearnerStage, adoptions, notice, only, sent, training
from unlockstep.core.actions import Adopt, Discard, Done, Fetch, Forget, Resend, Upload
from unlockstep.core.adoption import Adoption
from unlockstep.core.deeds import Source
from unlockstep.core.learner import LearnerState
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Fenced,
    Finish,
    HandedOver,
    Heartbeat,
    Join,
    Progress,
    Pull,
    Settled,
    UploadFailed,
)
from unlockstep.core.reasons import DepartureReason, RefusalReason


def given(stage: LearnerStage, round: int = 0) -> HandedOver:
    """A step is taken and handed over."""
    stage.step()
    (upload,) = only(Upload, stage.tell(Pull(round, round % stage.options.fragments)))
    return HandedOver(upload.round, upload.fragment, upload.tokens)


def settled(made: HandedOver, refusal: RefusalReason | None = None) -> Settled:
    return Settled(made.round, made.fragment, made.tokens, late=False, refusal=refusal)


def failed(made: HandedOver) -> UploadFailed:
    return UploadFailed(made.round, made.fragment, 10, made.tokens)


def unsettled(stage: LearnerStage) -> tuple[HandedOver, ...]:
    """What the learner says that it keeps, when it joins."""
    stage.tell(Disconnected())
    (join,) = sent(stage.tell(Connected()))
    assert isinstance(join, Join)
    return join.unsettled


# ----------------------------------------------------------------------------------------------- what is kept


def test_what_was_handed_over_is_kept_until_it_is_settled() -> None:
    stage = training()
    first = given(stage, round=0)
    second = given(stage, round=1)
    assert unsettled(stage) == (first, second)
    stage.welcome()
    assert stage.tell(settled(first)) == [Forget(first)]
    assert stage.tell(settled(first)) == []
    assert unsettled(stage) == (second,)


@pytest.mark.parametrize("refusal", RefusalReason)
def test_however_it_is_settled_it_is_forgotten(refusal: RefusalReason) -> None:
    stage = training()
    made = given(stage)
    assert stage.tell(settled(made, refusal)) == [Forget(made)]
    assert unsettled(stage) == ()


def test_another_contribution_to_the_same_round_is_not_meant() -> None:
    stage = training()
    first = given(stage, round=0)
    second = given(stage, round=0)
    assert stage.tell(settled(second)) == [Forget(second)]
    assert unsettled(stage) == (first,)


def test_two_of_one_fragment_without_a_token_between_them_are_two() -> None:
    """A step may have no token: a batch of which every target is masked."""
    stage = training()
    first = given(stage, round=0)
    stage.step(tokens=0)
    (upload,) = only(Upload, stage.tell(Pull(2, 0)))
    second = HandedOver(upload.round, upload.fragment, upload.tokens)
    assert (first.fragment, first.tokens) == (second.fragment, second.tokens)
    assert stage.tell(settled(first)) == [Forget(first)]
    assert only(Resend, stage.return_to(life=2, kept=0, wanted=(second,))) == [Resend(second, 1)]


# ----------------------------------------------------------------------------------------------- once more


def test_another_life_is_handed_over_what_it_wants_under_the_incarnation_it_gives() -> None:
    stage = training()
    first, second = given(stage, round=0), given(stage, round=1)
    wanted = stage.return_to(life=2, kept=0, wanted=(first,), incarnation=3)
    assert only(Resend, wanted) == [Resend(first, incarnation=3)]
    assert unsettled(stage) == (first, second)  # it is not settled by being sent


def test_after_a_mere_broken_connection_it_is_on_its_way_still() -> None:
    stage = training()
    made = given(stage)
    assert only(Resend, stage.return_to(wanted=(made,))) == []


def test_unless_it_could_not_be_delivered_in_between() -> None:
    stage = training()
    made = given(stage)
    stage.tell(Disconnected())
    assert stage.tell(failed(made)) == []
    assert only(Resend, stage.return_to(wanted=(made,))) == [Resend(made, 1)]
    assert only(Resend, stage.return_to(wanted=(made,))) == []  # this one is on its way


def test_or_the_syncer_had_given_the_learner_up() -> None:
    """What arrived under the old incarnation was not taken."""
    stage = training()
    made = given(stage)
    stage.tell(Fenced(DepartureReason.LEASE_EXPIRED))
    assert only(Resend, stage.welcome(incarnation=2, wanted=(made,))) == [Resend(made, 2)]


def test_what_is_asked_for_and_not_here_is_not_handed_over() -> None:
    stage = training()
    assert only(Resend, stage.return_to(life=2, kept=0, wanted=(HandedOver(0, 0, 99),))) == []


def test_who_is_asked_to_finish_hands_over_once_more_too() -> None:
    stage = training()
    made = given(stage)
    stage.tell(Finish())
    stage.step()
    assert stage.core.state is LearnerState.FINISHING
    assert only(Resend, stage.return_to(life=2, kept=0, wanted=(made,))) == [Resend(made, 1)]


# --------------------------------------------------------------------------------------------- what cannot be delivered


def test_what_cannot_be_delivered_while_the_syncer_is_away_is_kept_and_not_declared_lost() -> None:
    stage = training()
    made = given(stage)
    stage.tell(Disconnected())
    stage.tell(failed(made))
    assert unsettled(stage) == (made,)
    stage.welcome(life=2, kept=0)
    stage.step()
    assert stage.last_progress.undelivered == ()


def test_what_cannot_be_delivered_to_a_syncer_that_is_there_is_declared_and_forgotten() -> None:
    stage = training()
    made = given(stage)
    assert stage.tell(failed(made)) == [Forget(made)]
    stage.step()
    assert [each.tokens for each in stage.last_progress.undelivered] == [made.tokens]
    assert unsettled(stage) == ()


# ----------------------------------------------------------------------------------------------- versions


def adopted(version: int, adoption: Adoption = Adoption.CARRY) -> LearnerStage:
    """It has adopted this version of fragment 0 from the first life of the syncer."""
    stage = training(options(), adoption)
    stage.step()
    stage.publish(0, version)
    stage.fetched(0, version, payload=7)
    stage.step()
    assert stage.core.versions == (version, 0)
    return stage


def test_where_nothing_is_lost_it_goes_on_with_what_it_has() -> None:
    stage = adopted(3)
    stage.step()
    stage.return_to(life=2, kept=3, version=3)
    assert stage.core.may_step and stage.core.versions == (3, 0)
    stage.step()
    assert stage.core.state is LearnerState.TRAINING and stage.core.versions == (3, 0)


def test_where_its_version_is_lost_it_finishes_its_step_and_loads_what_the_syncer_has() -> None:
    """The progress it had is overwritten: it was made from a value that nobody else has any more."""
    stage = adopted(3)
    wanted = stage.return_to(life=2, kept=2, version=2)
    assert only(Fetch, wanted) == [Fetch(notice(0, 2)), Fetch(notice(1, 2))]
    assert stage.core.may_step
    assert only(Adopt, stage.fetched(0, 2, payload=8)) == []
    stage.step()
    assert stage.core.state is LearnerState.LOADING and not stage.core.may_step
    loaded = stage.fetched(1, 2, payload=9)
    assert only(Adopt, loaded) == [Adopt(0, 2, 8, load=True), Adopt(1, 2, 9, load=True)]
    assert stage.core.may_step and stage.core.versions == (2, 2)
    assert (stage.last_progress.c_tokens, stage.last_progress.overwritten) == ((0, 0), (30, 30))


def test_all_of_them_may_have_come_before_the_step_ends() -> None:
    stage = adopted(3)
    stage.return_to(life=2, kept=2, version=2)
    for fragment in (0, 1):
        stage.fetched(fragment, 2, payload=8 + fragment)
    wanted = stage.step()
    assert [each.version for each in only(Adopt, wanted)] == [2, 2] and stage.core.may_step


def test_a_version_that_has_arrived_and_is_lost_is_thrown_away() -> None:
    stage = training()
    stage.publish(0, 3)
    stage.fetched(0, 3, payload=7)
    wanted = stage.return_to(life=2, kept=0)
    assert only(Discard, wanted) == [Discard(7)]
    assert only(Adopt, stage.step()) == []


def test_an_announcement_of_a_version_that_is_lost_is_void() -> None:
    stage = training()
    stage.publish(0, 3)
    assert only(Fetch, stage.return_to(life=2, kept=0)) == []
    stage.fetched(0, 3, payload=7)
    assert stage.core.take_actions() == [] and stage.of(Discard) == [Discard(7)]


def test_the_same_number_may_come_again_with_another_value() -> None:
    stage = adopted(3)
    stage.return_to(life=2, kept=2, version=2)
    stage.step()
    for fragment in (0, 1):
        stage.fetched(fragment, 2, payload=8 + fragment)
    assert only(Fetch, stage.publish(0, 3)) == [Fetch(notice(0, 3))]
    stage.fetched(0, 3, payload=10)
    stage.step()
    assert stage.core.versions == (3, 2)
    stage.return_to(life=3, kept=3, version=3)  # of the second life, which the third has kept
    stage.step()
    assert stage.core.state is LearnerState.TRAINING


def test_what_it_has_adopted_and_not_reported_is_told_also_if_it_is_lost() -> None:
    for kept, source in ((3, Source.ADOPTED), (2, Source.LOST)):
        stage = training(options(), Adoption.CARRY)
        stage.step()
        stage.publish(0, 3)
        stage.fetched(0, 3)
        stage.tell(Disconnected())
        stage.step()
        assert stage.core.versions == (3, 0)
        stage.tell(Connected())
        stage.welcome(life=2, kept=kept, version=kept)
        stage.step()
        news = [(each.fragment, each.version, each.source) for each in adoptions(stage.last_progress)]
        assert news[0] == (0, 3, source)


def test_the_same_syncer_with_an_older_version_has_forgotten_the_run() -> None:
    stage = adopted(3)
    (done,) = only(Done, stage.return_to(version=2))
    assert done.failed and "gone back behind" in done.reason


# ----------------------------------------------------------------------------------------------- the end, and the lease


def test_finish_is_void_in_another_life() -> None:
    """Perhaps that was not saved; if the run ends still, it says so again."""
    stage = training()
    stage.tell(Finish())
    stage.return_to(life=2, kept=0)
    stage.step()
    assert stage.core.state is LearnerState.TRAINING


def test_who_takes_no_more_steps_takes_them_again() -> None:
    stage = training()
    stage.tell(Finish())
    stage.step()
    assert not stage.core.may_step
    stage.return_to(life=2, kept=0)
    assert stage.core.may_step
    stage.tell(Finish())
    stage.step()
    assert stage.core.state is LearnerState.FINISHING and stage.last_progress.last


def test_finish_is_not_void_after_a_mere_broken_connection() -> None:
    stage = training()
    stage.tell(Finish())
    stage.step()
    stage.return_to()
    assert stage.core.state is LearnerState.FINISHING


def test_a_welcome_is_answered_at_once() -> None:
    """It may have waited until it was saved, and the lease began with the question."""
    stage = training()
    assert sent(stage.return_to(life=2, kept=0))[-1] == Heartbeat("a", 1)
    stage.tell(Finish())
    stage.step()
    last = sent(stage.return_to(life=2, kept=0))[-1]
    assert isinstance(last, Heartbeat | Progress)

"""How a learner comes by a new version, when it takes it, and what is left of its own progress then."""

from __future__ import annotations

import msgspec
import pytest

from support.core_builders import LEASE_NS, options
from support.learner_stage import LearnerStage, adoptions, notice, only, training
from unlockstep.core.actions import Adopt, Discard, Done, Fetch, TakeSnapshot, Upload
from unlockstep.core.adoption import Adoption
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    FetchFailed,
    GoneBack,
    Pull,
    Stop,
    VersionNotice,
    Welcome,
)
from unlockstep.core.options import Participation

# ----------------------------------------------------------------------------------------------- adopting


def test_a_published_version_is_fetched_and_adopted_between_two_steps() -> None:
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    assert stage.publish(0, 1) == [Fetch(notice(0, 1))]
    assert stage.fetched(0, 1, payload=4) == []  # a step is in progress
    wanted = stage.step()
    assert only(Adopt, wanted) == [Adopt(0, 1, 4, load=False)]
    assert stage.core.versions == (1, 0)
    (adopted,) = adoptions(stage.last_progress)
    assert (adopted.fragment, adopted.version, adopted.digest) == (0, 1, "digest-0-1")
    stage.step()
    assert adoptions(stage.last_progress) == []


def test_the_next_contribution_starts_from_the_version_adopted() -> None:
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    stage.publish(0, 1)
    stage.fetched(0, 1)
    stage.step()
    stage.step()
    (upload,) = only(Upload, stage.tell(Pull(2, 0)))
    assert (upload.base_version, upload.c_steps) == (1, 1)


@pytest.mark.parametrize(
    ("adoption", "alpha", "steps", "tokens", "overwritten"),
    [
        (Adoption.OVERWRITE, 0.5, 0, 0, 20),
        (Adoption.CARRY, 0.5, 2, 20, 0),
        (Adoption.BLEND, 0.5, 1, 10, 10),
        (Adoption.BLEND, 0.25, 1, 5, 15),
    ],
)
def test_adopted_in_mid_interval_only_what_is_kept_counts_on(
    adoption: Adoption, alpha: float, steps: int, tokens: int, overwritten: int
) -> None:
    """C36: of ten steps four are handed over and two more taken before the new version comes at step 6."""
    stage = training(adoption=adoption, alpha=alpha)
    for _ in range(4):
        stage.step()
    stage.tell(Pull(0, 0))
    stage.step()
    stage.publish(0, 1)
    stage.fetched(0, 1)
    stage.step()
    progress = stage.last_progress
    assert (progress.c_steps, progress.c_tokens) == ((steps, 6), (tokens, 60))
    assert progress.overwritten == (overwritten, 0)
    for _ in range(4):
        stage.step()
    (upload,) = only(Upload, stage.tell(Pull(2, 0)))
    assert (upload.base_version, upload.c_steps, upload.c_tokens) == (1, steps + 4, tokens + 40)


def test_overwritten_tokens_add_up_over_the_life_of_a_process() -> None:
    stage = training()
    for version, round in ((1, 0), (2, 2)):
        stage.step()
        stage.tell(Pull(round, 0))
        stage.publish(0, version)
        stage.fetched(0, version)
        stage.step()
    assert stage.last_progress.overwritten == (20, 0)


@pytest.mark.parametrize("adoption", [Adoption.OVERWRITE, Adoption.BLEND])
def test_progress_never_handed_over_is_handed_over_before_it_is_overwritten(adoption: Adoption) -> None:
    """A learner many times slower than the others would lose every step of its to the next version."""
    stage = training(adoption=adoption)
    stage.publish(0, 1)
    stage.fetched(0, 1, payload=4)
    assert only(Adopt, stage.step()) == []
    assert stage.core.versions == (0, 0)
    (upload,) = only(Upload, stage.tell(Pull(0, 0)))
    assert (upload.c_steps, upload.base_version) == (1, 0)
    assert only(Adopt, stage.step()) == [Adopt(0, 1, 4, load=False)]


def test_carry_adopts_at_once_because_it_loses_nothing() -> None:
    stage = training(adoption=Adoption.CARRY)
    stage.publish(0, 1)
    stage.fetched(0, 1, payload=4)
    assert only(Adopt, stage.step()) == [Adopt(0, 1, 4, load=False)]
    assert stage.last_progress.c_steps == (1, 1)


def test_under_fresh_nobody_waits_to_be_asked() -> None:
    """The paper's rule: what was not asked for is overwritten."""
    stage = training(options(participation=Participation.FRESH))
    stage.publish(0, 1)
    stage.fetched(0, 1)
    assert len(only(Adopt, stage.step())) == 1


def test_a_pull_that_had_to_wait_is_answered_before_the_version_that_has_arrived_is_adopted() -> None:
    stage = training()
    stage.tell(Pull(0, 0))
    stage.publish(0, 1)
    stage.fetched(0, 1, payload=4)
    kinds = [action for action in stage.step() if isinstance(action, TakeSnapshot | Upload | Adopt)]
    assert kinds[:3] == [TakeSnapshot(0), Upload(0, 0, 1, 0, 1, 10, 10, steps=1, deed=4), Adopt(0, 1, 4, load=False)]


def test_adopting_takes_over_the_syncer_s_clock_if_it_is_ahead() -> None:
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    stage.publish(0, 1, clock=50)
    stage.fetched(0, 1)
    assert stage.core.clock == 1
    stage.step()
    assert stage.core.clock == 50
    stage.step()
    assert (stage.core.clock, stage.last_progress.clock) == (51, 51)


def test_adopting_never_moves_the_clock_back() -> None:
    stage = training()
    for _ in range(5):
        stage.step()
    stage.tell(Pull(0, 0))
    stage.publish(0, 1, clock=2)
    stage.fetched(0, 1)
    stage.step()
    assert stage.core.clock == 6


def test_the_clock_adopted_is_that_of_the_version_adopted() -> None:
    stage = training()
    stage.step()
    stage.tell(Pull(0, 0))
    stage.publish(0, 1, clock=20)
    stage.publish(0, 2, clock=30)
    stage.fetched(0, 1)
    stage.step()
    assert stage.core.clock == 20


# ----------------------------------------------------------------------------------------------- fetching


def test_a_version_is_fetched_once_however_often_it_is_announced() -> None:
    stage = training()
    assert stage.publish(0, 1) == [Fetch(notice(0, 1))]
    assert stage.publish(0, 1) == []
    stage.fetched(0, 1)
    assert stage.publish(0, 1) == []
    assert stage.publish(0, 0) == []


def test_a_newer_version_is_fetched_when_the_one_on_its_way_has_arrived_and_takes_its_place() -> None:
    stage = training()
    stage.publish(0, 1)
    assert stage.publish(0, 2) == []
    assert stage.publish(0, 3) == []
    assert stage.fetched(0, 1, payload=4) == [Fetch(notice(0, 3))]
    assert stage.fetched(0, 3, payload=5) == [Discard(4)]
    stage.step()
    stage.tell(Pull(0, 0))
    assert only(Adopt, stage.step()) == [Adopt(0, 3, 5, load=False)]


def test_a_version_that_can_no_longer_be_had_is_replaced_by_a_newer_one_at_once() -> None:
    """C40"""
    stage = training()
    stage.publish(0, 1)
    stage.publish(0, 2)
    assert stage.tell(FetchFailed(0, 1)) == [Fetch(notice(0, 2))]


def test_a_failed_fetch_is_tried_again_when_there_is_time() -> None:
    stage = training()
    stage.publish(0, 1)
    assert stage.tell(FetchFailed(0, 1)) == []
    wanted = stage.wait(LEASE_NS // 3)
    assert Fetch(notice(0, 1)) in wanted


def test_a_failed_fetch_is_tried_again_when_anything_is_published() -> None:
    """A learner that reports steps has no need of heartbeats."""
    stage = training()
    stage.publish(0, 1)
    stage.tell(FetchFailed(0, 1))
    assert stage.publish(1, 1) == [Fetch(notice(0, 1)), Fetch(notice(1, 1))]


def test_the_failure_of_a_fetch_given_up_long_ago_means_nothing() -> None:
    stage = training()
    stage.publish(0, 1)
    stage.tell(Disconnected())
    assert stage.tell(FetchFailed(0, 1)) == []
    stage.tell(Connected())
    assert only(Fetch, stage.welcome(version=1)) == [Fetch(notice(0, 1)), Fetch(notice(1, 1))]


def test_a_body_nobody_waits_for_is_discarded() -> None:
    stage = training()
    assert stage.fetched(0, 0, payload=7) == [Discard(7)]


def test_every_body_fetched_is_adopted_or_discarded() -> None:
    stage = training()
    stage.publish(0, 1)
    stage.fetched(0, 1, payload=4)
    stage.publish(1, 1)
    wanted = stage.tell(Stop("over"))
    assert wanted == [Discard(4), Done("over", failed=False)]


# ----------------------------------------------------------------------------------------------- the run goes back


def rolled_back(fragment: int, version: int) -> VersionNotice:
    return msgspec.structs.replace(notice(fragment, version), void_below=version)


def gone_back(version: int) -> GoneBack:
    return GoneBack(tuple(rolled_back(fragment, version) for fragment in range(2)), 0)


@pytest.mark.parametrize("adoption", list(Adoption))
def test_when_the_run_goes_back_a_learner_loads_every_fragment_at_its_next_boundary(adoption: Adoption) -> None:
    """C9: what it has made since counts as overwritten, also if it would carry it otherwise."""
    stage = LearnerStage(adoption=adoption)
    stage.tell(Connected())
    stage.welcome(version=3)
    for fragment in range(2):
        stage.fetched(fragment, 3, payload=fragment)
    stage.step()
    stage.tell(gone_back(4))
    for fragment in range(2):
        stage.fetched(fragment, 4, payload=10 + fragment)
    assert stage.core.may_step  # a step is under way
    wanted = stage.step()
    assert only(Adopt, wanted) == [Adopt(fragment, 4, 10 + fragment, load=True) for fragment in range(2)]
    assert stage.core.may_step
    assert stage.last_progress.overwritten == (20, 20)
    assert stage.last_progress.c_tokens == (0, 0)


def test_a_learner_takes_no_step_between_versions_of_before_and_after() -> None:
    """C9"""
    stage = training()
    stage.tell(gone_back(1))
    stage.fetched(0, 1, payload=4)
    stage.step()
    assert not stage.core.may_step
    wanted = stage.fetched(1, 1, payload=5)
    assert len(only(Adopt, wanted)) == 2
    assert stage.core.may_step


def test_who_has_missed_it_loads_with_whatever_version_it_hears_of_next() -> None:
    stage = training()
    stage.tell(Disconnected())
    stage.tell(Connected())
    later = tuple(msgspec.structs.replace(notice(fragment, 5), void_below=3) for fragment in range(2))
    stage.tell(Welcome(1, 0, LEASE_NS, later, False, 0, "id"))
    for fragment in range(2):
        stage.fetched(fragment, 5, payload=fragment)
    wanted = stage.step()
    assert [action.load for action in only(Adopt, wanted)] == [True, True]


def test_a_version_that_is_void_when_it_arrives_is_not_taken() -> None:
    stage = training()
    stage.publish(0, 1)  # is being fetched
    stage.publish(1, 1)
    stage.fetched(1, 1, payload=7)  # is here
    wanted = stage.tell(gone_back(2))
    assert Discard(7) in wanted
    wanted = stage.fetched(0, 1, payload=8)
    assert wanted == [Discard(8), Fetch(rolled_back(0, 2))]
    stage.fetched(0, 2, payload=9)
    stage.fetched(1, 2, payload=10)
    assert [action.payload for action in only(Adopt, stage.step())] == [9, 10]

"""A new process takes the state of a learner that trains; whatever fails, it begins, with a complete set."""

from __future__ import annotations

import pytest

from support.core_builders import LEASE_NS, options
from support.learner_stage import LearnerStage, adoptions, notice, only, sent
from unlockstep.core.actions import Adopt, Discard, FetchState, LoadState, TakeSnapshot, TakeState, Upload
from unlockstep.core.deeds import Moment
from unlockstep.core.learner import LearnerState
from unlockstep.core.messages import (
    CheckpointLoaded,
    Connected,
    Disconnected,
    NoDonor,
    Progress,
    Pull,
    StateAsked,
    StateComing,
    StateDeclined,
    StateFetched,
    StateFetchFailed,
    StateLoaded,
    StateNotTaken,
    StateReady,
    StateUnfit,
    StateWanted,
    VersionNotice,
    Welcome,
)
from unlockstep.core.reasons import Recovered
from unlockstep.core.recovery import ASKS_MAX, PATIENCE_LEASES, is_near

TICKET = 7
STATE = 99
"""Payload of a fetched state."""


def asking(version: int = 5) -> LearnerStage:
    """A new process that has asked, every fragment being at this version."""
    stage = LearnerStage(has_state=True)
    stage.tell(Connected())
    stage.welcome(version=version, clock=20)
    assert stage.said(StateWanted) == [StateWanted("a", 1)]
    return stage


def fetching(version: int = 5) -> LearnerStage:
    stage = asking(version)
    assert only(FetchState, stage.tell(StateReady(TICKET, "digest", 1000))) == [FetchState(TICKET, "digest", 1000)]
    return stage


def state(*versions: int, clock: int = 30) -> StateFetched:
    return StateFetched(
        TICKET, tuple(notice(p, version) for p, version in enumerate(versions)), clock, STATE, Moment("donor", 1, 9, 9)
    )


def fetch_all(stage: LearnerStage, version: int = 5) -> None:
    for fragment in range(2):
        stage.fetched(fragment, version, payload=fragment)


# ----------------------------------------------------------------------------------------------- with a donor


def test_it_does_not_begin_with_the_syncers_versions_while_a_donor_may_give_more() -> None:
    stage = asking()
    fetch_all(stage)
    assert stage.core.state is LearnerState.LOADING and not stage.of(Adopt)


def test_what_a_donor_gives_is_loaded_before_the_first_step_with_its_versions() -> None:
    stage = fetching()
    assert only(LoadState, stage.tell(state(5, 5))) == [LoadState(STATE, (0, 1))]
    assert stage.core.state is LearnerState.LOADING, "nothing is loaded yet"
    stage.tell(StateLoaded())
    assert stage.core.may_step
    assert stage.core.versions == (5, 5)
    assert stage.last_progress.recovered is Recovered.DONOR
    assert [(each.fragment, each.version) for each in adoptions(stage.last_progress)] == [(0, 5), (1, 5)]


@pytest.mark.parametrize(
    ("donor", "clock"),
    [
        pytest.param(12, 20, id="one that is behind, to whom it does not go back"),
        pytest.param(25, 25, id="one that is ahead"),
        pytest.param(9999, 26, id="one far ahead, alone: no further than the run, which would jump there with it"),
    ],
)
def test_its_clock_is_the_donors_within_what_the_syncer_has_told(donor: int, clock: int) -> None:
    stage = fetching()
    stage.publish(0, 6, clock=26)
    stage.tell(state(5, 5, clock=donor))
    stage.tell(StateLoaded())
    assert stage.core.clock == clock


def test_nothing_of_what_the_donor_has_trained_is_its_own_to_hand_over() -> None:
    stage = fetching()
    stage.tell(state(5, 5))
    stage.tell(StateLoaded())
    assert stage.last_progress.c_steps == (0, 0) and stage.last_progress.c_tokens == (0, 0)
    stage.step(tokens=10)
    stage.tell(Pull(0, 0))
    assert [(made.base_version, made.c_steps, made.c_tokens) for made in stage.of(Upload)] == [(5, 1, 10)]


def test_a_fragment_more_than_one_version_behind_is_the_syncers_and_waited_for() -> None:
    stage = fetching(version=5)
    assert not only(LoadState, stage.tell(state(3, 4))), "fragment 0 is two behind, and has not come"
    assert only(LoadState, stage.fetched(0, 5)) == [LoadState(STATE, (1,))]
    wanted = stage.tell(StateLoaded())
    assert [(each.fragment, each.version, each.load) for each in only(Adopt, wanted)] == [(0, 5, True)]
    assert stage.core.may_step and stage.core.versions == (5, 4)


def test_a_newer_version_that_is_here_is_adopted_as_usual_at_the_first_boundary() -> None:
    stage = fetching(version=5)
    fetch_all(stage)
    stage.tell(state(4, 5))
    stage.tell(StateLoaded())
    assert stage.core.versions == (4, 5)
    assert stage.of(Discard) == [Discard(1)], "of fragment 1 nothing newer was here"
    stage.step()
    stage.tell(Pull(0, 0))
    assert [(each.fragment, each.version, each.load) for each in only(Adopt, stage.step())] == [(0, 5, False)]


@pytest.mark.parametrize(
    ("given", "newest", "near"),
    [
        (VersionNotice(0, 5, "x"), VersionNotice(0, 5, "x"), True),
        (VersionNotice(0, 5, "y"), VersionNotice(0, 5, "x"), False),
        (VersionNotice(0, 4, "x"), VersionNotice(0, 5, "y"), True),
        (VersionNotice(0, 3, "x"), VersionNotice(0, 5, "y"), False),
        (VersionNotice(0, 6, "x"), VersionNotice(0, 5, "y"), True),
        (VersionNotice(0, 5, ""), VersionNotice(0, 5, "x"), False),
        (VersionNotice(0, 5, "x"), None, False),
    ],
)
def test_a_version_is_near_that_is_known_and_at_most_one_behind(
    given: VersionNotice, newest: VersionNotice | None, near: bool
) -> None:
    assert is_near(given, newest) is near


# ----------------------------------------------------------------------------------------------- without


def test_without_any_donor_it_begins_with_the_syncers_versions() -> None:
    stage = asking()
    fetch_all(stage)
    wanted = stage.tell(NoDonor("nobody is here"))
    assert len(only(Adopt, wanted)) == 2 and stage.core.may_step
    assert stage.last_progress.recovered is Recovered.SYNCER
    assert stage.core.recovery.why == "nobody is here"


def test_a_state_that_does_not_fit_is_passed_over_for_the_syncers_versions() -> None:
    stage = fetching()
    fetch_all(stage)
    stage.tell(state(5, 5))
    wanted = stage.tell(StateUnfit("another optimizer"))
    assert len(only(Adopt, wanted)) == 2 and not only(Discard, wanted)
    assert stage.last_progress.recovered is Recovered.SYNCER
    assert stage.core.recovery.was_unfit and "another optimizer" in stage.core.recovery.why
    assert len(stage.said(StateWanted)) == 1, "another donor has the same optimizer"


def test_after_a_state_that_could_not_be_fetched_it_asks_for_another_so_often_and_no_more() -> None:
    stage = fetching()
    fetch_all(stage)
    for number in range(1, ASKS_MAX):
        assert sent(stage.tell(StateFetchFailed(TICKET))) == [StateWanted("a", 1, failed=TICKET)], number
        stage.tell(StateReady(TICKET, "digest", 1000))
    assert not only(Progress, sent(stage.actions))  # type: ignore[arg-type]
    stage.tell(StateFetchFailed(TICKET))
    assert stage.core.may_step and stage.last_progress.recovered is Recovered.SYNCER


def test_it_waits_two_leases_for_a_sign_and_as_much_longer_as_it_is_told() -> None:
    stage = asking()
    fetch_all(stage)
    stage.wait(PATIENCE_LEASES * LEASE_NS - 1)
    stage.tell(StateComing(TICKET, within_ns=LEASE_NS))
    stage.wait((PATIENCE_LEASES + 1) * LEASE_NS - 1)
    assert not stage.core.may_step
    stage.wait(1)
    assert stage.core.may_step and stage.last_progress.recovered is Recovered.SYNCER


def test_what_comes_when_it_has_begun_is_thrown_away() -> None:
    stage = fetching()
    fetch_all(stage)
    stage.tell(NoDonor("it was not fetched in time"))
    assert stage.core.may_step
    assert stage.tell(state(5, 5)) == [Discard(STATE)]


def test_when_the_connection_breaks_it_asks_anew_and_a_state_of_the_old_promise_is_void() -> None:
    stage = fetching()
    stage.tell(Disconnected())
    assert stage.tell(state(5, 5)) == [Discard(STATE)]
    stage.tell(Connected())
    stage.welcome(version=5)
    assert stage.said(StateWanted) == [StateWanted("a", 1), StateWanted("a", 1)]


def test_if_no_connection_comes_back_it_begins_alone() -> None:
    stage = asking()
    fetch_all(stage)
    stage.tell(Disconnected())
    stage.wait(PATIENCE_LEASES * LEASE_NS)
    assert stage.core.may_step


def test_another_life_of_the_syncer_voids_a_state_that_waits_for_fragments() -> None:
    stage = fetching()
    stage.tell(state(3, 5))
    stage.tell(Disconnected())
    stage.tell(Connected())
    versions = tuple(notice(fragment, 5) for fragment in range(2))
    wanted = stage.tell(Welcome(1, 20, LEASE_NS, versions, False, 0, "id", life=2, versions_kept=(5, 5)))
    assert Discard(STATE) in wanted and StateWanted("a", 1) in sent(wanted)


def test_versions_of_another_life_of_the_syncer_do_not_stay_loaded() -> None:
    """The syncer has died and forgotten while the state was being written: its versions are taken instead."""
    stage = fetching()
    stage.tell(state(5, 5))
    stage.tell(Disconnected())
    stage.tell(Connected())
    versions = tuple(notice(fragment, 4) for fragment in range(2))
    stage.tell(Welcome(1, 20, LEASE_NS, versions, False, 0, "id", life=2, versions_kept=(4, 4)))
    stage.tell(StateLoaded())
    assert not stage.core.may_step
    fetch_all(stage, version=4)
    assert stage.core.may_step and stage.core.versions == (4, 4)


def test_a_checkpoint_is_told_of_from_the_first_step_on() -> None:
    stage = asking()
    fetch_all(stage)
    stage.tell(NoDonor("nobody is here"))
    stage.tell(CheckpointLoaded(Moment("a", 1, 5, 5)))
    stage.step()
    assert stage.last_progress.recovered is Recovered.CHECKPOINT


def test_who_begins_a_run_asks_nobody() -> None:
    stage = LearnerStage(has_state=True)
    stage.tell(Connected())
    stage.welcome(version=-1, seed=True)
    assert not stage.said(StateWanted)


def test_who_cannot_load_a_state_asks_nobody() -> None:
    stage = LearnerStage()
    stage.tell(Connected())
    stage.welcome(version=5)
    fetch_all(stage)
    assert not stage.said(StateWanted) and stage.core.may_step


# ----------------------------------------------------------------------------------------------- as a donor


def donor() -> LearnerStage:
    stage = asking()
    fetch_all(stage)
    stage.tell(NoDonor("nobody is here"))
    stage.step()
    return stage


def test_a_donor_copies_at_its_next_boundary_when_all_adoptions_are_done() -> None:
    stage = donor()
    stage.publish(0, 6)
    stage.tell(Pull(0, 0))
    stage.fetched(0, 6)
    assert not only(TakeState, stage.tell(StateAsked(TICKET))), "in the middle of a step nothing is copied"
    wanted = stage.step()
    assert [action for action in wanted if isinstance(action, Adopt | TakeState)] == [
        only(Adopt, wanted)[0],
        TakeState(TICKET, (notice(0, 6), notice(1, 5)), stage.core.clock, stage.core.moment),
    ]
    assert not only(TakeState, stage.step()), "it copies once"


def test_who_does_not_train_or_cannot_copy_declines() -> None:
    stage = asking()
    assert sent(stage.tell(StateAsked(TICKET))) == [StateDeclined("a", 1, TICKET)]
    stage = donor()
    stage.tell(StateAsked(TICKET))
    stage.step()
    assert sent(stage.tell(StateNotTaken(TICKET))) == [StateDeclined("a", 1, TICKET)]


def test_copies_ahead_of_rounds_go_on_beside_it() -> None:
    stage = LearnerStage(options(), has_state=True)
    stage.tell(Connected())
    stage.welcome()
    fetch_all(stage, version=0)
    stage.tell(NoDonor("nobody is here"))
    stage.tell(StateAsked(TICKET))
    assert only(TakeSnapshot, stage.step())

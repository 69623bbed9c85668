"""The syncer goes back to an earlier record: what that does to versions, rounds, contributions and the ledger."""

from __future__ import annotations

import math

import pytest

from support.syncer_stage import SyncerStage, commit_rounds, running
from unlockstep.checkers import check, imbalances
from unlockstep.core.actions import GoBack
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.events import ContributionRefused, LossSpiked, RolledBack, RoundClosed, RoundOpened
from unlockstep.core.messages import Committed, Evaluation, GoneBack, Pull, Recorded, Settled, VersionNotice, WentBack
from unlockstep.core.options import RollbackOptions
from unlockstep.core.reasons import RefusalReason
from unlockstep.report.accounting import account


def evaluate(stage: SyncerStage, loss: float) -> None:
    stage.tell(Evaluation("judge", 0, loss, loss, stage.versions))


def watched(**changes: object) -> SyncerStage:
    """Three rounds are committed, each followed by a record and a good evaluation: ``a`` and ``b`` take part."""
    stage = running("a", "b", rollback=RollbackOptions(spike_factor=2.0), **changes)
    for number in range(1, 4):
        commit_rounds(stage, 1, "a", "b")
        stage.tell(Recorded(number, stage.versions))
        evaluate(stage, 1.0)
    return stage


def earlier(stage: SyncerStage) -> tuple[VersionNotice, ...]:
    """What the host answers with."""
    return tuple(
        VersionNotice(fragment, version + 1, f"earlier-{fragment}-{version + 1}")
        for fragment, version in enumerate(stage.versions)
    )


def gone_back(stage: SyncerStage) -> SyncerStage:
    evaluate(stage, math.nan)
    (asked,) = stage.acted(GoBack)
    stage.tell(WentBack(asked.record, earlier(stage)))
    return stage


def test_a_spike_is_answered_with_new_versions_of_every_fragment() -> None:
    """C9"""
    stage = watched()
    before = stage.versions
    stage = gone_back(stage)
    assert stage.acted(GoBack) == [GoBack(3)]  # the evaluation has scored just what record 3 holds
    assert stage.versions == tuple(version + 1 for version in before)
    for fragment, notice in enumerate(stage.core.notices):
        assert notice.void_below == notice.version
        assert notice.digest.startswith(f"earlier-{fragment}")
    assert stage.puppets["a"].heard_of(GoneBack) == [GoneBack(stage.core.notices, stage.core.status(0).clock)]
    (event,) = stage.of(RolledBack)
    assert (event.record, event.versions, event.level) == (3, stage.versions, 1.0)
    assert stage.core.status(stage.now_ns).rollbacks == 1


def test_rounds_in_flight_begin_anew_and_their_contributions_are_void() -> None:
    """C9"""
    stage = watched(quorum=2)
    for name in "ab":
        stage.step(name, clock=stage.puppets["a"].clock + 2 if name == "a" else stage.puppets["a"].clock)
    number = stage.of(RoundOpened)[-1].round
    given = stage.contribute("a", round=number)
    gone_back(stage)
    assert [event.round for event in stage.of(RoundOpened)][-2:] == [number, number]
    assert given.payload in stage.released
    told = stage.puppets["a"].heard_of(Settled)[-1]
    assert (told.tokens, told.refusal) == (given.tokens, RefusalReason.ROLLED_BACK)
    assert stage.ledger.refused == {"rolled_back": given.c_tokens / 2}
    assert not list(imbalances(stage.ledger))


def test_what_was_made_from_an_earlier_version_is_refused_and_no_strike() -> None:
    """C9"""
    stage = watched()
    base = stage.versions
    gone_back(stage)
    for _ in range(4):
        for name in "ab":
            stage.step(name, clock=stage.puppets["a"].clock + 2 if name == "a" else stage.puppets["a"].clock)
        pull = stage.puppets["b"].heard_of(Pull)[-1]
        stage.contribute("b", round=pull.round, base_version=base[pull.fragment])
        refused = stage.of(ContributionRefused)[-1]
        assert (refused.reason, refused.strikes) == (RefusalReason.ROLLED_BACK, 0)
    assert stage.states["b"] == "live"
    stage.contribute("a", round=pull.round)
    stage.step("b")
    stage.contribute("b", round=pull.round)
    stage.commit()
    assert stage.core.notices[pull.fragment].version == base[pull.fragment] + 2
    assert stage.core.notices[pull.fragment].void_below == base[pull.fragment] + 1


def test_nothing_opens_or_closes_while_the_record_is_read_and_commits_under_way_come_first() -> None:
    stage = watched()
    clock = stage.puppets["a"].clock + 2
    for name in "ab":
        stage.step(name, clock=clock)
    for name in "ab":
        stage.contribute(name, round=stage.of(RoundOpened)[-1].round)
    (made,) = stage.commits
    evaluate(stage, math.nan)
    opened, closed = len(stage.of(RoundOpened)), len(stage.of(RoundClosed))
    with pytest.raises(LocalProtocolError):
        stage.tell(WentBack(3, earlier(stage)))
    stage.tell(Committed(made.round, made.fragment, made.version, "digest", norm=1.0))
    for name in "ab":
        stage.step(name, clock=clock + 4)
    stage.wait(10**9)
    assert (len(stage.of(RoundOpened)), len(stage.of(RoundClosed))) == (opened, closed)


def test_a_record_that_cannot_be_read_is_passed_over_for_an_earlier_one() -> None:
    stage = watched()
    evaluate(stage, math.nan)
    for record in (3, 2, 1):
        assert stage.acted(GoBack)[-1].record == record
        stage.tell(WentBack(record, ()))
    assert [event.record for event in stage.of(LossSpiked)] == [3, 2, 1, 0]
    assert not stage.of(RolledBack)
    commit_rounds(stage, 1, "a", "b")
    evaluate(stage, math.nan)
    assert len(stage.acted(GoBack)) == 3


def test_an_evaluation_of_what_is_void_says_nothing() -> None:
    stage = watched()
    seen = stage.versions
    gone_back(stage)
    stage.tell(Evaluation("judge", 0, math.nan, math.nan, seen))
    assert len(stage.acted(GoBack)) == 1


def test_the_log_of_a_run_that_goes_back_breaks_no_rule() -> None:
    stage = gone_back(watched())
    commit_rounds(stage, 2, "a", "b")
    assert [each.sentence for each in check(stage.events, stage.options)] == []


def test_the_account_of_the_log_is_the_syncers_own() -> None:
    """What was accepted and not merged is refused, although no event says so of each."""
    stage = watched(quorum=2)
    for name in "ab":
        stage.step(name, clock=stage.puppets[name].clock + 2)
    number = stage.of(RoundOpened)[-1].round
    stage.contribute("a", round=number)
    stage.step("a")
    stage.contribute("a", round=number, c_steps=1, c_tokens=10)  # Its round has one of it: this one is late.
    stage = gone_back(stage)
    assert stage.ledger.refused == {"rolled_back": stage.ledger.trained - stage.ledger.merged - stage.ledger.in_flight}
    assert account(stage.events, stage.options).ledger == stage.ledger
    assert account(stage.events, stage.options).refusals == {"rolled_back": 2}
    commit_rounds(stage, 2, "a", "b")
    assert account(stage.events, stage.options).ledger == stage.ledger


def test_what_is_void_is_so_in_the_next_life_of_the_syncer() -> None:
    """C25"""
    stage = gone_back(watched())
    saved = stage.core.saved(stage.now_ns)
    assert [notice.void_below for notice in saved.notices] == list(stage.versions)
    assert {each.record for each in saved.evaluations} == {1, 2}

"""A learner that goes in order is asked for all it has; what it gives counts, though nobody waits for it."""

from __future__ import annotations

import pytest

from support.core_builders import STEP_NS
from support.syncer_stage import SyncerStage, first_round, running
from unlockstep.checkers import check
from unlockstep.core.events import (
    ContributionAccepted,
    FragmentCommitted,
    LearnerLeaving,
    RoundClosed,
    RoundOpened,
    RunFinished,
)
from unlockstep.core.messages import ContributionArrived, EndRun, Farewell, Leaving, Pull
from unlockstep.core.options import Late
from unlockstep.report.accounting import account


def leave(stage: SyncerStage, name: str) -> tuple[Pull, ...]:
    """It says that it goes; returns what it is asked for."""
    stage.tell(Leaving(name, stage.puppets[name].incarnation))
    return stage.puppets[name].heard_of(Farewell)[-1].pulls


def test_it_is_asked_for_the_open_round_and_counts_in_it() -> None:
    stage = first_round("a", "b")
    assert leave(stage, "b") == (Pull(0, 0),)  # of fragment 1 no round has opened yet
    assert stage.states["b"] == "leaving"
    stage.contribute("b", round=0)
    stage.contribute("a")
    assert stage.of(RoundClosed)[0].participants == ("a", "b")
    assert not stage.of(ContributionAccepted)[0].late


def test_nobody_waits_for_it_nor_asks_it_again() -> None:
    stage = first_round("a", "b")
    leave(stage, "b")
    stage.contribute("a")
    assert stage.of(RoundClosed)[0].participants == ("a",)
    stage.commit()
    for clock in (4, 6):
        stage.step("a", clock=clock)
    assert "b" not in stage.of(RoundOpened)[-1].asked
    assert [event.learner for event in stage.of(LearnerLeaving)] == ["b"]


@pytest.mark.parametrize("late", Late)
def test_after_its_round_has_closed_it_counts_in_the_next_one_whatever_becomes_of_others(late: Late) -> None:
    stage = first_round("a", "b", late=late)
    stage.contribute("a")
    stage.wait(STEP_NS)
    stage.commit()
    pulls = leave(stage, "b")
    assert pulls == (Pull(0, 0),)
    made = stage.contribute("b", round=0)
    assert stage.of(ContributionAccepted)[-1].late
    stage.leave("b")
    assert stage.states["b"] == "gone"
    for clock in (4, 6):
        stage.step("a", clock=clock)
        stage.contribute("a")
        stage.commit()
    committed = [event for event in stage.of(FragmentCommitted) if event.fragment == 0][-1]
    assert set(committed.weights) == {"a", "b"}
    assert stage.ledger.merged_late == made.c_tokens / 2
    assert stage.ledger.lost == 0


def test_the_last_rounds_wait_for_what_it_was_asked_for() -> None:
    """Whoever stops a run stops its learners, too: what they hand over in going is not refused for being too late."""
    stage = first_round("a", "b")
    stage.contribute("a")
    stage.contribute("b")
    stage.commit()
    stage.step("a", clock=4)
    stage.step("b", clock=4)
    stage.tell(EndRun("enough"))
    pulls = leave(stage, "b")
    stage.step("a", last=True)
    stage.contribute("a")
    stage.leave("a")
    assert stage.of(RunFinished) == []
    for pull in pulls:
        stage.contribute("b", round=pull.round)
    stage.leave("b")
    while stage.commits:
        stage.commit()
    assert [event.tokens_under_way for event in stage.of(RunFinished)] == [0]
    assert stage.ledger.refused == {}
    assert [(event.fragment, set(event.weights)) for event in stage.of(FragmentCommitted)][-2:] == [
        (1, {"a", "b"}),
        (0, {"b"}),  # Late, of an earlier round; no later one would count it.
    ]


def stopped(stage: SyncerStage, *names: str) -> list[ContributionArrived]:
    """Somebody stops the syncer and these learners: what they hand over in going, still under way when their last
    report says that they hold nothing more."""
    for name in names:
        stage.step(name, last=True)
    pulls = {name: leave(stage, name) for name in names}
    under_way = [stage.hand_over(name, round=pull.round) for name in names for pull in pulls[name]]
    for name in names:
        stage.report(name, unsettled=len(pulls[name]))
    return under_way


def test_the_last_rounds_wait_for_what_it_has_on_its_way() -> None:
    stage = first_round("a", "b")
    stage.contribute("a")
    stage.contribute("b")
    stage.commit()
    for clock in (4, 6):
        stage.step("a", clock=clock)
        stage.step("b", clock=clock)
    stage.tell(EndRun("enough"))
    for made in stopped(stage, "a", "b"):
        stage.tell(made)
    stage.leave("a")
    stage.leave("b")
    while stage.commits:
        stage.commit()
    assert len(stage.of(RunFinished)) == 1
    assert (stage.ledger.refused, stage.ledger.dropped) == ({}, 0)
    assert stage.ledger.merged + stage.ledger.merged_late == stage.ledger.trained


def test_what_came_too_late_for_the_last_rounds_stays_refused_when_the_run_goes_on() -> None:
    stage = first_round("a", "b", quorum=1)
    stage.contribute("a")
    stage.contribute("b")
    stage.commit()
    for clock in (4, 6):
        stage.step("a", clock=clock)
        stage.step("b", clock=clock)
    stage.tell(EndRun("enough"))
    of_a, of_b = stopped(stage, "a"), stopped(stage, "b")
    for made in of_a:
        stage.tell(made)
    stage.leave("a")
    stage.wait(stage.options.lease_ns // 2)
    stage.heartbeat("b")
    stage.wait(stage.options.lease_ns // 2)
    while stage.commits:
        stage.commit()
    for made in of_b:  # It is there still, though no round waits any more.
        stage.tell(made)
    stage.leave("b")
    given_up = stage.ledger
    assert given_up.refused == {"run_finished": sum(made.c_tokens for made in of_b) / 2}
    stage.die()
    stage.join("a")
    stage.step("a")
    stage.tell(EndRun("enough"))
    for made in stopped(stage, "a"):
        stage.tell(made)
    stage.leave("a")
    while stage.commits:
        stage.commit()
    assert len(stage.of(RunFinished)) == 2
    assert (stage.ledger.refused, stage.ledger.lost) == (given_up.refused, 0)
    assert check(stage.events, stage.options) == []
    assert account(stage.events, stage.options).ledger == stage.ledger


def test_its_last_report_is_heard_and_makes_it_live_no_more() -> None:
    stage = running("a", "b")
    leave(stage, "b")
    stage.step("b")
    assert stage.states["b"] == "leaving"


def test_a_process_that_is_fenced_is_told_so() -> None:
    stage = running("a", "b")
    stage.join("b")
    stage.tell(Leaving("b", 1))
    assert stage.processes[1].heard_of(Farewell) == []

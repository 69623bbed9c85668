"""What the log says of tokens that leave the books: undelivered, dropped at leaving, and all of them at the end."""

from __future__ import annotations

import msgspec

from support.syncer_stage import first_round
from unlockstep.core.events import ContributionUndelivered, Event, LearnerDeparted, RunFinished
from unlockstep.core.messages import EndRun, Undelivered


def test_a_contribution_declared_undelivered_is_told_once() -> None:
    stage = first_round("a", "b")
    lost = stage.hand_over("b")
    declared = (Undelivered(lost.round, lost.fragment, lost.c_tokens, lost.tokens),)
    stage.step("b", undelivered=declared)
    stage.step("b", undelivered=declared)
    (told,) = stage.of(ContributionUndelivered)
    assert (told.round, told.fragment, told.learner, told.c_tokens, told.tokens) == (0, 0, "b", 20, 20)


def test_one_that_has_arrived_all_the_same_is_not() -> None:
    stage = first_round("a", "b")
    made = stage.contribute("b")
    stage.step("b", undelivered=(Undelivered(made.round, made.fragment, made.c_tokens, made.tokens),))
    assert stage.of(ContributionUndelivered) == []


def test_who_leaves_declares_what_it_drops() -> None:
    stage = first_round("a", "b")
    stage.leave("b")
    assert [event.tokens_dropped for event in stage.of(LearnerDeparted)] == [(20, 20)]


def test_the_end_tells_what_became_of_all_tokens() -> None:
    stage = first_round("a")
    stage.contribute("a")
    stage.commit()
    stage.tell(EndRun("enough"))
    stage.report("a", last=True)
    stage.contribute("a")
    stage.commit()
    (finished,) = stage.of(RunFinished)
    assert finished.ledger == stage.ledger
    assert (stage.ledger.trained, stage.ledger.merged) == (30.0, 30.0)


def test_a_log_written_before_these_were_told_can_be_read() -> None:
    lines = (
        b'{"event":"LearnerDeparted","at_ns":1,"learner":"a","incarnation":1,"reason":"left"}',
        b'{"event":"RunFinished","at_ns":2,"clock":1,"versions":[1],"tokens_under_way":0}',
    )
    departed, finished = (msgspec.json.decode(line, type=Event) for line in lines)
    assert isinstance(departed, LearnerDeparted) and departed.tokens_dropped == ()
    assert isinstance(finished, RunFinished) and finished.ledger is None

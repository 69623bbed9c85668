"""The numbers of a run, from its events: each by hand on a short story, and all against the syncer's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from unlockstep.config import RunConfig, apply
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    EvaluationReported,
    Event,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLive,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
    RunFinished,
    RunFinishing,
    StepReported,
    SyncerResumed,
    TokensOverwritten,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import DepartureReason, RefusalReason, WindowReason
from unlockstep.core.status import LedgerStatus, Score, Status
from unlockstep.learners.toy import ToyBackend
from unlockstep.report.accounting import Accounting, LearnerAccount, Spread, Validation, account, spread
from unlockstep.report.presence import Absence
from unlockstep.sim.world import World
from unlockstep.tape import Kill, Restart, Slow, Tape

MS = 1_000_000


# ------------------------------------------------------------------------------------------- events, in short


def joined(at: int, learner: str = "a", incarnation: int = 1, resumed: bool = False) -> LearnerJoined:
    return LearnerJoined(at, learner, incarnation, resumed)


def live(at: int, learner: str = "a", incarnation: int = 1) -> LearnerLive:
    return LearnerLive(at, learner, incarnation)


def step(at: int, tokens: int, learner: str = "a", step_ns: int = 1, incarnation: int = 1) -> StepReported:
    return StepReported(at, learner, incarnation, 1, 1, tokens, step_ns, 2.0)


def opened(at: int, round: int = 0, fragment: int = 0) -> RoundOpened:
    return RoundOpened(at, round, fragment, round, 1, ())


def accepted(at: int, tokens: int, learner: str = "a", round: int = 0, **changes: Any) -> ContributionAccepted:
    made = ContributionAccepted(at, round, 0, learner, 1, 0, 0, 1, tokens, tokens, 1.0, False)
    return msgspec.structs.replace(made, **changes)


def refused(at: int, tokens: int, reason: RefusalReason, incarnation: int = 1) -> ContributionRefused:
    return ContributionRefused(at, 0, 0, "a", incarnation, tokens, tokens, reason, 0)


def closed(
    at: int, participants: Sequence[str] = ("a",), live: int = 1, round: int = 0, open_ns: int = 1
) -> RoundClosed:
    return RoundClosed(at, round, 0, WindowReason.EVERYONE_IN, "", tuple(participants), live, open_ns, 0, 0)


def committed(at: int, round: int = 0, commit_ns: int = 1) -> FragmentCommitted:
    return FragmentCommitted(at, round, 0, 1, "", 1.0, {"a": 1.0}, 0, commit_ns)


def finished(at: int, clock: int = 1) -> RunFinished:
    return RunFinished(at, clock, (1,), 0)


def tell(*events: Event) -> Accounting:
    """The accounting of a run with one fragment."""
    return account(events, ProtocolOptions(fragments=1))


def only(accounting: Accounting) -> LearnerAccount:
    (learner,) = accounting.learners
    return learner


START = (joined(0), live(1), step(1, tokens=10))


# ------------------------------------------------------------------------------------------- tokens


def test_tokens_are_in_flight_until_they_are_merged() -> None:
    story = [*START, opened(2), accepted(3, 10), closed(4)]
    assert tell(*story).ledger.in_flight == 10
    assert tell(*story, committed(5)).ledger.merged == 10


def test_what_a_learner_holds_at_the_end_is_dropped() -> None:
    ledger = tell(*START, finished(2)).ledger
    assert (ledger.dropped, ledger.in_flight) == (10, 0)


def test_what_a_learner_does_not_hand_over_before_it_leaves_is_dropped() -> None:
    assert tell(*START, LearnerDeparted(2, "a", 1, DepartureReason.LEFT, (10,))).ledger.dropped == 10


def test_what_a_dead_learner_held_is_lost() -> None:
    story = [*START, opened(2), accepted(3, 4), LearnerDeparted(4, "a", 1, DepartureReason.LEASE_EXPIRED)]
    ledger = tell(*story, closed(5), committed(6)).ledger
    assert (ledger.merged, ledger.lost) == (4, 6)


def test_nothing_is_lost_with_a_learner_that_was_only_silent() -> None:
    silent = [*START, LearnerDeparted(2, "a", 1, DepartureReason.LEASE_EXPIRED), joined(3, incarnation=2, resumed=True)]
    ledger = tell(*silent).ledger
    assert (ledger.lost, ledger.in_flight) == (0, 10)


def test_a_new_process_counts_from_zero_again() -> None:
    again = [joined(3, incarnation=2), live(4, incarnation=2), step(4, tokens=5, incarnation=2)]
    accounting = tell(*START, LearnerDeparted(2, "a", 1, DepartureReason.SUPERSEDED), *again)
    assert accounting.ledger.trained == 15
    assert only(accounting).starts == 2
    assert only(accounting).steps == 2


def test_what_an_absent_learner_held_at_the_end_is_lost() -> None:
    ledger = tell(*START, LearnerAway(2, "a", 1), finished(3)).ledger
    assert (ledger.lost, ledger.dropped) == (10, 0)


def test_a_contribution_refused_after_its_learner_was_shut_out_is_refused_and_not_lost() -> None:
    gone = LearnerDeparted(2, "a", 1, DepartureReason.QUARANTINED)
    ledger = tell(*START, opened(2), gone, refused(3, 4, RefusalReason.QUARANTINED)).ledger
    assert (ledger.refused, ledger.lost) == ({"quarantined": 4}, 6)


def test_what_is_refused_after_a_lease_is_merged_when_it_is_handed_over_again() -> None:
    gone = LearnerDeparted(2, "a", 1, DepartureReason.LEASE_EXPIRED)
    story = [*START, opened(2), gone, refused(3, 4, RefusalReason.STALE_INCARNATION)]
    assert (tell(*story).ledger.refused, tell(*story).ledger.lost) == ({}, 10)
    back = [joined(4, incarnation=2, resumed=True), accepted(5, 4, incarnation=2), closed(6), committed(7)]
    ledger = tell(*story, *back).ledger
    assert (ledger.refused, ledger.lost, ledger.merged, ledger.in_flight) == ({}, 0, 4, 6)


def test_a_late_contribution_that_no_round_takes_is_given_up_at_the_end() -> None:
    accounting = tell(*START, opened(2), closed(3), committed(4), accepted(5, 10, late=True), finished(6))
    assert accounting.ledger.refused == {"run_finished": 10}
    assert accounting.refusals == {"run_finished": 1}


def test_a_late_contribution_is_merged_in_the_next_round_of_its_fragment() -> None:
    story = [*START, opened(2), closed(3), accepted(4, 10, late=True), committed(5)]
    assert tell(*story).ledger.merged_late == 0
    assert tell(*story, opened(6, round=1), closed(7, round=1), committed(8, round=1)).ledger.merged_late == 10


def test_a_late_contribution_joins_the_round_that_is_open_already() -> None:
    story = [*START, opened(2), closed(3), committed(4), opened(5, round=1), accepted(6, 10, late=True)]
    assert tell(*story, closed(7, round=1), committed(8, round=1)).ledger.merged_late == 10


def test_a_round_given_up_at_the_end_is_refused() -> None:
    accounting = tell(*START, opened(2), accepted(3, 10), RoundEmpty(4, 0, 0))
    assert accounting.ledger.refused == {"run_finished": 10}
    assert accounting.refusals == {"run_finished": 1}
    assert accounting.rounds_empty == 0


def test_a_round_without_weight_is_empty() -> None:
    accounting = tell(*START, opened(2), accepted(3, 0), closed(4), RoundEmpty(5, 0, 0))
    assert (accounting.rounds_empty, accounting.rounds_committed) == (1, 0)


def test_refused_tokens_are_entered_under_their_reason() -> None:
    accounting = tell(*START, opened(2), refused(2, 4, RefusalReason.NON_FINITE))
    assert accounting.ledger.refused == {"non_finite": 4}
    assert accounting.ledger.in_flight == 6


@pytest.mark.parametrize(
    "event",
    [refused(2, 4, RefusalReason.DUPLICATE), refused(2, 4, RefusalReason.STALE_INCARNATION, incarnation=7),
     refused(2, 2**40, RefusalReason.BAD_COUNTS)],
    ids=["duplicate", "of another process", "absurd"],
)  # fmt: skip
def test_a_refusal_whose_tokens_are_counted_elsewhere_is_only_counted(event: ContributionRefused) -> None:
    accounting = tell(*START, event)
    assert accounting.ledger.refused == {}
    assert accounting.refusals == {event.reason.value: 1}


def test_overwritten_tokens_are_those_the_adoptions_report() -> None:
    assert tell(*START, TokensOverwritten(2, "a", 1, 0, 3)).ledger.overwritten == 3


# ------------------------------------------------------------------------------------------- rounds


def test_participation_is_the_mean_over_rounds_of_participants_over_live_learners() -> None:
    story = [*START, joined(1, "b"), live(2, "b")]
    for number, (participants, count) in enumerate(((["a", "b"], 2), (["a"], 2))):
        story += [opened(3, number), closed(4, participants, count, number), committed(5, number)]
    accounting = tell(*story)
    assert accounting.participation == (2 / 2 + 1 / 2) / 2
    assert [learner.participation for learner in accounting.learners] == [1.0, 0.5]


def test_a_round_that_closes_while_a_learner_is_not_live_is_not_held_against_it() -> None:
    away = [LearnerAway(2, "a", 1), opened(3), closed(4, ["b"]), committed(5)]
    a, b = tell(*START, joined(1, "b"), live(1, "b"), *away).learners
    assert (a.rounds_live, a.participation) == (0, None)
    assert (b.rounds_live, b.participation) == (1, 1.0)


def test_durations_of_rounds_and_commits() -> None:
    story = [*START]
    for number, ns in enumerate((10, 20, 60)):
        closing, committing = closed(3, round=number, open_ns=ns), committed(4, number, commit_ns=2 * ns)
        story += [opened(2, number), closing, committing]
    accounting = tell(*story)
    assert accounting.open_by_reason == {"everyone_in": Spread(3, 20, 60)}
    assert accounting.commit == Spread(3, 40, 120)


def test_staleness_is_counted_per_contribution() -> None:
    stale = accepted(3, 1, staleness=2)
    assert tell(*START, opened(2), stale, accepted(4, 1, late=True)).staleness == {0: 1, 2: 1}


# ------------------------------------------------------------------------------------------- time


def trained(*at: int, learner: str = "a") -> list[Event]:
    """A step each, of 1 ns, that are numbered as the time is."""
    return [StepReported(end, learner, 1, end, end, 10 * end, 1, 2.0) for end in at]


def back(at: int, number: int) -> list[Event]:
    """The same process joins again, and reports its next step."""
    return [joined(at - 1, resumed=True), live(at), StepReported(at, "a", 1, number, number, 10 * number, 1, 2.0)]


def test_downtime_is_time_in_which_nobody_trains() -> None:
    assert tell(*START, *trained(2, 3), LearnerAway(5, "a", 1), *back(8, 4), finished(20)).downtime_ns == 7 - 3


def test_time_without_a_syncer_is_down_if_nobody_trained_meanwhile() -> None:
    accounting = tell(*START, *trained(2, 3, 4), SyncerResumed(9, 2, 1, (0,)), *back(11, 5), finished(20))
    assert (accounting.downtime_ns, accounting.without_syncer_ns) == (10 - 4, 9 - 4)


def test_who_trained_on_without_a_syncer_or_a_connection_was_no_downtime() -> None:
    """Three steps until 4, six more that were reported when it was back, one of them by itself."""
    for gone, without_ns in ((SyncerResumed(9, 2, 1, (0,)), 9 - 4), (LearnerAway(5, "a", 1), 0)):
        accounting = tell(*START, *trained(2, 3, 4), gone, *back(11, 10), finished(20))
        assert (accounting.downtime_ns, accounting.uptime) == (1, 1 - 1 / 19)
        assert accounting.without_syncer_ns == without_ns


def test_a_step_in_which_a_process_stood_still_keeps_nobody_up_but_at_its_end() -> None:
    stood = StepReported(104, "a", 1, 5, 5, 50, 100, 2.0)
    assert tell(*START, *trained(2, 3, 4), stood, finished(200)).downtime_ns == 104 - 4 - 2


@pytest.mark.parametrize(("factor", "downtime_ns"), [(100.0, 0), (50.0, 0), (10.0, 80), (1.0, 98)])
def test_a_step_that_the_tape_slows_is_training_as_far_as_it_does(factor: float, downtime_ns: int) -> None:
    tape = Tape(name="x", learners=("a",), actions=(Slow(at_ns=4, target="a", factor=factor),), began_ns=0)
    slow = StepReported(104, "a", 1, 5, 5, 50, 100, 2.0)
    story = (*START, *trained(2, 3, 4), slow, finished(104))
    assert account(story, ProtocolOptions(fragments=1), tape).downtime_ns == downtime_ns


def test_a_slowed_step_does_not_tell_how_long_others_take() -> None:
    """One of 10 that the tape slows a hundred times was over before it could; the 3 after it are as ever."""
    actions = (Slow(at_ns=4, target="a", factor=100.0), Slow(at_ns=14, target="a", factor=1.0))
    tape = Tape(name="x", learners=("a",), actions=actions, began_ns=0)
    usual = [StepReported(at, "a", 1, at, at, at, ns, 2.0) for at, ns in ((3, 2), (13, 10), (16, 3), (19, 3))]
    assert account((*START, *usual, finished(19)), ProtocolOptions(fragments=1), tape).downtime_ns == 0


def test_the_time_between_an_orderly_stop_and_the_next_life_is_down() -> None:
    stopped = [RunFinishing(3, 1, "told to stop"), LearnerAway(4, "a", 1), finished(5)]
    resumed = [SyncerResumed(9, 2, 1, (0,)), *back(11, 4)]
    assert tell(*START, *trained(2, 3), *stopped, *resumed, finished(20)).downtime_ns == 10 - 5


def test_while_somebody_trains_nothing_is_down() -> None:
    both = [joined(1, "b"), live(2, "b"), *trained(2, learner="b"), LearnerAway(5, "a", 1)]
    assert tell(*START, *both, finished(20)).downtime_ns == 0


def test_a_run_that_breaks_off_is_down_to_its_last_event() -> None:
    accounting = tell(*START, LearnerAway(5, "a", 1), LearnerDeparted(15, "a", 1, DepartureReason.LEASE_EXPIRED))
    assert (accounting.downtime_ns, accounting.ended) == (15 - 1, False)


def test_the_first_step_of_a_process_has_no_gap_before_it() -> None:
    """It may hold a compilation, or the loading of the data."""
    steps = [step(10 * n, tokens=10 * n, step_ns=ns) for n, ns in ((2, 10), (3, 30), (4, 10))]
    learner = only(tell(joined(0), live(1), step(10, 10, step_ns=999), *steps))
    assert learner.gap == Spread(3, 10, 30)
    assert learner.gap_ratio == 3.0
    assert learner.gap_ratio_others_down is None


def test_gaps_are_also_told_for_the_time_in_which_another_learner_was_down() -> None:
    steps = [step(at, at, step_ns=ns) for at, ns in ((20, 10), (30, 10), (40, 10), (60, 20), (100, 40))]
    others = [joined(0, "b"), live(1, "b"), LearnerAway(35, "b", 1), joined(50, "b", 2), live(60, "b", 2)]
    story = sorted([joined(0), live(1), step(10, 1), *steps, *others], key=lambda event: event.at_ns)
    a, b = tell(*story).learners
    assert a.gap_ratio == 4.0
    assert a.gap_ratio_others_down == 2.0
    assert b.gap_ratio_others_down is None


def test_an_absence_runs_from_the_broken_connection_to_the_first_contribution() -> None:
    story = [*START, LearnerAway(5, "a", 1), LearnerDeparted(7, "a", 1, DepartureReason.SUPERSEDED)]
    story += [joined(7, incarnation=2), live(9, incarnation=2), opened(10), accepted(11, 0), accepted(12, 0)]
    assert tell(*story).absences == (Absence("a", 5, DepartureReason.SUPERSEDED, 7, 9, 11),)


@pytest.mark.parametrize(
    ("kill_ns", "restart_ns", "is_killed"), [(4, 6, True), (5, 6, True), (6, 7, True), (9, 20, False), (30, 40, False)]
)
def test_an_absence_is_the_doing_of_the_tape_if_it_killed_whoever_had_been_there(
    kill_ns: int, restart_ns: int, is_killed: bool
) -> None:
    """At 5 its connection was lost, at 8 it joined again: what died in between was the process of before."""
    actions = (Kill(at_ns=kill_ns, target="a"), Restart(at_ns=restart_ns, target="a"))
    tape = Tape(name="x", learners=("a",), actions=actions, began_ns=0)
    story = [*START, LearnerAway(5, "a", 1), joined(8, incarnation=2), live(9, incarnation=2)]
    (absence,) = account(story, ProtocolOptions(), tape).absences
    assert absence.killed == is_killed


def test_who_goes_when_the_run_ends_is_not_absent() -> None:
    assert tell(*START, RunFinishing(5, 1, ""), LearnerAway(6, "a", 1), finished(7)).absences == ()


def test_evaluations_after_the_end_count_and_nothing_else_does() -> None:
    scores = (Score("label", 0.5, 0.75),)
    evaluation = EvaluationReported(9, "evaluator", 1, 2.0, 1.5, (1,), scores)
    accounting = tell(*START, finished(5), evaluation, step(10, tokens=99))
    assert accounting.evaluations == (Validation(9, 1, 2.0, 1.5, scores),)
    assert accounting.ledger.trained == 10
    assert accounting.duration_ns == 5 - 1


def test_a_log_without_events_amounts_to_nothing() -> None:
    accounting = tell()
    assert accounting.ledger == LedgerStatus(0.0, 0.0, 0.0, {}, 0.0, 0.0, 0.0, 0.0)
    assert accounting.learners == ()
    assert accounting.commit == spread([]) == Spread(0, 0, 0)


# ------------------------------------------------------------------------------------------- against the syncer


def play(*overrides: str, kill: bool = True) -> tuple[Accounting, Status]:
    """A run with four learners, of which one is killed and comes back; what its log says, and what its syncer says."""
    short = ("run.steps=60", "protocol.fragments=4", "protocol.interval_steps=4", "local.learners=4")
    ring = World(apply(RunConfig(), [*short, *overrides]))

    def join(index: int) -> None:
        backend = ToyBackend(seed=index, noise=0.1, tokens_per_step=16)
        ring.join(f"learner-{index}", backend, (100 + 20 * index) * MS)

    for index in range(4):
        join(index)
    if kill:
        ring.run(1_500 * MS)
        ring.kill("learner-3")
        ring.run(2_500 * MS)
        join(3)
    ring.run()
    status = ring.core.status(ring.clock.now_ns())
    assert status.state == "finished"
    return account(ring.events, ring.config.protocol), status


def without_rest(ledger: LedgerStatus) -> LedgerStatus:
    """Dropped and in flight in one: what was on its way when the run ended is entered as dropped by the log alone."""
    return msgspec.structs.replace(ledger, dropped=ledger.dropped + ledger.in_flight, in_flight=0.0)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("adoption.mode=overwrite",),
        ("adoption.mode=blend",),
        ("protocol.participation=fresh",),
        ("protocol.late=drop", "protocol.grace_factor=0"),
        ("protocol.quorum=2",),
        ("protocol.lease_s=0.5",),
        ("run.steps=0", "run.tokens=2000", "inner.schedule=constant"),
    ],
    ids=" ".join,
)
def test_the_log_and_the_syncer_agree(overrides: tuple[str, ...]) -> None:
    accounting, status = play(*overrides)
    assert without_rest(accounting.ledger) == without_rest(status.ledger)
    assert accounting.balance == 0
    assert accounting.participation == pytest.approx(status.participation, rel=1e-12)
    assert accounting.downtime_ns == status.downtime_ns == 0
    assert (accounting.rounds_committed, accounting.rounds_empty) == (status.rounds_committed, status.rounds_empty)
    assert accounting.refusals == status.refusals
    assert accounting.clock == status.clock
    for counted, shown in zip(accounting.learners, status.learners, strict=True):
        assert (counted.learner, counted.steps) == (shown.learner, shown.steps)
        assert counted.ledger.trained == shown.tokens
        assert counted.rounds_merged == shown.rounds_merged


def test_a_killed_learner_costs_nobody_else_anything() -> None:
    accounting, _ = play()
    (absence,) = accounting.absences
    assert absence.learner == "learner-3"
    assert absence.joined_ns is not None and absence.contributed_ns is not None
    assert absence.gone_ns < absence.joined_ns < absence.contributed_ns
    for learner in accounting.learners[:3]:
        assert learner.gap_ratio_others_down == 1.0
        assert learner.ledger.lost == 0
    assert accounting.learners[3].ledger.lost > 0


def test_without_a_failure_nothing_is_lost() -> None:
    accounting, _ = play(kill=False)
    assert accounting.absences == ()
    assert accounting.ledger.lost == 0
    assert accounting.ledger.merged + accounting.ledger.merged_late == accounting.ledger.trained

"""Every rule of ``checkers`` would see it: a good log, and logs made wrong by hand that each rule must reject."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.core_builders import MS
from support.logs import (
    GOOD,
    LEDGER,
    OPTIONS,
    accepted,
    adopted,
    changed,
    closed,
    committed,
    event,
    joined,
    live,
    long_log,
    opened,
    step,
    until,
    with_after,
    without,
)
from unlockstep.checkers import LIVENESS, RULES, SAFETY, Checkers, check, imbalances
from unlockstep.checkers.rule import KEPT_MAX
from unlockstep.core.data_book import Grant
from unlockstep.core.deeds import Source
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    DataGranted,
    DataOpened,
    DataReturned,
    Event,
    FragmentAdopted,
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
    RunSeeded,
    StepReported,
    SyncerResumed,
    TokensOverwritten,
)
from unlockstep.core.options import Late, Participation
from unlockstep.core.reasons import DepartureReason, RefusalReason, WindowReason

JOINED, LIVE, SEEDED, LAST = event(LearnerJoined), event(LearnerLive), event(RunSeeded), event(RunFinished)
OPENED, ACCEPTED, CLOSED, COMMITTED = (
    event(kind, round=0) for kind in (RoundOpened, ContributionAccepted, RoundClosed, FragmentCommitted)
)
NEXT, ON_TIME, IN_GRACE = (event(kind, round=1) for kind in (RoundOpened, ContributionAccepted, RoundClosed))
LATE = event(ContributionAccepted, late=True)
ADOPTED, OVERWRITTEN = event(FragmentAdopted), event(TokensOverwritten)
STEPPED = event(StepReported, steps=3)


def resumed(at: int, clock: int = 4, versions: tuple[int, ...] = (1, 1), life: int = 2) -> SyncerResumed:
    return SyncerResumed(at * MS, life, clock, versions)


def anew(*events: Event) -> list[Event]:
    """The first half of the good log, when nothing is in flight; then the syncer dies and is started again."""
    return [*until(470), resumed(480), *events]


def back(at: int, learner: str) -> LearnerJoined:
    """It has lost its connection, and has not been given up."""
    return joined(at, learner, resumed=True)


def reopened(at: int) -> RoundOpened:
    return RoundOpened(at * MS, 1, 1, clock=4, live=0, asked=())


IN_FLIGHT = [*until(450), resumed(480, versions=(1, 0))]
"""The syncer dies while round 1 is open, and holds what a has handed over for it."""


def idle(steps: int) -> list[Event]:
    """Two learners step, and nobody opens a round."""
    return [each for each in long_log(steps, lambda _: "ab") if not hasattr(each, "round")]


def ending(**changes: Any) -> list[Event]:
    """The good log with another ledger at its end."""
    return changed(LAST, ledger=msgspec.structs.replace(LEDGER, **changes))


def departed(at: int, learner: str, reason: DepartureReason) -> LearnerDeparted:
    return LearnerDeparted(at * MS, learner, 1, reason)


def refused(at: int, strikes: int, tokens: int = 20) -> ContributionRefused:
    return ContributionRefused(at * MS, 0, 0, "b", 1, 20, tokens, RefusalReason.NON_FINITE, strikes)


THREE_STRIKES = [*until(210), refused(211, 1), refused(212, 2), refused(213, 3)]
SHUT_OUT = [*THREE_STRIKES, departed(213, "b", DepartureReason.QUARANTINED)]
EXPIRED = [*until(230), LearnerAway(240 * MS, "b", 1), departed(740, "b", DepartureReason.LEASE_EXPIRED)]
"""b is heard of last when its contribution is accepted at 220."""


def piled_up(count: int) -> list[Event]:
    """A learner hands over for one closed round again and again, and no other one opens."""
    more: list[Event] = []
    for number in range(5, 5 + count):
        more += [step(100 * number, "b", number), accepted(100 * number, 1, "b", 1, number, behind=1, late=True)]
    return [*until(470), *more]


BAD: dict[str, dict[str, list[Event]]] = {
    "time": {
        "a step of yesterday": changed(ADOPTED, at_ns=120 * MS),
        "another life before the end of the first": [*until(470), resumed(469)],
    },
    "incarnations": {
        "the first is not 1": changed(JOINED, incarnation=2),
        "back before it was here": changed(JOINED, resumed=True),
        "used twice": with_after(SEEDED, joined(2, "a", 1)),
        "left out": with_after(SEEDED, joined(2, "a", 3, resumed=True)),
        "never joined": without(JOINED),
        "gives as another": changed(ACCEPTED, incarnation=2),
        "adopts as another": changed(ADOPTED, incarnation=2),
        "goes as another": with_after(ADOPTED, LearnerAway(300 * MS, "a", 2)),
        "steps and is not live": without(LIVE),
        "acts after it has left": [
            *until(230),
            LearnerDeparted(240 * MS, "b", 1, DepartureReason.LEFT),
            adopted(250, "b"),
        ],
    },
    "leases": {
        "heard of a moment ago": [*until(230), departed(719, "b", DepartureReason.LEASE_EXPIRED)],
        "away for ever": [*until(230), LearnerAway(240 * MS, "b", 1), *(step(100 * n, "a", n) for n in range(3, 14))],
        "back too late": [*until(230), LearnerAway(240 * MS, "b", 1), joined(1241, "b", resumed=True)],
    },
    "strikes": {
        "one too few": [*THREE_STRIKES[:-1], departed(213, "b", DepartureReason.QUARANTINED)],
        "stays": [*THREE_STRIKES, step(300, "b", 3)],
        "gives still": [*THREE_STRIKES, accepted(220, 0, "b", 2, 2)],
        "comes again": [*SHUT_OUT, joined(60_212, "b", 2)],
        "goes on": [*SHUT_OUT, joined(60_213, "b", 2, resumed=True)],
        "not counted": [*until(210), refused(211, 0)],
        "not forgiven": [*until(210), refused(211, 1), accepted(220, 0, "b", 2, 2), refused(230, 2)],
    },
    "members": {
        "one too many": with_after(SEEDED, *(joined(2, f"c{number}") for number in range(1023))),
    },
    "steps": {"one is left out": changed(STEPPED, steps=4, tokens=40)},
    "rotation": {
        "another fragment": changed(OPENED, fragment=1),
        "the first is not 0": changed(OPENED, round=2),
        "one is left out": changed(NEXT, round=3),
        "one opens twice": [*until(230), opened(240, 0, 4)],
        "too many in flight": with_after(OPENED, opened(200, 1, 2)),
        "a stranger is asked": changed(OPENED, asked=("a", "stranger")),
        "one is asked twice": changed(OPENED, asked=("a", "a")),
        "begins anew and had been committed": anew(reopened(480)),
        "says fewer are live": changed(OPENED, live=1),
    },
    "opening": {
        "too early": changed(NEXT, clock=3),
        "the first too early": changed(OPENED, clock=1),
        "at a clock nobody has reached": changed(OPENED, clock=1000),
        "at a clock that has gone by": changed(event(RoundOpened, round=3), clock=4),
        "a clock goes back": changed(STEPPED, clock=1),
        "a clock goes back with the syncer": [*until(470), resumed(480, clock=3)],
        "another life begins at a clock nobody has reached": [*until(470), resumed(480, clock=40)],
        "the end comes at a clock nobody has reached": changed(event(RunFinishing), clock=1000),
        "the end was at another clock": changed(LAST, clock=4),
        "too late": [*until(100), step(200, "a", 2), step(300, "a", 3), opened(300, 0, 3)],
        "never": idle(10),
        "not before the end": [*idle(10), RunFinishing(1001 * MS, 10, "enough")],
        "not before the last learner goes": [
            *[each for each in idle(10) if getattr(each, "learner", "") != "b"],
            LearnerAway(1010 * MS, "a", 1),
        ],
    },
    "rounds": {
        "closes and was not opened": without(OPENED),
        "commits and was not closed": without(CLOSED),
        "never ends": without(COMMITTED),
        "closes twice": with_after(CLOSED, CLOSED),
        "commits twice": with_after(COMMITTED, COMMITTED),
        "closes with others": changed(CLOSED, participants=("a",)),
        "closes with one of them twice": changed(CLOSED, participants=("a", "a", "b")),
        "says more are live": changed(CLOSED, live=3),
        "closes another fragment": changed(CLOSED, fragment=1),
        "commits another fragment": changed(COMMITTED, fragment=1),
        "is empty and has tokens": [*until(220), RoundEmpty(230 * MS, 0, 0)],
        "is given up": [*until(210), RoundEmpty(220 * MS, 0, 0)],
        "ends empty and was not opened": [*until(230), RoundEmpty(240 * MS, 0, 0)],
        "opens after the end": [*GOOD, opened(550, 4, 5)],
    },
    "window": {
        "says another time": changed(CLOSED, open_ns=30 * MS),
        "says another quorum": changed(CLOSED, quorum_ns=20 * MS),
        "grants more than a step": changed(CLOSED, grace_ns=101 * MS),
        "grants less than nothing": changed(CLOSED, grace_ns=-1),
        "closes before its grace ends": changed(IN_GRACE, grace_ns=60 * MS),
        "closes after its grace has ended": changed(IN_GRACE, grace_ns=40 * MS),
        "stays open": [*until(210), step(300, "a", 3), step(400, "a", 4)],
        "stays open at the end": [
            *until(510)[:-1],
            closed(2000, 2, ("a", "b"), 1500, 10, 50, WindowReason.EVERYONE_IN),
        ],
    },
    "quorum": {
        "nobody": [each for each in GOOD if not (isinstance(each, ContributionAccepted) and each.round == 0)],
        "only a late one": changed(ON_TIME, round=0, fragment=0, late=True),
    },
    "contributions": {
        "twice": with_after(ACCEPTED, ACCEPTED),
        "twice, late": with_after(LATE, LATE),
        "merged twice": changed(COMMITTED, tokens=80),
        "declared undelivered before": with_after(NEXT, ContributionUndelivered(405 * MS, 1, 1, "a", 1, 40, 40)),
        "on time, counted as late": changed(ACCEPTED, late=True),
        "late, counted as on time": changed(LATE, late=False),
        "for another fragment": changed(ACCEPTED, fragment=1),
        "for a round to come": changed(ACCEPTED, round=4),
        "without a step": changed(ACCEPTED, c_steps=0),
        "more than was trained": changed(ACCEPTED, c_tokens=21),
        "less than nothing": changed(ACCEPTED, c_tokens=-1),
        "after the end": [*GOOD, accepted(550, 3, "a", 1, 6, base=2)],
        "merged, and once more in another life": anew(back(490, "a"), accepted(500, 1, "a", 4, 4, late=True)),
        "for a round that no life can have opened": anew(
            back(490, "a"), accepted(500, 99, "a", 1, 4, base=1, late=True)
        ),
        "held, and twice in another life": [
            *(*IN_FLIGHT, reopened(480), back(490, "a")),
            *(accepted(at, 1, "a", 4, 4) for at in (500, 501)),
        ],
    },
    "staleness": {
        "no such version": changed(ACCEPTED, base_version=-1, staleness=1),
        "too old": changed(ACCEPTED, base_version=-17, staleness=17),
        "says younger": changed(LATE, staleness=0),
        "from the future": changed(LATE, base_version=2, staleness=-1),
    },
    "weights": {
        "sum below one": changed(COMMITTED, weights={"a": 0.5, "b": 0.4}),
        "negative": changed(COMMITTED, weights={"a": 1.5, "b": -0.5}),
        "zero": changed(COMMITTED, weights={"a": 1.0, "b": 0.0}),
        "not a number": changed(COMMITTED, weights={"a": float("nan"), "b": 0.5}),
        "none": changed(COMMITTED, weights={}),
        "one forgotten": changed(COMMITTED, weights={"a": 1.0}),
        "a stranger's": changed(COMMITTED, weights={"a": 0.5, "c": 0.5}),
        "not the shares": changed(COMMITTED, weights={"a": 0.4, "b": 0.6}),
    },
    "tokens": {
        "given twice": changed(ON_TIME, c_tokens=41),
        "overwritten and given": changed(OVERWRITTEN, tokens=20),
        "given and undelivered": with_after(COMMITTED, ContributionUndelivered(230 * MS, 0, 0, "a", 1, 10, 15)),
        "given and dropped": with_after(COMMITTED, LearnerDeparted(230 * MS, "a", 1, DepartureReason.LEFT, (10, 20))),
        "overwritten, not told": without(OVERWRITTEN),
        "trained fewer than before": changed(STEPPED, tokens=10),
        "a step is reported again": changed(STEPPED, steps=2),
        "less than none under way": changed(LAST, tokens_under_way=-1),
        "merged and lost": ending(merged=60.0, lost=10.0),
        "merged twice": ending(merged=80.0),
        "a class below zero": ending(merged=80.0, lost=-10.0),
        "in flight after the end": ending(merged=60.0, in_flight=10.0),
        "trained by nobody": ending(trained=110.0, lost=10.0),
        "late as on time": ending(merged=80.0, merged_late=10.0),
    },
    "versions": {
        "one is left out": changed(COMMITTED, version=2),
        "version 0 is committed": changed(COMMITTED, version=0),
        "no such fragment": changed(COMMITTED, fragment=2),
        "others at the end": changed(LAST, versions=(2, 1)),
    },
    "adoption": {
        "another digest": changed(ADOPTED, digest="another"),
        "not committed": changed(ADOPTED, version=2),
        "not committed of this fragment": changed(ADOPTED, fragment=1),
        "no such fragment": changed(ADOPTED, fragment=2),
        "the same again": with_after(ADOPTED, ADOPTED),
        "an older one": with_after(ADOPTED, adopted(300, "a", version=0)),
        "clock stays behind": changed(STEPPED, clock=1),
    },
    "restart": {
        "seeded again": anew(back(485, "a"), RunSeeded(486 * MS, "a")),
        "seeded twice": with_after(COMMITTED, RunSeeded(240 * MS, "a")),
        "a version is lost": [*until(470), resumed(480, versions=(1, 0))],
        "all versions are lost": [*until(470), resumed(480, versions=())],
        "a version that nobody has committed": [*until(470), resumed(480, versions=(1, 2))],
        "parameters that nobody has brought": [joined(0, "a"), resumed(1, clock=0, versions=(0, 0))],
        "the same life once more": [*until(470), resumed(480, life=1)],
        "a round that was in flight is left out": [*IN_FLIGHT, back(490, "a")],
        "another round opens in its place": [*IN_FLIGHT, opened(490, 2, 4)],
    },
    "memory": {"held for ever": piled_up(20), "given unasked": piled_up(3)},
    "progress": {"a round without end": long_log(60, lambda round: "ab" if round < 5 else "")},
    "taking_part": {
        "never asked": long_log(60, lambda _: "a"),
        "never for a fragment": long_log(60, lambda round: "a" if round % 2 else "ab"),
        "not any more": long_log(60, lambda round: "a" if round > 9 else "ab"),
    },
    "joining": {"never asked": long_log(60, lambda _: "a")},
}
"""Rule -> what is wrong -> a log that breaks it, and perhaps others too."""


def _of_data(*events: Event) -> list[Event]:
    """a joins a run whose corpus of 4 is dealt out by twos."""
    opened = DataOpened(0, 4, "corpus", epochs=1, chunk_sequences=2, stock_sequences=1)
    return [LearnerJoined(0, "a", 1, False), opened, LearnerJoined(0, "b", 1, False), *events]


_FIRST = DataGranted(0, "a", 1, (Grant(0, 0, 0, 2),))

BAD["data"] = {
    "granted to two": _of_data(_FIRST, DataGranted(0, "b", 1, (Grant(0, 0, 0, 2),))),
    "a place left out": _of_data(DataGranted(0, "a", 1, (Grant(0, 0, 1, 2),))),
    "a gap in the course": _of_data(_FIRST, DataGranted(0, "a", 1, (Grant(3, 0, 2, 4),))),
    "returned by who has it not": _of_data(_FIRST, DataReturned(0, "b", 1, (Grant(0, 0, 0, 2),))),
    "what was returned is passed over": _of_data(
        _FIRST, DataReturned(0, "a", 1, _FIRST.grants), DataGranted(0, "b", 1, (Grant(0, 0, 2, 4),))
    ),
}


def broken(log: list[Event], **settings: Any) -> set[str]:
    return {violation.rule for violation in check(log, OPTIONS, **settings)}


def test_every_rule_has_a_log_that_breaks_it() -> None:
    assert BAD.keys() == RULES.keys() == SAFETY | LIVENESS
    assert not SAFETY & LIVENESS


@pytest.mark.parametrize(("rule", "wrong"), [(rule, wrong) for rule, logs in BAD.items() for wrong in logs])
def test_a_bad_log_is_rejected(rule: str, wrong: str) -> None:
    log = BAD[rule][wrong]
    assert rule in broken(log), check(log, OPTIONS)
    assert rule in broken(log, rules={rule}), "each rule sees it by itself"


def test_a_good_log_passes() -> None:
    assert check(GOOD, OPTIONS) == []
    assert check(long_log(100, lambda _: "ab"), OPTIONS) == []


def test_so_do_one_who_was_shut_out_and_one_who_was_given_up() -> None:
    for log in (SHUT_OUT, EXPIRED):
        assert check(log, OPTIONS, rules=SAFETY - {"opening"}) == []


def test_the_clock_is_that_of_the_kth_learner() -> None:
    """With K = 2, a alone at step 2 does not open a round."""
    log = [joined(0, "a"), joined(0, "b"), RunSeeded(MS, "a"), live(100, "a"), step(100, "a", 1), step(200, "a", 2)]
    log.append(opened(200, 0, clock=2, asked=("a",)))
    quorum = msgspec.structs.replace(OPTIONS, quorum=2)
    assert [each.sentence for each in check(log, quorum, rules={"opening"})] == [
        "round 0 opens at step 2, which fewer than 2 have reached"
    ]


def test_under_fresh_nobody_is_asked_who_is_behind() -> None:
    """b is at step 1 when the round of step 2 opens."""
    fresh = msgspec.structs.replace(OPTIONS, participation=Participation.FRESH)
    assert check(GOOD, fresh, rules={"members"}) == []
    (found,) = check(changed(OPENED, asked=("a", "b")), fresh, rules={"members"})
    assert found.sentence == "round 0 of step 2 asks b, which is at step 1"


def test_so_does_every_beginning_of_it() -> None:
    for length in range(len(GOOD)):
        assert check(GOOD[:length], OPTIONS) == []


def test_a_violation_tells_the_rule_the_time_and_what_was_found() -> None:
    (found,) = check(changed(COMMITTED, weights={"a": 0.5, "b": 0.4}), OPTIONS)
    assert (found.rule, found.at_ns) == ("weights", 230 * MS)
    assert found.sentence == "the weights of round 0 sum to 0.9"


def test_of_many_violations_the_first_are_kept_and_all_are_counted() -> None:
    checkers = Checkers(OPTIONS, rules={"adoption"})
    for each in [*until(300), *[ADOPTED] * 500]:
        checkers.see(each)
    checkers.finish()
    assert checkers.counts == {"adoption": 500, "time": 0}
    assert len(checkers.violations) == KEPT_MAX


# ------------------------------------------------------------------------------------------- what depends on settings


def test_a_late_contribution_is_wrong_where_late_ones_are_dropped() -> None:
    strict = msgspec.structs.replace(OPTIONS, late=Late.DROP)
    assert {violation.rule for violation in check(GOOD, strict)} == {"contributions"}


def test_a_quorum_of_two_is_not_met_by_one() -> None:
    strict = msgspec.structs.replace(OPTIONS, quorum=2)
    assert "quorum" in {violation.rule for violation in check(GOOD, strict)}


def test_a_host_may_be_late_by_what_it_is_allowed() -> None:
    log = changed(IN_GRACE, grace_ns=40 * MS)
    assert broken(log, timer_ns=10 * MS - 1) == {"window"}
    assert broken(log, timer_ns=10 * MS) == set()


def test_a_network_may_be_slow_by_what_it_is_allowed() -> None:
    log = BAD["progress"]["a round without end"]
    assert broken(log, transfer_ns=100 * MS) == {"progress"}
    assert broken(log, transfer_ns=2000 * MS) == set()


def test_nobody_is_promised_a_part_under_fresh() -> None:
    fresh = msgspec.structs.replace(OPTIONS, participation=Participation.FRESH)
    assert check(BAD["taking_part"]["never asked"], fresh) == []


# --------------------------------------------------------------------------------------- a syncer that is started again


def once_more(*given: Event) -> list[Event]:
    """Round 1 begins anew, is given this, and merges what a had handed over for it."""
    return [
        *(*IN_FLIGHT, reopened(480), back(490, "a"), back(490, "b"), *given),
        RoundClosed(500 * MS, 1, 1, WindowReason.NO_GRACE, "closes", ("a",), 0, 20 * MS, 20 * MS, 0),
        committed(510, 1, {"a": 1.0}, 40),
        *(live(600, "a"), step(600, "a", 5), live(600, "b"), step(600, "b", 5)),
    ]


AGAIN = accepted(500, 1, "a", 4, 4)


def test_a_run_goes_on_where_its_syncer_has_died() -> None:
    """What was held and not merged is handed over again, and counts once."""
    assert check(once_more(AGAIN), OPTIONS) == []


def test_what_is_not_handed_over_again_is_not_merged() -> None:
    assert "rounds" in broken(once_more())


def test_a_contribution_for_a_round_that_opened_after_the_last_save_waits_until_it_opens_again() -> None:
    early = accepted(495, 2, "a", 1, 4, base=1, late=True)
    log = anew(
        *(back(485, "a"), back(485, "b"), early),
        *(live(496, "b"), step(496, "b", 5), live(497, "a"), step(497, "a", 5), step(500, "a", 6)),
        opened(500, 2, clock=6),
        accepted(510, 2, "b", 2, 5, base=1),
        closed(510, 2, ("a", "b"), after=10, quorum=10, grace=0, reason=WindowReason.NO_GRACE),
        committed(520, 2, {"a": 1 / 3, "b": 2 / 3}, 30),
    )
    assert check(log, OPTIONS) == []
    assert "contributions" in broken([each for each in log if not isinstance(each, SyncerResumed)])


def test_a_run_without_parameters_may_be_resumed_and_seeded() -> None:
    begun = [joined(0, "a"), resumed(1, clock=0, versions=()), back(2, "a"), RunSeeded(3 * MS, "a")]
    assert check(begun, OPTIONS) == []


def test_everybody_has_a_whole_lease_to_come_back() -> None:
    gone = [departed(at, "b", DepartureReason.LEASE_EXPIRED) for at in (979, 980)]
    assert "leases" in broken(anew(back(490, "a"), gone[0]))
    assert "leases" not in broken(anew(back(490, "a"), gone[1]))


def test_who_had_adopted_what_is_lost_may_load_everything_once_more_and_once_only() -> None:
    loaded = [msgspec.structs.replace(adopted(at, "a"), source=Source.LOADED) for at in (500, 501)]
    again = anew(back(490, "a"), loaded[0])
    assert check(again, OPTIONS) == []
    assert broken([*again, loaded[1]]) == {"adoption"}
    assert broken(anew(back(490, "a"), adopted(500, "a"))) == {"adoption"}


# ----------------------------------------------------------------------------------------------- the ledger by itself


def test_balanced_books_pass_and_others_do_not() -> None:
    assert list(imbalances(LEDGER)) == []
    for wrong in ({"in_flight": 21.0}, {"merged": 39.0}, {"refused": {"late": 1.0}}, {"lost": -5.0, "dropped": 5.0}):
        assert list(imbalances(msgspec.structs.replace(LEDGER, **wrong)))

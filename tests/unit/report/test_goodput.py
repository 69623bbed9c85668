"""Goodput, by hand on short stories: what is possible, what counts, and where the rest goes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLive,
    RoundClosed,
    RoundOpened,
    RunFinishing,
    StepReported,
    SyncerResumed,
    TokensOverwritten,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import DepartureReason, WindowReason
from unlockstep.report.accounting import account
from unlockstep.report.goodput import Goodput, Shares
from unlockstep.tape import Action, Continue, Join, Kill, Leave, Slow, Stop, Tape

SECOND = 1_000_000_000


def joined(at: float, learner: str = "a", resumed: bool = False) -> LearnerJoined:
    return LearnerJoined(round(at * SECOND), learner, 1, resumed)


def steps(begin: float, count: int, learner: str = "a", first: int = 1, each: float = 1.0) -> list[Event]:
    """So many steps, one after the other, of ten tokens each."""
    return [
        StepReported(
            round((begin + (index + 1) * each) * SECOND),
            learner, 1, first + index, first + index, 10 * (first + index), round(each * SECOND), 1.0,
        )
        for index in range(count)
    ]  # fmt: skip


def merged(at: float, tokens: int, learner: str = "a", round_: int = 0) -> list[Event]:
    """A round that takes in so many tokens, of one fragment."""
    ns = round(at * SECOND)
    return [
        RoundOpened(ns, round_, 0, 0, 1, (learner,)),
        ContributionAccepted(ns, round_, 0, learner, 1, 0, 0, 1, tokens, tokens, 1.0, False),
        RoundClosed(ns, round_, 0, WindowReason.EVERYONE_IN, "", (learner,), 1, 0, 0, 0),
        FragmentCommitted(ns, round_, 0, round_ + 1, "", 1.0, {learner: 1.0}, tokens, 0),
    ]


def away(at: float, learner: str = "a") -> LearnerAway:
    return LearnerAway(round(at * SECOND), learner, 1)


def departed(at: float, reason: DepartureReason, learner: str = "a") -> LearnerDeparted:
    return LearnerDeparted(round(at * SECOND), learner, 1, reason)


def finishing(at: float) -> RunFinishing:
    return RunFinishing(round(at * SECOND), 1, "enough")


def goodput(*story: Event | Sequence[Event], tape: Tape | None = None, until: float = 0) -> Goodput:
    events: list[Event] = []
    for part in story:
        events.extend(part if isinstance(part, list) else [part])  # type: ignore[list-item]
    events.sort(key=lambda event: event.at_ns)
    found = account(events, ProtocolOptions(fragments=1), tape, round(until * SECOND)).goodput
    assert found is not None
    assert total(found.shares) == pytest.approx(1, abs=1e-12)
    return found


def total(shares: Shares) -> float:
    return sum(getattr(shares, name) for name in Shares.__struct_fields__)


def nonzero(shares: Shares) -> dict[str, float]:
    values = {name: getattr(shares, name) for name in Shares.__struct_fields__}
    return {name: pytest.approx(value, abs=1e-9) for name, value in values.items() if abs(value) > 1e-9}


# ------------------------------------------------------------------------------------------- what counts


def test_a_run_that_trains_all_the_time_and_merges_everything_has_a_goodput_of_one() -> None:
    found = goodput(joined(0), steps(5, 10), merged(15, 100), finishing(15))
    assert (found.goodput, found.roster_ns, found.tokens_per_s) == (pytest.approx(1), 10 * SECOND, pytest.approx(10))


def test_what_comes_before_the_first_step_is_not_on_the_roster() -> None:
    assert goodput(joined(0), steps(500, 10), merged(510, 100), finishing(510)).roster_ns == 10 * SECOND


def test_tokens_that_were_not_merged_do_not_count() -> None:
    lost = TokensOverwritten(9 * SECOND, "a", 1, 0, 30)
    found = goodput(joined(0), steps(0, 10), lost, merged(10, 50), finishing(10))
    assert nonzero(found.shares) == {"merged": 0.5, "overwritten": 0.3, "in_flight": 0.2}


def test_goodput_weighs_learners_by_what_they_could_train() -> None:
    """b is five times slower, and nothing of it is merged."""
    slow = steps(0, 2, "b", each=5.0)
    found = goodput(joined(0), joined(0, "b"), steps(0, 10), slow, merged(10, 100), finishing(10))
    assert found.goodput == pytest.approx(100 / 120)
    assert (found.roster_ns, found.tokens_per_s) == (20 * SECOND, pytest.approx(6))


# ------------------------------------------------------------------------------------------- where time goes


def test_time_between_steps_is_waiting() -> None:
    found = goodput(joined(0), steps(0, 5), steps(10, 5, first=6), merged(15, 100), finishing(15))
    assert nonzero(found.shares) == {"merged": 100 / 150, "waiting": 50 / 150}


def test_a_step_that_takes_longer_than_the_median_one_is_slowed() -> None:
    found = goodput(joined(0), steps(0, 9), steps(9, 1, first=10, each=6.0), merged(15, 100), finishing(15))
    assert nonzero(found.shares) == {"merged": 100 / 150, "slowed": 50 / 150}


def test_a_dead_learner_is_down_from_its_last_step_and_recovers_until_its_next() -> None:
    story = [
        joined(0), steps(0, 5), away(5.5), departed(8, DepartureReason.LEASE_EXPIRED),
        joined(9), LearnerLive(12 * SECOND, "a", 1), steps(11, 4), merged(5, 50), merged(15, 40, round_=1),
        finishing(15),
    ]  # fmt: skip
    found = goodput(*story)
    assert found.roster_ns == 15 * SECOND
    shares = nonzero(found.shares)
    assert (shares["down"], shares["recovering"]) == (4 / 15, 2 / 15)


def test_a_learner_that_never_comes_back_is_down_until_the_run_ends() -> None:
    story = [joined(0), steps(0, 5), departed(6, DepartureReason.LEASE_EXPIRED), joined(0, "b"), steps(0, 10, "b")]
    found = goodput(*story, merged(5, 50), merged(10, 100, "b", 1), finishing(10))
    assert nonzero(found.shares) == {"merged": 150 / 200, "down": 50 / 200}


def test_who_leaves_in_order_is_off_the_roster_until_it_joins_again() -> None:
    story = [joined(0), steps(0, 5), departed(5, DepartureReason.LEFT), joined(50), steps(50, 5), finishing(55)]
    assert goodput(*story).roster_ns == 10 * SECOND


def test_what_is_trained_without_a_connection_is_not_lost_and_the_rest_of_that_time_is_away() -> None:
    """Five steps go by unheard, five more could have."""
    story = [joined(0), steps(0, 5), away(5.2), joined(14, resumed=True), steps(15, 5, first=11)]
    found = goodput(*story, merged(20, 150), finishing(20))
    assert nonzero(found.shares) == {"merged": 150 / 200, "away": 50 / 200}


def test_the_death_of_the_syncer_takes_nobody_off_the_roster() -> None:
    gone = SyncerResumed(12 * SECOND, 2, 0, (0,))
    story = [joined(0), steps(0, 5), gone, joined(12.5, resumed=True), steps(13, 2, first=14)]
    found = goodput(*story, merged(15, 150), finishing(15))
    assert nonzero(found.shares) == {"merged": 1.0}


def test_a_run_that_goes_on_counts_as_far_as_its_log_does() -> None:
    found = goodput(joined(0), steps(0, 10), merged(10.5, 100))
    assert found.roster_ns == 10.5 * SECOND
    assert found.shares.slowed == pytest.approx(0.5 / 10.5)


def test_a_log_that_begins_in_the_middle_of_a_run_is_counted_from_there() -> None:
    assert goodput(steps(100, 10, first=50), finishing(110)).roster_ns == 10 * SECOND


def test_without_a_step_there_is_no_goodput() -> None:
    assert account([joined(0)], ProtocolOptions(fragments=1)).goodput is None


def test_steps_that_were_faster_than_the_median_one_make_no_goodput_above_one() -> None:
    found = goodput(joined(0), steps(0, 3), steps(3, 2, first=4, each=0.5), merged(4, 50), finishing(4))
    assert nonzero(found.shares) == {"merged": 1.0} and found.tokens_per_s == pytest.approx(10)


# ------------------------------------------------------------------------------------------- with a tape


def test_the_tape_of_a_real_run_begins_when_all_its_learners_have_taken_a_step() -> None:
    """At 2 s: so b leaves at 5 s, and what a does before counts."""
    tape = told(Leave(at_ns=3 * SECOND, target="b"), learners=("a", "b"))
    story = [*steps(0, 10), *steps(1, 4, "b"), departed(5, DepartureReason.LEFT, "b"), *merged(10, 100), finishing(10)]
    events = sorted([joined(0), joined(0, "b"), *story], key=lambda event: event.at_ns)
    for simulated, roster_s in ((False, 10 + 5), (True, 10 + 3)):
        found = account(events, ProtocolOptions(fragments=1), tape, simulated=simulated).goodput
        assert found is not None and found.roster_ns == roster_s * SECOND


def told(*actions: Action, learners: tuple[str, ...] = ("a",), end: float = 20) -> Tape:
    return Tape(name="mine", learners=learners, actions=actions, end_ns=round(end * SECOND))


def test_on_a_tape_a_step_counts_as_at_the_learners_own_speed() -> None:
    """Nine of ten steps were slowed down to half the speed: the median step is not the undisturbed one. Without the
    tape the two that were faster count as fast as they were."""
    tape = told(Slow(at_ns=2 * SECOND, target="a", factor=2.0))
    story = [joined(0), steps(0, 2), steps(2, 9, first=3, each=2.0), merged(20, 110), finishing(20)]
    assert goodput(*story).goodput == pytest.approx(1)
    assert nonzero(goodput(*story, tape=tape).shares) == {"merged": 110 / 200, "slowed": 90 / 200}


def test_a_step_in_which_something_is_done_to_a_learner_says_nothing_of_its_speed() -> None:
    tape = told(*(action for at in (0, 10) for action in (
        Stop(at_ns=at * SECOND + 1, target="a"), Continue(at_ns=(at + 9) * SECOND, target="a"))))  # fmt: skip
    story = [joined(0), steps(0, 1, each=10.0), steps(10, 1, first=2, each=10.0), steps(20, 1, first=3)]
    assert goodput(*story, finishing(21), tape=tape).tokens_per_s == pytest.approx(10)


def test_who_is_on_the_tape_is_on_the_roster_even_if_it_never_comes() -> None:
    tape = told(Kill(at_ns=0, target="b"), learners=("a", "b"))
    found = goodput(joined(0), steps(0, 10), merged(10, 100), finishing(10), tape=tape)
    assert found.roster_ns == 20 * SECOND
    assert nonzero(found.shares) == {"merged": 0.5, "down": 0.5}


def test_the_roster_of_a_tape_is_from_join_to_leave() -> None:
    tape = told(Join(at_ns=5 * SECOND, target="b"), Leave(at_ns=8 * SECOND, target="b"))
    late = [joined(6, "b"), steps(6, 2, "b"), departed(9, DepartureReason.LEFT, "b")]
    found = goodput(joined(0), steps(0, 10), *late, merged(10, 100), finishing(10), tape=tape)
    assert found.roster_ns == 13 * SECOND


def test_a_log_that_stops_before_its_tape_is_over_is_known_to_have_gone_on() -> None:
    assert goodput(joined(0), steps(0, 10), tape=told(), until=20).roster_ns == 20 * SECOND

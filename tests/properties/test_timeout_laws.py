"""Laws of the derived deadlines, for every lease that may be set and every link that may be measured."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

from hypothesis import example, given
from hypothesis import strategies as st

from unlockstep.net.wire.timeouts import Leases, Measured, ProgressWatch, Timeouts, derive

LEASES = st.builds(
    Leases,
    lease_s=st.floats(0.05, 86_400),
    leader_lease_s=st.floats(0.1, 3600),
    away_s_max=st.one_of(st.just(0.0), st.floats(1, 1e9)),
    has_standby=st.booleans(),
)
ROUND_TRIPS = st.floats(0, 5)
RATES = st.one_of(st.none(), st.floats(1, 1e11))
MEASURED = st.builds(
    Measured,
    round_trip_s=st.one_of(st.none(), ROUND_TRIPS),
    up_bytes_per_s=RATES,
    down_bytes_per_s=RATES,
    step_s=st.one_of(st.none(), st.floats(0, 1e5)),
)
NAMES = tuple(asdict(derive()))


@given(LEASES, MEASURED)
@example(Leases(0.05, 0.1, 0, True), Measured(0, 1, 1, 0))
@example(Leases(86_400, 3600, 1e9), Measured(5, 1e11, 1e11, 1e5))
def test_every_deadline_is_above_zero(leases: Leases, measured: Measured) -> None:
    timeouts = derive(leases, measured, 10**9)
    assert all(value > 0 and not math.isnan(value) for value in asdict(timeouts).values())
    assert all(value < math.inf for name, value in asdict(timeouts).items() if name != "away_s")


@given(LEASES, LEASES, MEASURED)
def test_no_deadline_falls_when_a_lease_grows(one: Leases, other: Leases, measured: Measured) -> None:
    longer = Leases(max(one.lease_s, other.lease_s), max(one.leader_lease_s, other.leader_lease_s), 0, one.has_standby)
    assert_none_falls(derive(replace(one, away_s_max=0), measured), derive(longer, measured))


@given(LEASES, ROUND_TRIPS, ROUND_TRIPS)
def test_no_deadline_falls_when_the_round_trip_grows(leases: Leases, one_s: float, other_s: float) -> None:
    near, far = (derive(leases, Measured(round_trip_s=each)) for each in sorted((one_s, other_s)))
    assert_none_falls(near, far)


def assert_none_falls(before: Timeouts, after: Timeouts) -> None:
    fallen = [name for name in NAMES if getattr(after, name) < getattr(before, name)]
    assert fallen == []


@given(LEASES, MEASURED)
def test_silence_is_noticed_within_the_lease(leases: Leases, measured: Measured) -> None:
    """A ping after ``silence_s``, half as long for its answer. The exceptions have a floor: a second, or the link."""
    timeouts = derive(leases, measured)
    assert 1.5 * timeouts.silence_s <= timeouts.gone_s
    floor_s = max(1.0, 8 * (0.25 if measured.round_trip_s is None else measured.round_trip_s))
    assert timeouts.gone_s <= max(leases.lease_s, floor_s)
    assert 0.5 * timeouts.silence_s >= 2 * (measured.round_trip_s or 0)


@given(LEASES, st.floats(0, 0.5))
def test_learners_are_back_within_five_seconds_of_an_outage_of_a_minute(leases: Leases, round_trip_s: float) -> None:
    """By its end they have noticed, and from then on a packet that asks for a connection is sent every two seconds (the
    system repeats it after one second and again after two), or a new attempt begins."""
    timeouts = derive(leases, Measured(round_trip_s=round_trip_s))
    assert timeouts.gone_s + timeouts.connect_s_after(0) < 60
    for failures in range(100):
        attempt_s = timeouts.connect_s_after(failures)
        longest_gap_s = max(2.0, attempt_s - 3.0)
        assert longest_gap_s + timeouts.backoff_s_max + 3 * round_trip_s <= 5.0


@given(st.integers(0, 10**6))
def test_attempts_whose_round_trip_is_unknown_grow_until_a_slow_link_answers(failures: int) -> None:
    timeouts = derive()
    assert timeouts.connect_s <= timeouts.connect_s_after(failures) <= timeouts.connect_s_max == 5.0
    assert timeouts.connect_s_after(3) == 5.0
    assert timeouts.connect_s_after(failures) <= timeouts.connect_s_after(failures + 1)


@given(LEASES, MEASURED, st.integers(1, 10**6))
def test_pauses_double_up_to_a_second(leases: Leases, measured: Measured, failures: int) -> None:
    timeouts = derive(leases, measured)
    pause_s = timeouts.backoff_s_after(failures)
    assert 0.05 <= pause_s <= timeouts.backoff_s_after(failures + 1) <= timeouts.backoff_s_max <= 1.0


@given(LEASES, MEASURED)
def test_a_process_is_gone_in_time_wherever_its_peer_is(leases: Leases, measured: Measured) -> None:
    """C23"""
    assert derive(leases, measured).close_s <= 2.0


@given(LEASES, MEASURED)
def test_the_rate_asked_of_a_transfer_is_far_below_that_of_its_link(leases: Leases, measured: Measured) -> None:
    timeouts = derive(leases, measured)
    asked = timeouts.stall_bytes / timeouts.stall_s
    rates = [rate for rate in (measured.up_bytes_per_s, measured.down_bytes_per_s) if rate is not None]
    assert asked <= max(1024.0, 0.001 * min(rates, default=0.0)) + 1
    assert asked <= 65_537


PIECES = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 10**6)), max_size=50)


@given(MEASURED, PIECES)
def test_a_transfer_has_stalled_exactly_if_no_window_of_that_length_brings_enough(
    measured: Measured, pieces: list[tuple[float, int]]
) -> None:
    """The reference: windows laid end to end, each begun by the piece that filled the one before."""
    timeouts = derive(measured=measured)
    watch, now_s, begun_s, in_window = ProgressWatch(timeouts, 0.0), 0.0, 0.0, 0
    for pause_s, count in pieces:
        now_s += pause_s
        assert watch.has_stalled(now_s) == (now_s >= begun_s + timeouts.stall_s)
        in_window += count
        if in_window >= timeouts.stall_bytes:
            begun_s, in_window = now_s, 0
        watch.moved(count, now_s)
        assert watch.until_s == begun_s + timeouts.stall_s


@given(LEASES, st.floats(1e3, 1e9), st.integers(0, 10**12))
def test_the_end_of_a_run_is_waited_for_until_all_bodies_can_have_passed(
    leases: Leases, bytes_per_s: float, model_bytes: int
) -> None:
    timeouts = derive(leases, Measured(up_bytes_per_s=bytes_per_s, down_bytes_per_s=bytes_per_s), model_bytes)
    assert timeouts.goodbye_s >= leases.lease_s + 2 * model_bytes / bytes_per_s

"""Laws of the fleet: one pass over all events finds what a walk from stall to stall finds, and goodput scales."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unlockstep.sim.fleet import Fleet
from unlockstep.sim.goodput import estimate, measure
from unlockstep.sim.outages import Breakages, Stretches, between_stalls, elastic_triggers, play, width

SLICE = 10

stalls_s = st.floats(0, 30)
lives_s = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), max_size=6)
"""(works for, is out for), again and again: one slice."""


@given(
    lives=st.lists(lives_s, min_size=1, max_size=5),
    notice_s=st.floats(0, 5),
    downscale_s=stalls_s,
    upscale_s=stalls_s,
    merge_wait_s=st.floats(5, 60),
)
def test_one_pass_over_all_events_equals_a_walk_from_stall_to_stall(
    lives: list[list[tuple[float, float]]], notice_s: float, downscale_s: float, upscale_s: float, merge_wait_s: float
) -> None:
    fleet = Fleet(
        chips=SLICE * len(lives),
        slice_chips=SLICE,
        learners=1,
        notice_s=notice_s,
        downscale_s=downscale_s,
        upscale_s=upscale_s,
        merge_wait_s=merge_wait_s,
    )
    outs = [_outs(slice_lives) for slice_lives in lives]
    breakages = _breakages(outs)
    lane, begin_s, end_s = between_stalls(elastic_triggers(fleet, breakages), np.zeros(1))
    shares = width(fleet, breakages, lane, begin_s)
    expected = _walk(fleet, outs)
    assert begin_s.tolist() == [begin for begin, _, _ in expected]
    assert end_s.tolist() == [end for _, end, _ in expected]
    assert shares.tolist() == pytest.approx([share for _, _, share in expected])


def _outs(lives: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(fails, is back) of one slice."""
    outs, now_s = [], 0.0
    for works_s, out_s in lives:
        outs.append((now_s + works_s, now_s + works_s + out_s))
        now_s += works_s + out_s
    return outs


def _breakages(outs: list[list[tuple[float, float]]]) -> Breakages:
    rows = [
        (before, at, back, again)
        for slice_outs in outs
        for (at, back), before, again in zip(
            slice_outs,
            [-math.inf, *(back for _, back in slice_outs)],
            [*(at for at, _ in slice_outs[1:]), math.inf],
            strict=False,
        )
    ]
    since_s, at_s, back_s, again_s = np.array(rows, float).reshape(-1, 4).T
    lane = np.zeros(at_s.size, np.int64)
    chips = np.full(at_s.size, SLICE)
    return Breakages(lane=lane, chips=chips, since_s=since_s, at_s=at_s, back_s=back_s, again_s=again_s)


def _walk(fleet: Fleet, outs: list[list[tuple[float, float]]]) -> list[tuple[float, float, float]]:
    """(begin, end, share) of the stretches, by asking all slices after each stall what they do next."""
    stretches, begin = [], 0.0
    while True:
        stalls = []
        working = 0
        for slice_outs in outs:
            out_until = next((back for at, back in slice_outs if at <= begin < back), None)
            works_from = begin if out_until is None else out_until
            fails = next((at for at, _ in slice_outs if at > works_from), math.inf)
            if out_until is None:
                working += 1
                stalls.append((fails + fleet.notice_s, fleet.downscale_s))
                continue
            # It is out. The first of its returns that it survives until the others have waited enough takes it in.
            for _, back in slice_outs:
                fails = next((at for at, _ in slice_outs if at > back), math.inf)
                if back >= out_until and fails > back + fleet.merge_wait_s:
                    stalls.append((back + fleet.merge_wait_s, fleet.upscale_s))
                    break
        end, stall_s = min(stalls)
        stretches.append((begin, end, working / len(outs)))
        if math.isinf(end):
            return stretches
        begin = end + stall_s


def _fleet(learners: int, learner_chips: int, **settings: float) -> Fleet:
    return Fleet(learners=learners, chips=learners * learner_chips, **settings)


fleets = st.builds(
    _fleet,
    learners=st.integers(1, 4),
    learner_chips=st.integers(256, 30_000),
    interruption_s=st.floats(1e5, 1e8),
    return_s=st.floats(0, 5000),
    merge_wait_s=st.floats(0, 300),
    notice_s=st.floats(0, 20),
    speed_spread=st.sampled_from([0.0, 0.1]),
)


def _history(fleet: Fleet) -> Stretches:
    return play(fleet, horizon_s=50 * fleet.failure_s, replicas=3, seed=0)


@given(fleet=fleets)
def test_goodput_is_at_most_the_share_of_time_that_learners_train(fleet: Fleet) -> None:
    history = _history(fleet)
    goodput, uptime, training = measure(history)
    for shares in (goodput, uptime, training):
        assert np.all(shares >= 0) and np.all(shares <= 1 + 1e-12)
    assert np.all(goodput <= training + 1e-12) and np.all(training <= uptime + 1e-12)
    same_lane = history.lane[1:] == history.lane[:-1]
    assert np.all(history.begin_s[1:][same_lane] >= history.end_s[:-1][same_lane])
    assert np.all(history.begin_s <= history.end_s)


@given(fleet=fleets, factor=st.integers(2, 10))
def test_larger_slices_of_better_chips_change_nothing(fleet: Fleet, factor: int) -> None:
    """k times the chips, in slices k times as large, each chip lasting k times as long."""
    larger = msgspec.structs.replace(
        fleet,
        chips=factor * fleet.chips,
        slice_chips=factor * fleet.slice_chips,
        interruption_s=factor * fleet.interruption_s,
        speed_spread=0.0,
    )
    same = msgspec.structs.replace(fleet, speed_spread=0.0)
    for found, expected in zip(measure(_history(larger)), measure(_history(same)), strict=True):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(fleet=fleets)
def test_only_ratios_of_times_matter(fleet: Fleet) -> None:
    names = ("interruption_s", "return_s", "merge_wait_s", "notice_s", "downscale_s", "upscale_s")
    slower = msgspec.structs.replace(fleet, **{name: 8 * getattr(fleet, name) for name in names})
    for found, expected in zip(measure(_history(slower)), measure(_history(fleet)), strict=True):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


@settings(max_examples=15)
@given(
    chips=st.integers(100_000, 3_000_000),
    learners=st.sampled_from([1, 2, 4, 8]),
    more=st.sampled_from([2, 4]),
    seed=st.integers(0, 100),
)
def test_goodput_falls_with_the_rate_of_failures_and_rises_with_the_learners(
    chips: int, learners: int, more: int, seed: int
) -> None:
    base = Fleet(chips=chips, learners=learners)
    frailer = msgspec.structs.replace(base, interruption_s=base.interruption_s / more)
    split = msgspec.structs.replace(base, learners=learners * more)
    worse, middle, better = estimate([frailer, base, split], failures=4000, seed=seed)
    assert worse.goodput.value < middle.goodput.value < better.goodput.value
    assert middle.uptime.value <= better.uptime.value


@settings(max_examples=15)
@given(chips=st.integers(100_000, 3_000_000), seed=st.integers(0, 100))
def test_learners_behave_as_one_job_on_their_share_of_the_chips(chips: int, seed: int) -> None:
    split, alone = estimate([Fleet(chips=4 * chips, learners=4), Fleet(chips=chips, learners=1)], seed=seed)
    spread = (split.goodput.high - split.goodput.low) + (alone.goodput.high - alone.goodput.low)
    assert split.goodput.value == pytest.approx(alone.goodput.value, abs=spread)

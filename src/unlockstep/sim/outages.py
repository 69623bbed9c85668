"""What happens to a fleet: which slices fail and return when, and from when to when each learner trains, how fast.

Decides the mechanism (paper, section 4.4, point 4). An elastic learner that loses a slice stalls (downscale) and goes
on narrower. A slice that is back waits a while for a reconfiguration that happens anyway, else it causes a stall of its
own (upscale). What fails or returns during a stall is settled by it without prolonging it, and a slice that is out
cannot fail. A learner that is not elastic stalls at every failure, on a spare for a short time or else for a restart,
and loses what it did since its last checkpoint. Does not decide what the times are (``fleet``) or what they amount to
(``goodput``).

The mechanism looks sequential: whether an event stalls a learner depends on the stall before. It is computed in two
steps that are not. First all failures and returns are drawn, which stalls do not influence. Then every event becomes a
*trigger* with two bounds, and with e the end of the learner's latest stall, ::

    a trigger stalls its learner  if and only if  since <= e < before

A failure of a slice that came back at r and fails at t has since = r (it has been taken in again) and before = t (the
stall is over). A return at r has before = r: no stall has ended since, so nobody has taken it in. One pass over the
triggers in order of time, all learners of all replicas at once, finds the stalls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from unlockstep.core.errors import ConfigError
from unlockstep.sim.fleet import Fleet, Float64Array, IntArray

EVENTS_MAX = 2**24
"""Slices and failures of one fleet held in memory at once: some 4 GB, were all of them failures."""

SETTLED = 0.999
"""The warm-up is long enough for this share of the slices that are out when it begins to be back when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """The times in which learners train, each as long as speed stays the same. All arrays have one entry a stretch.

    Sorted by lane, then by time. Lane ``replica * learners + learner``. A stretch may begin before 0 or end after
    ``horizon_s``, where nobody looks any more.

    One learner of four slices, with no notice, stalls of 5 s (downscale) and 3 s (upscale) and 20 s of waiting. A slice
    fails at 100 s and is back at 1000 s, and nothing else happens. It has three stretches::

        begin_s   end_s    rate
        -12       100      1       all four slices
        105       1020     0.75    three; from 1000 s on the fourth waits, in vain, for another stall
        1023      inf      1       four again
    """

    fleet: Fleet
    horizon_s: float
    replicas: int
    failures: int
    """Failures that happened from 0 to the horizon, in all replicas."""
    lane: IntArray
    begin_s: Float64Array
    end_s: Float64Array
    rate: Float64Array
    """Training that counted, over what all chips of the learner do at the mean speed; never 0."""


def play(fleet: Fleet, *, horizon_s: float, replicas: int, seed: int) -> Stretches:
    """Histories of a fleet from time 0, when it has been running for long, to ``horizon_s``.

    Args:
        fleet: what fails, and what then happens.
        horizon_s: length of each history, seconds.
        replicas: independent histories.
        seed: the same arguments give the same histories, bit for bit.

    Raises:
        ConfigError: more events than fit into memory.
    """
    cycle_s = fleet.notice_s + fleet.longest_stall_s + min(fleet.longest_stall_s, fleet.learner_failure_s)
    settle_s = float(fleet.return_quantile(np.array(SETTLED))) + fleet.merge_wait_s
    span = _Span(from_s=-settle_s - 2 * cycle_s, to_s=horizon_s, replicas=replicas)
    _check_size(fleet, span)
    random = np.random.default_rng(seed)
    # Learners begin at different moments of a cycle of stall and work: where stalls are long they would else keep step.
    first_s = -cycle_s * (1 + random.random(replicas * fleet.learners))
    if fleet.elastic:
        breakages = _slices_that_alternate(fleet, span, random)
        lane, begin_s, end_s = between_stalls(elastic_triggers(fleet, breakages), first_s)
        rate = width(fleet, breakages, lane, begin_s)
    else:
        breakages = _poisson_failures(fleet, span, random)
        lane, begin_s, end_s = between_stalls(_rigid_triggers(fleet, breakages), first_s)
        rate = _kept(fleet, end_s - begin_s)
    rate = rate * _slowest_chip(fleet, random, replicas)[lane]
    trains = rate > 0
    return Stretches(
        fleet=fleet,
        horizon_s=horizon_s,
        replicas=replicas,
        failures=int(np.count_nonzero((breakages.at_s >= 0) & (breakages.at_s < horizon_s))),
        lane=lane[trains],
        begin_s=begin_s[trains],
        end_s=end_s[trains],
        rate=rate[trains],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """What is simulated: this time, warm-up included, so many times."""

    from_s: float
    to_s: float
    replicas: int


def _check_size(fleet: Fleet, span: _Span) -> None:
    slices = fleet.working_chips / fleet.slice_chips
    alternation_s = fleet.interruption_s / fleet.slice_chips + fleet.return_s
    alternating = slices * (1 + (span.to_s - span.from_s) / alternation_s)
    events = span.replicas * (alternating if fleet.elastic else fleet.learners * _failures_drawn(fleet, span))
    if events > EVENTS_MAX:
        raise ConfigError(
            f"chips is {fleet.chips}, and what fails and returns in the simulated time makes {events:.3g} events, "
            f"more than {EVENTS_MAX}; choose larger slices (slice_chips), fewer failures, a longer interruption_s, a "
            "shorter tape, or shorter stalls and returns, which set the warm-up"
        )


# ------------------------------------------------------------------------------------------- what fails, and when


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakages:
    """Failures of slices, one entry each.

    A learner that is not elastic fails as one whole. Of its failures ``lane`` and ``at_s`` count, and ``back_s`` if
    there are spares; ``chips``, ``since_s`` (-inf) and ``again_s`` (inf) are filler.
    """

    lane: IntArray
    chips: IntArray
    """How many the slice has."""
    since_s: Float64Array
    """When it last came back; -inf at first."""
    at_s: Float64Array
    back_s: Float64Array
    again_s: Float64Array
    """When it next fails."""


def _slices_that_alternate(fleet: Fleet, span: _Span, random: np.random.Generator) -> Breakages:
    """Each slice on its own: works for an exponential time, is out for an exponentiated Weibull one, and so on.

    The chips' Poisson processes have no memory, so leaving out the failures of slices that are out changes nothing.
    All slices take their k-th turn together; few are left after the first.
    """
    learner, chips = _slices(fleet)
    lane = np.add.outer(np.arange(span.replicas) * fleet.learners, learner).ravel()
    chips = np.tile(chips, span.replicas)
    since_s = np.full(lane.size, -np.inf)
    at_s = span.from_s + fleet.interruption_s / chips * random.standard_exponential(lane.size)
    turns: list[Breakages] = []
    while not turns or turns[-1].lane.size:
        fails = at_s < span.to_s
        lane, chips, since_s, at_s = lane[fails], chips[fails], since_s[fails], at_s[fails]
        back_s = at_s + fleet.draw_returns(random, at_s.size)
        again_s = back_s + fleet.interruption_s / chips * random.standard_exponential(at_s.size)
        turns.append(Breakages(lane=lane, chips=chips, since_s=since_s, at_s=at_s, back_s=back_s, again_s=again_s))
        since_s, at_s = back_s, again_s
    columns = {name: np.concatenate([getattr(turn, name) for turn in turns]) for name in Breakages.__slots__}
    return Breakages(**columns)


def _slices(fleet: Fleet) -> tuple[IntArray, IntArray]:
    """(learner, chips) of every slice: whole ones, and one of what is left over for each learner."""
    learner_chips = fleet.learner_chips()
    counts = -(-learner_chips // fleet.slice_chips)
    chips = np.full(counts.sum(), fleet.slice_chips)
    chips[np.cumsum(counts) - 1] = learner_chips - fleet.slice_chips * (counts - 1)
    return np.repeat(np.arange(fleet.learners), counts), chips


def _poisson_failures(fleet: Fleet, span: _Span, random: np.random.Generator) -> Breakages:
    """Failures of learners that always have all their chips; spares do not fail while they wait.

    They go on a little beyond the span: what the last stretch was worth is known only when it ends.
    """
    lanes = span.replicas * fleet.learners
    shape = (lanes, _failures_drawn(fleet, span))
    mean_s = fleet.interruption_s / np.tile(fleet.learner_chips(), span.replicas)
    at_s = (span.from_s + np.cumsum(mean_s[:, None] * random.standard_exponential(shape), axis=1)).ravel()
    return Breakages(
        lane=np.repeat(np.arange(lanes), shape[1]),
        chips=np.full(at_s.size, fleet.slice_chips),
        since_s=np.full(at_s.size, -np.inf),
        at_s=at_s,
        back_s=at_s + fleet.draw_returns(random, at_s.size),
        again_s=np.full(at_s.size, np.inf),
    )


def _failures_drawn(fleet: Fleet, span: _Span) -> int:
    """So many of a learner that is not elastic reach beyond the span, as good as certainly."""
    expected = (span.to_s - span.from_s) / fleet.learner_failure_s
    return int(expected + 8 * math.sqrt(expected)) + 16


def _slowest_chip(fleet: Fleet, random: np.random.Generator, replicas: int) -> Float64Array:
    """Speed of each learner, [replicas * M]: the least of its chips' lognormal speeds, whose mean is 1.

    The least of n draws has the law 1 - (1 - F)^n, which one uniform draw inverts. Which slices are in does not
    change it: almost all are at almost all times.
    """
    chips = np.tile(fleet.learner_chips(), replicas)
    if not fleet.speed_spread:
        return np.ones(chips.size)
    variance = math.log1p(fleet.speed_spread**2)
    shares = -np.expm1(np.log1p(-random.random(chips.size)) / chips)
    normal = np.array([NormalDist().inv_cdf(max(share, 1e-300)) for share in shares.tolist()])
    speeds: Float64Array = np.exp(math.sqrt(variance) * normal - variance / 2)
    return speeds


# ----------------------------------------------------------------------------------------------- what stalls whom


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggers:
    """What may stall a learner, one entry each: it does if ``since_s <= e < before_s``, e the end of the last stall.

    Returns, and failures of a learner that is not elastic, have no lower bound: their ``since_s`` is -inf.
    """

    lane: IntArray
    since_s: Float64Array
    before_s: Float64Array
    start_s: Float64Array
    end_s: Float64Array


def elastic_triggers(fleet: Fleet, breakages: Breakages) -> Triggers:
    """A learner stalls when a slice that is in fails, and when one that is back has waited long enough."""
    loss_s = breakages.at_s + fleet.notice_s
    merge_s = breakages.back_s + fleet.merge_wait_s
    waits = breakages.again_s > merge_s  # a slice that fails while it waits is not taken in
    return Triggers(
        lane=np.concatenate([breakages.lane, breakages.lane[waits]]),
        since_s=np.concatenate([breakages.since_s, np.full(np.count_nonzero(waits), -np.inf)]),
        before_s=np.concatenate([breakages.at_s, breakages.back_s[waits]]),
        start_s=np.concatenate([loss_s, merge_s[waits]]),
        end_s=np.concatenate([loss_s + fleet.downscale_s, merge_s[waits] + fleet.upscale_s]),
    )


def _rigid_triggers(fleet: Fleet, breakages: Breakages) -> Triggers:
    """A failure during a stall is settled by it too, but takes a spare all the same."""
    stall_s = np.full(breakages.at_s.size, fleet.restart_s)
    if fleet.spares:
        replica = breakages.lane // fleet.learners
        moments = np.concatenate([breakages.at_s, breakages.back_s])
        change = np.repeat([1, -1], breakages.at_s.size)
        out = _sum_until(np.tile(replica, 2), moments, change, replica, breakages.at_s)
        stall_s[out <= fleet.spares] = fleet.swap_s
    start_s = breakages.at_s + fleet.notice_s
    return Triggers(
        lane=breakages.lane,
        since_s=breakages.since_s,
        before_s=breakages.at_s,
        start_s=start_s,
        end_s=start_s + stall_s,
    )


def between_stalls(triggers: Triggers, first_s: Float64Array) -> tuple[IntArray, Float64Array, Float64Array]:
    """(lane, begin, end) of the stretches between stalls, in order of lane and time.

    Args:
        triggers: in any order.
        first_s: when each lane begins to train, [lanes].
    """
    lanes = np.arange(first_s.size)
    order = np.lexsort((triggers.start_s, triggers.lane))
    lane = triggers.lane[order]
    counts = np.bincount(lane, minlength=lanes.size)
    turn = np.arange(lane.size) - (np.cumsum(counts) - counts)[lane]

    def by_turn(values: Float64Array, missing: float = np.inf) -> Float64Array:
        """[turns, lanes], so that one turn of all lanes lies together in memory."""
        table = np.full((counts.max(initial=0), lanes.size), missing)
        table[turn, lane] = values[order]
        return table

    stalls = np.zeros((counts.max(initial=0), lanes.size), bool)
    trains_from_s = first_s
    rows = zip(by_turn(triggers.since_s), by_turn(triggers.before_s), by_turn(triggers.end_s), stalls, strict=True)
    for since_s, before_s, end_s, stalled in rows:
        np.logical_and(since_s <= trains_from_s, trains_from_s < before_s, out=stalled)
        trains_from_s = np.where(stalled, end_s, trains_from_s)

    hits = order[stalls[turn, lane]]
    stretch_lane = np.concatenate([lanes, triggers.lane[hits]])
    by_lane = np.argsort(stretch_lane, kind="stable")
    stretch_lane = stretch_lane[by_lane]
    begin_s = np.concatenate([first_s, triggers.end_s[hits]])[by_lane]
    end_s = np.full(begin_s.size, np.inf)
    end_s[:-1][stretch_lane[1:] == stretch_lane[:-1]] = triggers.start_s[hits]
    return stretch_lane, begin_s, end_s


# ------------------------------------------------------------------------------------------- how much work counts


def width(fleet: Fleet, breakages: Breakages, lane: IntArray, begin_s: Float64Array) -> Float64Array:
    """Share of its chips that each stretch trains on: all that are not out when it begins."""
    moments = np.concatenate([breakages.at_s, breakages.back_s])
    change = np.concatenate([breakages.chips, -breakages.chips])
    out = _sum_until(np.tile(breakages.lane, 2), moments, change, lane, begin_s)
    chips = fleet.learner_chips()[lane % fleet.learners]
    return 1 - out / chips


def _kept(fleet: Fleet, length_s: Float64Array) -> Float64Array:
    """Share of each stretch that neither went into a checkpoint nor was lost after the last one."""
    interval_s = fleet.checkpoint_interval(fleet.learner_failure_s)
    if not interval_s:
        return np.ones(length_s.size)
    turn_s = interval_s + fleet.checkpoint_s
    known_s = np.where(np.isinf(length_s), turn_s, length_s)
    return np.divide(interval_s * (known_s // turn_s), known_s, out=np.zeros(known_s.size), where=known_s > 0)


def _sum_until(
    group: IntArray, at_s: Float64Array, change: IntArray, asked_group: IntArray, asked_s: Float64Array
) -> IntArray:
    """Sum of a group's changes up to and including a moment, for each (group, moment) asked.

    All changes of a group must add up to 0: one sum runs through all groups.
    """
    groups = np.concatenate([group, asked_group])
    order = np.lexsort((np.concatenate([at_s, asked_s]), groups))
    sums = np.empty(groups.size, np.int64)
    sums[order] = np.cumsum(np.concatenate([change, np.zeros(asked_s.size, np.int64)])[order])
    return sums[group.size :]

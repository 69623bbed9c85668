"""What a fleet achieves: goodput, uptime and participation, each with its 95 % confidence interval.

Decides what the three mean and how sure an estimate is. Does not decide what happens to a fleet (``outages``).

Goodput: training that counted, over what all chips would have done at the mean speed and without a failure.
Uptime: share of time in which at least one learner trains. Participation: mean share of the learners that train, over
the time in which at least one does (in a run that is contributions over live learners, of rounds that did take place).
(paper, section 4.2; the third is ours.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from unlockstep.core.errors import UsageError
from unlockstep.sim.fleet import Fleet, Float64Array, IntArray
from unlockstep.sim.outages import Stretches, play

REPLICAS = 40
"""Independent histories an estimate is cut into, to know how much they differ."""

STUDENT_95 = 2.023
"""Quantile of Student's t with 39 degrees of freedom that leaves 2.5 % on each side."""

FAILURES = 30_000
"""Enough to know a goodput to about half a point; the paper's table takes a second."""

FAILURES_MAX = 10**7


class Interval(msgspec.Struct, frozen=True):
    """A share with its 95 % confidence interval."""

    value: float
    low: float
    high: float


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What one fleet achieves, as shares."""

    goodput: Interval
    uptime: Interval
    participation: Interval
    failures: int
    """Failures seen. Slices that are out do not fail, so it is a little less than was asked for."""
    simulated_s: float
    """Time it took them, seconds."""


def estimate(fleets: Sequence[Fleet], *, failures: int = FAILURES, seed: int = 0) -> list[Estimate]:
    """Simulates each fleet for the time in which it has this many failures on average.

    Every fleet is simulated as if alone, from the same seed: an estimate does not depend on its neighbours.

    Raises:
        UsageError: failures or seed out of range, or a fleet too large to simulate.
    """
    if not 1 <= failures <= FAILURES_MAX:
        raise UsageError(f"failures is {failures!r}; choose 1 to {FAILURES_MAX}")
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed is {seed!r}; choose a whole number from 0 to 2**63 - 1")
    return [_estimate(fleet, failures, seed) for fleet in fleets]


def measure(stretches: Stretches) -> tuple[Float64Array, Float64Array, Float64Array]:
    """(goodput, uptime, training) of each replica; training: the mean share of learners that train."""
    fleet, replicas, horizon_s = stretches.fleet, stretches.replicas, stretches.horizon_s
    replica, learner = np.divmod(stretches.lane, fleet.learners)
    begin = np.clip(stretches.begin_s / horizon_s, 0, 1)
    end = np.clip(stretches.end_s / horizon_s, 0, 1)
    worth = stretches.rate * fleet.learner_chips()[learner] / fleet.chips
    goodput = _per_replica(replica, (end - begin) * worth, replicas)
    training = _per_replica(replica, end - begin, replicas) / fleet.learners
    uptime = 1 - _gaps(replica, begin, end, replicas)
    return goodput, uptime, training


def independent_uptime(goodput: float, learners: int) -> float:
    """1 - (1 - goodput)^M: uptime of M learners that each train for this share of the time (paper, section 4.2)."""
    return -math.expm1(learners * math.log1p(-goodput)) if goodput < 1 else 1.0


def _estimate(fleet: Fleet, failures: int, seed: int) -> Estimate:
    simulated_s = failures * fleet.failure_s
    stretches = play(fleet, horizon_s=simulated_s / REPLICAS, replicas=REPLICAS, seed=seed)
    goodput, uptime, training = measure(stretches)
    return Estimate(
        goodput=_interval(goodput, failures),
        uptime=_interval(uptime, failures),
        participation=_interval(_ratio(training, uptime), failures),
        failures=stretches.failures,
        simulated_s=simulated_s,
    )


def _gaps(replica: IntArray, begin: Float64Array, end: Float64Array, replicas: int) -> Float64Array:
    """Share of each replica's time from 0 to 1 that no interval covers.

    The replicas are laid end to end on one axis, so that one sort and one running maximum serve all of them. An empty
    interval at both ends of each keeps a gap from reaching into the next. Where nothing is uncovered the gap is 0, with
    no rounding.
    """
    ends = np.repeat(np.arange(replicas), 2)
    bounds = np.tile([0.0, 1.0], replicas)
    owner = np.concatenate([ends, replica])
    begin = np.concatenate([bounds, begin]) + owner
    end = np.concatenate([bounds, end]) + owner
    order = np.lexsort((end, begin))
    owner, begin, end = owner[order], begin[order], end[order]
    covered = np.maximum.accumulate(end)
    return _per_replica(owner[1:], np.maximum(begin[1:] - covered[:-1], 0), replicas)


def _per_replica(replica: IntArray, amounts: Float64Array, replicas: int) -> Float64Array:
    return np.bincount(replica, amounts, replicas).astype(np.float64)


def _ratio(parts: Float64Array, wholes: Float64Array) -> Float64Array:
    """Samples whose mean is the sum of the parts over that of the wholes, 0 if there is none.

    They vary as that ratio does (its linear terms). A mean of the samples' own ratios would be another number where
    histories are short: it counts one in which hardly anybody trains as much as any other.
    """
    whole = np.mean(wholes)
    if whole == 0:
        return np.zeros_like(parts)
    ratio = np.mean(parts) / whole
    samples: Float64Array = ratio + (parts - ratio * wholes) / whole
    return samples


def _interval(samples: Float64Array, failures: int) -> Interval:
    """Mean of independent samples of a share, with Wilson's score interval around it.

    Wilson's interval needs a number of trials. It is the one whose binomial variance is the variance seen,
    n = p (1 - p) / (s^2 / R), so that well inside (0, 1) this is Student's interval, and near its ends it stays within
    them. Where the samples do not vary, as with an uptime of 1, each failure counts as one trial. Source: Wilson 1927.
    """
    value = float(np.clip(np.mean(samples), 0, 1))
    variance = float(np.var(samples, ddof=1)) / len(samples)
    spread = value * (1 - value)
    trials = spread / variance if variance > 1e-20 and spread > 0 else float(failures)
    weight = STUDENT_95**2 / trials
    middle = (value + weight / 2) / (1 + weight)
    half = math.sqrt(weight * spread + weight**2 / 4) / (1 + weight)
    return Interval(value=value, low=max(0.0, min(middle - half, value)), high=min(1.0, max(middle + half, value)))

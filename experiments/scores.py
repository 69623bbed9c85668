"""How the run log of a trial becomes the numbers that are kept of it.

Decides what each number is. Does not decide which are kept (``result_file``) or how a trial is carried out (``trial``).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from result_file import Picture, RingScore, RoundSpan

from unlockstep.config import RunConfig
from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    FragmentCommitted,
    LearnerAway,
    RoundClosed,
    RunFinishing,
    StepReported,
)
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.status import LedgerStatus


def ring_score(events: Sequence[Event], config: RunConfig, ledger: LedgerStatus, sizes: Sequence[int]) -> RingScore:
    """What the run log says of the protocol. ``sizes``: elements of each fragment."""
    closed = [event for event in events if isinstance(event, RoundClosed)]
    made = [event for event in events if isinstance(event, ContributionAccepted)]
    reached_ns = finished_ns(events)
    per_fragment = [0] * config.protocol.fragments
    for event in closed:
        per_fragment[event.fragment] += 1
    contribution, merged, ratio = _norms(events)
    step_s = config.virtual.step_s
    return RingScore(
        rounds=len(closed),
        rounds_per_fragment=tuple(per_fragment),
        participants=_mean(len(event.participants) for event in closed),
        live=_mean(event.live for event in closed),
        staleness=_mean(event.staleness for event in made),
        staleness_max=max((event.staleness for event in made), default=0),
        steps_per_contribution=_mean(event.c_steps for event in made),
        deaths=sum(isinstance(event, LearnerAway) for event in events),
        time_s=reached_ns / NANOSECONDS_PER_SECOND,
        ideal_s=config.run.steps * step_s,
        ledger=ledger,
        open_steps=_mean(event.open_ns / NANOSECONDS_PER_SECOND / step_s for event in closed),
        idle=_idle(events, reached_ns),
        lockstep_idle=_lockstep_idle(events, reached_ns),
        fragment_elements=tuple(sizes),
        contribution_norm=contribution,
        merged_norm=merged,
        norm_ratio=ratio,
    )


def finished_ns(events: Iterable[Event]) -> int:
    """When the tokens of the trial were trained."""
    return next(event.at_ns for event in events if isinstance(event, RunFinishing))


def picture_of(events: Sequence[Event], begin_s: float, end_s: float) -> Picture:
    """What happened from ``begin_s`` to ``end_s``."""
    steps: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rounds = []
    for event in events:
        at_s = event.at_ns / NANOSECONDS_PER_SECOND
        if isinstance(event, StepReported):
            began_s = at_s - event.step_ns / NANOSECONDS_PER_SECOND
            if began_s < end_s and at_s > begin_s:
                steps[event.learner].append((round(began_s, 3), round(at_s, 3)))
        if isinstance(event, RoundClosed):
            opened_s = at_s - event.open_ns / NANOSECONDS_PER_SECOND
            if opened_s < end_s and at_s > begin_s:
                quorum_s = opened_s + event.quorum_ns / NANOSECONDS_PER_SECOND
                spans = (round(opened_s, 3), round(quorum_s, 3), round(at_s, 3))
                rounds.append(RoundSpan(event.fragment, *spans, event.participants))
    return Picture({name: tuple(found) for name, found in sorted(steps.items())}, tuple(rounds))


def _idle(events: Sequence[Event], until_ns: int) -> float:
    """Of the time from a learner's first step to its last one, that in which it took none."""
    begun_ns: dict[str, int] = {}
    ended_ns: dict[str, int] = {}
    busy_ns = 0
    for event in events:
        if isinstance(event, StepReported) and event.at_ns <= until_ns:
            begun_ns.setdefault(event.learner, event.at_ns - event.step_ns)
            ended_ns[event.learner] = event.at_ns
            busy_ns += event.step_ns
    spans_ns = sum(ended_ns[learner] - begun for learner, begun in begun_ns.items())
    return round(max(0.0, 1 - busy_ns / spans_ns), 4) if spans_ns else 0.0


def _lockstep_idle(events: Sequence[Event], until_ns: int) -> float:
    """1 - (mean over learners of a step's length) / (mean of the longest of all learners' k-th step)."""
    lengths: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, StepReported) and event.at_ns <= until_ns:
            lengths[event.learner].append(event.step_ns)
    rows = list(zip(*lengths.values(), strict=False))
    if not rows:
        return 0.0
    return round(1 - statistics.fmean(map(statistics.fmean, rows)) / statistics.fmean(map(max, rows)), 4)


def _norms(events: Sequence[Event]) -> tuple[float, float, float]:
    """(contributed, merged, their ratio), means over the second half of the commits: the first warms up."""
    waiting: dict[int, dict[str, float]] = defaultdict(dict)
    found: list[tuple[float, float]] = []
    for event in events:
        if isinstance(event, ContributionAccepted):
            waiting[event.fragment][event.learner] = event.norm
        if isinstance(event, FragmentCommitted):
            # A contribution that came too late for this round waits for the fragment's next one.
            there = waiting[event.fragment]
            mine = {name: there.pop(name) for name in event.weights if name in there}
            if len(mine) == len(event.weights):
                found.append((sum(event.weights[name] * norm for name, norm in mine.items()), event.norm))
    half = [(mine, merged) for mine, merged in found[len(found) // 2 :] if mine > 0]
    if not half:
        return 0.0, 0.0, 0.0
    return (
        _mean((mine for mine, _ in half), 5),
        _mean((merged for _, merged in half), 5),
        _mean((merged / mine for mine, merged in half), 4),
    )


def _mean(values: Iterable[float], digits: int = 3) -> float:
    listed = list(values)
    return round(sum(listed) / len(listed), digits) if listed else 0.0

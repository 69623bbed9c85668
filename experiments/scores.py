"""What a trial is, as data, and what is kept of it.

Decides the records of the result files, and how the run log of a trial becomes the numbers in them. Does not decide
how a trial is carried out (``trial``) or which there are. What a result file holds stays readable: a field that is new
has a default.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from unlockstep.config import RunConfig
from unlockstep.core import status
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
from unlockstep.sim.fleet import Fleet
from unlockstep.tape import Action, Join, Kill, Leave, Restart, Tape

STEP_NS = 100_000_000
"""Virtual duration of an inner step of a learner that is not slowed down, unless ``virtual.step_s`` is set."""


class Failures(msgspec.Struct, frozen=True):
    """Every learner's process dies again and again, the learners evenly staggered; the next one starts from nothing."""

    every_steps: int
    """From one death of a learner to its next, in steps of a learner that is not slowed down."""
    down_steps: int
    """From a death to the start of the next process."""


class Visits(msgspec.Struct, frozen=True):
    """Extra learners that are there for part of the time, all of them at every visit, one after the other."""

    learners: int
    at_steps: tuple[int, ...]
    """When the first of them comes, in steps of a learner that is not slowed down, from the start of the run."""
    steps: int
    """How long each stays, from the start of its process to its being told to go."""
    stagger_steps: int
    """From one learner's coming to the next one's, and so from one's going to the next one's."""
    in_order: bool = True
    """They leave when told to. False: they are killed without a word."""

    @property
    def learner_steps(self) -> int:
        """Steps of all of them together, if none of the time is lost."""
        return self.learners * len(self.at_steps) * self.steps

    @property
    def end_steps(self) -> int:
        """When the last of them has gone."""
        return max(self.at_steps) + self.steps + (self.learners - 1) * self.stagger_steps

    def tape(self) -> Tape:
        """All of it as an event tape."""
        actions: list[Action] = []
        for visit, begins in enumerate(self.at_steps):
            comes = Restart if visit and not self.in_order else Join
            for number in range(self.learners):
                name, at_steps = f"extra{number}", begins + number * self.stagger_steps
                actions.append(comes(at_ns=at_steps * STEP_NS, target=name))
                goes = Leave if self.in_order else Kill
                actions.append(goes(at_ns=(at_steps + self.steps) * STEP_NS, target=name))
        return Tape(name="visits", learners=(), actions=tuple(sorted(actions, key=lambda action: action.at_ns)))


class Storm(msgspec.Struct, frozen=True):
    """What happens to a simulated fleet (``sim.fleet``), to be lived through: its seconds are those of the run."""

    chips: int
    learners: int
    """1 for data-parallel training."""
    goodput: float
    """What is expected of it (``sim.goodput``), for the length of the schedule."""

    @property
    def fleet(self) -> Fleet:
        return Fleet(chips=self.chips, learners=self.learners)


class Trial(msgspec.Struct, frozen=True):
    """What is tried."""

    name: str
    settings: tuple[str, ...]
    """What differs from the default configuration, as ``--set`` takes it."""
    tokens: int
    """Trained by all learners together. Number of steps and end of the schedule follow from it."""
    alone: bool = False
    """No protocol: one model, plain AdamW. Data-parallel training is this with the batch of all learners together."""
    failures: Failures | None = None
    visits: Visits | None = None
    """Beside ``local.learners``, which are there all the time."""
    curve_points: int = 4
    """Evaluations, evenly spread over the tokens; the last one is the end."""
    storm: Storm | None = None
    """With ``alone``: elastic data-parallel training, whose batch is that of the chips that are there."""
    picture: tuple[float, float] | None = None
    """From when to when all that happens is kept, virtual seconds."""


class RingScore(msgspec.Struct, frozen=True):
    """How the protocol went."""

    rounds: int
    rounds_per_fragment: tuple[int, ...]
    participants: float
    """Mean over closed rounds."""
    live: float
    """Learners alive, mean over closed rounds."""
    staleness: float
    """Versions a contribution was behind, mean."""
    staleness_max: int
    steps_per_contribution: float
    deaths: int
    time_s: float
    """Virtual, until ``Trial.tokens`` were trained."""
    ideal_s: float
    """The same, if everybody trained all the time that it is there: a formula, of nothing that was measured."""
    ledger: LedgerStatus
    open_steps: float = 0.0
    """How long a round was open, mean, in steps of a learner that is not slowed down."""
    idle: float = 0.0
    """Share of the learners' time, from the first step of each to its last, in which it took none."""
    lockstep_idle: float = 0.0
    """The same if each of these steps had waited for the slowest learner's: computed from the steps as they were."""
    fragment_elements: tuple[int, ...] = ()
    contribution_norm: float = 0.0
    """Norm of a learner's outer gradient of one fragment, mean over the second half of the commits."""
    merged_norm: float = 0.0
    """... and of the merged one."""
    norm_ratio: float = 0.0
    """Merged over the mean of those it was merged of, mean over the same commits."""


class FleetScore(msgspec.Struct, frozen=True):
    """A run through what happens to a fleet, against what the simulator says of the same history."""

    goodput: float
    """Tokens that counted, over what everybody could train in that time."""
    simulated: float
    """Goodput of the same stretch of the same history."""
    time_s: float
    failures: int
    """In all of the fleet, until the run was over."""


class RoundSpan(msgspec.Struct, frozen=True):
    """A round in a picture, virtual seconds."""

    fragment: int
    opened_s: float
    quorum_s: float
    closed_s: float
    participants: tuple[str, ...]


class Picture(msgspec.Struct, frozen=True):
    """All that happened in a stretch of a run."""

    steps: dict[str, tuple[tuple[float, float], ...]]
    """Learner to its inner steps: (begin, end), virtual seconds."""
    rounds: tuple[RoundSpan, ...]


class Score(msgspec.Struct, frozen=True):
    """What came out. Losses are those of the validation text, nats per byte."""

    trial: Trial
    seed: int
    tokens: int
    """Trained by all learners together."""
    steps: int
    """Inner steps of the fastest learner."""
    loss: float
    curve: tuple[tuple[int, float], ...]
    """(tokens, loss) along the way."""
    seconds: float
    """Wall time of the trial."""
    ring: RingScore | None = None
    """None without a protocol."""
    others: tuple[status.Score, ...] = ()
    """What else the final model is asked: the labels of images."""
    curve_s: tuple[float, ...] = ()
    """When each point of the curve was reached, virtual seconds."""
    fleet: FleetScore | None = None
    picture: Picture | None = None


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

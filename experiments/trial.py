"""One trial: a recipe trained by a whole ring under virtual time, or by plain AdamW, scored on the same text.

Decides what happens in a trial. Does not decide which recipes are tried (the experiments beside this file), what a
score is (``scores``), how results are kept (``sheet``) or what a recipe does: the ring is that of ``train --virtual``,
so a trial repeats bit for bit on the same machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import msgspec
from result_file import FleetScore, Score, Storm, Trial, Visits
from scores import finished_ns, picture_of, ring_score
from torch import nn

from unlockstep.cli.assembly import Text, load_text, new_backend
from unlockstep.cli.evaluator import Examiner
from unlockstep.config import DataSection, RunConfig, apply
from unlockstep.core import status
from unlockstep.core.chunks import Float32
from unlockstep.core.events import Event, StepReported
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.learners.evaluation import Tokens
from unlockstep.learners.torch_backend import Batches, TorchBackend
from unlockstep.models.presets import llama
from unlockstep.report.accounting import account
from unlockstep.sim.fleet import Fleet
from unlockstep.sim.fleet_tape import fleet_tape
from unlockstep.sim.goodput import measure
from unlockstep.sim.outages import Stretches, play
from unlockstep.tape import Action, Join, Kill, Leave, Restart, Tape, Throttle
from unlockstep.virtual.ring import Ring

__all__ = ["STEP_NS", "Trial", "carry_settings", "configured", "llama_deep", "llama_quarter", "run"]

STEP_NS = 100_000_000
"""Virtual duration of an inner step of a learner that is not slowed down, unless ``virtual.step_s`` is set."""

SCORED = ("evaluation.batches=32", "evaluation.batch_size=16")
"""What trials are scored on: four times the text of a run's evaluator."""

STORM_MARGIN = 2
"""A history is so many times as long as the run should take."""

Verdict: TypeAlias = tuple[float, tuple[status.Score, ...]]
"""Loss of the text, nats per byte, and the other scores."""

Show = Callable[[int, float | None], None]
"""(tokens trained so far, last validation loss) -> something for people to look at."""


def carry_settings(learners: int) -> tuple[str, ...]:
    """So many learners of ``llama_quarter`` under one recipe, P = 12 and H = 24: what the experiments share in which
    learners come and go, die, or lag."""
    return (
        "model.spec=trial:llama_quarter",
        "data.sequence_length=64",
        "inner.batch_size=4",
        "inner.learning_rate=6e-3",
        "inner.warmup_steps=30",
        "inner.beta2=0.99",
        "inner.final_share=0.3",
        f"local.learners={learners}",
        "outer.optimizer=nesterov",
        "outer.learning_rate=0.7",
        "outer.momentum=0.0",
        "outer.merge=rda",
        "adoption.mode=carry",
        "protocol.fragments=12",
        "protocol.interval_steps=24",
    )


def llama_quarter(vocabulary_size: int) -> nn.Module:
    """A Llama of 0.25 M parameters (256 ids), for searches: ``model.spec=trial:llama_quarter``."""
    return llama(vocabulary_size, hidden_size=96, feed_forward_size=256, layers=2, heads=3)


def llama_deep(vocabulary_size: int) -> nn.Module:
    """A Llama of 0.30 M parameters (256 ids) in six layers, where layers are to be told apart."""
    return llama(vocabulary_size, hidden_size=64, feed_forward_size=160, layers=6, heads=2)


def configured(trial: Trial, seed: int) -> RunConfig:
    """The trial's configuration: ``trial.tokens`` end it, and ``run.steps`` is when that will be on the clock.

    A learner slowed down k times counts as 1/k: the clock, which the schedule follows, is that of the fastest. One that
    is away for a share of the time counts for the rest of it, and what visitors train need not be trained by others.
    """
    config = apply(RunConfig(), [*trial.settings, f"run.seed={seed}", f"run.tokens={trial.tokens}"])
    local, failures, visits = config.local, trial.failures, trial.visits
    speeds = sum(1 / factor for factor in local.slowdown) + local.learners - len(local.slowdown)
    present = 1.0 if failures is None else 1 - failures.down_steps / failures.every_steps
    if trial.storm is not None and not trial.alone:
        present = trial.storm.goodput
    rate = tokens_per_step(config) * (1 if trial.alone else speeds * present)
    brought = 0 if visits is None else tokens_per_step(config) * visits.learner_steps
    steps = math.ceil((trial.tokens - brought) / rate)
    assert visits is None or visits.end_steps < steps, f"{trial.name}: the last visit ends after the run"
    return apply(config, [f"run.steps={steps}"])


def tokens_per_step(config: RunConfig) -> int:
    """Tokens one learner trains on in one inner step."""
    return config.inner.batch_size * config.inner.accumulation * config.data.sequence_length


def run(trial: Trial, seed: int, show: Show) -> Score:
    """Carry out a trial. Equal arguments give equal scores, but for the seconds."""
    config = configured(trial, seed)
    started_s = time.monotonic()
    score = _train_alone(trial, config, show) if trial.alone else _train_ring(trial, config, show)
    return msgspec.structs.replace(score, seconds=round(time.monotonic() - started_s, 1))


def _train_ring(trial: Trial, config: RunConfig, show: Show) -> Score:
    tape = _tape(trial, config)
    ring = Ring(config, tape, lambda shard, shards: _backend(config, shard, shards))
    world, events = ring.world, list[Event]()
    examiner = _examiner(config)
    sizes = [examiner.layout.fragment_size(fragment) for fragment in range(examiner.layout.fragment_count)]

    def verdict() -> Verdict:
        """On the syncer's own parameters, which no format of a download has rounded."""
        return _verdict(examiner, {fragment: world.global_values(fragment) for fragment in range(len(sizes))})

    curve = _Curve(trial, verdict, show)
    tokens = 0
    for now_ns in ring.play():
        taken = world.take_events()
        steps = sum(isinstance(event, StepReported) for event in taken)
        events += taken
        tokens += steps * tokens_per_step(config)
        if steps and not world.ended:
            curve.reached(tokens, now_ns)
    ended = world.core.status(world.clock.now_ns())
    ledger = ended.ledger
    tokens, reached_ns = round(ledger.trained), finished_ns(events)
    loss, others = curve.ended(tokens, reached_ns)
    return Score(
        trial=trial,
        seed=config.run.seed,
        tokens=tokens,
        steps=ended.clock,
        loss=loss,
        curve=tuple(curve.points),
        seconds=0.0,
        ring=ring_score(events, config, ledger, sizes),
        others=others,
        curve_s=tuple(curve.times_s),
        fleet=None if trial.storm is None else _fleet_score(trial.storm, config, events, tape),
        picture=None if trial.picture is None else picture_of(events, *trial.picture),
    )


def _train_alone(trial: Trial, config: RunConfig, show: Show) -> Score:
    backend = _backend(config, 0, 1)
    examiner = _examiner(config, backend.model)
    curve = _Curve(trial, lambda: _verdict(examiner, {}), show)
    step_ns = round(config.virtual.step_s * NANOSECONDS_PER_SECOND)
    history = None if trial.storm is None else _history(trial.storm, config)
    widths = _Widths(backend.stream, config.inner.batch_size)
    tokens = steps = now_ns = 0
    for width, end_ns in _steps(history, step_ns):
        if history is not None:
            widths.width, backend.stream = width, widths
        tokens += backend.inner_step(steps).tokens
        steps, now_ns = steps + 1, end_ns
        if tokens >= trial.tokens:
            break
        curve.reached(tokens, now_ns)
    loss, others = curve.ended(tokens, now_ns)
    fleet = None
    if history is not None:
        possible = now_ns / step_ns * tokens_per_step(config)
        fleet = FleetScore(round(tokens / possible, 4), *_simulated(history, now_ns))
    return Score(
        trial=trial,
        seed=config.run.seed,
        tokens=tokens,
        steps=steps,
        loss=loss,
        curve=tuple(curve.points),
        seconds=0.0,
        others=others,
        curve_s=tuple(curve.times_s),
        fleet=fleet,
    )


# ----------------------------------------------------------------------------------------------- what happens


def _tape(trial: Trial, config: RunConfig) -> Tape:
    """All that happens in the trial, for twice as long as it should take."""
    if trial.storm is not None:
        return fleet_tape(_fleet(trial.storm), duration_s=_history_s(config), seed=config.run.seed)
    names = tuple(f"learner{number}" for number in range(config.local.learners))
    actions: list[Action] = []
    if trial.failures is not None:
        every, down = trial.failures.every_steps, trial.failures.down_steps
        for number, name in enumerate(names, start=1):
            for dies in range(round(number / len(names) * every), 2 * config.run.steps, every):
                actions.append(Kill(at_ns=dies * STEP_NS, target=name))
                actions.append(Restart(at_ns=(dies + down) * STEP_NS, target=name))
    if trial.narrow is not None:
        behind, mbit_per_s = names[-trial.narrow.learners :], trial.narrow.mbit_per_s
        actions += [Throttle(at_ns=0, target=name, mbit_per_s=mbit_per_s) for name in behind]
    if trial.visits is not None:
        actions += _visits(trial.visits)
    actions.sort(key=lambda action: action.at_ns)
    return Tape(name="trial", learners=names, actions=tuple(actions))


def _visits(visits: Visits) -> Iterator[Action]:
    for visit, begins in enumerate(visits.at_steps):
        comes = Restart if visit and not visits.in_order else Join
        goes = Leave if visits.in_order else Kill
        for number in range(visits.learners):
            name, at_steps = f"extra{number}", begins + number * visits.stagger_steps
            yield comes(at_ns=at_steps * STEP_NS, target=name)
            yield goes(at_ns=(at_steps + visits.steps) * STEP_NS, target=name)


def _fleet(storm: Storm) -> Fleet:
    return Fleet(chips=storm.chips, learners=storm.learners)


def _history_s(config: RunConfig) -> float:
    return STORM_MARGIN * config.run.steps * config.virtual.step_s


def _history(storm: Storm, config: RunConfig) -> Stretches:
    """The history that ``fleet_tape`` writes down."""
    return play(_fleet(storm), horizon_s=_history_s(config), replicas=1, seed=config.run.seed)


def _fleet_score(storm: Storm, config: RunConfig, events: Sequence[Event], tape: Tape) -> FleetScore:
    """The report's goodput, and the simulator's of the time that all learners were on its roster."""
    goodput = account(events, config.protocol, tape).goodput
    assert goodput is not None, "nobody has trained"
    until_ns = goodput.roster_ns // storm.learners
    return FleetScore(round(goodput.goodput, 4), *_simulated(_history(storm, config), until_ns))


def _simulated(history: Stretches, until_ns: int) -> tuple[float, float, int]:
    """Goodput of a history up to then, the time in seconds, and how many failures there were by then, on average."""
    until_s = until_ns / NANOSECONDS_PER_SECOND
    goodput, _, _ = measure(replace(history, horizon_s=until_s))
    return round(float(goodput[0]), 4), round(until_s, 1), round(history.failures * until_s / history.horizon_s)


def _steps(history: Stretches | None, step_ns: int) -> Iterator[tuple[float, int]]:
    """Steps of one learner through its history: the share of its chips that take part, and when it ends, ns."""
    if history is None:
        number = 0
        while True:
            number += 1
            yield 1.0, number * step_ns
    left_ns = step_ns
    for begin_s, end_s, rate in zip(history.begin_s, history.end_s, history.rate, strict=True):
        now_ns, end_ns = (round(max(0.0, min(s, history.horizon_s)) * NANOSECONDS_PER_SECOND) for s in (begin_s, end_s))
        while end_ns - now_ns >= left_ns:
            now_ns += left_ns
            left_ns = step_ns
            yield float(rate), now_ns
        left_ns -= end_ns - now_ns


class _Widths:
    """A stream whose batches have fewer rows: those of the chips that are there. The others' are not trained."""

    def __init__(self, stream: Batches, rows: int) -> None:
        self._stream, self._rows = stream, rows
        self._owed = 0.0
        self.width = 1.0

    @property
    def position(self) -> int:
        return self._stream.position

    @property
    def remaining(self) -> int | None:
        return self._stream.remaining

    def seek(self, position: int) -> None:
        self._stream.seek(position)

    def next(self) -> Tokens:
        """As many rows as the width allows, on average."""
        self._owed += self._rows * self.width
        rows = max(1, int(self._owed))
        self._owed -= rows
        return self._stream.next()[:rows]


# ------------------------------------------------------------------------------------------------- what is scored


class _Curve:
    """Evaluates at even distances, and at the end."""

    def __init__(self, trial: Trial, judge: Callable[[], Verdict], show: Show) -> None:
        self.points: list[tuple[int, float]] = []
        self.times_s: list[float] = []
        self._tokens, self._count = trial.tokens, trial.curve_points
        self._judge, self._show = judge, show

    def reached(self, tokens: int, now_ns: int) -> None:
        due = (len(self.points) + 1) * self._tokens
        if due <= tokens * self._count and len(self.points) < self._count - 1:
            self._note(tokens, now_ns)
        self._show(tokens, self.points[-1][1] if self.points else None)

    def ended(self, tokens: int, now_ns: int) -> Verdict:
        return self._note(tokens, now_ns)

    def _note(self, tokens: int, now_ns: int) -> Verdict:
        verdict = self._judge()
        self.points.append((tokens, verdict[0]))
        self.times_s.append(round(now_ns / NANOSECONDS_PER_SECOND, 3))
        return verdict


@cache
def _text(data: DataSection) -> Text:
    return load_text(RunConfig(data=data))


def _backend(config: RunConfig, shard: int, shards: int) -> TorchBackend:
    return new_backend(config, shard, shards, _text(config.data), is_alone=False)


def _examiner(config: RunConfig, model: nn.Module | None = None) -> Examiner:
    return Examiner(apply(config, SCORED), _text(config.data), model)


def _verdict(examiner: Examiner, values: dict[int, Float32]) -> Verdict:
    _, loss, others = examiner.evaluate(values)
    rounded = (status.Score(each.name, round(each.nats, 5), round(each.accuracy, 4)) for each in others)
    return round(loss, 5), tuple(rounded)

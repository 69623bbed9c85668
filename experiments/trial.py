"""One trial: a recipe trained by a whole ring under virtual time, or by plain AdamW, scored on the same text.

Decides what happens in a trial and how it is scored. Does not decide which recipes are tried (the experiments beside
this file), how results are kept (``sheet``) or what a recipe does: the ring is that of ``train --virtual``, so a trial
repeats bit for bit on the same machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import msgspec
from torch import nn

from unlockstep.cli.assembly import Text, load_text, new_backend, new_model
from unlockstep.config import DataSection, RunConfig, apply
from unlockstep.core.events import ContributionAccepted, Event, LearnerAway, RoundClosed, RunFinishing, StepReported
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.status import LedgerStatus
from unlockstep.data import validation_batches
from unlockstep.learners.evaluation import Tokens, validation_loss
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.learners.torch_store import TorchStore
from unlockstep.models import causal_loss
from unlockstep.sim.world import World
from unlockstep.tape import Action, Join, Kill, Leave, Restart, Tape
from unlockstep.virtual.ring import Ring

STEP_NS = 100_000_000
"""Virtual duration of an inner step of a learner that is not slowed down: that of ``virtual.step_s``."""

VALIDATION_BATCHES = 32
VALIDATION_BATCH_SIZE = 16

Show = Callable[[int, float | None], None]
"""(tokens trained so far, last validation loss) -> something for people to look at."""


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
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary_size,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=3,
            initializer_range=96**-0.5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def configured(trial: Trial, seed: int) -> RunConfig:
    """The trial's configuration: ``trial.tokens`` end it, and ``run.steps`` is when that will be on the clock.

    A learner slowed down k times counts as 1/k: the clock, which the schedule follows, is that of the fastest. One that
    is away for a share of the time counts for the rest of it, and what visitors train need not be trained by others.
    """
    config = apply(RunConfig(), [*trial.settings, f"run.seed={seed}", f"run.tokens={trial.tokens}"])
    local, failures, visits = config.local, trial.failures, trial.visits
    speeds = sum(1 / factor for factor in local.slowdown) + local.learners - len(local.slowdown)
    present = 1.0 if failures is None else 1 - failures.down_steps / failures.every_steps
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
    ring = Ring(config, _tape(trial, config), lambda shard, shards: _backend(config, shard, shards))
    world, events = ring.world, list[Event]()
    judge = _Judge(config)
    curve = _Curve(trial, lambda: judge.loss_of(world), show)
    tokens = 0
    for _ in ring.play():
        taken = world.take_events()
        steps = sum(isinstance(event, StepReported) for event in taken)
        events += taken
        tokens += steps * tokens_per_step(config)
        if steps and not world.ended:
            curve.reached(tokens)
    status = world.core.status(world.clock.now_ns())
    tokens = round(status.ledger.trained)
    return Score(
        trial=trial,
        seed=config.run.seed,
        tokens=tokens,
        steps=status.clock,
        loss=curve.ended(tokens),
        curve=tuple(curve.points),
        seconds=0.0,
        ring=_ring_score(events, config, status.ledger),
    )


def _train_alone(trial: Trial, config: RunConfig, show: Show) -> Score:
    backend = _backend(config, 0, 1)
    curve = _Curve(trial, lambda: _loss(backend.model, config), show)
    for step in range(config.run.steps):
        backend.inner_step(step)
        curve.reached((step + 1) * tokens_per_step(config))
    tokens = config.run.steps * tokens_per_step(config)
    return Score(
        trial=trial,
        seed=config.run.seed,
        tokens=tokens,
        steps=config.run.steps,
        loss=curve.ended(tokens),
        curve=tuple(curve.points),
        seconds=0.0,
    )


def _tape(trial: Trial, config: RunConfig) -> Tape:
    """All that happens in the trial, for twice as long as it should take."""
    names = tuple(f"learner{number}" for number in range(config.local.learners))
    actions: list[Action] = []
    if trial.failures is not None:
        every, down = trial.failures.every_steps, trial.failures.down_steps
        for number, name in enumerate(names, start=1):
            for dies in range(round(number / len(names) * every), 2 * config.run.steps, every):
                actions.append(Kill(at_ns=dies * STEP_NS, target=name))
                actions.append(Restart(at_ns=(dies + down) * STEP_NS, target=name))
    if trial.visits is not None:
        actions += trial.visits.tape().actions
    actions.sort(key=lambda action: action.at_ns)
    return Tape(name="trial", learners=names, actions=tuple(actions))


class _Judge:
    """Scores the syncer's parameters with a model of its own."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._model = new_model(config, _text(config.data))
        self._store = TorchStore(self._model)
        method = LayoutMethod(config.protocol.layout)
        self._layout = build_layout(self._store.tensors(), config.protocol.fragments, method)
        self._store.bind(self._layout)

    def loss_of(self, world: World) -> float:
        for fragment in range(self._layout.fragment_count):
            self._store.write_fragment(fragment, world.global_values(fragment))
        return _loss(self._model, self._config)


class _Curve:
    """Evaluates at even distances, and at the end."""

    def __init__(self, trial: Trial, loss: Callable[[], float], show: Show) -> None:
        self.points: list[tuple[int, float]] = []
        self._tokens, self._count = trial.tokens, trial.curve_points
        self._loss, self._show = loss, show

    def reached(self, tokens: int) -> None:
        due = (len(self.points) + 1) * self._tokens
        if due <= tokens * self._count and len(self.points) < self._count - 1:
            self.points.append((tokens, self._loss()))
        self._show(tokens, self.points[-1][1] if self.points else None)

    def ended(self, tokens: int) -> float:
        loss = self._loss()
        self.points.append((tokens, loss))
        return loss


@cache
def _text(data: DataSection) -> Text:
    return load_text(RunConfig(data=data))


@cache
def _scored_text(data: DataSection) -> list[Tokens]:
    validation = _text(data).validation
    return validation_batches(validation, data.sequence_length, VALIDATION_BATCH_SIZE, VALIDATION_BATCHES)


def _backend(config: RunConfig, shard: int, shards: int) -> TorchBackend:
    return new_backend(config, shard, shards, _text(config.data), is_alone=False)


def _loss(model: nn.Module, config: RunConfig) -> float:
    nats_per_token = validation_loss(model, _scored_text(config.data), causal_loss)
    return round(nats_per_token / _text(config.data).bytes_per_token, 5)


def _ring_score(events: Sequence[Event], config: RunConfig, ledger: LedgerStatus) -> RingScore:
    closed = [event for event in events if isinstance(event, RoundClosed)]
    made = [event for event in events if isinstance(event, ContributionAccepted)]
    reached_ns = next(event.at_ns for event in events if isinstance(event, RunFinishing))
    per_fragment = [0] * config.protocol.fragments
    for event in closed:
        per_fragment[event.fragment] += 1
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
        ideal_s=config.run.steps * STEP_NS / NANOSECONDS_PER_SECOND,
        ledger=ledger,
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return round(sum(listed) / len(listed), 3) if listed else 0.0

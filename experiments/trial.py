"""One trial: a recipe trained by a whole ring under virtual time, or by plain AdamW, scored on the same text.

Decides how a trial runs, is scored and is written down. Which recipes are tried is the business of the experiments
beside this file; what a recipe does is the package's: the ring is the production code with a clock that is moved by
hand, so a trial gives the same numbers every time on the same machine.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np
from torch import nn

from unlockstep.config import RunConfig, apply
from unlockstep.core.events import ContributionAccepted, LearnerDeparted, RoundClosed, StepReported
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.status import LedgerStatus
from unlockstep.data import TokenStream, load_corpus, split_corpus, validation_batches
from unlockstep.learners.evaluation import Tokens, validation_loss
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.learners.torch_store import TorchStore
from unlockstep.models import build_model, causal_loss
from unlockstep.sim.ring import Ring

STEP_NS = 100_000_000
"""Virtual duration of an inner step of a learner that is not slowed down."""

CURVE_POINTS = 4
"""Evaluations along the way; the last one is the end."""

VALIDATION_BATCHES, VALIDATION_BATCH_SIZE = 32, 16


class Failures(msgspec.Struct, frozen=True):
    """Every learner's process dies again and again, the learners evenly staggered; the next one starts from nothing."""

    every_steps: int
    """From one death of a learner to its next, in steps of a learner that is not slowed down."""
    down_steps: int
    """From the death to the start of the next process."""


class Score(msgspec.Struct, frozen=True):
    """What came out of a trial. Losses are of validation text, nats per byte."""

    name: str
    settings: tuple[str, ...]
    """What differs from the default configuration, as ``--set`` takes it."""
    seed: int
    tokens: int
    loss: float
    curve: tuple[tuple[int, float], ...]
    """(tokens trained by all learners, loss of the global model)."""
    seconds: float
    """Wall time of the trial."""
    ring: RingScore | None = None
    """None for plain AdamW."""


class RingScore(msgspec.Struct, frozen=True):
    """How the protocol went."""

    rounds: int
    rounds_per_fragment: tuple[int, ...]
    participants: float
    """Mean over closed rounds."""
    live: float
    """Mean over closed rounds of the learners alive."""
    staleness: float
    """Mean over contributions."""
    staleness_max: int
    steps_per_contribution: float
    deaths: int
    ledger: LedgerStatus


def llama_quarter(vocabulary_size: int) -> nn.Module:
    """A Llama of 0.25 M parameters: ``model.spec=trial:llama_quarter``."""
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


@dataclass(frozen=True, slots=True)
class Text:
    """What is trained on and what is scored on."""

    training: np.ndarray
    validation: list[Tokens]
    vocabulary_size: int
    bytes_per_token: float


def tokens_per_step(config: RunConfig) -> int:
    """Tokens one learner trains on in one inner step."""
    return config.inner.batch_size * config.inner.accumulation * config.data.sequence_length


def configured(settings: Iterable[str], tokens: int) -> RunConfig:
    """A configuration that ends after ``tokens`` in all, its schedule falling until there.

    A learner slowed down k times counts as 1/k: the clock the schedule follows is that of the fastest.
    """
    config = apply(RunConfig(), settings)
    slowdown = config.local.slowdown + (1.0,) * (config.local.learners - len(config.local.slowdown))
    rate = tokens_per_step(config) * sum(1 / factor for factor in slowdown)
    return apply(config, [f"run.tokens={tokens}", f"run.steps={math.ceil(tokens / rate)}"])


@cache
def text(config: RunConfig) -> Text:
    """The corpus of a configuration, read once."""
    return _text(config.data.source, config.data.tokenizer, config.data.text_field, config.data.sequence_length,
                 config.data.validation_share)


@cache
def _text(source: str, tokenizer: str, text_field: str, sequence_length: int, validation_share: float) -> Text:
    corpus = load_corpus(source, tokenizer, text_field)
    training, validation = split_corpus(corpus, sequence_length, validation_share)
    batches = validation_batches(validation, sequence_length, VALIDATION_BATCH_SIZE, VALIDATION_BATCHES)
    return Text(training, batches, corpus.vocabulary_size, corpus.bytes_per_token)


def train_ring(name: str, settings: tuple[str, ...], tokens: int, failures: Failures | None = None) -> Score:
    """Train with a syncer and ``local.learners`` learners, of the speeds that ``local.slowdown`` says."""
    config = configured(settings, tokens)
    ring = Ring(config)
    joins = [_Attendance(ring, config, number, failures) for number in range(config.local.learners)]
    for attendance in joins:
        attendance.start()
    judge = _Judge(config)
    started_s = time.monotonic()
    curve: list[tuple[int, float]] = []
    trained, seen = dict.fromkeys((a.name for a in joins), 0), 0
    for _ in ring.play():
        for event in ring.events[seen:]:
            if isinstance(event, StepReported):
                trained[event.learner] += tokens_per_step(config)
        seen = len(ring.events)
        done = sum(trained.values())
        if done * CURVE_POINTS >= tokens * (len(curve) + 1) and len(curve) < CURVE_POINTS - 1:
            curve.append((done, judge.loss_of(ring)))
        _progress(name, done, tokens, started_s, curve)
    curve.append((sum(trained.values()), judge.loss_of(ring)))
    _progress_end()
    return Score(
        name=name,
        settings=settings,
        seed=config.run.seed,
        tokens=sum(trained.values()),
        loss=curve[-1][1],
        curve=tuple(curve),
        seconds=round(time.monotonic() - started_s, 1),
        ring=_ring_score(ring),
    )


def train_alone(name: str, settings: tuple[str, ...], tokens: int) -> Score:
    """Train one model with AdamW and no protocol: data-parallel, where the batch is that of all learners together."""
    config = apply(apply(RunConfig(), settings), ["local.learners=1", "local.kill_share=0"])
    steps = tokens // tokens_per_step(config)
    config = apply(config, [f"run.steps={steps}", f"run.tokens={tokens}"])
    backend = _backend(config, 0)
    started_s = time.monotonic()
    curve: list[tuple[int, float]] = []
    for step in range(steps):
        backend.inner_step(step)
        done = (step + 1) * tokens_per_step(config)
        if (step + 1) * CURVE_POINTS >= steps * (len(curve) + 1):
            curve.append((done, _loss(backend.model, config)))
        _progress(name, done, tokens, started_s, curve)
    _progress_end()
    return Score(
        name=name,
        settings=settings,
        seed=config.run.seed,
        tokens=steps * tokens_per_step(config),
        loss=curve[-1][1],
        curve=tuple(curve),
        seconds=round(time.monotonic() - started_s, 1),
    )


class _Attendance:
    """One learner's processes, one after the other."""

    def __init__(self, ring: Ring, config: RunConfig, number: int, failures: Failures | None) -> None:
        self.name = f"learner{number}"
        self._ring, self._config, self._number, self._failures = ring, config, number, failures
        slowdown = config.local.slowdown
        self._step_ns = round(STEP_NS * (slowdown[number] if number < len(slowdown) else 1.0))

    def start(self) -> None:
        self._join()
        if self._failures is not None:
            stagger = self._failures.every_steps * (self._number + 1) // self._config.local.learners
            self._ring.clock.after(stagger * STEP_NS, self._die)

    def _join(self) -> None:
        self._ring.join(self.name, _backend(self._config, self._number), self._step_ns)

    def _die(self) -> None:
        assert self._failures is not None
        self._ring.kill(self.name)
        self._ring.clock.after(self._failures.down_steps * STEP_NS, self._join)
        self._ring.clock.after(self._failures.every_steps * STEP_NS, self._die)


class _Judge:
    """Scores the syncer's parameters with a model of its own."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._model = build_model(config.model.spec, text(config).vocabulary_size, config.run.seed)
        self._store = TorchStore(self._model)
        protocol = config.protocol
        self._layout = build_layout(self._store.tensors(), protocol.fragments, LayoutMethod(protocol.layout))
        self._store.bind(self._layout)

    def loss_of(self, ring: Ring) -> float:
        for fragment in range(self._layout.fragment_count):
            self._store.write_fragment(fragment, ring.global_values(fragment))
        return _loss(self._model, self._config)


def _backend(config: RunConfig, number: int) -> TorchBackend:
    model = build_model(config.model.spec, text(config).vocabulary_size, config.run.seed)
    stream = TokenStream(
        text(config).training,
        config.data.sequence_length,
        config.inner.batch_size,
        config.run.seed,
        shard=number,
        shard_count=config.local.learners,
    )
    return TorchBackend(model, causal_loss, stream, config.inner, config.run.steps)


def _loss(model: nn.Module, config: RunConfig) -> float:
    scored = text(config)
    return round(validation_loss(model, scored.validation, causal_loss) / scored.bytes_per_token, 5)


def _ring_score(ring: Ring) -> RingScore:
    closed = [event for event in ring.events if isinstance(event, RoundClosed)]
    made = [event for event in ring.events if isinstance(event, ContributionAccepted)]
    status = ring.core.status(ring.clock.now_ns())
    per_fragment = [0] * ring.config.protocol.fragments
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
        deaths=sum(isinstance(event, LearnerDeparted) for event in ring.events),
        ledger=status.ledger,
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return round(sum(listed) / len(listed), 3) if listed else 0.0


_last_shown_s = 0.0


def _progress(name: str, done: int, tokens: int, started_s: float, curve: list[tuple[int, float]]) -> None:
    global _last_shown_s
    now_s = time.monotonic()
    if now_s - _last_shown_s < 2 or not done:
        return
    _last_shown_s = now_s
    left_s = (now_s - started_s) * max(0, tokens - done) / done
    loss = f", {curve[-1][1]:.3f} nats/byte" if curve else ""
    print(f"\r{name}: {done:,} of {tokens:,} tokens, {left_s:.0f} s left{loss}   ", end="", file=sys.stderr, flush=True)


def _progress_end() -> None:
    print(file=sys.stderr)

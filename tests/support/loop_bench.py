"""A ``LearnerLoop`` between a store of one element per fragment and a wire that keeps everything: time is a number.

Decides nothing but what a test wants seen: which threads touched the model, and what was handed over.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from support.core_builders import LEASE_NS, STEP_NS, layout, learner_core, options
from support.learner_stage import notice
from unlockstep.core.adoption import Adoption
from unlockstep.core.layout import Layout, TensorSpec
from unlockstep.core.messages import (
    Connected,
    Fetched,
    HandedOver,
    LearnerMessage,
    Published,
    Pull,
    UploadArrived,
    VersionNotice,
    Welcome,
)
from unlockstep.core.outer_gradient import outer_gradient
from unlockstep.learners.backend import FloatArray, StepStats
from unlockstep.loop import Contribution, LearnerLoop

STEP = StepStats(tokens=10, loss=1.0)


class Store:
    """One element per fragment in a given dtype, and which threads have touched it."""

    def __init__(self, dtype: type[np.floating] = np.float32) -> None:
        self.values = np.zeros(2, dtype)
        self.threads: set[int] = set()
        self.reads = 0

    def tensors(self) -> Sequence[TensorSpec]:
        return layout().specs()

    def bind(self, layout: Layout) -> None: ...

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        self.threads.add(threading.get_ident())
        self.reads += 1
        values = np.empty(1, np.float32) if out is None else out
        values[0] = self.values[fragment]
        return values

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        self.threads.add(threading.get_ident())
        self.values[fragment] = values[0]


class Wire:
    """What the learner has sent, and the bodies it may take."""

    def __init__(self) -> None:
        self.sent: list[LearnerMessage] = []
        self.fetches: list[VersionNotice] = []
        self.uploads: list[Contribution] = []
        self.upload_threads: list[int] = []
        self.forgotten: list[HandedOver] = []
        self.seeds: list[float] = []
        self.bodies: dict[int, FloatArray] = {}

    def send(self, message: LearnerMessage) -> None:
        self.sent.append(message)

    def fetch(self, notice: VersionNotice) -> None:
        self.fetches.append(notice)

    def upload(self, contribution: Contribution) -> None:
        self.uploads.append(contribution)
        self.upload_threads.append(threading.get_ident())

    def forget(self, handed_over: HandedOver) -> None:
        self.forgotten.append(handed_over)

    def upload_seed(self, run_id: str, learner: str, incarnation: int, fragment: int, values: FloatArray) -> None:
        self.seeds.append(float(values[0]))

    def take(self, payload: int) -> FloatArray:
        return self.bodies.pop(payload)

    def discard(self, payload: int) -> None:
        del self.bodies[payload]


class Bench:
    """A loop between a store and a wire; time is a number."""

    def __init__(
        self, adoption: Adoption = Adoption.OVERWRITE, alpha: float = 0.5, dtype: type[np.floating] = np.float32
    ) -> None:
        self.now_ns = 0
        self.store, self.wire = Store(dtype), Wire()
        core = learner_core("a", options(), adoption, alpha, np.dtype(dtype).name)
        self.loop = LearnerLoop(
            core, self.store, self.wire, adoption=adoption, blend_alpha=alpha, now_ns=lambda: self.now_ns
        )
        self._payload = 0

    def welcome(self, version: int = 0) -> None:
        self.loop.deliver(Connected())
        self.loop.deliver(Welcome(1, 0, LEASE_NS, (notice(0, version), notice(1, version)), False, 0, "id"))

    def arrive(self, fragment: int, version: int, value: float) -> None:
        """A version the learner has asked for is here."""
        self._payload += 1
        self.wire.bodies[self._payload] = np.array([value], np.float32)
        self.loop.deliver(Fetched(fragment, version, notice(fragment, version).digest, self._payload))

    def publish(self, fragment: int, version: int, value: float) -> None:
        self.loop.deliver(Published(notice(fragment, version), 0))
        self.arrive(fragment, version, value)

    def step(self, *changes: float) -> None:
        """One inner step moves each fragment by so much."""
        self.now_ns += STEP_NS
        self.store.values += np.array(changes or (0, 0), self.store.values.dtype)
        self.loop.finish_step(STEP)

    def hand_over(self, fragment: int, round: int) -> float:
        """The outer gradient the learner gives for a round; it arrives."""
        self.loop.deliver(Pull(round, fragment))
        made = self.wire.uploads[-1]
        assert (made.round, made.fragment) == (round, fragment)
        self.loop.deliver(UploadArrived(round, fragment, made.tokens))
        return float(outer_gradient(made.anchor, made.local)[0])


def training(
    adoption: Adoption = Adoption.OVERWRITE, alpha: float = 0.5, dtype: type[np.floating] = np.float32
) -> Bench:
    """Both fragments are loaded with 1.0; the first step may begin."""
    bench = Bench(adoption, alpha, dtype)
    bench.welcome()
    bench.arrive(0, 0, 1.0)
    bench.arrive(1, 0, 1.0)
    assert bench.loop.wait_until_may_step(timeout_s=0)
    return bench

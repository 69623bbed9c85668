"""A run that goes back when its validation loss leaps: under virtual time, with the production core and arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unlockstep.checkers import check, imbalances
from unlockstep.config import RunConfig, apply
from unlockstep.core.events import (
    ContributionRefused,
    Event,
    RolledBack,
)
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.messages import EndRun, Evaluation
from unlockstep.core.reasons import RefusalReason
from unlockstep.learners.backend import StepStats
from unlockstep.learners.toy import ToyBackend
from unlockstep.sim.network import MILLISECOND_NS
from unlockstep.sim.world import World

STEP_NS = 100 * MILLISECOND_NS
SIZES = (6, 6, 6, 6)
POISONED = range(80, 102)
"""Steps in which one learner goes the wrong way, five times as far as the others go the right one: no norm tells."""
STEPS = 107


class PoisonedBackend(ToyBackend):
    """Goes away from the optimum for some steps."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, SIZES, noise=0.1)
        self.steps_taken = 0

    def inner_step(self, clock: int) -> StepStats:
        before = self.values.copy()
        stats = super().inner_step(clock)
        self.steps_taken += 1
        if self.steps_taken in POISONED:
            self.values[:] = before - 5 * (self.values - before)
        return stats


def settings(*changes: str) -> RunConfig:
    protocol = ("protocol.fragments=2", "protocol.interval_steps=4", "local.learners=2", "protocol.lease_s=2")
    return apply(
        RunConfig(),
        [
            *protocol,
            "run.steps=1000000",
            "inner.schedule=constant",
            "adoption.mode=overwrite",
            "outer.merge=mean",
            *changes,
        ],
    )


class Judge:
    """An evaluator: every five steps it scores what was the newest five steps before."""

    def __init__(self, world: World, spikes: Sequence[int] = ()) -> None:
        self.losses: list[float] = []
        self._world = world
        self._spikes = spikes
        self._seen: tuple[float, tuple[int, ...]] | None = None
        self._optimum = ToyBackend(0, SIZES)
        self._optimum.bind(
            build_layout(self._optimum.tensors(), world.config.protocol.fragments, LayoutMethod.BALANCED)
        )
        self._optimum.values[:] = self._optimum.optimum
        world.clock.after(5 * STEP_NS, self._look)

    def loss(self) -> float:
        parts = [
            self._world.global_values(fragment) - self._optimum.read_fragment(fragment)
            for fragment in range(self._world.config.protocol.fragments)
        ]
        return 0.01 + float(np.mean(np.concatenate(parts) ** 2))

    def _look(self) -> None:
        world = self._world
        self._world.clock.after(5 * STEP_NS, self._look)
        if not world.syncer.life.is_alive or not world.core.notices:
            return
        if self._seen is not None and not world.ended:
            loss, versions = self._seen
            loss = loss if len(self.losses) not in self._spikes else float("nan")
            self.losses.append(loss)
            world.tell(Evaluation("judge", 0, loss, loss, versions))
        self._seen = self.loss(), tuple(notice.version for notice in world.core.notices)


def played(config: RunConfig, poisoned: bool = True, spikes: Sequence[int] = ()) -> tuple[World, Judge, list[Event]]:
    world = World(config)
    for number in range(1):
        world.join(f"honest{number}", ToyBackend(number, SIZES, noise=0.1), STEP_NS)
    world.join("odd", PoisonedBackend(7) if poisoned else ToyBackend(7, SIZES, noise=0.1), STEP_NS)
    judge = Judge(world, spikes)
    world.run(STEPS * STEP_NS)
    loss = judge.loss()
    world.tell(EndRun("enough"))
    world.run((STEPS + 60) * STEP_NS)
    assert world.ended
    judge.losses.append(loss)
    return world, judge, world.syncer.events


def of(kind: type, events: list[Event]) -> list:  # type: ignore[type-arg]
    return [event for event in events if isinstance(event, kind)]


def test_a_run_that_is_poisoned_below_the_norm_bound_recovers_by_going_back() -> None:
    """C9"""
    _, honest, _ = played(settings(), poisoned=False)
    _, lost, events = played(settings())
    assert not of(RolledBack, events)
    assert not [event for event in of(ContributionRefused, events) if event.reason is RefusalReason.ABSURD_NORM]
    _, saved, events = played(settings("rollback.spike_factor=1.5", "rollback.window=5"))
    assert of(RolledBack, events)
    assert honest.losses[-1] < 0.012
    assert lost.losses[-1] > 2 * honest.losses[-1]
    assert saved.losses[-1] < 1.5 * honest.losses[-1]


def test_the_books_and_all_rules_hold_when_a_run_goes_back() -> None:
    world, _, events = played(settings("rollback.spike_factor=1.5"), poisoned=False, spikes=(6, 12, 13, 14))
    assert len(of(RolledBack, events)) == 3
    assert check(events, world.config.protocol) == []
    ledger = world.core.status(world.syncer.now_ns).ledger
    assert list(imbalances(ledger)) == []
    assert ledger.in_flight == 0
    assert world.core.status(world.syncer.now_ns).rollbacks == 3
    assert world.storehouse.held_count == 0

"""With a quorum of all, the ring is DiLoCo as the textbook has it: the two are computed side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from support.ring_story import STEP_NS, of, settings, toy
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import FragmentCommitted
from unlockstep.core.merge import MergeRule
from unlockstep.learners.backend import FloatArray
from unlockstep.learners.toy import ToyBackend
from unlockstep.sim.network import Costs
from unlockstep.sim.world import World

INSTANT = Costs(message_ns=0, body_ns=0, commit_ns=0)
TOKENS = (10, 20, 40)
INTERVAL_STEPS = 4


def learners() -> list[ToyBackend]:
    """Three, each with noise and a batch size of its own."""
    config = settings(fragments=1)
    return [toy(config, seed, noise=0.3, tokens_per_step=tokens) for seed, tokens in enumerate(TOKENS)]


def textbook(rounds: int, rate: float, momentum: float, steps: Sequence[int]) -> list[FloatArray]:
    """DiLoCo: everybody trains from the global value, outer gradients are averaged, Nesterov steps on the average.

    Args:
        steps: inner steps of each round that count.

    Between two rounds every learner takes one more step while the result is under way, and drops it.
    """
    workers = learners()
    value = workers[0].values.copy()
    velocity = np.zeros_like(value)
    history = []
    for number in range(rounds):
        outer_gradients, weights = [], []
        for worker, tokens_per_step in zip(workers, TOKENS, strict=True):
            if number > 0:
                worker.inner_step(0)  # under way, overwritten
            worker.values = value.copy()
            for _ in range(steps[number]):
                worker.inner_step(0)
            outer_gradients.append(value - worker.values)
            tokens = tokens_per_step * steps[number]
            weights.append(tokens**2 / steps[number])
        shares = np.array(weights) / sum(weights)
        average = sum(share * gradient for share, gradient in zip(shares, outer_gradients, strict=True))
        velocity = momentum * velocity + average
        value = (value - rate * (average + momentum * velocity)).astype(np.float32)
        history.append(value)
    return history


@pytest.mark.parametrize(("rate", "momentum"), [(1.0, 0.0), (0.7, 0.9), (0.4, 0.6)])
def test_with_a_quorum_of_all_it_is_diloco(rate: float, momentum: float) -> None:
    config = settings(
        fragments=1,
        interval_steps=INTERVAL_STEPS,
        overlap_steps=0,
        quorum=len(TOKENS),
        adoption=Adoption.OVERWRITE,
        merge=MergeRule.MEAN,
        outer_rate=rate,
        momentum=momentum,
    )
    ring = World(config, INSTANT)
    for number, backend in enumerate(learners()):
        ring.join(f"learner-{number}", backend, STEP_NS)
    history: list[FloatArray] = []
    for _ in ring.play():
        if len(of(FragmentCommitted, ring.events)) > len(history):
            history.append(ring.global_values(0).copy())
        if len(history) == 12:
            break
    # The first round has four steps; in every later one the first is under way with the result of the round before.
    steps = [INTERVAL_STEPS, *[INTERVAL_STEPS - 1] * 11]
    for ours, expected in zip(history, textbook(12, rate, momentum, steps), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)

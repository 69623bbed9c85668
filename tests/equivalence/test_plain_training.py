"""The whole ring around one learner, and around steps written in advance: the numbers come out as computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from support.ring_story import STEP_NS, of, settings, toy
from support.scripted import Scripted
from unlockstep.core.adoption import Adoption
from unlockstep.core.events import FragmentCommitted
from unlockstep.core.merge import MergeRule
from unlockstep.learners.backend import FloatArray
from unlockstep.sim.network import Costs
from unlockstep.sim.world import World

INSTANT = Costs(message_ns=0, body_ns=0, commit_ns=0)
"""A commit is at the learner before its next step ends; it is adopted after that step."""


def committed(ring: World, versions: int) -> list[FloatArray]:
    """The global value of fragment 0 after each of its first commits."""
    values: list[FloatArray] = []
    for _ in ring.play():
        commits = of(FragmentCommitted, ring.events)
        if len(commits) > len(values):
            values.append(ring.global_values(0).copy())
        if len(values) == versions:
            return values
    raise AssertionError(f"only {len(values)} commits")


def plain(steps: int, noise: float) -> list[FloatArray]:
    """Local training without any protocol: the values after each step."""
    backend = toy(settings(fragments=1, interval_steps=1), noise=noise)
    values = []
    for clock in range(steps):
        backend.inner_step(clock)
        values.append(backend.values.copy())
    return values


def world_of_one(adoption: Adoption, noise: float) -> World:
    config = settings(
        fragments=1, interval_steps=1, overlap_steps=0, adoption=adoption, outer_rate=1.0, merge=MergeRule.MEAN
    )
    ring = World(config, INSTANT)
    ring.join("a", toy(config, noise=noise), STEP_NS)
    return ring


def test_a_world_of_one_is_plain_training_bit_for_bit() -> None:
    """C5: lr 1, no momentum, a round after every step, overwrite. The step taken while a commit is under way is
    overwritten, so version k is what plain training has after k steps, and it has the same bits."""
    ring = world_of_one(Adoption.OVERWRITE, noise=0.0)
    for ours, expected in zip(committed(ring, 5), plain(5, noise=0.0), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_world_of_one_that_carries_loses_no_step() -> None:
    """C5: with ``carry`` every step is in: version k is plain training after k steps, its noise included. ``new +
    (local - anchor)`` rounds three times where plain training rounds once."""
    ring = world_of_one(Adoption.CARRY, noise=0.5)
    for ours, expected in zip(committed(ring, 40), plain(40, noise=0.5), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=40 * np.finfo(np.float32).eps)
    backend = ring.backend("a")
    steps = len(of(FragmentCommitted, ring.events))
    np.testing.assert_allclose(
        backend.read_fragment(0), plain(steps, noise=0.5)[-1], rtol=0, atol=40 * np.finfo(np.float32).eps
    )


@pytest.mark.parametrize("rule", MergeRule)
def test_alone_both_merges_are_the_learner_s_own_gradient(rule: MergeRule) -> None:
    config = settings(fragments=1, interval_steps=1, outer_rate=1.0, merge=rule, adoption=Adoption.CARRY)
    ring = World(config, INSTANT)
    ring.join("a", toy(config, noise=0.0), STEP_NS)
    for ours, expected in zip(committed(ring, 10), plain(10, noise=0.0), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


# ----------------------------------------------------------------------------------------------- by hand


def scripted_ring(outer_rate: float, interval_steps: int, **learners: Scripted) -> World:
    """All start from the first one's values, and hand over once, together, after ``interval_steps`` steps."""
    config = settings(
        fragments=1,
        interval_steps=interval_steps,
        overlap_steps=0,
        quorum=len(learners),
        outer_rate=outer_rate,
        merge=MergeRule.MEAN,
    )
    ring = World(config, INSTANT)
    for name, backend in learners.items():
        ring.join(name, backend, STEP_NS)
    return ring


@pytest.mark.parametrize(("outer_rate", "expected"), [(1.0, [0.5, 2.5]), (0.5, [0.75, 2.25])])
def test_the_global_value_moves_towards_the_learner(outer_rate: float, expected: list[float]) -> None:
    """C1: anchor (1, 2), learner at (0.5, 2.5): there with rate 1, half way with rate 0.5."""
    (value,) = committed(scripted_ring(outer_rate, 1, a=Scripted([1, 2], [[-0.5, 0.5]])), 1)
    assert value.tolist() == expected


def moved_by(delta: float, tokens: int, steps: int = 10) -> Scripted:
    """A learner that moves by so much in its first steps, each on a tenth of the tokens."""
    return Scripted([0.0], [[delta / steps]] * steps, [tokens // steps])


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_learners_are_weighted_by_tokens_squared_over_steps(names: Sequence[str]) -> None:
    """C2: deltas 1 and 4 on 100 and 300 tokens in 10 steps each: (1 * 1000 + 4 * 9000) / 10000."""
    learners = {names[0]: moved_by(1.0, 100), names[1]: moved_by(4.0, 300)}
    (value,) = committed(scripted_ring(1.0, 10, **learners), 1)
    assert 1.0 < value[0] < 4.0
    assert value[0] == pytest.approx((1 * 100**2 / 10 + 4 * 300**2 / 10) / (100**2 / 10 + 300**2 / 10), rel=1e-6)


def test_who_comes_first_changes_no_bit() -> None:
    """C2: the same learners, arriving in another order within the window."""
    values = []
    for delays in ((0, 7, 3), (5, 0, 9), (2, 1, 0)):
        config = settings(fragments=1, interval_steps=10, quorum=3, merge=MergeRule.RADIAL_DIRECTIONAL)
        ring = World(config, INSTANT)
        for number, delay in enumerate(delays):
            backend = Scripted([0.1, 0.2, 0.3], [[0.1 * number, 0.3, -0.7 * number]] * 10, [10 + number])
            ring.join(f"learner-{number}", backend, lambda step, delay=delay: STEP_NS + delay * (step == 9))
        (value,) = committed(ring, 1)
        values.append(value.tobytes())
    assert len(set(values)) == 1

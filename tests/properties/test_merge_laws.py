"""Laws of the merge: what the order of arrival, the scale of weights and gradients, and rotations may change."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unlockstep.core.layout import LayoutMethod, Role, Slot, TensorSpec, build_layout
from unlockstep.core.merge import Entry, MergeRule, merge

SIZES = (1, 3, 4)
SIZE = sum(SIZES)
EPSILON = float(np.finfo(np.float32).eps)

RULES = st.sampled_from(MergeRule)
WEIGHTS = st.floats(1e-3, 1e12)
VECTORS = arrays(np.float32, SIZE, elements=st.floats(-100, 100, width=32))


def slots_of(*sizes: int) -> tuple[Slot, ...]:
    tensors = [TensorSpec(name=str(i), shape=(s,), dtype="float32", role=Role.PARAMETER) for i, s in enumerate(sizes)]
    return build_layout(tensors, 1, LayoutMethod.BALANCED).fragments[0]


SLOTS = slots_of(*SIZES)


@st.composite
def rounds(draw: st.DrawFn) -> list[Entry]:
    """Contributions of 1 to 6 learners."""
    pairs = draw(st.lists(st.tuples(VECTORS, WEIGHTS), min_size=1, max_size=6))
    return [Entry(learner=f"learner{i}", delta=delta, weight=weight) for i, (delta, weight) in enumerate(pairs)]


@st.composite
def well_conditioned_rounds(draw: st.DrawFn) -> list[Entry]:
    """Contributions that share a direction, so that no formula below divides by nearly nothing."""
    entries = draw(rounds())
    return [Entry(learner=e.learner, delta=e.delta / 100 + np.float32(2), weight=e.weight) for e in entries]


def normalised(entries: list[Entry]) -> np.ndarray:
    weights = np.array([entry.weight for entry in entries])
    return weights / weights.sum()


@given(rounds(), RULES, st.data())
def test_the_order_of_arrival_changes_no_bit(entries: list[Entry], rule: MergeRule, data: st.DataObject) -> None:
    """C2"""
    shuffled = data.draw(st.permutations(entries))
    assert merge(shuffled, SLOTS, rule).tobytes() == merge(entries, SLOTS, rule).tobytes()


@given(rounds())
def test_the_mean_lies_between_the_contributions(entries: list[Entry]) -> None:
    """C2"""
    merged = merge(entries, SLOTS, MergeRule.MEAN)
    deltas = np.stack([entry.delta for entry in entries])
    slack = 8 * EPSILON * np.abs(deltas).max(axis=0) + np.finfo(np.float32).tiny
    assert (deltas.min(axis=0) - slack <= merged).all()
    assert (merged <= deltas.max(axis=0) + slack).all()


@given(rounds())
def test_radial_directional_is_finite_and_no_longer_than_the_longest(entries: list[Entry]) -> None:
    """C8"""
    merged = merge(entries, SLOTS, MergeRule.RADIAL_DIRECTIONAL)
    assert np.isfinite(merged).all()
    for slot in SLOTS:
        part = slice(slot.offset, slot.stop)
        longest = max(np.linalg.norm(entry.delta[part].astype(np.float64)) for entry in entries)
        assert np.linalg.norm(merged[part].astype(np.float64)) <= longest * (1 + 8 * EPSILON) + 1e-44


@given(well_conditioned_rounds())
def test_radial_directional_has_the_weighted_mean_length(entries: list[Entry]) -> None:
    merged = merge(entries, SLOTS, MergeRule.RADIAL_DIRECTIONAL)
    for slot in SLOTS:
        part = slice(slot.offset, slot.stop)
        lengths = [np.linalg.norm(entry.delta[part].astype(np.float64)) for entry in entries]
        radius = normalised(entries) @ lengths
        assert abs(np.linalg.norm(merged[part].astype(np.float64)) - radius) <= 8 * EPSILON * radius


@given(well_conditioned_rounds(), RULES)
def test_merge_equals_its_equation_in_float64(entries: list[Entry], rule: MergeRule) -> None:
    merged = merge(entries, SLOTS, rule)
    weights = normalised(entries)
    for slot in SLOTS:
        part = slice(slot.offset, slot.stop)
        deltas = np.stack([entry.delta[part].astype(np.float64) for entry in entries])
        expected = weights @ deltas
        if rule is MergeRule.RADIAL_DIRECTIONAL:
            lengths = np.linalg.norm(deltas, axis=1)
            direction = weights @ (deltas / lengths[:, None])
            expected = (weights @ lengths) * direction / np.linalg.norm(direction)
        assert np.abs(merged[part] - expected).max() <= 16 * EPSILON * np.abs(expected).max()


@given(VECTORS, st.lists(WEIGHTS, min_size=1, max_size=6), RULES)
def test_equal_contributions_give_that_contribution(delta: np.ndarray, weights: list[float], rule: MergeRule) -> None:
    merged = merge([Entry(learner=str(i), delta=delta, weight=w) for i, w in enumerate(weights)], SLOTS, rule)
    for slot in SLOTS:
        part = slice(slot.offset, slot.stop)
        assert np.abs(merged[part] - delta[part]).max() <= 8 * EPSILON * np.abs(delta[part]).max() + 1e-44


@given(VECTORS, WEIGHTS, RULES)
def test_one_learner_gives_exactly_its_own(delta: np.ndarray, weight: float, rule: MergeRule) -> None:
    assert merge([Entry(learner="a", delta=delta, weight=weight)], SLOTS, rule).tobytes() == delta.tobytes()


@given(rounds(), RULES, st.integers(-20, 20))
def test_scaling_all_weights_by_a_power_of_two_changes_no_bit(
    entries: list[Entry], rule: MergeRule, exponent: int
) -> None:
    scaled = [Entry(learner=e.learner, delta=e.delta, weight=e.weight * 2.0**exponent) for e in entries]
    assert merge(scaled, SLOTS, rule).tobytes() == merge(entries, SLOTS, rule).tobytes()


@given(well_conditioned_rounds(), RULES, st.floats(1e-3, 1e3))
def test_scaling_all_contributions_scales_the_merge(entries: list[Entry], rule: MergeRule, factor: float) -> None:
    scale = np.float32(factor)
    scaled = [Entry(learner=e.learner, delta=e.delta * scale, weight=e.weight) for e in entries]
    merged = merge(entries, SLOTS, rule) * scale
    assert np.abs(merge(scaled, SLOTS, rule) - merged).max() <= 32 * EPSILON * np.abs(merged).max()


@given(well_conditioned_rounds(), RULES, st.integers(0, 2**32 - 1))
def test_rotating_all_contributions_rotates_the_merge(entries: list[Entry], rule: MergeRule, seed: int) -> None:
    slots = slots_of(SIZE)
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((SIZE, SIZE)))
    rotated = [
        Entry(learner=e.learner, delta=(rotation @ e.delta).astype(np.float32), weight=e.weight) for e in entries
    ]
    expected = rotation @ merge(entries, slots, rule)
    assert np.abs(merge(rotated, slots, rule) - expected).max() <= 32 * EPSILON * np.linalg.norm(expected)

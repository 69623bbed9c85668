"""Merge: both rules against their formulas on small arrays, and the degenerate cases."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from unlockstep.core.chunks import CHUNK_ELEMENTS, SPAN_ELEMENTS
from unlockstep.core.layout import LayoutMethod, Role, Slot, TensorSpec, build_layout
from unlockstep.core.merge import Entry, MergeRule, merge
from unlockstep.core.weights import contribution_weight

EPSILON = float(np.finfo(np.float32).eps)


def slots_of(*sizes: int, role: Role = Role.PARAMETER) -> tuple[Slot, ...]:
    tensors = [TensorSpec(name=f"{i:03}", shape=(size,), dtype="float32", role=role) for i, size in enumerate(sizes)]
    return build_layout(tensors, 1, LayoutMethod.BALANCED).fragments[0]


def entries_of(*deltas: object, weights: list[float] | None = None) -> list[Entry]:
    weights = weights or [1.0] * len(deltas)
    return [
        Entry(learner=f"learner{i}", delta=np.array(delta, np.float32).reshape(-1), weight=weight)
        for i, (delta, weight) in enumerate(zip(deltas, weights, strict=True))
    ]


def test_mean_is_weighted_by_tokens_squared_over_steps() -> None:
    """C2"""
    weights = [contribution_weight(100, 10), contribution_weight(300, 10)]
    merged = merge(entries_of(1, 4, weights=weights), slots_of(1), MergeRule.MEAN)
    assert merged[0] == pytest.approx((1 * 1000 + 4 * 9000) / (1000 + 9000), rel=EPSILON)
    assert 1 <= merged[0] <= 4


def test_radial_directional_is_the_mean_norm_along_the_mean_direction() -> None:
    # Lengths 1 and 3 along two axes, weights 3/4 and 1/4.
    merged = merge(entries_of([1, 0], [0, 3], weights=[3, 1]), slots_of(2), MergeRule.RADIAL_DIRECTIONAL)
    radius = 0.75 * 1 + 0.25 * 3
    length = math.hypot(0.75, 0.25)
    assert merged == pytest.approx([radius * 0.75 / length, radius * 0.25 / length], rel=4 * EPSILON)


def test_radial_directional_works_tensor_by_tensor() -> None:
    rule = MergeRule.RADIAL_DIRECTIONAL
    together = merge(entries_of([1, 0, 5, 0, 0], [0, 3, 0, 0, 7]), slots_of(2, 3), rule)
    first = merge(entries_of([1, 0], [0, 3]), slots_of(2), rule)
    second = merge(entries_of([5, 0, 0], [0, 0, 7]), slots_of(3), rule)
    assert together.tobytes() == np.concatenate([first, second]).tobytes()


def test_an_expert_that_one_learner_has_trained_moves_far_and_its_decay_elsewhere_little() -> None:
    """A stack of two experts is one tensor. a has trained expert 0, b expert 1, and what each did to the other is to
    decay it by d. Both are of length r = sqrt(25 + d d), and so is the result: along (a + b) / |a + b|."""
    decay = 0.01
    merged = merge(entries_of([3, 4, decay, 0], [decay, 0, 3, 4]), slots_of(4), MergeRule.RADIAL_DIRECTIONAL)
    length = math.sqrt(25 + decay**2) / math.sqrt(2 * (3 + decay) ** 2 + 2 * 4**2)
    assert merged == pytest.approx(np.array([3 + decay, 4, 3 + decay, 4]) * length, rel=4 * EPSILON)
    assert np.linalg.norm(merged[:2]) == pytest.approx(5 / math.sqrt(2), rel=0.01)


@pytest.mark.parametrize("role", [Role.EMBEDDING, Role.BUFFER])
def test_embeddings_and_buffers_take_the_mean_whatever_the_rule(role: Role) -> None:
    merged = merge(entries_of([1, 0], [0, 3]), slots_of(2, role=role), MergeRule.RADIAL_DIRECTIONAL)
    assert merged.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("learners", [2, 8, 32])
def test_orthogonal_gradients_keep_their_length_where_the_mean_shrinks(learners: int) -> None:
    entries = entries_of(*np.eye(learners))
    assert np.linalg.norm(merge(entries, slots_of(learners), MergeRule.MEAN)) == pytest.approx(1 / math.sqrt(learners))
    radial = merge(entries, slots_of(learners), MergeRule.RADIAL_DIRECTIONAL)
    assert np.linalg.norm(radial) == pytest.approx(1)


@pytest.mark.parametrize("rule", MergeRule)
def test_one_learner_gives_exactly_its_own_bits(rule: MergeRule) -> None:
    delta = np.array([0.1, -0.0, 1e-42, 3e38], np.float32)
    assert merge(entries_of(delta, weights=[0.3]), slots_of(4), rule).tobytes() == delta.tobytes()


@pytest.mark.parametrize("rule", MergeRule)
def test_a_learner_without_tokens_changes_nothing(rule: MergeRule) -> None:
    """C3"""
    normal, idle = np.array([0.1, 0.7], np.float32), np.array([5, 5], np.float32)
    merged = merge(entries_of(normal, idle, weights=[9.0, contribution_weight(0, 3)]), slots_of(2), rule)
    assert merged.tobytes() == normal.tobytes()


@pytest.mark.parametrize("entries", [[], entries_of([1], [2], weights=[0, 0])])
def test_nothing_to_merge_is_said_aloud(entries: list[Entry]) -> None:
    """C3"""
    with pytest.raises(ValueError, match="no entry has a positive weight"):
        merge(entries, slots_of(1), MergeRule.MEAN)


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        (([0, 0], [0, 0]), [0, 0]),
        (([1, 2], [-1, -2]), [0, 0]),
        (([3], [-1]), [1]),
        (([2], [4]), [3]),
        (([0, 0], [3, 4]), [1.5, 2]),
    ],
    ids=["all_zero", "opposite", "opposite_scalars", "scalars", "one_zero"],
)
def test_degenerate_inputs_of_radial_directional(
    deltas: tuple[list[float], list[float]], expected: list[float]
) -> None:
    """C8: cancelling directions give the mean; a zero counts in the length and has no direction."""
    merged = merge(entries_of(*deltas), slots_of(len(expected)), MergeRule.RADIAL_DIRECTIONAL)
    assert merged == pytest.approx(expected, rel=EPSILON, abs=0)
    assert np.linalg.norm(merged) <= max(np.linalg.norm(delta) for delta in deltas) * (1 + EPSILON)


def test_directions_that_cancel_up_to_rounding_are_not_scaled_up() -> None:
    """C8: three unit vectors at 120 degrees sum to rounding noise."""
    deltas = [[math.cos(angle), math.sin(angle)] for angle in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    merged = merge(entries_of(*deltas), slots_of(2), MergeRule.RADIAL_DIRECTIONAL)
    assert np.linalg.norm(merged) < 4 * EPSILON


def test_a_degenerate_tensor_leaves_its_neighbours_alone() -> None:
    """C8"""
    merged = merge(entries_of([1, 1, 0], [-1, 0, 1]), slots_of(1, 2), MergeRule.RADIAL_DIRECTIONAL)
    assert merged == pytest.approx([0, math.sqrt(0.5), math.sqrt(0.5)], rel=2 * EPSILON, abs=0)


@pytest.mark.parametrize("scale", [1e-37, 1e-20, 1.0, 1e18, 1e37])
def test_radial_directional_holds_over_the_range_of_float32(scale: float) -> None:
    """C13"""
    merged = merge(entries_of([scale, 0], [0, scale]), slots_of(2), MergeRule.RADIAL_DIRECTIONAL)
    assert merged == pytest.approx([scale * math.sqrt(0.5)] * 2, rel=1e-6, abs=0)


def test_vectors_of_very_different_length_stay_finite() -> None:
    """C13"""
    merged = merge(entries_of([1e37, 0], [0, 1e-37]), slots_of(2), MergeRule.RADIAL_DIRECTIONAL)
    assert merged == pytest.approx([5e36, 0], rel=1e-6)


@pytest.mark.parametrize("rule", MergeRule)
def test_empty_tensors_between_others_merge_to_nothing(rule: MergeRule) -> None:
    """C11"""
    merged = merge(entries_of([1, 2, 3], [1, 2, 3]), slots_of(0, 1, 0, 2, 0), rule)
    assert merged == pytest.approx([1, 2, 3], rel=2 * EPSILON)
    assert merge(entries_of([], []), [], rule).size == 0


@pytest.mark.parametrize("rule", MergeRule)
def test_every_element_around_a_boundary_is_merged_once(rule: MergeRule) -> None:
    """C11"""
    sizes = (CHUNK_ELEMENTS + 1, CHUNK_ELEMENTS - 1, 1, 0, SPAN_ELEMENTS + 1)
    delta = np.ones(sum(sizes), np.float32)
    merged = merge(entries_of(delta, delta), slots_of(*sizes), rule)
    assert np.abs(merged - 1).max() <= 4 * EPSILON


@pytest.mark.parametrize("rule", MergeRule)
def test_threads_change_no_bit(rule: MergeRule) -> None:
    sizes = (SPAN_ELEMENTS + 5, 3, CHUNK_ELEMENTS)
    random = np.random.default_rng(0)
    entries = entries_of(*random.standard_normal((3, sum(sizes)), np.float32), weights=[1, 2, 3])
    with ThreadPoolExecutor(3) as executor:
        threaded = merge(entries, slots_of(*sizes), rule, executor=executor)
    assert threaded.tobytes() == merge(entries, slots_of(*sizes), rule).tobytes()


def test_the_result_is_written_where_the_caller_asks_and_inputs_stay() -> None:
    entries = entries_of([1, 2], [3, 5])
    out = np.empty(2, np.float32)
    assert merge(entries, slots_of(2), MergeRule.MEAN, out=out) is out
    assert out.tolist() == [2, 3.5]
    assert [entry.delta.tolist() for entry in entries] == [[1, 2], [3, 5]]

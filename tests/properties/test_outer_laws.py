"""Laws every outer optimizer obeys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unlockstep.core.outer import SGD, Nesterov, OuterOptimizer
from unlockstep.core.outer_gradient import outer_gradient

SIZE = 5
EPSILON = float(np.finfo(np.float32).eps)

RATES = st.floats(0.0, 1.0)
OPTIMIZERS = st.one_of(st.builds(SGD, RATES), st.builds(Nesterov, RATES, st.floats(0.0, 0.99)))
VECTORS = arrays(np.float32, SIZE, elements=st.floats(-100, 100, width=32))
PATHS = st.lists(VECTORS, min_size=2, max_size=6)


def steps(
    optimizer: OuterOptimizer, deltas: list[np.ndarray], params: np.ndarray, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    for delta in deltas:
        params, state = optimizer.update(delta, state, params)
    return params, state


@given(OPTIMIZERS, PATHS, VECTORS, st.data())
def test_a_snapshot_in_between_changes_no_bit(
    optimizer: OuterOptimizer, deltas: list[np.ndarray], params: np.ndarray, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(deltas)))
    straight = steps(optimizer, deltas, params, optimizer.init(SIZE))
    saved = [array.tobytes() for array in steps(optimizer, deltas[:cut], params, optimizer.init(SIZE))]
    loaded = [np.frombuffer(array, np.float32) for array in saved]
    resumed = steps(optimizer, deltas[cut:], loaded[0], loaded[1])
    assert [array.tobytes() for array in resumed] == [array.tobytes() for array in straight]


@given(OPTIMIZERS, PATHS, VECTORS)
def test_elements_do_not_see_each_other(
    optimizer: OuterOptimizer, deltas: list[np.ndarray], params: np.ndarray
) -> None:
    whole, _ = steps(optimizer, deltas, params, optimizer.init(SIZE))
    for element in range(SIZE):
        one = slice(element, element + 1)
        alone, _ = steps(optimizer, [delta[one] for delta in deltas], params[one], optimizer.init(1))
        assert alone.tobytes() == whole[one].tobytes()


@given(OPTIMIZERS, VECTORS)
def test_without_gradient_and_history_nothing_moves(optimizer: OuterOptimizer, params: np.ndarray) -> None:
    stepped, _ = optimizer.update(np.zeros(SIZE, np.float32), optimizer.init(SIZE), params)
    assert np.array_equal(stepped, params)


@given(RATES.filter(bool), VECTORS, VECTORS)
def test_one_step_of_sgd_ends_between_anchor_and_learner(rate: float, anchor: np.ndarray, local: np.ndarray) -> None:
    """C1"""
    sgd = SGD(rate)
    stepped, _ = sgd.update(outer_gradient(anchor, local), sgd.init(SIZE), anchor)
    slack = 2 * EPSILON * np.maximum(np.abs(anchor), np.abs(local))
    assert (np.minimum(anchor, local) - slack <= stepped).all()
    assert (stepped <= np.maximum(anchor, local) + slack).all()


@given(VECTORS, PATHS)
def test_rate_1_without_momentum_follows_one_learner(start: np.ndarray, path: list[np.ndarray]) -> None:
    """C5: each round ends at the learner's value up to one rounding of the difference."""
    sgd, params = SGD(1.0), start
    for local in path:
        followed, _ = sgd.update(outer_gradient(params, local), sgd.init(SIZE), params)
        assert (np.abs(followed - local) <= EPSILON * np.maximum(np.abs(params), np.abs(local))).all()
        params = followed

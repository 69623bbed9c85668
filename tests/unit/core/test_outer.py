"""Outer optimizers: every step against its equation, and nothing written that others may be reading."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from unlockstep.core.chunks import CHUNK_ELEMENTS, SPAN_ELEMENTS
from unlockstep.core.errors import ConfigError
from unlockstep.core.outer import SGD, Nesterov, OuterOptimizer, outer_optimizer
from unlockstep.core.outer_gradient import outer_gradient

OPTIMIZERS = [SGD(0.5), Nesterov(0.7, 0.9)]


def float32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(("learning_rate", "expected"), [(1.0, [0.5, 2.5]), (0.5, [0.75, 2.25])])
def test_a_step_goes_towards_the_learner(learning_rate: float, expected: list[float]) -> None:
    """C1"""
    anchor = float32(1, 2)
    delta = outer_gradient(anchor, float32(0.5, 2.5))
    sgd = SGD(learning_rate)
    assert sgd.update(delta, sgd.init(2), anchor)[0].tolist() == expected


def test_rate_1_without_momentum_is_local_training_for_as_long_as_it_runs() -> None:
    """C5: one learner whose values are multiples of 2**-10 near 1, so that differences are exact."""
    sgd, random = SGD(1.0), np.random.default_rng(0)
    local = params = np.ones(100, np.float32)
    for _ in range(5):
        local = local + random.integers(-64, 64, 100).astype(np.float32) / 1024
        params, _ = sgd.update(outer_gradient(params, local), sgd.init(100), params)
        assert params.tobytes() == local.tobytes()


def test_nesterov_looks_ahead_by_one_momentum_step() -> None:
    rate, mu = 0.5, 0.25
    nesterov = Nesterov(rate, mu)
    params, buf = nesterov.update(float32(4), nesterov.init(1), float32(10))
    assert buf.tolist() == [4]
    assert params.tolist() == [10 - rate * (4 + mu * 4)]
    params, buf = nesterov.update(float32(2), buf, params)
    assert buf.tolist() == [mu * 4 + 2]
    assert params.tolist() == [7.5 - rate * (2 + mu * 3)]


def test_nesterov_without_momentum_is_sgd() -> None:
    delta, params = float32(0.1, -3, 1e-7), float32(1, 2, 3)
    nesterov, sgd = Nesterov(0.3, 0.0), SGD(0.3)
    assert np.array_equal(
        nesterov.update(delta, nesterov.init(3), params)[0], sgd.update(delta, sgd.init(3), params)[0]
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_params_state_and_gradient_are_left_as_they_are(optimizer: OuterOptimizer) -> None:
    arrays = [float32(1, 2), float32(3, 4) if isinstance(optimizer, Nesterov) else optimizer.init(2), float32(5, 6)]
    for array in arrays:
        array.setflags(write=False)
    optimizer.update(*arrays)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_the_result_may_be_written_over_the_gradient(optimizer: OuterOptimizer) -> None:
    delta, params = float32(1, 2), float32(5, 6)
    expected, _ = optimizer.update(delta, optimizer.init(2), params)
    stepped, _ = optimizer.update(delta, optimizer.init(2), params, out=delta)
    assert stepped is delta
    assert stepped.tolist() == expected.tolist()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_threads_and_boundaries_change_no_bit(optimizer: OuterOptimizer) -> None:
    """C11"""
    size = SPAN_ELEMENTS + CHUNK_ELEMENTS + 1
    delta, params = np.random.default_rng(0).standard_normal((2, size), np.float32)
    state = optimizer.init(size)
    with ThreadPoolExecutor(3) as executor:
        threaded, _ = optimizer.update(delta, state, params, executor=executor)
    stepped, _ = optimizer.update(delta, state, params)
    assert threaded.tobytes() == stepped.tobytes()
    for element in (0, CHUNK_ELEMENTS, SPAN_ELEMENTS, size - 1):
        one = slice(element, element + 1)
        assert optimizer.update(delta[one], state[one], params[one])[0] == stepped[element]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_an_empty_fragment_steps_to_nothing(optimizer: OuterOptimizer) -> None:
    params, _ = optimizer.update(float32(), optimizer.init(0), float32())
    assert params.shape == (0,)


def test_small_steps_add_up_in_float32_where_bfloat16_would_lose_them() -> None:
    """C10: ten steps of 1e-3 from 1.0, whose neighbour in bfloat16 is 2**-7 away."""
    sgd, params = SGD(1.0), float32(1.0)
    for _ in range(10):
        params, _ = sgd.update(outer_gradient(params, params + np.float32(1e-3)), sgd.init(1), params)
    assert params[0] - 1 == pytest.approx(10 * 1e-3, rel=1e-3)


def test_optimizers_are_found_by_name() -> None:
    assert outer_optimizer("nesterov", 0.7, 0.9) == Nesterov(0.7, 0.9)
    assert outer_optimizer("sgd", 0.7, 0.9) == SGD(0.7)


def test_an_unknown_name_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="'adam', which does not exist: choose one of nesterov, sgd"):
        outer_optimizer("adam", 0.7, 0.9)

"""The outer optimizers against ``torch.optim.SGD`` on the same numbers.

Both compute in float32, but torch fuses some multiply-adds, so each step may differ by the rounding of its
intermediate results: at most 4 units of 2**-24 of the largest term that takes part.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unlockstep.core.outer import SGD, Nesterov, OuterOptimizer

SIZE, STEPS = 1000, 20


@pytest.mark.parametrize(
    ("optimizer", "learning_rate", "momentum"),
    [(Nesterov(rate, mu), rate, mu) for rate, mu in [(0.7, 0.9), (0.4, 0.9), (1.0, 0.5)]]
    + [(SGD(rate), rate, 0.0) for rate in (0.7, 1.0)],
    ids=str,
)
def test_twenty_steps_equal_torch(optimizer: OuterOptimizer, learning_rate: float, momentum: float) -> None:
    random = np.random.default_rng(0)
    params = random.standard_normal(SIZE).astype(np.float32)
    state = optimizer.init(SIZE)
    parameter = torch.nn.Parameter(torch.from_numpy(params.copy()))
    reference = torch.optim.SGD([parameter], lr=learning_rate, momentum=momentum, nesterov=momentum > 0)
    tolerance = 0.0
    for _ in range(STEPS):
        delta = random.standard_normal(SIZE).astype(np.float32)
        params, state = optimizer.update(delta, state, params)
        parameter.grad = torch.from_numpy(delta)
        reference.step()
        terms = [np.abs(params).max(), np.abs(delta).max(), np.abs(state).max(initial=0)]
        tolerance += 4 * 2.0**-24 * float(max(terms))
        assert np.abs(params - parameter.detach().numpy()).max() <= tolerance


def test_the_momentum_buffer_equals_torch() -> None:
    nesterov = Nesterov(0.7, 0.9)
    delta, state = np.linspace(-1, 1, SIZE, dtype=np.float32), nesterov.init(SIZE)
    params = np.zeros(SIZE, np.float32)
    parameter = torch.nn.Parameter(torch.zeros(SIZE))
    reference = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(2):
        params, state = nesterov.update(delta, state, params)
        parameter.grad = torch.from_numpy(delta.copy())
        reference.step()
    buffer = reference.state[parameter]["momentum_buffer"].numpy()
    assert np.abs(state - buffer).max() <= 2 * 2.0**-24 * np.abs(state).max()

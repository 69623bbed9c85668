"""The numpy learner against its closed form."""

from __future__ import annotations

import numpy as np
import pytest

from unlockstep.core.layout import Role
from unlockstep.learners.toy import ToyBackend


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_values_follow_the_closed_form(steps: int) -> None:
    backend = ToyBackend(learning_rate=0.25)
    for clock in range(steps):
        backend.inner_step(clock)
    np.testing.assert_allclose(backend.values, (1 - 0.75**steps) * backend.optimum, rtol=1e-5)


def test_loss_falls_by_the_square_of_the_contraction() -> None:
    backend = ToyBackend(learning_rate=0.25)
    first, second = backend.inner_step(0).loss, backend.inner_step(1).loss
    assert first == pytest.approx(np.mean(backend.optimum**2) / 2)
    assert second == pytest.approx(0.75**2 * first)


def test_one_full_step_lands_on_the_noisy_target() -> None:
    backend = ToyBackend(seed=5, learning_rate=1.0, noise=0.5)
    backend.seek(7)
    backend.inner_step(7)
    draw = np.random.default_rng((5, 7)).standard_normal(backend.optimum.size, np.float32)
    np.testing.assert_allclose(backend.values, backend.optimum + 0.5 * draw, atol=1e-6)


def test_learners_share_the_optimum_but_not_the_noise() -> None:
    one, other = ToyBackend(seed=1, noise=0.5), ToyBackend(seed=2, noise=0.5)
    np.testing.assert_array_equal(one.optimum, other.optimum)
    assert one.inner_step(0).loss != other.inner_step(0).loss


def test_the_first_tensor_is_an_embedding() -> None:
    tensors = ToyBackend(sizes=(6, 4, 3)).tensors()
    assert [(t.name, t.shape, t.role) for t in tensors] == [
        ("embedding.weight", (6,), Role.EMBEDDING),
        ("layers.0.weight", (4,), Role.PARAMETER),
        ("layers.1.weight", (3,), Role.PARAMETER),
    ]


def test_steps_report_their_tokens() -> None:
    assert ToyBackend(tokens_per_step=640).inner_step(0).tokens == 640

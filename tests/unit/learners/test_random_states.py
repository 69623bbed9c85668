"""The generators a process draws from without naming them go on where they were."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from unlockstep.learners.backend import State
from unlockstep.learners.random_states import load_random_state, random_state


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_rng_state(before[0])
    random.setstate(before[1])
    np.random.set_state(before[2])


def draws() -> list[float]:
    """An odd number of normal ones: both old generators keep the second of a pair."""
    return [random.gauss(0, 1), random.random(), np.random.normal(), np.random.random(), *torch.rand(3).tolist()]


def test_each_draws_again_what_it_has_drawn_since() -> None:
    random.gauss(0, 1)
    np.random.normal()
    state = random_state()
    facts = json.loads(json.dumps(state.facts))
    expected = [draws(), draws()]
    load_random_state(State(state.tensors, facts))
    assert [draws(), draws()] == expected
    assert draws() not in expected

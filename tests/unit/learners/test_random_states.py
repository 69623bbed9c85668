"""The generators a process draws from without naming them go on where they were."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from unlockstep.learners.backend import State
from unlockstep.learners.random_states import OwnGenerators, load_random_state, random_state


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


def test_learners_in_one_process_draw_as_if_each_were_alone() -> None:
    first, second, alone = OwnGenerators(1), OwnGenerators(2), OwnGenerators(1)
    expected = []
    for _ in range(3):
        with alone:
            expected.append(draws())
    seen = []
    for _ in range(3):
        with second:
            draws()
        with first:
            seen.append(draws())
    assert seen == expected


def test_torch_begins_where_its_seed_would_put_it() -> None:
    with OwnGenerators(7):
        drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)


def test_generators_that_were_written_and_read_go_on() -> None:
    first = OwnGenerators(3)
    with first:
        draws()
    second = pickle.loads(pickle.dumps(first))
    with first:
        expected = draws()
    with second:
        assert draws() == expected


def test_another_goes_on_from_where_one_is_and_neither_moves_the_other() -> None:
    first, second = OwnGenerators(4), OwnGenerators(5)
    with first:
        draws()
    places = first.places
    with first:
        expected = draws()
    second.go_to(places)
    with second:
        assert draws() == expected
    second.go_to(places)
    with second:
        assert draws() == expected

"""What a process holds beside its model: a copy made late is the copy made early, where the model stands still."""

from __future__ import annotations

import numpy as np
import pytest

from unlockstep.core.adoption import Adoption
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.holdings import Holdings
from unlockstep.learners.toy import ToyBackend

SIZES = [3, 5]


@pytest.mark.parametrize("mode", Adoption)
def test_copies_at_the_boundary_and_at_the_hand_over_are_the_same(mode: Adoption) -> None:
    """A few rounds on two models: every outer gradient and the model at the end are the same, bit for bit."""
    told = []
    for stands_still in (False, True):
        store = ToyBackend(seed=1, sizes=SIZES, noise=0.1)
        layout = build_layout(store.tensors(), len(SIZES), LayoutMethod.BALANCED)
        store.bind(layout)
        holdings = Holdings(layout, store, mode, blend_alpha=0.25, stands_still=stands_still)
        ends = []
        for fragment in range(layout.fragment_count):
            holdings.seed(fragment)
        for round in range(6):
            store.inner_step(round)
            for fragment in range(layout.fragment_count):
                holdings.copy(fragment)
            handed = holdings.hand_over(round % layout.fragment_count)
            ends.append(np.subtract(handed.anchor, handed.local).tobytes())
            store.inner_step(round)
            new = np.full(layout.fragment_size(round % layout.fragment_count), round, np.float32)
            holdings.adopt(round % layout.fragment_count, new)
        told.append((ends, [values.tobytes() for values in holdings.values()]))
    assert told[0] == told[1]


@pytest.mark.parametrize("mode", Adoption)
def test_what_is_adopted_is_left_as_it_is_and_the_outer_gradient_is_the_progress_since(mode: Adoption) -> None:
    """``overwrite`` and ``carry``: the next outer gradient is the negative of what was trained and not handed over."""
    store = ToyBackend(seed=2, sizes=[4])
    layout = build_layout(store.tensors(), 1, LayoutMethod.BALANCED)
    store.bind(layout)
    holdings = Holdings(layout, store, mode, blend_alpha=0.5)
    anchor = holdings.seed(0).copy()
    store.inner_step(0)
    progress = store.read_fragment(0) - anchor
    new = np.array([8.0, -4.0, 2.0, 0.0], np.float32)
    new.setflags(write=False)
    holdings.adopt(0, new)
    assert new.tolist() == [8.0, -4.0, 2.0, 0.0]
    holdings.copy(0)
    handed = holdings.hand_over(0)
    kept = {Adoption.OVERWRITE: 0.0, Adoption.BLEND: 0.5, Adoption.CARRY: 1.0}[mode]
    np.testing.assert_allclose(handed.local - handed.anchor, kept * progress, rtol=0, atol=1e-5)

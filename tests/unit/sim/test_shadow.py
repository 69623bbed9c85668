"""The second opinion on every commit: its equations in closed form, and that it differs where it should."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from support.core_builders import layout
from unlockstep.config import OuterSection
from unlockstep.core.formats import Codec
from unlockstep.core.merge import MergeRule
from unlockstep.sim import story as stories
from unlockstep.sim.shadow import explained, merged_value, outer_step
from unlockstep.sim.swarm import Verdict, play

NESTEROV = OuterSection(optimizer="nesterov", learning_rate=0.5, momentum=0.8)


def test_the_mean_is_weighted() -> None:
    """(1 * 3 + 3 * 7) / 4 = 6"""
    deltas = [np.array([3.0]), np.array([7.0])]
    merged, condition = merged_value(deltas, np.array([1.0, 3.0]), layout(1).fragments[0], MergeRule.MEAN)
    assert (merged[0], condition) == (6.0, 1.0)


def test_a_radial_average_has_the_mean_length_and_the_mean_direction() -> None:
    """In one dimension, of weights 3 and 1: lengths 2 and 6 make 3, directions + and - make 1/2 of +."""
    deltas = [np.array([2.0]), np.array([-6.0])]
    slots = layout(1).fragments[0]
    merged, condition = merged_value(deltas, np.array([3.0, 1.0]), slots, MergeRule.RADIAL_DIRECTIONAL)
    assert (merged[0], condition) == (3.0, 2.0)


def test_directions_that_cancel_say_nothing() -> None:
    deltas = [np.array([2.0]), np.array([-6.0])]
    slots = layout(1).fragments[0]
    assert merged_value(deltas, np.array([1.0, 1.0]), slots, MergeRule.RADIAL_DIRECTIONAL)[1] == np.inf


def test_an_outer_step_looks_ahead() -> None:
    """momentum = 0.8 * 1 + 2 = 2.8; value = 10 - 0.5 * (2 + 0.8 * 2.8) = 7.88"""
    after, momentum = outer_step(NESTEROV, np.array([10.0]), np.array([1.0]), np.array([2.0]))
    assert_allclose((after[0], momentum[0]), (7.88, 2.8), rtol=1e-12)


@pytest.mark.parametrize("outer", [NESTEROV, OuterSection(optimizer="sgd", learning_rate=0.7)])
def test_what_explains_a_step_is_what_it_was_taken_with(outer: OuterSection) -> None:
    before, momentum, merged = np.array([10.0]), np.array([1.0]), np.array([2.0])
    after, _ = outer_step(outer, before, momentum, merged)
    assert_allclose(explained(outer, before, momentum, after), merged, rtol=1e-12)


def test_the_store_agrees_with_it_whatever_the_settings() -> None:
    """Every codec, adoption, merge rule and anchor turns up among these."""
    played = [stories.draw(seed) for seed in range(20)]
    assert {codec for story in played for codec in story.config.codec.uploads} == set(Codec)
    assert {story.config.outer.merge for story in played} == set(MergeRule)
    for story in played:
        outcome = play(story)
        assert outcome.verdict in (Verdict.PASSED, Verdict.HOPELESS), outcome

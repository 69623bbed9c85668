"""Global parameters: versions, two-step commits, what is retained, and what is never published."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.global_params import GlobalParams
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.core.merge import Entry, MergeRule
from unlockstep.core.outer import SGD, Nesterov, OuterOptimizer
from unlockstep.core.outer_gradient import outer_gradient

LAYOUT = build_layout(
    [
        TensorSpec(name="a", shape=(2,), dtype="float32", role=Role.PARAMETER),
        TensorSpec(name="b.running_mean", shape=(1,), dtype="float32", role=Role.BUFFER),
        TensorSpec(name="c", shape=(3,), dtype="float32", role=Role.PARAMETER),
    ],
    2,
    LayoutMethod.TENSOR,
)
"""Fragment 0: a (2 elements) and c (3). Fragment 1: b.running_mean alone."""

SEED = np.arange(5, dtype=np.float32)


def float32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def entry(*delta: float, learner: str = "learner0", weight: float = 1.0) -> Entry:
    return Entry(learner=learner, delta=float32(*delta), weight=weight)


def seeded(
    optimizer: OuterOptimizer | None = None, codec: Codec = Codec.FLOAT32, retained_versions: int = 3
) -> GlobalParams:
    optimizer = optimizer or SGD(1.0)
    params = GlobalParams(LAYOUT, optimizer, MergeRule.MEAN, codec, retained_versions=retained_versions)
    params.seed(0, SEED)
    params.seed(1, float32(10))
    return params


def commit(params: GlobalParams, *entries: Entry, fragment: int = 0) -> None:
    params.publish(params.prepare(fragment, entries))


def test_a_seed_is_version_0_with_the_digest_of_its_body() -> None:
    params = GlobalParams(LAYOUT, SGD(1.0), MergeRule.MEAN, Codec.FLOAT32)
    assert params.version(0) is None
    version = params.seed(0, SEED)
    body = FragmentCodec(LAYOUT, 0, Codec.FLOAT32).encode(SEED)
    assert (version.fragment, version.version, version.size) == (0, 0, len(body))
    assert version.digest == params.digest(0, 0) == body_digest(body)
    assert params.body(0, 0) == body
    assert params.version(0) == 0
    assert params.version(1) is None


def test_the_seed_is_copied() -> None:
    values = SEED.copy()
    params = GlobalParams(LAYOUT, SGD(1.0), MergeRule.MEAN, Codec.FLOAT32)
    params.seed(0, values)
    values[:] = 99
    assert params.values(0).tolist() == SEED.tolist()


def test_a_commit_is_merge_then_outer_step() -> None:
    params = seeded(Nesterov(0.5, 0.5))
    commit(params, entry(0, 0, 0, 0, 2), entry(4, 0, 0, 0, 2, learner="learner1"))
    delta = float32(2, 0, 0, 0, 2)
    assert params.values(0).tolist() == (SEED - 0.5 * (delta + 0.5 * delta)).tolist()
    commit(params, entry(0, 0, 0, 0, 0))
    assert params.values(0).tolist() == (SEED - 0.75 * delta - 0.5 * (0.5 * 0.5 * delta)).tolist()


@pytest.mark.parametrize("codec", Codec)
def test_prepare_changes_nothing_and_publish_swaps(codec: Codec) -> None:
    params = seeded(Nesterov(0.5, 0.5), codec)
    prepared = params.prepare(0, [entry(3, 0, 0, 0, 4)])
    assert params.version(0) == 0
    assert params.values(0).tolist() == SEED.tolist()
    assert params.body(0, 1) is None
    assert prepared.norm == 5.0
    again = params.prepare(0, [entry(3, 0, 0, 0, 4)])
    assert again.body == prepared.body
    version = params.publish(prepared)
    assert version == prepared.version
    assert params.version(0) == version.version == 1
    assert params.body(0, 1) == prepared.body
    assert params.digest(0, 1) == body_digest(prepared.body)


def test_a_prepared_version_is_published_once_and_only_after_the_one_before() -> None:
    params = seeded()
    first, second = params.prepare(0, [entry(1, 1, 1, 1, 1)]), params.prepare(0, [entry(2, 2, 2, 2, 2)])
    params.publish(first)
    for stale in (first, second):
        with pytest.raises(LocalProtocolError, match="fragment 0 is at version 1: version 1 cannot follow it"):
            params.publish(stale)
    assert params.values(0).tolist() == (SEED - 1).tolist()


def test_a_forgotten_prepared_version_leaves_the_momentum_as_it_was() -> None:
    params, undisturbed = seeded(Nesterov(0.5, 0.5)), seeded(Nesterov(0.5, 0.5))
    params.prepare(0, [entry(100, 0, 0, 0, 0)])
    for step in (1.0, 2.0):
        commit(params, entry(step, 0, 0, 0, 0))
        commit(undisturbed, entry(step, 0, 0, 0, 0))
    assert params.values(0).tobytes() == undisturbed.values(0).tobytes()


def test_buffers_take_the_mean_of_the_learners_without_rate_or_momentum() -> None:
    params = seeded(Nesterov(0.1, 0.9))
    for _ in range(2):
        mean = (params.values(1)[0] + 2 + params.values(1)[0] + 4) / 2
        commit(params, entry(-2), entry(-4, learner="learner1"), fragment=1)
        assert params.values(1).tolist() == [mean]


def test_published_values_and_bodies_cannot_be_written_to() -> None:
    params = seeded()
    commit(params, entry(1, 1, 1, 1, 1))
    body = params.body(0, 1)
    assert body is not None
    assert body.readonly
    with pytest.raises(ValueError, match="read-only"):
        params.values(0)[0] = 1


def test_the_float32_body_is_the_value_itself() -> None:
    params = seeded()
    commit(params, entry(1, 2, 3, 4, 5))
    body = params.body(0, 1)
    assert body is not None
    assert np.shares_memory(np.frombuffer(body, np.uint8), params.values(0))


def test_only_the_last_versions_are_retained() -> None:
    params = seeded(retained_versions=2)
    for _ in range(3):
        commit(params, entry(1, 1, 1, 1, 1))
    assert [params.body(0, version) is not None for version in range(5)] == [False, False, True, True, False]
    assert [params.digest(0, version) is not None for version in range(5)] == [False, False, True, True, False]


@pytest.mark.parametrize("codec", Codec)
def test_rebase_measures_from_the_current_version(codec: Codec) -> None:
    """Both as published: what rounding makes of a value is no progress."""
    params, wire = seeded(codec=codec), FragmentCodec(LAYOUT, 0, codec)
    delta = outer_gradient(SEED, SEED + float32(1, 2, 3, 4, 5))
    commit(params, entry(8, 0, 0, 0, 0))
    base, current = (wire.decode(params.body(0, version) or b"") for version in (0, 1))
    rebased = params.rebase(0, delta, base_version=0)
    assert rebased is not None
    assert rebased.tolist() == (delta + (current - base)).tolist()
    if codec is Codec.FLOAT32:
        assert rebased.tolist() == (params.values(0) - (SEED + float32(1, 2, 3, 4, 5))).tolist()
    assert params.rebase(0, delta, base_version=1) is delta


def test_rebase_needs_a_base_that_is_retained() -> None:
    params = seeded(retained_versions=1)
    commit(params, entry(1, 1, 1, 1, 1))
    assert params.rebase(0, SEED, base_version=0) is None
    assert params.rebase(0, SEED, base_version=2) is None


@pytest.mark.parametrize("rebase", [False, True], ids=["anchor_learner", "anchor_syncer"])
@pytest.mark.parametrize("codec", Codec)
def test_small_steps_add_up_though_bodies_are_rounded(codec: Codec, rebase: bool) -> None:
    """C10: the learner moves by 1e-3 in float32 for ten rounds; its anchor is what was published."""
    layout = build_layout([TensorSpec(name="w", shape=(1,), dtype="bfloat16", role=Role.PARAMETER)], 1, LAYOUT.method)
    params = GlobalParams(layout, SGD(1.0), MergeRule.MEAN, codec)
    params.seed(0, float32(1.0))
    wire = FragmentCodec(layout, 0, codec)
    for number in range(10):
        body = params.body(0, number)
        assert body is not None
        anchor = wire.decode(body)
        delta = wire.decode(wire.encode(outer_gradient(anchor, anchor + np.float32(1e-3))))
        rebased = params.rebase(0, delta, number) if rebase else delta
        assert rebased is not None
        params.publish(params.prepare(0, [Entry(learner="learner0", delta=rebased, weight=1.0)]))
    assert params.values(0)[0] - 1 == pytest.approx(10 * 1e-3, rel=0.01)


def test_fragments_are_prepared_side_by_side_with_lent_threads() -> None:
    params = seeded()
    with ThreadPoolExecutor(2) as commits, ThreadPoolExecutor(2) as lent:
        first = commits.submit(params.prepare, 0, [entry(1, 1, 1, 1, 1)], lent)
        second = commits.submit(params.prepare, 1, [entry(1)], lent)
        params.publish(second.result())
        params.publish(first.result())
    assert params.values(0).tolist() == (SEED - 1).tolist()
    assert params.values(1).tolist() == [9]


@pytest.mark.parametrize("codec", Codec)
def test_a_value_that_is_not_finite_is_never_published(codec: Codec) -> None:
    """C9"""
    params = seeded(SGD(10.0), codec)
    with (
        pytest.raises(LocalProtocolError, match="version 1 of fragment 0 is not finite"),
        np.errstate(over="ignore"),
    ):
        params.prepare(0, [entry(3e38, 0, 0, 0, 0)])
    assert params.version(0) == 0


def test_our_own_mistakes_are_named() -> None:
    params = GlobalParams(LAYOUT, SGD(1.0), MergeRule.MEAN, Codec.FLOAT32)
    with pytest.raises(LocalProtocolError, match="fragment 0 has no value yet"):
        params.prepare(0, [entry(1, 1, 1, 1, 1)])
    with pytest.raises(LocalProtocolError, match="5 float32 elements"):
        params.seed(0, float32(1))
    with pytest.raises(LocalProtocolError, match="not finite"):
        params.seed(0, float32(1, 2, np.nan, 4, 5))
    params.seed(0, SEED)
    with pytest.raises(LocalProtocolError, match="already has a value"):
        params.seed(0, SEED)
    with pytest.raises(LocalProtocolError, match="contribution of learner0 to fragment 0 has shape"):
        params.prepare(0, [entry(1)])
    with pytest.raises(ValueError, match="positive weight"):
        params.prepare(0, [entry(1, 1, 1, 1, 1, weight=0.0)])

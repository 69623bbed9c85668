"""The syncer's arrays: what is kept for as long as a contribution may need it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.core_builders import layout
from unlockstep.config import CodecSection, OuterSection, RunConfig
from unlockstep.core.actions import Commit, Share
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.formats import Codec
from unlockstep.core.options import Anchor, ProtocolOptions
from unlockstep.core.reasons import RefusalReason
from unlockstep.storehouse import Storehouse

STALENESS_MAX = 2


def measured_from_the_syncer_s_value() -> Storehouse:
    """One element per fragment, learning rate 1, a mean of outer gradients measured from the present value."""
    config = RunConfig(
        outer=OuterSection(optimizer="sgd", learning_rate=1.0),
        codec=CodecSection(upload=Codec.FLOAT32),
        protocol=ProtocolOptions(fragments=2, anchor=Anchor.SYNCER, staleness_max=STALENESS_MAX),
    )
    house = Storehouse(layout(2), config)
    for fragment in range(2):
        house.seed(fragment, np.zeros(1, np.float32))
    return house


def merge_one(house: Storehouse, version: int, delta: float, base_version: int) -> float:
    """Commit a version of fragment 0 from one contribution; returns its value."""
    body = FragmentCodec(house.layout, 0, Codec.FLOAT32).encode(np.full(1, delta, np.float32))
    payload = house.hold(0, house.inspect(0, body, body_digest(body), Codec.FLOAT32, 1, 1, np.inf))
    commit = Commit(0, 0, version, (Share("a", 1.0, (payload,), (base_version,)),))
    house.publish(commit, house.prepare(commit))
    return float(house.values(0)[0])


def test_what_came_late_is_measured_from_its_base_though_a_version_was_committed_since() -> None:
    """Accepted at version 2, from version 0, that is ``staleness_max`` behind; merged into version 4.

    The present value is 3; the learner went from 0 to 0.5: so ``3 - 0.5`` is subtracted.
    """
    house = measured_from_the_syncer_s_value()
    for version in (1, 2, 3):
        assert merge_one(house, version, -1.0, base_version=version - 1) == version
    assert merge_one(house, 4, -0.5, base_version=3 - STALENESS_MAX - 1) == 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("codec", Codec)
def test_a_contribution_that_is_not_finite_is_refused_in_every_format(codec: Codec, bad: float) -> None:
    """C9, C13"""
    house = Storehouse(layout(2), RunConfig(codec=CodecSection(upload=codec)))
    body = FragmentCodec(house.layout, 0, codec).encode(np.full(1, bad, np.float32))
    inspection = house.inspect(0, body, body_digest(body), codec, 1, 1, np.inf)
    assert (inspection.defect, inspection.delta) == (RefusalReason.NON_FINITE, None)


@pytest.mark.parametrize("download", Codec)
def test_version_0_is_exact_in_whatever_format_it_is_published(download: Codec) -> None:
    """Nobody can mend the parameters that a run begins with: they arrive as float32, and are rounded when published."""
    house = Storehouse(layout(2), RunConfig(codec=CodecSection(download=download)))
    value = np.full(1, 1.2345678, np.float32)
    body = FragmentCodec(house.layout, 0, Codec.FLOAT32).encode(value)
    notice = house.seed(0, house.check_seed(0, body))
    assert house.values(0).tobytes() == value.tobytes()
    published = FragmentCodec(house.layout, 0, download).encode(value)
    assert notice.digest == body_digest(published)
    assert house.is_seed(0, body_digest(body))
    assert not house.is_seed(0, "another")


@pytest.mark.parametrize("download", Codec)
def test_another_life_publishes_what_this_one_has_published(download: Codec) -> None:
    """From the exact value: rounding depends on nothing that is not kept."""
    config = RunConfig(codec=CodecSection(download=download))
    house, other = Storehouse(layout(2), config), Storehouse(layout(2), config)
    for fragment in range(2):
        house.seed(fragment, np.full(1, 1.2345678, np.float32))
    other.restore(house.kept(), house.norms)
    assert other.newest() == house.newest()

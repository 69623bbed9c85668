"""Bodies on their way: what is asked of their bytes is asked once, and what came differently is seen."""

from __future__ import annotations

import numpy as np
import pytest

from unlockstep import config as run_config
from unlockstep.config import RunConfig
from unlockstep.core.codec import body_digest
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.messages import VersionNotice
from unlockstep.learners.toy import ToyBackend
from unlockstep.sim import cargo
from unlockstep.sim.cargo import ArrayCargo, ArrayCodecs, Parcel

BODY = memoryview(bytes(range(64)))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the bodies that were hashed."""
    lengths: list[int] = []

    def note(body: memoryview) -> str:
        lengths.append(len(body))
        return body_digest(body)

    monkeypatch.setattr(cargo, "body_digest", note)
    return lengths


def test_what_arrives_as_it_was_sent_is_not_hashed(hashed: list[int]) -> None:
    assert Parcel(BODY, len(BODY)).is_what_was_sent and hashed == []


def test_a_damaged_body_is_not_what_was_sent_and_keeps_its_digest(hashed: list[int]) -> None:
    parcel = Parcel(BODY, len(BODY))
    damaged = parcel.damaged()
    assert damaged.digest == parcel.digest == body_digest(BODY)
    assert not damaged.is_what_was_sent and not damaged.has(parcel.digest) and parcel.has(parcel.digest)
    assert len(hashed) == 2


def test_a_body_under_the_digest_of_another_is_seen() -> None:
    assert not Parcel(BODY, len(BODY), sent_digest=body_digest(b"another")).is_what_was_sent


@pytest.mark.parametrize("download", ["float32", "bfloat16"])
def test_all_who_fetch_a_version_share_what_nobody_can_write_to(download: str) -> None:
    config = run_config.apply(RunConfig(), [f'codec.download="{download}"'])
    layout = build_layout(ToyBackend(seed=0, sizes=[40]).tensors(), 1, LayoutMethod.BALANCED)
    syncer, learner, other = ArrayCargo(layout, config), ArrayCodecs(layout, config), ArrayCodecs(layout, config)
    notice = syncer.seed(0, np.arange(40, dtype=np.float32))
    parcel = syncer.body(notice)
    assert parcel is not None and syncer.body(notice) is parcel
    values = learner.unpack(notice, parcel)
    assert values is not None and other.unpack(notice, parcel) is values
    assert values.tolist() == list(range(40)) and not values.flags.writeable
    assert learner.unpack(notice, parcel.damaged()) is None
    assert syncer.body(VersionNotice(0, 1, notice.digest)) is None


def test_version_zero_of_a_second_seeder_is_its_own() -> None:
    layout = build_layout(ToyBackend(seed=0, sizes=[4]).tensors(), 1, LayoutMethod.BALANCED)
    syncer, learner = ArrayCargo(layout, RunConfig()), ArrayCodecs(layout, RunConfig())
    for value in (1.0, 2.0):
        notice = syncer.seed(0, np.full(4, value, np.float32))
        parcel = syncer.body(notice)
        assert parcel is not None
        values = learner.unpack(notice, parcel)
        assert values is not None and values.tolist() == [value] * 4
        syncer.seed_anew()

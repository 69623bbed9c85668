"""Learners and bodies without arrays, for worlds where only time and the protocol matter: a day in a minute.

Decides that a step trains a fixed number of tokens, that every contribution is sound, and that the digest of a version
names it. Fragments have one element each, which nobody looks at; their bodies are as long as one says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from unlockstep.config import RunConfig
from unlockstep.core.actions import Commit
from unlockstep.core.layout import Layout, Role, TensorSpec
from unlockstep.core.messages import Committed, ContributionArrived, HandedOver, VersionNotice
from unlockstep.core.reasons import RefusalReason
from unlockstep.learners.backend import Backend, FloatArray, StepStats
from unlockstep.learners.state_body import Donated
from unlockstep.loop import Contribution
from unlockstep.sim.cargo import Cargo, Codecs, Parcel, arrived
from unlockstep.storehouse import NO_PAYLOAD

_NOTHING: FloatArray = np.zeros(1, np.float32)
_BODY = memoryview(b"\x01")
"""Stands for a body of any length: it can be damaged, and that can be seen."""


class WeightlessBackend:
    """Trains nothing (``learners.backend.Backend``).

    Args:
        fragments: P; one tensor each.
        tokens_per_step: what every step reports.
    """

    def __init__(self, fragments: int, tokens_per_step: int = 1) -> None:
        names = (f"tensor-{fragment:06d}" for fragment in range(fragments))
        self._specs = tuple(TensorSpec(name, (1,), "float32", Role.PARAMETER) for name in names)
        self._stats = StepStats(tokens=tokens_per_step, loss=float("nan"))

    def tensors(self) -> Sequence[TensorSpec]:
        return self._specs

    def bind(self, layout: Layout) -> None:
        pass

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        if out is None:
            return _NOTHING
        out[:] = _NOTHING
        return out

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        pass

    def inner_step(self, clock: int) -> StepStats:
        return self._stats

    def reset_optimizer(self) -> None:
        """There is none."""

    def seek(self, steps: int) -> None:
        pass


class WeightlessFreight:
    """No arrays (``cargo.Freight``).

    Args:
        body_bytes: length of every body, for links with a limited rate.
    """

    def __init__(self, body_bytes: int = 0) -> None:
        self.parcel = Parcel(_BODY, body_bytes)

    def codecs(self, layout: Layout, config: RunConfig, backend: Backend) -> Codecs:
        return self

    def cargo(self, layout: Layout, config: RunConfig, executor: Executor | None, saved: Any = None) -> Cargo:
        return _Shelf(self.parcel, saved or {})

    def pack(self, made: Contribution) -> Parcel:
        return self.parcel

    def forget(self, handed_over: HandedOver) -> None:
        pass

    def unpack(self, notice: VersionNotice, parcel: Parcel) -> FloatArray | None:
        return _NOTHING if parcel.body == _BODY else None

    def size(self, fragment: int) -> int:
        return self.parcel.size

    def pack_state(self, donated: Donated) -> Parcel:
        raise AssertionError("what trains nothing remembers nothing")

    def unpack_state(self, digest: str, parcel: Parcel) -> Donated | None:
        raise AssertionError("what trains nothing remembers nothing")


class _Shelf:
    """The syncer's end (``cargo.Cargo``)."""

    def __init__(self, parcel: Parcel, newest: dict[int, int]) -> None:
        self._parcel = parcel
        self._payloads = 0
        self._newest = dict(newest)

    def saved(self) -> dict[int, int]:
        return dict(self._newest)

    def receive(self, made: Contribution, parcel: Parcel) -> ContributionArrived:
        if parcel.body != _BODY:
            return arrived(made, 0.0, RefusalReason.DIGEST_MISMATCH, NO_PAYLOAD)
        self._payloads += 1
        return arrived(made, 1.0, None, self._payloads)

    def seed(self, fragment: int, values: FloatArray) -> VersionNotice:
        return self._publish(fragment, 0)

    def seed_anew(self) -> None:
        self._newest.clear()

    def commit(self, commit: Commit) -> Committed:
        notice = self._publish(commit.fragment, commit.version)
        return Committed(commit.round, commit.fragment, notice.version, notice.digest, norm=1.0)

    def go_back(self, saved: dict[int, int]) -> tuple[VersionNotice, ...]:
        return tuple(self._publish(fragment, self._newest[fragment] + 1) for fragment in saved)

    def release(self, payload: int) -> None:
        pass

    def body(self, notice: VersionNotice) -> Parcel | None:
        return self._parcel if self._newest.get(notice.fragment) == notice.version else None

    def _publish(self, fragment: int, version: int) -> VersionNotice:
        self._newest[fragment] = version
        digest = hashlib.sha256(b"%d.%d" % (fragment, version)).hexdigest()
        return VersionNotice(fragment, version, digest)

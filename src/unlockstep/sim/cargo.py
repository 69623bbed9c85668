"""What travels and is merged: real arrays in the production store, or none at all.

Decides what a world wants done with bodies, at a learner's end and at the syncer's, and does it with the real codec and
``storehouse.Storehouse``. ``weightless`` does it without arrays, for worlds where only time matters.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from unlockstep.config import RunConfig
from unlockstep.core.actions import Commit
from unlockstep.core.codec import Body, body_digest, fragment_codecs
from unlockstep.core.feedback import Encoder
from unlockstep.core.layout import Layout
from unlockstep.core.messages import Committed, ContributionArrived, HandedOver, VersionNotice
from unlockstep.core.outer_gradient import Norms
from unlockstep.core.reasons import RefusalReason
from unlockstep.learners.backend import Backend, FloatArray
from unlockstep.learners.state_body import Donated, decode_state, encode_state
from unlockstep.loop import Contribution
from unlockstep.storehouse import Kept, Storehouse

SavedArrays: TypeAlias = tuple[dict[int, Kept], Norms]
"""What outlives a life of the syncer: fragments, and the last contributions to each."""


@dataclass(slots=True)
class Parcel:
    """A body on its way. Nothing is asked of its bytes twice: all who send and take them are one process."""

    body: Body
    size: int
    """Bytes that travel."""
    sent_digest: str | None = None
    """What its sender says its digest is; None: what it is."""
    measured_digest: str | None = None
    """The digest that these very bytes have, if somebody has computed it."""
    values: FloatArray | None = None
    """What they decode to, if somebody has decoded them: shared by all who fetch them, and never written to."""

    @property
    def digest(self) -> str:
        """The one its sender gives it."""
        return self._measured() if self.sent_digest is None else self.sent_digest

    @property
    def is_what_was_sent(self) -> bool:
        """Whether its bytes have the digest that its sender gives it."""
        return self.sent_digest is None or self.has(self.sent_digest)

    def has(self, digest: str) -> bool:
        """Whether its bytes have this digest."""
        return self._measured() == digest

    def _measured(self) -> str:
        if self.measured_digest is None:
            self.measured_digest = body_digest(self.body)
        return self.measured_digest

    def damaged(self) -> Parcel:
        """The same with one bit of it turned over on the way: of a number, where only the digest tells."""
        body = bytearray(self.body)
        body[-1] ^= 1
        return Parcel(memoryview(body), self.size, self.digest)


class Codecs(Protocol):
    """A learner's end: values to bodies and back."""

    def pack(self, made: Contribution) -> Parcel:
        """The outer gradient as it travels."""
        ...

    def forget(self, handed_over: HandedOver) -> None:
        """It will not travel again."""
        ...

    def unpack(self, notice: VersionNotice, parcel: Parcel) -> FloatArray | None:
        """The values of a version; None if the body is not the one announced."""
        ...

    def size(self, fragment: int) -> int:
        """Bytes of a version that travel."""
        ...

    def pack_state(self, donated: Donated) -> Parcel:
        """What the process trains with, for another one."""
        ...

    def unpack_state(self, digest: str, parcel: Parcel) -> Donated | None:
        """What another one trains with; None if the body is not the one announced."""
        ...


class Cargo(Protocol):
    """The syncer's end: the bodies of one life of it."""

    def receive(self, made: Contribution, parcel: Parcel) -> ContributionArrived:
        """Inspect what has arrived, and keep it if it is sound."""
        ...

    def seed(self, fragment: int, values: FloatArray) -> VersionNotice:
        """Version 0 of a fragment."""
        ...

    def seed_anew(self) -> None:
        """Another learner seeds: what the one before has brought is void."""
        ...

    def commit(self, commit: Commit) -> Committed:
        """Merge, take the outer step, publish."""
        ...

    def go_back(self, saved: Any) -> tuple[VersionNotice, ...]:
        """What ``saved`` has returned once is the next version of every fragment."""
        ...

    def release(self, payload: int) -> None:
        """A contribution will not be merged."""
        ...

    def body(self, notice: VersionNotice) -> Parcel | None:
        """The body of a version; None if it is not retained, or is another than announced."""
        ...

    def saved(self) -> object:
        """What outlives this life: to be given to ``Freight.cargo`` for the next one."""
        ...


class Freight(Protocol):
    """Both ends, made for a run."""

    def codecs(self, layout: Layout, config: RunConfig, backend: Backend) -> Codecs:
        """One process's end. ``backend`` is what the process trains, for those who watch it."""
        ...

    def cargo(self, layout: Layout, config: RunConfig, executor: Executor | None, saved: Any = None) -> Cargo:
        """One life's end. ``saved`` is what an earlier life has left; None: nothing."""
        ...


def arrived(made: Contribution, norm: float, defect: RefusalReason | None, payload: int) -> ContributionArrived:
    """What the syncer's core is told of an upload."""
    return ContributionArrived(
        learner=made.learner,
        incarnation=made.incarnation,
        round=made.round,
        fragment=made.fragment,
        base_version=made.base_version,
        c_steps=made.c_steps,
        c_tokens=made.c_tokens,
        tokens=made.tokens,
        norm=norm,
        defect=defect,
        payload=payload,
        position=made.position,
        samples=made.samples,
        steps=made.steps,
        deed=made.deed,
        codec=made.codec,
    )


class ArrayCodecs:
    """The production codec (``Codecs``)."""

    def __init__(self, layout: Layout, config: RunConfig) -> None:
        self._layout = layout
        self._encoder = Encoder(layout, feedback=config.codec.upload_feedback, rounding=config.codec.upload_rounding)
        self._downloads = fragment_codecs(layout, config.codec.download)

    def pack(self, made: Contribution) -> Parcel:
        body = self._encoder.encode(made, made.codec, made.anchor, made.local)
        return Parcel(body, len(body))

    def forget(self, handed_over: HandedOver) -> None:
        self._encoder.forget(handed_over)

    def unpack(self, notice: VersionNotice, parcel: Parcel) -> FloatArray | None:
        if not parcel.has(notice.digest):
            return None
        if parcel.values is None:
            parcel.values = self._downloads[notice.fragment].decode(parcel.body)
            parcel.values.setflags(write=False)
        return parcel.values

    def size(self, fragment: int) -> int:
        return self._downloads[fragment].body_size

    def pack_state(self, donated: Donated) -> Parcel:
        body = encode_state(donated, self._layout)
        return Parcel(body, len(body))

    def unpack_state(self, digest: str, parcel: Parcel) -> Donated | None:
        return decode_state(parcel.body, self._layout) if parcel.has(digest) else None


class ArrayCargo:
    """The production store (``Cargo``)."""

    def __init__(
        self, layout: Layout, config: RunConfig, executor: Executor | None = None, saved: SavedArrays | None = None
    ) -> None:
        self._layout = layout
        self._config = config
        self._executor = executor
        self.seed_anew()
        if saved is not None:
            self.storehouse.restore(*saved)

    def saved(self) -> SavedArrays:
        return self.storehouse.kept(), self.storehouse.norms

    def seed_anew(self) -> None:
        self.storehouse = Storehouse(self._layout, self._config, self._executor)
        self._published: dict[int, Parcel] = {}
        """By fragment, what was fetched last."""

    def receive(self, made: Contribution, parcel: Parcel) -> ContributionArrived:
        house, fragment = self.storehouse, made.fragment
        bound = house.norm_bound(fragment, made.c_steps)
        # None: it has been compared.
        digest = None if parcel.is_what_was_sent else parcel.digest
        inspection = house.inspect(fragment, parcel.body, digest, made.codec, made.c_steps, made.c_tokens, bound)
        return arrived(made, inspection.norm, inspection.defect, house.hold(fragment, inspection))

    def seed(self, fragment: int, values: FloatArray) -> VersionNotice:
        return self.storehouse.seed(fragment, values)

    def commit(self, commit: Commit) -> Committed:
        prepared = self.storehouse.prepare(commit)
        notice = self.storehouse.publish(commit, prepared)
        self._published.pop(commit.fragment, None)  # Nobody may want the new one for long.
        return Committed(commit.round, commit.fragment, notice.version, notice.digest, prepared.norm)

    def go_back(self, saved: SavedArrays) -> tuple[VersionNotice, ...]:
        kept, norms = saved
        return self.storehouse.publish_earlier(self.storehouse.prepare_earlier(kept), norms)

    def release(self, payload: int) -> None:
        self.storehouse.release(payload)

    def body(self, notice: VersionNotice) -> Parcel | None:
        found = self.storehouse.body(notice.fragment, notice.version)
        if found is None or found[1] != notice.digest:
            return None
        parcel = self._published.get(notice.fragment)
        if parcel is None or parcel.body is not found[0]:
            parcel = self._published[notice.fragment] = Parcel(found[0], len(found[0]), found[1], found[1])
        return parcel


class ArrayFreight:
    """Real arrays (``Freight``)."""

    def codecs(self, layout: Layout, config: RunConfig, backend: Backend) -> Codecs:
        return ArrayCodecs(layout, config)

    def cargo(self, layout: Layout, config: RunConfig, executor: Executor | None, saved: Any = None) -> Cargo:
        return ArrayCargo(layout, config, executor, saved)

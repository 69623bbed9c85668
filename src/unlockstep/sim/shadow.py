"""Every commit computed a second time, in another way: whole arrays, float64, straight from the equations.

::

    w_m   = (sum of c_tokens)^2 / (sum of c_steps)                          over m's contributions to this merge
    mean  = sum(w_m v_m) / sum(w_m)
    rda   = sum(w_m |v_m|) / sum(w_m)  *  phi( sum(w_m phi(v_m)) / sum(w_m) )
    buf   = mu * buf + merged;    new = old - lr * (merged + mu * buf)      without momentum: new = old - lr * merged

Decides whether what was published is what these give, up to rounding, and whether a contribution was merged twice. It
shares no arithmetic with ``core.merge``, ``core.weights`` and ``core.outer``: only the codec that reads a body, and the
value before the commit, so that rounding does not add up. Wrapped around the production store, it changes nothing that
the store does.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, TypeAlias

import numpy as np

from unlockstep.config import OuterSection, RunConfig
from unlockstep.core.actions import Commit, Share
from unlockstep.core.codec import body_digest, fragment_codecs
from unlockstep.core.layout import Layout, Role, Slot
from unlockstep.core.merge import MergeRule
from unlockstep.core.messages import Committed, ContributionArrived, HandedOver, VersionNotice
from unlockstep.core.options import Anchor
from unlockstep.learners.backend import Backend, FloatArray
from unlockstep.learners.state_body import Donated, decode_state
from unlockstep.loop import Contribution
from unlockstep.sim.cargo import ArrayCargo, ArrayFreight, Cargo, Codecs, Freight, Parcel
from unlockstep.sim.ward import ROUNDING, Ward, WardedBackend, Wide
from unlockstep.storehouse import NO_PAYLOAD, Storehouse

Memory: TypeAlias = tuple[dict[int, tuple[Wide, float]], dict[tuple[int, int], Wide]]
"""What a second opinion needs of an earlier life: momentum, and the newest versions."""

CONDITION_MAX = 1e3
"""Where unit vectors cancel to less than 1 / this, the direction that is scaled up is mostly rounding: there the merged
value is not judged, but taken to be what explains the result."""


class ShadowFreight:
    """Real arrays, watched (``cargo.Freight``).

    Args:
        ward: told of everything published, and of everything wrong.
        watched: the freight, whose cargo is an ``ArrayCargo`` or behaves as one.
    """

    def __init__(self, ward: Ward, watched: Freight | None = None) -> None:
        self._ward = ward
        self._watched = watched or ArrayFreight()

    def codecs(self, layout: Layout, config: RunConfig, backend: Backend) -> Codecs:
        codecs = self._watched.codecs(layout, config, backend)
        return _WatchedCodecs(layout, config, codecs, backend) if isinstance(backend, WardedBackend) else codecs

    def cargo(self, layout: Layout, config: RunConfig, executor: Executor | None, saved: Any = None) -> Cargo:
        watched, memory = (None, None) if saved is None else saved
        return Shadow(self._ward, layout, config, self._watched.cargo(layout, config, executor, watched), memory)


class _WatchedCodecs:
    """A learner's end, watched (``cargo.Codecs``): what it hands over is held against what its process has trained."""

    def __init__(self, layout: Layout, config: RunConfig, watched: Codecs, trained: WardedBackend) -> None:
        self._watched = watched
        self._trained = trained
        self._layout = layout
        self._uploads = {codec: fragment_codecs(layout, codec) for codec in config.codec.uploads}

    def pack(self, made: Contribution) -> Parcel:
        parcel = self._watched.pack(made)
        delta = self._uploads[made.codec][made.fragment].decode(parcel.body)
        self._trained.hand_over(made, delta.astype(np.float64))
        return parcel

    def forget(self, handed_over: HandedOver) -> None:
        self._watched.forget(handed_over)

    def unpack(self, notice: VersionNotice, parcel: Parcel) -> FloatArray | None:
        return self._watched.unpack(notice, parcel)

    def size(self, fragment: int) -> int:
        return self._watched.size(fragment)

    def pack_state(self, donated: Donated) -> Parcel:
        parcel = self._watched.pack_state(donated)
        self._trained.give(decode_state(parcel.body, self._layout))
        return parcel

    def unpack_state(self, digest: str, parcel: Parcel) -> Donated | None:
        donated = self._watched.unpack_state(digest, parcel)
        if donated is not None and body_digest(parcel.body) != digest:
            self._trained.complain_of_state("takes a damaged state for a sound one")
        return donated


class Shadow:
    """One life of the syncer, watched (``cargo.Cargo``)."""

    def __init__(
        self, ward: Ward, layout: Layout, config: RunConfig, watched: Cargo, memory: Memory | None = None
    ) -> None:
        self.watched = watched
        self._ward = ward
        self._layout = layout
        self._config = config
        self._uploads = {codec: fragment_codecs(layout, codec) for codec in config.codec.uploads}
        self._downloads = fragment_codecs(layout, config.codec.download)
        self._begin()
        if memory is not None:
            self._momentum.update(memory[0])
            self._versions.update(memory[1])

    def saved(self) -> tuple[object, Memory]:
        current = {(notice.fragment, notice.version) for notice in self.storehouse.newest()}
        versions = {key: values for key, values in self._versions.items() if key in current}
        return self.watched.saved(), (dict(self._momentum), versions)

    def _begin(self) -> None:
        self._held: dict[int, tuple[Contribution, Wide]] = {}
        self._merged: set[tuple[str, int, int, int]] = set()
        self._momentum: dict[int, tuple[Wide, float]] = {}
        """By fragment: momentum, and how much of the last value rounding explained."""
        self._versions: dict[tuple[int, int], Wide] = {}

    @property
    def storehouse(self) -> Storehouse:
        assert isinstance(self.watched, ArrayCargo), "only the production store has one"
        return self.watched.storehouse

    def receive(self, made: Contribution, parcel: Parcel) -> ContributionArrived:
        arrived = self.watched.receive(made, parcel)
        if arrived.payload != NO_PAYLOAD:
            if body_digest(parcel.body) != parcel.digest:
                text = f"a damaged body of {made.learner} for round {made.round} is taken for a sound one"
                self._ward.complain("uploaded body", text)
            delta = self._uploads[made.codec][made.fragment].decode(parcel.body)
            self._held[arrived.payload] = made, delta.astype(np.float64)
        return arrived

    def seed(self, fragment: int, values: FloatArray) -> VersionNotice:
        notice = self.watched.seed(fragment, values)
        self._publish(notice)
        return notice

    def seed_anew(self) -> None:
        self.watched.seed_anew()
        self._begin()

    def commit(self, commit: Commit) -> Committed:
        before = self._values(commit.fragment)
        committed = self.watched.commit(commit)
        self._judge(commit, before, self._values(commit.fragment))
        self._publish(VersionNotice(commit.fragment, commit.version, committed.digest))
        for share in commit.shares:
            for payload in share.payloads:
                self._held.pop(payload, None)
        return committed

    def go_back(self, saved: Any) -> tuple[VersionNotice, ...]:
        watched, (momentum, _) = saved
        notices = self.watched.go_back(watched)
        self._momentum = dict(momentum)
        for notice in notices:
            self._publish(notice)
        return notices

    def release(self, payload: int) -> None:
        self.watched.release(payload)
        self._held.pop(payload, None)

    def body(self, notice: VersionNotice) -> Parcel | None:
        parcel = self.watched.body(notice)
        if parcel is not None and body_digest(parcel.body) != notice.digest:
            text = f"the body given for version {notice.version} of fragment {notice.fragment} is another one"
            self._ward.complain("fetched body", text)
        return parcel

    # ------------------------------------------------------------------------------------------- a second opinion

    def _values(self, fragment: int) -> Wide:
        return self.storehouse.values(fragment).astype(np.float64)

    def _publish(self, notice: VersionNotice) -> None:
        found = self.storehouse.body(notice.fragment, notice.version)
        if found is None or body_digest(found[0]) != notice.digest:
            text = f"version {notice.version} of fragment {notice.fragment} has no body of the digest announced"
            self._ward.complain("published", text)
            return
        values = self._downloads[notice.fragment].decode(found[0])
        self._ward.publish(notice, values)
        self._versions[notice.fragment, notice.version] = values.astype(np.float64)

    def _judge(self, commit: Commit, before: Wide, after: Wide) -> None:
        """The value before, and what learners have handed over since, make the value after."""
        fragment, outer, slots = commit.fragment, self._config.outer, self._layout.fragments[commit.fragment]
        made = [[self._held[payload][0] for payload in share.payloads] for share in commit.shares]
        for one in (one for mine in made for one in mine):
            self._note_merged(commit, one)
        weights = np.array([sum(one.c_tokens for one in mine) ** 2 / sum(one.c_steps for one in mine) for mine in made])
        merged, condition = merged_value(
            [self._delta(commit, share) for share in commit.shares], weights, slots, outer.merge
        )
        momentum, earlier = self._momentum.get(fragment, (np.zeros_like(before), 0.0))
        if condition > CONDITION_MAX:
            merged = explained(outer, before, momentum, after)
        expected, momentum = outer_step(outer, before, momentum, merged)
        for slot in slots:
            if slot.tensor.role is Role.BUFFER:
                expected[slot.offset : slot.stop] = (before - merged)[slot.offset : slot.stop]
        largest = max(float(np.abs(part).max()) for part in (before, momentum, merged, after))
        bound = ROUNDING * min(condition, CONDITION_MAX) * largest + outer.momentum * earlier
        self._momentum[fragment] = momentum, bound
        difference = float(np.abs(expected - after).max())
        if not difference <= bound:
            self._ward.complain(
                "merged value",
                f"version {commit.version} of fragment {fragment} differs by {difference:.3g} from what its "
                f"{len(commit.shares)} contributors make of the one before; rounding explains {bound:.3g}",
            )

    def _note_merged(self, commit: Commit, made: Contribution) -> None:
        """A process hands every token over once."""
        key = made.learner, made.incarnation, made.fragment, made.tokens
        if key in self._merged:
            self._ward.complain(
                "merged twice",
                f"version {commit.version} of fragment {made.fragment} merges once more what {made.learner} had handed "
                f"over for round {made.round}",
            )
        self._merged.add(key)

    def _delta(self, commit: Commit, share: Share) -> Wide:
        """A learner's outer gradients added up; ``anchor = "syncer"`` measures them from the present value."""
        delta: Wide = sum((self._held[payload][1] for payload in share.payloads), start=np.zeros(1))
        if self._config.protocol.anchor is Anchor.SYNCER:
            base, current = share.base_versions[-1], commit.version - 1
            if (commit.fragment, base) in self._versions:  # else of an earlier life, and gone with it
                delta = delta + self._versions[commit.fragment, current] - self._versions[commit.fragment, base]
        return delta


def merged_value(deltas: Sequence[Wide], weights: Wide, slots: Sequence[Slot], rule: MergeRule) -> tuple[Wide, float]:
    """The merged outer gradient, and how much rounding in it may be magnified."""
    merged, condition = np.zeros_like(deltas[0]), 1.0
    weights = weights / weights.sum()
    for slot in slots:
        vectors = np.stack([delta[slot.offset : slot.stop] for delta in deltas])
        lengths = np.linalg.norm(vectors, axis=1)
        value: Wide = weights @ vectors
        direction = weights @ (vectors / np.where(lengths > 0, lengths, 1)[:, None])
        length = float(np.linalg.norm(direction))
        if rule is MergeRule.RADIAL_DIRECTIONAL and slot.tensor.role is Role.PARAMETER and lengths.any():
            condition = max(condition, 1 / length if length > 0 else np.inf)
            value = weights @ lengths * direction / length if length > 0 else value
        merged[slot.offset : slot.stop] = value
    return merged, condition


def outer_step(outer: OuterSection, before: Wide, momentum: Wide, merged: Wide) -> tuple[Wide, Wide]:
    """New value and new momentum."""
    mu = _mu(outer)
    momentum = mu * momentum + merged
    return before - outer.learning_rate * (merged + mu * momentum), momentum


def explained(outer: OuterSection, before: Wide, momentum: Wide, after: Wide) -> Wide:
    """The merged outer gradient that leads from one value to the other: ``outer_step`` solved for it."""
    mu = _mu(outer)
    merged: Wide = ((before - after) / outer.learning_rate - mu * mu * momentum) / (1 + mu)
    return merged


def _mu(outer: OuterSection) -> float:
    return outer.momentum if outer.optimizer == "nesterov" else 0.0

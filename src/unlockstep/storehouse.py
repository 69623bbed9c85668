"""The arrays behind the core's integers: contributions that wait for their round, and the global parameters.

Decides what is kept and for how long, and turns an uploaded body into a contribution or a defect. Does not decide what
becomes of either (the core), and knows no sockets.

Who may call what: ``inspect``, ``check_seed``, ``seed``, ``is_seed`` and ``prepare`` take time, change nothing that
others read (``seed`` adds what nobody could read before) and belong in a worker thread; everything else is quick and
belongs to the thread that owns the core.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from unlockstep.config import RunConfig
from unlockstep.core.actions import Commit, Share
from unlockstep.core.chunks import Float32
from unlockstep.core.codec import Body, body_digest, fragment_codecs
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.global_params import GlobalParams, Prepared
from unlockstep.core.layout import Layout
from unlockstep.core.merge import Entry
from unlockstep.core.messages import VersionNotice
from unlockstep.core.options import Anchor
from unlockstep.core.outer import outer_optimizer
from unlockstep.core.outer_gradient import Limits, Norms, RecentNorms, inspect
from unlockstep.core.reasons import RefusalReason
from unlockstep.core.words import counted

NO_PAYLOAD = -1
"""The handle of a contribution that was refused before it could be kept."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What an uploaded body turned out to be. ``delta`` is None exactly when there is a defect."""

    defect: RefusalReason | None
    sentence: str
    norm: float = 0.0
    delta: Float32 | None = None
    c_steps: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """A fragment as of one version: what of the arrays outlives a life of the syncer. They are never written to."""

    version: int
    digest: str
    """Of its published body."""
    values: Float32
    outer_state: Float32


@dataclass(frozen=True, slots=True)
class _Held:
    fragment: int
    norm: float
    delta: Float32
    c_steps: int


class Storehouse:
    """All arrays of one run's syncer.

    Args:
        layout: which tensors each fragment holds.
        config: sections ``outer``, ``codec``, ``limits`` and ``protocol`` are read.
        executor: threads to lend to the numbers; none of them may call a method of this class.
    """

    def __init__(self, layout: Layout, config: RunConfig, executor: Executor | None = None) -> None:
        self.layout = layout
        self._executor = executor
        self._rebases = config.protocol.anchor is Anchor.SYNCER
        self._tokens_per_step_max = config.limits.tokens_per_step_max
        self._limits = Limits(norm_max=config.limits.norm_max)
        self._norms = RecentNorms(layout.fragment_count, factor=config.limits.outlier_factor)
        self._uploads = {codec: fragment_codecs(layout, codec) for codec in config.codec.uploads}
        self._seeds = fragment_codecs(layout, Codec.FLOAT32)
        outer = config.outer
        self._params = GlobalParams(
            layout,
            outer_optimizer(outer.optimizer, outer.learning_rate, outer.momentum),
            outer.merge,
            config.codec.download,
            # To measure from the present value, the value a contribution started from must still be here, even if it
            # came late and the version after the one it was accepted at has been committed since.
            retained_versions=config.protocol.staleness_max + 2 if self._rebases else 1,
        )
        self._held: dict[int, _Held] = {}
        self._next_payload = 0

    # ------------------------------------------------------------------------------------------- contributions

    def contribution_size(self, fragment: int, codec: Codec) -> int | None:
        """Bytes of an upload for this fragment; None if the run takes none in this format."""
        return self._uploads[codec][fragment].body_size if codec in self._uploads else None

    def norm_bound(self, fragment: int, c_steps: int) -> float:
        """Largest norm of so many steps that is not absurd among the recent ones."""
        return self._norms.bound(fragment, c_steps)

    def inspect(
        self,
        fragment: int,
        body: Body,
        digest: str | None,
        codec: Codec,
        c_steps: int,
        c_tokens: int,
        norm_bound: float,
    ) -> Inspection:
        """Whether an upload may be merged: digest (None: it has been compared), then form, then numbers. ``codec``: one
        that the run takes."""
        if digest is not None and body_digest(body) != digest:
            return Inspection(RefusalReason.DIGEST_MISMATCH, "the body does not have the digest it was sent with")
        try:
            delta = self._uploads[codec][fragment].decode(body, self._executor)
        except RemoteProtocolError as error:
            return Inspection(RefusalReason.MALFORMED, str(error))
        if c_tokens > max(c_steps, 0) * self._tokens_per_step_max:
            counts = f"more tokens ({c_tokens}) than {counted(c_steps, 'step')} can have"
            return Inspection(RefusalReason.BAD_COUNTS, counts)
        defect, norm = inspect(delta, delta.size, c_steps, c_tokens, self._limits, norm_bound, self._executor)
        if defect is not None:
            return Inspection(defect, f"the outer gradient is refused: {defect.value} (norm {norm:.4g})", norm)
        return Inspection(None, "", norm, delta, c_steps)

    def hold(self, fragment: int, inspection: Inspection) -> int:
        """Keep a sound contribution; returns its handle, or ``NO_PAYLOAD`` if it has a defect."""
        if inspection.delta is None:
            return NO_PAYLOAD
        payload = self._next_payload
        self._next_payload += 1
        self._held[payload] = _Held(fragment, inspection.norm, inspection.delta, inspection.c_steps)
        return payload

    def release(self, payload: int) -> None:
        """Forget a contribution that will not be merged."""
        self._held.pop(payload, None)

    @property
    def held_count(self) -> int:
        """Contributions that wait to be merged."""
        return len(self._held)

    # ------------------------------------------------------------------------------------------- versions

    def seed_size(self, fragment: int) -> int:
        """Bytes in which version 0 is uploaded: exact, in whatever format it is published."""
        return self._seeds[fragment].body_size

    def is_seed(self, fragment: int, digest: str) -> bool:
        """Whether version 0 is the current one, and was made of an uploaded body with this digest."""
        uploaded = self._seeds[fragment].encode(self._params.values(fragment))
        return self.newest_version(fragment) == 0 and body_digest(uploaded) == digest

    def check_seed(self, fragment: int, body: Body) -> Float32:
        """The values of an uploaded version 0. Raises RemoteProtocolError if it is not what it should be."""
        values = self._seeds[fragment].decode(body)
        if not np.isfinite(values).all():
            raise RemoteProtocolError(f"version 0 of fragment {fragment} holds a value that is not finite")
        return values

    def seed(self, fragment: int, values: Float32) -> VersionNotice:
        """Make this version 0. Raises LocalProtocolError if there is one already."""
        version = self._params.seed(fragment, values)
        return VersionNotice(fragment, version.version, version.digest)

    def kept(self) -> dict[int, Kept]:
        """Every fragment that has a version, as it is now."""
        return {
            notice.fragment: Kept(
                notice.version,
                notice.digest,
                self._params.values(notice.fragment),
                self._params.state(notice.fragment),
            )
            for notice in self.newest()
        }

    def restore(self, kept: dict[int, Kept], norms: Norms) -> None:
        """Go on from what an earlier life has kept, to the bit; nothing has been seeded here.

        Raises:
            LocalProtocolError: it is not what was published.
        """
        for fragment, each in kept.items():
            restored = self._params.restore(fragment, each.version, each.values, each.outer_state)
            if restored.digest != each.digest:
                raise LocalProtocolError(f"version {each.version} of fragment {fragment} is not what was published")
        self._norms.restore(norms)

    @property
    def norms(self) -> Norms:
        """Per fragment, the last contributions that were merged: what makes another one an outlier."""
        return self._norms.saved()

    def prepare(self, commit: Commit) -> Prepared:
        """The version a commit asks for, complete and not yet visible."""
        entries = [
            Entry(learner=share.learner, delta=self._delta(commit.fragment, share), weight=share.weight)
            for share in commit.shares
        ]
        return self._params.prepare(commit.fragment, entries, self._executor)

    def publish(self, commit: Commit, prepared: Prepared) -> VersionNotice:
        """Make a prepared version the current one and forget what went into it."""
        if prepared.version.version != commit.version:
            raise LocalProtocolError(
                f"version {prepared.version.version} of fragment {commit.fragment} was computed for a commit of "
                f"version {commit.version}"
            )
        self._params.publish(prepared)
        for share in commit.shares:
            for payload in share.payloads:
                held = self._held.pop(payload)
                self._norms.add(held.fragment, held.norm, held.c_steps)
        return VersionNotice(commit.fragment, commit.version, prepared.version.digest)

    def prepare_earlier(self, kept: dict[int, Kept]) -> list[Prepared]:
        """What was kept of every fragment, as its next version, complete and not yet visible."""
        return [
            self._params.prepare_earlier(fragment, each.values, each.outer_state) for fragment, each in kept.items()
        ]

    def publish_earlier(self, prepared: list[Prepared], norms: Norms) -> tuple[VersionNotice, ...]:
        """Make these the current versions; contributions are compared with those of that time again."""
        versions = [self._params.publish(each) for each in prepared]
        self._norms.restore(norms)
        return tuple(VersionNotice(each.fragment, each.version, each.digest) for each in versions)

    def newest(self) -> list[VersionNotice]:
        """The current version of every fragment that has one."""
        notices = []
        for fragment in range(self.layout.fragment_count):
            version = self._params.version(fragment)
            digest = None if version is None else self._params.digest(fragment, version)
            if version is not None and digest is not None:
                notices.append(VersionNotice(fragment, version, digest))
        return notices

    def newest_version(self, fragment: int) -> int | None:
        """Number of the current version; None before the seed."""
        return self._params.version(fragment)

    def values(self, fragment: int) -> Float32:
        """The current value, float32[n]; not to be written to."""
        return self._params.values(fragment)

    def body(self, fragment: int, version: int) -> tuple[memoryview, str] | None:
        """Body and digest of a version; None if it is not retained."""
        body, digest = self._params.body(fragment, version), self._params.digest(fragment, version)
        return None if body is None or digest is None else (body, digest)

    def _delta(self, fragment: int, share: Share) -> Float32:
        """One learner's outer gradient: its contributions added up, in the order in which they were made."""
        first, *rest = (self._held[payload].delta for payload in share.payloads)
        delta = first
        for other in rest:
            delta = np.add(delta, other)
        if self._rebases:
            rebased = self._params.rebase(fragment, delta, share.base_versions[-1])
            if rebased is not None:
                delta = rebased
        return delta

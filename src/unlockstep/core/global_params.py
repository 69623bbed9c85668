"""The syncer's numbers: for every fragment its current value, the state of its outer optimizer, and its last versions.

A commit has two halves. ``prepare`` computes everything that takes time and changes nothing here, so it may run in
another thread, several fragments side by side; ``publish`` swaps the result in. What happens in between, such as
making the new version durable, is the caller's, and so is forgetting a ``Prepared`` that is not wanted.

Decides values and versions. Does not decide when a fragment is merged or who takes part (``syncer``), and does no IO.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from unlockstep.core.chunks import Float32
from unlockstep.core.codec import body_digest, fragment_codecs
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.layout import Layout, Role
from unlockstep.core.merge import Entry, MergeRule, merge
from unlockstep.core.outer import OuterOptimizer
from unlockstep.core.outer_gradient import norm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One committed value of a fragment, as it is announced: ``digest`` and ``size`` (bytes) are those of its body."""

    fragment: int
    version: int
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The next version of a fragment, complete and not yet visible."""

    version: Version
    values: Float32
    """float32[n], exact; the body may hold them rounded."""
    state: Float32
    """State of the outer optimizer after the step."""
    body: memoryview
    norm: float
    """Euclidean norm of the merged outer gradient."""


@dataclass(slots=True)
class _Fragment:
    values: Float32
    state: Float32
    current: Version
    retained: dict[int, tuple[Version, memoryview]] = field(default_factory=dict)
    """The last versions, oldest first, the current one included."""


class GlobalParams:
    """Global parameters of one run. Numbers only: no sockets, files, clocks or threads of its own."""

    def __init__(
        self, layout: Layout, optimizer: OuterOptimizer, rule: MergeRule, codec: Codec, *, retained_versions: int = 3
    ) -> None:
        """
        Args:
            layout: which tensors each fragment holds.
            optimizer: the outer optimizer, one state per fragment.
            rule: how tensors of ``Role.PARAMETER`` are merged.
            codec: number format of published bodies. Values stay in float32 here whatever is published.
            retained_versions: bodies kept per fragment, at least 1: learners still fetch the one before.
        """
        self.layout = layout
        self._optimizer = optimizer
        self._rule = rule
        self._codecs = fragment_codecs(layout, codec)
        self._retained_versions = retained_versions
        self._fragments: dict[int, _Fragment] = {}

    def seed(self, fragment: int, values: Float32) -> Version:
        """Give ``fragment`` its first value, float32[n], as version 0.

        Raises:
            LocalProtocolError: it already has one, or the values have another size or are not finite.
        """
        if fragment in self._fragments:
            raise LocalProtocolError(f"fragment {fragment} already has a value: it is seeded once")
        codec = self._codecs[fragment]
        body = codec.encode(values)
        _require_finite(values, fragment, 0, None)
        version = Version(fragment=fragment, version=0, digest=body_digest(body), size=len(body))
        owned: Float32 = codec.payload(body) if codec.codec is Codec.FLOAT32 else values.copy()
        owned.setflags(write=False)
        self._fragments[fragment] = _Fragment(
            values=owned,
            state=self._optimizer.init(values.size),
            current=version,
            retained={0: (version, body.toreadonly())},
        )
        return version

    def state(self, fragment: int) -> Float32:
        """State of the outer optimizer, float32[m]; not to be written to."""
        return self._require(fragment).state

    def restore(self, fragment: int, version: int, values: Float32, state: Float32) -> Version:
        """Make this the current version of a fragment that has none: what was saved of an earlier life, to the bit.

        Raises:
            LocalProtocolError: the fragment has a value, or the state has another size than the optimizer's.
        """
        if fragment in self._fragments:
            raise LocalProtocolError(f"fragment {fragment} already has a value: it is restored before anything else")
        if state.shape != self._optimizer.init(values.size).shape:
            raise LocalProtocolError(f"the state of fragment {fragment} is not of this outer optimizer: {state.shape}")
        codec = self._codecs[fragment]
        body = codec.encode(values)
        held = Version(fragment=fragment, version=version, digest=body_digest(body), size=len(body))
        owned: Float32 = codec.payload(body) if codec.codec is Codec.FLOAT32 else values
        owned.setflags(write=False)
        self._fragments[fragment] = _Fragment(
            values=owned, state=state, current=held, retained={version: (held, body.toreadonly())}
        )
        return held

    def prepare(self, fragment: int, entries: Sequence[Entry], executor: Executor | None = None) -> Prepared:
        """Merge ``entries`` and take the outer step; nothing changes here until ``publish``.

        Args:
            fragment: a fragment that has been seeded.
            entries: inspected contributions, at least one of positive weight.
            executor: threads to lend to the numbers; not the one this call runs in.

        Raises:
            LocalProtocolError: the fragment has no value yet, an entry has another size, or the result is not finite.
            ValueError: no entry has a positive weight.
        """
        held = self._require(fragment)
        number = held.current.version + 1
        codec = self._codecs[fragment]
        for entry in entries:
            if entry.delta.shape != held.values.shape:
                raise LocalProtocolError(
                    f"contribution of {entry.learner} to fragment {fragment} has shape {entry.delta.shape}, "
                    f"not {held.values.shape}"
                )
        # One buffer holds the merged outer gradient, then the new value, then, in float32, is the payload to be sent.
        body = codec.blank()
        in_place = codec.codec is Codec.FLOAT32
        buffer: Float32 = codec.payload(body) if in_place else np.empty_like(held.values)
        delta = merge(entries, self.layout.fragments[fragment], self._rule, buffer, executor)
        length = norm(delta, executor)
        stepped_directly = self._step_directly(fragment, delta)
        values, state = self._optimizer.update(delta, held.state, held.values, buffer, executor)
        for elements, direct in stepped_directly:
            values[elements] = direct
        _require_finite(values, fragment, number, executor)
        _require_finite(state, fragment, number, executor)
        if not in_place:
            body = codec.encode(values, executor)
        values.setflags(write=False)
        version = Version(fragment=fragment, version=number, digest=body_digest(body), size=len(body))
        return Prepared(version=version, values=values, state=state, body=body.toreadonly(), norm=length)

    def prepare_earlier(self, fragment: int, values: Float32, state: Float32) -> Prepared:
        """Values and optimizer state of an earlier version, as the next one. Nothing changes here until ``publish``."""
        held, codec = self._require(fragment), self._codecs[fragment]
        body = codec.encode(values)
        number = held.current.version + 1
        version = Version(fragment=fragment, version=number, digest=body_digest(body), size=len(body))
        return Prepared(version=version, values=values, state=state, body=body.toreadonly(), norm=0.0)

    def publish(self, prepared: Prepared) -> Version:
        """Make a prepared version the current one.

        Raises:
            LocalProtocolError: the fragment has moved on since it was prepared.
        """
        version = prepared.version
        held = self._require(version.fragment)
        if version.version != held.current.version + 1:
            raise LocalProtocolError(
                f"fragment {version.fragment} is at version {held.current.version}: version {version.version} "
                "cannot follow it"
            )
        held.values, held.state, held.current = prepared.values, prepared.state, version
        held.retained[version.version] = (version, prepared.body)
        while len(held.retained) > self._retained_versions:
            del held.retained[min(held.retained)]
        return version

    def version(self, fragment: int) -> int | None:
        """Number of the current version; ``None`` before the seed."""
        held = self._fragments.get(fragment)
        return None if held is None else held.current.version

    def values(self, fragment: int) -> Float32:
        """Current value, float32[n]; not to be written to."""
        return self._require(fragment).values

    def body(self, fragment: int, version: int) -> memoryview | None:
        """Body of a version, to be read only; ``None`` if it is not retained."""
        retained = self._retained(fragment, version)
        return None if retained is None else retained[1]

    def digest(self, fragment: int, version: int) -> str | None:
        """Digest of the body of a version; ``None`` if it is not retained."""
        retained = self._retained(fragment, version)
        return None if retained is None else retained[0].digest

    def rebase(self, fragment: int, delta: Float32, base_version: int) -> Float32 | None:
        """The outer gradient measured from the current version instead of what the learner started from.

        ``current - local = delta + (current - base)``, the paper's form. Both are taken as published, as
        learners hold them: with rounded bodies the exact value would count rounding as progress of the learner.

        Args:
            delta: float32[n], the learner's anchor minus local; left as it is.
            base_version: the version the learner had adopted.

        Returns:
            float32[n], ``delta`` itself if the base is current; ``None`` if the base is not retained.
        """
        held = self._require(fragment)
        base = held.retained.get(base_version)
        if base is None or base_version == held.current.version:
            return None if base is None else delta
        codec = self._codecs[fragment]
        moved: Float32 = codec.decode(held.retained[held.current.version][1]) - codec.decode(base[1])
        return np.add(moved, delta, out=moved)

    def _step_directly(self, fragment: int, delta: Float32) -> list[tuple[slice, Float32]]:
        """What buffers become: the mean of the learners, without rate or momentum."""
        values = self._fragments[fragment].values
        buffers = [slot for slot in self.layout.fragments[fragment] if slot.tensor.role is Role.BUFFER]
        ranges = [slice(slot.offset, slot.stop) for slot in buffers]
        return [(elements, values[elements] - delta[elements]) for elements in ranges]

    def _require(self, fragment: int) -> _Fragment:
        if fragment not in self._fragments:
            raise LocalProtocolError(f"fragment {fragment} has no value yet: seed it first")
        return self._fragments[fragment]

    def _retained(self, fragment: int, version: int) -> tuple[Version, memoryview] | None:
        held = self._fragments.get(fragment)
        return None if held is None else held.retained.get(version)


def _require_finite(values: Float32, fragment: int, version: int, executor: Executor | None) -> None:
    if not math.isfinite(norm(values, executor)):
        raise LocalProtocolError(f"version {version} of fragment {fragment} is not finite and is not published")

"""What a learner holds of every fragment beside its model, and what handing over and adopting make of both.

::

    hand over    outer gradient = anchor - local          anchor <- local
    adopt        local <- overwrite, blend or carry       anchor <- what the next outer gradient is measured from
    load         local <- new                             anchor <- what the model then holds

Decides these numbers. Does not decide when any of it is done (``core.learner``, or in a replay the run log), nor how a
value travels. Knows no threads: everything here happens between two inner steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unlockstep.core.adoption import Adoption, adopt, anchor_after
from unlockstep.core.layout import Layout
from unlockstep.learners.backend import FloatArray, FragmentStore


class HandedOut(NamedTuple):
    """The two ends of an outer gradient, float32[n] each. They are never written again."""

    anchor: FloatArray
    local: FloatArray
    loads: int
    """How often the fragment had been loaded by this process."""


class Holdings:
    """Of one process.

    Args:
        layout: how its model is cut.
        store: the model.
        adoption: how a commit meets local progress.
        blend_alpha: share of the local value kept by ``blend``.
        stands_still: the model stays as it is from one boundary to the next, as where a step takes no time but at its
            end: then a copy need not be made before it is handed over, and most never are.
    """

    def __init__(
        self,
        layout: Layout,
        store: FragmentStore,
        adoption: Adoption,
        blend_alpha: float,
        stands_still: bool = False,
    ) -> None:
        self._layout = layout
        self._store = store
        self._adoption = adoption
        self._blend_alpha = blend_alpha
        self._anchors: dict[int, FloatArray] = {}
        self._stands_still = stands_still
        self._snapshots: dict[int, FloatArray | None] = {}
        """None: to be made when it is handed over."""
        self._loads = [0] * layout.fragment_count
        self._scratch_rows = np.empty((2, 0), np.float32)
        # Where the model stores float32, what is written is what it holds, and an anchor need not be read back.
        self._exact = [all(slot.tensor.dtype == "float32" for slot in slots) for slots in layout.fragments]

    # ------------------------------------------------------------------------------------- handing over

    def copy(self, fragment: int) -> None:
        """A copy as of this boundary, for the next hand-over."""
        before = self._snapshots.get(fragment)
        self._snapshots[fragment] = None if self._stands_still else self._store.read_fragment(fragment, before)

    def hand_over(self, fragment: int) -> HandedOut:
        """The copy becomes the anchor: from here on only what comes after it is new."""
        copied = self._snapshots.pop(fragment)
        local = self._store.read_fragment(fragment) if copied is None else copied
        anchor, self._anchors[fragment] = self._anchors[fragment], local
        return HandedOut(anchor, local, self._loads[fragment])

    # ------------------------------------------------------------------------------------- taking over

    def seed(self, fragment: int) -> FloatArray:
        """The model's value, float32[n], which is version 0: an anchor, if it is finite."""
        values = self._store.read_fragment(fragment)
        if self.not_finite(fragment, values) is None:
            self._anchors[fragment] = values
        return values

    def load(self, fragment: int, values: FloatArray) -> None:
        """The model holds just this value, float32[n], which is kept; progress begins here."""
        self._snapshots.pop(fragment, None)
        self._loads[fragment] += 1
        self._write_anchor(fragment, values)

    def adopt(self, fragment: int, new: FloatArray) -> None:
        """Write a committed value, float32[n], which is kept, in the configured way, and note what the next outer
        gradient is measured from."""
        mode, alpha = self._adoption, self._blend_alpha
        self._snapshots.pop(fragment, None)
        if mode is Adoption.OVERWRITE:
            self._write_anchor(fragment, new)
            return
        is_carried_exactly = mode is Adoption.CARRY and self._exact[fragment]
        local, progress = self._scratch(new.size)
        if is_carried_exactly:
            progress = local  # Nothing else is wanted of the local value.
        self._store.read_fragment(fragment, local)
        np.subtract(local, self._anchors[fragment], out=progress)
        adopted = adopt(mode, new, local, progress, alpha, out=local)
        self._store.write_fragment(fragment, adopted)
        if is_carried_exactly:
            self._anchors[fragment] = new
        else:
            held = self._store.read_fragment(fragment)
            self._anchors[fragment] = anchor_after(mode, held, progress, alpha)

    def _write_anchor(self, fragment: int, values: FloatArray) -> None:
        self._store.write_fragment(fragment, values)
        self._anchors[fragment] = values if self._exact[fragment] else self._store.read_fragment(fragment)

    def _scratch(self, size: int) -> tuple[FloatArray, FloatArray]:
        """Two arrays to work in, kept from one adoption to the next."""
        if self._scratch_rows.shape[1] < size:
            self._scratch_rows = np.empty((2, size), np.float32)
        return self._scratch_rows[0, :size], self._scratch_rows[1, :size]

    # ------------------------------------------------------------------------------------- all of it

    def values(self) -> tuple[FloatArray, ...]:
        """A copy of every fragment of the model."""
        return tuple(self._store.read_fragment(fragment) for fragment in range(self._layout.fragment_count))

    def not_finite(self, fragment: int, values: FloatArray) -> str | None:
        """Name of the first tensor with a NaN or an infinity in it."""
        for slot in self._layout.fragments[fragment]:
            if not np.isfinite(values[slot.offset : slot.stop]).all():
                return slot.tensor.name
        return None

    @property
    def anchors(self) -> tuple[FloatArray, ...]:
        """Of every fragment, once all have one. Never written again."""
        return tuple(self._anchors[fragment] for fragment in range(self._layout.fragment_count))

    def resume(self, anchors: Sequence[FloatArray], copied: Sequence[bool]) -> None:
        """Go on with these anchors; the model is there already. ``copied``: of which fragments there was a copy."""
        self._anchors = dict(enumerate(anchors))
        for fragment, was_copied in enumerate(copied):
            if was_copied:
                self.copy(fragment)

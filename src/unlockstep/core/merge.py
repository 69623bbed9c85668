"""How the outer gradients of several learners become one: weighted mean, or radial-directional averaging.

::

    mean = sum(w v) / sum(w)
    rda  = sum(w |v|) / sum(w)  *  phi( sum(w phi(v)) / sum(w) )        phi(v) = v / |v|,  phi(0) = 0

Outer gradients of different learners are close to orthogonal, so their mean shrinks with the number of learners; the
second rule keeps the length of a typical one. It holds per tensor. Embeddings and buffers always take the mean.

Decides the value of a merge, to the bit: learners are summed in ascending order of name, in float32, and the result
depends on neither the order of arrival nor the number of threads. Does not decide who takes part or what is done with
the result (``outer``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from unlockstep.core.chunks import SPAN_ELEMENTS, Float32, chunks, run, scratch, spans
from unlockstep.core.layout import Role, Slot
from unlockstep.core.outer_gradient import squared_norm

if TYPE_CHECKING:
    from concurrent.futures import Executor

Float64: TypeAlias = npt.NDArray[np.float64]

DIRECTION_NORM_MIN = 1e-6
"""Below this the unit vectors cancel: what is left is float32 rounding, which must not be scaled to full length."""

_NEGLIGIBLE_LENGTH = 1e-30
"""A vector this much shorter than the mean one is treated as zero: its inverse length would leave float32."""


class MergeRule(Enum):
    """How tensors of ``Role.PARAMETER`` are merged."""

    MEAN = "mean"
    RADIAL_DIRECTIONAL = "rda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One learner's part in a merge: its outer gradient, float32[n], and its weight, finite and at least 0."""

    learner: str
    delta: Float32
    weight: float


class _Piece(NamedTuple):
    """Elements ``start:stop`` of a fragment, all of one tensor and at most a span."""

    slot: int
    start: int
    stop: int


_Batch: TypeAlias = list[_Piece]
"""Pieces worth a task."""


def merge(
    entries: Sequence[Entry],
    slots: Sequence[Slot],
    rule: MergeRule,
    out: Float32 | None = None,
    executor: Executor | None = None,
) -> Float32:
    """Merge the outer gradients of one fragment.

    Args:
        entries: one per learner, at least one of positive weight; those of weight 0 change nothing. A single one comes
            out bit for bit.
        slots: the tensors of the fragment, which tile it.
        rule: for tensors of ``Role.PARAMETER``; where the directions cancel it gives the weighted mean. An outer
            gradient of zero counts in the mean length and has no direction.
        out: float32[n] to write to; none of the inputs.
        executor: threads to lend; ``None`` works in the calling thread.

    Returns:
        float32[n], ``out`` if it was given.

    Raises:
        ValueError: no entry has a positive weight. An empty round is no commit, and the caller's to decide.

    Reference: paper, App. D.2.
    """
    entries = sorted((entry for entry in entries if entry.weight > 0), key=lambda entry: entry.learner)
    if not entries:
        raise ValueError("nothing to merge: no entry has a positive weight")
    deltas = [entry.delta for entry in entries]
    merged = np.empty_like(deltas[0]) if out is None else out
    if len(deltas) == 1:
        np.copyto(merged, deltas[0])
        return merged
    weights = np.array([entry.weight for entry in entries], np.float64)
    weights /= weights.sum()
    radial = [index for index, slot in enumerate(slots) if _is_radial(slot, rule)]
    degenerate = _merge_radially(deltas, weights, _batches(slots, radial), merged, executor)
    direct = [index for index, slot in enumerate(slots) if index in degenerate or not _is_radial(slot, rule)]
    _combine(deltas, dict.fromkeys(direct, weights), _batches(slots, direct), merged, executor)
    return merged


def _is_radial(slot: Slot, rule: MergeRule) -> bool:
    return rule is MergeRule.RADIAL_DIRECTIONAL and slot.tensor.role is Role.PARAMETER


def _merge_radially(
    deltas: Sequence[Float32], weights: Float64, batches: Sequence[_Batch], merged: Float32, executor: Executor | None
) -> set[int]:
    """Write the radial-directional average of each tensor; return the tensors whose directions cancel."""
    lengths = _norms(deltas, batches, executor)
    radius = {slot: float(weights @ lengths[slot]) for slot in lengths}
    # Unit vectors are summed at full radius, so that nothing leaves the range of float32 on the way.
    coefficients = {slot: weights * radius[slot] * _inverse(lengths[slot], radius[slot]) for slot in lengths}
    _combine(deltas, coefficients, batches, merged, executor)
    scale = {}
    for slot, (length,) in _norms([merged], batches, executor).items():
        if length > DIRECTION_NORM_MIN * radius[slot]:
            scale[slot] = np.float32(radius[slot] / length)

    def rescale(batch: _Batch) -> None:
        for slot, start, stop in batch:
            if slot in scale:
                merged[start:stop] *= scale[slot]

    run(executor, rescale, batches)
    return radius.keys() - scale.keys()


def _inverse(lengths: Float64, radius: float) -> Float64:
    """1 / length, and 0 for a vector without direction."""
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > _NEGLIGIBLE_LENGTH * radius)


def _combine(
    deltas: Sequence[Float32],
    coefficients: Mapping[int, Float64],
    batches: Sequence[_Batch],
    merged: Float32,
    executor: Executor | None,
) -> None:
    """``merged = sum(coefficients[slot][m] * deltas[m])`` for every tensor, summed in order of ``deltas``."""

    def combine(batch: _Batch) -> None:
        product = scratch()
        for slot, start, stop in batch:
            first, *others = coefficients[slot].astype(np.float32)
            for chunk in chunks(start, stop):
                total = np.multiply(deltas[0][chunk], first, out=merged[chunk])
                for delta, coefficient in zip(deltas[1:], others, strict=True):
                    np.add(total, np.multiply(delta[chunk], coefficient, out=product[: total.size]), out=total)

    run(executor, combine, batches)


def _norms(vectors: Sequence[Float32], batches: Sequence[_Batch], executor: Executor | None) -> dict[int, Float64]:
    """Euclidean norm of every tensor in every vector: slot -> float64[len(vectors)]."""

    def squares(batch: _Batch) -> list[list[float]]:
        return [[squared_norm(vector[start:stop]) for vector in vectors] for _, start, stop in batch]

    totals: dict[int, Float64] = defaultdict(lambda: np.zeros(len(vectors)))
    for batch, sums in zip(batches, run(executor, squares, batches), strict=True):
        for piece, square in zip(batch, sums, strict=True):
            totals[piece.slot] += square
    return {slot: np.sqrt(total) for slot, total in totals.items()}


def _batches(slots: Sequence[Slot], chosen: Sequence[int]) -> list[_Batch]:
    """The chosen tensors cut into pieces, and the pieces dealt into batches; both boundaries are fixed."""
    batches: list[_Batch] = []
    room = 0
    for index in chosen:
        for start, stop in spans(slots[index].offset, slots[index].stop):
            if room <= 0:
                batches.append([])
                room = SPAN_ELEMENTS
            batches[-1].append(_Piece(index, start, stop))
            room -= stop - start
    return batches

"""What one learner contributes: its outer gradient, and whether it may be merged at all.

Decides the equations of a single contribution and the bounds it is held to. Does not decide what becomes of a refused
one, nor how several are combined (``merge``).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from unlockstep.core.chunks import Float32, chunks, run, spans
from unlockstep.core.reasons import RefusalReason

if TYPE_CHECKING:
    from concurrent.futures import Executor

Norms: TypeAlias = tuple[tuple[tuple[float, int], ...], ...]
"""By fragment, norm and steps of the last contributions that were merged."""

_ROW_ELEMENTS = 256
"""Squares summed in float32 before float64 takes over: keeps the relative error of a norm below 1e-6."""


def outer_gradient(anchor: Float32, local: Float32, out: Float32 | None = None) -> Float32:
    """``anchor - local``: the direction an outer optimizer subtracts (pseudo-gradient in earlier work).

    Args:
        anchor: float32[n], the fragment as this learner last handed it over, or what ``adoption.anchor_after`` says.
        local: float32[n], the fragment as it is now. Keep it in float32: a bfloat16 master loses small steps.
        out: float32[n] to write to; may be one of the inputs.

    Reference: paper, App. D.2.
    """
    return np.subtract(anchor, local, out=out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Absolute bounds of a contribution; beyond them the sender is broken, whatever the others say."""

    c_steps_max: int = 1_000_000
    """Inner steps since the last hand-over or adoption: weeks of training without either."""
    c_tokens_max: int = 10**13
    """Tokens since then: more than a whole pre-training run reads."""
    norm_max: float = 1e9
    """Euclidean norm of the outer gradient. float32 squares stay finite below it, and no useful model moves so far."""


def growth(c_steps: int, than: int) -> float:
    """How many times longer an honest contribution of ``c_steps`` steps may be than one of ``than`` steps.

    Steps that all go one way add up to c times one of them; steps of pure noise to its square root. Any training lies
    in between, so with more steps at most the first is expected, and with fewer at least the second.
    """
    ratio = max(1, c_steps) / max(1, than)
    return ratio if ratio >= 1 else math.sqrt(ratio)


class RecentNorms:
    """The norms of the last contributions of each fragment, and the norm beyond which the next one is absurd.

    ::

        bound(c) = factor * median over the last contributions i of  norm_i * growth(c, c_i)

    The median is not moved by the outliers it is there to find, as long as they are fewer than half. Steps are compared
    with steps: a slow or long-away learner has moved farther or less far than others, through no fault. The factor
    leaves room for what is left: learners differ, a warm-up lengthens steps from one round to the next.
    """

    def __init__(self, fragment_count: int, *, length: int = 64, samples_min: int = 8, factor: float = 10.0) -> None:
        self._recent: tuple[deque[tuple[float, int]], ...] = tuple(deque(maxlen=length) for _ in range(fragment_count))
        self._samples_min = samples_min
        self._factor = factor

    def add(self, fragment: int, norm: float, c_steps: int) -> None:
        """Remember a contribution that was merged."""
        self._recent[fragment].append((norm, c_steps))

    def saved(self) -> Norms:
        """Per fragment, oldest first: norm and steps."""
        return tuple(tuple(recent) for recent in self._recent)

    def restore(self, norms: Norms) -> None:
        """Remember what was saved, and nothing else."""
        for mine, saved in zip(self._recent, norms, strict=True):
            mine.clear()
            mine.extend(saved)

    def bound(self, fragment: int, c_steps: int) -> float:
        """Largest norm to accept of a contribution of so many steps; infinite while there are too few samples, or while
        fragments do not move."""
        recent = self._recent[fragment]
        if len(recent) < self._samples_min:
            return math.inf
        return self._factor * statistics.median(norm * growth(c_steps, steps) for norm, steps in recent) or math.inf


def inspect(
    delta: npt.NDArray[np.generic],
    expected_size: int,
    c_steps: int,
    c_tokens: int,
    limits: Limits,
    norm_bound: float = math.inf,
    executor: Executor | None = None,
) -> tuple[RefusalReason | None, float]:
    """Whether a contribution may be merged, and the Euclidean norm of its outer gradient.

    Args:
        delta: the outer gradient, float32[n] in every honest case.
        expected_size: n, elements of the fragment.
        c_steps, c_tokens: inner steps and tokens in it, as the learner states them.
        limits: absolute bounds.
        norm_bound: robust bound of this fragment, from ``RecentNorms.bound``.
        executor: threads to lend to the norm.

    Returns:
        (reason to refuse or None, norm). The norm is 0 where the refusal came before it was computed.
    """
    if delta.dtype != np.float32 or delta.shape != (expected_size,):
        return RefusalReason.WRONG_SIZE, 0.0
    if not _plausible(c_steps, limits.c_steps_max) or not _plausible(c_tokens, limits.c_tokens_max):
        return RefusalReason.BAD_COUNTS, 0.0
    if c_tokens > 0 and c_steps == 0:
        return RefusalReason.BAD_COUNTS, 0.0
    length = norm(delta.view(np.float32), executor)
    if not math.isfinite(length):
        return RefusalReason.NON_FINITE, length
    if length > min(limits.norm_max, norm_bound):
        return RefusalReason.ABSURD_NORM, length
    return None, length


def norm(values: Float32, executor: Executor | None = None) -> float:
    """Euclidean norm of float32[n]; finite exactly when every element is, and never over- or underflowing."""
    squares = run(executor, lambda span: squared_norm(values[slice(*span)]), spans(0, values.size))
    return math.sqrt(sum(squares))


def squared_norm(values: Float32) -> float:
    """Sum of squares of float32[n], in float32 by rows where that is safe and in float64 where it is not."""
    with np.errstate(all="ignore"):
        total = _sum_of_squares(values)
        # Squares leave the range of float32 above 1e19 and lose digits below 1e-19: rare, and worth a second look.
        if 1e-24 * values.size < total < math.inf:
            return total
        return sum(_sum_of_squares(values[chunk].astype(np.float64)) for chunk in chunks(0, values.size))


def _sum_of_squares(values: npt.NDArray[np.float32] | npt.NDArray[np.float64]) -> float:
    # einsum, because it works without BLAS: no threads of its own, hence the same bits wherever it runs.
    whole = values.size - values.size % _ROW_ELEMENTS
    rows, rest = values[:whole].reshape(-1, _ROW_ELEMENTS), values[whole:]
    return float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64)) + float(np.einsum("i,i->", rest, rest))


def _plausible(count: int, maximum: int) -> bool:
    # The type is asked for by name: True, NaN and 1e30 are numbers too.
    return type(count) is int and 0 <= count <= maximum

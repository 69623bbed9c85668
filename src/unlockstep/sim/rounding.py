"""What rounding may take from a contribution, and what it has taken so far: the equations of the formats, once more.

::

    float32: 0        bfloat16: |x| / 2**8

    integers, nearest:     max(step / 2, |x| - (2**(bits - 1) - 1) step)          step = |extreme| / 2**(bits - 1)
              stochastic:  step                                                   step = |extreme| / (2**(bits - 1) - 1)

*Extreme* is the largest element of a block, a step is known up to the rounding of a bfloat16, and the second term is
what an element loses that is as long as the extreme and has the other sign.

Decides whether what was sent can be what was meant, in float64. Shares no arithmetic with ``core.blocks`` and
``core.feedback``.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from unlockstep.config import CodecSection
from unlockstep.core.formats import BLOCK_ELEMENTS, Codec, Rounding

Wide = npt.NDArray[np.float64]


def allowance(codec: Codec, rounding: Rounding, meant: Wide) -> Wide:
    """Largest error of every element."""
    if not codec.is_integer:
        return np.abs(meant) * (2.0**-8 if codec is Codec.BFLOAT16 else 0.0)
    padded = np.zeros(-(-meant.size // BLOCK_ELEMENTS) * BLOCK_ELEMENTS)
    padded[: meant.size] = np.abs(meant)
    blocks = padded.reshape(-1, BLOCK_ELEMENTS)
    extreme = blocks.max(axis=1, keepdims=True)
    codes = 2 ** (codec.bits - 1)
    if rounding is Rounding.STOCHASTIC:
        error = np.broadcast_to(extreme / (codes - 1) * (1 + 2.0**-7), blocks.shape)
    else:
        step = extreme / codes
        error = np.maximum(step / 2 * (1 + 2.0**-8), blocks - (codes - 1) * step * (1 - 2.0**-8))
    return error.reshape(-1)[: meant.size]


class Losses:
    """What rounding has taken from one fragment of one process and was not sent since.

    Where it cannot be seen whether a fragment was loaded, what was lost may be void or not. What is sent next tells,
    mostly.
    """

    def __init__(self, settings: CodecSection, size: int) -> None:
        self._settings = settings
        self._possible = [np.zeros(size)]

    def void(self) -> None:
        """The fragment was loaded."""
        self._possible = [np.zeros_like(self._possible[0])]

    def perhaps_void(self) -> None:
        """It may have been loaded."""
        if all(lost.any() for lost in self._possible):
            self._possible.append(np.zeros_like(self._possible[0]))

    def sent(self, codec: Codec, made: Wide, sent: Wide, bound: float) -> float:
        """By how much more than rounding what was ``sent`` differs from what was ``made`` and what was lost before;
        ``bound`` is what float32 explains of it. NaN is no difference."""
        bound = bound if math.isfinite(bound) else math.inf
        possible, excesses = [], []
        for lost in self._possible:
            meant = made + lost
            left = meant - sent
            excess = np.abs(left) - allowance(codec, self._settings.upload_rounding, np.nan_to_num(meant))
            excesses.append(float(np.nan_to_num(excess).max(initial=0)))
            keeps = codec.is_integer and self._settings.upload_feedback
            possible.append(np.nan_to_num(left, posinf=0, neginf=0) if keeps else np.zeros_like(left))
        least = min(excesses)
        fits = [left for left, excess in zip(possible, excesses, strict=True) if excess <= max(bound, least)]
        self._possible = [left for number, left in enumerate(fits) if not _among(left, fits[:number])]
        return least


def _among(one: Wide, others: list[Wide]) -> bool:
    return any(np.array_equal(one, other) for other in others)

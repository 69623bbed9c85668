"""How a learner takes over a new global value without losing, or while keeping, what it has trained since.

Decides the value after adoption and how many of the learner's steps and tokens are still in it. Does not decide when to
adopt (between two inner steps, as soon as the value is there). Inner optimizer state is kept in every mode.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from unlockstep.core.chunks import Float32, chunks


class Adoption(Enum):
    """What is left of the local value."""

    OVERWRITE = "overwrite"
    """Nothing: the fragment becomes the global one (the paper's choice)."""
    BLEND = "blend"
    """A fixed share alpha."""
    CARRY = "carry"
    """All of the progress that was not handed over, added to the global value."""


def adopt(
    mode: Adoption, new: Float32, local: Float32, progress: Float32, alpha: float, out: Float32 | None = None
) -> Float32:
    """The value of the fragment at the learner after adoption.

    ``overwrite: new``; ``blend: alpha * local + (1 - alpha) * new``; ``carry: new + progress``.

    Args:
        mode: which of the three.
        new: float32[n], the global value.
        local: float32[n], the value now.
        progress: float32[n], local minus anchor: made since the fragment was last adopted or handed over.
        alpha: share of the local value kept, 0 to 1; read by ``BLEND`` alone.
        out: float32[n] to write to; may be ``local``.

    Reference: paper, Alg. 1 (overwrite). The other two are not in it.
    """
    adopted = np.empty_like(new) if out is None else out
    keep = np.float32(alpha)
    for chunk in chunks(0, new.size):
        part = adopted[chunk]
        match mode:
            case Adoption.OVERWRITE:
                np.copyto(part, new[chunk])
            case Adoption.BLEND:  # as new + alpha * (local - new)
                np.subtract(local[chunk], new[chunk], out=part)
                np.multiply(part, keep, out=part)
                np.add(part, new[chunk], out=part)
            case Adoption.CARRY:
                np.add(progress[chunk], new[chunk], out=part)
    return adopted


def anchor_after(mode: Adoption, held: Float32, progress: Float32, alpha: float) -> Float32:
    """What the next outer gradient is measured from: what the model now holds, less its own progress kept in it.

    ``carry: held - progress``; ``blend: held - alpha * progress``; ``overwrite: held``.

    In float32 these are the global value for ``carry`` and ``overwrite``, and for ``blend`` the blend of the old anchor
    and the global value. Where the model stores fewer bits, ``held`` is rounded and the anchor with it, so that
    rounding is never taken for progress.

    Args:
        mode: which of the three.
        held: float32[n], read back from the model after the adoption; written over with the result.
        progress: float32[n], local value minus anchor before the adoption; written over.
        alpha: share of the local value kept; read by ``BLEND`` alone.
    """
    match mode:
        case Adoption.OVERWRITE:
            return held
        case Adoption.BLEND:
            np.multiply(progress, np.float32(alpha), out=progress)
    return np.subtract(held, progress, out=held)


def kept(mode: Adoption, steps: int, tokens: int, alpha: float) -> tuple[int, int]:
    """How many of the steps and tokens since the last upload are still in the fragment after adoption.

    ``overwrite: none``; ``carry: all``; ``blend: ceil(alpha * steps), floor(alpha * tokens)``, so that rounding never
    makes a contribution heavier than its work. Without tokens there are no steps.
    """
    match mode:
        case Adoption.OVERWRITE:
            return 0, 0
        case Adoption.CARRY:
            return steps, tokens
        case Adoption.BLEND:
            tokens_kept = math.floor(alpha * tokens)
            return (math.ceil(alpha * steps) if tokens_kept else 0), tokens_kept

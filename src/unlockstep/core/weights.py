"""How much a learner's contribution counts: the token weight of the paper, and its normalisation.

Decides the weights only; what is averaged with them is ``merge``'s business.
"""

from __future__ import annotations

from collections.abc import Sequence


def contribution_weight(c_tokens: int, c_steps: int) -> float:
    """Weight of a contribution: tokens times tokens per step.

    ``w = c_tokens * (c_tokens / c_steps) = c_tokens^2 / c_steps``

    The first factor is how much was learned, the second how little noise it carries (the effective batch).

    Args:
        c_tokens: tokens trained since the learner last handed over progress on the fragment.
        c_steps: inner steps in the same stretch.

    Returns:
        The weight; 0 without tokens or without steps.

    Reference: paper, Sec. 3.2.
    """
    if c_tokens <= 0 or c_steps <= 0:
        return 0.0
    return c_tokens * c_tokens / c_steps


def normalised(weights: Sequence[float]) -> list[float]:
    """The weights divided by their sum, or all zero if the sum is zero."""
    total = sum(weights)
    if total <= 0.0:
        return [0.0] * len(weights)
    return [weight / total for weight in weights]

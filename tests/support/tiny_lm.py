"""A language model that is built in a moment and needs no transformers, for learner processes of tests.

Use it as ``model.spec = "support.tiny_lm:tiny_lm"`` with this folder's parent on ``PYTHONPATH``.
"""

from __future__ import annotations

from torch import nn


def tiny_lm(vocabulary_size: int) -> nn.Module:
    """A table of next tokens, with a layer in between: 4 tensors."""
    return nn.Sequential(
        nn.Embedding(vocabulary_size, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, vocabulary_size, bias=False)
    )


def frozen_lm(vocabulary_size: int) -> nn.Module:
    """The same with nothing to train."""
    return tiny_lm(vocabulary_size).requires_grad_(False)


def wide_lm(vocabulary_size: int) -> nn.Module:
    """Another model."""
    return nn.Sequential(nn.Embedding(vocabulary_size, 9), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, vocabulary_size))

"""A language model that is built in a moment and needs no transformers, for learner processes of tests.

Use it as ``model.spec = "support.tiny_lm:tiny_lm"`` with this folder's parent on ``PYTHONPATH``.
"""

from __future__ import annotations

from torch import Tensor, nn


def tiny_lm(vocabulary_size: int) -> nn.Module:
    """A table of next tokens, with a layer in between: 4 tensors."""
    return nn.Sequential(
        nn.Embedding(vocabulary_size, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, vocabulary_size, bias=False)
    )


def forgetful_lm(vocabulary_size: int) -> nn.Module:
    """The same with dropout."""
    return nn.Sequential(
        nn.Embedding(vocabulary_size, 8), nn.Dropout(0.2), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, vocabulary_size)
    )


def frozen_lm(vocabulary_size: int) -> nn.Module:
    """The same with nothing to train."""
    return tiny_lm(vocabulary_size).requires_grad_(False)


def wide_lm(vocabulary_size: int) -> nn.Module:
    """Another model."""
    return nn.Sequential(nn.Embedding(vocabulary_size, 9), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, vocabulary_size))


class TiedLm(nn.Module):
    """A table of next tokens whose output is tied to its input, with dropout in between: 3 tensors, of 4 names."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, 8)
        self.middle = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, vocabulary_size, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.middle(self.embedding(tokens))))
        return logits


def tied_lm(vocabulary_size: int) -> nn.Module:
    """See ``TiedLm``."""
    return TiedLm(vocabulary_size)

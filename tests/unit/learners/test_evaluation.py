"""Validation: nats and right answers over all batches, and no trace left in the model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from unlockstep.learners.evaluation import validation_scores
from unlockstep.models.factory import causal_scores


class Uniform(nn.Module):
    """Gives every token of ``vocabulary`` the same probability, unless it is training."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(vocabulary))
        self.dropout = nn.Dropout(0.5)
        self.frozen_norm = nn.BatchNorm1d(2).eval()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        return self.dropout(self.logits + 1.0).expand(*tokens.shape, -1)


def batches(*shapes: tuple[int, int]) -> list[np.ndarray]:
    return [np.zeros(shape, np.int64) for shape in shapes]


def test_a_uniform_model_loses_the_logarithm_of_its_vocabulary() -> None:
    """All logits are equal: the first id counts as the answer, and is right."""
    scores = validation_scores(Uniform(7), batches((2, 5), (2, 5)), causal_scores)
    assert scores == {"text": (pytest.approx(math.log(7)), 1.0, 16)}


def test_every_target_counts_the_same() -> None:
    """Batches of 8 and of 2 targets with losses 1 and 6: (8 * 1 + 2 * 6) / 10; 4 and 1 are right."""
    parts = iter([torch.tensor([8.0, 4.0, 8.0]), torch.tensor([12.0, 1.0, 2.0])])
    scores = validation_scores(Uniform(7), batches((2, 5), (1, 3)), lambda model, tokens: {"text": next(parts)})
    assert scores == {"text": (2.0, 0.5, 10)}


def test_what_is_never_asked_has_no_score() -> None:
    with pytest.raises(ValueError, match="nothing to validate label on"):
        validation_scores(Uniform(7), batches((1, 3)), lambda model, tokens: {"label": torch.zeros(3)})


def test_each_part_returns_to_the_mode_it_was_in() -> None:
    model = Uniform(7).train()
    model.frozen_norm.eval()
    validation_scores(model, batches((1, 3)), causal_scores)
    assert (model.training, model.dropout.training, model.frozen_norm.training) == (True, True, False)


def test_the_mode_returns_after_an_error() -> None:
    model = Uniform(7).train()
    with pytest.raises(IndexError):
        validation_scores(model, [np.full((1, 3), 99)], causal_scores)
    assert model.training


def test_no_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="no batch"):
        validation_scores(Uniform(7), [], causal_scores)

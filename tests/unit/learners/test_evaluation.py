"""Validation loss: nats per token over all batches, and no trace left in the model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from unlockstep.learners.evaluation import validation_loss
from unlockstep.models.factory import causal_loss


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
    assert validation_loss(Uniform(7), batches((2, 5), (2, 5)), causal_loss) == pytest.approx(math.log(7))


def test_every_target_counts_the_same() -> None:
    """Batches of 8 and of 2 targets with losses 1 and 6: (8 * 1 + 2 * 6) / 10."""
    losses = iter([torch.tensor(1.0), torch.tensor(6.0)])
    assert validation_loss(Uniform(7), batches((2, 5), (1, 3)), lambda model, tokens: next(losses)) == 2.0


def test_each_part_returns_to_the_mode_it_was_in() -> None:
    model = Uniform(7).train()
    model.frozen_norm.eval()
    validation_loss(model, batches((1, 3)), causal_loss)
    assert (model.training, model.dropout.training, model.frozen_norm.training) == (True, True, False)


def test_the_mode_returns_after_an_error() -> None:
    model = Uniform(7).train()
    with pytest.raises(IndexError):
        validation_loss(model, [np.full((1, 3), 99)], causal_loss)
    assert model.training


def test_no_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="no batch"):
        validation_loss(Uniform(7), [], causal_loss)

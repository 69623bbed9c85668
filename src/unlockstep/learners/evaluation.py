"""Validation of a torch model. Decides how what batches give becomes one number each, not which batches are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Tokens: TypeAlias = npt.NDArray[np.int64]
"""A batch on the host, int64[B, T + 1]: inputs, and their targets one position later."""

Loss: TypeAlias = Callable[[nn.Module, Tensor], Tensor]
"""(model, tokens int64[B, T + 1] on the model's device) -> mean loss, nats per token, a scalar."""

Judge: TypeAlias = Callable[[nn.Module, Tensor], Mapping[str, Tensor]]
"""(model, tokens) as of ``Loss`` -> by name, float64[3]: nats and right answers in sum, and how many were asked for."""


class Score(NamedTuple):
    """How a model does at one of the things it is asked."""

    nats: float
    """Per target."""
    accuracy: float
    """Share of targets to which it gives the highest probability."""
    targets: int


@torch.no_grad()
def validation_scores(model: nn.Module, batches: Iterable[Tokens], judge: Judge) -> dict[str, Score]:
    """Every score of ``model`` over all targets of all ``batches``; the model trains on afterwards as before.

    Raises:
        ValueError: nothing was asked under some name: no batch, or none that has what it is about.
    """
    device = next(model.parameters()).device
    sums: dict[str, Tensor] = {}
    with _evaluating(model):
        for batch in batches:
            for name, part in judge(model, torch.from_numpy(batch).to(device)).items():
                sums[name] = sums[name] + part if name in sums else part
    scores = {}
    for name, (nats, hits, targets) in ((name, total.tolist()) for name, total in sums.items()):
        if targets == 0:
            raise ValueError(f"nothing to validate {name} on: no batch has any of it")
        scores[name] = Score(nats / targets, hits / targets, int(targets))
    if not scores:
        raise ValueError("nothing to validate on: no batch")
    return scores


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    # Module by module: a model in training may hold parts in evaluation mode, such as frozen BatchNorms.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True

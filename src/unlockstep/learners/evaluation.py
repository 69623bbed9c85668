"""Validation loss of a torch model. Decides how losses of batches become one number, not which batches are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Tokens: TypeAlias = npt.NDArray[np.int64]
"""A batch on the host, int64[B, T + 1]: inputs, and their targets one position later."""

Loss: TypeAlias = Callable[[nn.Module, Tensor], Tensor]
"""(model, tokens int64[B, T + 1] on the model's device) -> mean loss, nats per token, a scalar."""


@torch.no_grad()
def validation_loss(model: nn.Module, batches: Iterable[Tokens], loss: Loss) -> float:
    """Mean loss over the tokens of all ``batches``, nats per token; the model trains on afterwards as before.

    ::

        sum over batches of (targets in it * its loss) / targets in all

    Raises:
        ValueError: no batch.
    """
    device = next(model.parameters()).device
    nats, tokens = 0.0, 0
    with _evaluating(model):
        for batch in batches:
            targets = batch[:, 1:].size
            nats += targets * float(loss(model, torch.from_numpy(batch).to(device)))
            tokens += targets
    if tokens == 0:
        raise ValueError("nothing to validate on: no batch")
    return nats / tokens


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

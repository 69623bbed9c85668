"""The built-in recipe: its learning rate, its parameter groups, and its steps against a loop written by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from unlockstep.config import InnerSection
from unlockstep.data import TokenStream
from unlockstep.learners.torch_backend import TorchBackend, learning_rate
from unlockstep.models.factory import causal_loss

TOKENS = np.random.default_rng(0).integers(0, 16, 2_000).astype(np.uint8)


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Embedding(16, 12), nn.Linear(12, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 16))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return Mlp()


def stream(batch_size: int = 4) -> TokenStream:
    return TokenStream(TOKENS, sequence_length=8, batch_size=batch_size, seed=1)


def backend(settings: InnerSection, steps_total: int = 20, batch_size: int = 4) -> TorchBackend:
    return TorchBackend(mlp(), causal_loss, stream(batch_size), settings, steps_total)


# Learning rate


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    settings = InnerSection(learning_rate=0.8, warmup_steps=4)
    assert [learning_rate(clock, settings, 100) for clock in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_cosine_goes_from_peak_to_final_share_and_stays() -> None:
    settings = InnerSection(learning_rate=2.0, warmup_steps=10, final_share=0.1)
    rates = [learning_rate(clock, settings, 110) for clock in (10, 60, 110, 1000)]
    assert rates == pytest.approx([2.0, 2.0 * 0.55, 0.2, 0.2])
    quarter = 2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert learning_rate(35, settings, 110) == pytest.approx(quarter)


def test_constant_stays_at_the_peak() -> None:
    settings = InnerSection(learning_rate=2.0, warmup_steps=0, schedule="constant")
    assert {learning_rate(clock, settings, 10) for clock in (0, 5, 50)} == {2.0}


def test_warm_up_longer_than_the_run_ends_at_the_final_share() -> None:
    settings = InnerSection(learning_rate=2.0, warmup_steps=10, final_share=0.5)
    assert learning_rate(10, settings, 5) == pytest.approx(1.0)


def test_the_rate_follows_the_clock_and_not_the_steps_taken() -> None:
    """A learner that returns takes up the schedule where the others are."""
    settings = InnerSection(warmup_steps=1)
    learner = backend(settings)
    learner.inner_step(15)
    assert {group["lr"] for group in learner.optimizer.param_groups} == {learning_rate(15, settings, 20)}


def test_a_fresh_optimizer_warms_up_whatever_the_clock() -> None:
    settings = InnerSection(learning_rate=0.8, warmup_steps=4, schedule="constant")
    learner = backend(settings)
    rates = []
    for clock in range(100, 106):
        learner.inner_step(clock)
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


# Steps


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("gradient_norm_max", [0.0, 0.05])
def test_steps_equal_a_loop_written_by_hand(accumulation: int, gradient_norm_max: float) -> None:
    """Bit for bit."""
    settings = InnerSection(accumulation=accumulation, gradient_norm_max=gradient_norm_max, warmup_steps=2)
    learner = backend(settings)
    losses = [learner.inner_step(clock).loss for clock in range(6)]

    model, batches = mlp(), stream()
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(settings.beta1, settings.beta2), fused=True)
    for clock in range(6):
        total = 0.0
        for _ in range(accumulation):
            batch = torch.from_numpy(batches.next())
            loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            (loss / accumulation).backward()
            total += loss.detach()
        if gradient_norm_max:
            nn.utils.clip_grad_norm_(model.parameters(), gradient_norm_max)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(clock, settings, 20)
        optimizer.step()
        optimizer.zero_grad()
        assert losses[clock] == float(total) / accumulation
    for ours, by_hand in zip(learner.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, by_hand)


def test_accumulated_batches_equal_one_large_batch() -> None:
    """Within rounding of the order of sums; the stream deals the same sequences either way."""
    small = backend(InnerSection(accumulation=2, gradient_norm_max=0.0), batch_size=2)
    large = backend(InnerSection(accumulation=1, gradient_norm_max=0.0), batch_size=4)
    for clock in range(3):
        ours, theirs = small.inner_step(clock), large.inner_step(clock)
        assert ours.tokens == theirs.tokens == 4 * 8
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_vectors_do_not_decay() -> None:
    learner = backend(InnerSection(weight_decay=0.3))
    decays = [(p.ndim, group["weight_decay"]) for group in learner.optimizer.param_groups for p in group["params"]]
    assert sorted(decays) == [(1, 0.0)] * 4 + [(2, 0.3)] * 3


def test_clipping_bounds_the_gradient_that_the_optimizer_sees() -> None:
    learner = backend(InnerSection(gradient_norm_max=1e-3, beta1=0.0))
    learner.inner_step(0)
    moments = [state["exp_avg"] for state in learner.optimizer.state.values()]  # with beta1 = 0: the gradient itself
    assert math.sqrt(sum(float(moment.square().sum()) for moment in moments)) == pytest.approx(1e-3, rel=1e-3)


def test_seek_counts_inner_steps_not_batches() -> None:
    batches = stream()
    TorchBackend(mlp(), causal_loss, batches, InnerSection(accumulation=3), 20).seek(5)
    assert batches.position == 15


def test_loss_falls() -> None:
    learner = backend(InnerSection(warmup_steps=0, schedule="constant", learning_rate=0.01))
    learner.seek(0)
    first = learner.inner_step(0).loss
    for clock in range(1, 10):
        learner.seek(0)
        last = learner.inner_step(clock).loss
    assert last < first - 0.1


def test_frozen_parameters_are_not_stepped() -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    learner = TorchBackend(model, causal_loss, stream(), InnerSection(), 20)
    learner.inner_step(0)
    assert torch.equal(model[0].weight, frozen)
    assert "0.weight" not in {tensor.name for tensor in learner.tensors()}

"""Every kind of preset trains in a ring, and what comes out is a model that transformers loads."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from support.ring_story import STEP_NS, of
from unlockstep.config import RunConfig, apply
from unlockstep.core.events import ContributionAccepted, FragmentCommitted, StepReported
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.data import TokenStream, load_corpus, split_corpus
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.learners.torch_store import TorchStore
from unlockstep.models import build_model, causal_loss, save_model
from unlockstep.sim.world import World

STEPS = 20
LENGTH = 40

LOADERS = {
    "llama-tiny": AutoModelForCausalLM,
    "gemma4-tiny": AutoModelForCausalLM,
    "gemma4-moe-tiny": AutoModelForCausalLM,
    "gemma4-vlm-tiny": AutoModelForImageTextToText,
}
"""llama-20m is of the class of llama-tiny, and slower."""


@cache
def training(source: str) -> tuple[np.ndarray, int]:
    corpus = load_corpus(source)
    return split_corpus(corpus, LENGTH)[0], corpus.vocabulary_size


@pytest.mark.parametrize("name", LOADERS)
def test_a_preset_trains_in_a_ring_and_is_saved_for_transformers(name: str, tmp_path: Path):
    tokens, vocabulary_size = training("digits" if "vlm" in name else "stdlib")
    changes = [f"model.spec={name}", f"run.steps={STEPS}", "protocol.fragments=4", "protocol.interval_steps=4"]
    config = apply(RunConfig(), [*changes, "inner.batch_size=2", "inner.warmup_steps=5"])
    ring = World(config)
    final = build_model(name, vocabulary_size, seed=1)  # Of another seed: nothing of it is right by chance.
    for number in range(2):
        stream = TokenStream(tokens, LENGTH, 2, seed=0, shard=number, shard_count=2)
        backend = TorchBackend(build_model(name, vocabulary_size, 0), causal_loss, stream, config.inner, STEPS)
        ring.join(f"learner{number}", backend, STEP_NS)
    for _ in ring.play():
        pass
    losses = [event.loss for event in of(StepReported, ring.events)]
    assert len(losses) >= 2 * STEPS
    assert np.mean(losses[-8:]) < np.mean(losses[:8])
    assert {event.learner for event in of(ContributionAccepted, ring.events)} == {"learner0", "learner1"}
    assert {event.fragment for event in of(FragmentCommitted, ring.events)} == {0, 1, 2, 3}

    store = TorchStore(final)
    layout = build_layout(store.tensors(), 4, LayoutMethod.BALANCED)
    store.bind(layout)
    for fragment in range(4):
        store.write_fragment(fragment, ring.global_values(fragment))
    save_model(final, tmp_path / "model")
    loaded = LOADERS[name].from_pretrained(tmp_path / "model").eval()
    text = torch.tensor([[35, 32, 99, 111, 100, 101]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=text).logits, final.eval()(text).logits)

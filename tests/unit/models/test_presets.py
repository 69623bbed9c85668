"""Shapes of the presets."""

from __future__ import annotations

import pytest

from unlockstep.models import PRESETS, build_model


@pytest.mark.parametrize(
    ("name", "parameter_count"), [("llama-tiny", 934_848), ("gemma4-tiny", 862_016), ("llama-20m", 19_405_312)]
)
def test_preset_has_the_size_its_name_promises(name: str, parameter_count: int):
    model = build_model(name, vocabulary_size=256, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count
    assert name.split("-")[0] in type(model).__name__.lower()


def test_every_preset_is_listed_in_this_file():
    assert sorted(PRESETS) == ["gemma4-tiny", "llama-20m", "llama-tiny"]


@pytest.mark.parametrize("name", ["llama-tiny", "gemma4-tiny"])
def test_preset_takes_any_vocabulary_and_ties_its_head_to_the_embedding(name: str):
    model = build_model(name, vocabulary_size=1000, seed=0)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert embedding.shape == (1000, 192)
    assert embedding.data_ptr() == head.data_ptr()


def test_weights_start_with_deviation_one_over_root_width():
    model = build_model("llama-tiny", vocabulary_size=256, seed=0)
    deviation = model.model.layers[0].mlp.up_proj.weight.std().item()
    assert deviation == pytest.approx(192**-0.5, rel=0.02)

"""Shapes of the presets, and what of them a run synchronises."""

from __future__ import annotations

import pytest
from torch import nn

from unlockstep.core.layout import Role
from unlockstep.data.images import PATCH_IDS
from unlockstep.learners.torch_store import TorchStore
from unlockstep.models import PRESETS, build_model

SIZES = {
    "gemma4-moe-tiny": 923_936,
    "gemma4-tiny": 862_016,
    "gemma4-vlm-tiny": 482_496,
    "llama-20m": 19_405_312,
    "llama-tiny": 934_848,
}


def build(name: str, text_ids: int = 256) -> nn.Module:
    return build_model(name, text_ids + (PATCH_IDS if "vlm" in name else 0), seed=0)


@pytest.mark.parametrize("name", SIZES)
def test_preset_has_the_size_its_name_promises(name: str):
    model = build(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == SIZES[name]
    assert name.split("-")[0] in type(getattr(model, "network", model)).__name__.lower()


def test_every_preset_is_listed_in_this_file():
    assert sorted(PRESETS) == sorted(SIZES)


@pytest.mark.parametrize("name", ["llama-tiny", "gemma4-tiny", "gemma4-moe-tiny"])
def test_preset_takes_any_vocabulary_and_ties_its_head_to_the_embedding(name: str):
    model = build(name, 1000)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert embedding.shape[0] == 1000
    assert embedding.data_ptr() == head.data_ptr()


@pytest.mark.parametrize("name", [name for name in SIZES if name != "llama-20m"])
def test_tied_weights_and_routers_are_synchronised_once_each(name: str):
    """All that is trained, under one name; of float buffers the scale of every Gemma 4 layer, which nothing trains."""
    model = build(name)
    tensors = TorchStore(model).tensors()
    trained = [tensor for tensor in tensors if tensor.role is not Role.BUFFER]
    assert sum(tensor.size for tensor in trained) == SIZES[name]
    assert not [tensor.name for tensor in tensors if "lm_head" in tensor.name]
    assert {tensor.name.rpartition(".")[2] for tensor in tensors if tensor.role is Role.BUFFER} <= {"layer_scalar"}
    routers = [tensor for tensor in trained if "router" in tensor.name]
    assert len(routers) == (2 * len(["proj.weight", "scale", "per_expert_scale"]) if "moe" in name else 0)


def test_what_is_looked_up_by_position_or_token_is_an_embedding():
    embeddings = [
        tensor.name for tensor in TorchStore(build("gemma4-vlm-tiny")).tensors() if tensor.role is Role.EMBEDDING
    ]
    assert embeddings == [
        "network.model.vision_tower.patch_embedder.position_embedding_table",
        "network.model.language_model.embed_tokens.weight",
    ]


def test_frozen_parts_are_left_out():
    """A vision tower that is not trained never travels."""
    model = build("gemma4-vlm-tiny")
    model.network.model.vision_tower.requires_grad_(False)
    assert not [tensor.name for tensor in TorchStore(model).tensors() if "vision_tower" in tensor.name]


def test_weights_start_with_deviation_one_over_root_width():
    model = build("llama-tiny")
    deviation = model.model.layers[0].mlp.up_proj.weight.std().item()
    assert deviation == pytest.approx(192**-0.5, rel=0.02)

"""Models that come with the package: shapes for a laptop, built offline from transformers configurations.

Decides the shapes. Does not decide the seed or the vocabulary (``factory``). Each preset imports only the module its
model lives in.

Weights start with standard deviation ``hidden_size ** -0.5``, which keeps activations near one at any width. The usual
0.02 is that value for a width of 2500; at these widths it costs a run of 150 steps 0.2 to 0.3 nats per byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

_POSITIONS = 2048
_NO_SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def llama_tiny(vocabulary_size: int) -> nn.Module:
    """A Llama of 0.93 M parameters (256 ids): two wide layers learn faster per second than more narrow ones."""
    return llama(vocabulary_size, hidden_size=192, layers=2, heads=6, feed_forward_size=512)


def llama_20m(vocabulary_size: int) -> nn.Module:
    """A Llama of 19.4 M parameters (256 ids)."""
    return llama(vocabulary_size, hidden_size=512, layers=6, heads=8, feed_forward_size=1408)


def gemma4_tiny(vocabulary_size: int) -> nn.Module:
    """A dense Gemma 4 of 0.86 M parameters (256 ids): one layer that looks back 64 tokens, one that looks at all."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM

    return Gemma4ForCausalLM(gemma4_text(vocabulary_size, hidden_size=192, feed_forward_size=512, heads=6))


def gemma4_moe_tiny(vocabulary_size: int) -> nn.Module:
    """A sparse Gemma 4 of 0.92 M parameters (256 ids): beside each feed-forward layer 16 experts, of which every token
    takes two."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM

    experts = {"enable_moe_block": True, "num_experts": 16, "top_k_experts": 2, "moe_intermediate_size": 48}
    return Gemma4ForCausalLM(gemma4_text(vocabulary_size, hidden_size=128, feed_forward_size=256, heads=4, **experts))


def gemma4_vlm_tiny(vocabulary_size: int) -> nn.Module:
    """A Gemma 4 of 0.48 M parameters (256 ids of text) that sees images, for ``data.source = "digits"``."""
    from transformers.models.gemma4.configuration_gemma4 import Gemma4Config, Gemma4VisionConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

    from unlockstep.models.vision import PATCH_SIDE, PATCHES, POOLED_SIDE, ImageReader, text_ids_of

    text_ids = text_ids_of(vocabulary_size)
    # One id more than text: a place for what is no text. Sound and moving pictures get ids that nothing has.
    text = gemma4_text(text_ids + 1, hidden_size=128, feed_forward_size=320, heads=4, pad_token_id=text_ids)
    width = 64
    vision = Gemma4VisionConfig(
        hidden_size=width,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=width // 4,
        patch_size=PATCH_SIDE,
        position_embedding_size=int(PATCHES**0.5),
        pooling_kernel_size=POOLED_SIDE,
        initializer_range=width**-0.5,
    )
    config = Gemma4Config(
        text_config=text,
        vision_config=vision,
        image_token_id=text_ids,
        video_token_id=text_ids + 1,
        audio_token_id=text_ids + 2,
        boi_token_id=None,
        eoi_token_id=None,
        boa_token_id=None,
        eoa_token_index=None,
        initializer_range=width**-0.5,
    )
    return ImageReader(Gemma4ForConditionalGeneration(config), text_ids)


def gemma4_text(
    vocabulary_size: int, *, hidden_size: int, feed_forward_size: int, heads: int, **options: Any
) -> Gemma4TextConfig:
    """The text part of a Gemma 4 in two layers: one that looks back 64 tokens, one that looks at all. ``options`` go to
    ``Gemma4TextConfig`` as they are."""
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

    head_size = hidden_size // heads
    return Gemma4TextConfig(
        vocab_size=vocabulary_size,
        hidden_size=hidden_size,
        intermediate_size=feed_forward_size,
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=64,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=head_size,
        global_head_dim=head_size,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=vocabulary_size,
        max_position_embeddings=_POSITIONS,
        initializer_range=hidden_size**-0.5,
        **(_NO_SPECIAL_TOKENS | options),
    )


def llama(vocabulary_size: int, *, hidden_size: int, feed_forward_size: int, layers: int, heads: int) -> nn.Module:
    """A Llama with tied embeddings, of any size."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary_size,
            hidden_size=hidden_size,
            intermediate_size=feed_forward_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=_POSITIONS,
            initializer_range=hidden_size**-0.5,
            tie_word_embeddings=True,
            **_NO_SPECIAL_TOKENS,
        )
    )


PRESETS: Mapping[str, Callable[[int], nn.Module]] = MappingProxyType(
    {
        "gemma4-moe-tiny": gemma4_moe_tiny,
        "gemma4-tiny": gemma4_tiny,
        "gemma4-vlm-tiny": gemma4_vlm_tiny,
        "llama-20m": llama_20m,
        "llama-tiny": llama_tiny,
    }
)
"""Name to a function of the vocabulary size."""

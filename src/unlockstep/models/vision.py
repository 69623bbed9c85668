"""A Gemma 4 that sees: image patches in a stream of tokens become pixels, and the soft tokens of a vision tower.

::

    tokens    t t  p p p p p p p p p p p p p p p p  7 \\0      p: patch ids of one image (data.images)
    inside    t t                          s s s s  7 \\0      s: soft tokens; only whole images, the rest is left out
    logits    t t  0 0 0 0 0 0 0 0 0 0 0 0 s s s s  7 \\0      [B, T, V]: the last soft token predicts the label

Decides what becomes of patch ids on the way into the model, and which next tokens it is asked for: text, where
everything that the answer depends on was seen. Does not decide how images become tokens (``data.images``) nor shapes
(``presets``). The model inside is a plain ``Gemma4ForConditionalGeneration`` and is saved as one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unlockstep.core.errors import UsageError
from unlockstep.data.images import GREY_LEVELS, IMAGE_SIDE, PATCH_IDS, PATCH_SIDE, PATCHES

if TYPE_CHECKING:
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

IGNORED = -100
"""Target of a position that is not asked for anything (``torch.nn.functional.cross_entropy``)."""

POOLED_SIDE = 2
"""Patches in a row and in a column that the vision tower makes one soft token of."""
SOFT_TOKENS = PATCHES // POOLED_SIDE**2


class ImageReader(nn.Module):
    """``network`` behind a stream of tokens in which images are runs of patch ids.

    Args:
        network: its text ids are those below ``text_ids``; ``image_token_id`` of its configuration is not among them.
        text_ids: vocabulary of text; ids from there on are patches.
    """

    _places: Tensor
    _greys: Tensor

    def __init__(self, network: Gemma4ForConditionalGeneration, text_ids: int) -> None:
        super().__init__()
        self.network = network
        self.text_ids = text_ids
        across = IMAGE_SIDE // PATCH_SIDE
        places = torch.arange(PATCHES)
        self.register_buffer("_places", torch.stack([places % across, places // across], dim=1), persistent=False)
        self.register_buffer("_greys", GREY_LEVELS ** torch.arange(PATCH_SIDE**2), persistent=False)

    @property
    def config(self) -> Any:
        """Of the network."""
        return self.network.config

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Save the network: ``transformers.Gemma4ForConditionalGeneration.from_pretrained(folder)`` loads it."""
        self.network.save_pretrained(folder)

    def forward(self, tokens: Tensor, use_cache: bool = False) -> SimpleNamespace:
        """Logits of text, ``.logits`` float32 [B, T, V], of tokens int64 [B, T]; 0 where nothing was computed."""
        is_patch = tokens >= self.text_ids
        whole = self._whole_images(is_patch)
        is_soft = _ends(whole) & whole
        is_kept = ~is_patch | is_soft
        # What is kept, moved to the left; behind it comes padding, which nothing before it attends to.
        length = max(1, int(is_kept.sum(1).max()))
        order = torch.argsort((~is_kept).to(torch.int8), dim=1, stable=True)[:, :length]
        kept = torch.gather(torch.where(is_patch, self.config.image_token_id, tokens), 1, order)
        kept = torch.where(torch.gather(is_kept, 1, order), kept, 0)
        seen: dict[str, Tensor] = {}
        if whole.any():
            pixels = self._pixels(tokens[whole].view(-1, PATCHES))
            seen = {"pixel_values": pixels, "image_position_ids": self._places.expand(len(pixels), -1, -1)}
        output = self.network(input_ids=kept, use_cache=use_cache, **seen)
        logits = output.logits.new_zeros(*tokens.shape, output.logits.shape[-1])
        logits = logits.scatter(1, order.unsqueeze(-1).expand_as(output.logits), output.logits)
        return SimpleNamespace(logits=logits.masked_fill(~is_kept.unsqueeze(-1), 0.0))

    def named_targets(self, batch: Tensor) -> Mapping[str, Tensor]:
        """What is asked of a batch, int64 [B, T + 1], by the name of its score: int64 [B, T] each, else ``IGNORED``.

        ``text``: the next token of text after text. ``label``: the first token after a whole image. What follows an
        image that the sequence cuts off is not asked for.
        """
        inputs, targets = batch[:, :-1], batch[:, 1:]
        is_patch = inputs >= self.text_ids
        whole = self._whole_images(is_patch)
        is_text = targets < self.text_ids
        after_image = whole & is_text
        after_text = ~is_patch & is_text
        return {
            "text": torch.where(after_text, targets, IGNORED),
            "label": torch.where(after_image, targets, IGNORED),
        }

    def _whole_images(self, is_patch: Tensor) -> Tensor:
        """Which positions belong to an image that is there from its first to its last patch: bool [B, T].

        Images stand between texts, so that a run of patches of another length than an image has been cut off.
        """
        positions = torch.arange(is_patch.shape[1], device=is_patch.device).expand_as(is_patch)
        outside = torch.where(is_patch, -1, positions)
        before = torch.cummax(outside, dim=1).values
        outside = torch.where(is_patch, is_patch.shape[1], positions)
        behind = torch.cummin(outside.flip(1), dim=1).values.flip(1)
        return is_patch & (behind - before - 1 == PATCHES)

    def _pixels(self, patches: Tensor) -> Tensor:
        """Patch ids [n, PATCHES] as the vision tower takes them: float32 [n, PATCHES, 3 * 4], three equal channels."""
        levels = (patches - self.text_ids).unsqueeze(-1) // self._greys % GREY_LEVELS
        return (levels / (GREY_LEVELS - 1)).repeat_interleave(3, dim=-1)


def text_ids_of(vocabulary_size: int) -> int:
    """Ids of text in a vocabulary that ends in patches."""
    if vocabulary_size <= PATCH_IDS:
        raise UsageError(
            f"model.spec: this model sees images, of which data.source has none (its vocabulary is {vocabulary_size}): "
            "set data.source to 'digits', or choose a model of text"
        )
    return vocabulary_size - PATCH_IDS


def _ends(whole: Tensor) -> Tensor:
    """The last ``SOFT_TOKENS`` positions of each image: bool [B, T]."""
    places = torch.where(whole, torch.cumsum(whole, dim=1) - 1, 0) % PATCHES
    return places >= PATCHES - SOFT_TOKENS

"""Experts that see no token in a round: is their outer gradient in the way, and does it matter how they are stored?

Eight learners of a Gemma 4 with 64 experts a layer, of which every token takes one, share 400,000 tokens. Nothing
balances them, so that some experts see no token of a learner between two rounds, and what it hands over of them is
weight decay and the rest of AdamW's momentum. Stacked, as transformers has them, all experts of a layer are one tensor
to the merge; apart, each is one of its own, to whose direction every learner counts alike.

    python experiments/experts.py --seed 0 1 2 3 4 5
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sheet import conduct
from torch import Tensor, nn
from trial import Trial, carry_settings

LEARNERS = 8
TOKENS = 400_000
EXPERTS = 64
WIDTH = 8
"""Of an expert: sixty-four of them are as wide as one dense layer of 512."""


class Apart(nn.Module):
    """What a stack of experts does, every expert in tensors of its own."""

    def __init__(self, stack: nn.Module) -> None:
        super().__init__()
        self.gate_up = nn.ParameterList(part.detach().clone() for part in stack.gate_up_proj)  # type: ignore[union-attr]
        self.down = nn.ParameterList(part.detach().clone() for part in stack.down_proj)  # type: ignore[union-attr]
        self.act_fn = stack.act_fn

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """As ``Gemma4TextExperts``: hidden states [N, D], expert and weight of each choice [N, K]."""
        result = torch.zeros_like(hidden)
        for expert in chosen.unique().tolist():
            token, choice = torch.where(chosen == expert)
            gate, up = (hidden[token] @ self.gate_up[expert].T).chunk(2, dim=-1)
            out = (self.act_fn(gate) * up) @ self.down[expert].T
            result.index_add_(0, token, out * weights[token, choice, None])
        return result


def stacked(vocabulary_size: int) -> nn.Module:
    """``model.spec=experts:stacked``: 0.42 M parameters (256 ids)."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM

    from unlockstep.models.presets import gemma4_text

    options = {"num_experts": EXPERTS, "top_k_experts": 1, "moe_intermediate_size": WIDTH, "enable_moe_block": True}
    return Gemma4ForCausalLM(gemma4_text(vocabulary_size, hidden_size=96, feed_forward_size=128, heads=4, **options))


def apart(vocabulary_size: int) -> nn.Module:
    """``model.spec=experts:apart``: the same model, from the same numbers."""
    model = stacked(vocabulary_size)
    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.experts = Apart(layer.experts)
    return model


def trials(quick: bool) -> Sequence[Trial]:
    tokens = 8_000 if quick else TOKENS
    settings = carry_settings(LEARNERS)
    changes = {
        "stacked": ("model.spec=experts:stacked",),
        "apart": ("model.spec=experts:apart",),
        "stacked, merged by the mean": ("model.spec=experts:stacked", "outer.merge=mean", "outer.learning_rate=1.0"),
        "stacked, no weight decay": ("model.spec=experts:stacked", "inner.weight_decay=0"),
        "apart, no weight decay": ("model.spec=experts:apart", "inner.weight_decay=0"),
    }
    return [Trial(name, (*settings, *change), tokens) for name, change in changes.items()]


if __name__ == "__main__":
    conduct("experts", __doc__, trials)

"""How parameters are cut into fragments: by layer, by tensor, balanced. What it costs, and what travels at once.

Four learners of 0.30 M parameters in six layers share 600,000 tokens; P = 6, since there are no more layers than that.

    python experiments/fragmentation.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

from sheet import conduct
from trial import Trial, carry_settings

LEARNERS = 4
TOKENS = 600_000
METHODS = ("layer", "tensor", "balanced")


def trials(quick: bool) -> Sequence[Trial]:
    tokens = 8_000 if quick else TOKENS
    settings = (*carry_settings(LEARNERS), "model.spec=trial:llama_deep", "protocol.fragments=6")
    return [Trial(method, (*settings, f"protocol.layout={method}"), tokens) for method in METHODS]


if __name__ == "__main__":
    conduct("fragmentation", __doc__, trials)

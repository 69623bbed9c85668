"""The default recipe against plain data-parallel AdamW at equal tokens, and against one learner with its quarter.

Data-parallel training has the same model, the same text and the same total batch, and is tuned by itself: the inner
learning rates tried are in the table, the best one counts. The quarter is what a learner of the ring would have
reached without the others.

    python experiments/recipe.py --seed 0 1
"""

from __future__ import annotations

from collections.abc import Sequence

from sheet import conduct
from trial import Trial

LEARNERS = 4
TOKENS = 1_048_576

MODEL = ("model.spec=llama-tiny", "data.source=stdlib", "data.sequence_length=128")
INNER = ("inner.warmup_steps=30", "inner.beta2=0.99", "inner.final_share=0.3")
RECIPE = (
    *MODEL,
    *INNER,
    f"local.learners={LEARNERS}",
    "inner.batch_size=4",
    "inner.learning_rate=3e-3",
    "outer.optimizer=nesterov",
    "outer.learning_rate=0.7",
    "outer.momentum=0.0",
    "outer.merge=rda",
    "adoption.mode=carry",
    "protocol.fragments=4",
    "protocol.interval_steps=4",
)
"""The defaults, spelled out: what has been measured stays what it was when a default changes."""

DATA_PARALLEL_RATES = ("1e-3", "2e-3", "3e-3")
ALONE_RATE = "3e-3"


def trials(quick: bool) -> Sequence[Trial]:
    tokens = TOKENS // 32 if quick else TOKENS
    whole_batch = (*MODEL, *INNER, "inner.batch_size=16")
    own_batch = (*MODEL, *INNER, "inner.batch_size=4")
    return [
        *(
            Trial(f"data-parallel, lr {rate}", (*whole_batch, f"inner.learning_rate={rate}"), tokens, alone=True)
            for rate in DATA_PARALLEL_RATES
        ),
        Trial("default recipe", RECIPE, tokens),
        Trial(
            "one learner, a quarter of the tokens",
            (*own_batch, f"inner.learning_rate={ALONE_RATE}"),
            tokens // LEARNERS,
            alone=True,
        ),
    ]


if __name__ == "__main__":
    conduct("recipe", __doc__, trials)

"""Which outer optimizer, merge, interval, adoption and inner rate: one change at a time, on a small model.

Four learners of 0.25 M parameters share 524,288 tokens, so each takes as many steps (512) as in the default run and the
whole table takes minutes. The first line is data-parallel AdamW at its own best settings.

    python experiments/outer.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

from sheet import conduct
from trial import Trial

TOKENS = 524_288

MODEL = (
    "model.spec=trial:llama_quarter",
    "data.sequence_length=64",
    "inner.warmup_steps=30",
    "inner.beta2=0.99",
    "inner.final_share=0.3",
)
DATA_PARALLEL = (*MODEL, "inner.batch_size=16", "inner.learning_rate=4e-3")
RECIPE = (
    *MODEL,
    "local.learners=4",
    "inner.batch_size=4",
    "inner.learning_rate=6e-3",
    "outer.optimizer=nesterov",
    "outer.learning_rate=0.7",
    "outer.momentum=0.0",
    "outer.merge=rda",
    "adoption.mode=carry",
    "protocol.fragments=4",
    "protocol.interval_steps=4",
)

CHANGES: dict[str, tuple[str, ...]] = {
    "the default": (),
    "merge: mean, outer lr 1.0": ("outer.merge=mean", "outer.learning_rate=1.0"),
    "outer lr 0.4": ("outer.learning_rate=0.4",),
    "outer lr 1.0": ("outer.learning_rate=1.0",),
    "outer 0.7, momentum 0.6": ("outer.momentum=0.6",),
    "outer 0.4, momentum 0.9": ("outer.learning_rate=0.4", "outer.momentum=0.9"),
    "outer 0.7, momentum 0.9 (lineage)": ("outer.momentum=0.9",),
    "P = H = 2": ("protocol.fragments=2", "protocol.interval_steps=2"),
    "P = H = 8": ("protocol.fragments=8", "protocol.interval_steps=8"),
    "P = 12, H = 24": ("protocol.fragments=12", "protocol.interval_steps=24"),
    "adoption: overwrite": ("adoption.mode=overwrite",),
    "adoption: blend 0.5": ("adoption.mode=blend",),
    "inner lr 3e-3": ("inner.learning_rate=3e-3",),
    "inner lr 1e-2": ("inner.learning_rate=1e-2",),
    "inner batch 8, half the steps": ("inner.batch_size=8",),
    "inner final share 0.1": ("inner.final_share=0.1",),
    "inner beta2 0.95": ("inner.beta2=0.95",),
}
"""Name to what is set differently."""


def trials(quick: bool) -> Sequence[Trial]:
    tokens = TOKENS // 32 if quick else TOKENS
    changed = [Trial(name, (*RECIPE, *settings), tokens) for name, settings in CHANGES.items()]
    return [Trial("data-parallel", DATA_PARALLEL, tokens, alone=True), *changed]


if __name__ == "__main__":
    conduct("outer", __doc__, trials)

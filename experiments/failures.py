"""Every learner dies every 200 steps and is away for 40: does the model notice?

Eight learners of 0.25 M parameters share 600,000 tokens. A process that returns starts from the syncer's parameters and
nothing else: its AdamW begins anew, and what it had not handed over when it died is lost.

    python experiments/failures.py --seed 0 1
"""

from __future__ import annotations

from collections.abc import Sequence

from sheet import conduct
from trial import Failures, Trial

SETTINGS = (
    "model.spec=trial:llama_quarter",
    "data.sequence_length=64",
    "inner.batch_size=4",
    "inner.learning_rate=6e-3",
    "inner.warmup_steps=30",
    "inner.beta2=0.99",
    "inner.final_share=0.3",
    "local.learners=8",
    "outer.optimizer=nesterov",
    "outer.learning_rate=0.7",
    "outer.momentum=0.0",
    "outer.merge=rda",
    "adoption.mode=carry",
    "protocol.fragments=12",
    "protocol.interval_steps=24",
)


def trials(quick: bool) -> Sequence[Trial]:
    tokens = 20_000 if quick else 600_000
    failures = Failures(every_steps=5, down_steps=2) if quick else Failures(every_steps=200, down_steps=40)
    return [
        Trial("without failures", SETTINGS, tokens),
        Trial("with failures", SETTINGS, tokens, failures=failures),
    ]


if __name__ == "__main__":
    conduct("failures", __doc__, trials)

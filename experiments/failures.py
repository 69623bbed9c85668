"""Every learner dies every 200 steps and is away for 40: does the model notice?

Eight learners of 0.25 M parameters share 600,000 tokens. A process that returns starts from the syncer's parameters and
nothing else: its AdamW begins anew, and what it had not handed over when it died is lost.

    python experiments/failures.py --seed 0 1
"""

from __future__ import annotations

from collections.abc import Sequence

from sheet import conduct
from trial import Failures, Trial, carry_settings

SETTINGS = (*carry_settings(8), "recovery.donor=false")


def trials(quick: bool) -> Sequence[Trial]:
    tokens = 20_000 if quick else 600_000
    failures = Failures(every_steps=5, down_steps=2) if quick else Failures(every_steps=200, down_steps=40)
    return [
        Trial("without failures", SETTINGS, tokens),
        Trial("with failures", SETTINGS, tokens, failures=failures),
    ]


if __name__ == "__main__":
    conduct("failures", __doc__, trials)

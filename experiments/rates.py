"""Is it the rule of merging or the outer learning rate? Radial-directional averaging and the mean, at several rates.

The mean of M outer gradients is shorter than each of them, so it wants a larger rate, and the more learners there are
the larger. Here each rule has its choice: 2 and 8 learners that share 600,000 tokens and a batch of 16 sequences,
as in ``learners``.

    python experiments/rates.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

from learners import BATCH, TOKENS
from sheet import conduct
from trial import Trial, carry_settings

COUNTS = (8, 2)
RATES = {"rda": (0.7, 0.4, 1.0), "mean": (0.7, 1.0, 1.4, 2.0)}
"""Rule -> outer learning rates."""


def trials(quick: bool) -> Sequence[Trial]:
    tokens = 8_000 if quick else TOKENS
    made = []
    for count in COUNTS:
        settings = (*carry_settings(count), f"inner.batch_size={BATCH // count}")
        for rule, rates in RATES.items():
            made += [
                Trial(
                    f"M = {count}, {rule}, {rate:g}",
                    (*settings, f"outer.merge={rule}", f"outer.learning_rate={rate:g}"),
                    tokens,
                )
                for rate in rates
            ]
    return made


if __name__ == "__main__":
    conduct("rates", __doc__, trials)

"""Does what the learners' independence costs grow or shrink with the length of the run?

Eight learners of 0.25 M parameters, P = 12 and H = 24, beside data-parallel training with the batch of all of them, on
300,000 to 2,400,000 tokens.

    python experiments/length.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

from failures import ALONE, LEARNERS
from sheet import conduct
from trial import Trial, carry_settings

TOKENS = (300_000, 600_000, 1_200_000, 2_400_000)


def trials(quick: bool) -> Sequence[Trial]:
    settings = carry_settings(LEARNERS)
    made = []
    for tokens in TOKENS:
        length = tokens // 75 if quick else tokens
        made += [
            Trial(f"data-parallel, {tokens:,} tokens", (*settings, *ALONE), length, alone=True),
            Trial(f"8 learners, {tokens:,} tokens", settings, length),
        ]
    return made


if __name__ == "__main__":
    conduct("length", __doc__, trials)

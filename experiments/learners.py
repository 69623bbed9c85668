"""How many learners: 1, 2, 4, 8 and 16 of them, merged by weighted mean and by radial-directional averaging.

In the first ten trials they share 600,000 tokens and a batch of 16 sequences a step, so that all take as many steps:
one learner has a batch of 16, sixteen have one sequence each. In the others every learner has a batch of four and takes
200 steps, so that what a learner contributes is the same whatever their number, and norms can be compared.

    python experiments/learners.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

from sheet import conduct
from trial import Trial, carry_settings

TOKENS = 600_000
BATCH = 16
LENGTH = 64
NORM_STEPS = 200
NORM_BATCH = 4
COUNTS = (1, 2, 4, 8, 16)
RULES = ("rda", "mean")


def trials(quick: bool) -> Sequence[Trial]:
    tokens, steps = (8_000, 8) if quick else (TOKENS, NORM_STEPS)
    made = []
    for rule in RULES:
        for count in COUNTS:
            settings = (*carry_settings(count), f"outer.merge={rule}", f"inner.batch_size={BATCH // count}")
            made.append(Trial(f"{rule}, M = {count}", settings, tokens))
    for rule in RULES:
        for count in COUNTS:
            settings = (*carry_settings(count), f"outer.merge={rule}", f"inner.batch_size={NORM_BATCH}")
            made.append(Trial(f"norms: {rule}, M = {count}", settings, steps * count * NORM_BATCH * LENGTH))
    return made


if __name__ == "__main__":
    conduct("learners", __doc__, trials)

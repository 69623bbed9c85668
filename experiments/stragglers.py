"""Half of the learners are five times slower: does a slow learner still count, and is it worth anything?

Eight learners of 0.25 M parameters share 600,000 tokens. ``latest`` asks every learner that has done anything since it
was last asked; ``fresh``, the paper's rule, only those that have finished the step the round is due at.

    python experiments/stragglers.py --seed 0 1
"""

from __future__ import annotations

from collections.abc import Sequence

from sheet import conduct
from trial import Trial, carry_settings

LEARNERS = 8
SLOW = ",".join(["1"] * (LEARNERS // 2) + ["5"] * (LEARNERS // 2))

SETTINGS = carry_settings(LEARNERS)


def trials(quick: bool) -> Sequence[Trial]:
    tokens = 20_000 if quick else 600_000
    fresh, slow = "protocol.participation=fresh", f"local.slowdown=[{SLOW}]"
    return [
        Trial("equal speeds", SETTINGS, tokens),
        Trial("half 5x slower, latest", (*SETTINGS, slow), tokens),
        Trial("half 5x slower, fresh", (*SETTINGS, slow, fresh), tokens),
        Trial("half 5x slower, latest, overwrite", (*SETTINGS, slow, "adoption.mode=overwrite"), tokens),
        Trial("half 5x slower, fresh, overwrite", (*SETTINGS, slow, fresh, "adoption.mode=overwrite"), tokens),
    ]


if __name__ == "__main__":
    conduct("stragglers", __doc__, trials)

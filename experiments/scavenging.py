"""Four learners, and extra ones while half of the tokens are trained: how much sooner is it done, and at what loss?

Five numbers are published, and no schedule: 1.00, 0.90, 0.83, 0.75 and 0.62 of the time with +0, 25, 50, 100 and 300 %
compute. They are, to the digit, what follows if the extra compute is there while half of the tokens are trained:
1/2 + 1/2 / (1 + extra). So it is here, in two visits, each while a quarter of them is; the rest is before, between and
behind. Extra learners come one after the other, train on text in an order of their own, begin with the parameters of
the syncer and a fresh AdamW, and leave in order: what they have is handed over. In one trial they are killed instead.

At equal tokens more learners take fewer steps, which costs loss in itself. Six learners that are always there are what
to compare 300 % extra with.

    python experiments/scavenging.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from result_file import Visits
from sheet import conduct
from trial import Trial, carry_settings

LEARNERS = 4
TOKENS = 1_048_576
TOKENS_PER_STEP = 4 * 64

SETTINGS = (*carry_settings(LEARNERS), "recovery.donor=false")

STAGGER_STEPS = 2
"""As often as a round opens, somebody comes or goes."""

CURVE_POINTS = 16
"""Visits begin and end near every second one."""


def visits(extra: int, tokens: int, stagger_steps: int) -> Visits:
    """Two visits, each as long as all learners together need for a quarter of the tokens."""
    steps = tokens // TOKENS_PER_STEP
    first = steps // 8 // LEARNERS
    stay = steps // 4 // (LEARNERS + extra)
    return Visits(extra, (first, first + stay + steps // 4 // LEARNERS), stay, stagger_steps)


def trials(quick: bool) -> Sequence[Trial]:
    tokens, stagger_steps, points = (TOKENS // 32, 0, 2) if quick else (TOKENS, STAGGER_STEPS, CURVE_POINTS)
    come = {extra: visits(extra, tokens, stagger_steps) for extra in (1, 2, 4, 12)}
    named = {"+0 %": None, **{f"+{100 * extra // LEARNERS} %": visit for extra, visit in come.items()}}
    killed = msgspec.structs.replace(come[12], in_order=False)
    return [
        *(Trial(name, SETTINGS, tokens, visits=visit, curve_points=points) for name, visit in named.items()),
        Trial("+300 %, killed", SETTINGS, tokens, visits=killed, curve_points=points),
        Trial("six all the time", (*SETTINGS, "local.learners=6"), tokens, curve_points=points),
    ]


if __name__ == "__main__":
    conduct("scavenging", __doc__, trials)

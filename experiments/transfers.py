"""Adoption, anchor, late contributions, tau, K and participation where bodies take time: one change at a time.

Where nothing takes time nothing is late, and no learner trains on while a commit is on its way: in ``choices`` these
settings are one and the same. Here half of eight learners are behind links that take 2.5 steps of the fastest for a
body (a quarter of the parameters, of which one travels every six steps), each way, and are two times slower. Otherwise
as in ``choices``: 600,000 tokens, H = 24, every step off by 10 %, each trial against the first line of its seed.

    python experiments/transfers.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

import choices
from choices import TOKENS
from heterogeneity import LEARNERS, half_slower
from result_file import NarrowLinks
from sheet import conduct
from trial import Trial, carry_settings

BODY_BYTES = 67_584 * 4
"""Of the largest fragment, as float32."""
MBIT_PER_S = 8 * BODY_BYTES / 0.25 / 1e6
"""A step takes 0.1 s."""
LINKS = NarrowLinks(learners=LEARNERS // 2, mbit_per_s=MBIT_PER_S)

FIXED = ("protocol.fragments=4", "codec.upload=float32", "codec.download=float32")

CHANGES: dict[str, tuple[str, ...]] = {
    **{
        name: choices.CHANGES[name]
        for name in (
            "as it is",
            "adoption: overwrite",
            "adoption: blend 0.5",
            "anchor: syncer",
            "anchor: syncer, overwrite",
            "late: drop",
            "tau = 1",
            "tau = 8",
            "K = 4",
            "K = 8",
        )
    },
    "tau = 1, late: drop": ("protocol.overlap_steps=1", "protocol.late=drop"),
    "tau = 4": ("protocol.overlap_steps=4",),
    "tau = 8, overwrite": ("protocol.overlap_steps=8", "adoption.mode=overwrite"),
    "fresh": ("protocol.participation=fresh",),
    "paper's rules": (
        "protocol.participation=fresh",
        "protocol.late=drop",
        "protocol.anchor=syncer",
        "adoption.mode=overwrite",
    ),
}
"""Name to what is set differently."""


def trials(quick: bool) -> Sequence[Trial]:
    tokens = 8_000 if quick else TOKENS
    settings = (*carry_settings(LEARNERS), *half_slower(2), *FIXED)
    return [Trial(name, (*settings, *change), tokens, narrow=LINKS) for name, change in CHANGES.items()]


if __name__ == "__main__":
    conduct("transfers", __doc__, trials)

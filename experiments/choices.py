"""Adoption, anchor, late contributions, H, P, tau, K, outer step: one change at a time around the settings we use.

Eight learners of 0.25 M parameters, the slowest 18 % behind the fastest and every step off by 10 %, share 600,000
tokens. A single run is off by up to 1 % by chance, for a change in the last bit leads elsewhere: what counts are means
over seeds, each against the first line of its seed, and their spread.

    python experiments/choices.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

from heterogeneity import LEARNERS, UNEVEN
from sheet import conduct
from trial import Trial, carry_settings

TOKENS = 600_000

CHANGES: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "adoption: overwrite": ("adoption.mode=overwrite",),
    "adoption: blend 0.5": ("adoption.mode=blend",),
    "anchor: syncer": ("protocol.anchor=syncer",),
    "anchor: syncer, overwrite": ("protocol.anchor=syncer", "adoption.mode=overwrite"),
    "late: drop": ("protocol.late=drop",),
    "H = 6": ("protocol.interval_steps=6", "protocol.fragments=6"),
    "H = 12": ("protocol.interval_steps=12",),
    "H = 48": ("protocol.interval_steps=48",),
    "H = 96": ("protocol.interval_steps=96",),
    "P = 4": ("protocol.fragments=4",),
    "P = 1": ("protocol.fragments=1",),
    "tau = 1": ("protocol.overlap_steps=1",),
    "tau = 8": ("protocol.overlap_steps=8",),
    "K = 4": ("protocol.quorum=4",),
    "K = 8": ("protocol.quorum=8",),
    "no grace": ("protocol.grace_factor=0",),
    "outer lr 0.4": ("outer.learning_rate=0.4",),
    "outer lr 1.0": ("outer.learning_rate=1.0",),
    "outer 0.4, momentum 0.9": ("outer.learning_rate=0.4", "outer.momentum=0.9"),
    "outer 0.7, momentum 0.9": ("outer.momentum=0.9",),
}
"""Name to what is set differently."""


def trials(quick: bool) -> Sequence[Trial]:
    tokens = 8_000 if quick else TOKENS
    settings = (*carry_settings(LEARNERS), *UNEVEN)
    return [Trial(name, (*settings, *change), tokens) for name, change in CHANGES.items()]


if __name__ == "__main__":
    conduct("choices", __doc__, trials)

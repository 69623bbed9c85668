"""Learners of different speed: what it costs to wait for all, not to wait, and to wait as long as it is free.

Eight learners, the slowest 18 % behind the fastest, and every step off by 10 %. K = 8 closes a round when all have
contributed, K = 1 at once, and K = 1 with grace waits as long as nobody has to wait for it. Each under the paper's
rules (``fresh``: only who has finished the step the round is due at takes part; a version overwrites what a learner
has) and under ours (``latest``: everybody hands over what it has; a learner carries its own progress over). Then half
of the learners are 2, 5 and 20 times slower.

No learner ever waits for a round here, whatever K is: what K costs is how old the versions are. What waiting would cost
is computed from the steps as they were (``RingScore.lockstep_idle``).

    python experiments/heterogeneity.py --seed 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence

from sheet import conduct
from trial import Trial, carry_settings

LEARNERS = 8
TOKENS = 600_000
SLOWEST = 1 / 0.82
"""Times as long as the fastest learner's step."""

SPREAD = [round(1 + (SLOWEST - 1) * number / (LEARNERS - 1), 4) for number in range(LEARNERS)]
UNEVEN = (f"local.slowdown={SPREAD}", "virtual.jitter=0.1")

PAPER = ("protocol.participation=fresh", "adoption.mode=overwrite")
OURS = ("protocol.participation=latest", "adoption.mode=carry")

WINDOWS: dict[str, tuple[str, ...]] = {
    "K = 8": ("protocol.quorum=8",),
    "K = 1, no grace": ("protocol.quorum=1", "protocol.grace_factor=0"),
    "K = 1, grace": ("protocol.quorum=1",),
}

PICTURE_S = (12.0, 13.2)
"""Twelve steps in the middle of the run, of which a picture is drawn."""

CURVE_POINTS = 12


def half_slower(times: int) -> tuple[str, ...]:
    """Half of the learners take so many times as long for a step."""
    return (f"local.slowdown={[1.0] * (LEARNERS // 2) + [float(times)] * (LEARNERS // 2)}", "virtual.jitter=0.1")


def trials(quick: bool) -> Sequence[Trial]:
    tokens, points = (8_000, 2) if quick else (TOKENS, CURVE_POINTS)
    settings = carry_settings(LEARNERS)
    kept = (0.2, 0.5) if quick else PICTURE_S

    def trial(name: str, *changes: tuple[str, ...], picture: bool = False) -> Trial:
        merged = tuple(each for change in changes for each in change)
        return Trial(name, (*settings, *merged), tokens, curve_points=points, picture=kept if picture else None)

    made = [trial("equal speeds")]
    made += [trial(f"paper's rules, {name}", UNEVEN, PAPER, window, picture=True) for name, window in WINDOWS.items()]
    made += [trial(f"our rules, {name}", UNEVEN, OURS, window) for name, window in WINDOWS.items()]
    grace = WINDOWS["K = 1, grace"]
    made += [
        trial("latest, overwrite, K = 1, grace", UNEVEN, OURS, ("adoption.mode=overwrite",), grace),
        trial("fresh, carry, K = 1, grace", UNEVEN, PAPER, ("adoption.mode=carry",), grace),
    ]
    for times in (2, 5, 20):
        slow = half_slower(times)
        made += [
            trial(f"half {times}x slower, latest", slow),
            trial(f"half {times}x slower, fresh", slow, ("protocol.participation=fresh",)),
        ]
    made += [trial("half 5x slower, paper's rules", half_slower(5), PAPER)]
    return made


if __name__ == "__main__":
    conduct("heterogeneity", __doc__, trials)

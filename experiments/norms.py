"""How long are honest contributions, compared with recent ones: what does the bound on norms refuse, and what not?

Learners of ``llama-tiny`` at very different speeds, some cut off for a while: contributions of 1 to 130 steps, while
the learning rate warms up, stays and falls to nothing. Each is compared with the bound it would be held to, which is
off, and so is what an attacker would make of it.

    python experiments/norms.py                   # 4 min on one core
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from trial import STEP_NS, _backend

from unlockstep import tape as tapes
from unlockstep.config import RunConfig, apply
from unlockstep.core.events import ContributionAccepted
from unlockstep.core.outer_gradient import RecentNorms
from unlockstep.sim.world import World

FACTOR = 10.0

Cut = tuple[int, int, int]
"""(step, steps it lasts, number of the learner)."""


class Site(msgspec.Struct, frozen=True):
    """A run whose contributions are measured."""

    name: str
    settings: tuple[str, ...]
    slowdown: tuple[int, ...]
    cuts: tuple[Cut, ...] = ()


SITES = (
    Site("a round every step", ("run.steps=512",), (1, 1, 4, 16), ((100, 64, 0), (300, 16, 2))),
    Site(
        "a round every four steps",
        ("protocol.interval_steps=16", "run.steps=512"),
        (1, 1, 4, 16),
        ((100, 64, 0), (250, 64, 1)),
    ),
    Site(
        "long away, rate falls to zero",
        ("protocol.staleness_max=1000", "inner.final_share=0.0", "run.steps=384", "run.seed=1"),
        (1, 1, 1),
        ((60, 64, 0), (200, 128, 0)),
    ),
    Site("slow warm-up", ("inner.warmup_steps=100", "run.steps=256", "run.seed=2"), (1, 1, 2)),
)

ATTACKS: dict[str, Callable[[float], float]] = {
    "as it is": lambda norm: norm,
    "sign turned over, or noise of the same norm": lambda norm: norm,
    "one element of 5 times the norm": lambda norm: math.hypot(norm, 5 * norm),
    "10 times as long": lambda norm: 10 * norm,
    "30 times as long": lambda norm: 30 * norm,
    "100 times as long": lambda norm: 100 * norm,
    "one element of 1000 times the norm": lambda norm: math.hypot(norm, 1000 * norm),
}


class Row(msgspec.Struct, frozen=True):
    """What becomes of the contributions of one run."""

    site: str
    contributions: int
    steps_max: int
    bound_without_steps: float
    """Longest one over the median norm of recent ones, however many steps these had."""
    bound: float
    """Longest one over what is expected of its steps: ``factor`` must be above this."""
    caught: dict[str, float]
    """Attack -> share of contributions that would be refused, if it were made of them."""


def contributions(site: Site) -> list[ContributionAccepted]:
    """What learners hand over, in order."""
    slowdown = list(site.slowdown)
    wide = ("limits.outlier_factor=0", "protocol.lease_s=3000", f"local.learners={len(slowdown)}")
    config = apply(RunConfig(), [*wide, f"local.slowdown={slowdown}", *site.settings])
    ring = World(config)
    for number, factor in enumerate(slowdown):
        ring.join(f"learner{number}", _backend(config, number, len(slowdown)), STEP_NS * factor)
    for at, lasts, number in site.cuts:
        for action, step in ((tapes.Cut, at), (tapes.Heal, at + lasts)):
            broken = action(at_ns=0, target=f"learner{number}")
            ring.clock.at(step * STEP_NS, lambda broken=broken: ring.apply(broken, _nobody))  # type: ignore[misc]
    ring.run()
    return [event for event in ring.events if isinstance(event, ContributionAccepted)]


def _nobody(name: str) -> tuple[None, int]:
    raise AssertionError(f"{name} is not started again")


def judged(site: Site, made: Sequence[ContributionAccepted]) -> Row:
    """Each contribution against the bound that those before it give."""
    fragments = max(one.fragment for one in made) + 1
    bounds, plain = RecentNorms(fragments, factor=1.0), RecentNorms(fragments, factor=1.0)
    ratios, plain_ratios, caught = [], [], dict.fromkeys(ATTACKS, 0)
    for one in made:
        bound = bounds.bound(one.fragment, one.c_steps)
        if bound < math.inf:
            ratios.append(one.norm / bound)
            plain_ratios.append(one.norm / plain.bound(one.fragment, 1))
            for name, attack in ATTACKS.items():
                caught[name] += attack(one.norm) > FACTOR * bound
        bounds.add(one.fragment, one.norm, one.c_steps)
        plain.add(one.fragment, one.norm, 1)
    return Row(
        site=site.name,
        contributions=len(made),
        steps_max=max(one.c_steps for one in made),
        bound_without_steps=round(max(plain_ratios), 2),
        bound=round(max(ratios), 2),
        caught={name: round(count / len(ratios), 3) for name, count in caught.items()},
    )


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.set_num_threads(1)
    rows = [judged(site, contributions(site)) for site in SITES]
    for row in rows:
        print(
            f"{row.site:32} {row.contributions:5} contributions of up to {row.steps_max:3} steps: longest "
            f"{row.bound:5.2f} times what is expected of it ({row.bound_without_steps:5.2f} if steps did not count)"
        )
        for name, share in row.caught.items():
            print(f"    {name:45} {100 * share:5.1f} % refused")
    encoded = msgspec.json.format(msgspec.json.encode(rows))
    (Path(__file__).parent / "results" / "norms.json").write_bytes(encoded + b"\n")


if __name__ == "__main__":
    main()

"""The figures in the decision records: small rings under virtual time, so they are the same on every machine.

Three learners take a step in about 100 ms, the fourth is twenty times slower; P = 4, H = 8, 480 steps, all else as
by default but for what a row names (``speeds`` says its own). Decides what is measured; ``generate`` writes the tables.
Takes some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from unlockstep import config, loop
from unlockstep.core.events import ContributionAccepted, Event, FragmentCommitted, RunFinishing, StepReported
from unlockstep.core.learner import LearnerCore
from unlockstep.learners.toy import ToyBackend
from unlockstep.sim.weightless import WeightlessBackend, WeightlessFreight
from unlockstep.sim.world import World

FRAGMENTS, SLOWER, STEPS = 4, 20, 480
MILLISECOND_NS = 1_000_000
SETTINGS = (
    f"protocol.fragments={FRAGMENTS}",
    "protocol.interval_steps=8",
    f"run.steps={STEPS}",
    "inner.schedule=constant",
)
SLOW = "d"


def play(settings: Sequence[str] = ()) -> list[Event]:
    """The run log of one such run."""
    world = World(config.apply(config.RunConfig(), [*SETTINGS, *settings]))
    for place, name in enumerate("abcd"):
        # A millisecond apart, because learners that are exactly equally fast always arrive together.
        step_ns = (100 * (SLOWER if name == SLOW else 1) + place) * MILLISECOND_NS
        world.join(name, ToyBackend(seed=place, tokens_per_step=100, noise=0.1), step_ns)
    world.run()
    return world.events


@contextmanager
def adopting_at_once() -> Iterator[None]:
    """Learners that adopt whatever has arrived, though it overwrites what they never handed over."""

    def hasty(*arguments: Any, **options: Any) -> LearnerCore:
        return LearnerCore(*arguments, **{**options, "waits_for_pull": False})

    assert loop.LearnerCore is LearnerCore, "loops are made elsewhere now: this would replace nothing"
    setattr(loop, "LearnerCore", hasty)  # noqa: B010  a name in another module, on purpose
    try:
        yield
    finally:
        setattr(loop, "LearnerCore", LearnerCore)  # noqa: B010


def share_contributed(events: Sequence[Event], learner: str, late: bool | None = None) -> float:
    """Of the tokens a learner has trained, times P, the share in its accepted contributions."""
    trained = max(e.tokens for e in events if isinstance(e, StepReported) and e.learner == learner)
    given = [e for e in events if isinstance(e, ContributionAccepted) and e.learner == learner]
    return sum(e.c_tokens for e in given if late in (None, e.late)) / (trained * FRAGMENTS)


def slow_learner() -> list[tuple[str, ...]]:
    """How much of a slow learner's work counts, by how it adopts."""
    rows: list[tuple[str, ...]] = []
    for label, settings, hasty in (
        ("`overwrite`, hands over before it adopts (as it is)", ("adoption.mode=overwrite",), False),
        ("`overwrite`, adopts at once", ("adoption.mode=overwrite",), True),
        ("`carry`", ("adoption.mode=carry",), False),
        ("`overwrite`, participation `fresh`", ("adoption.mode=overwrite", "protocol.participation=fresh"), False),
    ):
        if hasty:
            with adopting_at_once():
                events = play(settings)
        else:
            events = play(settings)
        given = sum(isinstance(e, ContributionAccepted) and e.learner == SLOW for e in events)
        steps = sum(isinstance(e, StepReported) and e.learner == SLOW and e.steps > 0 for e in events)
        rows.append((label, str(steps), str(given), f"{share_contributed(events, SLOW):.0%}"))
    return rows


def late() -> list[tuple[str, ...]]:
    """How much of a slow learner's work counts, by what becomes of late contributions."""
    rows: list[tuple[str, ...]] = []
    for label in ("next", "drop"):
        events = play((f"protocol.late={label}", "adoption.mode=overwrite"))
        in_time, behind = (share_contributed(events, SLOW, late=late) for late in (False, True))
        rows.append((f"`{label}`", f"{in_time:.0%}", f"{behind:.0%}"))
    return rows


def drained() -> str:
    """Share of all work that the last rounds of a run merge, as a sentence."""
    events = play()
    end = next(place for place, event in enumerate(events) if isinstance(event, RunFinishing))
    merged = [sum(e.tokens for e in part if isinstance(e, FragmentCommitted)) for part in (events, events[end:])]
    rounds = sum(isinstance(e, FragmentCommitted) for e in events[end:])
    return (
        f"In a run of {STEPS} steps, {rounds} rounds commit after the end is reached and bring "
        f"{merged[1] / merged[0]:.1%} of all that is merged: {merged[1] / merged[0] * STEPS:.1f} steps' worth."
    )


RATIOS = (2, 5, 8, 20)


def speeds() -> list[tuple[str, ...]]:
    """P, H and how much slower one of three learners is; then, for both rules of who is asked and two of adopting, the
    share of rounds it takes part in and how many fragments it never gives to."""
    return [
        (f"{count}", f"{count}", f"{ratio:g}", *(_slow_one(count, ratio, *rule) for rule in RULES))
        for count in (4, 24)
        for ratio in RATIOS
    ]


RULES = tuple((asked, mode) for asked in ("latest", "fresh") for mode in ("overwrite", "carry"))


def _slow_one(count: int, ratio: float, asked: str, mode: str) -> str:
    shape = f"protocol.fragments={count}", f"protocol.interval_steps={count}", f"run.steps={10**6}"
    settings = config.apply(
        config.RunConfig(), [*shape, f"protocol.participation={asked}", f"adoption.mode={mode}", "protocol.lease_s=60"]
    )
    world = World(settings, freight=WeightlessFreight())
    for name, slower in (("a", 1.0), ("b", 1.0), (SLOW, ratio)):
        world.join(name, WeightlessBackend(count), round(100 * slower) * MILLISECOND_NS)
    world.run(100 * MILLISECOND_NS * round(max(40 * ratio, 10 * count)))
    commits = [event for event in world.events if isinstance(event, FragmentCommitted)]
    given = {event.fragment for event in commits if SLOW in event.weights}
    share = sum(SLOW in event.weights for event in commits) / len(commits)
    return f"{share:.0%} ({count - len(given)})"

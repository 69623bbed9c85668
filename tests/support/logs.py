"""Run logs made by hand: one that keeps every rule, told event by event, and one as long as wanted.

Decides a run of two learners, two fragments and a round every two steps of 100 ms, each step of ten tokens; times are
in milliseconds. Tests of the rules change it where they want it wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from support.core_builders import MS, options
from unlockstep.core.events import (
    ContributionAccepted,
    Event,
    FragmentAdopted,
    FragmentCommitted,
    LearnerJoined,
    LearnerLive,
    RoundClosed,
    RoundOpened,
    RunFinished,
    RunFinishing,
    RunSeeded,
    StepReported,
    TokensOverwritten,
)
from unlockstep.core.reasons import WindowReason
from unlockstep.core.status import LedgerStatus

OPTIONS = options(lease_s=0.5)
"""P = 2, H = 4, one round in flight, K = 1."""


def joined(at: int, learner: str, incarnation: int = 1, resumed: bool = False) -> LearnerJoined:
    return LearnerJoined(at * MS, learner, incarnation, resumed)


def live(at: int, learner: str) -> LearnerLive:
    return LearnerLive(at * MS, learner, 1)


def step(at: int, learner: str, steps: int) -> StepReported:
    return StepReported(at * MS, learner, 1, clock=steps, steps=steps, tokens=10 * steps, step_ns=100 * MS, loss=1.0)


def opened(at: int, round: int, clock: int, asked: tuple[str, ...] = ("a", "b")) -> RoundOpened:
    return RoundOpened(at * MS, round, round % 2, clock, live=2, asked=asked)


def accepted(
    at: int, round: int, learner: str, steps: int, until: int, base: int = 0, behind: int = 0, late: bool = False
) -> ContributionAccepted:
    """So many steps, the last of them its process's ``until``-th."""
    return ContributionAccepted(
        at * MS, round, round % 2, learner, 1, base, behind, steps, 10 * steps, 10 * until, norm=1.0, late=late
    )


def closed(
    at: int, round: int, names: tuple[str, ...], after: int, quorum: int, grace: int, reason: WindowReason
) -> RoundClosed:
    return RoundClosed(at * MS, round, round % 2, reason, "closes", names, 2, after * MS, quorum * MS, grace * MS)


def committed(at: int, round: int, weights: dict[str, float], tokens: int) -> FragmentCommitted:
    fragment, version = round % 2, round // 2 + 1
    digest = f"{fragment}-{version}"
    return FragmentCommitted(at * MS, round, fragment, version, digest, 1.0, weights, tokens, commit_ns=10 * MS)


def adopted(at: int, learner: str, fragment: int = 0, version: int = 1) -> FragmentAdopted:
    return FragmentAdopted(at * MS, learner, 1, fragment, version, f"{fragment}-{version}")


LEDGER = LedgerStatus(100.0, 70.0, 20.0, {}, overwritten=10.0, dropped=0.0, lost=0.0, in_flight=0.0)

GOOD: tuple[Event, ...] = (
    joined(0, "a"),
    joined(0, "b"),
    RunSeeded(1 * MS, "a"),
    live(100, "a"),
    step(100, "a", 1),
    live(100, "b"),
    step(100, "b", 1),
    # Round 0: everybody is in before the grace window ends.
    step(200, "a", 2),
    opened(200, 0, clock=2, asked=("a",)),
    step(200, "b", 2),
    accepted(210, 0, "a", 2, 2),
    accepted(220, 0, "b", 2, 2),
    closed(220, 0, ("a", "b"), after=20, quorum=10, grace=50, reason=WindowReason.EVERYONE_IN),
    committed(230, 0, {"a": 0.5, "b": 0.5}, 40),
    TokensOverwritten(300 * MS, "a", 1, 0, 10),
    adopted(300, "a"),
    step(300, "a", 3),
    TokensOverwritten(300 * MS, "b", 1, 0, 10),
    adopted(300, "b"),
    step(300, "b", 3),
    # Round 1: b comes late, and counts in round 3.
    step(400, "a", 4),
    opened(400, 1, clock=4, asked=("a",)),
    step(400, "b", 4),
    accepted(410, 1, "a", 4, 4),
    closed(460, 1, ("a",), after=60, quorum=10, grace=50, reason=WindowReason.GRACE_ENDED),
    committed(470, 1, {"a": 1.0}, 40),
    accepted(480, 1, "b", 4, 4, base=0, behind=1, late=True),
    # The end: one last round of every fragment.
    RunFinishing(490 * MS, 4, "enough"),
    step(500, "a", 5),
    step(500, "b", 5),
    opened(500, 2, clock=5),
    accepted(510, 2, "a", 2, 5, base=1),
    accepted(510, 2, "b", 2, 5, base=1),
    closed(510, 2, ("a", "b"), after=10, quorum=10, grace=50, reason=WindowReason.EVERYONE_IN),
    committed(520, 2, {"a": 0.5, "b": 0.5}, 40),
    opened(520, 3, clock=5),
    accepted(530, 3, "a", 1, 5, base=0, behind=1),
    accepted(530, 3, "b", 1, 5, base=0, behind=1),
    closed(530, 3, ("a", "b"), after=10, quorum=10, grace=50, reason=WindowReason.EVERYONE_IN),
    committed(540, 3, {"a": 1 / 6, "b": 5 / 6}, 60),
    RunFinished(540 * MS, 5, (2, 2), 0, LEDGER),
)
"""A whole run of five steps."""


def event(kind: type[Event], **fields: Any) -> Event:
    """The first event of the good log of this kind with these fields."""
    return next(
        each
        for each in GOOD
        if isinstance(each, kind) and all(getattr(each, name) == value for name, value in fields.items())
    )


def changed(found: Event, **fields: Any) -> list[Event]:
    """The good log with this event changed."""
    return [msgspec.structs.replace(each, **fields) if each is found else each for each in GOOD]


def without(found: Event) -> list[Event]:
    """The good log without this event."""
    return [each for each in GOOD if each is not found]


def with_after(found: Event, *more: Event) -> list[Event]:
    """The good log with these events after one of its own."""
    at = GOOD.index(found) + 1
    return [*GOOD[:at], *more, *GOOD[at:]]


def until(ms: int) -> list[Event]:
    """The good log, cut short: what had happened until then."""
    return [each for each in GOOD if each.at_ns <= ms * MS]


def long_log(steps: int, gives: Callable[[int], Collection[str]], names: Collection[str] = ("a", "b")) -> list[Event]:
    """A run that goes on: everybody steps every 100 ms, and a round opens every second step as long as the one before
    is over.

    Args:
        gives: who contributes to a round; if it is nobody, the round stays open.
    """
    events: list[Event] = [*(joined(0, name) for name in names), RunSeeded(MS, "a")]
    given = {(name, fragment): 0 for name in names for fragment in range(2)}
    round, waits = 0, False
    for number in range(1, steps + 1):
        at = 100 * number
        for name in names:
            events += [live(at, name)] * (number == 1) + [step(at, name, number)]
        if number % 2 or waits:
            continue
        events.append(opened(at, round, number, tuple(names)))
        givers = tuple(sorted(gives(round)))
        weights, tokens = {}, 0
        for name in givers:
            count = number - given[name, round % 2]
            given[name, round % 2] = number
            events.append(accepted(at + 10, round, name, count, number, base=round // 2))
            weights[name], tokens = float(count), tokens + 10 * count
        if givers:
            events.append(closed(at + 10, round, givers, 10, 10, 0, WindowReason.NO_GRACE))
            shares = {name: weight / sum(weights.values()) for name, weight in weights.items()}
            events.append(committed(at + 20, round, shares, tokens))
            round += 1
        else:
            waits = True
    return events

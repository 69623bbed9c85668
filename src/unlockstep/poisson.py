"""Event tapes drawn from a seed: every trouble comes to every target at random, at a rate of its own.

Decides that a trouble comes to a target after a time that is exponentially distributed, with a mean of ``every_s``,
lasts for one with a mean of ``for_s``, and is then waited for anew; that every trouble of every target has a stream of
chance of its own, so that one more learner, or one more kind, moves none of the others; and that what cannot be done by
then (``tape.Standing``) is left out. Does not decide what a trouble does.

The time between the beginnings of two has the mean ``every_s + for_s``; where no other trouble is in the way there are
``duration / (every_s + for_s)`` of them in the long run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unlockstep import tape as tapes
from unlockstep.core.errors import UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.tape import SYNCER, Action, Standing, Tape

MILLISECOND_NS = 1_000_000
ACTIONS_MAX = 1_000_000

BEGINS_AND_ENDS: dict[str, tuple[type[Action], type[Action] | None]] = {
    "kill": (tapes.Kill, tapes.Restart),
    "stop": (tapes.Stop, tapes.Continue),
    "slow": (tapes.Slow, tapes.Slow),
    "cut": (tapes.Cut, tapes.Heal),
    "throttle": (tapes.Throttle, tapes.Throttle),
    "delay": (tapes.Delay, tapes.Delay),
    "corrupt": (tapes.Corrupt, None),
    "fill": (tapes.Fill, tapes.Free),
    "jump": (tapes.Jump, None),
}
"""Troubles by name: what begins them and what ends them. Those without an end last no time."""

_LIFTED: dict[type[Action], dict[str, Any]] = {
    tapes.Slow: {"factor": 1.0},
    tapes.Throttle: {"mbit_per_s": 0.0},
    tapes.Delay: {"seconds": 0.0},
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """How often something goes wrong.

    Args:
        every_s: mean time until it does, seconds.
        for_s: mean time until that is over, seconds.
        values: fields of the action that begins it.
    """

    every_s: float
    for_s: float = 0.0
    values: Mapping[str, Any] | None = None


def draw(
    name: str,
    learners: tuple[str, ...],
    duration_s: float,
    seed: int,
    troubles: Mapping[str, Trouble],
    syncer_troubles: Mapping[str, Trouble] | None = None,
) -> Tape:
    """The tape of a seed, to the millisecond. What still goes on at its end, ends there.

    Args:
        name: of the tape.
        learners: all of them are there at the start.
        duration_s: how long it lasts.
        seed: the same gives the same tape.
        troubles: of every learner, by name (``BEGINS_AND_ENDS``).
        syncer_troubles: of the syncer.

    Raises:
        UsageError: a time that is none, or so many actions that nobody could play them.
    """
    if not 0 < duration_s <= tapes.AT_NS_MAX / NANOSECONDS_PER_SECOND:
        raise UsageError(f"the duration is {duration_s} s; it must be above 0, and less than a century")
    of_targets = [(learner, troubles) for learner in learners] + [(SYNCER, syncer_troubles or {})]
    _check(of_targets, duration_s)
    end_ns = round(duration_s * NANOSECONDS_PER_SECOND)
    moments = [
        moment
        for target, each in of_targets
        for kind, trouble in each.items()
        for moment in _moments(random.Random(f"{seed}/{target}/{kind}"), target, kind, trouble, end_ns)
    ]
    return Tape(
        name=name,
        about=f"Drawn from seed {seed}: {_about(troubles, syncer_troubles or {})}.",
        learners=learners,
        actions=tuple(_possible(learners, moments)),
        end_ns=end_ns,
    )


def _check(of_targets: list[tuple[str, Mapping[str, Trouble]]], duration_s: float) -> None:
    expected = 0.0
    for _, troubles in of_targets:
        for kind, trouble in troubles.items():
            if not (trouble.every_s > 0 and trouble.for_s >= 0 and trouble.every_s + trouble.for_s < float("inf")):
                raise UsageError(
                    f"{kind} is to come every {trouble.every_s} s for {trouble.for_s} s; give a mean above 0, and a "
                    "duration of at least 0"
                )
            expected += 2 * duration_s / (trouble.every_s + trouble.for_s)
    if expected > ACTIONS_MAX:
        raise UsageError(
            f"the tape would have about {expected:.0f} actions, but {ACTIONS_MAX} is the most; make it shorter"
        )


_Moment = tuple[Action, Action | None]
"""What begins a trouble, and what ends it."""


def _moments(chance: random.Random, target: str, kind: str, trouble: Trouble, end_ns: int) -> Iterator[_Moment]:
    begins, ends = BEGINS_AND_ENDS[kind]
    at_ns = 0
    while True:
        at_ns += _drawn_ns(chance, trouble.every_s)
        if at_ns >= end_ns:
            return
        begin = begins(at_ns=at_ns, target=target, **(trouble.values or {}))
        end = None
        if ends is not None:
            at_ns = min(end_ns, at_ns + _drawn_ns(chance, trouble.for_s))
            end = ends(at_ns=at_ns, target=target, **_LIFTED.get(ends, {}))
        yield begin, end


def _drawn_ns(chance: random.Random, mean_s: float) -> int:
    """At least a millisecond, so that what begins has an end behind it."""
    if mean_s == 0:
        return MILLISECOND_NS
    drawn_ms = chance.expovariate(1 / mean_s) * 1000
    return max(1, round(drawn_ms)) * MILLISECOND_NS


def _possible(learners: tuple[str, ...], moments: list[_Moment]) -> Iterator[Action]:
    """In the order of time, what can be done by then; a trouble that could not begin does not end either."""
    standing = Standing(learners)
    numbered = [
        (action.at_ns, number, action)
        for number, moment in enumerate(moments)
        for action in moment
        if action is not None
    ]
    numbered.sort(key=lambda each: each[:2])
    begun: set[int] = set()
    for _, number, action in numbered:
        is_begin = moments[number][0] is action
        if (is_begin or number in begun) and type(action) in standing.possible(action.target):
            begun.add(number)
            standing.move(action)
            yield action


def _about(troubles: Mapping[str, Trouble], syncer_troubles: Mapping[str, Trouble]) -> str:
    parts = [f"{kind} every {each.every_s:g} s for {each.for_s:g} s" for kind, each in troubles.items()]
    parts += [
        f"{kind} the syncer every {each.every_s:g} s for {each.for_s:g} s" for kind, each in syncer_troubles.items()
    ]
    return ", ".join(parts) or "nothing goes wrong"

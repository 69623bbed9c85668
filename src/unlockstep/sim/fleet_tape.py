"""A simulated fleet as an event tape: a run of any size can live through what happens to millions of chips.

Decides how the stretches of a history become actions: a stall stops a learner, and while it trains on a part of its
chips its steps take longer in proportion. Does not decide what happens (``outages``) or how a tape is played.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from unlockstep.core.errors import ConfigError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.words import counted
from unlockstep.sim.fleet import Fleet
from unlockstep.sim.outages import Stretches, play
from unlockstep.tape import AT_NS_MAX, FACTOR_MAX, Action, Continue, Slow, Stop, Tape

DURATION_MIN_S, DURATION_MAX_S = 1 / NANOSECONDS_PER_SECOND, AT_NS_MAX // NANOSECONDS_PER_SECOND


def fleet_tape(fleet: Fleet, *, duration_s: float, seed: int) -> Tape:
    """One history of a fleet that has been running for long, as a tape for learners ``learner-0`` to ``learner-(M-1)``.

    A learner that trains on a share w of its chips, at the speed v of the slowest of them, has ``Slow`` with factor
    1 / (w v). Learners that have lost slices before the tape begins are slow from its first moment.

    Raises:
        ConfigError: the duration is out of range, or the fleet is not elastic: its learners go back to a checkpoint,
            which no tape can tell them to.
    """
    if not fleet.elastic:
        raise ConfigError("elastic is false, but a tape cannot send a learner back to a checkpoint; set it to true")
    if not DURATION_MIN_S <= duration_s <= DURATION_MAX_S:
        raise ConfigError(f"duration_s is {duration_s!r}; choose {DURATION_MIN_S} to {DURATION_MAX_S} seconds")
    history = play(fleet, horizon_s=duration_s, replicas=1, seed=seed)
    lanes = (_learner_actions(history, learner) for learner in range(fleet.learners))
    # Sorting is stable: what one learner does at one moment stays in order.
    actions = sorted(itertools.chain.from_iterable(lanes), key=lambda action: action.at_ns)
    return Tape(
        name=f"fleet-{fleet.chips}-{fleet.learners}-{seed}",
        about=(
            f"{counted(history.failures, 'failure')} of {counted(fleet.chips, 'chip')}, "
            f"{counted(fleet.learners, 'learner')}, seed {seed}"
        ),
        learners=tuple(f"learner-{learner}" for learner in range(fleet.learners)),
        actions=tuple(actions),
        end_ns=round(duration_s * NANOSECONDS_PER_SECOND),
    )


def _learner_actions(history: Stretches, learner: int) -> Iterator[Action]:
    """What happens to one learner, in order. It runs at its own speed when the tape begins."""
    target = f"learner-{learner}"
    horizon_ns = round(history.horizon_s * NANOSECONDS_PER_SECOND)
    mine = (history.lane == learner) & (history.rate * FACTOR_MAX >= 1)
    begin_ns, end_ns = (
        np.clip(np.round(times_s[mine] * NANOSECONDS_PER_SECOND), 0, horizon_ns).astype(np.int64).tolist()
        for times_s in (history.begin_s, history.end_s)
    )
    runs_until_ns, factor = 0, 1.0
    for begin, end, needed in zip(begin_ns, end_ns, (1 / history.rate[mine]).tolist(), strict=True):
        if begin == end:
            continue
        if runs_until_ns < begin:
            yield Stop(at_ns=runs_until_ns, target=target)
            yield Continue(at_ns=begin, target=target)
        if needed != factor:
            yield Slow(at_ns=begin, target=target, factor=needed)
        runs_until_ns, factor = end, needed
    if runs_until_ns < horizon_ns:
        yield Stop(at_ns=runs_until_ns, target=target)

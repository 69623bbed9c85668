"""The life of a run: in which state it is, and by which moves it gets to another.

Decides which moves there are. When one is made is decided in ``syncer``.
"""

from __future__ import annotations

from enum import Enum


class RunState(Enum):
    EMPTY = "empty"
    SEEDING = "seeding"
    RUNNING = "running"
    FINISHING = "finishing"
    DRAINING = "draining"
    FINISHED = "finished"


class RunMove(Enum):
    SEEDER_FOUND = "seeder_found"
    SEEDER_LOST = "seeder_lost"
    SEEDED = "seeded"
    FINISH = "finish"
    DRAIN = "drain"
    END = "end"


MOVES: dict[RunState, dict[RunMove, RunState]] = {
    RunState.EMPTY: {RunMove.SEEDER_FOUND: RunState.SEEDING, RunMove.END: RunState.FINISHED},
    RunState.SEEDING: {
        RunMove.SEEDER_LOST: RunState.EMPTY,
        RunMove.SEEDED: RunState.RUNNING,
        RunMove.END: RunState.FINISHED,
    },
    RunState.RUNNING: {RunMove.FINISH: RunState.FINISHING},
    RunState.FINISHING: {RunMove.DRAIN: RunState.DRAINING},
    RunState.DRAINING: {RunMove.END: RunState.FINISHED},
    RunState.FINISHED: {},
}


def how_ended(is_stopped: bool, clock: int, steps_max: int) -> str:
    """What everybody is told at the end.

    Args:
        is_stopped: somebody has asked for it.
        clock: the syncer's.
        steps_max: of the run; 0: it is not its steps that end it.
    """
    if not is_stopped:
        return "the run has finished"
    return (
        f"the run was stopped at {clock} of {steps_max} steps" if steps_max else f"the run was stopped at step {clock}"
    )

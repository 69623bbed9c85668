"""Who takes part in a run that plays an event tape: the same in virtual time and on real processes.

Decides how a tape and a configuration agree on the learners, and which share of the training text each has. Does not
decide what the actions do.
"""

from __future__ import annotations

import msgspec

from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError
from unlockstep.tape import Tape


def cast(config: RunConfig, tape: Tape, learners: int | None = None) -> RunConfig:
    """The configuration with as many learners as the tape begins with. They are called as the tape calls them.

    Args:
        config: of the run.
        tape: that is played.
        learners: how many somebody has asked for by name; None: nobody has.

    Raises:
        UsageError: another number than the tape's, or a tape that begins with nobody.
    """
    count = len(tape.learners)
    if count == 0:
        raise UsageError(f"tape {tape.name!r} begins without learners; name at least one in its `learners`")
    if learners not in (None, count):
        raise UsageError(
            f"--learners is {learners} but tape {tape.name!r} begins with {count}; leave it out, or change the tape"
        )
    return msgspec.structs.replace(config, local=msgspec.structs.replace(config.local, learners=count))


def shares(tape: Tape) -> dict[str, tuple[int, int]]:
    """(shard, shards) of everyone on the tape. Those who join later share with those who were there at the start, and
    with one another if nobody was."""
    count = len(tape.learners) or len(tape.cast)
    return {name: (number, count) for number, name in enumerate(tape.cast)}

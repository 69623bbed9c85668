"""What a learner knows at a step boundary, as a record: to be written down, and gone on from in another process.

Decides what is in it. Does not decide when it is taken, nor whether going on from it is right: it is where the old
process stopped for good (virtual time, a suspended job), and after a crash it is not, since the syncer has heard more.
"""

from __future__ import annotations

import msgspec

from unlockstep.core.course import CourseState
from unlockstep.core.deeds import Deed
from unlockstep.core.messages import Undelivered


class FragmentRecord(msgspec.Struct, frozen=True):
    """One fragment. What was announced, asked for or under way is not in it: a new connection says it again."""

    version: int
    """The version adopted."""
    c_steps: int
    """Steps not handed over yet."""
    c_tokens: int
    overwritten: int
    """Tokens that adoptions have discarded so far."""
    is_shared: bool
    """Progress made since the last adoption has been handed over at least once."""
    has_snapshot: bool
    """The host held a copy as of this boundary."""


class LearnerRecord(msgspec.Struct, frozen=True):
    """A learner that is training."""

    learner: str
    run_id: str
    incarnation: int
    life: int
    """Which start of the syncer has welcomed it last."""
    clock: int
    steps: int
    """Inner steps of the process."""
    tokens: int
    """Tokens trained by the process."""
    steps_before: int
    """Inner steps of earlier processes under this name."""
    next_round: int
    pulls_in_step: int
    undelivered: tuple[Undelivered, ...]
    """Contributions that could not be delivered, to be declared (again)."""
    fragments: tuple[FragmentRecord, ...]
    course: CourseState | None = None
    """What it holds of the corpus, if it takes data leases."""
    deeds: tuple[Deed, ...] = ()
    """Of what it has done, what the syncer may not have heard."""
    deeds_count: int = 0
    """All that it has done."""

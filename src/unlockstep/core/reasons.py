"""Every reason the protocol can give, by name: why a contribution was refused, why a learner left, why a round waits.

A reason is part of the product: it is logged, shown to the user, counted in the ledger and asserted in tests. This
file decides the vocabulary only; who gives which reason is decided where the decision falls (``rounds``,
``admission``, ``syncer``, ``window``, ``outer_gradient``, the host's ``storehouse``).
"""

from __future__ import annotations

from enum import Enum


class RefusalReason(Enum):
    """Why the tokens of a contribution do not count."""

    NON_FINITE = "non_finite"
    """A value is NaN or infinite."""
    WRONG_SIZE = "wrong_size"
    """The body does not hold exactly the tensors of the fragment."""
    MALFORMED = "malformed"
    """The body is not a readable tensor file."""
    DIGEST_MISMATCH = "digest_mismatch"
    """The body that arrived is not the body that was sent."""
    BAD_COUNTS = "bad_counts"
    """A count is negative, not a number, or beyond what a learner can have trained or was granted."""
    ABSURD_NORM = "absurd_norm"
    """The norm of the outer gradient is beyond the absolute bound or the robust bound over recent norms."""
    STALE_INCARNATION = "stale_incarnation"
    """Sent by a start of the learner that has been superseded or whose lease has ended. If it comes back, it hands this
    over once more."""
    LEFT = "left"
    """It came after its learner had left."""
    STALE_BASE = "stale_base"
    """The version the contribution starts from is unknown, or too old to be worth merging."""
    UNKNOWN_ROUND = "unknown_round"
    """No such round was ever opened, or it is beyond the memory of closed rounds."""
    DUPLICATE = "duplicate"
    """This very contribution has been entered before: merged, refused or declared undelivered."""
    LATE = "late"
    """It came after the round had closed and ``late = "drop"``."""
    QUARANTINED = "quarantined"
    """The learner has been refused too often."""
    ROLLED_BACK = "rolled_back"
    """It was made from parameters that the run has gone back behind."""
    RUN_FINISHED = "run_finished"
    """The run had ended."""


class JoinRefusal(Enum):
    """Why a process may not become a learner of this run."""

    PROTOCOL_VERSION = "protocol_version"
    BAD_NAME = "bad_name"
    LAYOUT_MISMATCH = "layout_mismatch"
    RUN_FINISHED = "run_finished"
    QUARANTINED = "quarantined"
    TOO_MANY_LEARNERS = "too_many_learners"
    SUPERSEDED = "superseded"
    UNKNOWN_PROCESS = "unknown_process"
    DATA_MISMATCH = "data_mismatch"


class DepartureReason(Enum):
    """Why a learner is no longer counted."""

    LEFT = "left"
    """It said goodbye."""
    LEASE_EXPIRED = "lease_expired"
    """Nothing was heard from it for a whole lease."""
    SUPERSEDED = "superseded"
    """A newer start of the same learner has joined."""
    QUARANTINED = "quarantined"
    """Its contributions were refused too often."""


class Recovered(Enum):
    """Where a learner that begins, or is back, has what it needs to train beside the parameters: its inner optimizer's
    state."""

    DONOR = "donor"
    """From another learner, with that one's parameters."""
    CHECKPOINT = "checkpoint"
    """From a file of its own; parameters from the syncer."""
    SYNCER = "syncer"
    """It has only the syncer's parameters, and begins anew."""
    KEPT = "kept"
    """It was never gone: its connection had broken, or its lease had ended."""


class WindowReason(Enum):
    """Why a round stays open, or why it closes."""

    WAITING_FOR_QUORUM = "waiting_for_quorum"
    WAITING_IN_GRACE = "waiting_in_grace"
    WAITING_FOR_THE_LAST = "waiting_for_the_last"
    EVERYONE_IN = "everyone_in"
    GRACE_ENDED = "grace_ended"
    NO_GRACE = "no_grace"
    NOBODY_LEFT = "nobody_left"


NOT_ENTERED = frozenset({RefusalReason.DUPLICATE, RefusalReason.BAD_COUNTS, RefusalReason.STALE_INCARNATION})
"""Refusals whose tokens are entered already, are a number that nobody should believe, or are with a process that hands
them over once more if it comes back."""

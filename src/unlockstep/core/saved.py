"""What of a run outlives the syncer's process: the protocol's state at one moment, as plain records.

Decides what is kept. Each part of the core makes its own record and takes it back (``saved``, ``restore``); the host
writes all of them together with the arrays they belong to, so that nothing is ever a mix of two moments.

Not kept, because it comes again by itself:

* Contributions that were handed over and are not merged. Their learners keep them until they are told what became of
  them, and hand them over again to the next life of the syncer. So rounds that were open, or merging, begin anew under
  their numbers, empty, and what they held counts as never entered.
* What learners say with every step (counters are cumulative), who is connected, and how long things take on average.
"""

from __future__ import annotations

import msgspec

from unlockstep.core.data_book import DataBookState
from unlockstep.core.messages import VersionNotice


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class SavedMember(_Saved, frozen=True):
    """``membership.Member``."""

    learner: str
    incarnation: int
    process_since: int
    state: str
    clock: int
    steps: int
    tokens: int
    steps_before: int
    tokens_before: int
    overwritten: tuple[int, ...]
    strikes: int
    last_round: int | None
    rounds_merged: int
    quarantines: int
    out_until_ns: int
    deeds: int = 0


class SavedAccount(_Saved, frozen=True):
    """``ledger.Account``."""

    learner: str
    trained: int
    merged: tuple[int, ...]
    merged_late: tuple[int, ...]
    refused: tuple[int, ...]
    overwritten: tuple[int, ...]
    dropped: tuple[int, ...]
    lost: tuple[int, ...]
    lost_last: tuple[int, ...]
    ended_last: tuple[int, ...]
    pending: tuple[int, ...]
    is_closed: bool


class SavedLedger(_Saved, frozen=True):
    """``ledger.Ledger``."""

    accounts: tuple[SavedAccount, ...]
    refused: dict[str, int]
    refusals: dict[str, int]


class SavedRound(_Saved, frozen=True):
    """A round that is remembered, and what has been entered for it."""

    round: int
    entered: tuple[tuple[str, int, int], ...]
    """Learner, first incarnation of its process, tokens at the hand-over."""


class OpenRound(_Saved, frozen=True):
    """A round that had opened and was not committed."""

    round: int
    fragment: int
    clock: int


class Unmerged(_Saved, frozen=True):
    """A contribution that had been accepted and was not merged."""

    learner: str
    process: int
    """First incarnation of its process."""
    round: int
    fragment: int
    c_tokens: int
    tokens: int


class SavedRounds(_Saved, frozen=True):
    """``rounds.Rounds``."""

    next_round: int
    due: int
    open: tuple[OpenRound, ...]
    unmerged: tuple[Unmerged, ...]
    remembered: tuple[SavedRound, ...]


class SavedEvaluation(_Saved, frozen=True):
    """``loss_watch.LossWatch``: a good evaluation."""

    loss: float
    versions: tuple[int, ...]
    """What was scored."""
    record: int
    """The store's newest record when it was reported."""
    record_versions: tuple[int, ...]


class SavedTally(_Saved, frozen=True):
    """``status_of.Tally``: totals that only the status shows."""

    rounds_committed: int
    rounds_empty: int
    participation_sum: float
    participation_count: int
    downtime_ns: int
    is_watching: bool
    rollbacks: int = 0


class SavedData(_Saved, frozen=True):
    """``leasing.Leasing``."""

    digest: str
    book: DataBookState


class SavedLife(_Saved, frozen=True):
    """``lives.Lives``: a start of the syncer, and the newest version of every fragment that it began with."""

    life: int
    versions: tuple[int, ...]


class SavedRun(_Saved, frozen=True, kw_only=True):
    """``syncer.SyncerCore``."""

    run_id: str
    life: int
    """Which start of the syncer this was, from 1."""
    at_ns: int
    """Time of the run."""
    state: str
    is_stopped: bool
    """Somebody has asked the run to end before its end: it may be taken up again."""
    clock: int
    notices: tuple[VersionNotice, ...]
    """The newest version of every fragment; empty before the run has parameters."""
    members: tuple[SavedMember, ...]
    ledger: SavedLedger
    rounds: SavedRounds
    tally: SavedTally
    data: SavedData | None = None
    """None: the corpus is not dealt out by leases, or nobody has brought it."""
    lives: tuple[SavedLife, ...] = ()
    evaluations: tuple[SavedEvaluation, ...] = ()
    """The records that are to be kept with this one go with them."""

"""What the syncer says of itself when asked: the record behind ``unlockstep status``, the live view and the page.

Decides the shape of the answer. It is filled in by ``syncer.SyncerCore.status`` and read by everything that shows a
running system; nothing here takes part in the protocol.
"""

from __future__ import annotations

import msgspec

from unlockstep.core.data_book import DataStatus
from unlockstep.core.reasons import WindowReason


class LearnerStatus(msgspec.Struct, frozen=True):
    learner: str
    incarnation: int
    state: str
    clock: int
    steps: int
    """Inner steps, over all incarnations."""
    tokens: int
    """Tokens trained, over all incarnations."""
    step_ns: int
    """Moving average of its step time."""
    tokens_per_step: float
    loss: float | None
    """Of its latest step; None: unknown, or not a number."""
    last_round: int | None
    """The last round it took part in."""
    rounds_merged: int
    strikes: int
    silent_ns: int
    """Since it was last heard from."""
    codec: str = ""
    """In which it is asked for its contributions."""
    upload_bytes_per_s: float | None = None
    """Of its link, as measured by its last uploads; None before there was one."""


class RoundStatus(msgspec.Struct, frozen=True):
    round: int
    fragment: int
    state: str
    contributions: tuple[str, ...]
    asked: tuple[str, ...]
    reason: WindowReason | None
    """Why it is open; None while it merges."""
    sentence: str
    """The same for people, and until when."""
    open_ns: int


class ClosedRoundStatus(msgspec.Struct, frozen=True):
    """The round that has closed last, and why."""

    round: int
    fragment: int
    participants: tuple[str, ...]
    sentence: str
    open_ns: int


class NextRoundStatus(msgspec.Struct, frozen=True):
    """The round that opens next, and the clock at which it is due."""

    round: int
    fragment: int
    due_clock: int


class LedgerStatus(msgspec.Struct, frozen=True):
    """Tokens by what became of them. A token trains all P fragments and each may fare differently, so the counts are
    means over the fragments; they add up to ``trained``."""

    trained: float
    merged: float
    merged_late: float
    refused: dict[str, float]
    overwritten: float
    dropped: float
    """Declared by learners that left in order, undelivered, or not merged when the run ended."""
    lost: float
    """With learners that died."""
    in_flight: float
    """Trained and in no other class: with a learner, on its way, or accepted and not yet merged."""


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing a model is asked at validation, beside the text: what it loses, and how often it is right."""

    name: str
    nats: float
    """Per answer."""
    accuracy: float
    """Share of answers to which it gives the highest probability."""


class EvaluationStatus(msgspec.Struct, frozen=True):
    at_ns: int
    clock: int
    loss: float | None
    """None: it was not a number."""
    nats_per_byte: float | None
    scores: tuple[Score, ...] = ()


class Status(msgspec.Struct, frozen=True):
    run: str
    state: str
    at_ns: int
    clock: int
    steps_max: int
    tokens_max: int
    learners: tuple[LearnerStatus, ...]
    rounds: tuple[RoundStatus, ...]
    round_closed: ClosedRoundStatus | None
    round_next: NextRoundStatus
    rounds_committed: int
    rounds_empty: int
    versions: tuple[int, ...]
    layout_digest: str | None
    """Of the run's model and how it is cut; None before a learner has brought it."""
    participation: float | None
    """Mean over closed rounds of participants over live learners."""
    downtime_ns: int
    """Time from the first step of the run to its finishing in which no learner was live."""
    ledger: LedgerStatus
    evaluations: tuple[EvaluationStatus, ...]
    """The newest ones, oldest first."""
    refusals: dict[str, int]
    data: DataStatus | None = None
    """How far the corpus is, where it is dealt out by leases and a learner has brought it."""
    rollbacks: int = 0
    """How often the run has gone back to an earlier state."""
    fragment_sizes: tuple[int, ...] = ()
    """Values in each fragment; empty before a learner has brought the model."""

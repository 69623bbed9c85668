"""What happened, as typed records: the run log is these, one JSON object a line, and nothing else.

Decides the vocabulary. Whether something happens is decided in ``syncer`` and the policies it asks; the reasons are in
``reasons``. Late, duplicate and stale things are events here, never exceptions.
"""

from __future__ import annotations

import msgspec

from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason, WindowReason
from unlockstep.core.status import LedgerStatus


class _Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    at_ns: int
    """When, on the syncer's clock of the host (monotonic, from the start of the syncer)."""


class RunSeeded(_Event, frozen=True):
    """Every fragment has its version 0."""

    learner: str


class LearnerJoined(_Event, frozen=True):
    learner: str
    incarnation: int
    resumed: bool
    """True: the same process came back after its connection broke or its lease ended."""


class JoinWasRefused(_Event, frozen=True):
    learner: str
    reason: JoinRefusal
    detail: str


class LearnerLive(_Event, frozen=True):
    """The learner has taken its first step since it joined: from here on rounds ask it and wait for it."""

    learner: str
    incarnation: int


class LearnerAway(_Event, frozen=True):
    """Its connection broke: rounds no longer wait for it, its lease runs on."""

    learner: str
    incarnation: int


class LearnerDeparted(_Event, frozen=True):
    learner: str
    incarnation: int
    reason: DepartureReason
    tokens_dropped: tuple[int, ...] = ()
    """By fragment, what it had not handed over, if it left in order."""


class StepReported(_Event, frozen=True):
    learner: str
    incarnation: int
    clock: int
    steps: int
    tokens: int
    step_ns: int
    loss: float


class MessageIgnored(_Event, frozen=True):
    """A message that has no effect, with the reason: stale incarnation, or unknown learner."""

    learner: str
    message: str
    reason: RefusalReason


class RoundOpened(_Event, frozen=True):
    round: int
    fragment: int
    clock: int
    live: int
    asked: tuple[str, ...]


class ContributionAccepted(_Event, frozen=True):
    round: int
    fragment: int
    learner: str
    incarnation: int
    base_version: int
    staleness: int
    c_steps: int
    c_tokens: int
    tokens: int
    """Tokens its process had trained when it handed over."""
    norm: float
    late: bool
    """True: its own round had closed, or had another one of this learner; it counts in the fragment's next one."""


class ContributionRefused(_Event, frozen=True):
    round: int
    fragment: int
    learner: str
    incarnation: int
    c_tokens: int
    tokens: int
    """Tokens its process had trained when it handed over."""
    reason: RefusalReason
    strikes: int


class ContributionUndelivered(_Event, frozen=True):
    """A contribution that its learner has handed over and could not deliver: its tokens are dropped."""

    round: int
    fragment: int
    learner: str
    incarnation: int
    c_tokens: int
    tokens: int
    """Tokens its process had trained when it handed over."""


class RoundClosed(_Event, frozen=True):
    round: int
    fragment: int
    reason: WindowReason
    sentence: str
    participants: tuple[str, ...]
    live: int
    open_ns: int
    quorum_ns: int
    """From opening to the K-th contribution."""
    grace_ns: int
    """Length of the grace window granted."""


class RoundEmpty(_Event, frozen=True):
    """A round closed without any weight: nothing is committed, the version stays."""

    round: int
    fragment: int


class FragmentCommitted(_Event, frozen=True):
    round: int
    fragment: int
    version: int
    digest: str
    norm: float
    weights: dict[str, float]
    tokens: int
    commit_ns: int
    """From the close of the round to the version being durable."""


class FragmentAdopted(_Event, frozen=True):
    learner: str
    incarnation: int
    fragment: int
    version: int
    digest: str


class TokensOverwritten(_Event, frozen=True):
    """Tokens trained, not handed over, and discarded by adopting a newer version."""

    learner: str
    incarnation: int
    fragment: int
    tokens: int


class EvaluationReported(_Event, frozen=True):
    source: str
    clock: int
    loss: float
    nats_per_byte: float
    versions: tuple[int, ...]


class RunFinishing(_Event, frozen=True):
    """The end is reached; one last round of every fragment collects what is left."""

    clock: int
    reason: str


class RunFinished(_Event, frozen=True):
    clock: int
    versions: tuple[int, ...]
    tokens_under_way: int
    """Summed over fragments: by how much the ledger and the learners' last reports differ; 0 unless the end cut off
    contributions under way. They are entered as dropped."""
    ledger: LedgerStatus | None = None
    """What became of all tokens."""


Event = (
    RunSeeded
    | LearnerJoined
    | JoinWasRefused
    | LearnerLive
    | LearnerAway
    | LearnerDeparted
    | StepReported
    | MessageIgnored
    | RoundOpened
    | ContributionAccepted
    | ContributionRefused
    | ContributionUndelivered
    | RoundClosed
    | RoundEmpty
    | FragmentCommitted
    | FragmentAdopted
    | TokensOverwritten
    | EvaluationReported
    | RunFinishing
    | RunFinished
)

"""What happened, as typed records: the run log is these, one JSON object a line, and nothing else.

Decides the vocabulary. Whether something happens is decided in ``syncer`` and the policies it asks; the reasons are in
``reasons``. Late, duplicate and stale things are events here, never exceptions.
"""

from __future__ import annotations

import msgspec

from unlockstep.core.data_book import DataStatus, Grant
from unlockstep.core.deeds import Deed, Source
from unlockstep.core.formats import Codec
from unlockstep.core.reasons import DepartureReason, JoinRefusal, Recovered, RefusalReason, WindowReason
from unlockstep.core.status import LedgerStatus, Score


class _Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    at_ns: int
    """When, on the syncer's clock of the host (monotonic, from the start of the syncer)."""


class SyncerResumed(_Event, frozen=True):
    """The syncer has died and another life of it goes on with the run, as of the events before this one. Nobody is
    connected; rounds that were in flight begin anew under their numbers, and what they held is with its learners."""

    life: int
    """Which life this is; the first began with the log."""
    clock: int
    versions: tuple[int, ...]
    """Newest version of every fragment; empty while the run has no parameters."""


class RunSeeded(_Event, frozen=True):
    """Every fragment has its version 0."""

    learner: str
    run_id: str = ""
    """Tells the run from any other of the same name; stochastic rounding draws from it, too."""


class LearnerJoined(_Event, frozen=True):
    learner: str
    incarnation: int
    resumed: bool
    """True: the same process came back after its connection broke or its lease ended."""
    position: int = 0
    """How far it has come along its course meanwhile."""
    samples: int = 0
    about: dict[str, str] = {}
    """What a new process says of itself: with what it trains, on which share of the data."""


class JoinWasRefused(_Event, frozen=True):
    learner: str
    reason: JoinRefusal
    detail: str


class LearnerLive(_Event, frozen=True):
    """The learner has taken its first step since it joined: from here on rounds ask it and wait for it."""

    learner: str
    incarnation: int
    recovered: Recovered | None = None
    """Where it has its inner optimizer's state from; None: it began the run."""


class StateHandedOver(_Event, frozen=True):
    """A new process has loaded the state of a learner that trains."""

    donor: str
    learner: str
    incarnation: int
    size_bytes: int


class StateNotHandedOver(_Event, frozen=True):
    """A new process has asked for the state of another learner, and did not get this one's, or anybody's."""

    donor: str
    """Empty: nobody could be asked (any more)."""
    learner: str
    incarnation: int
    reason: str


class LearnerAway(_Event, frozen=True):
    """Its connection broke: rounds no longer wait for it, its lease runs on."""

    learner: str
    incarnation: int


class LearnerLeaving(_Event, frozen=True):
    """The learner takes no more steps, and is asked for all that it has."""

    learner: str
    incarnation: int


class LearnerDeparted(_Event, frozen=True):
    learner: str
    incarnation: int
    reason: DepartureReason
    tokens_dropped: tuple[int, ...] = ()
    """By fragment, what it had not handed over, if it left in order."""
    pause_ns: int = 0
    """How long it stays out, if it is quarantined; 0: for good."""


class StepReported(_Event, frozen=True):
    learner: str
    incarnation: int
    clock: int
    steps: int
    tokens: int
    step_ns: int
    loss: float
    position: int = 0
    """How far the process is along its course."""
    samples: int = 0
    """Sequences it was granted and has trained."""


class DataOpened(_Event, frozen=True):
    """The corpus that is dealt out is known: the first learner has brought it."""

    sequences: int
    digest: str
    epochs: int
    """0: without end."""
    chunk_sequences: int
    stock_sequences: int


class DataGranted(_Event, frozen=True):
    """A process holds places of the corpus in addition, or, what it had lost with its lease, again."""

    learner: str
    incarnation: int
    grants: tuple[Grant, ...]


class DataReturned(_Event, frozen=True):
    """What a process held and had not reached is to be granted anew: it is gone, or what it made of it is lost."""

    learner: str
    process: int
    """Its first incarnation."""
    grants: tuple[Grant, ...]


class DataCollecting(_Event, frozen=True):
    """All data is granted and trained by those who are live, and what they still hold is collected round by round, at
    whatever step: ``is_on``. Or there is something to train again."""

    is_on: bool


class MessageIgnored(_Event, frozen=True):
    """A message that has no effect, with the reason: stale incarnation, or unknown learner."""

    learner: str
    message: str
    reason: RefusalReason


class UploadCodecChosen(_Event, frozen=True):
    """From here on a learner is asked for its contributions in another format."""

    learner: str
    incarnation: int
    codec: Codec
    bytes_per_s: float
    """Of its link, as measured."""
    reason: str


class BytesMoved(_Event, frozen=True):
    """Bytes of bodies (contributions, versions, states) that have come from a learner, or gone to it, since the last
    such event of it, as its syncer has counted them on the wire."""

    learner: str
    incarnation: int
    up_bytes: int
    down_bytes: int


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
    position: int = 0
    """How far its process was along its course when it handed over: up to there its data is reached, once this is
    merged."""
    samples: int = 0
    steps: int = 0
    """Inner steps of its process when it handed over."""
    deed: int = 0
    """Number of the hand-over among the deeds of its process."""
    codec: Codec = Codec.BFLOAT16
    """In which it has travelled."""


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


class Merged(msgspec.Struct, frozen=True, array_like=True):
    """A contribution that a commit is made of: its process (the first incarnation), the round it was made for, and the
    tokens its process had trained when it handed over."""

    learner: str
    process: int
    round: int
    tokens: int


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
    merged: tuple[Merged, ...] = ()
    """In ascending learner; those of one learner in the order in which they are added up."""


class FragmentAdopted(_Event, frozen=True):
    learner: str
    incarnation: int
    fragment: int
    version: int
    digest: str
    source: Source = Source.ADOPTED
    clock: int = 0
    """Of its process, since."""
    steps: int = 0
    """Inner steps its process had taken."""
    deed: int = 0
    """Number among the deeds of its process."""


class LearnerDid(_Event, frozen=True):
    """What else a process has done with its arrays."""

    learner: str
    incarnation: int
    deed: Deed


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
    scores: tuple[Score, ...] = ()
    """What was scored beside the text."""


class LossSpiked(_Event, frozen=True):
    """The validation loss has leapt: until the run has gone back to a record, no round opens or closes."""

    loss: float
    level: float
    """Median of recent ones."""
    record: int
    """Which one it goes back to; 0: there is none, and the run goes on as it is."""


class RolledBack(_Event, frozen=True):
    """The run has gone back: what a record held is the newest version of every fragment. What was made from versions
    before these is void; rounds that were in flight begin anew under their numbers."""

    record: int
    versions: tuple[int, ...]
    digests: tuple[str, ...]
    loss: float
    level: float
    of: tuple[int, ...] = ()
    """What these versions are once more."""


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
    data: DataStatus | None = None
    """What became of the corpus, if it was dealt out by leases."""


Event = (
    SyncerResumed
    | RunSeeded
    | LearnerJoined
    | JoinWasRefused
    | LearnerLive
    | StateHandedOver
    | StateNotHandedOver
    | LearnerAway
    | LearnerLeaving
    | LearnerDeparted
    | StepReported
    | DataOpened
    | DataGranted
    | DataReturned
    | DataCollecting
    | MessageIgnored
    | UploadCodecChosen
    | BytesMoved
    | RoundOpened
    | ContributionAccepted
    | ContributionRefused
    | ContributionUndelivered
    | RoundClosed
    | RoundEmpty
    | FragmentCommitted
    | FragmentAdopted
    | LearnerDid
    | TokensOverwritten
    | EvaluationReported
    | LossSpiked
    | RolledBack
    | RunFinishing
    | RunFinished
)

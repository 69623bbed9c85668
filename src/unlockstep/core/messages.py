"""What is said: between learners and the syncer, and by a host to the core it carries.

Decides the vocabulary and its encoding (msgpack, tagged by type). Does not decide when anything is said (``learner``,
``syncer``) nor how it travels (``net``). Tensors never travel in messages: they are fetched and uploaded as bodies of
their own, and the core knows them by number (``payload``).

Three families:

* ``LearnerMessage``, learner to syncer. Each names its sender and the sender's *incarnation*, so that a message of an
  earlier start of the same learner can be told apart.
* ``SyncerMessage``, syncer to learner.
* host messages: what the process around a core reports to it (a step is done, a body has arrived). They never travel.
"""

from __future__ import annotations

from typing import Any

import msgspec

from unlockstep.core.data_book import Grant
from unlockstep.core.deeds import Deed, Moment
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.layout import TensorSpec
from unlockstep.core.reasons import DepartureReason, JoinRefusal, Recovered, RefusalReason
from unlockstep.core.status import Score

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
"""Largest control message: the tensor list of a model with about 50 000 tensors."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, tag_field="type"):
    pass


class VersionNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One committed version of one fragment, as the syncer announces it."""

    fragment: int
    version: int
    digest: str
    """SHA-256 of the body, hexadecimal."""
    void_below: int = 0
    """Versions before this one are void, with all that was made from them: the run has gone back behind them. Who has
    adopted one of them loads every fragment anew."""


# ------------------------------------------------------------------------------------------- learner to syncer


class HandedOver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A contribution of whose fate its learner has not heard: known by the tokens its process had trained."""

    round: int
    fragment: int
    tokens: int


class Join(_Message, frozen=True):
    """A process asks to take part. ``incarnation`` 0: a new start; otherwise: the connection broke, same process."""

    learner: str
    incarnation: int
    protocol_version: int
    layout_digest: str
    tensors: tuple[TensorSpec, ...]
    run_id: str = ""
    """Which run it has been a member of; empty for a new start. Names are used again, by runs and by learners."""
    unsettled: tuple[HandedOver, ...] = ()
    """What this process has handed over and keeps until it hears what became of it."""
    sequences: int = 0
    """Of its corpus, if it takes data leases; 0: it has data of its own, and is granted none."""
    data_digest: str = ""
    """Of its corpus."""
    position: int = 0
    """How far it has come along its course (``data_book``), as of its last step."""
    samples: int = 0
    """Sequences it was granted and has trained, as of its last step."""
    life: int = 0
    """Which start of the syncer has welcomed it last; 0: none."""
    about: dict[str, str] = {}
    """What else the run log should know of the process: with what it trains, on which share of the data."""


class Heartbeat(_Message, frozen=True):
    """Still here, between steps or during a long one."""

    learner: str
    incarnation: int


class Undelivered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A contribution that the learner handed over and that could not be delivered: its tokens are dropped."""

    round: int
    fragment: int
    c_tokens: int
    tokens: int
    """Tokens the process had trained when it handed over: tells the contribution from others for the round."""


class Progress(_Message, frozen=True):
    """One step boundary (paper, Alg. 1: metadata goes out every step). Counts and adoptions travel together, so that
    the ledger never sees one without the other."""

    learner: str
    incarnation: int
    clock: int
    steps: int
    """Inner steps of this process; 0: the parameters are loaded, the first step begins."""
    tokens: int
    """Tokens trained by this process."""
    step_ns: int
    """From the end of the previous step to the end of this one."""
    loss: float
    c_steps: tuple[int, ...]
    """Per fragment: steps that it holds and that were not handed over."""
    c_tokens: tuple[int, ...]
    overwritten: tuple[int, ...]
    """Per fragment: tokens that adoptions have discarded so far in this process. Like all counts in messages it is
    cumulative: a message that is lost with a connection loses no tokens."""
    deeds: tuple[Deed, ...] = ()
    """What the process has done with its arrays since it said so last; with the numbers that it gave them."""
    undelivered: tuple[Undelivered, ...] = ()
    last: bool = False
    """True: the run is finishing and this learner takes no more steps."""
    position: int = 0
    samples: int = 0
    unsettled: int = 0
    """Contributions it has handed over and not heard of."""
    recovered: Recovered | None = None
    """Where its process has its inner optimizer's state from; None: it is the one that gave the run its parameters, or
    it has not begun."""


class Leaving(_Message, frozen=True):
    """A learner is about to go and takes no more steps: what of what it has does the run want?"""

    learner: str
    incarnation: int


class Leave(_Message, frozen=True):
    """A learner goes, in order. What it had not handed over is declared dropped."""

    learner: str
    incarnation: int
    tokens_dropped: tuple[int, ...]


class StateWanted(_Message, frozen=True):
    """A new process asks for the state of a learner that trains: parameters and inner optimizer."""

    learner: str
    incarnation: int
    failed: int = 0
    """The ticket under which it has been promised one that it could not fetch; 0: it asks for the first time."""


class StateDeclined(_Message, frozen=True):
    """A learner that was asked for its state cannot give it."""

    learner: str
    incarnation: int
    ticket: int


class Evaluation(_Message, frozen=True):
    """An evaluator's validation loss of the global model."""

    source: str
    clock: int
    loss: float
    """Nats per token."""
    nats_per_byte: float
    versions: tuple[int, ...]
    scores: tuple[Score, ...] = ()
    """What it has scored beside the text: the labels of images, say."""


LearnerMessage = Join | Heartbeat | Progress | Leaving | Leave | StateWanted | StateDeclined | Evaluation

# ------------------------------------------------------------------------------------------- syncer to learner


class Welcome(_Message, frozen=True):
    """The learner is a member. It takes no step before it holds every version listed."""

    incarnation: int
    clock: int
    lease_ns: int
    versions: tuple[VersionNotice, ...]
    """The newest version of every fragment; empty while the run has no parameters yet."""
    seed: bool
    """True: the run has no parameters and this learner's are taken as version 0."""
    steps_before: int
    """Inner steps earlier processes of this learner have reported: where its data goes on."""
    run_id: str
    """Tells this run from any other of the same name."""
    life: int = 1
    """Which start of the syncer this is, from 1."""
    wanted: tuple[HandedOver, ...] = ()
    """Of what the learner keeps: what is not here, and to be handed over again unless it is on its way."""
    versions_kept: tuple[int, ...] = ()
    """Per fragment, the newest version with which every life began since the one that the learner knows (``Join``);
    empty if it knows this one, or one began without parameters. What it has adopted beyond that is lost."""
    grants: tuple[Grant, ...] = ()
    """All that the process holds of the corpus: what else it knows of was taken from it."""
    exhausted: bool = False
    """There is nothing more to be granted at present."""
    deeds: int = 0
    """Number of the process's last deed that is known here: it says all later ones (again)."""


class JoinRefused(_Message, frozen=True):
    reason: JoinRefusal
    detail: str
    retry_ns: int = 0
    """Above 0: after this time a new start may ask again, with nothing of what this one has."""


class Pull(_Message, frozen=True):
    """Hand over the progress on this fragment, for this round."""

    round: int
    fragment: int
    codec: Codec = Codec.BFLOAT16
    """In this format."""


class Farewell(_Message, frozen=True):
    """The answer to ``Leaving``: hand over all of this, then go. Where a round has closed it counts in the next one."""

    pulls: tuple[Pull, ...]


class Published(_Message, frozen=True):
    """A new version can be fetched."""

    notice: VersionNotice
    clock: int


class GoneBack(_Message, frozen=True):
    """The run has gone back to an earlier state: of every fragment a new version can be fetched, and all before it are
    void. One message, so that nobody takes new versions of some fragments with void ones of others."""

    notices: tuple[VersionNotice, ...]
    clock: int


class StateAsked(_Message, frozen=True):
    """Copy your state at your next step boundary, and upload it under this ticket: another learner needs it."""

    ticket: int


class StateComing(_Message, frozen=True):
    """To who waits for a state: it is being seen to. Syncer host (``within_ns`` is 0): a piece of it has passed."""

    ticket: int
    within_ns: int = 0
    """Until the next sign, at most."""


class StateReady(_Message, frozen=True):
    """A state can be fetched."""

    ticket: int
    digest: str
    """SHA-256 of the body, hexadecimal."""
    size_bytes: int


class NoDonor(_Message, frozen=True):
    """No learner's state is to be had."""

    reason: str
    """For people."""


class Settled(_Message, frozen=True):
    """What became of a contribution. ``refusal`` is None when it was merged."""

    round: int
    fragment: int
    tokens: int
    """Tokens its process had trained when it handed over."""
    late: bool
    refusal: RefusalReason | None


class Fenced(_Message, frozen=True):
    """This incarnation no longer counts. After a lost lease the learner may join again; if superseded, it must not; if
    quarantined, it may as a new start, with nothing of what it has, once ``retry_ns`` have gone by."""

    reason: DepartureReason
    retry_ns: int = 0
    """0: never."""


class Granted(_Message, frozen=True):
    """What the process holds of the corpus now, all of it; as in ``Welcome``."""

    grants: tuple[Grant, ...]
    exhausted: bool


class Finish(_Message, frozen=True):
    """The run has reached its end: take no more steps, answer the last pulls."""


class Stop(_Message, frozen=True):
    """Everything is merged: goodbye."""

    reason: str


SyncerMessage = (
    Welcome
    | JoinRefused
    | Granted
    | Pull
    | Farewell
    | Published
    | GoneBack
    | StateAsked
    | StateComing
    | StateReady
    | NoDonor
    | Settled
    | Fenced
    | Finish
    | Stop
)

# ------------------------------------------------------------------------------------------- host to its own core


class SeedArrived(_Message, frozen=True):
    """Syncer host: version 0 of a fragment is stored."""

    learner: str
    incarnation: int
    fragment: int
    digest: str


class ContributionArrived(_Message, frozen=True):
    """Syncer host: an upload is complete and its numbers were inspected. ``defect`` is None when they are sound."""

    learner: str
    incarnation: int
    round: int
    fragment: int
    base_version: int
    c_steps: int
    c_tokens: int
    tokens: int
    """Tokens its process had trained when it handed over."""
    norm: float
    defect: RefusalReason | None
    payload: int
    position: int = 0
    """How far its process had come along its course when it handed over."""
    samples: int = 0
    steps: int = 0
    """Inner steps of its process when it handed over."""
    deed: int = 0
    """Number of the hand-over among the deeds of its process."""
    codec: Codec = Codec.BFLOAT16
    """In which it has travelled."""


class Transferring(_Message, frozen=True):
    """Syncer host: bytes of a body are coming from this start of a learner, or going to it. It is alive, even if its
    messages are held up."""

    learner: str
    incarnation: int
    up_bytes: int = 0
    """That have come from it since the last time this was said of it; ``down_bytes``: gone to it."""
    down_bytes: int = 0


class UploadMeasured(_Message, frozen=True):
    """Syncer host: the body of a contribution has arrived, and how long that took from its first byte to its last."""

    learner: str
    incarnation: int
    size_bytes: int
    duration_ns: int


class Committed(_Message, frozen=True):
    """Syncer host: the commit asked for is computed and durable."""

    round: int
    fragment: int
    version: int
    digest: str
    norm: float
    """Norm of the merged outer gradient."""


class StateArrived(_Message, frozen=True):
    """Syncer host: a state has been uploaded whole, and has the digest its sender gave it."""

    ticket: int
    digest: str
    size_bytes: int


class StateLost(_Message, frozen=True):
    """Syncer host: the upload of a state has failed."""

    ticket: int
    reason: str


class Recorded(_Message, frozen=True):
    """Syncer host: a save is complete. ``record`` is its number, above 0 and higher than any before."""

    record: int
    versions: tuple[int, ...]


class WentBack(_Message, frozen=True):
    """Syncer host: the values of a record are, as new versions, those of every fragment; or it cannot be read."""

    record: int
    notices: tuple[VersionNotice, ...]
    """One for each fragment; empty if the record cannot be read."""


class Disconnected(_Message, frozen=True):
    """Syncer host: a learner's control connection broke. Learner host: ours did (fields empty)."""

    learner: str = ""
    incarnation: int = 0


class Connected(_Message, frozen=True):
    """Learner host: the control connection stands."""


class EndRun(_Message, frozen=True):
    """Syncer host: end the run now, in order."""

    reason: str


class StepFinished(_Message, frozen=True):
    """Learner host: one inner step is done."""

    tokens: int
    step_ns: int
    loss: float


class Fetched(_Message, frozen=True):
    """Learner host: the body of a version is here and has the digest announced."""

    fragment: int
    version: int
    digest: str
    payload: int


class FetchFailed(_Message, frozen=True):
    """Learner host: a version could not be had (no longer retained, connection lost)."""

    fragment: int
    version: int


class SeedStored(_Message, frozen=True):
    """Learner host: the syncer has accepted our version 0 of a fragment."""

    fragment: int


class UploadArrived(_Message, frozen=True):
    """Learner host: the syncer has answered a contribution, whatever becomes of it: the link has room for another."""

    round: int
    fragment: int
    tokens: int


class UploadFailed(_Message, frozen=True):
    """Learner host: a contribution could not be delivered and will not be tried again."""

    round: int
    fragment: int
    c_tokens: int
    tokens: int


class StateNotTaken(_Message, frozen=True):
    """Learner host: our state could not be copied or delivered."""

    ticket: int


class StateFetched(_Message, frozen=True):
    """Learner host: a state is here and has the digest announced. What it says of itself:"""

    ticket: int
    notices: tuple[VersionNotice, ...]
    """By fragment, the version its donor had adopted; an empty digest: the donor does not know it."""
    clock: int
    payload: int
    of: Moment
    """Whose it is, and of when."""


class StateFetchFailed(_Message, frozen=True):
    """Learner host: a state could not be had."""

    ticket: int


class StateLoaded(_Message, frozen=True):
    """Learner host: the state is in the model and its optimizer."""


class StateUnfit(_Message, frozen=True):
    """Learner host: the state is none for this model and its optimizer; nothing of it was loaded."""

    reason: str


class CheckpointLoaded(_Message, frozen=True):
    """Learner host: the inner optimizer has been loaded from a file, before the first step."""

    of: Moment
    """By whom it was written, and when."""


class HostFailed(_Message, frozen=True):
    """Learner host: this process cannot take part: what it would bring is unfit, or its link is broken for good."""

    reason: str


class LeaveRequested(_Message, frozen=True):
    """Learner host: the process wants to go."""


SyncerInput = (
    LearnerMessage
    | SeedArrived
    | ContributionArrived
    | Transferring
    | UploadMeasured
    | Committed
    | Recorded
    | WentBack
    | StateComing
    | StateArrived
    | StateLost
    | Disconnected
    | EndRun
)
LearnerInput = (
    SyncerMessage
    | Connected
    | Disconnected
    | StepFinished
    | Fetched
    | FetchFailed
    | SeedStored
    | UploadArrived
    | UploadFailed
    | StateNotTaken
    | StateFetched
    | StateFetchFailed
    | StateLoaded
    | StateUnfit
    | CheckpointLoaded
    | HostFailed
    | LeaveRequested
)

_encoder = msgspec.msgpack.Encoder()
_learner_decoder = msgspec.msgpack.Decoder(LearnerMessage)
_syncer_decoder = msgspec.msgpack.Decoder(SyncerMessage)


def encode(message: LearnerMessage | SyncerMessage) -> bytes:
    """The message as msgpack."""
    return _encoder.encode(message)


def decode_learner_message(data: bytes) -> LearnerMessage:
    """What a learner said. Raises RemoteProtocolError for anything that is not one message of the family."""
    return _decode(_learner_decoder, data)  # type: ignore[no-any-return]


def decode_syncer_message(data: bytes) -> SyncerMessage:
    """What the syncer said. Raises RemoteProtocolError for anything that is not one message of the family."""
    return _decode(_syncer_decoder, data)  # type: ignore[no-any-return]


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    if len(data) > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(f"control message of {len(data)} bytes exceeds the limit of {MESSAGE_BYTES_MAX}")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"control message does not decode: {error}") from error

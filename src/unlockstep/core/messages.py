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

from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.layout import TensorSpec
from unlockstep.core.reasons import DepartureReason, JoinRefusal, RefusalReason

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


# ------------------------------------------------------------------------------------------- learner to syncer


class Join(_Message, frozen=True):
    """A process asks to take part. ``incarnation`` 0: a new start; otherwise: the connection broke, same process."""

    learner: str
    incarnation: int
    protocol_version: int
    layout_digest: str
    tensors: tuple[TensorSpec, ...]
    run_id: str = ""
    """Which run it has been a member of; empty for a new start. Names are used again, by runs and by learners."""


class Heartbeat(_Message, frozen=True):
    """Still here, between steps or during a long one."""

    learner: str
    incarnation: int


class AdoptionNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A learner took a committed version, between two inner steps."""

    fragment: int
    version: int
    digest: str
    fetch_ns: int
    """From the announcement of the version to its body being here."""


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
    adopted: tuple[AdoptionNotice, ...] = ()
    undelivered: tuple[Undelivered, ...] = ()
    last: bool = False
    """True: the run is finishing and this learner takes no more steps."""


class Leave(_Message, frozen=True):
    """A learner goes, in order. What it had not handed over is declared dropped."""

    learner: str
    incarnation: int
    tokens_dropped: tuple[int, ...]


class Evaluation(_Message, frozen=True):
    """An evaluator's validation loss of the global model."""

    source: str
    clock: int
    loss: float
    """Nats per token."""
    nats_per_byte: float
    versions: tuple[int, ...]


LearnerMessage = Join | Heartbeat | Progress | Leave | Evaluation

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


class JoinRefused(_Message, frozen=True):
    reason: JoinRefusal
    detail: str


class Pull(_Message, frozen=True):
    """Hand over the progress on this fragment, for this round."""

    round: int
    fragment: int


class Published(_Message, frozen=True):
    """A new version can be fetched."""

    notice: VersionNotice
    clock: int


class Settled(_Message, frozen=True):
    """What became of a contribution. ``refusal`` is None when it was merged."""

    round: int
    fragment: int
    late: bool
    refusal: RefusalReason | None


class Fenced(_Message, frozen=True):
    """This incarnation no longer counts. After a lost lease the learner may join again; if superseded, it must not."""

    reason: DepartureReason


class Finish(_Message, frozen=True):
    """The run has reached its end: take no more steps, answer the last pulls."""


class Stop(_Message, frozen=True):
    """Everything is merged: goodbye."""

    reason: str


SyncerMessage = Welcome | JoinRefused | Pull | Published | Settled | Fenced | Finish | Stop

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


class Committed(_Message, frozen=True):
    """Syncer host: the commit asked for is computed and durable."""

    round: int
    fragment: int
    version: int
    digest: str
    norm: float
    """Norm of the merged outer gradient."""


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


class UploadFailed(_Message, frozen=True):
    """Learner host: a contribution could not be delivered and will not be tried again."""

    round: int
    fragment: int
    c_tokens: int
    tokens: int


class HostFailed(_Message, frozen=True):
    """Learner host: this process cannot take part: what it would bring is unfit, or its link is broken for good."""

    reason: str


class LeaveRequested(_Message, frozen=True):
    """Learner host: the process wants to go."""


SyncerInput = LearnerMessage | SeedArrived | ContributionArrived | Committed | Disconnected | EndRun
LearnerInput = (
    SyncerMessage
    | Connected
    | Disconnected
    | StepFinished
    | Fetched
    | FetchFailed
    | SeedStored
    | UploadFailed
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

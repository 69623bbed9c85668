"""What a core wants done. The host around it takes the actions in order and carries them out.

Decides the vocabulary only. The syncer's host owns the arrays and the sockets; the learner's host is
``loop.LearnerLoop`` (snapshots and adoptions, at step boundaries) together with its link (sending, moving bodies).
"""

from __future__ import annotations

import msgspec

from unlockstep.core.deeds import Moment
from unlockstep.core.formats import Codec
from unlockstep.core.messages import (
    Finish,
    GoneBack,
    HandedOver,
    LearnerMessage,
    Published,
    Stop,
    SyncerMessage,
    VersionNotice,
)


class _Action(msgspec.Struct, frozen=True):
    pass


# ------------------------------------------------------------------------------------------- of the syncer


class SendTo(_Action, frozen=True):
    """Send a message to one start of one learner; to nobody if that connection is gone."""

    learner: str
    incarnation: int
    message: SyncerMessage


class Announce(_Action, frozen=True):
    """Send a message to every connected learner and observer."""

    message: Published | GoneBack | Finish | Stop


class Share(msgspec.Struct, frozen=True):
    """One learner's part in a merge. Its contributions cover disjoint stretches of work, so they are added."""

    learner: str
    weight: float
    """Normalised: the weights of one commit sum to 1."""
    payloads: tuple[int, ...]
    base_versions: tuple[int, ...]


class Commit(_Action, frozen=True):
    """Merge these shares, take the outer step, make ``version`` durable; then report ``Committed``."""

    round: int
    fragment: int
    version: int
    shares: tuple[Share, ...]


class GoBack(_Action, frozen=True):
    """Make what a record of the store holds the next version of every fragment, once the commits asked for before are
    done; then report ``WentBack``."""

    record: int


class Save(_Action, frozen=True):
    """What the run is now (``SyncerCore.saved``, with the arrays that belong to it) must outlive this process before
    any message that follows leaves it: the message promises something that must not be forgotten."""

    is_commit: bool = False
    """It is a commit that is promised: under ``durability.mode = "interval"`` it may wait for others."""


class Release(_Action, frozen=True):
    """The body of a contribution is no longer needed."""

    payload: int


class ForgetState(_Action, frozen=True):
    """The state under this ticket is not needed any more, or will not be: whatever is here of it can go."""

    ticket: int


class RunEnded(_Action, frozen=True):
    """All is committed and told: the host may go when its messages are out."""


SyncerAction = SendTo | Announce | Commit | GoBack | Save | Release | ForgetState | RunEnded

# ------------------------------------------------------------------------------------------- of a learner


class Send(_Action, frozen=True):
    """Send a message to the syncer."""

    message: LearnerMessage


class Fetch(_Action, frozen=True):
    """Download this version, check its digest, report ``Fetched`` or ``FetchFailed``."""

    notice: VersionNotice


class Resend(_Action, frozen=True):
    """Upload it once more, under this incarnation: the syncer may not have it any more."""

    handed_over: HandedOver
    incarnation: int


class Forget(_Action, frozen=True):
    """It is settled: what was uploaded is not needed any more."""

    handed_over: HandedOver


class TakeSnapshot(_Action, frozen=True):
    """Copy the fragment to the host now (only at a step boundary)."""

    fragment: int


class Upload(_Action, frozen=True):
    """Hand over the snapshot of this fragment: anchor minus snapshot; the snapshot becomes the anchor."""

    round: int
    fragment: int
    incarnation: int
    base_version: int
    c_steps: int
    c_tokens: int
    tokens: int
    """Tokens this process has trained so far."""
    position: int = 0
    """How far along its course it is, as of the same step."""
    samples: int = 0
    codec: Codec = Codec.BFLOAT16
    """In which it travels."""
    steps: int = 0
    """Inner steps this process has taken so far."""
    deed: int = 0
    """Number of the hand-over among what it has done."""


class UploadSeed(_Action, frozen=True):
    """Upload the fragment's present value as version 0, then report ``SeedStored``."""

    fragment: int


class Adopt(_Action, frozen=True):
    """Write this fetched version into the model (only at a step boundary)."""

    fragment: int
    version: int
    payload: int
    load: bool
    """True: local values are void (a first start); otherwise adopt in the configured way."""


class ResetOptimizer(_Action, frozen=True):
    """Forget the state of the inner optimizer (only at a step boundary): it was made of parameters that are void."""


class TakeState(_Action, frozen=True):
    """Copy model and inner optimizer now (only at a step boundary) and upload them; ``StateNotTaken`` if that fails."""

    ticket: int
    notices: tuple[VersionNotice, ...]
    """By fragment, the version adopted last."""
    clock: int
    of: Moment
    """Who copies it, and when."""


class FetchState(_Action, frozen=True):
    """Download a state, check its digest, report ``StateFetched`` or ``StateFetchFailed``."""

    ticket: int
    digest: str
    size_bytes: int


class LoadState(_Action, frozen=True):
    """Write a fetched state into the inner optimizer, and these fragments of it into the model (only where no step may
    begin); then report ``StateLoaded`` or ``StateUnfit``."""

    payload: int
    fragments: tuple[int, ...]


class Discard(_Action, frozen=True):
    """A fetched body is no longer needed."""

    payload: int


class Done(_Action, frozen=True):
    """No more steps. ``reason`` is for people; ``failed`` says whether it is an error."""

    reason: str
    failed: bool
    is_alone: bool = False
    """The syncer has been away for too long: what the learner has is sound, and nobody has taken it."""


LearnerAction = (
    Send
    | Fetch
    | TakeSnapshot
    | Upload
    | Resend
    | Forget
    | UploadSeed
    | Adopt
    | ResetOptimizer
    | TakeState
    | FetchState
    | LoadState
    | Discard
    | Done
)

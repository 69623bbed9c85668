"""What a core wants done. The host around it takes the actions in order and carries them out.

Decides the vocabulary only. The syncer's host owns the arrays and the sockets; the learner's host is
``loop.LearnerLoop`` (snapshots and adoptions, at step boundaries) together with its link (sending, moving bodies).
"""

from __future__ import annotations

import msgspec

from unlockstep.core.messages import Finish, LearnerMessage, Published, Stop, SyncerMessage, VersionNotice


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

    message: Published | Finish | Stop


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


class Release(_Action, frozen=True):
    """The body of a contribution is no longer needed."""

    payload: int


class RunEnded(_Action, frozen=True):
    """All is committed and told: the host may go when its messages are out."""


SyncerAction = SendTo | Announce | Commit | Release | RunEnded

# ------------------------------------------------------------------------------------------- of a learner


class Send(_Action, frozen=True):
    """Send a message to the syncer."""

    message: LearnerMessage


class Fetch(_Action, frozen=True):
    """Download this version, check its digest, report ``Fetched`` or ``FetchFailed``."""

    notice: VersionNotice


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


class Discard(_Action, frozen=True):
    """A fetched body is no longer needed."""

    payload: int


class Done(_Action, frozen=True):
    """No more steps. ``reason`` is for people; ``failed`` says whether it is an error."""

    reason: str
    failed: bool


LearnerAction = Send | Fetch | TakeSnapshot | Upload | UploadSeed | Adopt | Discard | Done

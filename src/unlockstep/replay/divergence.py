"""Where a replay is not what the run was, and how that is said.

Decides the vocabulary. Where it is noticed is decided in ``part`` and ``stage``.
"""

from __future__ import annotations

import msgspec

from unlockstep.core.errors import UnlockstepError


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference. What does not apply is None."""

    sentence: str
    learner: str | None = None
    incarnation: int | None = None
    """First one of the process."""
    step: int | None = None
    """Of the process."""
    round: int | None = None
    fragment: int | None = None
    version: int | None = None


class Diverged(UnlockstepError):
    """Something came out differently."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.sentence)
        self.divergence = divergence


class Unfollowable(Diverged):
    """What happened next is in no log."""

    def __init__(self, sentence: str) -> None:
        super().__init__(Divergence(sentence=sentence))

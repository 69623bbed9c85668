"""How a learner gives a run its parameters: as version 0 of every fragment.

Decides when all of it is given. Does not decide whose parameters a run begins with (the syncer).
"""

from __future__ import annotations

from collections.abc import Sequence

from unlockstep.core.actions import UploadSeed
from unlockstep.core.learner_states import FragmentState
from unlockstep.core.messages import VersionNotice


class Seeding:
    """Of one process.

    Args:
        fragments: its fragments; shared with the learner.
    """

    def __init__(self, fragments: Sequence[FragmentState]) -> None:
        self._fragments = fragments

    def begin(self) -> list[UploadSeed]:
        """What is to be uploaded."""
        self.take_back()
        return [UploadSeed(index) for index in range(len(self._fragments))]

    def take_back(self) -> None:
        """Another learner's parameters may become version 0: what was stored of ours means nothing."""
        for fragment in self._fragments:
            fragment.version = -1
            fragment.is_seeded = False

    def stored(self, index: int, life: int) -> None:
        """The syncer has this fragment in its ``life``."""
        fragment = self._fragments[index]
        fragment.version, fragment.digest, fragment.life = 0, "", life

    def announced(self, notice: VersionNotice) -> None:
        """The run has begun with this."""
        self._fragments[notice.fragment].is_seeded = True
        self._fragments[notice.fragment].digest = notice.digest

    @property
    def is_complete(self) -> bool:
        """Everything is stored, and the run has begun with it: until it has, it may begin with another's."""
        return all(fragment.version == 0 and fragment.is_seeded for fragment in self._fragments)

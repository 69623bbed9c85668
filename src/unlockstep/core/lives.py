"""With which versions each life of the syncer has begun: what a learner that has missed some of them still holds.

Decides what of a learner's versions is lost. A version number alone does not say: what one life had published and not
saved, the next may publish once more with other values.
"""

from __future__ import annotations

from unlockstep.core.saved import SavedLife

LIVES_MAX = 64
"""Told apart. Of older ones the least is remembered: who comes back after so many may load more than it must."""


class Lives:
    """Of one run."""

    def __init__(self) -> None:
        self._lives: list[SavedLife] = []
        """Oldest first, this one last; empty in the first life."""

    def saved(self) -> tuple[SavedLife, ...]:
        """What outlives the syncer's process."""
        return tuple(self._lives)

    def resume(self, saved: tuple[SavedLife, ...], life: int, versions: tuple[int, ...]) -> None:
        """Life ``life`` begins with these versions."""
        self._lives = [*saved, SavedLife(life, versions)]
        if len(self._lives) > LIVES_MAX:
            oldest, next_one, *rest = self._lives
            self._lives = [SavedLife(next_one.life, _least(oldest.versions, next_one.versions)), *rest]

    def kept_since(self, life: int) -> tuple[int, ...]:
        """Per fragment, the newest version of that life, or of one before, that all lives since have begun with; empty
        if one of them had no parameters."""
        since = [each.versions for each in self._lives if each.life > life]
        kept = since[0] if since else ()
        for versions in since[1:]:
            kept = _least(kept, versions)
        return kept


def _least(some: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    """Of each fragment; empty if either is."""
    return tuple(min(pair) for pair in zip(some, others, strict=False))

"""When a version that has arrived is taken into the model, and what that leaves of what was not handed over.

Decides these two of one process. Does not decide which versions are fetched (``versions``), nor the numbers an adoption
makes (``adoption``, ``holdings``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from unlockstep.core.actions import Adopt, LearnerAction
from unlockstep.core.deeds import AdoptionNotice, Deed, Source
from unlockstep.core.learner_states import FragmentState

Kept = Callable[[int, int], tuple[int, int]]
"""(c_steps, c_tokens) not handed over -> those that survive an adoption (``adoption.kept``)."""


class Adopter(Protocol):
    """What this part needs of its learner (``learner.LearnerCore``)."""

    life: int
    clock: int

    def act(self, action: LearnerAction) -> None:
        """Have the host do it."""
        ...

    def note(self, deed: Deed) -> int:
        """To be reported with the next progress; returns its number."""
        ...


class Adoptions:
    """Of one process, at step boundaries.

    Args:
        learner: whose they are.
        waits_for_pull: progress is handed over before a newer version overwrites it.
        staleness_max: versions a contribution may be behind: what is behind more is not waited for.
        kept: which counts survive.
    """

    def __init__(self, learner: Adopter, waits_for_pull: bool, staleness_max: int, kept: Kept) -> None:
        self._learner = learner
        self._staleness_max = staleness_max
        self._waits_for_pull = waits_for_pull
        self._kept = kept

    def is_due(self, fragment: FragmentState) -> bool:
        """Whether the version that has arrived may be written now.

        ``carry`` keeps local progress, so always. ``overwrite`` and ``blend`` discard it: then progress that was never
        handed over is handed over first. (A learner many times slower than the others would otherwise lose every step
        of its to the next version before any round could ask for it. It is asked within H steps of the syncer.) Unless
        nobody would take it any more.
        """
        if fragment.arrived is None:
            return False
        if fragment.versions_behind > self._staleness_max:
            return True
        return fragment.is_shared or fragment.c_steps == 0 or not self._waits_for_pull

    def adopt(self, index: int, fragment: FragmentState, load: bool) -> None:
        """Take the version that has arrived; with ``load`` in place of whatever is there."""
        arrived, learner = fragment.arrived, self._learner
        assert arrived is not None, "only what has arrived is adopted"
        steps, tokens = (0, 0) if load else self._kept(fragment.c_steps, fragment.c_tokens)
        fragment.overwritten += fragment.c_tokens - tokens
        fragment.c_steps, fragment.c_tokens = steps, tokens
        fragment.version, fragment.life, fragment.arrived = arrived.version, learner.life, None
        fragment.digest = arrived.digest
        fragment.is_shared = fragment.has_snapshot = False
        learner.clock = max(learner.clock, fragment.arrived_clock)
        learner.act(Adopt(index, arrived.version, arrived.payload, load))
        source = Source.LOADED if load else Source.ADOPTED
        notice = AdoptionNotice(index, arrived.version, arrived.digest, fragment.fetch_ns, learner.clock, source)
        learner.note(notice)

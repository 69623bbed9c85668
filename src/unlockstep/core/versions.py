"""Which versions a learner knows of, which of them it fetches, and which have arrived and wait for a step boundary.

Decides what is worth fetching, how much of that at once, and what has become void while it was on its way. Does not
decide when a version is adopted (``learner``), nor what is fetched beside versions (``recovery``).

A link may carry less than is published. All that is fetched over it at once arrives late, and is old by then; fetched
one after the other every body is as new as can be when it begins. So over a link that is behind few are, and the
fragment whose parameters here are oldest is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from unlockstep.core.actions import Discard, Fetch, LearnerAction
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.learner_states import FragmentState
from unlockstep.core.messages import Fetched, FetchFailed, VersionNotice
from unlockstep.core.pace import Pace

FETCHED_AT_ONCE_MAX = 1
"""Versions fetched at once over a link that is behind: the syncer has them ready."""


class Fetcher(Protocol):
    """What this part needs of its learner (``learner.LearnerCore``)."""

    life: int
    steps: int

    @property
    def may_fetch(self) -> bool: ...

    @property
    def heartbeat_ns(self) -> int: ...

    def act(self, action: LearnerAction) -> None:
        """Have the host do it."""
        ...


class Versions:
    """Of one process.

    Args:
        learner: whose they are.
        fragments: its fragments; shared with it.
    """

    def __init__(self, learner: Fetcher, fragments: Sequence[FragmentState]) -> None:
        self._learner = learner
        self._fragments = fragments
        self._is_lost = False
        """What was adopted is none of the syncer's versions any more."""
        self.again_ns = NEVER_NS
        """When a fetch that has failed is tried again."""
        self._pace = Pace(FETCHED_AT_ONCE_MAX)
        """Of the way down."""

    @property
    def must_reload(self) -> bool:
        """What was adopted is lost, or void: the syncer's versions are to be loaded at the next step boundary."""
        return self._is_lost or any(fragment.is_void for fragment in self._fragments)

    def forget_adopted(self) -> None:
        """All of the syncer's versions are to be loaded."""
        self._is_lost = False
        for fragment in self._fragments:
            fragment.version = -1
            fragment.has_snapshot = False

    def note(self, notice: VersionNotice, clock: int, now_ns: int) -> None:
        """A version was announced, when the syncer's clock was at ``clock``."""
        fragment = self._fragments[notice.fragment]
        if fragment.arrived is not None and fragment.arrived.version < notice.void_below:
            self._discard_arrived(fragment)
        known = -1 if self._is_lost else fragment.version  # What is lost is no measure.
        if fragment.notice is not None:
            known = max(known, fragment.notice.version)
        if notice.version > known:
            fragment.notice, fragment.notice_clock, fragment.announced_ns = notice, clock, now_ns

    def meet_new_life(self, kept: tuple[int, ...]) -> None:
        """The syncer has died and gone on from these versions. What it had published beyond them is void: versions with
        these numbers will be others."""
        for fragment, version in zip(self._fragments, kept, strict=False):
            self._give_up(fragment)
            if fragment.notice is not None and fragment.notice.version > version:
                fragment.notice = None
            if fragment.arrived is not None and fragment.arrived.version > version:
                self._discard_arrived(fragment)
            if fragment.version > version and fragment.life < self._learner.life:
                self._is_lost = True

    def fetch_missing(self) -> None:
        """Fetch every fragment's newest version unless it is here, on its way, of no use any more, or has to wait its
        turn."""
        self.again_ns = NEVER_NS
        if not self._learner.may_fetch:
            return
        missing = [fragment for fragment in self._fragments if self._is_missing(fragment)]
        missing.sort(key=self._version_here)
        for fragment in missing[: self._free]:
            notice = fragment.notice
            assert notice is not None, "what is missing was announced"
            fragment.fetching, fragment.fetching_steps = notice.version, self._learner.steps
            fragment.fetching_clock = fragment.notice_clock
            fragment.fetching_since_ns = fragment.announced_ns
            self._learner.act(Fetch(notice))

    def _is_missing(self, fragment: FragmentState) -> bool:
        if fragment.notice is None or fragment.fetching is not None:
            return False
        return fragment.notice.version > self._version_here(fragment)

    def _version_here(self, fragment: FragmentState) -> int:
        if fragment.arrived is not None:
            return fragment.arrived.version
        return -1 if self._is_lost and fragment.life < self._learner.life else fragment.version

    @property
    def _free(self) -> int:
        """How many more may be fetched at once."""
        under_way = [fragment for fragment in self._fragments if fragment.fetching is not None]
        under_way_steps = [self._learner.steps - fragment.fetching_steps for fragment in under_way]
        return self._pace.room(under_way_steps, everything=len(self._fragments))

    def arrive(self, fetched: Fetched, now_ns: int) -> None:
        """A body is here."""
        fragment = self._fragments[fetched.fragment]
        if fragment.fetching != fetched.version or not self._learner.may_fetch:
            self._learner.act(Discard(fetched.payload))
            return
        self._give_up(fragment)
        if fragment.notice is not None and fetched.version < fragment.notice.void_below:
            self._learner.act(Discard(fetched.payload))
        else:
            if fragment.arrived is not None:
                self._discard_arrived(fragment)
            fragment.arrived, fragment.arrived_clock = fetched, fragment.fetching_clock
            fragment.fetch_ns = now_ns - fragment.fetching_since_ns
        self.fetch_missing()

    def fail(self, failed: FetchFailed, now_ns: int) -> None:
        """A newer version is asked for at once; the same one again after a while, whether or not there are steps to
        report in between."""
        fragment = self._fragments[failed.fragment]
        if fragment.fetching != failed.version:
            return
        self._give_up(fragment)
        if fragment.notice is not None and fragment.notice.version > failed.version:
            self.fetch_missing()
        else:
            self.again_ns = min(self.again_ns, now_ns + self._learner.heartbeat_ns)

    def connection_lost(self) -> None:
        """What is on its way does not come."""
        for fragment in self._fragments:
            self._give_up(fragment)

    def _give_up(self, fragment: FragmentState) -> None:
        """It is fetched no more, whether or not it has come. How long it took is remembered: a link that breaks before
        anything has passed is behind, too."""
        if fragment.fetching is not None:
            fragment.fetching = None
            self._pace.ended(self._learner.steps - fragment.fetching_steps)

    def discard_all(self) -> None:
        """Nothing that has arrived is needed any more."""
        for fragment in self._fragments:
            if fragment.arrived is not None:
                self._discard_arrived(fragment)

    def _discard_arrived(self, fragment: FragmentState) -> None:
        assert fragment.arrived is not None, "only what has arrived is discarded"
        self._learner.act(Discard(fragment.arrived.payload))
        fragment.arrived = None

"""How a learner gets the state it trains with, and gives its own to others: the learner's half of a hand-over of state.

Decides whom a new process asks and how long it waits before it goes another way, which fragments of a donor's state are
new enough, and when a donor's state may be copied. Does not decide who is a donor (``donation``), nor how a state is
copied, brought and loaded (the loop, the link, the backend).

A new process asks for the state of a learner that trains: its parameters, its inner optimizer, its clock. Meanwhile it
fetches the syncer's versions, as it would without: whatever fails, it can begin. In this order:

1. a donor's state, of up to ``ASKS_MAX`` donors that are named to it (the syncer may have tried others in between);
2. without: the syncer's parameters, and the inner optimizer of its own checkpoint if its host has one;
3. without that: the syncer's parameters alone, and a warm-up.

A state is whole or it is nothing: parameters, optimizer, versions and clock of one step boundary travel in one body
under one digest. A fragment of it is taken if it is at most ``VERSIONS_BEHIND_MAX`` behind the newest version the
process has heard of; an older one, or one of a version unknown, is loaded from the syncer instead, as committed. What
the donor had trained and not handed over is in its parameters, and is the donor's to hand over: here they are anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from unlockstep.core.actions import Discard, FetchState, LearnerAction, LoadState, TakeState
from unlockstep.core.deeds import AdoptionNotice, CheckpointTaken, Deed, Moment, Source, StateTaken
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.learner_states import FragmentState
from unlockstep.core.messages import (
    CheckpointLoaded,
    LearnerMessage,
    NoDonor,
    StateAsked,
    StateComing,
    StateDeclined,
    StateFetched,
    StateFetchFailed,
    StateLoaded,
    StateNotTaken,
    StateReady,
    StateUnfit,
    StateWanted,
    VersionNotice,
)
from unlockstep.core.reasons import Recovered

ASKS_MAX = 3
"""Times one process asks: at first, after a state that it could not fetch, after a connection that broke."""

VERSIONS_BEHIND_MAX = 1
"""A fragment has one new version in H inner steps: a donor's may be one behind, which is H steps."""

PATIENCE_LEASES = 2
"""How long a process waits for a sign beyond what it was told, before it goes another way."""


class Process(Protocol):
    """What this half needs of its learner (``learner.LearnerCore``)."""

    learner: str
    incarnation: int
    life: int
    clock: int
    steps: int

    @property
    def moment(self) -> Moment: ...

    @property
    def may_step(self) -> bool: ...

    @property
    def lease_ns(self) -> int: ...

    def say(self, message: LearnerMessage, now_ns: int) -> None:
        """Send it; lost if the connection is down."""
        ...

    def act(self, action: LearnerAction) -> None:
        """Have the host do it."""
        ...

    def note(self, deed: Deed) -> int:
        """To be reported with the next progress; returns its number."""
        ...

    def load(self, loaded: frozenset[int], now_ns: int) -> None:
        """Take the syncer's versions of all other fragments, if they are here, and begin."""
        ...


class _Phase(Enum):
    IDLE = "idle"
    """Nothing was asked for."""
    ASKING = "asking"
    """Until it is said that a state is ready, or that there is none."""
    FETCHING = "fetching"
    ARRIVED = "arrived"
    """The state is here; fragments that must come from the syncer may not be."""
    LOADING = "loading"
    """It is being written into the model."""
    OVER = "over"


class Recovery:
    """Of one process.

    Args:
        process: whose it is.
        fragments: what it knows of each.
        has_state: its host can copy and load all it trains with.
    """

    def __init__(self, process: Process, fragments: list[FragmentState], has_state: bool) -> None:
        self.way: Recovered | None = None
        """Where the inner optimizer's state has come from; None until that is known, or for who began the run."""
        self.why = ""
        """For people."""
        self.was_unfit = False
        """A state had come, and was none for this model and its optimizer."""
        self.until_ns = NEVER_NS
        """When it gives up waiting."""
        self._process = process
        self._fragments = fragments
        self._has_state = has_state
        self._phase = _Phase.IDLE
        self._asks = 0
        self._ticket = 0
        """Under which a state has been promised."""
        self._arrived: StateFetched | None = None
        self._taken: tuple[int, ...] = ()
        """Fragments that are being written."""
        self._life = 0
        """Of the syncer, when that began."""
        self._asked_for: int | None = None
        """As a donor: the ticket under which this process's own state is wanted."""
        self.reactions: dict[type[Any], Callable[[Any, int], None]] = {
            StateComing: self._on_coming,
            StateReady: self._on_ready,
            NoDonor: self._on_no_donor,
            StateFetched: self._on_fetched,
            StateFetchFailed: self._on_fetch_failed,
            StateLoaded: self._on_loaded,
            StateUnfit: self._on_unfit,
            CheckpointLoaded: self._on_checkpoint_loaded,
            StateAsked: self._on_asked,
            StateNotTaken: self._on_not_taken,
        }

    @property
    def is_waiting(self) -> bool:
        """Whether the process should not begin without a donor's state yet."""
        return self._phase not in (_Phase.IDLE, _Phase.OVER)

    # ------------------------------------------------------------------------------------------- what happens to it

    def welcomed(self, now_ns: int) -> None:
        """The process is a member, has yet to load, and there is something to load."""
        if not self._has_state or self._phase in (_Phase.OVER, _Phase.ARRIVED, _Phase.LOADING):
            return
        if self._asks < ASKS_MAX:
            self._ask(now_ns)
        else:
            self._begin_without("no donor's state could be fetched", now_ns)

    def disconnected(self, now_ns: int) -> None:
        """What was promised is void. It asks anew over another connection, unless that does not come in time; what has
        been fetched stays good."""
        self._asked_for = None
        if self._phase in (_Phase.ASKING, _Phase.FETCHING):
            self._phase, self._ticket = _Phase.ASKING, 0
            self.until_ns = now_ns + PATIENCE_LEASES * self._process.lease_ns

    def forget(self) -> None:
        """The syncer has another life, or the process ends: what was promised or has been fetched is void."""
        self._asked_for = None
        if self._phase in (_Phase.ASKING, _Phase.FETCHING, _Phase.ARRIVED):
            self._phase, self._ticket, self.until_ns = _Phase.IDLE, 0, NEVER_NS
            self._discard()

    def on_deadline(self, now_ns: int) -> None:
        """Nothing has come of it."""
        if now_ns >= self.until_ns:
            self._begin_without("nothing was heard of a donor in time", now_ns)

    def begin_without(self) -> None:
        """The process begins with the syncer's parameters alone."""
        if self.way is None:
            self._end(Recovered.SYNCER, self.why or "no other learner was asked")

    def _end(self, way: Recovered, why: str) -> None:
        self.until_ns, self._phase = NEVER_NS, _Phase.OVER
        self.way, self.why = way, why

    # ------------------------------------------------------------------------------------------- asking

    def _ask(self, now_ns: int) -> None:
        failed, self._ticket = self._ticket, 0
        self._phase = _Phase.ASKING
        self._asks += 1
        self.until_ns = now_ns + PATIENCE_LEASES * self._process.lease_ns
        self._process.say(StateWanted(self._process.learner, self._process.incarnation, failed), now_ns)

    def _on_coming(self, coming: StateComing, now_ns: int) -> None:
        if self._phase is _Phase.ASKING:
            self.until_ns = now_ns + coming.within_ns + PATIENCE_LEASES * self._process.lease_ns

    def _on_ready(self, ready: StateReady, now_ns: int) -> None:
        if self._phase is _Phase.ASKING:
            self._phase, self._ticket, self.until_ns = _Phase.FETCHING, ready.ticket, NEVER_NS
            self._process.act(FetchState(ready.ticket, ready.digest, ready.size_bytes))

    def _on_no_donor(self, none: NoDonor, now_ns: int) -> None:
        if self._phase in (_Phase.ASKING, _Phase.FETCHING):
            self._begin_without(none.reason, now_ns)

    def _on_fetched(self, fetched: StateFetched, now_ns: int) -> None:
        if self._phase is _Phase.FETCHING and fetched.ticket == self._ticket:
            self._phase, self._arrived = _Phase.ARRIVED, fetched
            self.load_if_complete()
        else:
            self._process.act(Discard(fetched.payload))

    def _on_fetch_failed(self, failed: StateFetchFailed, now_ns: int) -> None:
        if self._phase is _Phase.FETCHING and failed.ticket == self._ticket:
            self.welcomed(now_ns)

    def _begin_without(self, why: str, now_ns: int) -> None:
        self._discard()
        self._phase, self.why, self.until_ns = _Phase.OVER, why, NEVER_NS
        self._process.load(frozenset(), now_ns)

    def _discard(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            self._process.act(Discard(arrived.payload))

    # ------------------------------------------------------------------------------------------- loading

    def load_if_complete(self) -> None:
        """Load the donor's state once it is here, and of the syncer's versions those of the fragments it is too old
        for."""
        if self._phase is not _Phase.ARRIVED or self._arrived is None:
            return
        given = zip(self._arrived.notices, self._fragments, strict=True)
        taken = tuple(notice.fragment for notice, fragment in given if is_near(notice, fragment.notice))
        if all(fragment.arrived is not None for index, fragment in enumerate(self._fragments) if index not in taken):
            self._phase, self._taken, self._life = _Phase.LOADING, taken, self._process.life
            self._process.act(LoadState(self._arrived.payload, taken))

    def _on_loaded(self, _: StateLoaded, now_ns: int) -> None:
        """The optimizer is the donor's, and so are the fragments taken. The others are the syncer's: all of them, if it
        has gone on from an earlier state meanwhile."""
        donated, self._arrived = self._arrived, None
        assert donated is not None, "only what has arrived is loaded"
        taken = self._taken if self._life == self._process.life else ()
        self._process.note(StateTaken(donated.of))
        for index in taken:
            self._take(self._fragments[index], donated.notices[index])
        # Who trains without a quorum gets far ahead of the run, and who joins it would move the run's clock there.
        of_the_run = max((fragment.notice_clock for fragment in self._fragments), default=0)
        self._process.clock = max(self._process.clock, min(donated.clock, of_the_run))
        count = len(self._fragments)
        why = "" if len(taken) == count else f", {count - len(taken)} of {count} fragments from the syncer"
        self._end(Recovered.DONOR, f"as of clock {donated.clock}{why}")
        self._process.load(frozenset(taken), now_ns)

    def _take(self, fragment: FragmentState, notice: VersionNotice) -> None:
        """The model holds the donor's progress on this version, which is the donor's to hand over: an anchor here."""
        fragment.version, fragment.digest, fragment.life = notice.version, notice.digest, self._life
        self._process.note(AdoptionNotice(notice.fragment, notice.version, notice.digest, 0, source=Source.DONATED))
        if fragment.arrived is not None and fragment.arrived.version <= notice.version:
            self._process.act(Discard(fragment.arrived.payload))
            fragment.arrived = None
        if fragment.fetching is not None and fragment.fetching <= notice.version:
            fragment.fetching = None

    def _on_unfit(self, unfit: StateUnfit, now_ns: int) -> None:
        self.was_unfit = True
        self._arrived = None  # the host has it, and has forgotten it
        self._begin_without(f"a donor's state is of no use here: {unfit.reason}", now_ns)

    def _on_checkpoint_loaded(self, loaded: CheckpointLoaded, now_ns: int) -> None:
        self._process.note(CheckpointTaken(loaded.of, keeps_inner=self.way is Recovered.DONOR))
        if self.way is Recovered.SYNCER and self._process.steps == 0:
            self._end(Recovered.CHECKPOINT, self.why)

    # ------------------------------------------------------------------------------------------- giving

    def _on_asked(self, asked: StateAsked, now_ns: int) -> None:
        """At the next step boundary; not at all where there may be none."""
        if self._has_state and self._process.may_step:
            self._asked_for = asked.ticket
        else:
            self._decline(asked.ticket, now_ns)

    def give(self, now_ns: int) -> None:
        """A step boundary, and everything that follows from it is done: model, optimizer, versions and clock agree."""
        ticket, self._asked_for = self._asked_for, None
        if ticket is not None and self._process.may_step:
            notices = tuple(VersionNotice(index, f.version, f.digest) for index, f in enumerate(self._fragments))
            self._process.act(TakeState(ticket, notices, self._process.clock, self._process.moment))
        elif ticket is not None:
            self._decline(ticket, now_ns)

    def _on_not_taken(self, failed: StateNotTaken, now_ns: int) -> None:
        self._decline(failed.ticket, now_ns)

    def _decline(self, ticket: int, now_ns: int) -> None:
        self._process.say(StateDeclined(self._process.learner, self._process.incarnation, ticket), now_ns)


def is_near(given: VersionNotice, newest: VersionNotice | None) -> bool:
    """Whether a donor's fragment is new enough to train on.

    Args:
        given: the version that the donor had adopted.
        newest: the newest one that this process has heard of.
    """
    if not given.digest or newest is None:
        return False
    if given.version == newest.version:
        return given.digest == newest.digest
    return newest.version - given.version <= VERSIONS_BEHIND_MAX

"""A run as its events tell it: who is live, which rounds are under way and what they hold, which versions there are.

Decides what is remembered of the events so far, for all rules together. Judges nothing: a history that breaks a rule is
taken in as far as it makes sense, and the rules see each event before and after that. Memory is bounded by the
learners' names and by ``closed_rounds_max``, not by the length of the log.

Each start of the syncer is a *life*. Its log goes on where the one before had saved it; what was in flight then is not
any more, and nobody is connected.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    DataCollecting,
    FragmentAdopted,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLeaving,
    LearnerLive,
    LossSpiked,
    RolledBack,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
    RunFinished,
    RunFinishing,
    RunSeeded,
    StepReported,
    SyncerResumed,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import NOT_ENTERED


class Round:
    """A round from its opening to its commit."""

    __slots__ = ("clock", "closed_ns", "fragment", "held", "number", "on_time", "opened_ns", "quorum_ns")

    def __init__(self, opened: RoundOpened, held: list[ContributionAccepted]) -> None:
        self.number = opened.round
        self.fragment = opened.fragment
        self.clock = opened.clock
        self.opened_ns = opened.at_ns
        self.held = held
        """Everything it will merge: on time, and what came late for an earlier round of the fragment."""
        self.on_time: set[str] = set()
        self.quorum_ns: int | None = None
        """When the K-th learner's contribution was in."""
        self.closed_ns: int | None = None


class Learner:
    """A learner, over all its processes of one life of the syncer."""

    __slots__ = (
        "clock",
        "faultless_ns",
        "gap_ns",
        "incarnation",
        "is_present",
        "lag",
        "live_ns",
        "process_since",
        "reported_ns",
        "reports",
    )

    def __init__(self) -> None:
        self.incarnation = 0
        self.process_since = 0
        """First incarnation of its present process."""
        self.is_present = False
        self.live_ns: int | None = None
        """Since when it has been live without a break; None: it is not."""
        self.faultless_ns = 0
        """Since when it has been live and every contribution of its that arrived was accepted."""
        self.clock = 0
        self.reports = 0
        """Steps reported while live."""
        self.reported_ns = 0
        """When it last reported a step."""
        self.gap_ns = 0
        """Longest time from one report to the next while live."""
        self.lag = 0
        """Most steps its clock was behind the syncer's at a report while live."""

    def silence_ns(self, now_ns: int) -> int:
        """The longest it has gone without a report while live, until now."""
        return max(self.gap_ns, now_ns - self.reported_ns)


class History:
    """What the events so far amount to.

    Args:
        options: of the run.
    """

    def __init__(self, options: ProtocolOptions) -> None:
        self.options = options
        self.now_ns = 0
        self.is_seeded = False
        self.versions = [0] * options.fragments
        self.digests: list[OrderedDict[int, str]] = [OrderedDict() for _ in range(options.fragments)]
        """By fragment: version -> digest, of the newest versions."""
        self.step_ns = 0
        """The longest inner step reported."""
        self.reactions: dict[type[Any], Callable[[Any], None]] = {
            SyncerResumed: self._resumed,
            RunSeeded: self._seeded,
            LearnerJoined: self._joined,
            LearnerLive: self._live,
            LearnerAway: self._away,
            LearnerLeaving: self._leaving,
            LearnerDeparted: self._departed,
            StepReported: self._stepped,
            DataCollecting: self._collecting,
            RoundOpened: self._opened,
            ContributionAccepted: self._accepted,
            ContributionRefused: self._refused,
            ContributionUndelivered: self._undelivered,
            RoundClosed: self._closed,
            FragmentCommitted: self._committed,
            LossSpiked: self._spiked,
            RolledBack: self._rolled_back,
            RoundEmpty: self._ended,
            FragmentAdopted: self._adopted,
            RunFinishing: self._finishing,
            RunFinished: self._finished,
        }
        self.learners: dict[str, Learner] = {}
        self.live: dict[str, Learner] = {}
        self.leaving: set[str] = set()
        """Present, and asked for all that they have."""
        self.rounds: dict[int, Round] = {}
        """Open or committing."""
        self.fragments_in_flight: dict[int, Round] = {}
        self.late: dict[int, list[ContributionAccepted]] = {}
        """By fragment: accepted, and waiting for its next round."""
        self.round_newest: int | None = None
        self.clock = 0
        """At most the syncer's: the K-th highest that live learners have reported, or the highest of a round."""
        self.finishing_ns: int | None = None
        self.has_finished = False
        self.is_collecting = False
        """Rounds open at any time, to collect what learners without data hold."""
        self.may_skip_rounds = False
        """The syncer had been at the end of the run when it died: rounds nobody has anything for may be left out."""
        self.entered: dict[int, set[tuple[str, int, int]]] = {}
        """By round: learner, first incarnation of its process, and its tokens, of the contributions entered for it."""
        self.expected = range(0)
        """Rounds not opened yet, of which an earlier life of the syncer may have opened some after its last save."""
        self.reopening: set[int] = set()
        """Rounds that were in flight when the syncer died or the run went back, and have not begun anew."""
        self.void_below = [0] * options.fragments
        """By fragment: versions before this one are void, since the run has gone back behind them."""
        self.is_going_back = False
        """No round opens or closes: the run is about to go back to a record."""

    def remembers(self, round: int) -> bool:
        """Whether what is made for a round can be told from what has been entered for it."""
        return round in self.entered or round in self.expected

    def knows(self, learner: str, round: int, tokens: int) -> bool:
        """Whether what the present process of a learner has handed over for a round, with so many tokens trained, has
        been entered."""
        process = self.learners[learner].process_since if learner in self.learners else 0
        return (learner, process, tokens) in self.entered.get(round, ())

    def unmerged(self) -> list[ContributionAccepted]:
        """Accepted, and waiting to be merged."""
        held = [made for collecting in self.rounds.values() for made in collecting.held]
        return held + [made for waiting in self.late.values() for made in waiting]

    def is_of_present_process(self, made: ContributionAccepted) -> bool:
        learner = self.learners.get(made.learner)
        return learner is not None and learner.process_since <= made.incarnation <= learner.incarnation

    def _resumed(self, event: SyncerResumed) -> None:
        for made in self.unmerged():
            self.entered.get(made.round, set()).discard(self.key(made))
        self._remember(self.options.rounds_saved_max)
        newest = -1 if self.round_newest is None else self.round_newest
        self.expected = range(newest + 1, newest + 1 + self.options.rounds_saved_max)
        for name in list(self.live):
            self._not_live(name)
        self.reopening = set(self.rounds)
        self.rounds.clear()
        self.fragments_in_flight.clear()
        self.late.clear()
        self.may_skip_rounds = self.may_skip_rounds or not self.is_running
        self.finishing_ns = None
        self.has_finished = self.is_collecting = self.is_going_back = False

    @property
    def is_running(self) -> bool:
        """Whether the end has not been reached."""
        return self.finishing_ns is None and not self.has_finished

    @property
    def is_scheduled(self) -> bool:
        """Whether rounds open as they come due."""
        return self.is_running and not self.is_collecting

    def fragment_exists(self, fragment: int) -> bool:
        return 0 <= fragment < self.options.fragments

    def is_late(self, made: ContributionAccepted) -> bool:
        """Its round has closed, or has another contribution of this learner."""
        collecting = self.rounds.get(made.round)
        return collecting is None or collecting.closed_ns is not None or made.learner in collecting.on_time

    def key(self, made: ContributionAccepted | ContributionRefused | ContributionUndelivered) -> tuple[str, int, int]:
        """What tells a contribution from others for its round: a process hands every token over once."""
        learner = self.learners.get(made.learner)
        return made.learner, 0 if learner is None else learner.process_since, made.tokens

    def is_counted(self, refused: ContributionRefused) -> bool:
        """Whether the tokens of a refused contribution are entered as refused: not those of a duplicate, of an earlier
        process, for a round that is forgotten or after the end, nor nonsense."""
        learner = self.learners.get(refused.learner)
        return (
            refused.reason not in NOT_ENTERED
            and learner is not None
            and learner.process_since <= refused.incarnation <= learner.incarnation
            and 0 <= refused.c_tokens <= refused.tokens
            and not self.has_finished
            and self.remembers(refused.round)
            and not self.is_entered(refused)
        )

    def is_entered(self, made: ContributionAccepted | ContributionRefused | ContributionUndelivered) -> bool:
        """Whether this very contribution has been accepted, refused or declared undelivered before."""
        return self.key(made) in self.entered.get(made.round, ())

    # ------------------------------------------------------------------------------------------- learners

    def _seeded(self, event: RunSeeded) -> None:
        self.is_seeded = True
        for digests in self.digests:
            digests.pop(0, None)

    def _joined(self, event: LearnerJoined) -> None:
        learner = self.learners.setdefault(event.learner, Learner())
        if not event.resumed or not learner.process_since:
            learner.process_since = event.incarnation
            learner.clock = 0
        learner.incarnation = event.incarnation
        learner.is_present = True
        self.leaving.discard(event.learner)
        self._not_live(event.learner)

    def _live(self, event: LearnerLive) -> None:
        learner = self.learners.setdefault(event.learner, Learner())
        learner.live_ns = learner.faultless_ns = learner.reported_ns = event.at_ns
        learner.reports = learner.gap_ns = learner.lag = 0
        self.live[event.learner] = learner

    def _not_live(self, name: str) -> None:
        learner = self.live.pop(name, None)
        if learner is not None:
            learner.live_ns = None

    def _leaving(self, event: LearnerLeaving) -> None:
        self._not_live(event.learner)
        self.leaving.add(event.learner)

    def _away(self, event: LearnerAway) -> None:
        self._not_live(event.learner)

    def _departed(self, event: LearnerDeparted) -> None:
        self._not_live(event.learner)
        learner = self.learners.get(event.learner)
        if learner is not None:
            learner.is_present = False

    def _stepped(self, event: StepReported) -> None:
        if event.step_ns > self.step_ns:
            self.step_ns = event.step_ns
        learner = self.live.get(event.learner)
        if learner is None:
            return
        now_ns, clock = event.at_ns, event.clock
        gap_ns = now_ns - learner.reported_ns
        if gap_ns > learner.gap_ns:
            learner.gap_ns = gap_ns
        learner.reported_ns = now_ns
        learner.reports += 1
        learner.clock = clock
        if clock > self.clock:
            self._advance(clock)
        elif self.clock - clock > learner.lag:
            learner.lag = self.clock - clock

    def _advance(self, clock: int) -> None:
        """A live learner is ahead of what was taken for the syncer's clock."""
        quorum = self.options.quorum
        if quorum == 1:
            self.clock = clock
        elif len(self.live) >= quorum:
            clocks = sorted((learner.clock for learner in self.live.values()), reverse=True)
            self.clock = max(self.clock, clocks[quorum - 1])

    def _refused(self, event: ContributionRefused) -> None:
        if self.is_counted(event):
            self._enter(event)
        self._fails(event.learner)

    def _undelivered(self, event: ContributionUndelivered) -> None:
        self._enter(event)
        self._fails(event.learner)

    def _fails(self, name: str) -> None:
        learner = self.live.get(name)
        if learner is not None:
            learner.faultless_ns = self.now_ns

    # ------------------------------------------------------------------------------------------- rounds

    def _opened(self, event: RoundOpened) -> None:
        if not self.fragment_exists(event.fragment):
            return
        opened = Round(event, self.late.pop(event.fragment, []))
        self.rounds[event.round] = self.fragments_in_flight[event.fragment] = opened
        self.round_newest = event.round if self.round_newest is None else max(self.round_newest, event.round)
        self.clock = max(self.clock, event.clock)
        self.may_skip_rounds = self.may_skip_rounds and event.round in self.reopening
        self.reopening.discard(event.round)
        self.entered.setdefault(event.round, set())
        self.expected = range(max(self.expected.start, event.round + 1), self.expected.stop)
        self._remember(self.options.rounds_remembered_max)

    def _remember(self, rounds_max: int) -> None:
        if self.expected:
            rounds_max += sum(round in self.expected for round in self.entered)
        while len(self.entered) > rounds_max:
            del self.entered[min(self.entered)]

    def _enter(self, made: ContributionAccepted | ContributionRefused | ContributionUndelivered) -> None:
        """Remember this contribution; not for longer than its round."""
        if self.remembers(made.round):
            self.entered.setdefault(made.round, set()).add(self.key(made))

    def _accepted(self, event: ContributionAccepted) -> None:
        self._enter(event)
        if not self.is_late(event):
            collecting = self.rounds[event.round]
            collecting.held.append(event)
            collecting.on_time.add(event.learner)
            if len(collecting.on_time) == self.options.quorum:
                collecting.quorum_ns = event.at_ns
            return
        following = self.fragments_in_flight.get(event.fragment)
        if following is not None and following.closed_ns is None and following.number > event.round:
            following.held.append(event)
        else:
            self.late.setdefault(event.fragment, []).append(event)

    def _closed(self, event: RoundClosed) -> None:
        collecting = self.rounds.get(event.round)
        if collecting is not None:
            collecting.closed_ns = event.at_ns

    def _ended(self, event: FragmentCommitted | RoundEmpty) -> None:
        ended = self.rounds.pop(event.round, None)
        if ended is not None and self.fragments_in_flight.get(ended.fragment) is ended:
            del self.fragments_in_flight[ended.fragment]

    def _committed(self, event: FragmentCommitted) -> None:
        self._ended(event)
        if self.fragment_exists(event.fragment):
            self._publish(event.fragment, event.version, event.digest)

    def _spiked(self, event: LossSpiked) -> None:
        self.is_going_back = event.record > 0

    def _rolled_back(self, event: RolledBack) -> None:
        """What was in flight is void; its rounds begin anew."""
        self.is_going_back = False
        self.reopening = set(self.rounds)
        self.rounds.clear()
        self.fragments_in_flight.clear()
        self.late.clear()
        for fragment, (version, digest) in enumerate(zip(event.versions, event.digests, strict=False)):
            if self.fragment_exists(fragment):
                self._publish(fragment, version, digest)
                self.void_below[fragment] = version

    def _adopted(self, event: FragmentAdopted) -> None:
        """The log does not say what version 0 is."""
        if not self.fragment_exists(event.fragment) or event.version in self.digests[event.fragment]:
            return
        if event.version == 0:
            self._publish(event.fragment, event.version, event.digest)

    def _publish(self, fragment: int, version: int, digest: str) -> None:
        digests = self.digests[fragment]
        digests[version] = digest
        if version < next(iter(digests)):  # Version 0 becomes known when it is first adopted.
            digests.move_to_end(version, last=False)
        if len(digests) > self.options.closed_rounds_max:
            digests.popitem(last=False)
        self.versions[fragment] = max(self.versions[fragment], version)

    def _collecting(self, event: DataCollecting) -> None:
        self.is_collecting = event.is_on

    def _finishing(self, event: RunFinishing) -> None:
        self.finishing_ns = event.at_ns

    def _finished(self, event: RunFinished) -> None:
        self.has_finished = True
        self.late.clear()  # Given up.

"""A run as its events tell it: who is live, which rounds are under way and what they hold, which versions there are.

Decides what is remembered of the events so far, for all rules together. Judges nothing: a history that breaks a rule is
taken in as far as it makes sense, and the rules see each event before and after that. Memory is bounded by the
learners' names and by ``closed_rounds_max``, not by the length of the log.

Each start of the syncer is a *life*: ``at_ns`` counts from its beginning. Rounds and members belong to a life, versions
to the run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    FragmentAdopted,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLive,
    RoundClosed,
    RoundEmpty,
    RoundOpened,
    RunFinished,
    RunFinishing,
    RunSeeded,
    StepReported,
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
        self.life = 0
        """How often the syncer has started anew."""
        self.is_seeded = False
        self.versions = [0] * options.fragments
        self.digests: list[OrderedDict[int, str]] = [OrderedDict() for _ in range(options.fragments)]
        """By fragment: version -> digest, of the newest versions."""
        self.step_ns = 0
        """The longest inner step reported."""
        self._begin()
        self.reactions: dict[type[Any], Callable[[Any], None]] = {
            RunSeeded: self._seeded,
            LearnerJoined: self._joined,
            LearnerLive: self._live,
            LearnerAway: self._away,
            LearnerDeparted: self._departed,
            StepReported: self._stepped,
            RoundOpened: self._opened,
            ContributionAccepted: self._accepted,
            ContributionRefused: self._refused,
            ContributionUndelivered: self._undelivered,
            RoundClosed: self._closed,
            FragmentCommitted: self._committed,
            RoundEmpty: self._ended,
            FragmentAdopted: self._adopted,
            RunFinishing: self._finishing,
            RunFinished: self._finished,
        }

    def _begin(self) -> None:
        self.learners: dict[str, Learner] = {}
        self.live: dict[str, Learner] = {}
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
        self.entered: OrderedDict[int, set[tuple[str, int, int]]] = OrderedDict()
        """By round: learner, first incarnation of its process, and its tokens, of the contributions entered for it."""
        self.committed_in_life: set[int] = set()
        """Fragments of which this life has committed a version."""

    def start_anew(self) -> None:
        """Another life of the syncer begins."""
        self.life += 1
        self._begin()

    @property
    def is_running(self) -> bool:
        """Whether rounds open as they come due: the end has not been reached."""
        return self.finishing_ns is None and not self.has_finished

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
            and refused.round in self.entered
            and not self.is_entered(refused)
        )

    def may_be_unlogged(self, adopted: FragmentAdopted) -> bool:
        """Whether a version that the log does not hold may have been adopted: version 0, which nobody commits, or one
        that was published just before the syncer died and started anew."""
        if adopted.version == 0:
            return True
        is_newer = adopted.version > self.versions[adopted.fragment]
        return is_newer and self.life > 0 and adopted.fragment not in self.committed_in_life

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
        self.round_newest = event.round
        self.clock = max(self.clock, event.clock)
        self.entered[event.round] = set()
        while len(self.entered) > self.options.rounds_remembered_max:
            self.entered.popitem(last=False)

    def _enter(self, made: ContributionAccepted | ContributionRefused | ContributionUndelivered) -> None:
        """Remember this contribution; not for longer than its round."""
        entered = self.entered.get(made.round)
        if entered is not None:
            entered.add(self.key(made))

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
            self.committed_in_life.add(event.fragment)
            self._publish(event.fragment, event.version, event.digest)

    def _adopted(self, event: FragmentAdopted) -> None:
        """The log may lack a version that was published just before the syncer died."""
        if not self.fragment_exists(event.fragment) or event.version in self.digests[event.fragment]:
            return
        if self.may_be_unlogged(event):
            self._publish(event.fragment, event.version, event.digest)

    def _publish(self, fragment: int, version: int, digest: str) -> None:
        digests = self.digests[fragment]
        digests[version] = digest
        if version < next(iter(digests)):  # Version 0 becomes known when it is first adopted.
            digests.move_to_end(version, last=False)
        if len(digests) > self.options.closed_rounds_max:
            digests.popitem(last=False)
        self.versions[fragment] = max(self.versions[fragment], version)

    def _finishing(self, event: RunFinishing) -> None:
        self.finishing_ns = event.at_ns

    def _finished(self, event: RunFinished) -> None:
        self.has_finished = True

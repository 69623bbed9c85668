"""Liveness: what must happen within a bound, as long as the world around the protocol keeps to its allowance.

Decides each rule on its own. Bounds are counted in inner steps and rounds; what a step takes is read from the log, what
the network and the disks may take is ``Allowance.transfer_ns`` (T): a message, a body or a commit each. A learner
counts from when it became live until it is not any more, whatever the reason; then everything about it starts afresh.
"""

from __future__ import annotations

from unlockstep.checkers.history import Learner, Round
from unlockstep.checkers.rule import Checker, Reactions
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    DataCollecting,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLeaving,
    LearnerLive,
    LossSpiked,
    RolledBack,
    RoundEmpty,
    RoundOpened,
    RunFinishing,
    RunSeeded,
    SyncerResumed,
)
from unlockstep.core.ids import seconds
from unlockstep.core.options import Participation

Arrival = ContributionAccepted | ContributionRefused | ContributionUndelivered
ARRIVALS = (ContributionAccepted, ContributionRefused, ContributionUndelivered)
"""A learner has done its part: it has handed over, whatever became of that."""


class Progress(Checker):
    """While at least K learners are live and nothing of theirs is refused,

    * a round lasts ``X = (3 + lag) * S + grace_cap_steps * S_max + 4 * T`` at most. A learner may be in a step, adopt
      at its end, which leaves it nothing to give, and need two more to be asked and to answer; then come the message
      that tells, the pull, the upload and the commit. Under ``fresh`` it must first make up for its ``lag``;
    * from one round's end of a fragment to the next, ``(H + P + lag) * S + (P + 1) * Y + X`` goes by at most: P rounds
      come due, each after H/P steps of the clock, rounded up, and each may have to wait for one that is in flight.

    S is the longest silence between two steps of the K learners that report most often, S_max the longest step of all,
    lag the most steps that the clock of one of the K was behind the syncer's, and Y the longest that a round has lasted
    in this log."""

    name = "progress"
    meaning = "with at least K live learners every fragment commits within a bound"

    def begin(self) -> None:
        self._ended_ns: list[int | None] = [None] * self.options.fragments
        """When the latest round of each fragment was over, or the run could begin."""
        self._longest_ns = 0
        """What a round has lasted."""

    def resume(self, event: SyncerResumed) -> None:
        self.begin()

    def roll_back(self, event: LossSpiked | RolledBack) -> None:
        """Everybody loads: nothing is promised until they have."""
        self.begin()

    def before(self) -> Reactions:
        leaving = (
            LearnerAway,
            LearnerDeparted,
            LearnerJoined,
            LearnerLeaving,
            ContributionRefused,
            ContributionUndelivered,
        )
        return {
            RunSeeded: self._seeded,
            RunFinishing: self._finishing,
            DataCollecting: self._finishing,
            RoundOpened: self._opened,
            FragmentCommitted: self._ended,
            RoundEmpty: self._ended,
            **dict.fromkeys(leaving, self._leaves),
        }

    def _seeded(self, event: RunSeeded) -> None:
        self._ended_ns = [event.at_ns] * self.options.fragments

    def _opened(self, event: RoundOpened) -> None:
        """In a new life the run goes on with its first round."""
        if self._ended_ns[0] is None:
            self._ended_ns = [event.at_ns] * self.options.fragments

    def _ended(self, event: FragmentCommitted | RoundEmpty) -> None:
        history = self.history
        collecting = history.rounds.get(event.round)
        if collecting is None or not history.is_scheduled:
            return
        self._longest_ns = max(self._longest_ns, event.at_ns - collecting.opened_ns)
        steady = self._steady()
        self._judge_round(collecting, steady)
        self._judge_fragment(collecting.fragment, steady)
        self._ended_ns[collecting.fragment] = event.at_ns

    def _leaves(self, event: LearnerAway | LearnerDeparted | LearnerJoined | LearnerLeaving | Arrival) -> None:
        if event.learner in self.history.live:
            self._judge()

    def _finishing(self, event: RunFinishing | DataCollecting) -> None:
        self._judge()

    def finish(self) -> None:
        self._judge()

    def _judge(self) -> None:
        if self.history.is_scheduled and not self.history.is_going_back:
            steady = self._steady()
            for collecting in self.history.rounds.values():
                self._judge_round(collecting, steady)
            for fragment in range(self.options.fragments):
                self._judge_fragment(fragment, steady)

    def _steady(self) -> list[Learner]:
        """The K live learners that report most often; fewer if there are not so many."""
        live, now_ns, quorum = self.history.live.values(), self.history.now_ns, self.options.quorum
        if quorum == 1 and live:
            return [min(live, key=lambda learner: learner.silence_ns(now_ns))]
        return sorted(live, key=lambda learner: learner.silence_ns(now_ns))[:quorum]

    def _pace(self, steady: list[Learner]) -> tuple[int, int]:
        """S and lag."""
        now_ns = self.history.now_ns
        return max(learner.silence_ns(now_ns) for learner in steady), max(learner.lag for learner in steady)

    def _round_ns_max(self, silence_ns: int, lag: int) -> int:
        grace_ns = int(self.options.grace_cap_steps * self.history.step_ns)
        return (3 + lag) * silence_ns + grace_ns + 4 * self.allowance.transfer_ns

    def _judge_round(self, collecting: Round, steady: list[Learner]) -> None:
        if len(steady) < self.options.quorum:
            return
        since_ns = max(collecting.opened_ns, *(learner.faultless_ns for learner in steady))
        lasted_ns = self.history.now_ns - since_ns
        limit_ns = self._round_ns_max(*self._pace(steady))
        if lasted_ns > limit_ns:
            self.find(
                f"round {collecting.number} of fragment {collecting.fragment} takes {seconds(lasted_ns)} with "
                f"{len(self.history.live)} learners live; the bound is {seconds(limit_ns)}"
            )

    def _judge_fragment(self, fragment: int, steady: list[Learner]) -> None:
        ended_ns = self._ended_ns[fragment]
        if ended_ns is None or len(steady) < self.options.quorum:
            return
        waited_ns = self.history.now_ns - max(ended_ns, *(learner.faultless_ns for learner in steady))
        silence_ns, lag = self._pace(steady)
        fragments = self.options.fragments
        due_ns = (self.options.interval_steps + fragments + lag) * silence_ns
        limit_ns = due_ns + (fragments + 1) * self._lasting_ns() + self._round_ns_max(silence_ns, lag)
        if waited_ns > limit_ns:
            self.find(
                f"fragment {fragment} is not committed for {seconds(waited_ns)} with {len(self.history.live)} learners "
                f"live; the bound is {seconds(limit_ns)}"
            )

    def _lasting_ns(self) -> int:
        """Y, also of rounds that are not over."""
        now_ns = self.history.now_ns
        return max([self._longest_ns, *(now_ns - each.opened_ns for each in self.history.rounds.values())])


class _Part:
    """How far a live learner is from giving to each fragment again."""

    __slots__ = ("asked_ns", "chances", "gave_ns", "reports")

    def __init__(self, fragments: int) -> None:
        self.chances = [0] * fragments
        """Rounds opened since it last gave, each of them two steps after that or after the round before."""
        self.reports = [0] * fragments
        """How many steps it had reported at the latest of these."""
        self.asked_ns = [0] * fragments
        """When the second of these rounds opened."""
        self.gave_ns = 0
        """When it gave last, to whatever fragment."""


class TakingPart(Checker):
    """Under ``latest`` every live learner gives to every fragment, however slow it is. A step after it gave it has
    something to give again, unless it adopts a version at the end of just that step; after this, what it has is kept
    until it is asked. So of two rounds of a fragment, opened two of its steps after it gave and two more after that, at
    least the second asks it, and it answers within ``2 * T`` and its longest step: it gives within
    ``ceil(4 * ratio / H) + 2`` rounds, and those opened while its answer is on its way, if its steps take ``ratio``
    times as long as those of the K-th fastest. Over a link that carries less than it is asked for, its fragments take
    turns, each after a newer base for it has come: then it gives to some fragment in that time, and to every one within
    ``P * T`` more. (An answer that comes late counts here, also if ``late = "drop"``
    refuses it.) Under ``fresh`` nobody is promised anything."""

    name = "taking_part"
    meaning = "under latest every live learner gives to every fragment within a bounded number of rounds"

    def begin(self) -> None:
        self._parts: dict[str, _Part] = {}

    def resume(self, event: SyncerResumed) -> None:
        self.begin()

    def roll_back(self, event: LossSpiked | RolledBack) -> None:
        """Everybody loads: nothing is promised until they have."""
        self.begin()

    def before(self) -> Reactions:
        if self.options.participation is not Participation.LATEST:
            return {}
        return {
            RunFinishing: self._finishing,
            DataCollecting: self._finishing,
            **dict.fromkeys((LearnerAway, LearnerDeparted, LearnerJoined, LearnerLeaving), self._leaves),
            **dict.fromkeys(ARRIVALS, self._gives),
        }

    def after(self) -> Reactions:
        if self.options.participation is not Participation.LATEST:
            return {}
        return {RoundOpened: self._opened, LearnerLive: self._live}

    def _live(self, event: LearnerLive) -> None:
        self._parts[event.learner] = _Part(self.options.fragments)

    def _opened(self, event: RoundOpened) -> None:
        fragment, live = event.fragment, self.history.live
        if not self.history.is_scheduled or not self.history.fragment_exists(fragment):
            return
        for name, part in self._parts.items():
            if part.chances[fragment] < 2:
                reports = live[name].reports
                if reports - part.reports[fragment] >= 2:
                    part.chances[fragment] += 1
                    part.reports[fragment] = reports
                    part.asked_ns[fragment] = event.at_ns

    def _gives(self, made: Arrival) -> None:
        part = self._parts.get(made.learner)
        if part is not None and self.history.fragment_exists(made.fragment):
            self._judge(made.learner, part, made.fragment)
            part.chances[made.fragment] = 0
            part.reports[made.fragment] = self.history.live[made.learner].reports
            part.gave_ns = self.history.now_ns

    def _judge(self, name: str, part: _Part, fragment: int) -> None:
        if part.chances[fragment] < 2:
            return
        now_ns = self.history.now_ns
        asked_ns, turn_ns = part.asked_ns[fragment], self.allowance.transfer_ns
        limit_ns = self.history.live[name].silence_ns(now_ns) + 2 * turn_ns
        waited_ns = now_ns - asked_ns
        limit_ns += min(max(0, part.gave_ns - asked_ns), self.options.fragments * turn_ns)
        if waited_ns > limit_ns and self.history.is_scheduled:
            self.find(
                f"{name} is live and gives nothing to fragment {fragment} for {seconds(waited_ns)} after a round that "
                f"should have asked it; the bound is {seconds(limit_ns)}"
            )

    def _leaves(self, event: LearnerAway | LearnerDeparted | LearnerJoined | LearnerLeaving) -> None:
        part = self._parts.get(event.learner)
        if part is not None:
            self._judge_all(event.learner, part)
            del self._parts[event.learner]

    def _judge_all(self, name: str, part: _Part) -> None:
        for fragment in range(self.options.fragments):
            self._judge(name, part, fragment)

    def _finishing(self, event: RunFinishing | DataCollecting) -> None:
        self.finish()

    def finish(self) -> None:
        for name, part in self._parts.items():
            self._judge_all(name, part)


class Joining(Checker):
    """Under ``latest`` a process that has joined gives to the first round opened after its first step, within ``2 * T``
    and its longest step: it has something to give to every fragment, and keeps it until it is asked."""

    name = "joining"
    meaning = "under latest a joiner gives to the first round opened after its first step"

    def begin(self) -> None:
        self._new: set[str] = set()
        """Joined, and not live yet."""
        self._waiting: dict[str, int | None] = {}
        """Live, and has not given yet -> when the round opened that asks it."""

    def resume(self, event: SyncerResumed) -> None:
        self.begin()

    def roll_back(self, event: LossSpiked | RolledBack) -> None:
        """Everybody loads: nothing is promised until they have."""
        self.begin()

    def before(self) -> Reactions:
        if self.options.participation is not Participation.LATEST:
            return {}
        return {
            RunFinishing: self._finishing,
            DataCollecting: self._finishing,
            LearnerJoined: self._joined,
            **dict.fromkeys((LearnerAway, LearnerDeparted, LearnerLeaving), self._leaves),
            **dict.fromkeys(ARRIVALS, self._gives),
        }

    def after(self) -> Reactions:
        if self.options.participation is not Participation.LATEST:
            return {}
        return {LearnerLive: self._live, RoundOpened: self._opened}

    def _joined(self, event: LearnerJoined) -> None:
        self._forget(event.learner)
        if not event.resumed:
            self._new.add(event.learner)

    def _live(self, event: LearnerLive) -> None:
        if event.learner in self._new:
            self._new.remove(event.learner)
            self._waiting[event.learner] = None

    def _opened(self, event: RoundOpened) -> None:
        if self._waiting and self.history.is_scheduled:
            for name, asked_ns in self._waiting.items():
                if asked_ns is None and self.history.live[name].reports >= 1:
                    self._waiting[name] = event.at_ns

    def _gives(self, made: Arrival) -> None:
        if made.learner in self._waiting:
            self._forget(made.learner)

    def _leaves(self, event: LearnerAway | LearnerDeparted | LearnerLeaving) -> None:
        self._forget(event.learner)
        self._new.discard(event.learner)

    def _forget(self, name: str) -> None:
        if name in self._waiting:
            self._judge(name)
            del self._waiting[name]

    def _judge(self, name: str) -> None:
        asked_ns, now_ns = self._waiting[name], self.history.now_ns
        if asked_ns is None or not self.history.is_scheduled:
            return
        limit_ns = self.history.live[name].silence_ns(now_ns) + 2 * self.allowance.transfer_ns
        if now_ns - asked_ns > limit_ns:
            self.find(
                f"{name} has joined and gives nothing for {seconds(now_ns - asked_ns)} after a round that should have "
                f"asked it; the bound is {seconds(limit_ns)}"
            )

    def _finishing(self, event: RunFinishing | DataCollecting) -> None:
        self.finish()

    def finish(self) -> None:
        for name in self._waiting:
            self._judge(name)

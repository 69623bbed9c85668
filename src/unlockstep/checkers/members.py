"""Safety of membership: who is given up for dead, who is shut out, and what is heard in between, from the events.

Decides each rule on its own. Incarnations, which tell starts of a learner apart, are in ``safety``.
"""

from __future__ import annotations

from collections import Counter

from unlockstep.checkers.rule import Checker, Reactions
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    FragmentAdopted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLive,
    RoundOpened,
    RunFinished,
    StepReported,
    SyncerResumed,
)
from unlockstep.core.ids import NEVER_NS, seconds
from unlockstep.core.options import Participation
from unlockstep.core.reasons import DepartureReason, RefusalReason

STRIKING = (
    RefusalReason.NON_FINITE,
    RefusalReason.WRONG_SIZE,
    RefusalReason.MALFORMED,
    RefusalReason.BAD_COUNTS,
    RefusalReason.ABSURD_NORM,
)
"""What speaks against the learner, not against its timing or the network."""


class Leases(Checker):
    """Nobody is given up for dead before a whole lease has gone by since it was heard of last. Whoever is away is, when
    a lease and a message that was still on its way have gone by since its connection broke or something of its was
    accepted. (Heartbeats are not in the log: of a connection that stands nothing can be said.)"""

    name = "leases"
    meaning = "a learner is given up for dead a lease after it was heard of last, neither before nor long after"

    def begin(self) -> None:
        self._heard_ns: dict[str, int] = {}
        """When something was said or handed over last."""
        self._away_ns: dict[str, int] = {}
        """Since when a lease runs that nothing but a contribution can renew."""

    def resume(self, event: SyncerResumed) -> None:
        """Everybody has a whole lease to come back."""
        present = [name for name, learner in self.history.learners.items() if learner.is_present]
        self._heard_ns = dict.fromkeys(present, event.at_ns)
        self._away_ns = dict.fromkeys(present, event.at_ns)

    def before(self) -> Reactions:
        return {
            **dict.fromkeys((LearnerLive, StepReported, FragmentAdopted, ContributionAccepted), self._hears),
            LearnerJoined: self._joins,
            LearnerAway: self._loses,
            LearnerDeparted: self._departs,
            RunFinished: self._finished,
        }

    def _hears(self, event: LearnerLive | StepReported | FragmentAdopted | ContributionAccepted) -> None:
        self._heard_ns[event.learner] = event.at_ns
        if event.learner in self._away_ns:
            self._judge(event.learner)
            self._away_ns[event.learner] = event.at_ns

    def _joins(self, event: LearnerJoined) -> None:
        self._judge(event.learner)
        self._away_ns.pop(event.learner, None)
        self._heard_ns[event.learner] = event.at_ns

    def _loses(self, event: LearnerAway) -> None:
        self._away_ns[event.learner] = event.at_ns

    def _departs(self, event: LearnerDeparted) -> None:
        silent_ns = event.at_ns - self._heard_ns.get(event.learner, 0)
        if event.reason is DepartureReason.LEASE_EXPIRED and silent_ns < self.options.lease_ns:
            self.find(f"{event.learner} is given up for dead {seconds(silent_ns)} after it was heard of")
        self._judge(event.learner)
        self._away_ns.pop(event.learner, None)

    def _judge(self, name: str) -> None:
        waited_ns = self.history.now_ns - self._away_ns.get(name, self.history.now_ns)
        limit_ns = self.options.lease_ns + self.allowance.timer_ns + self.allowance.transfer_ns
        if waited_ns > limit_ns:
            self.find(f"{name} is away for {seconds(waited_ns)} and still a member; the bound is {seconds(limit_ns)}")

    def _finished(self, event: RunFinished) -> None:
        self.finish()
        self._away_ns.clear()

    def finish(self) -> None:
        for name in self._away_ns:
            self._judge(name)


class Strikes(Checker):
    """A refusal that speaks against a learner that is a member is a strike, and an accepted contribution takes all of
    its strikes back. With ``strikes_max`` it is shut out at once, not before: the n-th time for ``quarantine_s *
    2^(n-1)``, at most ``quarantine_s_max``, or for good if that is 0. Then it may join, as a new process without
    strikes."""

    name = "strikes"
    meaning = "a learner is shut out with its last strike, not before, and stays out as long as it must"

    def begin(self) -> None:
        self._strikes: Counter[str] = Counter()
        self._out_until_ns: dict[str, int] = {}
        """Of those that are shut out; ``NEVER_NS``: for good."""
        self._times: Counter[str] = Counter()

    def before(self) -> Reactions:
        return {
            ContributionRefused: self._refused,
            ContributionAccepted: self._accepted,
            StepReported: self._acts,
            LearnerDeparted: self._departs,
            LearnerJoined: self._joins,
        }

    def _refused(self, event: ContributionRefused) -> None:
        known = self.history.learners.get(event.learner)
        if known is None or not known.is_present or known.incarnation != event.incarnation:
            return
        self._acts(event)
        self._strikes[event.learner] += event.reason in STRIKING
        if event.strikes != self._strikes[event.learner]:
            self.find(f"{event.learner} has {self._strikes[event.learner]} strikes, not {event.strikes}")

    def _accepted(self, event: ContributionAccepted) -> None:
        self._acts(event)
        self._strikes[event.learner] = 0

    def _acts(self, event: StepReported | ContributionAccepted | ContributionRefused) -> None:
        if self._strikes[event.learner] >= self.options.strikes_max:
            self.find(f"{event.learner} is still a member with {self._strikes[event.learner]} strikes")

    def _departs(self, event: LearnerDeparted) -> None:
        if event.reason is not DepartureReason.QUARANTINED:
            return
        self._times[event.learner] += 1
        pause_ns = self.options.quarantine_ns(self._times[event.learner])
        self._out_until_ns[event.learner] = NEVER_NS if pause_ns == NEVER_NS else event.at_ns + pause_ns
        if self._strikes[event.learner] < self.options.strikes_max:
            self.find(
                f"{event.learner} is shut out with {self._strikes[event.learner]} of {self.options.strikes_max} strikes"
            )

    def _joins(self, event: LearnerJoined) -> None:
        until_ns = self._out_until_ns.pop(event.learner, None)
        if until_ns is None:
            return
        self._strikes[event.learner] = 0
        if event.at_ns < until_ns:
            left = "for good" if until_ns == NEVER_NS else f"for another {seconds(until_ns - event.at_ns)}"
            self.find(f"{event.learner} joins, and is shut out {left}")
        elif event.resumed:
            self.find(f"{event.learner} was shut out, and goes on with what it had")


class Members(Checker):
    """At most ``learners_max`` are members at a time. A round asks those who are due for it: under ``fresh`` a learner
    whose clock has reached the step at which the round opens, but for the last rounds of a run."""

    name = "members"
    meaning = "no more than learners_max are members, and under fresh only who has reached its step is asked by a round"

    def before(self) -> Reactions:
        return {RoundOpened: self._opened}

    def after(self) -> Reactions:
        return {LearnerJoined: self._joined}

    def _joined(self, event: LearnerJoined) -> None:
        present = sum(learner.is_present for learner in self.history.learners.values())
        if present > self.options.learners_max:
            self.find(f"{event.learner} joins as the {present}th member of {self.options.learners_max}")

    def _opened(self, event: RoundOpened) -> None:
        if self.options.participation is not Participation.FRESH or not self.history.is_scheduled:
            return
        for name in event.asked:
            learner = self.history.live.get(name)
            if learner is not None and learner.clock < event.clock:
                self.find(f"round {event.round} of step {event.clock} asks {name}, which is at step {learner.clock}")


class Steps(Checker):
    """While the connection of a live learner stands, every inner step of its is reported, each once and in order."""

    name = "steps"
    meaning = "a live learner reports every inner step"

    def begin(self) -> None:
        self._steps: dict[str, int] = {}

    def before(self) -> Reactions:
        return {StepReported: self._stepped}

    def _stepped(self, event: StepReported) -> None:
        live, before = self.history.live.get(event.learner), self._steps.get(event.learner, 0)
        if live is not None and live.reports > 0 and event.steps != before + 1:
            self.find(f"{event.learner} reports step {event.steps} after step {before}")
        self._steps[event.learner] = event.steps

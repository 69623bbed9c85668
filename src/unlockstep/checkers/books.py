"""Safety of the books: what is merged is what was handed over, once, with its weight, and every token is accounted for.

Decides each rule on its own, by counting from the events; none of them asks the protocol's own ledger, but to compare.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from unlockstep.checkers.rule import Checker, Reactions
from unlockstep.core.events import (
    ContributionAccepted,
    ContributionRefused,
    ContributionUndelivered,
    FragmentCommitted,
    LearnerDeparted,
    LearnerJoined,
    LossSpiked,
    RolledBack,
    RoundEmpty,
    RoundOpened,
    RunFinished,
    StepReported,
    SyncerResumed,
    TokensOverwritten,
)
from unlockstep.core.options import Late
from unlockstep.core.status import LedgerStatus

TOLERANCE = 1e-9
"""Of shares, which are sums of float64."""
TOKENS_TOLERANCE = 1e-6
"""Of a token, relative to all: the ledger shows means over fragments."""


class Contributions(Checker):
    """An accepted contribution is one that was not entered before, made for a round that was opened, with at least one
    step and no more tokens than its process had trained. It counts once: on time in its own round, or, if that has
    closed or holds another one of its learner, in the fragment's next one (never under ``late = "drop"``). What a
    commit merges is exactly that."""

    name = "contributions"
    meaning = "a contribution counts at most once: in its own round, or late in the fragment's next one"

    def before(self) -> Reactions:
        return {ContributionAccepted: self._accepted, FragmentCommitted: self._committed}

    def _accepted(self, made: ContributionAccepted) -> None:
        history = self.history
        if history.has_finished:
            self.find(f"{_whose(made)} is accepted after the end of the run")
        if made.fragment != made.round % self.options.fragments:
            self.find(f"{_whose(made)} is for fragment {made.fragment}")
        is_opened = history.round_newest is not None and made.round <= history.round_newest
        if not is_opened and made.round not in history.expected:
            self.find(f"{_whose(made)} is for a round that was never opened")
        if history.is_entered(made):
            self.find(f"{_whose(made)} at {made.tokens} tokens is entered a second time")
        if made.c_steps < 1 or not 0 <= made.c_tokens <= made.tokens:
            self.find(f"{_whose(made)} counts {made.c_steps} steps and {made.c_tokens} of {made.tokens} tokens")
        is_late = history.is_late(made)
        if is_late != made.late:
            self.find(
                f"{_whose(made)} is {'late, but counted as on time' if is_late else 'on time, but counted as late'}"
            )
        elif is_late and self.options.late is Late.DROP and made.learner not in history.leaving:
            self.find(f"{_whose(made)} is late and was not refused")

    def _committed(self, event: FragmentCommitted) -> None:
        collecting = self.history.rounds.get(event.round)
        held = 0 if collecting is None else sum(made.c_tokens for made in collecting.held)
        if event.tokens != held:
            self.find(f"round {event.round} merges {event.tokens} tokens, but holds {held}")


class Staleness(Checker):
    """A contribution starts from a version that its fragment has had, at most ``staleness_max`` before the newest, and
    not before one with which the run has gone back."""

    name = "staleness"
    meaning = "no contribution is accepted from a version that is void or more than staleness_max behind the newest"

    def before(self) -> Reactions:
        return {ContributionAccepted: self._accepted}

    def _accepted(self, made: ContributionAccepted) -> None:
        if made.base_version < 0 or not 0 <= made.staleness <= self.options.staleness_max:
            self.find(
                f"{_whose(made)} starts from version {made.base_version}, {made.staleness} behind; at most "
                f"{self.options.staleness_max} are allowed"
            )
        history = self.history
        if history.fragment_exists(made.fragment):
            newest = history.versions[made.fragment]
            if made.base_version < (void_below := history.void_below[made.fragment]):
                self.find(
                    f"{_whose(made)} starts from version {made.base_version}, but those before {void_below} are void"
                )
            if made.staleness != newest - made.base_version:
                self.find(f"{_whose(made)} starts from version {made.base_version} of {newest}, not as it says")


class Weights(Checker):
    """The weights of a commit are finite, positive and sum to one; there is one for each learner in the round that has
    tokens, and each is its share of (tokens)^2 / steps, summed over its contributions (paper, Sec. 3.2)."""

    name = "weights"
    meaning = "weights are finite, positive, sum to one, and are the shares of tokens^2 / steps"

    def before(self) -> Reactions:
        return {FragmentCommitted: self._committed}

    def _committed(self, event: FragmentCommitted) -> None:
        weights = event.weights
        for learner, weight in weights.items():
            if not (math.isfinite(weight) and 0 < weight <= 1 + TOLERANCE):
                self.find(f"round {event.round} gives {learner} the weight {weight}")
                return
        if not math.isclose(math.fsum(weights.values()), 1.0, abs_tol=TOLERANCE):
            self.find(f"the weights of round {event.round} sum to {math.fsum(weights.values())}")
            return
        collecting = self.history.rounds.get(event.round)
        if collecting is None:
            return
        steps: dict[str, int] = {}
        tokens: dict[str, int] = {}
        for made in collecting.held:
            steps[made.learner] = steps.get(made.learner, 0) + made.c_steps
            tokens[made.learner] = tokens.get(made.learner, 0) + made.c_tokens
        due = {
            learner: tokens[learner] ** 2 / steps[learner] for learner in tokens if tokens[learner] > 0 < steps[learner]
        }
        if weights.keys() != due.keys():
            self.find(f"round {event.round} weighs {sorted(weights)}, but has tokens of {sorted(due)}")
            return
        whole = math.fsum(due.values())
        for learner, share in due.items():
            if abs(weights[learner] - share / whole) > TOLERANCE:
                self.find(f"round {event.round} gives {learner} the weight {weights[learner]}, not {share / whole}")


class Tokens(Checker):
    """Of what a process has trained, no fragment's accepted, refused, overwritten and undelivered tokens and those it
    declares dropped when it leaves are ever more: a token has one fate. What it reports to have trained only grows. At
    the end nothing is in flight, no class of the ledger is negative, all of them together are what was trained, and
    each is what the events add up to. Lost and dropped are compared together: the log does not say what a learner had
    that died."""

    name = "tokens"
    meaning = "tokens balance to zero: each has one fate, and all of them together are what was trained"

    def begin(self) -> None:
        self._trained: dict[str, int] = {}
        """Learner -> tokens its present process has trained."""
        self._reported: dict[str, tuple[int, int, int]] = {}
        """Learner -> incarnation, steps and tokens of its latest report."""
        self._before = 0
        """The same of earlier processes, all learners."""
        self._gone: dict[str, list[int]] = {}
        """Learner -> by fragment, tokens of its present process whose fate is known."""
        self._overwritten: set[tuple[str, int]] = set()
        """Learners and fragments to look at once the step is known that has trained the tokens."""
        self._sums: Counter[str] = Counter()

    def resume(self, event: SyncerResumed) -> None:
        """What was accepted and not merged is with its learner again, or lost with it."""
        for made in self.history.unmerged():
            self._sums["accepted"] -= made.c_tokens
            if self.history.is_of_present_process(made):
                self._goes(made.learner, made.fragment, -made.c_tokens)
        self._overwritten.clear()

    def before(self) -> Reactions:
        return {
            LearnerJoined: self._joined,
            StepReported: self._stepped,
            ContributionAccepted: self._accepted,
            ContributionRefused: self._refused,
            ContributionUndelivered: self._undelivered,
            TokensOverwritten: self._overwrites,
            LearnerDeparted: self._departed,
            FragmentCommitted: self._committed,
            RunFinished: self._finished,
        }

    def _joined(self, event: LearnerJoined) -> None:
        if not event.resumed:
            self._before += self._trained.pop(event.learner, 0)
            self._gone[event.learner] = [0] * self.options.fragments

    def _stepped(self, event: StepReported) -> None:
        incarnation, steps, tokens = self._reported.get(event.learner, (0, 0, 0))
        if event.incarnation == incarnation and (event.steps <= steps or event.tokens < tokens):
            self.find(
                f"{event.learner} reports {event.steps} steps and {event.tokens} tokens, after {steps} steps and "
                f"{tokens} tokens"
            )
        self._reported[event.learner] = event.incarnation, event.steps, event.tokens
        if event.tokens > self._trained.get(event.learner, 0):
            self._trained[event.learner] = event.tokens
        if self._overwritten:
            for learner, fragment in sorted(self._overwritten):
                self._look(learner, fragment)
            self._overwritten.clear()

    def _goes(self, learner: str, fragment: int, tokens: int) -> None:
        gone = self._gone.setdefault(learner, [0] * self.options.fragments)
        if self.history.fragment_exists(fragment):
            gone[fragment] += tokens

    def _look(self, learner: str, fragment: int) -> None:
        gone = self._gone.get(learner)
        if gone is None or not self.history.fragment_exists(fragment):
            return
        trained = self._trained.get(learner, 0)
        if gone[fragment] > trained:
            self.find(
                f"{learner} has trained {trained} tokens, but {gone[fragment]} of fragment {fragment} are entered"
            )

    def _hands_over(self, made: ContributionAccepted | ContributionRefused | ContributionUndelivered) -> None:
        if made.tokens > self._trained.get(made.learner, 0):
            self._trained[made.learner] = made.tokens
        self._goes(made.learner, made.fragment, made.c_tokens)
        self._look(made.learner, made.fragment)

    def _accepted(self, made: ContributionAccepted) -> None:
        self._hands_over(made)
        self._sums["accepted"] += made.c_tokens

    def _refused(self, made: ContributionRefused) -> None:
        if self.history.is_counted(made):
            self._hands_over(made)
            self._sums["refused"] += made.c_tokens

    def _undelivered(self, lost: ContributionUndelivered) -> None:
        """It is told before the step that trained them."""
        self._hands_over(lost)
        self._sums["dropped"] += lost.c_tokens

    def _overwrites(self, event: TokensOverwritten) -> None:
        """It is told before the step that trained them."""
        self._goes(event.learner, event.fragment, event.tokens)
        self._overwritten.add((event.learner, event.fragment))
        self._sums["overwritten"] += event.tokens

    def _departed(self, event: LearnerDeparted) -> None:
        for fragment, tokens in enumerate(event.tokens_dropped):
            self._goes(event.learner, fragment, tokens)
            self._look(event.learner, fragment)
        self._sums["dropped"] += sum(event.tokens_dropped)

    def _committed(self, event: FragmentCommitted) -> None:
        collecting = self.history.rounds.get(event.round)
        if collecting is not None:
            late = sum(made.c_tokens for made in collecting.held if made.round != event.round)
            self._sums["merged late"] += late
            self._sums["merged"] += sum(made.c_tokens for made in collecting.held) - late

    def _finished(self, event: RunFinished) -> None:
        if event.tokens_under_way < 0:
            self.find(f"{event.tokens_under_way} tokens were under way at the end")
        if event.ledger is None:
            return
        for sentence in imbalances(event.ledger):
            self.find(sentence)
        if event.ledger.in_flight:
            self.find(f"{event.ledger.in_flight} tokens are in flight after the end")
        for name, counted, entered in self._compared(event.ledger):
            if not math.isclose(counted, entered, rel_tol=TOKENS_TOLERANCE, abs_tol=TOKENS_TOLERANCE):
                self.find(f"the ledger ends with {entered} tokens {name}, the events add up to {counted}")

    def _compared(self, ledger: LedgerStatus) -> Iterator[tuple[str, float, float]]:
        """Name, what the events add up to, what the ledger says."""
        sums, fragments = self._sums, self.options.fragments
        trained = self._before + sum(self._trained.values())
        given_up = sums["accepted"] - sums["merged"] - sums["merged late"]
        refused = sums["refused"] + given_up
        yield "trained", trained, ledger.trained
        yield "merged", sums["merged"] / fragments, ledger.merged
        yield "merged late", sums["merged late"] / fragments, ledger.merged_late
        yield "refused", refused / fragments, sum(ledger.refused.values())
        yield "overwritten", sums["overwritten"] / fragments, ledger.overwritten
        rest = trained - (sums["accepted"] + sums["refused"] + sums["overwritten"]) / fragments
        yield "lost or dropped", rest, ledger.lost + ledger.dropped
        if ledger.dropped < sums["dropped"] / fragments - TOKENS_TOLERANCE:
            yield "dropped", sums["dropped"] / fragments, ledger.dropped


def imbalances(ledger: LedgerStatus) -> Iterator[str]:
    """What is wrong with a ledger taken by itself: a class below zero, or a sum that is not what was trained."""
    classes = {
        "merged": ledger.merged,
        "merged late": ledger.merged_late,
        **{f"refused as {reason}": tokens for reason, tokens in ledger.refused.items()},
        "overwritten": ledger.overwritten,
        "dropped": ledger.dropped,
        "lost": ledger.lost,
        "in flight": ledger.in_flight,
    }
    for name, tokens in classes.items():
        if tokens < -TOKENS_TOLERANCE:
            yield f"{tokens} tokens are {name}"
    whole = math.fsum(classes.values())
    if not math.isclose(whole, ledger.trained, rel_tol=TOKENS_TOLERANCE, abs_tol=TOKENS_TOLERANCE):
        yield f"{ledger.trained} tokens were trained, but {whole} are accounted for"


class Memory(Checker):
    """What the syncer holds stays bounded. A learner is asked once a round, so it hands over at most once for each
    round of a fragment, and once more for each time it was asked again: after it joined, or one of its contributions
    was refused or not delivered. Of these at most those made from the last ``staleness_max`` versions, one in making
    and one in merging are held at a time. (Rounds in flight: ``rotation``.)"""

    name = "memory"
    meaning = "the contributions held, and the events of a round, stay bounded"

    def begin(self) -> None:
        self._rounds = [0] * self.options.fragments
        """Opened, by fragment."""
        self._accepted: Counter[tuple[str, int]] = Counter()
        self._asked_again: Counter[tuple[str, int]] = Counter()
        self._joined: Counter[str] = Counter()
        self._held: Counter[tuple[str, int]] = Counter()

    def resume(self, event: SyncerResumed) -> None:
        self._void()

    def roll_back(self, event: LossSpiked | RolledBack) -> None:
        """Rounds that begin anew ask everybody once more."""
        if isinstance(event, RolledBack):
            self._void()

    def _void(self) -> None:
        for made in self.history.unmerged():
            self._accepted[made.learner, made.fragment] -= 1
        self._held.clear()

    def before(self) -> Reactions:
        return {
            RoundOpened: self._opened,
            LearnerJoined: self._joins,
            ContributionAccepted: self._accepts,
            ContributionRefused: self._fails,
            ContributionUndelivered: self._fails,
            FragmentCommitted: self._merged,
            RoundEmpty: self._merged,
        }

    def _opened(self, event: RoundOpened) -> None:
        if self.history.fragment_exists(event.fragment):
            self._rounds[event.fragment] += 1

    def _joins(self, event: LearnerJoined) -> None:
        self._joined[event.learner] += 1

    def _fails(self, event: ContributionRefused | ContributionUndelivered) -> None:
        self._asked_again[event.learner, event.fragment] += 1

    def _accepts(self, made: ContributionAccepted) -> None:
        if not self.history.fragment_exists(made.fragment):
            return
        key = made.learner, made.fragment
        self._accepted[key] += 1
        self._held[key] += 1
        again = self._joined[made.learner] + self._asked_again[key]
        asked = self._rounds[made.fragment] + again
        if self._accepted[key] > asked:
            self.find(
                f"{_whose(made)} is its {self._accepted[key]}th of the fragment, but it was asked {asked} times at most"
            )
        if self._held[key] > self.options.staleness_max + 2 + again:
            self.find(f"{self._held[key]} contributions of {made.learner} to fragment {made.fragment} are held at once")

    def _merged(self, event: FragmentCommitted | RoundEmpty) -> None:
        collecting = self.history.rounds.get(event.round)
        for made in () if collecting is None else collecting.held:
            self._held[made.learner, made.fragment] -= 1


def _whose(made: ContributionAccepted) -> str:
    return f"the contribution of {made.learner} to round {made.round}"

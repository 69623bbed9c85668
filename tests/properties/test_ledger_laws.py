"""Laws of the ledger: whatever happens to tokens, and in whatever order, they are all in one class."""

from __future__ import annotations

import math

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unlockstep.core.ledger import Ledger
from unlockstep.core.reasons import RefusalReason

FRAGMENTS = 3
learners = st.sampled_from(["a", "b"])
fragments = st.integers(0, FRAGMENTS - 1)
tokens = st.integers(0, 1000)


class LedgerMachine(RuleBasedStateMachine):
    """A ledger beside the plainest model: per learner and fragment, how many tokens it still holds."""

    @initialize()
    def start(self) -> None:
        self.ledger = Ledger(FRAGMENTS)
        self.trained = {"a": 0, "b": 0}
        self.held = {name: [0] * FRAGMENTS for name in "ab"}
        self.accepted = {name: [[] for _ in range(FRAGMENTS)] for name in "ab"}
        self.dead = {"a": False, "b": False}

    @rule(learner=learners, tokens=tokens)
    def train(self, learner: str, tokens: int) -> None:
        if self.dead[learner]:
            self.ledger.opened(learner)
            self.dead[learner] = False
            self.held[learner] = [0] * FRAGMENTS
        self.trained[learner] += tokens
        self.held[learner] = [held + tokens for held in self.held[learner]]
        self.ledger.trained(learner, self.trained[learner])

    @rule(learner=learners, fragment=fragments)
    def hand_over(self, learner: str, fragment: int) -> None:
        if not self.dead[learner]:
            self.accepted[learner][fragment].append(self.held[learner][fragment])
            self.ledger.accepted(learner, fragment, self.held[learner][fragment])
            self.held[learner][fragment] = 0

    @rule(learner=learners, fragment=fragments, late=st.booleans())
    def merge(self, learner: str, fragment: int, late: bool) -> None:
        if self.accepted[learner][fragment]:
            self.ledger.merged(learner, fragment, self.accepted[learner][fragment].pop(0), late)

    @rule(learner=learners, fragment=fragments, reason=st.sampled_from(RefusalReason))
    def abandon(self, learner: str, fragment: int, reason: RefusalReason) -> None:
        if self.accepted[learner][fragment]:
            self.ledger.abandoned(learner, fragment, self.accepted[learner][fragment].pop(0), reason)

    @rule(learner=learners, fragment=fragments, what=st.sampled_from(["refused", "overwritten", "undelivered"]))
    def settle(self, learner: str, fragment: int, what: str) -> None:
        if self.dead[learner]:
            return
        held, self.held[learner][fragment] = self.held[learner][fragment], 0
        match what:
            case "refused":
                self.ledger.refused(learner, fragment, held, RefusalReason.LATE)
            case "overwritten":
                self.ledger.overwritten(learner, fragment, held)
            case "undelivered":
                self.ledger.undelivered(learner, fragment, held)

    @rule(learner=learners)
    def leave(self, learner: str) -> None:
        if not self.dead[learner]:
            self.ledger.left(learner, tuple(self.held[learner]))
            self.held[learner] = [0] * FRAGMENTS

    @rule(learner=learners)
    def die(self, learner: str) -> None:
        if not self.dead[learner]:
            self.ledger.died(learner)
            self.dead[learner] = True

    @precondition(lambda self: any(self.dead.values()))
    @rule(learner=learners)
    def come_back(self, learner: str) -> None:
        if self.dead[learner]:
            self.ledger.came_back(learner)
            self.dead[learner] = False

    @invariant()
    def nothing_is_missing_or_counted_twice(self) -> None:
        if not hasattr(self, "ledger"):
            return
        status = self.ledger.status()
        living = [name for name in "ab" if not self.dead[name]]
        with_learners = sum(sum(self.held[name]) for name in living)
        pending = sum(sum(sum(each) for each in self.accepted[name]) for name in "ab")
        assert math.isclose(status.in_flight * FRAGMENTS, with_learners + pending, abs_tol=1e-6)
        assert status.trained == sum(self.trained.values())
        classes = msgspec.structs.asdict(status)
        assert min(status.merged, status.merged_late, status.overwritten, status.dropped, status.lost) >= 0
        assert min([0.0, *status.refused.values()]) >= 0
        total = sum(sum(v.values()) if isinstance(v, dict) else v for name, v in classes.items() if name != "trained")
        assert math.isclose(total, status.trained, abs_tol=1e-6)


test_every_token_is_in_one_class = LedgerMachine.TestCase

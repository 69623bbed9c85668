"""One round: whom it asked, what has come in, and what it amounts to.

Decides the bookkeeping of a single round and how contributions become shares of a merge. Does not decide when the
round opens or closes (``rounds`` with ``schedule`` and ``window``) nor the arithmetic of the merge (``merge``).
"""

from __future__ import annotations

from enum import Enum

import msgspec

from unlockstep.core.actions import Share
from unlockstep.core.errors import LocalProtocolError
from unlockstep.core.saved import SavedRound
from unlockstep.core.weights import contribution_weight, normalised
from unlockstep.core.window import Decision


class RoundState(Enum):
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    EMPTY = "empty"


class RoundMove(Enum):
    CLOSE = "close"
    CLOSE_EMPTY = "close_empty"
    COMMIT = "commit"


MOVES: dict[RoundState, dict[RoundMove, RoundState]] = {
    RoundState.OPEN: {
        RoundMove.CLOSE: RoundState.COMMITTING,
        RoundMove.CLOSE_EMPTY: RoundState.EMPTY,
    },
    RoundState.COMMITTING: {RoundMove.COMMIT: RoundState.COMMITTED},
    RoundState.COMMITTED: {},
    RoundState.EMPTY: {},
}


class Held(msgspec.Struct, frozen=True):
    """An accepted contribution."""

    learner: str
    incarnation: int
    round: int
    """The round it was made for."""
    fragment: int
    base_version: int
    c_steps: int
    c_tokens: int
    tokens: int
    """Tokens its process had trained when it handed over: what a process makes later has more."""
    payload: int
    process: int
    """First incarnation of the process that made it."""
    position: int = 0
    """How far that was along its course when it handed over."""
    samples: int = 0


class SyncRound:
    """A round from its opening to its commit.

    Args:
        round: its number.
        fragment: what it collects.
        clock: the syncer's clock when it opened, steps.
        opened_ns: when it opened.
        late: contributions to an earlier round of the fragment that arrived after that had closed, or as the second
            of their learner. They are merged with the others, but the round neither counts them to its quorum nor ends
            its waiting because of them.
    """

    def __init__(self, round: int, fragment: int, clock: int, opened_ns: int, late: list[Held]) -> None:
        self.round = round
        self.fragment = fragment
        self.clock = clock
        self.opened_ns = opened_ns
        self.closed_ns = 0
        self.state = RoundState.OPEN
        self.asked: dict[str, int] = {}
        """Learners asked to hand over, with their incarnation."""
        self.contributions: dict[str, Held] = {}
        self.late = late
        self.quorum_at_ns: int | None = None
        self.grace_ns = 0
        self.decision: Decision | None = None

    def move(self, move: RoundMove) -> None:
        target = MOVES[self.state].get(move)
        if target is None:
            raise LocalProtocolError(f"round {self.round} cannot {move.value} while it is {self.state.value}")
        self.state = target

    @property
    def is_open(self) -> bool:
        return self.state is RoundState.OPEN

    def held(self) -> list[Held]:
        """Everything that will be merged, in ascending learner, then the order in which it was made."""
        everything = [*self.late, *self.contributions.values()]
        return sorted(everything, key=lambda held: (held.learner, held.incarnation, held.tokens))

    def participants(self) -> tuple[str, ...]:
        """Learners with a part in the merge, ascending, each once."""
        return tuple(sorted({held.learner for held in self.held()}))

    def shares(self) -> tuple[Share, ...]:
        """One share per learner with weight, ascending by name; the weights sum to 1. Empty: nothing to commit.

        Several contributions of one learner cover disjoint stretches of its work: their outer gradients are added, and
        so are their counts.
        """
        by_learner: dict[str, list[Held]] = {}
        for held in self.held():
            by_learner.setdefault(held.learner, []).append(held)
        weights = {
            learner: contribution_weight(sum(h.c_tokens for h in mine), sum(h.c_steps for h in mine))
            for learner, mine in by_learner.items()
        }
        counting = [learner for learner in sorted(by_learner) if weights[learner] > 0]
        return tuple(
            Share(
                learner=learner,
                weight=weight,
                payloads=tuple(held.payload for held in by_learner[learner]),
                base_versions=tuple(held.base_version for held in by_learner[learner]),
            )
            for learner, weight in zip(counting, normalised([weights[name] for name in counting]), strict=True)
        )


class RoundMemory:
    """A bounded memory of rounds and of what has been entered for them, to tell duplicate, late and unknown apart.

    A contribution is known by its learner, that learner's process and the tokens the process had trained when it handed
    over: a process hands every token over once, so no two contributions of it share the count.

    Args:
        rounds_max: how many rounds are remembered; older ones are forgotten, the oldest first. While a round is open
            another P - 1 may be opened and closed: with P more than one wants of closed ones, none is forgotten too
            early.
    """

    def __init__(self, rounds_max: int) -> None:
        self._rounds_max = rounds_max
        self._entered: dict[int, set[tuple[str, int, int]]] = {}
        self._expected = range(0)
        self._records: dict[int, SavedRound] = {}
        """What is saved of rounds that have not changed since: with every commit only a few of them have."""

    def __contains__(self, round: int) -> bool:
        return round in self._entered or round in self._expected

    def open(self, round: int) -> None:
        """A round opens."""
        self._entered.setdefault(round, set())
        self._expected = range(max(self._expected.start, round + 1), self._expected.stop)
        self.keep_newest(self._rounds_max)

    def expect(self, rounds: range) -> None:
        """An earlier life of the syncer may have opened some of these, after it had saved for the last time: what
        learners have made for them is theirs, and may come before they open again."""
        self._expected = rounds

    def keep_newest(self, rounds_max: int) -> None:
        """Forget all but so many rounds, and those to come."""
        rounds_max += self._ahead
        while len(self._entered) > rounds_max:
            oldest = min(self._entered)
            del self._entered[oldest]
            self._records.pop(oldest, None)

    @property
    def _ahead(self) -> int:
        """Rounds that have not opened, and of which something has been entered."""
        return sum(round in self._expected for round in self._entered) if self._expected else 0

    def enter(self, round: int, learner: str, process: int, tokens: int) -> bool:
        """Note a contribution as entered; whether it is to be entered now. Not if it has been, nor if its round is
        forgotten: then nobody can tell."""
        if round not in self or self.has(round, learner, process, tokens):
            return False
        self._entered.setdefault(round, set()).add((learner, process, tokens))
        self._records.pop(round, None)
        return True

    def forget(self, round: int, learner: str, process: int, tokens: int) -> None:
        """A contribution that had been entered is not here any more, and may be entered again."""
        self._entered.get(round, set()).discard((learner, process, tokens))
        self._records.pop(round, None)

    def saved(self, rounds_max: int) -> tuple[SavedRound, ...]:
        """The newest rounds, oldest first, and those to come."""
        return tuple(self._record(round) for round in sorted(self._entered)[-rounds_max - self._ahead :])

    def _record(self, round: int) -> SavedRound:
        record = self._records.get(round)
        if record is None:
            record = self._records[round] = SavedRound(round, tuple(sorted(self._entered[round])))
        return record

    def restore(self, remembered: tuple[SavedRound, ...]) -> None:
        """Remember what was saved."""
        for each in remembered:
            self._entered[each.round] = set(each.entered)

    def has(self, round: int, learner: str, process: int, tokens: int) -> bool:
        """Whether this contribution has been entered."""
        return (learner, process, tokens) in self._entered.get(round, ())

"""The rules of the protocol, checked on the events of a run: a simulated one or a real one, whole or cut short.

Decides which rules there are and how events reach them: each rule sees every event of its kinds before and after the
history holds it. What a rule demands is in ``safety``, ``members``, ``books``, ``data`` and ``liveness``; what the
events amount to, in ``history``. Nothing here takes part in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, get_args

from unlockstep.checkers.books import Contributions, Memory, Staleness, Tokens, Weights, imbalances
from unlockstep.checkers.data import Data
from unlockstep.checkers.history import History
from unlockstep.checkers.liveness import Joining, Progress, TakingPart
from unlockstep.checkers.members import Leases, Members, Steps, Strikes
from unlockstep.checkers.rule import Allowance, Checker, Violation
from unlockstep.checkers.safety import (
    Adoption,
    Incarnations,
    Opening,
    Quorum,
    Restart,
    Rotation,
    Rounds,
    Time,
    Versions,
    Window,
)
from unlockstep.core.events import Event, LossSpiked, RolledBack, SyncerResumed
from unlockstep.core.options import ProtocolOptions

__all__ = ["LIVENESS", "RULES", "SAFETY", "Allowance", "Checkers", "Violation", "check", "imbalances"]

_SAFETY: tuple[type[Checker], ...] = (
    Time,
    Incarnations,
    Leases,
    Strikes,
    Members,
    Steps,
    Rotation,
    Opening,
    Rounds,
    Window,
    Quorum,
    Contributions,
    Staleness,
    Weights,
    Tokens,
    Versions,
    Adoption,
    Restart,
    Memory,
    Data,
)
_LIVENESS: tuple[type[Checker], ...] = (Progress, TakingPart, Joining)

SAFETY = frozenset(rule.name for rule in _SAFETY)
"""Rules that hold in every history, whatever goes wrong."""
LIVENESS = frozenset(rule.name for rule in _LIVENESS)
"""Rules that hold while the world keeps to its allowance."""
RULES = {rule.name: rule.meaning for rule in (*_SAFETY, *_LIVENESS)}
"""Every rule, and what it says in one line."""


class Checkers:
    """All rules over one run.

    Args:
        options: of the run.
        timer_ns: how late the syncer's host may call when a deadline is reached; 0 under virtual time.
        transfer_ns: how long a message, a body or a commit may be on its way, each; None: a lease.
        rules: names of the rules to check.
    """

    def __init__(
        self,
        options: ProtocolOptions,
        *,
        timer_ns: int = 0,
        transfer_ns: int | None = None,
        rules: Collection[str] = SAFETY | LIVENESS,
    ) -> None:
        allowance = Allowance(timer_ns=timer_ns, transfer_ns=options.lease_ns if transfer_ns is None else transfer_ns)
        self._history = History(options)
        self._time = Time(self._history, allowance)
        others = (rule for rule in (*_SAFETY, *_LIVENESS) if rule is not Time and rule.name in rules)
        self._checkers = [self._time, *(rule(self._history, allowance) for rule in others)]
        self._reactions: dict[type[Any], tuple[Callable[[Any], None], ...]] = self._all_reactions()
        self._now_ns = 0

    def _all_reactions(self) -> dict[type[Any], tuple[Callable[[Any], None], ...]]:
        """For every kind of event: the rules that look at it before, the history, the rules that look at it after."""
        reactions: dict[type[Any], list[Callable[[Any], None]]] = {kind: [] for kind in get_args(Event)}
        for table in (
            *(checker.before() for checker in self._checkers),
            self._history.reactions,
            *(checker.after() for checker in self._checkers),
        ):
            for kind, reaction in table.items():
                reactions[kind].append(reaction)
        return {kind: tuple(each) for kind, each in reactions.items()}

    def see(self, event: Event) -> None:
        """The next event of the run."""
        at_ns = event.at_ns
        if at_ns < self._now_ns:
            self._time.goes_back(event)
        self._now_ns = self._history.now_ns = at_ns
        if isinstance(event, SyncerResumed):
            for checker in self._checkers:
                checker.resume(event)
        if isinstance(event, LossSpiked | RolledBack):
            for checker in self._checkers:
                checker.roll_back(event)
        for react in self._reactions[type(event)]:
            react(event)

    @property
    def history(self) -> History:
        """What the events so far have told."""
        return self._history

    def finish(self) -> None:
        """No event follows: what is still going on is judged as far as it went."""
        for checker in self._checkers:
            checker.finish()

    @property
    def violations(self) -> list[Violation]:
        """What was found, in order of the rules; of each rule the first ``rule.KEPT_MAX``."""
        return [violation for checker in self._checkers for violation in checker.violations]

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule that was checked is broken."""
        return {checker.name: checker.count for checker in self._checkers}


def check(
    events: Iterable[Event],
    options: ProtocolOptions,
    *,
    timer_ns: int = 0,
    transfer_ns: int | None = None,
    rules: Collection[str] = SAFETY | LIVENESS,
) -> list[Violation]:
    """What is wrong with a run; arguments as of ``Checkers``."""
    checkers = Checkers(options, timer_ns=timer_ns, transfer_ns=transfer_ns, rules=rules)
    see = checkers.see
    for event in events:
        see(event)
    checkers.finish()
    return checkers.violations

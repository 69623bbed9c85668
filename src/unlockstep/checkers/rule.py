"""What every rule has: a name, a sentence, the events it looks at, and a list of what it has found.

Decides how a rule is asked and how much of what it finds is kept. The rules are in ``safety``, ``members``, ``books``
and ``liveness``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from unlockstep.checkers.history import History
from unlockstep.core.events import LossSpiked, RolledBack, SyncerResumed

KEPT_MAX = 100
"""Violations of one rule that are kept; more are only counted."""

Reactions = dict[type[Any], Callable[[Any], None]]


class Violation(msgspec.Struct, frozen=True):
    """Where a history breaks a rule."""

    rule: str
    at_ns: int
    sentence: str


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What the world around the protocol may take: it is not in the log."""

    timer_ns: int = 0
    """How late the syncer's host may call when a deadline is reached."""
    transfer_ns: int
    """How long a message, a body or a commit may be on its way."""


class Checker:
    """One rule over the events of a run, in order.

    Args:
        history: the events so far; shared by all rules.
        allowance: of the world.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]

    def __init__(self, history: History, allowance: Allowance) -> None:
        self.history = history
        self.options = history.options
        self.allowance = allowance
        self.violations: list[Violation] = []
        self.count = 0
        self.begin()

    def begin(self) -> None:
        """Nothing has happened yet."""

    def resume(self, event: SyncerResumed) -> None:
        """Another life of the syncer begins; the history is still that of the one before."""

    def roll_back(self, event: LossSpiked | RolledBack) -> None:
        """The run is about to go back, or has; the history is still that from before."""

    def before(self) -> Reactions:
        """What to do with which events, when the history does not hold them yet."""
        return {}

    def after(self) -> Reactions:
        """The same, when it does."""
        return {}

    def finish(self) -> None:
        """The log is over."""

    def find(self, sentence: str) -> None:
        """The rule is broken now."""
        self.count += 1
        if len(self.violations) < KEPT_MAX:
            self.violations.append(Violation(self.name, self.history.now_ns, sentence))

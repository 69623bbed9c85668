"""What breaks a local run on purpose: the interface, for the drill (``drill``) and for event tapes (``chaos``).

Decides how a run and whoever breaks it divide the work. The run starts processes, looks after those that die by
themselves, and ends; the breaker says who takes part, may change how a process is started and where it connects to,
acts between two looks of the run, and claims the deaths that are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from unlockstep.core.status import Status
from unlockstep.launch.processes import Exit, Processes


@dataclass(frozen=True, slots=True)
class Hands:
    """What a breaker may use."""

    processes: Processes
    launch: Callable[[str], None]
    """Start somebody, as soon as there is a syncer to find."""
    note: Callable[[str], None]
    """Tell the people who watch."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A death that was meant."""

    sentence: str
    back_s: float | None = None
    """When the run shall start it again; None: the breaker sees to that, or nobody does."""


class Breaker(Protocol):
    """See above. All of it is called in the run's thread."""

    @property
    def learners(self) -> tuple[str, ...]:
        """Who is started at the beginning."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether somebody who is not there may still be started by it."""
        ...

    def share(self, name: str) -> tuple[int, int]:
        """(shard, shards) of a learner."""
        ...

    def address(self, name: str, url: str) -> str:
        """Where a learner is to look for the syncer at ``url``."""
        ...

    def dressed(self, name: str, command: tuple[str, ...]) -> tuple[str, ...]:
        """The command line to start a learner or the syncer with, instead of this one."""
        ...

    def enter(self, hands: Hands) -> None:
        """There are processes from now on."""
        ...

    def started(self, name: str) -> None:
        """A process has been started."""
        ...

    def act(self, status: Status | None, age_ns: int, is_ending: bool) -> None:
        """Do what is to be done by now; the newest status there is, and how old it is, ns."""
        ...

    def wait_s(self) -> float:
        """When it has something to do next, seconds from now, if nothing happens before."""
        ...

    def claims(self, exited: Exit, status: Status | None) -> Claim | None:
        """Whether a death is its own."""
        ...

    def release(self) -> None:
        """Nothing is broken any more: everybody is about to be told to end."""
        ...

    def close(self) -> None:
        """All processes have ended."""
        ...

"""When the time of an event tape begins in the log of a run that it was played on, and what it says of processes.

Part of the room ``report``. Decides from which moment a tape's times count: on real processes when every learner it
names at the start has taken a step and its player has heard of that, as the tape says if that player wrote it
(docs/chaos.md); in virtual time from the start of the processes, where the log begins. Does not decide what is played
(``chaos``, ``sim``).
"""

from __future__ import annotations

from unlockstep.core.events import Event, StepReported
from unlockstep.tape import SYNCER, Action, Join, Kill, Leave, Replace, Restart, Tape


class TapeTime:
    """Reads events in the order they were logged.

    Args:
        tape: what was done to the run; None if nothing was, or nobody knows.
        simulated: whether the time of the log was virtual.
    """

    def __init__(self, tape: Tape | None, simulated: bool) -> None:
        self.tape = tape
        self.begin_ns: int | None = None if tape is None else 0 if simulated else tape.began_ns
        """Of the tape, in the log; None: it has not begun, as far as the log has been read."""
        self.first_step_ns: int | None = None
        """When the first step of the run began."""
        self._expected = set() if tape is None or self.begin_ns is not None else set(tape.learners)
        self._starts: dict[str, list[tuple[int, bool]]] = {}
        """By learner: when, on the tape, its process begins (True) or dies (False)."""
        for action in () if tape is None else tape.actions:
            if isinstance(action, Kill | Leave | Join | Restart | Replace) and action.target != SYNCER:
                lives = not isinstance(action, Kill | Leave)
                self._starts.setdefault(action.target, []).append((action.at_ns, lives))

    def see(self, event: Event) -> None:
        if not isinstance(event, StepReported):
            return
        if self.first_step_ns is None:
            self.first_step_ns = event.at_ns - event.step_ns
        if self._expected:
            self._expected.discard(event.learner)
            if not self._expected:
                self.begin_ns = event.at_ns

    @property
    def zero_ns(self) -> int:
        """What the tape's times are added to; of one that never began, the first step of the run."""
        return (self.first_step_ns or 0) if self.begin_ns is None else self.begin_ns

    @property
    def is_known(self) -> bool:
        """Nothing that is still to come changes ``zero_ns``."""
        return self.first_step_ns is not None and (self.tape is None or self.begin_ns is not None)

    def actions(self) -> tuple[tuple[int, Action], ...]:
        """Every action, and when in the log; none if the tape has not begun."""
        if self.tape is None or self.begin_ns is None:
            return ()
        return tuple((action.at_ns + self.begin_ns, action) for action in self.tape.actions)

    def killed_ns(self, learner: str, since_ns: int, until_ns: int) -> int | None:
        """When the tape killed a process that lived at ``since_ns``, if that was before ``until_ns``; times of the
        log. None: it did not live by then, or the tape has let it live, or there is no tape."""
        if self.begin_ns is None:
            return None
        for at_ns, lives in self._starts.get(learner, ()):
            at_ns += self.begin_ns
            if at_ns < since_ns:
                continue
            return at_ns if not lives and at_ns < until_ns else None
        return None

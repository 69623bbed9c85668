"""One process under virtual time: while it is stopped, whatever happens to it waits; once it is dead, nothing does.

Decides what becomes of things that were going to happen to a process when somebody stops, continues, slows or kills
it. Does not decide what they are: a learner (``learner_host``) and a syncer (``syncer_host``) are built on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from unlockstep.core.ids import NEVER_NS
from unlockstep.sim.clock import VirtualClock

Happening = Callable[[], None]


class Life:
    """From the start of a process to its death."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.is_alive = True
        self.is_stopped = False
        self._waiting: deque[Happening] = deque()
        self._works_until_ns: int | None = None
        """When its present work is done; None: it is not at work."""
        self._work_left_ns: int | None = None
        """Of work that stands still."""
        self._work_number = 0
        """Tells the end of the present work from one that was put off."""
        self._done: Happening = lambda: None

    @property
    def is_running(self) -> bool:
        return self.is_alive and not self.is_stopped

    def happen(self, do: Happening) -> None:
        """Now, if the process is running; when it is continued, if it is stopped."""
        if self.is_running:
            do()
        elif self.is_alive:
            self._waiting.append(do)

    def at(self, when_ns: int, do: Happening) -> None:
        """At a time."""
        self.clock.at(when_ns, lambda: self.happen(do))

    def after(self, delay_ns: int, do: Happening) -> None:
        """After a while."""
        self.clock.after(delay_ns, lambda: self.happen(do))

    @property
    def is_working(self) -> bool:
        """Whether it is in the middle of something, at work or standing still."""
        return self._works_until_ns is not None or self._work_left_ns is not None

    def work(self, for_ns: int, done: Happening) -> None:
        """It does something that takes so much time in which it runs. One thing at a time."""
        assert not self.is_working, "a process does one thing at a time"
        self._done = done
        self._work_on(for_ns)

    def pace(self, ratio: float) -> None:
        """The rest of its present work takes ``ratio`` times as long."""
        if self._work_left_ns is not None:
            self._work_left_ns = round(self._work_left_ns * ratio)
        elif self._works_until_ns is not None:
            self._work_on(round((self._works_until_ns - self.clock.now_ns()) * ratio))

    def _work_on(self, for_ns: int) -> None:
        self._work_number += 1
        number = self._work_number
        self._works_until_ns = self.clock.now_ns() + for_ns
        self.at(self._works_until_ns, lambda: self._end_work(number))

    def _end_work(self, number: int) -> None:
        if number == self._work_number:
            self._works_until_ns = None
            self._done()

    def stop(self) -> None:
        """As SIGSTOP does: its timers expire and its sockets fill up, but it does not notice. Its work stands still."""
        assert self.is_running, "only a running process can be stopped"
        self.is_stopped = True
        if self._works_until_ns is not None:
            self._work_left_ns, self._works_until_ns = self._works_until_ns - self.clock.now_ns(), None
            self._work_number += 1

    def resume(self) -> None:
        """As SIGCONT does: everything that has waited happens now, in order, and it works on."""
        assert self.is_alive and self.is_stopped, "only a stopped process can be continued"
        self.is_stopped = False
        while self._waiting and self.is_running:
            self._waiting.popleft()()
        if self._work_left_ns is not None and self.is_running:
            left_ns, self._work_left_ns = self._work_left_ns, None
            self._work_on(left_ns)

    def end(self) -> None:
        """It is gone, whatever it was doing."""
        self.is_alive = False
        self._waiting.clear()


class Alarm:
    """Wakes a process at a deadline that is put off again and again: of all times it was set to, the last one counts.

    Args:
        life: of the process.
        wake: called when the deadline has come. It sets the next one.
    """

    def __init__(self, life: Life, wake: Happening) -> None:
        self._life = life
        self._wake = wake
        self._deadline_ns = self._armed_ns = NEVER_NS
        self._number = 0

    def set(self, deadline_ns: int) -> None:
        """The deadline is this one now; ``NEVER_NS``: there is none."""
        self._deadline_ns = deadline_ns
        if deadline_ns < self._armed_ns:
            self._armed_ns = deadline_ns
            self._number += 1
            number = self._number
            self._life.at(deadline_ns, lambda: self._ring(number))

    def _ring(self, number: int) -> None:
        """Too early if the deadline was put off: then go on waiting. One overtaken by an earlier one is void."""
        if number != self._number:
            return
        self._armed_ns = NEVER_NS
        if self._deadline_ns <= self._life.clock.now_ns():
            self._wake()
        else:
            self.set(self._deadline_ns)

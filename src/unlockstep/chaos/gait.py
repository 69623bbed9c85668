"""How fast the processes of a run go: stopped, slowed down or at their own speed.

Decides that a slow process runs one part of the time and stands still for the rest, by SIGSTOP and SIGCONT from
outside, so that any process can be slowed at any moment, with all it has started. Does not decide who is
(``supervisor``).

Of every ``PERIOD_S`` a process that is slowed to a factor f runs 1/f; where that would be less than ``RUN_S_MIN`` it
runs for so long and stands still longer, ``STAND_S_MAX`` at most: beyond a factor of 500 nothing becomes slower. How
long it stands follows from how long it has run, so that a supervisor which wakes late changes nothing but the grain.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

PERIOD_S = 0.1
RUN_S_MIN = 0.002
STAND_S_MAX = 1.0


class Signals(Protocol):
    """Whoever may stop and continue (``launch.processes.Processes``)."""

    def stand(self, name: str) -> None: ...

    def go_on(self, name: str) -> None: ...


@dataclass(slots=True)
class _Walk:
    factor: float = 1.0
    is_stopped: bool = False
    """For as long as it is told to."""
    stands: bool = False
    """For now: it is slow."""
    since_s: float = 0.0
    until_s: float = 0.0


class Gait:
    """Of all processes of a run, by name. Its methods may be called from any thread.

    Args:
        signals: what stops and continues them.
        may_stop: whether a process can be stopped yet.
        now_s: the clock; monotonic.
    """

    def __init__(
        self,
        signals: Signals,
        may_stop: Callable[[str], bool] = lambda name: True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signals = signals
        self._may_stop = may_stop
        self._now_s = now_s
        self._walks: dict[str, _Walk] = {}
        self._changed = threading.Condition()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def stop(self, name: str) -> None:
        """It stands still until it is told to go on."""
        with self._changed:
            self._walk(name).is_stopped = True
            self._signals.stand(name)

    def go_on(self, name: str) -> None:
        """It is stopped no more."""
        with self._changed:
            walk = self._walk(name)
            walk.is_stopped = False
            self._begin_to_run(name, walk)
            self._changed.notify()

    def slow(self, name: str, factor: float) -> None:
        """From now on it gets on ``factor`` times as slowly; 1 and less: at its own speed."""
        with self._changed:
            self.set_pace(name, factor)
            if self._thread is None and factor > 1:
                self._thread = threading.Thread(target=self._keep_time, name="unlockstep-gait", daemon=True)
                self._thread.start()
            self._changed.notify()

    def set_pace(self, name: str, factor: float) -> None:
        """The same, for who calls ``advance`` itself."""
        walk = self._walk(name)
        walk.factor = max(1.0, factor)
        self._begin_to_run(name, walk)

    def advance(self) -> float:
        """Let those stand and run whose time it is; returns when the next one's is, by the clock."""
        now_s, next_s = self._now_s(), float("inf")
        for name, walk in self._walks.items():
            if walk.factor > 1 and not walk.is_stopped:
                if walk.until_s <= now_s:
                    self._turn(name, walk, now_s)
                next_s = min(next_s, walk.until_s)
        return next_s

    def begun(self, name: str) -> None:
        """A process has started under the name: it runs. Its factor is the name's."""
        with self._changed:
            walk = self._walk(name)
            walk.is_stopped = False
            self._begin_to_run(name, walk)
            self._changed.notify()

    def rename(self, name: str, new: str) -> None:
        """Whoever went under a name goes under another one from now on, as before."""
        with self._changed:
            if name in self._walks:
                self._walks[new] = self._walks.pop(name)

    def forget(self, name: str) -> None:
        """Nobody of this name is slowed or stopped any more; who was stands no longer."""
        with self._changed:
            if name in self._walks:
                walk = self._walks.pop(name)
                if walk.stands or walk.is_stopped:
                    self._signals.go_on(name)

    def close(self) -> None:
        """Everybody runs, at its own speed."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        for name in list(self._walks):
            self.forget(name)

    def _walk(self, name: str) -> _Walk:
        return self._walks.setdefault(name, _Walk())

    def _begin_to_run(self, name: str, walk: _Walk) -> None:
        if walk.is_stopped:
            return
        self._signals.go_on(name)
        walk.stands, walk.since_s = False, self._now_s()
        walk.until_s = walk.since_s + max(RUN_S_MIN, PERIOD_S / walk.factor)

    def _keep_time(self) -> None:
        with self._changed:
            while not self._is_over:
                next_s = self.advance()
                self._changed.wait(None if next_s == float("inf") else max(0.0, next_s - self._now_s()))

    def _turn(self, name: str, walk: _Walk, now_s: float) -> None:
        if walk.stands:
            self._begin_to_run(name, walk)
        elif self._may_stop(name):
            self._signals.stand(name)
            ran_s = now_s - walk.since_s
            walk.stands, walk.until_s = True, now_s + min(STAND_S_MAX, ran_s * (walk.factor - 1))
        else:
            self._begin_to_run(name, walk)

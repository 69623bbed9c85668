"""The drill of a local run: the last learner is killed once, with SIGKILL, and comes back.

Decides who is killed, when (``local.kill_share``, a share of the run) and when it is started again
(``local.kill_down_s``); that costs it none of its restarts.
"""

from __future__ import annotations

from unlockstep.config import RunConfig
from unlockstep.core.status import Status
from unlockstep.launch.breaker import Claim, Hands
from unlockstep.launch.processes import Exit


class Drill:
    """A ``Breaker``.

    Args:
        config: of the run.
        resumes: the run goes on: it may have had its drill.
        learners: who is started, if they are called as an event tape called them.
    """

    has_more = False

    def __init__(self, config: RunConfig, resumes: bool = False, learners: tuple[str, ...] = ()) -> None:
        self.learners = learners or learner_names(config)
        self._local = config.local
        self._resumes = resumes
        self._victim = self.learners[-1] if len(self.learners) > 1 and config.local.kill_share > 0 else None
        """Whom it is still to kill; never the only learner, nor the first, which brought the parameters."""
        self._drilled: str | None = None
        self._hands: Hands | None = None

    def share(self, name: str) -> tuple[int, int]:
        return self.learners.index(name), len(self.learners)

    def address(self, name: str, url: str) -> str:
        return url

    def dressed(self, name: str, command: tuple[str, ...]) -> tuple[str, ...]:
        return command

    def enter(self, hands: Hands) -> None:
        self._hands = hands

    def started(self, name: str) -> None:
        pass

    def act(self, status: Status | None, age_ns: int, is_ending: bool) -> None:
        """Kill the last learner, once, when its share of the run is over and it trains."""
        if status is None or self._hands is None:
            return
        if self._resumes:
            self._resumes = False
            if progress(status) >= self._local.kill_share:  # It has been killed before.
                self._victim = None
        victim = self._victim
        if victim is None or progress(status) < self._local.kill_share or is_ending:
            return
        trains = any(learner.learner == victim and learner.state == "live" for learner in status.learners)
        if trains and victim in self._hands.processes.running:
            self._victim, self._drilled = None, victim
            self._hands.processes.kill(victim)

    def wait_s(self) -> float:
        return float("inf")

    def claims(self, exited: Exit, status: Status | None) -> Claim | None:
        if exited.name != self._drilled:
            return None
        self._drilled = None
        clock, down_s = 0 if status is None else status.clock, self._local.kill_down_s
        return Claim(f"was killed (SIGKILL) at step {clock} by the drill; back in {down_s:g} s", down_s)

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


def learner_names(config: RunConfig) -> tuple[str, ...]:
    """What the learners of a local run are called."""
    return tuple(f"learner-{index}" for index in range(config.local.learners))


def progress(status: Status) -> float:
    """Share of the run that is done, 0 to 1: of its data or its tokens, if they end it, otherwise of its steps."""
    data = status.data
    if data is not None and data.epochs:
        return min(1.0, data.epoch / data.epochs)
    if status.tokens_max:
        return min(1.0, status.ledger.trained / status.tokens_max)
    return min(1.0, status.clock / status.steps_max) if status.steps_max else 0.0

"""Tapes played on real processes that need no framework (``toy_processes``), and what came of it.

Decides that the run is told to end when its tape is over and all who should be there then take part; waits for nothing
but that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import toy_processes
from unlockstep import runlog
from unlockstep import tape as tapes
from unlockstep.chaos.supervisor import Supervisor
from unlockstep.cli.app import run as command
from unlockstep.config import EvaluationSection, InnerSection, LimitsSection, LocalSection, RunConfig, RunSection
from unlockstep.core.events import Event
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.status import Status
from unlockstep.launch.folders import new_run_folder
from unlockstep.launch.local import LocalRun, Outcome
from unlockstep.net.clients.observer import end_run, read_status
from unlockstep.tape import Standing, Tape, TargetState

SECOND_NS = 1_000_000_000
BACK_S_MAX = 60.0
"""Whoever takes no part by then, on a busy machine, never will."""

STEPS_ENDLESS = 1_000_000


def toy_config(learners: int, lease_s: float = 10.0, steps: int = STEPS_ENDLESS, **protocol: Any) -> RunConfig:
    """Four fragments, one of them merged at every step."""
    return RunConfig(
        run=RunSection(name="tape", steps=steps),
        inner=InnerSection(schedule="constant"),
        evaluation=EvaluationSection(interval_s=0.5),
        protocol=ProtocolOptions(fragments=4, interval_steps=4, lease_s=lease_s, **protocol),
        limits=LimitsSection(outlier_factor=0),
        local=LocalSection(learners=learners, kill_share=0, evaluator=False),
    )


@dataclass
class TapeRun:
    """One run: the ``Watcher`` of a ``LocalRun``.

    Args:
        folder: gets the run in ``run``.
        tape: that is played.
        config: of the run.
        enough: what must have happened, too, before the run is told to end.
    """

    folder: Path
    tape: Tape
    config: RunConfig
    enough: Callable[[TapeRun], bool] = lambda run: True
    notes: list[str] = field(default_factory=list)

    def play(self) -> Outcome:
        """From the first process to the last."""
        told = self.folder / "told"
        told.mkdir(parents=True, exist_ok=True)
        self.run = self.folder / "run"
        self._url, self._over_ns, self._is_told = "", 0, False
        self._before: Status | None = None
        with new_run_folder(self.config, self.run):
            self.supervisor = Supervisor(self.tape, self.run, self.run / "tape.jsonl")
            return LocalRun(
                self.config,
                self.run,
                read_status=read_status,
                watcher=self,
                breaker=self.supervisor,
                program=(sys.executable, toy_processes.__file__, str(told)),
            ).run()

    def show(self, status: Status, now_ns: int) -> None:
        """See ``Watcher``."""
        if self._over_ns == 0:
            return
        if self._before is None:
            self._before = status
        late = now_ns - self._over_ns > BACK_S_MAX * SECOND_NS
        assert not late, "\n".join(["the run does not go on when its tape is over", *self.notes])
        if not self._is_told and self._goes_on(self._before, status) and self.enough(self):
            self._is_told = True
            end_run(self._url)

    def _goes_on(self, before: Status, now: Status) -> bool:
        """Whether all who are there by the tape have had a part in a round since."""
        merged = {each.learner: each.rounds_merged for each in before.learners}
        there = {each.learner: each for each in now.learners if each.state == "live"}
        standing = Standing(self.tape.learners)
        for action in self.tape.actions:
            standing.move(action)
        expected = {name for name in self.tape.cast if standing.process(name) is TargetState.RUNNING}
        return expected <= there.keys() and all(there[name].rounds_merged > merged.get(name, 0) for name in expected)

    def note(self, text: str, now_ns: int) -> None:
        """See ``Watcher``."""
        self.notes.append(text)
        if text.startswith("the syncer listens at "):
            self._url = text.removeprefix("the syncer listens at ")
        if text == "the tape is over":
            self._over_ns = now_ns

    @property
    def events(self) -> list[Event]:
        """The run log."""
        return list(runlog.read(self.run / "run.jsonl")[1])

    @property
    def played(self) -> Tape:
        """As it was written down."""
        return tapes.read(self.run / "tape.jsonl")

    def check(self) -> None:
        """Raises AssertionError if a rule is broken, or a token is not accounted for."""
        assert command(["report", str(self.run), "--check"]) == 0

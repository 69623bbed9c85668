"""A run on this machine: one syncer, M learners and an evaluator as processes, looked after until the run is over.

Decides who is started when, what becomes of a process that dies, and when and how the run has ended. Does not decide
how processes are started and ended (``processes``), what is broken on purpose (``breaker``), how a status is read (an
argument) or what is shown (a ``Watcher``).

A process that dies by itself is started again (``restarts`` says how often), except with exit code 2: the user has to
mend something first. If the run has not begun it ends with that sentence.

The syncer is one of them: it takes up the run where it had saved it, at the address it had, and everybody finds it
there. Without it nobody is started. If it cannot be started again the run has failed; its folder can be resumed.

Whoever breaks the run on purpose is a ``Breaker``: the drill, or a supervisor that plays an event tape. What it claims
as its doing costs nobody a restart.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from pathlib import Path
from typing import Protocol

import msgspec

from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.status import Status
from unlockstep.launch.breaker import Breaker, Hands
from unlockstep.launch.command_lines import CommandLines
from unlockstep.launch.drill import Drill
from unlockstep.launch.processes import Exit, Processes, Wakeup
from unlockstep.launch.restarts import EVALUATOR, SYNCER, Restarts

POLL_S = 0.25
"""How often the syncer is asked for its status, and the view is drawn."""

LISTEN_S_MAX = 30.0
"""From a start of the syncer to its saying where it listens."""

LISTEN_POLL_S = 0.05
"""How often it is looked for what it says, meanwhile."""

ALONE_S_MAX = 2.0
"""For how long a run with no learner left, present or due, may take to turn out to be finished."""

END_S_MAX = 60.0
"""From the end of the syncer to the end of the evaluator, which writes the final model."""

SAVE_S_MAX = 2.5
"""Given to the evaluator to save the final model of a run that is over when somebody asks to stop."""

STOP_S_MAX = 4.0
"""Given to all processes to end in order: under the 5 s in which the whole run is gone."""

ENDING = ("finishing", "draining", "finished")
"""States of a run in which a learner that goes is not missed."""

LOG_LINES_SHOWN = 8

_LISTENING = re.compile(r"https?://[\w.:\[\]-]+:\d+")


class ChildCode(IntEnum):
    """What the exit codes of a run's processes mean here."""

    DONE = 0
    USAGE = 2
    UNANSWERED = 3
    ASKED_TO_END = 128 + signal.SIGTERM


class Ending(Enum):
    """How a run has ended."""

    FINISHED = "finished"
    FAILED = "failed"
    REFUSED = "refused"
    """It never began: there is something the user has to mend."""
    INTERRUPTED = "interrupted"


class Outcome(msgspec.Struct, frozen=True):
    """The end of a run, and why."""

    ending: Ending
    sentence: str
    signal: int = 0
    """What interrupted it."""
    starting: tuple[str, ...] = ()
    """Learners that had been started again by then, and had not joined yet."""


def from_log(folder: Path) -> str:
    """What is said of a run that is over and has no model."""
    return f"make it from the log, unlockstep replay {shlex.quote(str(folder))} --out FOLDER"


class Watcher(Protocol):
    """Whoever shows the run while it goes on."""

    def show(self, status: Status, now_ns: int) -> None:
        """A new status."""
        ...

    def note(self, text: str, now_ns: int) -> None:
        """Something happened to a process."""
        ...


class StatusPoll:
    """Asks for the status again and again in a thread of its own, so that a syncer that hangs holds up nobody.

    Args:
        read: the question; raises UsageError if nobody answers.
        url: of the syncer.
        now_ns: the clock; monotonic.
        first: the status until there is a newer one.
    """

    def __init__(
        self, read: Callable[[str], Status], url: str, now_ns: Callable[[], int], first: Status | None = None
    ) -> None:
        self._answer: tuple[Status | None, int] = first, now_ns()
        """The newest, and when it was there. Both at once: it is set by the other thread."""
        self._read, self._url, self._now_ns = read, url, now_ns
        self._over = threading.Event()
        threading.Thread(target=self._ask, name="unlockstep-status", daemon=True).start()

    @property
    def latest(self) -> Status | None:
        return self._answer[0]

    def aged(self) -> tuple[Status | None, int]:
        """The latest, and how old it is, ns."""
        status, answered_ns = self._answer
        return status, self._now_ns() - answered_ns

    def stop(self) -> None:
        """Ask no more. An answer that is on its way is not waited for."""
        self._over.set()

    def _ask(self) -> None:
        while not self._over.wait(POLL_S):
            try:
                self._answer = self._read(self._url), self._now_ns()
            except UsageError:
                continue  # Not up yet, or gone: the process table says which.


class LocalRun:
    """One run, from the first process to the last.

    Args:
        config: of the run.
        folder: of the run, as ``new_run_folder`` makes it.
        read_status: asks a syncer, by its URL, for its status; raises UsageError if nobody answers.
        watcher: who shows it.
        has_finished: whether the run that is saved in the folder is over, in order.
        resumes: the folder holds a run that goes on.
        breaker: who breaks it; None: the drill.
        on_listening: called once, when the syncer is there for the first time: it goes on with the run, or begins it.
        program: the command line of ``unlockstep``, without a subcommand.
        now_ns: the clock; monotonic.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        *,
        read_status: Callable[[str], Status],
        watcher: Watcher,
        has_finished: Callable[[], bool] = lambda: False,
        resumes: bool = False,
        breaker: Breaker | None = None,
        on_listening: Callable[[], None] = lambda: None,
        program: Sequence[str] = (sys.executable, "-m", "unlockstep"),
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._config = config
        self._folder = folder
        self._read_status = read_status
        self._watcher = watcher
        self._has_finished, self._on_listening = has_finished, on_listening
        self._breaker = breaker or Drill(config, resumes)
        self._lines = CommandLines(program, folder)
        self._now_ns = now_ns
        self._url = ""
        """Of the syncer, whether or not it is there: every start of it listens there."""
        self._poll: StatusPoll | None = None
        self._listens_since_ns: int | None = None
        """Since when the syncer that runs listens; None: there is none, or it has not said so."""
        self._listens_until_ns = 0
        """If it has not said so by then, it never will."""
        self._syncer_starts = 0
        self._due: dict[str, int] = {}
        """Who is to be started (again), and when."""
        self._started: set[str] = set()
        self._returning: dict[str, int] = {}
        """Who was started again, and its newest incarnation then: it has returned when there is a newer one."""
        self._restarts = Restarts(config.local.restarts_max)
        self._alone_since_ns: int | None = None
        self._saving_until_ns: int | None = None
        self._syncer_ended_ns: int | None = None
        self._evaluator_ended: Exit | None = None
        """The last time it did."""

    def run(self) -> Outcome:
        """Start everything, look after it, end it. No process is left when this returns or raises."""
        with Wakeup() as wakeup, Processes(self._folder, wakeup, self._now_ns) as processes:
            self._wakeup, self._processes = wakeup, processes
            self._breaker.enter(Hands(processes, self._launch_when_possible, self._note))
            try:
                try:
                    outcome = self._begin_and_look_after()
                finally:
                    self._stop()
            finally:
                self._breaker.close()
                if self._poll is not None:
                    self._poll.stop()
        return msgspec.structs.replace(outcome, starting=self._starting())

    # --------------------------------------------------------------------------------------------- start and end

    def _begin_and_look_after(self) -> Outcome:
        """From the first process until nobody is broken any more. What is in the way of a run that has a syncer ends
        it, and no more than that: it can be gone on with."""
        try:
            outcome = self._launch(SYNCER) or self._look_after()
            self._breaker.release()
            return outcome
        except (UsageError, OSError) as error:
            if not self._url:
                raise
            return Outcome(Ending.FAILED, f"the run cannot go on: {error}")

    def _launch(self, name: str) -> Outcome | None:
        self._restarts.started(name, self._status)
        if name in self._started:
            self._returning[name] = self._incarnation(name)
        self._started.add(name)
        if name == SYNCER:
            self._syncer_starts += 1
            self._listens_until_ns = self._after_ns(LISTEN_S_MAX)
        try:
            self._processes.start(name, self._command(name))
        except (UsageError, OSError) as error:
            return self._on_no_start(name, str(error))
        self._breaker.started(name)
        return None

    def _on_no_start(self, name: str, reason: str) -> Outcome | None:
        """In the middle of a run it is as if it had died at once: what is in the way may go by itself."""
        if not self._has_begun and (name != SYNCER or self._syncer_starts == 1):
            return Outcome(Ending.REFUSED, reason)
        pause_s = self._restarts.pause_s(name, self._status)
        if pause_s is None and name == SYNCER:
            return Outcome(Ending.FAILED, f"the syncer cannot be started again: {reason}")
        if pause_s is None:
            self._note(f"{reason}; it is not tried again")
            return None
        self._due[name] = self._after_ns(pause_s)
        self._note(f"{reason}; tried again in {pause_s:g} s")
        return None

    def _launch_when_possible(self, name: str) -> None:
        self._due[name] = self._now_ns()

    def _check_listening(self) -> Outcome | None:
        """The syncer comes first: everybody else needs it. Once it is there for the first time, they are started."""
        if self._listens_since_ns is not None or SYNCER not in self._processes.running:
            return None
        found = _LISTENING.search("\n".join(self._processes.said(SYNCER, 20)))
        if found is None:
            late = self._now_ns() > self._listens_until_ns
            return self._failed(f"the syncer said nothing for {LISTEN_S_MAX:g} s", SYNCER) if late else None
        self._listens_since_ns = self._now_ns()
        if self._url:
            self._note("the syncer is back")
            return None
        self._url = found.group()
        self._on_listening()
        self._poll = StatusPoll(self._read_status, self._url, self._now_ns)
        self._note(f"the syncer listens at {self._url}")
        for name in (*self._breaker.learners, *([EVALUATOR] if self._config.local.evaluator else [])):
            if outcome := self._launch(name):
                return outcome
        return None

    def _command(self, name: str) -> tuple[str, ...]:
        if name == EVALUATOR:
            return self._lines.evaluator(self._url)
        if name == SYNCER:
            return self._breaker.dressed(SYNCER, self._lines.syncer(self._url.rpartition(":")[2] or "0"))
        share, slowdown = self._breaker.share(name), self._config.local.slowdown
        pace = slowdown[share[0]] if share[0] < len(slowdown) else 1
        address = self._breaker.address(name, self._url)
        return self._breaker.dressed(name, self._lines.learner(address, name, share, pace))

    def _stop(self) -> None:
        """All at once: the syncer ends the run, and waits a moment for learners to hand over or to say goodbye."""
        self._processes.stop(list(self._processes.running), STOP_S_MAX)

    # --------------------------------------------------------------------------------------------- meanwhile

    def _look_after(self) -> Outcome:
        while True:
            look_s = LISTEN_POLL_S if self._listens_since_ns is None else POLL_S
            self._wakeup.wait(min(look_s, self._breaker.wait_s()))
            if self._wakeup.stop_signals and not self._is_saving():
                return self._interrupted()
            # The syncer first: without it others may be excused.
            for exited in sorted(self._processes.take_exits(), key=lambda exited: exited.name != SYNCER):
                outcome = self._on_syncer_exit(exited) if exited.name == SYNCER else self._on_exit(exited)
                if outcome is not None:
                    return outcome
            if outcome := self._start_due() or self._check_listening():
                return outcome
            status, age_ns = (None, 0) if self._poll is None else self._poll.aged()
            if status is not None:
                self._watcher.show(status, self._now_ns())
            self._breaker.act(status, age_ns, self._is_ending)
            outcome = self._check_end()
            if outcome is not None:
                return outcome

    @property
    def _status(self) -> Status | None:
        return None if self._poll is None else self._poll.latest

    @property
    def _is_ending(self) -> bool:
        return self._syncer_ended_ns is not None or (self._status is not None and self._status.state in ENDING)

    def _is_saving(self) -> bool:
        """The run is over and the evaluator is at the final model: one signal leaves it a moment, a second one none."""
        over = self._status is not None and self._status.state == "finished"
        if not over or EVALUATOR not in self._processes.running or len(self._wakeup.stop_signals) > 1:
            return False
        if self._saving_until_ns is None:
            self._saving_until_ns = self._after_ns(SAVE_S_MAX)
        return self._now_ns() < self._saving_until_ns

    def _start_due(self) -> Outcome | None:
        """Those whose time has come; who needs the syncer also waits for that."""
        if self._is_ending:
            self._due = {name: due_ns for name, due_ns in self._due.items() if name == SYNCER}
        for name in [name for name, due_ns in self._due.items() if due_ns <= self._now_ns()]:
            if name == SYNCER or self._listens_since_ns is not None:
                del self._due[name]
                again = " again" if name in self._started else ""
                if outcome := self._launch(name):
                    return outcome
                if name in self._processes.running:
                    self._note(f"{'the syncer' if name == SYNCER else name} is started{again}")
        return None

    # --------------------------------------------------------------------------------------------- what dies

    def _on_syncer_exit(self, exited: Exit) -> Outcome | None:
        self._listens_since_ns = None
        if (claim := self._breaker.claims(exited, self._status)) is not None:
            self._note(f"the syncer {claim.sentence}")
            return None
        if exited.status == ChildCode.DONE:
            self._syncer_ended_ns = self._now_ns()
            return None
        if exited.status == ChildCode.ASKED_TO_END:
            return self._failed("somebody has told the syncer to stop", SYNCER)
        if self._has_finished():
            self._note(f"the syncer {exited.sentence} when the run was over")
            self._syncer_ended_ns = self._now_ns()
            return None
        if exited.status == ChildCode.USAGE:
            refused = self._refused(SYNCER)
            sentence = f"the syncer cannot be started again: {refused.sentence}"
            return Outcome(Ending.FAILED, sentence) if self._has_begun or self._syncer_starts > 1 else refused
        pause_s = self._restarts.pause_s(SYNCER, self._status)
        if pause_s is None:
            return self._failed(f"the syncer {exited.sentence} and is not started again", SYNCER)
        self._due[SYNCER] = self._after_ns(pause_s)
        self._note(f"the syncer {exited.sentence}; started again in {pause_s:g} s")
        return None

    def _on_exit(self, exited: Exit) -> Outcome | None:
        """Somebody other than the syncer has ended."""
        name = exited.name
        if name == EVALUATOR:
            self._evaluator_ended = exited
        if not self._is_ending:
            self._returning.pop(name, None)
        if (claim := self._breaker.claims(exited, self._status)) is not None:
            if claim.back_s is not None:
                self._due[name] = self._after_ns(claim.back_s)
            self._note(f"{name} {claim.sentence}")
            return None
        if exited.status in (ChildCode.DONE, ChildCode.ASKED_TO_END):
            if not self._is_ending:
                self._note(f"{name} has left")
            return None
        if exited.status == ChildCode.USAGE and not self._has_begun:
            return self._refused(name)
        if self._is_ending:
            self._note(f"{name} {exited.sentence} while the run ended")
            return None
        self._restart(exited)
        return None

    @property
    def _has_begun(self) -> bool:
        return self._status is not None and self._status.clock > 0

    def _restart(self, exited: Exit) -> None:
        name = exited.name
        # Who finds no syncer has done nothing wrong: there is none just now, or no way to it.
        is_counted = exited.status != ChildCode.UNANSWERED or not self._has_begun
        to_mend = exited.status == ChildCode.USAGE
        pause_s = None if to_mend else self._restarts.pause_s(name, self._status, is_counted)
        if pause_s is None:
            said = "".join(f": {line}" for line in self._processes.said(name, 1))
            self._note(f"{name} {exited.sentence} and is not started again{said}")
            return
        self._due[name] = self._after_ns(pause_s)
        self._note(f"{name} {exited.sentence}; started again in {pause_s:g} s")

    def _incarnation(self, name: str) -> int:
        """The newest of a learner that the syncer has told of; 0: none."""
        known = () if self._status is None else self._status.learners
        return max((learner.incarnation for learner in known if learner.learner == name), default=0)

    # --------------------------------------------------------------------------------------------- the end

    def _starting(self) -> tuple[str, ...]:
        """Learners that have been started again and have not returned."""
        learners = self._returning.keys() - {SYNCER, EVALUATOR}
        return tuple(name for name in sorted(learners) if self._incarnation(name) <= self._returning[name])

    def _check_end(self) -> Outcome | None:
        if self._syncer_ended_ns is not None:
            return self._check_ended(self._syncer_ended_ns)
        there = {*self._processes.running, *self._due}
        if self._url and SYNCER not in there and not self._breaker.has_more:
            return self._failed("the tape is over and has left the run without a syncer", SYNCER)
        if self._is_ending or not self._url or there - {SYNCER, EVALUATOR} or self._breaker.has_more:
            self._alone_since_ns = None
        elif self._alone_since_ns is None:
            self._alone_since_ns = self._now_ns()
        elif self._now_ns() - self._alone_since_ns > ALONE_S_MAX * NANOSECONDS_PER_SECOND:
            return self._failed("no learner is left, and none may be started again", self._breaker.learners[0])
        return None

    def _check_ended(self, ended_ns: int) -> Outcome | None:
        """The syncer is gone in order: the run is over as soon as the evaluator is through with the final model."""
        is_at_it = EVALUATOR in self._processes.running
        if is_at_it and self._now_ns() - ended_ns <= END_S_MAX * NANOSECONDS_PER_SECOND:
            return None
        ended = self._evaluator_ended
        if not self._config.local.evaluator or (ended is not None and ended.status == ChildCode.DONE):
            return Outcome(Ending.FINISHED, "the run has finished")
        reason = f"the evaluator took more than {END_S_MAX:g} s" if is_at_it else "there was no evaluator"
        if ended is not None and not is_at_it:
            said = [line for line in self._processes.said(EVALUATOR, 1) if line.startswith("error: ")]
            reason = said[0].removeprefix("error: ") if said else f"the evaluator {ended.sentence}"
        return Outcome(Ending.FAILED, f"the final model was not written: {reason}; {from_log(self._folder)}")

    def _interrupted(self) -> Outcome:
        first = self._wakeup.stop_signals[0]
        return Outcome(Ending.INTERRUPTED, f"the run was interrupted ({first.name})", first)

    def _refused(self, name: str) -> Outcome:
        """The user's to mend: what the process said last is the sentence."""
        said = self._processes.said(name, 1)
        sentence = said[0] if said else f"{name} exited with code 2; see {self._processes.log(name)}"
        return Outcome(Ending.REFUSED, sentence.removeprefix("error: "))

    def _failed(self, sentence: str, culprit: str) -> Outcome:
        log = self._processes.log(culprit)
        said = "".join(f"\n    {line}" for line in self._processes.said(culprit, LOG_LINES_SHOWN))
        ends = f"; {log} ends:{said}" if said else f"; {log} says no more"
        return Outcome(Ending.FAILED, sentence + ends)

    def _note(self, text: str) -> None:
        self._watcher.note(text, self._now_ns())

    def _after_ns(self, seconds: float) -> int:
        return self._now_ns() + int(seconds * NANOSECONDS_PER_SECOND)

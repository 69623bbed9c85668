"""Learners that join a run which goes on elsewhere, and are broken there as an event tape says.

Decides who is started, who that dies by itself is started again, and when it is over: with the tape, with the run, or
when somebody asks. Then its learners leave in order. Does not decide what the actions are (``supervisor``), and touches
nobody it has not started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from unlockstep.chaos.proxy import Links
from unlockstep.chaos.supervisor import Supervisor
from unlockstep.core.errors import UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.status import Status
from unlockstep.launch.breaker import Hands
from unlockstep.launch.command_lines import CommandLines
from unlockstep.launch.local import ENDING, POLL_S, STOP_S_MAX, ChildCode, Ending, Outcome, StatusPoll
from unlockstep.launch.processes import Exit, Processes, Wakeup
from unlockstep.launch.restarts import Restarts
from unlockstep.tape import SYNCER, Tape

RESTARTS_MAX = 3
"""Of a learner that dies by itself, in a row, without a part in a round."""


class Guests:
    """One tape, played on learners of its own.

    Args:
        tape: what is played; nothing in it is done to the syncer.
        url: of the syncer.
        folder: for logs and checkpoints.
        played: file for what was played.
        before: status of the run, when nobody had been started here.
        read_status: asks the syncer for its status; raises UsageError if nobody answers.
        note: told what happens, a line each.
        show: told how the run is, again and again.
        program: the command line of ``unlockstep``, without a subcommand.
        options: of ``unlockstep learner``, for all of them.
        now_ns: the clock; monotonic.
    """

    def __init__(
        self,
        tape: Tape,
        url: str,
        folder: Path,
        played: Path,
        *,
        before: Status,
        read_status: Callable[[str], Status],
        note: Callable[[str], None],
        program: Sequence[str],
        options: Sequence[str] = (),
        show: Callable[[Status], None] = lambda status: None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._url, self._folder = url, folder
        self._read_status, self._note, self._show, self._now_ns = read_status, note, show, now_ns
        self._lines, self._options = CommandLines(program, folder), tuple(options)
        self._supervisor = Supervisor(tape, folder, played, now_ns, before)
        self._restarts = Restarts(RESTARTS_MAX)
        self._due: dict[str, int] = {}
        self._status = before

    def run(self) -> Outcome:
        """From the first learner to the last. No process is left when this returns or raises."""
        supervisor = self._supervisor
        with Wakeup() as wakeup, Processes(self._folder, wakeup, self._now_ns) as processes:
            self._wakeup, self._processes = wakeup, processes
            poll = StatusPoll(self._read_status, self._url, self._now_ns, self._status)
            try:
                try:
                    outcome = self._play(poll)
                finally:
                    processes.stop(list(processes.running), STOP_S_MAX)
            finally:
                poll.stop()
                supervisor.close()
        return outcome

    def _play(self, poll: StatusPoll) -> Outcome:
        """Until nobody is broken any more, whatever is in the way."""
        try:
            self._supervisor.enter(Hands(self._processes, self._launch, self._note))
            for name in self._supervisor.learners:
                self._launch(name)
            outcome = self._look_after(poll)
            self._supervisor.release()
            return outcome
        except (UsageError, OSError) as error:
            if not self._supervisor.has_begun:
                return Outcome(Ending.REFUSED, str(error))
            return Outcome(Ending.FAILED, f"the tape cannot be played on: {error}")

    def _launch(self, name: str) -> None:
        self._due[name] = self._now_ns()

    def _start_due(self) -> None:
        for name in [name for name, due_ns in self._due.items() if due_ns <= self._now_ns()]:
            del self._due[name]
            supervisor = self._supervisor
            address, share = supervisor.address(name, self._url), supervisor.share(name)
            self._restarts.started(name, self._status)
            command = self._lines.learner(address, name, share, options=self._options)
            self._processes.start(name, supervisor.dressed(name, command))
            supervisor.started(name)

    def _look_after(self, poll: StatusPoll) -> Outcome:
        supervisor = self._supervisor
        while True:
            self._start_due()
            self._wakeup.wait(min(POLL_S, supervisor.wait_s()))
            if self._wakeup.stop_signals:
                first = self._wakeup.stop_signals[0]
                return Outcome(Ending.INTERRUPTED, f"interrupted ({first.name})", first)
            self._status = poll.latest or self._status
            self._show(self._status)
            for exited in self._processes.take_exits():
                if (outcome := self._on_exit(exited)) is not None:
                    return outcome
            if self._status.state in ENDING:
                return Outcome(Ending.FINISHED, "the run has ended")
            supervisor.act(*poll.aged(), is_ending=False)
            if supervisor.is_over:
                return Outcome(Ending.FINISHED, "the tape has been played")
            if not self._processes.running and not self._due and not supervisor.has_more:
                return Outcome(Ending.FAILED, f"no learner is left; see {self._processes.log('*').parent}")

    def _on_exit(self, exited: Exit) -> Outcome | None:
        name = exited.name
        if (claim := self._supervisor.claims(exited, self._status)) is not None:
            self._note(f"{name} {claim.sentence}")
            return None
        if exited.status in (ChildCode.DONE, ChildCode.ASKED_TO_END):
            self._note(f"{name} has left")
            return None
        said = " ".join(self._processes.said(name, 1)).removeprefix("error: ")
        if exited.status == ChildCode.USAGE and not self._supervisor.has_more:
            return Outcome(Ending.REFUSED, said or f"{name} exited with code 2; see {self._processes.log(name)}")
        pause_s = self._restarts.pause_s(name, self._status, exited.status != ChildCode.UNANSWERED)
        if pause_s is None:
            sentence = f"{name} {exited.sentence} and is not started again" + (f": {said}" if said else "")
            if not self._supervisor.has_more:  # The tape would wait for it for ever.
                return Outcome(Ending.FAILED, sentence)
            self._note(sentence)
            return None
        self._due[name] = self._now_ns() + int(pause_s * NANOSECONDS_PER_SECOND)
        self._note(f"{name} {exited.sentence}; started again in {pause_s:g} s")
        return None


def require_playable(tape: Tape, url: str, status: Callable[[], Status]) -> Status:
    """Whether a tape can be played on guests of the run at ``url``, before anything is started; the status of the run.

    Raises:
        UsageError: it does something to the syncer, a name is taken, the run is over, the address is not plain HTTP, or
            nobody answers.
    """
    for number, action in enumerate(tape.actions, start=1):
        if action.target == SYNCER:
            raise UsageError(
                f"tape {tape.name!r}, action {number} is to {type(action).__name__.lower()} the syncer, which this "
                "command has not started and does not touch; leave that out, or use unlockstep train --tape"
            )
    Links.require(url)
    state = status()
    if state.state in ENDING:
        raise UsageError(f"the run at {url} is {state.state}; start a tape on a run that goes on")
    taken = sorted({each.learner for each in state.learners if each.state == "live"} & set(tape.cast))
    if taken:
        raise UsageError(
            f"tape {tape.name!r} has {taken[0]}, but a learner of that name is in the run and was not started here; "
            "give the tape's learners names of their own"
        )
    return state

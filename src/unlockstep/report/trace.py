"""A run as a trace that https://ui.perfetto.dev opens: the JSON form of the Trace Event Format.

Decides what becomes a slice, an instant or a counter, and on which track. One process for the syncer, with a track for
each fragment, and one for each learner. Written event by event: a trace of any length needs the memory of a short one.

Source: "Trace Event Format", Google, 2016. Times there are microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec

from unlockstep.core.events import (
    BytesMoved,
    ContributionAccepted,
    ContributionRefused,
    EvaluationReported,
    Event,
    FragmentAdopted,
    FragmentCommitted,
    LearnerAway,
    LearnerDeparted,
    LearnerJoined,
    LearnerLeaving,
    LearnerLive,
    LossSpiked,
    RolledBack,
    RoundClosed,
    RoundOpened,
    RunFinished,
    RunFinishing,
    StepReported,
    SyncerResumed,
)
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.report.stretches import Attendance, Doing, Stretch
from unlockstep.report.tape_time import TapeTime
from unlockstep.tape import SYNCER, Tape, said

SYNCER_PROCESS = 1

STRETCHES, ADOPTIONS = 1, 2
"""Tracks of a learner."""

RUN_TRACK = 0
"""Of the syncer: what happens to the run as a whole. Fragment p is on track p + 1."""


@dataclass(frozen=True, slots=True)
class Possible:
    """What a counter of goodput is measured by."""

    tokens_per_s: float
    """Of all learners together, undisturbed, above 0."""
    fragments: int
    window_ns: int
    """The counter shows the mean over at least so much time."""


def write(
    events: Iterable[Event],
    file: TextIO,
    run: str,
    tape: Tape | None = None,
    possible: Possible | None = None,
    *,
    simulated: bool = True,
) -> None:
    """Write the trace of a run.

    Args:
        events: in the order they were logged.
        file: where to; from its beginning.
        run: its name.
        tape: what was done to it.
        possible: what goodput is measured by; None: there is no counter of it.
        simulated: whether its time was virtual.
    """
    trace = _Trace(file, run, TapeTime(tape, simulated), possible)
    for event in events:
        trace.see(event)
    trace.close()


class _Trace:
    def __init__(self, file: TextIO, run: str, tape: TapeTime, possible: Possible | None) -> None:
        self._file = file
        self._possible = possible
        self._merged, self._merged_ns = 0.0, 0
        """Tokens merged since then, mean over fragments."""
        self._tape = tape
        self._encoder = msgspec.json.Encoder()
        self._is_first = True
        self._processes: dict[str, int] = {}
        self._fragments: set[int] = set()
        self._until_ns: dict[tuple[int, int], int] = {}
        """By process and track: where its last slice ends; the next one begins no earlier."""
        self._live: set[str] = set()
        self._opened: dict[int, RoundOpened] = {}
        self._closed: dict[int, RoundClosed] = {}
        self._last_ns = 0
        self._attendance = Attendance(self._take, tape)
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        self._name(SYNCER_PROCESS, f"syncer of {run}")
        self._name(SYNCER_PROCESS, "run", RUN_TRACK)

    def see(self, event: Event) -> None:
        self._tape.see(event)
        self._attendance.see(event)
        self._last_ns = event.at_ns
        match event:
            case StepReported() | EvaluationReported() | BytesMoved():
                self._count(event)
            case LearnerLive() | LearnerJoined() | LearnerAway() | LearnerLeaving() | LearnerDeparted():
                self._member(event)
            case RoundOpened():
                self._opened[event.round] = event
            case RoundClosed():
                self._closed[event.round] = event
            case FragmentCommitted():
                self._round(event)
                self._goodput(event)
            case FragmentAdopted():
                self._instant(f"adopt {event.fragment} v{event.version}", event.at_ns, self._process(event.learner),
                              ADOPTIONS)  # fmt: skip
            case ContributionAccepted(late=True):
                self._instant(f"late for round {event.round}", event.at_ns, self._process(event.learner), ADOPTIONS)
            case ContributionRefused():
                what = f"refused: {event.reason.value.replace('_', ' ')}"
                self._instant(what, event.at_ns, self._process(event.learner), ADOPTIONS)
            case SyncerResumed():
                self._opened.clear()
                self._closed.clear()
                self._live.clear()
                self._counter("live learners", event.at_ns, 0)
                self._instant(f"the syncer goes on, life {event.life}", event.at_ns)
            case RolledBack():
                self._instant(f"back to record {event.record}", event.at_ns)
            case LossSpiked():
                self._instant("the validation loss has leapt", event.at_ns)
            case RunFinishing():
                self._instant(f"finishing: {event.reason}", event.at_ns)
            case RunFinished():
                self._instant("finished", event.at_ns)

    def close(self) -> None:
        """There are no more events."""
        self._attendance.finish()
        for at_ns, action in self._tape.actions():
            process = SYNCER_PROCESS if action.target == SYNCER else self._process(action.target)
            track = RUN_TRACK if process == SYNCER_PROCESS else STRETCHES
            self._instant(f"tape: {said(action)}", at_ns, process, track)
        self._file.write("\n]}\n")

    def _take(self, stretch: Stretch) -> None:
        name = stretch.doing.value
        if stretch.doing is Doing.COMPUTING:  # Of those that were not reported nobody knows each.
            name = "steps" if stretch.unheard and not stretch.step_ns else "step"
        process = self._process(stretch.learner)
        arguments = {"tokens": stretch.tokens, **({"unheard": True} if stretch.unheard else {})}
        self._slice(name, stretch.begin_ns, stretch.end_ns, process, STRETCHES, arguments)

    def _count(self, event: StepReported | EvaluationReported | BytesMoved) -> None:
        match event:
            case StepReported():
                if math.isfinite(event.loss):
                    self._counter("loss", event.at_ns, event.loss, self._process(event.learner))
            case EvaluationReported():
                if math.isfinite(event.nats_per_byte):
                    self._counter("validation loss, nats/byte", event.at_ns, event.nats_per_byte)
            case BytesMoved():
                process = self._process(event.learner)
                self._counter("bytes up", event.at_ns, event.up_bytes, process)
                self._counter("bytes down", event.at_ns, event.down_bytes, process)

    def _member(self, event: LearnerLive | LearnerJoined | LearnerAway | LearnerLeaving | LearnerDeparted) -> None:
        before = len(self._live)
        if isinstance(event, LearnerLive):
            self._live.add(event.learner)
        else:
            self._live.discard(event.learner)
        if len(self._live) != before:
            self._counter("live learners", event.at_ns, len(self._live))
        what = type(event).__name__.removeprefix("Learner").lower()
        if isinstance(event, LearnerDeparted):
            what = f"departed: {event.reason.value.replace('_', ' ')}"
        self._instant(what, event.at_ns, self._process(event.learner), STRETCHES)

    def _round(self, event: FragmentCommitted) -> None:
        opened, closed = self._opened.pop(event.round, None), self._closed.pop(event.round, None)
        if opened is None or closed is None:
            return
        track = event.fragment + 1
        if event.fragment not in self._fragments:
            self._fragments.add(event.fragment)
            self._name(SYNCER_PROCESS, f"fragment {event.fragment}", track)
        begin_ns = max(opened.at_ns, self._until_ns.get((SYNCER_PROCESS, track), 0))
        quorum_ns = max(begin_ns, min(opened.at_ns + closed.quorum_ns, closed.at_ns))
        arguments = {
            "version": event.version,
            "took part": len(closed.participants),
            "live": closed.live,
            "grace granted, ms": closed.grace_ns / 1e6,
            "norm": event.norm if math.isfinite(event.norm) else None,
            "why it closed": closed.sentence,
        }
        self._slice(f"round {event.round}", begin_ns, event.at_ns, SYNCER_PROCESS, track, arguments)
        inside = (("collect", begin_ns, quorum_ns), ("grace window", quorum_ns, closed.at_ns),
                  ("commit", closed.at_ns, event.at_ns))  # fmt: skip
        for name, first_ns, last_ns in inside:
            if last_ns > first_ns:
                self._put({"name": name, "ph": "X", "ts": first_ns / 1e3, "dur": (last_ns - first_ns) / 1e3,
                           "pid": SYNCER_PROCESS, "tid": track})  # fmt: skip

    def _goodput(self, event: FragmentCommitted) -> None:
        """Since the last value, over what all learners could have trained, there or not."""
        possible = self._possible
        first_ns = self._tape.first_step_ns
        if possible is None or first_ns is None:
            return
        self._merged += event.tokens / possible.fragments
        since_ns = event.at_ns - max(self._merged_ns, first_ns)
        if since_ns >= possible.window_ns:
            value = self._merged / (possible.tokens_per_s * since_ns / NANOSECONDS_PER_SECOND)
            self._counter("goodput", event.at_ns, value)
            self._merged, self._merged_ns = 0.0, event.at_ns

    def _process(self, learner: str) -> int:
        number = self._processes.get(learner)
        if number is None:
            number = self._processes[learner] = SYNCER_PROCESS + 1 + len(self._processes)
            self._name(number, learner)
            self._name(number, "steps", STRETCHES)
            self._name(number, "versions", ADOPTIONS)
        return number

    def _name(self, process: int, name: str, track: int | None = None) -> None:
        what = "process_name" if track is None else "thread_name"
        self._put({"name": what, "ph": "M", "pid": process, "tid": track or 0, "args": {"name": name}})

    def _slice(
        self, name: str, begin_ns: int, end_ns: int, process: int, track: int, arguments: dict[str, Any]
    ) -> None:
        """One that does not overlap the last one of its track."""
        begin_ns = max(begin_ns, self._until_ns.get((process, track), 0))
        if end_ns <= begin_ns:
            return
        self._until_ns[process, track] = end_ns
        self._put({"name": name, "ph": "X", "ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3,
                   "pid": process, "tid": track, "args": arguments})  # fmt: skip

    def _instant(self, name: str, at_ns: int, process: int = SYNCER_PROCESS, track: int = RUN_TRACK) -> None:
        self._put({"name": name, "ph": "i", "ts": at_ns / 1e3, "pid": process, "tid": track,
                   "s": "p" if process == SYNCER_PROCESS else "t"})  # fmt: skip

    def _counter(self, name: str, at_ns: int, value: float, process: int = SYNCER_PROCESS) -> None:
        self._put({"name": name, "ph": "C", "ts": at_ns / 1e3, "pid": process, "args": {"value": value}})

    def _put(self, record: dict[str, Any]) -> None:
        self._file.write(("\n" if self._is_first else ",\n") + self._encoder.encode(record).decode())
        self._is_first = False

"""A run folder trained in this process: the ring is played, and what a real run leaves behind is left here, too.

Decides when the global model is evaluated, when what has happened is written and shown, when a checkpoint is due, and
how the run has ended. Does not decide what happens (``ring``), what a checkpoint looks like (``checkpoint``) or what is
printed.

Whatever depends on the wall clock (progress, checkpoints, how often the log is written) changes nothing in the run.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from unlockstep import tape as tapes
from unlockstep.core.chunks import Float32
from unlockstep.core.codec import fragment_codecs
from unlockstep.core.errors import UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.messages import Evaluation
from unlockstep.core.status import Score
from unlockstep.core.words import counted
from unlockstep.launch.local import Ending, Outcome, Watcher
from unlockstep.runlog import Header, Mark, RunLogWriter
from unlockstep.virtual import checkpoint
from unlockstep.virtual.ring import Ring

EVALUATOR = "evaluator"
"""Under whose name losses are reported."""

LOOK_NS = NANOSECONDS_PER_SECOND // 4
"""Wall time between two looks: what has happened is written and shown."""

DOUBT_NS = NANOSECONDS_PER_SECOND // 10
"""Virtual time between two questions whether anybody can go on, which nothing that happens asks by itself."""

PLAYED_SHOWN_MAX = 3
"""Of the actions that a tape has played between two looks, so many are told."""

CHECKPOINT_SHARE_MAX = 0.02
"""Of the wall time that checkpoints may take: where one takes long, they are fewer."""


class Examiner(Protocol):
    """The model of a run and the text it is validated on."""

    def load(self, values: dict[int, Float32]) -> None:
        """The model has these values, float32[n] by fragment."""
        ...

    def evaluate(self, values: dict[int, Float32]) -> tuple[float, float, tuple[Score, ...]]:
        """Load them; their validation loss, nats per token and nats per byte, and what else the model is asked."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model."""
        ...


@dataclass(slots=True)
class Stage:
    """All that a run goes on from."""

    ring: Ring
    evaluated: tuple[int, ...] = ()
    """Versions of the fragments that were evaluated last."""
    evaluates_ns: int = 0
    """When the next evaluation may be, virtual."""
    doubts_ns: int = 0
    """When it is asked next whether anybody can go on, virtual."""
    mark: Mark | None = None
    """Of the run log: what is behind it has not happened."""
    wall_ns: int = 0
    """What it has taken so far."""


@dataclass(frozen=True, slots=True)
class Files:
    """Of a run folder."""

    run_log: Path
    checkpoint: Path
    model: Path


class VirtualRun:
    """One run, or what is left of it.

    Args:
        stage: as it was made, or as ``checkpoint.read`` has returned it.
        header: of the run log.
        files: where everything is.
        constants: what a checkpoint names (``checkpoint.write``).
        examiner: who evaluates and saves the global model; None: nobody does.
        watcher: who shows it.
        stop: the signal by which somebody has asked to stop; None: nobody has.
        now_ns: the wall clock; monotonic.
    """

    def __init__(
        self,
        stage: Stage,
        header: Header,
        files: Files,
        *,
        constants: Mapping[str, object],
        examiner: Examiner | None,
        watcher: Watcher,
        stop: Callable[[], int | None] = lambda: None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._stage, self._ring, self._world = stage, stage.ring, stage.ring.world
        self._files, self._constants = files, constants
        self._examiner, self._watcher, self._stop = examiner, watcher, stop
        self._now_ns = now_ns
        self._config = stage.ring.config
        self._log = RunLogWriter(files.run_log, header, continues=stage.mark, reopens=stage.mark is not None)
        self._told = self._actions_played()
        self._since_ns = now_ns()
        self._looks_ns = self._since_ns
        self._saves_ns = self._since_ns + self._interval_ns

    def run(self) -> Outcome:
        """Play until the run has ended, nobody can go on, or somebody asks to stop. Once only."""
        with self._log:
            try:
                outcome = self._play()
            except UsageError as error:
                outcome = Outcome(Ending.FAILED if self._has_begun else Ending.REFUSED, str(error))
            self._write_log()
            self._stage.wall_ns += self._now_ns() - self._since_ns
            if outcome.ending is Ending.INTERRUPTED:
                self._save()
            elif outcome.ending is not Ending.REFUSED:
                self._tell_what_was_not_played()
        return msgspec.structs.replace(outcome, starting=self._world.starting)

    @property
    def virtual_ns(self) -> int:
        """How much time has passed in it."""
        return self._world.clock.now_ns()

    @property
    def wall_ns(self) -> int:
        """What the run has taken, all processes together."""
        return self._stage.wall_ns

    @property
    def _has_begun(self) -> bool:
        return self._world.core.status(self._world.clock.now_ns()).clock > 0

    def _play(self) -> Outcome:
        for now_ns in self._ring.play():
            if self._examiner is not None and now_ns >= self._stage.evaluates_ns:
                self._evaluate_if_new(self._examiner)
            if now_ns >= self._stage.doubts_ns:
                self._stage.doubts_ns = now_ns + DOUBT_NS
                if self._ring.is_stuck:
                    return Outcome(Ending.FAILED, self._ring.why_stuck())
            wall_ns = self._now_ns()
            if wall_ns >= self._looks_ns:
                self._look(wall_ns)
            number = self._stop()
            if number is not None and not self._world.ended:
                return Outcome(Ending.INTERRUPTED, f"the run was interrupted (signal {number})", number)
        if not self._world.ended:
            return Outcome(Ending.FAILED, self._ring.why_stuck())
        self._look(self._now_ns())
        if self._examiner is not None:
            self._evaluate_if_new(self._examiner)
            self._write_log()
            if self._stage.evaluated:
                self._examiner.load(self._values())
                self._examiner.save(self._files.model)
        return Outcome(Ending.FINISHED, "the run has finished")

    # --------------------------------------------------------------------------------------------- evaluations

    def _evaluate_if_new(self, examiner: Examiner) -> None:
        """Evaluate what is committed, if there is all of it and something new in it, as an observer would see it."""
        core, now_ns = self._world.core, self._world.clock.now_ns()
        versions = tuple(notice.version for notice in core.notices)
        if versions in ((), self._stage.evaluated) or not self._world.syncer.life.is_running:
            return
        self._stage.evaluated = versions
        self._stage.evaluates_ns = now_ns + round(self._config.evaluation.interval_s * NANOSECONDS_PER_SECOND)
        loss, nats_per_byte, scores = examiner.evaluate(self._values())
        self._world.tell(Evaluation(EVALUATOR, core.status(now_ns).clock, loss, nats_per_byte, versions, scores))

    def _values(self) -> dict[int, Float32]:
        """Every fragment as it is published."""
        core = self._world.core
        assert core.layout is not None
        codecs = fragment_codecs(core.layout, self._config.codec.download)
        parcels = {notice.fragment: self._world.syncer.give(notice) for notice in core.notices}
        return {fragment: codecs[fragment].decode(parcel.body) for fragment, parcel in parcels.items() if parcel}

    # --------------------------------------------------------------------------------------------- meanwhile

    def _look(self, wall_ns: int) -> None:
        self._write_log()
        self._tell_what_was_played(wall_ns)
        self._watcher.show(self._world.core.status(self._world.clock.now_ns()), wall_ns)
        self._looks_ns = self._now_ns() + LOOK_NS
        if self._interval_ns and wall_ns >= self._saves_ns and not self._world.ended:
            self._stage.wall_ns += wall_ns - self._since_ns
            self._since_ns = wall_ns
            self._save()
            took_ns = self._now_ns() - wall_ns
            self._saves_ns = self._now_ns() + max(self._interval_ns, round(took_ns / CHECKPOINT_SHARE_MAX))

    def _actions_played(self) -> int:
        """By now, by the tape."""
        now_ns = self._world.clock.now_ns()
        return bisect_right(self._ring.tape.actions, now_ns, key=lambda action: action.at_ns) if now_ns else 0

    def _tell_what_was_played(self, wall_ns: int) -> None:
        before, self._told = self._told, self._actions_played()
        played = self._ring.tape.actions[before : self._told]
        for action in played[-PLAYED_SHOWN_MAX:]:
            at_s = action.at_ns / NANOSECONDS_PER_SECOND
            self._watcher.note(f"the tape at {at_s:g} s: {tapes.said(action)}", wall_ns)
        if len(played) > PLAYED_SHOWN_MAX:
            self._watcher.note(f"... and {counted(len(played) - PLAYED_SHOWN_MAX, 'action')} before", wall_ns)

    def _tell_what_was_not_played(self) -> None:
        """In the words of a real run (``chaos.supervisor``)."""
        tape = self._ring.tape
        left = len(tape.actions) - self._actions_played()
        if left:
            self._watcher.note(tapes.cut_short(tape, left), self._now_ns())

    def _write_log(self) -> None:
        for event in self._world.take_events():
            self._log.write((event,))  # One by one: where a file of the log ends must not depend on when it is written.
        self._log.flush()

    def _save(self) -> None:
        """Keep all of it. Where there is no room the run goes on without."""
        self._stage.mark = self._log.mark
        try:
            checkpoint.write(self._files.checkpoint, self._stage, self._constants)
        except OSError as error:
            self._watcher.note(f"the checkpoint cannot be written ({error}); the run goes on", self._now_ns())

    @property
    def _interval_ns(self) -> int:
        return round(self._config.checkpoint.interval_s * NANOSECONDS_PER_SECOND)

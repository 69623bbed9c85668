"""Plays an event tape on real processes: those of its run, and no others.

Decides what every action is on processes, when the tape begins, what is left out because its target is not as the tape
has it, and what is written down of what was played. Does not decide who is started again after dying by itself, nor
when the run ends (``launch.local``, ``guests``).

The tape begins when all learners it names at the start have done a step. Who these are is on the disk before any of
them is started: a run that is resumed has them, however early it was cut short. What is played is written down as it
happens, with the time at which it did, as a tape: what cannot be done any more is not on it, and told to whoever
watches. So it is a valid tape, which can be played again and simulated.

Only processes that the run's ``Processes`` has started are ever touched.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from unlockstep import tape as tapes
from unlockstep.chaos.gait import Gait
from unlockstep.chaos.knobs import Knobs
from unlockstep.chaos.proxy import Links, Way
from unlockstep.core.errors import UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.status import Status
from unlockstep.files import whole
from unlockstep.launch.breaker import Claim, Hands
from unlockstep.launch.casting import shares
from unlockstep.launch.processes import Exit
from unlockstep.launch.restarts import EVALUATOR
from unlockstep.tape import SYNCER, Action, Standing, Tape, TargetState

SOON_S = 0.02
"""How often it is looked for what an action waits for: the end of the process before, or the beginning of this one."""

_WAYS: dict[str, tuple[Way, ...]] = {"both": ("up", "down"), "up": ("up",), "down": ("down",)}


class Supervisor:
    """A ``Breaker``.

    Args:
        tape: what is played.
        folder: of the run.
        played: file for what was played, ``.jsonl``.
        now_ns: the clock; monotonic.
        before: of the run, when none of the tape's learners had been started.
    """

    def __init__(
        self,
        tape: Tape,
        folder: Path,
        played: Path,
        now_ns: Callable[[], int] = time.monotonic_ns,
        before: Status | None = None,
    ) -> None:
        self.learners = tape.learners
        self.tape = tape
        self._shares = shares(tape)
        self._folder = folder
        self._written = PlayedTape(tape, played, lambda text: self._hands.note(text))
        self._now_ns = now_ns
        self._steps_before = {} if before is None else {each.learner: each.steps for each in before.learners}
        """Of others who went by these names; the syncer counts on."""
        self._standing = Standing(tape.learners)
        """After what was played."""
        self._next = 0
        self._began_ns: int | None = None
        self._is_over = self._is_released = False
        self._links: Links | None = None
        self._knobs: dict[str, Knobs] = {}
        self._full: set[str] = set()
        self._choked: set[str] = set()
        """Whose disk is full, or was at some time since they were started."""
        self._starved = False
        """The syncer has ended for want of room."""
        self._replaced: Counter[str] = Counter()
        self._unseen: dict[str, int] = {}
        """Processes whose name has gone to another one, and until when they are out of sight."""
        self._elders: dict[str, str] = {}
        """Processes whose name has gone to another one, and that name."""

    # ------------------------------------------------------------------------------------------- for the run

    @property
    def has_more(self) -> bool:
        """Whether actions are to come. A tape that begins without learners waits for none."""
        return (self._began_ns is not None or not self.learners) and not self._is_over

    @property
    def has_begun(self) -> bool:
        """Whether the tape has begun."""
        return self._began_ns is not None

    def share(self, name: str) -> tuple[int, int]:
        return self._shares[name]

    def address(self, name: str, url: str) -> str:
        if self._links is None:
            self._links = Links(url)
        return self._links[name].address

    def dressed(self, name: str, command: tuple[str, ...]) -> tuple[str, ...]:
        knobs = self._knobs_of(name)
        knobs.is_ready = False
        return (command[0], "-m", "unlockstep.chaos.inject", str(knobs.path), *command[1:])

    def enter(self, hands: Hands) -> None:
        self._hands = hands
        self._gait = Gait(hands.processes, lambda name: self._knobs_of(name).is_ready)
        self._written.open()

    def started(self, name: str) -> None:
        if name == EVALUATOR:
            return
        self._gait.begun(name)
        if name in self._full:
            self._limit(name)
        else:
            self._choked.discard(name)

    def claims(self, exited: Exit, status: Status | None) -> Claim | None:
        name = exited.name
        if name in self._elders:
            self._unseen.pop(name, None)
            return Claim(f"{exited.sentence}; its name is another one's")
        if name not in self._shares and name != SYNCER:
            return None
        if name == SYNCER and name in self._choked and exited.status > 0:
            return self._starve(exited)
        match self._standing.process(name):
            case TargetState.DEAD:
                return Claim(f"{exited.sentence} by the tape")
            case TargetState.ABSENT:
                self._begin_anew(name)
                return Claim("has left")
        return None

    def _starve(self, exited: Exit) -> Claim:
        """The syncer had no room; it may have been made while the process was still ending."""
        if SYNCER in self._full:
            self._starved = True
            return Claim(f"{exited.sentence}: its disk is full; it is started again when that is freed")
        self._hands.launch(SYNCER)
        return Claim(f"{exited.sentence}: its disk was full")

    def act(self, status: Status | None, age_ns: int, is_ending: bool) -> None:
        """Do what the tape says up to now."""
        if is_ending:  # What is left of the tape would only be in the way of an end in order.
            self.release()
        if self._is_over:
            return
        now_ns = self._now_ns()
        if self._began_ns is None:
            if status is None or not self._all_train(status):
                return
            self._began_ns = now_ns
            self._written.begin(status.at_ns + age_ns)
            self._hands.note(f"the tape {self.tape.name} begins; it lasts {self.tape.end_ns / 1e9:g} s")
        self._see_again(now_ns)
        while self._next < len(self.tape.actions) and self._due_ns() <= now_ns:
            action = self.tape.actions[self._next]
            if not self._can_be_done_now(action):
                return
            self._next += 1
            self._play(action, now_ns - self._began_ns)
        if self._due_ns() <= now_ns and not self._unseen:
            self._is_over = True
            self._written.end(self.tape.end_ns)
            self._hands.note("the tape is over")

    def wait_s(self) -> float:
        """Until the next action is due."""
        if self._began_ns is None or self._is_over:
            return float("inf")
        next_ns = min([self._due_ns(), *self._unseen.values()])
        return max(SOON_S, (next_ns - self._now_ns()) / NANOSECONDS_PER_SECOND)

    @property
    def is_over(self) -> bool:
        """Whether all of it was played, or left out."""
        return self._is_over

    def release(self) -> None:
        """Whole links, room on every disk, and nobody stands still; the tape is not played on."""
        if self._is_released:
            return
        self._is_released = True
        left = len(self.tape.actions) - self._next
        if self._began_ns is None:
            self._hands.note("the tape never began: not all of its learners have trained")
        elif not self._is_over:
            self._written.end(self._now_ns() - self._began_ns)
            if left:  # Otherwise it is only its calm end that is missing.
                self._hands.note(tapes.cut_short(self.tape, left))
        self._is_over = True
        self._gait.close()
        for name in sorted(self._full):
            self._full.discard(name)
            self._limit(name)
        for name in (*self._shares, *self._elders):
            self._change(name, lambda link: link.calm())

    def close(self) -> None:
        self._gait.close()
        if self._links is not None:
            self._links.close()
        for knobs in self._knobs.values():
            knobs.close()

    @property
    def damaged(self) -> dict[str, int]:
        """Bodies that were damaged on their way, by learner."""
        return {} if self._links is None else self._links.damaged

    # ------------------------------------------------------------------------------------------- the tape

    def _all_train(self, status: Status) -> bool:
        """Whether all who are there at the start are at work and have taken a step since this command began."""
        known = {learner.learner: learner for learner in status.learners}
        there = [known[name] for name in self.tape.learners if name in known and known[name].state == "live"]
        trained = [each for each in there if each.steps > self._steps_before.get(each.learner, 0)]
        return len(trained) == len(self.tape.learners)

    def _due_ns(self) -> int:
        assert self._began_ns is not None
        rest = self.tape.actions[self._next :]
        return self._began_ns + (rest[0].at_ns if rest else self.tape.end_ns)

    def _can_be_done_now(self, action: Action) -> bool:
        """Not before the process of the same name has ended; nor is one stopped that could not be woken yet."""
        is_there = action.target in self._hands.processes.running
        match action:
            case tapes.Join() | tapes.Restart():
                gone = self._standing.process(action.target) in (TargetState.ABSENT, TargetState.DEAD)
                return not (gone and is_there)
            case tapes.Stop():
                return not is_there or self._knobs_of(action.target).is_ready
        return True

    def _play(self, action: Action, at_ns: int) -> None:
        name, kind = action.target, type(action)
        is_there = name in self._hands.processes.running
        needs_it = isinstance(action, tapes.Kill | tapes.Stop | tapes.Continue | tapes.Leave | tapes.Replace)
        if kind not in self._standing.possible(name) or (needs_it and not is_there):
            state = "is not there" if needs_it and not is_there else f"is {self._standing.process(name).value}"
            self._hands.note(f"left out: {tapes.said(action)}, for {name} {state}")
            return
        self._standing.move(action)
        self._written.add(action, at_ns)
        self._hands.note(f"the tape: {tapes.said(action)}")
        self._do(action)

    def _do(self, action: Action) -> None:
        name, processes = action.target, self._hands.processes
        match action:
            case tapes.Kill():
                processes.kill(name)
            case tapes.Stop():
                self._gait.stop(name)
            case tapes.Continue():
                self._gait.go_on(name)
            case tapes.Restart() | tapes.Join():
                self._hands.launch(name)
            case tapes.Leave():
                processes.end(name)
            case tapes.Replace():
                self._lose_sight(name)
                self._hands.launch(name)
            case tapes.Slow(factor=factor):
                self._gait.slow(name, factor)
            case tapes.Jump(seconds=seconds):
                self._knobs_of(name).clock_offset_ns += round(seconds * NANOSECONDS_PER_SECOND)
            case tapes.Fill():
                self._full.add(name)
                self._choked.add(name)
                self._limit(name)
            case tapes.Free():
                self._free(name)
            case _:
                self._do_to_link(action)

    def _do_to_link(self, action: Action) -> None:
        match action:
            case tapes.Cut(target=name, direction=direction):
                self._change(name, lambda link: link.cut(_WAYS[direction]))
            case tapes.Heal(target=name):
                self._change(name, lambda link: link.heal())
            case tapes.Throttle(target=name, mbit_per_s=rate):
                self._change(name, lambda link: link.throttle(rate))
            case tapes.Delay(target=name, seconds=seconds):
                self._change(name, lambda link: link.delay(seconds))
            case tapes.Corrupt(target=name, bodies=bodies):
                self._change(name, lambda link: link.damage(bodies))

    # ------------------------------------------------------------------------------------------- what it takes

    def _change(self, name: str, change: Callable[..., object]) -> None:
        if self._links is not None:
            self._links.change(name, change)

    def _knobs_of(self, name: str) -> Knobs:
        if name not in self._knobs:
            number = self._replaced[name]
            self._knobs[name] = Knobs(self._folder / "chaos" / (f"{name}.{number}" if number else name))
        return self._knobs[name]

    def _limit(self, name: str) -> None:
        """A process's disk is full or not, whatever it was."""
        knobs, is_full = self._knobs_of(name), name in self._full
        self._hands.processes.on_process(name, lambda pid: knobs.limit_files(pid, is_full))

    def _free(self, name: str) -> None:
        self._full.discard(name)
        self._limit(name)
        if name == SYNCER and self._starved:
            self._starved = False
            if name not in self._hands.processes.running:
                self._hands.launch(name)

    def _lose_sight(self, name: str) -> None:
        """The old process keeps its link, which is cut for a while, and its disk and clock; the name gets new ones. No
        learner can be called as it is from now on."""
        self._replaced[name] += 1
        old = f"{name}.old-{self._replaced[name]}"
        self._hands.processes.rename(name, old)
        self._elders[old] = name
        self._unseen[old] = self._now_ns() + tapes.UNSEEN_NS
        self._gait.rename(name, old)
        if self._links is not None:
            self._links.rename(name, old)
        self._change(old, lambda link: link.cut(_WAYS["both"]))
        if name in self._knobs:
            self._knobs[old] = self._knobs.pop(name)
        if name in self._full:
            self._full.remove(name)
            self._full.add(old)

    def _see_again(self, now_ns: int) -> None:
        for old, until_ns in list(self._unseen.items()):
            if until_ns <= now_ns:
                del self._unseen[old]
                self._change(old, lambda link: link.heal())
                self._gait.go_on(old)

    def _begin_anew(self, name: str) -> None:
        """Whoever comes next under this name begins on a whole link, at its own speed, with room and the true time."""
        self._gait.forget(name)
        self._full.discard(name)
        self._knobs_of(name).clock_offset_ns = 0
        self._change(name, lambda link: link.calm())


class PlayedTape:
    """What was played, as a file that is a tape at every moment.

    A disk that is full ends no run: that it cannot be written is said once, and it is made good when there is room.

    Args:
        tape: what was to be played.
        path: of the file.
        note: told, a line, that it cannot be written.
    """

    def __init__(self, tape: Tape, path: Path, note: Callable[[str], None]) -> None:
        self._tape = tape
        self._path = path
        self._note = note
        self._actions: list[Action] = []
        self._began_ns: int | None = None
        self._is_behind = True
        """Something that was played is not in the file, or only a part of its line."""
        self._is_told = False

    def open(self) -> None:
        """Nobody has been started: a tape on which nothing is played yet.

        Raises:
            UsageError: there is no room for it.
        """
        if not self._is_a_tape:
            return
        try:
            self._write()
        except OSError as error:
            raise UsageError(
                f"{self._path} cannot be written ({error.strerror or error}); free some space, or choose another "
                "folder with --out"
            ) from None

    def begin(self, log_ns: int) -> None:
        """It is played from now on, which is this time in the log of the run."""
        self._began_ns = log_ns
        self._try(self._write)

    def add(self, action: Action, at_ns: int) -> None:
        """An action, and when it was done, since the tape began."""
        done = msgspec.structs.replace(action, at_ns=at_ns)
        self._actions.append(done)
        self._try(self._write if self._is_behind else lambda: self._append(done))

    def end(self, at_ns: int) -> None:
        """No more is played."""
        last_ns = self._actions[-1].at_ns if self._actions else 0
        self._try(lambda: self._write(max(last_ns, at_ns)))

    @property
    def _is_a_tape(self) -> bool:
        """One that begins without learners is, once somebody has joined."""
        return bool(self._tape.learners) or any(isinstance(action, tapes.Join) for action in self._actions)

    def _try(self, write: Callable[[], None]) -> None:
        if not self._is_a_tape:
            return
        try:
            write()
            self._is_behind = False
        except OSError as error:
            self._is_behind = True
            if not self._is_told:
                self._is_told = True
                reason = error.strerror or error
                self._note(f"{self._path} cannot be written ({reason}); the run goes on, and it lacks what is played")

    def _append(self, action: Action) -> None:
        """One write, unbuffered: what comes of it if it fails is at most the beginning of a line."""
        line = tapes.dumps_action(action)
        with self._path.open("ab", buffering=0) as file:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, end_ns: int | None = None) -> None:
        played = Tape(
            name=self._tape.name,
            about=self._tape.about,
            learners=self._tape.learners,
            actions=tuple(self._actions),
            end_ns=end_ns or 0,
            began_ns=self._began_ns,
        )
        text = tapes.dumps_lines(played, goes_on=end_ns is None)
        with whole(self._path) as partial:
            partial.write_text(text, encoding="utf-8")

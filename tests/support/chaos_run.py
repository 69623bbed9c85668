"""Local runs whose processes are killed again and again, and what must hold of such a run afterwards.

Decides who is killed when, from a seed: instants are values of the run's clock, victims are drawn. After a kill nobody
else is killed until whoever was is at work again, but sometimes two are killed at once. Waits for what statuses and
files say, never for time to pass.
"""

from __future__ import annotations

import math
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from support.toy_processes import Told
from unlockstep import runlog
from unlockstep.cli.app import run as command
from unlockstep.config import RunConfig
from unlockstep.core.events import EvaluationReported, Event, FragmentCommitted, SyncerResumed
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.status import Status
from unlockstep.launch.drill import learner_names
from unlockstep.launch.folders import new_run_folder
from unlockstep.launch.local import Ending, LocalRun
from unlockstep.net.clients.observer import read_status
from unlockstep.report.accounting import account

BACK_S_MAX = 60.0
"""Whoever is not at work again by then, on a busy machine, never will be."""

LAST_SHARE = 2 / 3
"""Of a run: nobody is killed later, so that everybody is back before its end. What is late by then is left out."""

TWO_SHARE = 0.2
"""How often two are killed at once."""


@dataclass(frozen=True, slots=True)
class Kill:
    """At this value of the clock, these."""

    clock: int
    victims: tuple[str, ...]


def draw_kills(seed: int, count: int, config: RunConfig) -> list[Kill]:
    """``count`` kills in the first three fifths of a run: half of them of learners, a third of the syncer.

    A busy machine lives to see few of them. The first is another one's with every seed, so that all kinds have a turn.
    """
    draw = random.Random(seed)
    learners = learner_names(config)
    first = ("evaluator", "syncer", learners[0])[(seed - 1) % 3]
    weights = {"syncer": 1 / 3, "evaluator": 1 / 6, **dict.fromkeys(learners, 1 / 2 / len(learners))}
    kills = [Kill(config.run.steps // 20, (first,))]
    left = count - 1
    while left > 0:
        victims = {
            draw.choices(list(weights), list(weights.values()))[0] for _ in range(1 + (draw.random() < TWO_SHARE))
        }
        victims = set(sorted(victims)[:left])
        kills.append(Kill(draw.randrange(config.run.steps // 20, config.run.steps * 3 // 5), tuple(sorted(victims))))
        left -= len(victims)
    return sorted(kills, key=lambda kill: (kill.clock, kill.victims))


@dataclass
class Chaos:
    """One run, and whoever kills its processes: the ``Watcher`` of a ``LocalRun``.

    Args:
        folder: of the run, new.
        config: of the run.
        kills: by clock.
        program: the command line of ``unlockstep``.
        say: told of every kill.
    """

    folder: Path
    config: RunConfig
    kills: Sequence[Kill]
    program: Sequence[str]
    say: Callable[[str], object] = lambda text: None
    killed: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def run(self) -> None:
        """From the first process to the last; the run must finish."""
        self._left = list(self.kills)
        self._waiting: dict[str, tuple[int, Status]] = {}
        self._since_ns = 0
        with new_run_folder(self.config, self.folder):
            run = LocalRun(self.config, self.folder, read_status=read_status, watcher=self, program=self.program)
            outcome = run.run()
            assert outcome.ending is Ending.FINISHED, "\n".join([outcome.sentence, *self.notes])

    def show(self, status: Status, now_ns: int) -> None:
        """See ``Watcher``."""
        pids = msgspec.json.decode((self.folder / "processes.json").read_bytes(), type=dict[str, int])
        for victim, (pid, before) in list(self._waiting.items()):
            if pids.get(victim, pid) != pid and is_at_work(victim, before, status):
                del self._waiting[victim]
        if self._waiting:
            late = now_ns - self._since_ns > BACK_S_MAX * NANOSECONDS_PER_SECOND
            assert not late, "\n".join([f"{list(self._waiting)} did not come back", *self.notes])
        elif (
            self._left
            and self._left[0].clock <= status.clock < self.config.run.steps * LAST_SHARE
            and pids.keys() >= set(self._left[0].victims)  # Who had found no syncer may not be started again yet.
        ):
            kill = self._left.pop(0)
            self._since_ns = now_ns
            for victim in kill.victims:
                self._waiting[victim] = (pids[victim], status)
                os.kill(pids[victim], signal.SIGKILL)
                self.killed[victim] += 1
            self.say(f"clock {status.clock}: {' and '.join(kill.victims)}")

    def note(self, text: str, now_ns: int) -> None:
        """See ``Watcher``."""
        self.notes.append(text)


def is_at_work(name: str, before: Status, now: Status) -> bool:
    """Whether a process that was killed when the run was as ``before`` has got something done since."""
    if name == "syncer":
        return now.rounds_committed > before.rounds_committed
    if name == "evaluator":
        return any(evaluation.at_ns > before.at_ns for evaluation in now.evaluations)
    was = max((each.incarnation for each in before.learners if each.learner == name), default=0)
    return any(each.learner == name and each.incarnation > was and each.state == "live" for each in now.learners)


def judge(chaos: Chaos) -> float:
    """All that must hold of a run that has been through this; returns the validation loss at its end."""
    events = list(runlog.read(chaos.folder / "run.jsonl")[1])
    assert command(["report", str(chaos.folder), "--check"]) == 0
    accounting = account(events, chaos.config.protocol)
    assert accounting.ended and accounting.balance == 0
    # Code 3: the syncer was killed before it could be found.
    died = [note for note in chaos.notes if "exited with code" in note and "code 3; started again" not in note]
    assert died == [], died
    versions = committed_versions(events)
    assert sum(isinstance(event, SyncerResumed) for event in events) == chaos.killed["syncer"]
    for told in what_was_told(chaos.folder):
        assert versions[told.fragment, told.version] == told.digest, f"{told} was told and is lost"
    last = [event for event in events if isinstance(event, EvaluationReported)][-1]
    fragments = chaos.config.protocol.fragments
    newest = tuple(max(v for f, v in versions if f == fragment) for fragment in range(fragments))
    assert last.versions == newest, "the model at the end is not the last one"
    assert math.isfinite(last.loss)
    return last.loss


def committed_versions(events: Sequence[Event]) -> dict[tuple[int, int], str]:
    """Fragment and version -> digest, of every commit; what each life goes on from must be the newest of them."""
    found: dict[tuple[int, int], str] = {}
    newest: dict[int, int] = {}
    for event in events:
        if isinstance(event, FragmentCommitted):
            found[event.fragment, event.version] = event.digest
            newest[event.fragment] = event.version
        elif isinstance(event, SyncerResumed) and event.versions:
            assert event.versions == tuple(newest.get(fragment, 0) for fragment in range(len(event.versions)))
    return found


def what_was_told(folder: Path) -> list[Told]:
    """By any life of the syncer to any life of a learner that wrote it down, but for versions 0."""
    told = []
    for path in sorted(folder.with_name("told").glob("*.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        told += [msgspec.json.decode(line, type=Told) for line in lines if line.endswith(b"\n")]
    return [each for each in told if each.version > 0]

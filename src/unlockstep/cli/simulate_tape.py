"""``unlockstep simulate tape``: an event tape played through the full protocol, and what it did to the run.

Decides the run's settings and speeds, what of it is kept in a folder, and what is printed. Events are written and
counted as they come, so that a day of sixteen learners needs no more memory than a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from rich.table import Table

    from unlockstep.checkers import Violation
    from unlockstep.config import RunConfig
    from unlockstep.core.events import Event
    from unlockstep.report.accounting import Accounting
    from unlockstep.sim.learner_host import StepTime
    from unlockstep.sim.world import World
    from unlockstep.tape import Tape

ENDING_S_MAX = 60.0
"""Added to two leases: how long the run may take to end when the tape is over."""


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What one life of the syncer amounts to."""

    accounting: Accounting
    yielded: float | None
    """Tokens merged, as a share of what all learners of the tape would train in the same time if nothing went wrong."""
    violations: tuple[Violation, ...]


def tape(
    source: Annotated[str, typer.Argument(help="A tape: its file (.toml or .jsonl), or the name of a shipped one.")],
    learners: Annotated[
        int | None, typer.Option(help="Begin with learner-0, learner-1, ... instead of the tape's own learners.")
    ] = None,
    fragments: Annotated[int | None, typer.Option(help="P (protocol.fragments).")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Replace any setting.")
    ] = None,
    step_s: Annotated[float, typer.Option(help="Seconds of an inner step at a learner's own speed.")] = 1.0,
    seconds: Annotated[float | None, typer.Option(help="Stop here. [default: the tape's length]")] = None,
    seed: Annotated[int, typer.Option(help="Of the network's chance.")] = 0,
    toy: Annotated[bool, typer.Option("--toy", help="Train and merge real (small) arrays, not only time.")] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="Write run.jsonl and config.toml here, for unlockstep report.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> int:
    """Play an event tape through the production core under virtual time, and sum up what came of it."""
    from unlockstep import tape as tapes
    from unlockstep.cli import exits
    from unlockstep.cli.output import print_json, wide_console
    from unlockstep.core.errors import UsageError

    for name, value in (("--step-s", step_s), ("--seconds", seconds)):
        if value is not None and not 0.001 <= value <= 1e9:
            raise UsageError(f"{name} is {value}; it must be from 0.001 to 1e9")
    told = tapes.read(source)
    if learners is not None:
        names = tuple(f"learner-{number}" for number in range(max(0, learners)))
        told = msgspec.structs.replace(told, learners=names)
    config = _config(told, fragments, overrides or [])
    end_ns = told.end_ns if seconds is None else round(seconds * 1e9)
    world = _world(told, config, step_s, seed, toy)
    lives = _play(told, config, world, step_s, end_ns, run_dir)
    failed = [
        f"{process.name} has given up: {process.loop.done.reason}"
        for process in world.processes()
        if process.loop.done is not None and process.loop.done.failed
    ]
    if as_json:
        print_json({"tape": told.name, "lives": lives, "failed": failed})
    else:
        console = wide_console()
        for number, life in enumerate(lives, start=1):
            console.print(_table(f"{told.name}, life {number} of the syncer" if len(lives) > 1 else told.name, life))
        for sentence in failed:
            console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        if run_dir is not None:
            console.print(f"unlockstep report {run_dir} --check", markup=False, soft_wrap=True)
    return exits.SAFETY if any(life.violations for life in lives) else exits.DONE


def _config(told: Tape, fragments: int | None, overrides: list[str]) -> RunConfig:
    """The defaults, for a run that goes on until the tape is over."""
    from unlockstep import config as run_config

    given = [f'run.name="{told.name}"', "run.steps=1000000000", 'inner.schedule="constant"']
    given += [f"local.learners={max(1, len(told.learners))}"]
    if fragments is not None:
        given.append(f"protocol.fragments={fragments}")
    return run_config.apply(run_config.RunConfig(), [*given, *overrides])


def _world(told: Tape, config: RunConfig, step_s: float, seed: int, toy: bool) -> World:
    from unlockstep.learners.backend import Backend
    from unlockstep.learners.toy import ToyBackend
    from unlockstep.sim.cargo import ArrayFreight
    from unlockstep.sim.weightless import WeightlessBackend, WeightlessFreight
    from unlockstep.sim.world import World

    numbers: dict[str, int] = {}
    step_ns = round(step_s * 1e9)

    def start(name: str) -> tuple[Backend, StepTime | int]:
        number = numbers.setdefault(name, len(numbers))
        if toy:
            return ToyBackend(seed=number, sizes=[16] * config.protocol.fragments, noise=0.1), step_ns
        return WeightlessBackend(config.protocol.fragments), step_ns

    world = World(config, seed=seed, freight=ArrayFreight() if toy else WeightlessFreight())
    world.schedule(told, start)
    return world


class _Stream:
    """The events of a world as they happen, life by life."""

    def __init__(self, world: World, end_ns: int, ending_ns: int) -> None:
        self._world = world
        self._end_ns = end_ns
        self._steps = self._play(end_ns, ending_ns)
        self._life = 0
        self.is_over = False
        self.now_ns = 0

    def _play(self, end_ns: int, ending_ns: int) -> Iterator[int]:
        from unlockstep.core.messages import EndRun

        world = self._world
        yield from world.play(end_ns)
        if not world.ended and world.syncer.life.is_running:
            world.tell(EndRun("the tape is over"))
            yield from world.play(end_ns + ending_ns)

    def life(self) -> Iterator[Event]:
        """Until the syncer starts anew, or nothing follows."""
        from unlockstep.cli.output import Every

        syncer, every = self._world.lives[self._life], Every()
        for now_ns in self._steps:
            self.now_ns = now_ns
            if every.due():
                print(f"simulated {now_ns / 1e9:.6g} s of {self._end_ns / 1e9:.6g} s", file=sys.stderr)
            if syncer.events:
                events, syncer.events = syncer.events, []
                yield from events
            if self._world.syncer is not syncer:
                self._life += 1
                return
        self.is_over = True


def _play(told: Tape, config: RunConfig, world: World, step_s: float, end_ns: int, run_dir: Path | None) -> list[Life]:
    """The whole tape."""
    from unlockstep.checkers import SAFETY, Checkers
    from unlockstep.cli.run_folder import new_run_log
    from unlockstep.report.accounting import account
    from unlockstep.sim.demands import longest_stop_ns
    from unlockstep.sim.story import names

    stream = _Stream(world, end_ns, 2 * config.protocol.lease_ns + round(ENDING_S_MAX * 1e9))
    tokens_per_s = len(names(told)) / step_s
    lives: list[Life] = []
    while not stream.is_over:
        began_ns = stream.now_ns
        checkers = Checkers(config.protocol, rules=SAFETY, timer_ns=longest_stop_ns(told))
        with ExitStack() as stack:
            folder = run_dir if run_dir is None or not lives else run_dir / f"life-{len(lives) + 1}"
            log = None if folder is None else stack.enter_context(new_run_log(folder, config))

            def seen() -> Iterator[Event]:
                for event in stream.life():
                    checkers.see(event)  # noqa: B023 - exhausted below, in the same turn
                    if log is not None:  # noqa: B023
                        log.write((event,))  # noqa: B023
                    yield event

            accounting = account(seen(), config.protocol)
        checkers.finish()
        possible = tokens_per_s * (stream.now_ns - began_ns) / 1e9
        merged = accounting.ledger.merged + accounting.ledger.merged_late
        yielded = merged / possible if possible else None
        lives.append(Life(accounting=accounting, yielded=yielded, violations=tuple(checkers.violations)))
    return lives


def _table(title: str, life: Life) -> Table:
    from rich.table import Table

    from unlockstep.report.summary import duration

    accounting, ledger = life.accounting, life.accounting.ledger

    def share(tokens: float) -> str:
        return f"{tokens:.6g} ({tokens / ledger.trained:.1%})" if ledger.trained else "0"

    table = Table(title=title, show_header=False, title_justify="left")
    table.add_row("simulated", duration(accounting.duration_ns) + ("" if accounting.ended else ", not ended"))
    table.add_row("commits", f"{accounting.rounds_committed}")
    table.add_row("participation", "none" if accounting.participation is None else f"{accounting.participation:.1%}")
    table.add_row("nobody live for", duration(accounting.downtime_ns))
    table.add_row("tokens trained", f"{ledger.trained:.6g}")
    table.add_row("merged", share(ledger.merged))
    table.add_row("merged late", share(ledger.merged_late))
    table.add_row("overwritten", share(ledger.overwritten))
    table.add_row("refused", share(sum(ledger.refused.values())))
    table.add_row("lost with learners", share(ledger.lost))
    table.add_row("dropped at the end", share(ledger.dropped))
    table.add_row("of what is possible", "none" if life.yielded is None else f"{life.yielded:.1%} merged")
    for learner in accounting.learners:
        part = "none" if learner.participation is None else f"{learner.participation:.1%}"
        table.add_row(learner.learner, f"{learner.starts} starts, {learner.steps} steps, in {part} of its rounds")
    for violation in life.violations:
        table.add_row(f"breaks {violation.rule}", f"{violation.at_ns / 1e9:.6g} s: {violation.sentence}")
    if not life.violations:
        table.add_row("safety rules", "kept")
    return table

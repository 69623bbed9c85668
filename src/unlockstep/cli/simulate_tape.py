"""``unlockstep simulate tape``: an event tape played through the full protocol, and what it did to the run.

Decides the run's settings and speeds, what of it is kept in a folder, and what is printed. Events are written and
counted as they come, so that a day of sixteen learners needs no more memory than a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from unlockstep.cli.output import Every, print_json, wide_console
from unlockstep.core.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from unlockstep.checkers import Violation
    from unlockstep.config import RunConfig
    from unlockstep.core.events import Event
    from unlockstep.report.accounting import Accounting
    from unlockstep.runlog import RunLogWriter
    from unlockstep.sim.learner_host import StepTime
    from unlockstep.sim.world import World
    from unlockstep.tape import Tape

ENDING_S_MAX = 60.0
"""Added to two leases: how long the run may take to end when the tape is over."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What the run amounts to, whatever became of its syncer."""

    tape: str
    simulated_ns: int
    lives: int
    """Processes the syncer has had."""
    accounting: Accounting
    absent: tuple[str, ...]
    """On the tape, but never part of the run."""
    failed: tuple[str, ...]
    """Who has given up, and why."""
    violations: tuple[Violation, ...]
    run_folder: str | None
    """Where the run log is."""


def tape(
    source: Annotated[
        str,
        typer.Argument(
            help="A tape: its file (.toml or .jsonl), or one that comes along: calm, one_crash, rolling_restarts, "
            "slow_half, flash_crowd, syncer_crash, swizzle.",
            metavar="TAPE",
        ),
    ],
    learners: Annotated[
        int | None, typer.Option(help="Begin with so many: learner-0, learner-1, ... [default: the tape's own]")
    ] = None,
    fragments: Annotated[int | None, typer.Option(help="P. [default: that of protocol.fragments]")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Replace any setting of the run; can be repeated."),
    ] = None,
    step_s: Annotated[float, typer.Option(help="Seconds of an inner step at a learner's own speed, of 1 token.")] = 1.0,
    seconds: Annotated[
        float | None, typer.Option(help="Tell the run to end then. [default: when the tape is over]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the network's chance.")] = 0,
    toy: Annotated[bool, typer.Option("--toy", help="Train and merge real (small) arrays, not only time.")] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Write run.jsonl and config.toml here, for unlockstep report. New or empty."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> int:
    """Play an event tape, and sum up its run. It goes through the production core under virtual time.

    Exit code: 0, whatever the tape did to the run, if every safety rule was kept; else 11.
    """
    from unlockstep import tape as tapes
    from unlockstep.cli import exits
    from unlockstep.cli.simulated_run import refuse_used
    from unlockstep.core.errors import UsageError

    for name, value in (("--step-s", step_s), ("--seconds", seconds)):
        if value is not None and not 0.001 <= value <= 1e9:
            raise UsageError(f"{name} is {value}; it must be from 0.001 to 1e9")
    told = tapes.read(source)
    if learners is not None:
        told = msgspec.structs.replace(told, learners=tuple(f"learner-{number}" for number in range(learners)))
    config = _config(told, fragments, overrides or [])
    end_ns = told.end_ns if seconds is None else round(seconds * 1e9)
    if run_dir is not None:
        refuse_used(run_dir)
    world = _world(told, config, step_s, seed, toy)
    account = _play(told, config, world, end_ns, run_dir)
    if as_json:
        print_json(account)
    else:
        _show(account)
    return exits.SAFETY if account.violations else exits.DONE


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


def _events(world: World, end_ns: int, ending_ns: int) -> Iterator[Event]:
    """What happens, as soon as it has happened for good; at last what the syncer had not saved when all was over."""
    from unlockstep.core.messages import EndRun

    every = Every()

    def passing(until_ns: int) -> Iterator[Event]:
        for now_ns in world.play(until_ns):
            if every.due():
                print(f"simulated {now_ns / 1e9:.6g} s of {end_ns / 1e9:.6g} s", file=sys.stderr)
            yield from world.take_events()

    world.clock.at(end_ns, lambda: None)  # The tape lasts until then, whether or not anything happens.
    yield from passing(end_ns)
    if not world.ended and world.syncer.life.is_running:
        world.tell(EndRun("the tape is over"))
        yield from passing(end_ns + ending_ns)
    yield from world.events


def _play(told: Tape, config: RunConfig, world: World, end_ns: int, run_dir: Path | None) -> Account:
    """The whole tape."""
    from unlockstep import tape as tapes
    from unlockstep.checkers import SAFETY, Checkers
    from unlockstep.cli.run_folder import TAPE_FILE, new_run_log
    from unlockstep.report.accounting import account
    from unlockstep.sim.demands import longest_stop_ns

    checkers = Checkers(config.protocol, rules=SAFETY, timer_ns=longest_stop_ns(told))
    ending_ns = 2 * config.protocol.lease_ns + round(ENDING_S_MAX * 1e9)

    def seen(log: RunLogWriter | None) -> Iterator[Event]:
        for event in _events(world, end_ns, ending_ns):
            checkers.see(event)
            if log is not None:
                log.write((event,))
            yield event

    with nullcontext() if run_dir is None else new_run_log(run_dir, config, simulated=True) as log:
        if run_dir is not None:
            tapes.write(told, run_dir / TAPE_FILE)
        accounting = account(seen(log), config.protocol, told, until_ns=end_ns)
    checkers.finish()
    joins = (action for action in told.actions if isinstance(action, tapes.Join) and action.at_ns < end_ns)
    due = {*told.learners, *(join.target for join in joins)}
    there = {learner.learner for learner in accounting.learners}
    return Account(
        tape=told.name,
        simulated_ns=world.clock.now_ns(),
        lives=len(world.lives),
        accounting=accounting,
        absent=tuple(name for name in told.cast if name in due and name not in there),
        failed=tuple(
            f"{process.name} has given up: {process.loop.done.reason}"
            for process in world.processes()
            if process.loop.done is not None and process.loop.done.failed
        ),
        violations=tuple(checkers.violations),
        run_folder=None if run_dir is None else str(run_dir),
    )


# ------------------------------------------------------------------------------------------------ what is printed


def _show(account: Account) -> None:
    from unlockstep.cli.simulated_run import report_line

    console = wide_console()
    console.print(_table(account))
    pointer = () if account.run_folder is None else (report_line(Path(account.run_folder)),)
    for line in (*account.failed, *pointer):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(account: Account) -> Table:
    from rich.table import Table

    from unlockstep.report.summary import duration

    accounting, ledger = account.accounting, account.accounting.ledger

    def share(tokens: float) -> str:
        return f"{tokens:.6g} ({tokens / ledger.trained:.1%})" if ledger.trained else "0"

    table = Table(title=account.tape, show_header=False, title_justify="left")
    table.add_row("simulated", duration(account.simulated_ns) + ("" if accounting.ended else ", not ended"))
    table.add_row("since the first step", duration(accounting.duration_ns))
    if account.lives > 1:
        table.add_row("the syncer", f"{account.lives} starts")
    table.add_row("commits", f"{accounting.rounds_committed}")
    table.add_row("participation", "none" if accounting.participation is None else f"{accounting.participation:.1%}")
    table.add_row("nobody trained for", duration(accounting.downtime_ns))
    table.add_row("tokens trained", f"{ledger.trained:.6g}")
    table.add_row("merged", share(ledger.merged))
    table.add_row("merged late", share(ledger.merged_late))
    table.add_row("overwritten", share(ledger.overwritten))
    table.add_row("refused", share(sum(ledger.refused.values())))
    table.add_row("lost with learners", share(ledger.lost))
    table.add_row("dropped at the end", share(ledger.dropped))
    table.add_row("in flight", share(ledger.in_flight))
    table.add_row("goodput", _goodput(accounting))
    for learner in accounting.learners:
        part = "none" if learner.participation is None else f"{learner.participation:.1%}"
        starts, steps = counted(learner.starts, "start"), counted(learner.steps, "step")
        table.add_row(learner.learner, f"{starts}, {steps}, in {part} of its rounds")
    for name in account.absent:
        table.add_row(name, "never joined")
    for violation in account.violations:
        table.add_row(f"breaks {violation.rule}", f"{violation.at_ns / 1e9:.6g} s: {violation.sentence}")
    if not account.violations:
        table.add_row("safety rules", "kept")
    return table


def _goodput(accounting: Accounting) -> str:
    if accounting.goodput is None:
        return "none: nobody is on the tape"
    return f"{accounting.goodput.goodput:.1%} of what all on the tape could train at their own speed, all the time"

"""``unlockstep tape``: event tapes drawn from a seed, and shown to people.

Decides flags, and how a tape looks on a screen. What is drawn is ``poisson``'s; what a tape is, ``tape``'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.core.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from unlockstep.poisson import Trouble
    from unlockstep.tape import Tape

tape = typer.Typer(no_args_is_help=True, help="Draw event tapes from a seed, and show them.")

TIMELINE_CHARACTERS = 60
ACTIONS_SHOWN = 200

Every = Annotated[float | None, typer.Option(metavar="SECONDS", help="Mean time until it happens to a learner.")]
SyncerEvery = Annotated[float | None, typer.Option(metavar="SECONDS", help="Mean time until it happens to the syncer.")]
For = Annotated[float, typer.Option(metavar="SECONDS", help="Mean time until it is over.")]


@tape.command()
def draw(
    out: Annotated[Path, typer.Option(help="File to write, .toml or .jsonl.")],
    learners: Annotated[int, typer.Option(help="There at the start: learner-0, learner-1, ...")] = 4,
    prefix: Annotated[str, typer.Option(help="What the names of the learners begin with.")] = "learner-",
    for_s: Annotated[float, typer.Option(help="How long the tape lasts, seconds.")] = 600.0,
    seed: Annotated[int, typer.Option(help="The same gives the same tape.")] = 0,
    kill_every_s: Every = None,
    kill_for_s: For = 15.0,
    stop_every_s: Every = None,
    stop_for_s: For = 10.0,
    slow_every_s: Every = None,
    slow_for_s: For = 60.0,
    slow_factor: Annotated[float, typer.Option(help="How many times as long a step takes.")] = 5.0,
    cut_every_s: Every = None,
    cut_for_s: For = 10.0,
    throttle_every_s: Every = None,
    throttle_for_s: For = 60.0,
    throttle_mbit_per_s: Annotated[float, typer.Option(help="What the link carries each way.")] = 10.0,
    delay_every_s: Every = None,
    delay_for_s: For = 60.0,
    delay_seconds: Annotated[float, typer.Option(help="One way.")] = 0.2,
    corrupt_every_s: Every = None,
    fill_every_s: Every = None,
    fill_for_s: For = 10.0,
    jump_every_s: Every = None,
    jump_seconds: Annotated[float, typer.Option(help="Forward, or back if negative.")] = 3600.0,
    syncer_kill_every_s: SyncerEvery = None,
    syncer_kill_for_s: For = 10.0,
    syncer_stop_every_s: SyncerEvery = None,
    syncer_stop_for_s: For = 5.0,
    syncer_fill_every_s: SyncerEvery = None,
    syncer_fill_for_s: For = 10.0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file, if there is one.")] = False,
) -> None:
    """Draw a tape: what is given a mean time happens to each learner at random, and independently of all else."""
    from unlockstep import poisson
    from unlockstep import tape as tapes

    _check(out, learners, force)
    troubles = _troubles(
        kill=(kill_every_s, kill_for_s, {}),
        stop=(stop_every_s, stop_for_s, {}),
        slow=(slow_every_s, slow_for_s, {"factor": slow_factor}),
        cut=(cut_every_s, cut_for_s, {}),
        throttle=(throttle_every_s, throttle_for_s, {"mbit_per_s": throttle_mbit_per_s}),
        delay=(delay_every_s, delay_for_s, {"seconds": delay_seconds}),
        corrupt=(corrupt_every_s, 0.0, {}),
        fill=(fill_every_s, fill_for_s, {}),
        jump=(jump_every_s, 0.0, {"seconds": jump_seconds}),
    )
    syncers = _troubles(
        kill=(syncer_kill_every_s, syncer_kill_for_s, {}),
        stop=(syncer_stop_every_s, syncer_stop_for_s, {}),
        fill=(syncer_fill_every_s, syncer_fill_for_s, {}),
    )
    names = tuple(f"{prefix}{number}" for number in range(learners))
    drawn = poisson.draw(f"seed-{seed}", names, for_s, seed, troubles, syncers)
    tapes.write(drawn, out)
    actions = counted(len(drawn.actions), "action")
    print(f"{actions} in {for_s:g} s, in {out}; see them with: unlockstep tape show {out}")


def _check(out: Path, learners: int, force: bool) -> None:
    from unlockstep import tape as tapes
    from unlockstep.core.errors import UsageError

    tapes.check_place(out)
    if out.exists() and not force:
        raise UsageError(f"{out} exists; nothing is overwritten without --force: choose another name")
    if learners < 1:
        raise UsageError(f"--learners is {learners}; a tape needs at least one")


def _troubles(**given: tuple[float | None, float, dict[str, float]]) -> dict[str, Trouble]:
    from unlockstep.poisson import Trouble

    return {
        kind: Trouble(every_s, lasts_s, values)
        for kind, (every_s, lasts_s, values) in given.items()
        if every_s is not None
    }


@tape.command()
def show(
    source: Annotated[str, typer.Argument(metavar="TAPE", help="A file (.toml or .jsonl), or a tape's name.")],
    every: Annotated[bool, typer.Option("--all", help=f"Every action, not the first {ACTIONS_SHOWN}.")] = False,
) -> None:
    """Show what happens on a tape, and when."""
    from unlockstep import tape as tapes
    from unlockstep.cli.output import wide_console

    shown = tapes.read(source)
    console = wide_console(markup=False)
    console.print(f"{shown.name}: {shown.about}" if shown.about else shown.name, highlight=False)
    console.print(_timelines(shown))
    actions = shown.actions if every else shown.actions[:ACTIONS_SHOWN]
    for action in actions:
        console.print(f"{action.at_ns / 1e9:>12.3f} s  {tapes.said(action)}", highlight=False)
    if len(actions) < len(shown.actions):
        console.print(f"and {len(shown.actions) - len(actions)} more; see them with --all", highlight=False)


def _timelines(shown: Tape) -> Table:
    """A row for everyone: ``=`` runs, ``-`` slowed, ``s`` stopped, ``.`` not there, ``x`` cut off."""
    from rich.table import Table

    from unlockstep.tape import SYNCER

    table = Table(
        title=f"{shown.end_ns / 1e9:g} s, {counted(len(shown.actions), 'action')}   = runs   - slowed   s stopped   "
        "x cut off   . not there",
        title_justify="left",
        show_header=False,
    )
    for name in (*shown.cast, SYNCER):
        table.add_row(name, timeline(shown, name, TIMELINE_CHARACTERS))
    return table


def timeline(shown: Tape, name: str, characters: int) -> str:
    """How one target stands, at the beginning of each of so many equal parts of the tape."""
    from unlockstep.tape import Leave, LinkState, Replace, Slow, Standing, TargetState

    marks = {TargetState.RUNNING: "=", TargetState.STOPPED: "s"}
    standing, line, factor = Standing(shown.learners), "", 1.0
    actions = list(shown.actions)
    for part in range(characters):
        while actions and actions[0].at_ns * characters <= part * shown.end_ns:
            action = actions.pop(0)
            standing.move(action)
            if action.target == name and isinstance(action, Slow | Leave | Replace):
                factor = action.factor if isinstance(action, Slow) else 1.0
        mark = marks.get(standing.process(name), ".")
        if mark == "=" and standing.link(name) is LinkState.CUT:
            mark = "x"
        line += "-" if mark == "=" and factor > 1 else mark
    return line

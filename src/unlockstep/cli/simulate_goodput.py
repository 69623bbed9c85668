"""``unlockstep simulate goodput``: one fleet, a sweep, or the paper's table; printed, drawn, or written as a tape.

Decides what one call does, which requests contradict each other, and what is on stdout: tables, or with ``--json`` one
object and nothing else. What the numbers are is ``sim.goodput``; how they look is ``simulate_tables`` and
``goodput_figure``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from unlockstep import tape as tapes
from unlockstep.cli import goodput_figure, simulate_fleet, simulate_tables
from unlockstep.cli.goodput_figure import Figure, Line, Point
from unlockstep.cli.output import print_json, wide_console
from unlockstep.cli.simulate_fleet import Sweep
from unlockstep.core.errors import ConfigError, UsageError
from unlockstep.core.words import counted
from unlockstep.sim import paper_table
from unlockstep.sim.fleet import CHIPS_MAX, Fleet
from unlockstep.sim.fleet_tape import fleet_tape
from unlockstep.sim.goodput import Estimate, estimate
from unlockstep.tape import Tape

PLOT_LEARNERS = (1, 2, 4, 8, 16)
PLOT_POINTS = 9
"""Numbers of chips in the figure of one fleet, from an eighth of its own to twice as many."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call. Fields are flags of the same name."""

    flags: Mapping[str, Any]
    """Settings of the fleet (``simulate_fleet.settings``); None: not given."""
    config: Path | None
    table: str | None
    sweeps: tuple[str, ...]
    plot: Path | None
    tape: Path | None
    duration_s: float | None
    failures: int
    seed: int
    as_json: bool


def goodput(request: Request) -> None:
    """Do what is asked.

    Raises:
        UsageError: settings or requests that cannot be; nothing has been written then.
    """
    _check(request)
    if request.table is not None:
        _paper(request)
    elif request.sweeps:
        _sweep(request)
    else:
        _one(request)


def _check(request: Request) -> None:
    """Refuse what contradicts itself, before anything is simulated."""
    given = request.config is not None or any(value is not None for value in request.flags.values())
    if request.table is not None:
        if request.table != "paper":
            raise UsageError(f"--table is {request.table!r}; the one there is is called paper")
        if given or request.sweeps or request.tape:
            raise UsageError("--table paper has its own fleets; drop --sweep, --tape, --config and settings of a fleet")
    if request.tape is not None and request.sweeps:
        raise UsageError("--tape writes the story of one fleet; drop --sweep")
    if (request.tape is None) != (request.duration_s is None):
        given_one, missing = ("--tape", "--duration-s") if request.tape else ("--duration-s", "--tape")
        raise UsageError(f"{given_one} is given without {missing}; a tape needs a file and a length in seconds")
    if request.tape is not None:
        tapes.check_place(request.tape)
    if request.plot is not None:
        goodput_figure.check(request.plot)


def _estimates(request: Request, fleets: Sequence[Fleet]) -> list[Estimate]:
    return estimate(fleets, failures=request.failures, seed=request.seed)


# ------------------------------------------------------------------------------------------------------ one fleet


def _one(request: Request) -> None:
    settings = simulate_fleet.settings(request.config, request.flags)
    if request.plot is None:  # The figure shows both kinds: no setting is idle.
        simulate_fleet.check_use(settings, request.flags, ())
    fleet = simulate_fleet.fleet(settings)
    (found,) = _estimates(request, [fleet])
    story = None if request.duration_s is None else fleet_tape(fleet, duration_s=request.duration_s, seed=request.seed)
    if request.plot is not None:
        figure = Figure(
            title=simulate_tables.describe(fleet),
            lines=tuple(_around(request, fleet)),
            x_label="chips",
            x_log=True,
            collapse=True,
            asked=_point(fleet.chips, fleet, found),
        )
        goodput_figure.write(request.plot, figure)
    if request.tape is not None and story is not None:
        tapes.write(story, request.tape)
    if request.as_json:
        print_json(simulate_tables.estimate_record(fleet, found))
    else:
        view = simulate_tables.estimate_view(fleet, found, compared=request.plot is not None)
        simulate_tables.show(*view)
    _say_written(request, story)


def _around(request: Request, fleet: Fleet) -> list[Line]:
    """The fleet's neighbours: other numbers of chips, one line per M, and the rigid baseline."""
    kinds = [(1, False), *((count, True) for count in sorted({*PLOT_LEARNERS, fleet.learners}))]
    counts = sorted({round(fleet.chips * 2.0 ** (step / 2)) for step in range(-6, PLOT_POINTS - 6)})
    spares = {True: 0, False: fleet.spares}
    fleets = [
        msgspec.structs.replace(fleet, chips=chips, learners=learners, elastic=elastic, spares=spares[elastic])
        for learners, elastic in kinds
        for chips in counts
        if chips <= CHIPS_MAX and chips // fleet.slice_chips >= learners + spares[elastic]
    ]
    pairs = []
    for neighbour in fleets:
        with contextlib.suppress(ConfigError):  # One that is too large to simulate: the line ends before it.
            pairs.append((neighbour, *_estimates(request, [neighbour])))
    return _by_kind(*zip(*pairs, strict=True))


def _by_kind(fleets: Sequence[Fleet], estimates: Sequence[Estimate]) -> list[Line]:
    """One line for each M and for the baseline, over chips."""
    groups: dict[tuple[bool, int], list[Point]] = {}
    for fleet, found in zip(fleets, estimates, strict=True):
        groups.setdefault((fleet.elastic, fleet.learners), []).append(_point(fleet.chips, fleet, found))
    return [
        Line(label=simulate_tables.describe_kind(learners, elastic), points=tuple(points), baseline=not elastic)
        for (elastic, learners), points in groups.items()
    ]


def _point(x: float, fleet: Fleet, found: Estimate) -> Point:
    return Point(
        x=x,
        chips_per_learner=fleet.chips / fleet.learners,
        goodput=found.goodput.value,
        low=found.goodput.low,
        high=found.goodput.high,
        published=_published(fleet),
    )


def _published(fleet: Fleet) -> float | None:
    """The paper's goodput, if this is one of its fleets."""
    percent = (value for row in paper_table.ROWS for value in row.percent)
    cells = dict(zip(paper_table.fleets(), percent, strict=True))
    return cells[fleet] / 100 if fleet in cells else None


# ---------------------------------------------------------------------------------------------------------- sweep


def _sweep(request: Request) -> None:
    sweeps = [simulate_fleet.parse_sweep(text) for text in request.sweeps]
    found = simulate_fleet.settings(request.config, request.flags)
    simulate_fleet.check_use(found, request.flags, sweeps)
    fleets = simulate_fleet.grid(found, sweeps)
    estimates = _estimates(request, fleets)
    if request.plot is not None:
        goodput_figure.write(request.plot, _sweep_figure(sweeps, fleets, estimates))
    if request.as_json:
        points = [simulate_tables.estimate_record(*pair) for pair in zip(fleets, estimates, strict=True)]
        print_json({"sweep": [sweep.field for sweep in sweeps], "points": points})
    else:
        simulate_tables.show(*simulate_tables.sweep_view(sweeps, fleets, estimates))
    _say_written(request)


def _sweep_figure(sweeps: Sequence[Sweep], fleets: Sequence[Fleet], estimates: Sequence[Estimate]) -> Figure:
    """The first parameter along the axis, one line per value of the second."""
    first, fields = sweeps[0], {sweep.field for sweep in sweeps}
    others = sweeps[1].values if len(sweeps) > 1 else (None,)
    drawn = list(zip(itertools.product(first.values, others), fleets, estimates, strict=True))
    lines = tuple(
        Line(
            label="goodput" if other is None else f"{sweeps[1].name} = {simulate_tables.plain(other)}",
            points=tuple(_point(float(x), fleet, found) for (x, second), fleet, found in drawn if second == other),
            baseline=other is False,
        )
        for other in others
    )
    log = min(first.values) > 0 and max(first.values) / min(first.values) > 4
    collapse = fields <= {"chips", "learners"} and all(fleet.elastic for fleet in fleets)
    title = simulate_tables.describe(fleets[0], swept=tuple(fields))
    return Figure(title=title, lines=lines, x_label=first.name, x_log=log, collapse=collapse)


# ---------------------------------------------------------------------------------------------------- paper's table


def _paper(request: Request) -> None:
    fleets = paper_table.fleets()
    estimates = _estimates(request, fleets)
    comparison = paper_table.compare(estimates)
    if request.plot is not None:
        figure = Figure(
            title="Goodput of the paper's 30 fleets",
            lines=tuple(_by_kind(fleets, estimates)),
            x_label="chips",
            x_log=True,
            collapse=True,
            from_zero=True,
        )
        goodput_figure.write(request.plot, figure)
    if request.as_json:
        print_json(simulate_tables.paper_record(comparison))
    else:
        simulate_tables.show(*simulate_tables.paper_view(comparison))
    _say_written(request)


def _say_written(request: Request, story: Tape | None = None) -> None:
    """A tape with what is on it: in a short time few chips fail, or none."""
    console = wide_console(stderr=request.as_json)
    if request.plot is not None:
        console.print(f"written: {request.plot}", markup=False, highlight=False)
    if request.tape is not None and story is not None:
        held = f"{story.about}; {counted(len(story.actions), 'action')} in {request.duration_s:g} s"
        console.print(f"written: {request.tape} ({held})", markup=False, highlight=False, soft_wrap=True)

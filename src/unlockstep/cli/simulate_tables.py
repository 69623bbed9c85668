"""What ``unlockstep simulate`` prints: tables for people, records for ``--json``.

Decides the columns, their digits and the sentence below. The numbers come from ``sim.goodput``, ``sim.bandwidth`` and
``sim.advise``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from unlockstep.cli.output import wide_console
from unlockstep.cli.simulate_fleet import FIELDS, Sweep
from unlockstep.core.formats import BLOCK_ELEMENTS, SCALE_BITS
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.words import counted
from unlockstep.report.summary import duration
from unlockstep.sim.advise import Advice, Choice, Question, Setting
from unlockstep.sim.bandwidth import (
    BLOCKING,
    PUBLISHED_WORKLOAD,
    UTILISATIONS,
    Published,
    Row,
    Workload,
)
from unlockstep.sim.fleet import ELASTIC_ONLY, YEAR_S, Fleet
from unlockstep.sim.goodput import Estimate, Interval
from unlockstep.sim.paper_table import CHIPS, ROWS, Comparison

MEASURES = {
    "goodput": "useful training, of what all chips could do",
    "uptime": "of the time, at least one learner trains",
    "participation": "learners that train, of all, while any does",
}


def _table(*columns: str, title: str | None = None, left: int = 1, gap: int = 2) -> Table:
    """A table whose first ``left`` columns are text and the others numbers. A heading may have two lines."""
    table = Table(
        box=None, pad_edge=False, padding=(0, gap, 0, 0), title=title, title_justify="left", title_style="bold"
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", no_wrap=True)
    return table


def show(*parts: Text | Table) -> None:
    """Print on stdout, one below the other. No number is cut short: where a table is wider than the terminal, that
    breaks its lines."""
    console = wide_console()
    for part in parts:
        if isinstance(part, Table):
            for column in part.columns:
                if column.no_wrap:
                    lines = "\n".join(map(str, (column.header, *column.cells))).splitlines()
                    column.min_width = max(map(cell_len, lines))
        console.print(part, crop=False)


def percent(share: float) -> str:
    """0.8812: ``88.1 %``."""
    return f"{100 * share:.1f} %"


def gbit(rate: float | None) -> str:
    """Three digits; ∞ for a link that does not exist."""
    if rate is None:
        return ""
    return "∞" if math.isinf(rate) else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _between(interval: Interval) -> str:
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %"


# ------------------------------------------------------------------------------------------------------- goodput


def estimate_record(fleet: Fleet, estimate: Estimate) -> dict[str, Any]:
    """One fleet as an object: fractions, their 95 % intervals in ``low`` and ``high``, and the settings."""
    intervals = {name: getattr(estimate, name) for name in MEASURES}
    return {
        **{name: interval.value for name, interval in intervals.items()},
        "low": {name: interval.low for name, interval in intervals.items()},
        "high": {name: interval.high for name, interval in intervals.items()},
        "failures": estimate.failures,
        "simulated_s": estimate.simulated_s,
        **msgspec.to_builtins(fleet),
    }


def estimate_view(fleet: Fleet, estimate: Estimate, *, compared: bool = False) -> Sequence[Text | Table]:
    """One fleet: the three measures, and what the first amounts to. ``compared``: beside fleets of the other kind."""
    table = _table("", "", "95 % interval", "", title=describe(fleet))
    table.columns[3].justify, table.columns[3].no_wrap = "left", False
    for name, meaning in MEASURES.items():
        interval: Interval = getattr(estimate, name)
        table.add_row(name, percent(interval.value), _between(interval), meaning)
    lost = (1 - estimate.goodput.value) * fleet.chips
    text = (
        f"A failure somewhere every {span(fleet.failure_s)}: it is as if {_rounded(lost)} of "
        f"{counted(fleet.chips, 'chip')} never trained. ({counted(estimate.failures, 'failure')} simulated, in "
        f"{span(estimate.simulated_s)}.)"
    )
    return table, Text(), Text(text), Text(assumed(_both_kinds(fleet) if compared else [fleet]))


def span(seconds: float) -> str:
    """``26 min 20 s``; days from two of them on, years from two of those."""
    if seconds >= 2 * YEAR_S:
        return f"{seconds / YEAR_S:,.1f} years"
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:,.0f} days"
    return duration(round(seconds * NANOSECONDS_PER_SECOND))


def assumed(fleets: Sequence[Fleet], swept: Sequence[str] = (), *, toml: bool = False) -> str:
    """Which stalls the numbers rest on, that they are nobody's hardware, and what sets them.

    Args:
        fleets: that the numbers are about; but for their kinds and the fields ``swept`` they have the same settings.
        swept: fields whose values are shown anyway.
        toml: name them as the fields of a file, where there are no flags for them.
    """
    kinds = {fleet.elastic for fleet in fleets}
    names = ["notice_s"]
    if True in kinds:
        names += [*ELASTIC_ONLY, "return_s"]
    if False in kinds:
        names += ["restart_s", "checkpoint_s"]
    stalls = {name: getattr(fleets[0], name) for name in names if name not in swept}
    fitted = [_setting(name, value, toml) for name, value in stalls.items() if value == FIELDS[name].default]
    given = [_setting(name, value, toml) for name, value in stalls.items() if value != FIELDS[name].default]
    parts = []
    if fitted:
        where = "in a --config file" if toml else "with these flags"
        parts.append(
            f"Stalls assumed: {', '.join(fitted)}. They are fitted to the paper's table, not measured on your "
            f"hardware; set yours {where}."
        )
    if given:
        parts.append(f"Given: {', '.join(given)}.")
    return " ".join(parts)


def _setting(name: str, value: float, toml: bool) -> str:
    return f"{name} = {value:g}" if toml else f"--{name.replace('_', '-')} {value:g}"


def describe(fleet: Fleet, swept: Sequence[str] = ()) -> str:
    """A fleet, or what fleets that differ in the fields ``swept`` have in common, in one line."""
    parts = [
        () if "chips" in swept else (counted(fleet.chips, "chip"),),
        () if "learners" in swept else (describe_kind(fleet.learners, fleet.elastic or "elastic" in swept),),
        (counted(fleet.spares, "spare slice"),) if fleet.spares and "spares" not in swept else (),
    ]
    years = f"{fleet.interruption_s / YEAR_S:.3g}"
    interruptions = f"{years} year{'s' * (years != '1')} between interruptions of a chip"
    shown = ", ".join(itertools.chain.from_iterable(parts))
    return "; ".join(filter(None, (shown, "" if "interruption_s" in swept else interruptions)))


def describe_kind(learners: int, elastic: bool) -> str:
    """How the chips are used."""
    if learners == 1:
        return "data-parallel, elastic" if elastic else "data-parallel, rigid"
    return f"M = {learners}" if elastic else f"M = {learners}, rigid"


def sweep_view(
    sweeps: Sequence[Sweep], fleets: Sequence[Fleet], estimates: Sequence[Estimate]
) -> Sequence[Text | Table]:
    """One parameter: a line each. Two: a table of goodputs, the first down, the second across."""
    note = Text(assumed(fleets, [sweep.field for sweep in sweeps]))
    return _sweep_table(sweeps, estimates), Text(), note


def _sweep_table(sweeps: Sequence[Sweep], estimates: Sequence[Estimate]) -> Table:
    first = sweeps[0]
    if len(sweeps) == 1:
        table = _table(first.name, "goodput", "95 % interval", "uptime", "participation")
        for value, found in zip(first.values, estimates, strict=True):
            measures = percent(found.uptime.value), percent(found.participation.value)
            table.add_row(plain(value), percent(found.goodput.value), _between(found.goodput), *measures)
        return table
    across = sweeps[1]
    table = _table(f"goodput, {first.name} \\ {across.name}", *map(plain, across.values))
    for row, value in enumerate(first.values):
        row_estimates = estimates[row * len(across.values) : (row + 1) * len(across.values)]
        table.add_row(plain(value), *(percent(one.goodput.value) for one in row_estimates))
    return table


def paper_view(comparison: Comparison) -> Sequence[Text | Table]:
    """The paper's table: simulated, and in brackets the paper's value and the difference in points."""
    width = len(CHIPS)
    table = _table("goodput, %", *(f"{chips:,} chips" for chips in CHIPS), title="simulated (paper, difference)")
    for number, row in enumerate(ROWS):
        cells = comparison.cells[number * width : (number + 1) * width]
        shown = (f"{cell.simulated:.1f} ({cell.paper:.0f}, {cell.difference:+.1f})" for cell in cells)
        table.add_row(describe_kind(row.learners, row.elastic), *shown)
    text = (
        f"Root mean square of the differences: {comparison.rms_elastic:.2f} points over the elastic cells, "
        f"{comparison.rms_rigid:.2f} over the rigid ones; worst {comparison.worst:.1f}. Elastic cells with equal chips "
        f"per learner are at most {comparison.collapse:.1f} points apart. The paper's values are whole percent."
    )
    return table, Text(), Text(text), Text(assumed([cell.fleet for cell in comparison.cells]))


def paper_record(comparison: Comparison) -> dict[str, Any]:
    """The same as an object: every cell with ``paper`` and ``difference`` as fractions, and the summary in points."""
    return {
        "cells": [
            {
                "paper": cell.paper / 100,
                "difference": cell.difference / 100,
                **estimate_record(cell.fleet, cell.estimate),
            }
            for cell in comparison.cells
        ],
        "rms_elastic_points": comparison.rms_elastic,
        "rms_rigid_points": comparison.rms_rigid,
        "worst_points": comparison.worst,
        "collapse_points": comparison.collapse,
    }


def plain(value: Any) -> str:
    """A setting as a person writes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _rounded(count: float) -> str:
    """Two digits are all that such a number holds."""
    digits = max(0, math.floor(math.log10(count)) - 1) if count >= 1 else 0
    return f"{round(count, -digits):,.0f}"


# ----------------------------------------------------------------------------------------------------- bandwidth


def bandwidth_view(workload: Workload, rows: Sequence[Row], published: Sequence[Published]) -> Sequence[Text | Table]:
    """The comparison, its assumptions, and where the published figures come out."""
    link = rows[0].utilisation is not None
    table = _table(
        *("method", "format", "mean\nup", "mean\ndown", "\npeak"),
        *(f"{100 * share:.0f} %\nbusy" for share in UTILISATIONS),
        *("syncer\nin", "syncer\nout", "syncer\npeak"),
        *(("busy on\nlink",) if link else ()),
        title=f"Gbit/s each way per site: {_workload(workload)}, M = {workload.learners}",
        left=2,
        gap=1,
    )
    for row in rows:
        needs = (gbit(rate) for rate in (row.mean_up, row.mean_down, row.peak, *row.needed))
        syncer = (gbit(rate) for rate in (row.syncer_mean_in, row.syncer_mean_out, row.syncer_peak))
        method = "  blocking" if row.method == BLOCKING else row.method
        table.add_row(method, row.format, *needs, *syncer, *((percent(row.utilisation or 0),) if link else ()))
    load = f"{_workload(PUBLISHED_WORKLOAD)}, M = {PUBLISHED_WORKLOAD.learners}"
    beside = _table(
        "", "published", "here", "", "with", title=f"Figures of the paper and its authors, here with {load}"
    )
    beside.columns[4].justify = "left"
    for figure in published:
        stated, found = gbit(figure.published_gbit), gbit(figure.computed_gbit)
        beside.add_row(figure.what, stated, found, f"{100 * figure.difference:+.0f} %", figure.parameters)
    return table, Text(), *map(Text, _ASSUMPTIONS), Text(), beside, Text(), Text(_UNPUBLISHED)


def _workload(workload: Workload) -> str:
    return (
        f"{_scientific(workload.params)} parameters, {workload.step_s:g} s a step, H = {workload.interval_steps}, "
        f"P = {workload.fragments}, tau = {workload.overlap_steps}"
    )


def _scientific(number: float) -> str:
    """5e9, as it is written on a command line."""
    return re.sub(r"e\+0*", "e", f"{number:.3g}")


_ASSUMPTIONS = (
    "Peak: with such a link nothing stalls. 50 % to 99 % busy: the link with which chips compute that share of the "
    "time. Learners of this system never stall; for it, it is the share of the rounds' pace that is kept.",
    "Data-parallel averages gradients in a ring, 2 (M - 1) / M of the model each way, hidden under the backward pass "
    "(2/3 of a step) unless it blocks; DiLoCo blocks; Streaming DiLoCo and this system hide under tau steps.",
    f"int8 and int4 carry a scale of {SCALE_BITS} bits per {BLOCK_ELEMENTS} elements. Headers, latency and the merge "
    "are not counted.",
)
_UNPUBLISHED = (
    "The paper does not publish model, H, format and utilisation of its figures: these are values that come near, and "
    "others do too."
)


# -------------------------------------------------------------------------------------------------------- advice


def advice_view(question: Question, advice: Advice) -> Sequence[Text | Table]:
    """The setting, why, and what else there is."""
    setting, found = advice.setting, advice.goodput
    lines = [
        f"M = {setting.learners}, H = {setting.interval_steps}, P = {setting.fragments}, K = {setting.quorum}, "
        f"tau = {setting.overlap_steps}, upload {setting.upload}, download {setting.download}",
        f"goodput {percent(found.goodput.value)} ({_between(found.goodput)}), uptime {percent(found.uptime.value)}, "
        f"participation {percent(found.participation.value)}",
        f"per learner {gbit(setting.learner_mean_up)} Gbit/s up and {gbit(setting.learner_mean_down)} down on average, "
        f"{gbit(setting.learner_peak)} at peak; at the syncer {gbit(setting.syncer_mean_in)} in and "
        f"{gbit(setting.syncer_mean_out)} out, {gbit(setting.syncer_peak)} at peak",
    ]
    if advice.tokens_per_day is not None:
        lines.append(f"{_scientific(advice.tokens_per_day)} tokens a day that count")
    heading = Text(lines[0], style="bold")
    reasons = [Text(f"- {reason}") for reason in advice.reasons]
    return (
        *(heading, *map(Text, lines[1:]), Text(), Text("Why", style="bold"), *reasons, Text()),
        *(_choices(advice.choices), Text(), _alternatives(advice), Text(_WITHIN_A_SITE)),
        *(Text(assumed(_both_kinds(question.fleet), toml=True)), Text()),
        *(Text("In a run's configuration", style="bold"), Text(advice.toml.rstrip())),
    )


_WITHIN_A_SITE = "Data-parallel inside one site does not use this link: then its goodput alone counts."


def advice_record(question: Question, advice: Advice) -> dict[str, Any]:
    """The same as an object; rates in Gbit/s, null where no link is enough."""
    alternatives = [{**msgspec.to_builtins(row), "outcome": row.outcome} for row in advice.alternatives]
    asked = msgspec.to_builtins(question)
    for name in ("learners", "elastic"):  # of the fleet: those are what is answered
        del asked["fleet"][name]
    return {"question": asked, **msgspec.to_builtins(advice), "alternatives": alternatives}


def _both_kinds(fleet: Fleet) -> list[Fleet]:
    """The answer compares them."""
    return [msgspec.structs.replace(fleet, elastic=elastic, spares=0) for elastic in (True, False)]


def _choices(choices: Sequence[Choice]) -> Table:
    table = _table(
        "M",
        "goodput",
        "H",
        "codec up, down",
        "learner peak",
        "syncer peak",
        title="Every M considered (Gbit/s)",
        left=0,
    )
    for choice in choices:
        table.add_row(str(choice.learners), percent(choice.goodput.goodput.value), *_needs(choice.setting))
    return table


def _needs(setting: Setting | None) -> tuple[str, str, str, str]:
    if setting is None:
        return "", "not on these links", "", ""
    codec = f"{setting.upload}, {setting.download}"
    return str(setting.interval_steps), codec, gbit(setting.learner_peak), gbit(setting.syncer_peak)


def _alternatives(advice: Advice) -> Table:
    columns = "what else", "goodput", "kept on the link", "left", "Gbit/s for 95 %", ""
    table = _table(*columns, title="What else it could be")
    table.columns[5].justify, table.columns[5].no_wrap = "left", False
    for row in advice.alternatives:
        shares = percent(row.goodput), percent(row.utilisation), percent(row.outcome)
        table.add_row(row.what, *shares, gbit(row.needed_gbit), row.remark)
    return table

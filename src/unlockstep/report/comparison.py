"""The report of several runs beside each other, and of a simulated one against the real one with the same tape.

Decides which figures are compared, and which runs belong together. What a run amounts to is ``accounting``'s, how
charts and pages look ``figures`` and ``page``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from unlockstep.core.ids import NANOSECONDS_PER_SECOND, seconds
from unlockstep.core.words import counted
from unlockstep.report.accounting import Accounting
from unlockstep.report.figures import Axis, Series, legend, lines, natural, number, share, text
from unlockstep.report.page import (
    TIME,
    crosses,
    evaluation_points,
    live_series,
    participation_series,
    shares_chart,
    timeline_section,
)
from unlockstep.report.played import Played
from unlockstep.report.run_view import RunView
from unlockstep.report.sheet import definitions, document, figure, table
from unlockstep.report.summary import SHARE_WORDS
from unlockstep.report.tables import settings_section

ENDS = Axis("nats/byte", settles=0.25)
"""Runs are told apart by where they end."""

RUNS_MAX = 16
"""Runs whose timelines are drawn; of more, the first."""


def comparison(views: Sequence[RunView]) -> str:
    """The report of several runs."""
    pairs = [(real, simulated) for real in views for simulated in views if _belong_together(real, simulated)]
    sections = [("side", "Side by side", _side_by_side(views))]
    if pairs:
        against = "".join(_against(real, simulated) for real, simulated in pairs)
        sections.append(("against", "Simulated against real", against))
    sections += [
        ("settings", "Settings", settings_section(views)),
        ("time", "Where the time went", _time(views)),
        ("loss", "Loss", _loss(views)),
        ("participation", "Participation", _participation(views)),
        ("timelines", "Timelines", _timelines(views)),
        ("words", "Words", definitions()),
    ]
    names = ", ".join(view.label for view in views)
    head = f"<h1>{len(views)} runs</h1><p>{text(names)}</p>"
    return document(f"{names}: report of {len(views)} runs", head, sections)


def _belong_together(real: RunView, simulated: RunView) -> bool:
    """They have lived through the same, one of them under virtual time; one may have ended before the tape did, and
    have written down what was played until then."""
    one, other = real.tape, simulated.tape
    if one is None or other is None or real.simulated or not simulated.simulated:
        return False
    both = min(len(one.actions), len(other.actions))
    told = (one.name, one.learners, one.actions[:both]), (other.name, other.learners, other.actions[:both])
    return told[0] == told[1]


Figure = tuple[str, Callable[[Accounting], float | None], Callable[[float | None], str]]


def _plain(value: float | None) -> str:
    return "–" if value is None else number(value)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{number(value)} s"


def _last_loss(accounting: Accounting) -> float | None:
    return accounting.evaluations[-1].nats_per_byte if accounting.evaluations else None


def _staleness(accounting: Accounting) -> float | None:
    count = sum(accounting.staleness.values())
    return sum(behind * times for behind, times in accounting.staleness.items()) / count if count else None


def _part(name: str) -> Callable[[Accounting], float | None]:
    return lambda accounting: None if accounting.goodput is None else getattr(accounting.goodput.shares, name)


FIGURES: tuple[Figure, ...] = (
    ("goodput", lambda a: None if a.goodput is None else a.goodput.goodput, share),
    *((f"… {words}", _part(name), share) for name, words in SHARE_WORDS.items()),
    ("uptime", lambda a: a.uptime, share),
    ("time without a syncer", lambda a: a.without_syncer_ns / NANOSECONDS_PER_SECOND, _seconds),
    ("participation", lambda a: a.participation, share),
    ("mean staleness", _staleness, _plain),
    ("steps (clock)", lambda a: a.clock, _plain),
    ("tokens", lambda a: a.ledger.trained, _plain),
    ("rounds committed", lambda a: a.rounds_committed, _plain),
    ("time", lambda a: a.duration_ns / NANOSECONDS_PER_SECOND, _seconds),
    ("validation loss, nats/byte", _last_loss, lambda value: "–" if value is None else f"{value:.4f}"),
    ("contributions refused", lambda a: sum(a.refusals.values()), _plain),
)
"""What runs are compared by."""


def _side_by_side(views: Sequence[RunView]) -> str:
    accountings = [view.summary.accounting for view in views]
    rows = []
    for name, value, shown in FIGURES:
        values = [value(accounting) for accounting in accountings]
        if name.startswith("…") and all(abs(one or 0.0) < 0.0005 for one in values):
            continue
        between = [_difference(values[0], values[1], shown is share)] if len(views) == 2 else []
        rows.append([name, *(shown(one) for one in values), *between])
    heads, none = ["", *(view.label for view in views)], []
    if len(views) == 2:
        heads, none = [*heads, "difference"], [""]
    kinds = ["simulated" if view.simulated else "real" for view in views]
    rows.insert(0, ["time was", *kinds, *none])
    rows.insert(1, ["ended", *(view.summary.ending for view in views), *none])
    unlike = _unlike_lengths(views)
    return (f"<p>{text(unlike)}</p>" if unlike else "") + table("One column a run.", heads, rows)


def _unlike_lengths(views: Sequence[RunView]) -> str:
    """A sentence if the runs have trained different numbers of tokens; it names the extremes."""
    trained = [(view.summary.accounting.ledger.trained, view.label) for view in views]
    (least, shortest), (most, longest) = min(trained), max(trained)
    if not _differs(least, most, 0.02):
        return ""
    said = f"{longest} has trained {counted(most, 'token')}, {shortest} {least:,.0f}"
    if len(views) > 2:
        said = (
            f"Of these runs, {longest} has trained most, {counted(most, 'token')}, and {shortest} least, {least:,.0f}"
        )
    if sum(_last_loss(view.summary.accounting) is not None for view in views) < 2:
        return f"{said}."
    return (
        f"{said}: losses at the end are those of runs of unlike length. Give each of them --tokens {most:.0f} to make "
        "them alike. Where the learning rate falls over another number of steps, compare the ends, not the curves at "
        "equal tokens."
    )


def _against(real: RunView, simulated: RunView) -> str:
    assert real.tape is not None, "they have the same one"
    ours, theirs, until = _of_both(real, simulated)
    rows = []
    for name, value, shown in FIGURES:
        one, other = value(ours), value(theirs)
        if name.startswith("…") and max(abs(one or 0.0), abs(other or 0.0)) < 0.0005:
            continue
        rows.append([name, shown(one), shown(other), _difference(one, other, shown is share)])
    numbers = table(
        f"Tape {real.tape.name}{until}: {real.label} (real) and {simulated.label} (simulated).",
        ["", "real", "simulated", "difference"],
        rows,
    )
    both = {learner.learner: learner for learner in ours.learners}
    each = []
    for learner in sorted(theirs.learners, key=lambda learner: natural(learner.learner)):
        mine = both.get(learner.learner)
        if mine is None or mine.goodput is None or learner.goodput is None:
            continue
        one, other = mine.goodput.goodput, learner.goodput.goodput
        each.append(
            [learner.learner, share(one), share(other), _difference(one, other, True),
             f"{mine.steps:,}", f"{learner.steps:,}", share(mine.participation), share(learner.participation)]
        )  # fmt: skip
    heads = ["learner", "goodput, real", "simulated", "difference", "steps, real", "simulated",
             "participation, real", "simulated"]  # fmt: skip
    caveats = "".join(f"<p>{text(caveat)}</p>" for caveat in _caveats(real, simulated))
    return caveats + numbers + table("By learner.", heads, each)


def _of_both(real: RunView, simulated: RunView) -> tuple[Accounting, Accounting, str]:
    """What each amounted to over the stretch of the tape that both have, and words for that stretch."""
    accounts = real.summary.accounting, simulated.summary.accounting
    one, other = real.played, simulated.played
    if one is None or other is None or not _differs(one.end_ns, other.end_ns, 0.02):
        return *accounts, ""
    end_ns = min(one.end_ns, other.end_ns)

    def shared(view: RunView, played: Played) -> Accounting:
        if played.end_ns <= end_ns or view.until is None:
            return view.summary.accounting
        return view.until(played.begin_ns + end_ns)

    ours, theirs = shared(real, one), shared(simulated, other)
    return ours, theirs, f", until {seconds(end_ns)} of it"


def _differs(one: float, other: float, share_of: float) -> bool:
    return abs(one - other) > share_of * max(one, other)


def _step_ns(view: RunView) -> int:
    """Median over learners of their median step."""
    medians = [learner.gap.median_ns for learner in view.summary.accounting.learners if learner.gap.count]
    return round(statistics.median(medians)) if medians else 0


def _caveats(real: RunView, simulated: RunView) -> Iterator[str]:
    """Why the two may differ though they have the same tape, and what makes them alike."""
    one, other = real.played, simulated.played
    if one is None or other is None:
        return
    if _differs(one.end_ns, other.end_ns, 0.02):
        yield (
            f"The real run lasted until {seconds(one.end_ns)} of the tape, the simulated one until "
            f"{seconds(other.end_ns)}: compared is the stretch that both have."
        )
    step_ns, virtual_ns = _step_ns(real), _step_ns(simulated)
    is_other_pace = step_ns > 0 and virtual_ns > 0 and _differs(step_ns, virtual_ns, 0.1)
    for kind, played in (("real", one), ("simulated", other)):
        if played.unplayed:
            yield (
                f"Of {counted(played.actions, 'action')} of the tape, {played.unplayed} came after the end of the "
                f"{kind} run and {'was' if played.unplayed == 1 else 'were'} not played"
                + ("." if is_other_pace and kind == "simulated" else ": give it more steps (--steps).")
            )
    if is_other_pace:
        yield (
            f"A step took {seconds(step_ns)} in the real run and {seconds(virtual_ns)} in the simulated one (medians): "
            f"simulate it again with --set virtual.step_s={step_ns / NANOSECONDS_PER_SECOND:.3g}."
        )
    clock, virtual = real.summary.accounting.clock, simulated.summary.accounting.clock
    wanted = [dict(view.settings).get("length") for view in (real, simulated)]
    is_other_length = wanted[0] is None or wanted[0] != wanted[1]
    # Of two of one length, one may have gone further: somebody trained on while others waited for it.
    if _differs(clock, virtual, 0.05) and (is_other_length or virtual < clock):
        yield f"The real run took {clock:,} steps, the simulated one {virtual:,}: simulate it with --steps {clock}."
    start_ns = one.first_start_ns if one.start_ns is None else one.start_ns
    if start_ns is not None and other.start_ns is not None and _differs(start_ns, other.start_ns, 0.1):
        yield (
            f"From its start to its joining a process took {seconds(start_ns)} in the real run and "
            f"{seconds(other.start_ns)} in the simulated one; every start on the tape makes them differ by so much: "
            f"simulate it with --set virtual.start_s={start_ns / NANOSECONDS_PER_SECOND:.3g}."
        )


def _difference(one: float | None, other: float | None, is_share: bool) -> str:
    if one is None or other is None:
        return "–"
    if is_share:
        return f"{100 * (other - one):+.1f} points"
    if one == other or not one:
        return "0" if one == other else number(other - one)
    change = (other - one) / one
    return f"{change:+.1%}" if abs(change) >= 0.01 else f"{change:+.2%}"


def _time(views: Sequence[RunView]) -> str:
    rows = [
        (view.label, view.summary.accounting.goodput) for view in views if view.summary.accounting.goodput is not None
    ]
    if not rows:
        return "<p>Nobody has begun a step, so there is nothing to share out.</p>"
    chart = shares_chart("Where the time of each run went", [(name, goodput) for name, goodput in rows if goodput])
    return figure("What became of the time that all learners of a run together had.", chart)


def _keys(views: Sequence[RunView]) -> str:
    return legend([(view.label, f"c{index % 8}") for index, view in enumerate(views)])


def _loss(views: Sequence[RunView]) -> str:
    evaluated = [(index, view) for index, view in enumerate(views) if view.curves.evaluations]
    if not evaluated:
        return "<p>No run has been evaluated.</p>"
    charts = []
    for at in range(3):
        series = []
        for index, view in evaluated:
            axis, points = evaluation_points(view)[at]
            series.append(Series(view.label, points, index, len(points) < 40))
        charts.append(lines(f"Validation loss over {axis.label}", axis, ENDS, series))
    note = crosses([point.nats_per_byte for _, view in evaluated for point in view.curves.evaluations])
    return figure(
        f"Validation loss of the global models.{note}", _keys(views) + f'<div class="charts">{"".join(charts)}</div>'
    )


def _participation(views: Sequence[RunView]) -> str:
    percent = Axis("participation", lambda value: f"{value:.0%}", low=0, high=1)
    live = [live_series(view, view.label, index) for index, view in enumerate(views)]
    took = [participation_series(view, view.label, index) for index, view in enumerate(views)]
    charts = lines("Live learners over time", TIME, Axis("live learners", low=0), live) + lines(
        "Participation over time", TIME, percent, took
    )
    return figure("Who was there, and who took part.", _keys(views) + f'<div class="charts">{charts}</div>')


def _timelines(views: Sequence[RunView]) -> str:
    parts = [f"<h3>{text(view.label)}</h3>{timeline_section(view)}" for view in views[:RUNS_MAX]]
    if len(views) > RUNS_MAX:
        parts.append(f"<p>Not drawn: {counted(len(views) - RUNS_MAX, 'more run')}.</p>")
    return "".join(parts)

"""The report of a run as one HTML file: it holds all it needs, loads nothing, and prints.

Decides which sections there are and what is said in them. What is read from the log is ``run_view``'s, how a chart
looks ``figures``', what a page is made of ``sheet``'s, how it looks ``style``'s. All that a log says is escaped where
it becomes text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.words import counted
from unlockstep.report.accounting import Accounting
from unlockstep.report.figures import (
    Axis,
    Chart,
    Part,
    Series,
    bytes_text,
    duration_s,
    legend,
    lines,
    number,
    share,
    stacked,
    text,
)
from unlockstep.report.goodput import Goodput, Shares
from unlockstep.report.run_view import RunView, seconds_from
from unlockstep.report.sheet import brief, definitions, document, figure, table
from unlockstep.report.summary import SHARE_WORDS, duration
from unlockstep.report.tables import first, learners_section, rounds_section, settings_section, tokens_section
from unlockstep.report.timeline import KINDS, UNHEARD, Timeline, names_svg, timeline_svg

NAMED_MAX = 12
"""Lines that have a name in a legend; of more, they say it when pointed at."""

BARS_MAX = 30
"""Learners with a bar of their own."""


def page(view: RunView) -> str:
    """The report of one run."""
    summary = view.summary
    sections = [
        ("time", "Where the time went", _time(view)),
        ("timeline", "Timeline", timeline_section(view)),
        ("loss", "Loss", _loss(view)),
        ("learners", "Learners", learners_section(view)),
        ("tokens", "Tokens", tokens_section(view)),
        ("participation", "Participation and staleness", _participation(view)),
        ("bandwidth", "Bandwidth", _bandwidth(view)),
        ("rounds", "Rounds", rounds_section(view)),
        ("settings", "Settings", settings_section([view])),
        ("words", "Words", definitions()),
    ]
    kind = "A simulated run: " if view.simulated else "A real run: "
    head = (
        f"<h1>{text(view.label)}: {text(summary.ending)}</h1>"
        f'<p>{kind}{text(summary.sentence)}. <span class="quiet">{text(summary.files.run_log)}</span></p>'
    )
    return document(f"{view.label}: report of run {summary.run}", head + _figures(view), sections)


# ------------------------------------------------------------------------------------------------------- figures


def _figures(view: RunView) -> str:
    accounting = view.summary.accounting
    goodput = accounting.goodput
    last = accounting.evaluations[-1] if accounting.evaluations else None
    loss = "–" if last is None or last.nats_per_byte is None else f"{last.nats_per_byte:.4f}"
    at = "no evaluation" if last is None else f"nats/byte at step {last.clock:,}"
    shown = [
        ("Goodput", share(goodput.goodput if goodput else None), "of the undisturbed speed of all"),
        ("Uptime", share(accounting.uptime), _down(accounting)),
        ("Participation", share(accounting.participation), "of live learners, per round"),
        ("Validation loss", loss, at),
        ("Steps", f"{accounting.clock:,}", f"in {duration(accounting.duration_ns)}"),
        ("Tokens", number(accounting.ledger.trained), f"by {counted(len(accounting.learners), 'learner')}"),
        ("Rounds", f"{accounting.rounds_committed:,}", f"{accounting.rounds_empty:,} empty"),
        ("Contributions refused", f"{sum(accounting.refusals.values()):,}", _most(accounting.refusals)),
    ]
    boxes = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}<small>{text(under)}</small></dd></div>"
        for name, value, under in shown
    )
    return f'<dl class="figures">{boxes}</dl>'


def _down(accounting: Accounting) -> str:
    without_ns = accounting.without_syncer_ns
    gone = f"; no syncer for {duration(without_ns)}" if without_ns else ""
    return f"nobody trained for {duration(accounting.downtime_ns)}{gone}"


def _most(refusals: dict[str, int]) -> str:
    if not refusals:
        return "none"
    reason = max(refusals, key=lambda reason: refusals[reason])
    return f"most: {reason.replace('_', ' ')}"


def _parts(shares: Shares) -> list[Part]:
    return [Part(words, getattr(shares, name), name) for name, words in SHARE_WORDS.items()]


def shares_chart(title: str, rows: Sequence[tuple[str, Goodput]]) -> str:
    """Bars of what the time of each went into, with a legend of what there is."""
    present = [name for name in SHARE_WORDS if any(getattr(goodput.shares, name) > 0.0002 for _, goodput in rows)]
    bars = stacked(title, [(name, _parts(goodput.shares)) for name, goodput in rows])
    return legend([(SHARE_WORDS[name], name) for name in present]) + bars


def _time(view: RunView) -> str:
    accounting = view.summary.accounting
    goodput = accounting.goodput
    if goodput is None:
        return "<p>Nobody has begun a step, so there is nothing to share out.</p>"
    each = [(learner.learner, learner.goodput) for learner in accounting.learners if learner.goodput is not None]
    rows = [("all learners", goodput), *each[:BARS_MAX]]
    note = f" Of {len(each)} learners, the first {BARS_MAX}." if len(each) > BARS_MAX else ""
    used = [name for name in SHARE_WORDS if any(abs(getattr(one.shares, name)) > 0.00005 for _, one in rows)]
    numbers = table(
        "The same in numbers; they add up to 100 %.",
        ["", "goodput", *(SHARE_WORDS[name] for name in used), "tokens/s", "on the roster"],
        [
            [name, share(one.goodput), *(share(getattr(one.shares, part)) for part in used),
             number(one.tokens_per_s), duration(one.roster_ns)]
            for name, one in rows
        ],
    )  # fmt: skip
    caption = f"What became of the time that all learners together had, at their undisturbed speed.{note}"
    return figure(caption, shares_chart("Where the time went", rows)) + numbers


def timeline_section(view: RunView) -> str:
    """The whole run, and a part of it closer up."""
    unheard = ("line above: nobody heard of it until it was over (cut off, or no syncer)", UNHEARD)
    kinds = legend([*((kind, kind) for kind in KINDS), unheard])
    rounds = legend([("collecting until the quorum", "collecting"), ("grace window used", "grace"),
                     ("merge and save", "merging")])  # fmt: skip
    note = f" Not drawn: {counted(view.timeline.left_out, 'learner')}." if view.timeline.left_out else ""
    caption = (
        "A row per learner. A column shows how the time that falls into it was spent, from bottom to top. Above: "
        f"rounds; a line under a round is the grace window it was granted.{note}"
    )
    whole = figure(caption, kinds + rounds + _drawn(view.timeline, "Timeline of the run"))
    if view.close is None:
        return whole + _marks(view)
    begin = (view.close.begin_ns - view.begin_ns) / NANOSECONDS_PER_SECOND
    end = (view.close.end_ns - view.begin_ns) / NANOSECONDS_PER_SECOND
    closer = figure(f"From {begin:.2f} s to {end:.2f} s, closer up.", _drawn(view.close, "A part of the timeline"))
    return whole + closer + _marks(view)


def _drawn(timeline: Timeline, title: str) -> str:
    drawing = timeline_svg(timeline, title, names=False)
    return f'<div class="timeline">{names_svg(timeline)}<div class="scroll" tabindex="0">{drawing}</div></div>'


def _marks(view: RunView) -> str:
    marks = view.timeline.marks
    if not marks:
        return ""
    rows = [[f"{(mark.at_ns - view.begin_ns) / NANOSECONDS_PER_SECOND:.1f} s", mark.what] for mark in marks[:BARS_MAX]]
    note = first(min(BARS_MAX, len(marks)), len(marks))
    if view.timeline.marks_left_out:
        note += f" Not drawn in the whole: {counted(view.timeline.marks_left_out, 'action')} of the tape."
    return table(f"What happened, as dotted lines above.{note}", ["at", "what"], rows, words=(1,))


# ------------------------------------------------------------------------------------------------------- curves


TIME = Axis("time", duration_s, low=0)
STEPS = Axis("steps (clock)", low=0)
TOKENS = Axis("tokens of all learners", low=0)
LOSS = Axis("training loss", settles=0.1)
NATS = Axis("nats/byte", settles=0.1)


def _loss(view: RunView) -> str:
    losses, at_s = view.curves.losses, seconds_from(view)
    named = len(losses) <= NAMED_MAX
    training = [
        (axis, [Series(name, [(x(point), point.loss) for point in points], index if named else 0, thin=True)
                for index, (name, points) in enumerate(losses.items())])
        for axis, x in ((TIME, lambda p: at_s(p.at_ns)), (STEPS, lambda p: p.clock), (TOKENS, lambda p: p.tokens))
    ]  # fmt: skip
    keys = legend([(name, f"c{index % 8}") for index, name in enumerate(losses)]) if named else ""
    charts = "".join(lines(f"Training loss over {axis.label}", axis, LOSS, series)
                     for axis, series in training)  # fmt: skip
    parts = []
    if losses:
        every = [point.loss for points in losses.values() for point in points]
        parts.append(figure("Training loss of each learner, as it reported it (nats per token), mean over short "
                            f"stretches.{crosses(every)}", f'{keys}<div class="charts">{charts}</div>'))  # fmt: skip
    if view.curves.evaluations:
        note = crosses([point.nats_per_byte for point in view.curves.evaluations])
        charts = "".join(
            lines(f"Validation loss over {axis.label}", axis, NATS, [Series("global model", points, 1, True)])
            for axis, points in evaluation_points(view)
        )
        parts.append(figure(f"Validation loss of the global model.{note}", f'<div class="charts">{charts}</div>'))
    parts.append(_scores(view))
    return "".join(parts) or "<p>The log has no losses: nobody has trained, or what trains has none.</p>"


def crosses(values: Sequence[float]) -> str:
    """What is said of a chart of them, if some are no numbers."""
    return "" if all(map(math.isfinite, values)) else " A cross: not a finite number."


def _scores(view: RunView) -> str:
    """What the global model was asked beside the text."""
    nats: dict[str, list[tuple[float, float]]] = {}
    right: dict[str, list[tuple[float, float]]] = {}
    for point in view.curves.evaluations:
        for score in point.scores:
            nats.setdefault(score.name, []).append((float(point.clock), score.nats))
            right.setdefault(score.name, []).append((float(point.clock), score.accuracy))
    if not nats:
        return ""

    def chart(title: str, axis: Axis, of: dict[str, list[tuple[float, float]]]) -> str:
        return lines(title, STEPS, axis, [Series(name, points, at, dots=len(points) <= 60)
                                          for at, (name, points) in enumerate(of.items())])  # fmt: skip

    charts = chart("Scores: nats per answer", Axis("nats per answer"), nats) + chart(
        "Scores: share of right answers", Axis("right answers", lambda value: f"{value:.0%}", low=0, high=1), right
    )
    keys = legend([(name, f"c{at % 8}") for at, name in enumerate(nats)])
    return figure("What the global model was asked beside the text.", f'{keys}<div class="charts">{charts}</div>')


def evaluation_points(view: RunView) -> list[tuple[Axis, list[tuple[float, float]]]]:
    """The evaluations of a run over time, steps and tokens."""
    points, at_s = view.curves.evaluations, seconds_from(view)
    return [
        (TIME, [(at_s(point.at_ns), point.nats_per_byte) for point in points]),
        (STEPS, [(float(point.clock), point.nats_per_byte) for point in points]),
        (TOKENS, [(float(point.tokens), point.nats_per_byte) for point in points]),
    ]


def live_series(view: RunView, name: str, index: int) -> Series:
    """Live learners as a line of steps."""
    at_s = seconds_from(view)
    points: list[tuple[float, float]] = [(0.0, 0.0)]
    for at_ns, count in view.curves.live:
        points += [(at_s(at_ns), points[-1][1]), (at_s(at_ns), float(count))]
    points.append((at_s(view.end_ns), points[-1][1]))
    return Series(name, points, index)


def participation_series(view: RunView, name: str, index: int) -> Series:
    """Participation over time."""
    at_s = seconds_from(view)
    return Series(name, [(at_s(at_ns), value) for at_ns, value in view.curves.participation], index)


def _participation(view: RunView) -> str:
    curves, accounting = view.curves, view.summary.accounting
    percent = Axis("participation", lambda value: f"{value:.0%}", low=0, high=1)
    live = lines("Live learners over time", TIME, Axis("live learners", low=0), [live_series(view, "live learners", 0)])
    part = lines("Participation over time", TIME, percent, [participation_series(view, "participation", 2)])
    counts = curves.staleness
    histogram = Chart(
        "Contributions by staleness",
        Axis("staleness, versions", low=-0.5),
        Axis("contributions", low=0),
        [-0.5, *(key + 0.5 for key in counts)],
        counts.values(),
    )
    for key, count in counts.items():
        tip = f"{counted(count, 'contribution')} {counted(key, 'version')} behind"
        histogram.bar(key - 0.4, key + 0.4, count, tip, "var(--c0)")
    charts = f'<div class="charts">{live}{part}{histogram.svg()}</div>'
    reasons = table(
        "Why rounds closed, and how long they had been open.",
        ["reason", "rounds", "median", "longest"],
        [[reason.replace("_", " "), f"{spread.count:,}", brief(spread.median_ns), brief(spread.largest_ns)]
         for reason, spread in accounting.open_by_reason.items()],
    )  # fmt: skip
    return figure("Who was there, who took part, and how far behind contributions were.", charts) + reasons


def _bandwidth(view: RunView) -> str:
    moved = view.curves.moved
    if not moved:
        return "<p>The log of this run does not say how many bytes its bodies had.</p>"
    slice_s = view.curves.slice_ns / NANOSECONDS_PER_SECOND
    named = len(moved) <= NAMED_MAX
    merge = 5  # The syncer counts over stretches of its own: finer slices would show those.

    def rates(counts: Sequence[float]) -> list[tuple[float, float]]:
        return [((at + merge / 2) * slice_s, sum(counts[at : at + merge]) / (merge * slice_s))
                for at in range(0, len(counts), merge)]  # fmt: skip

    def chart(title: str, label: str, of: Callable[[str], Sequence[float]]) -> str:
        series = [Series(name, rates(of(name)), index if named else 0, thin=True) for index, name in enumerate(moved)]
        return lines(title, TIME, Axis(f"{label}, per second", bytes_text, low=0), series)

    up = chart("Up: from each learner to the syncer", "up", lambda name: moved[name].up)
    down = chart("Down: from the syncer to each learner", "down", lambda name: moved[name].down)
    keys = legend([(name, f"c{index % 8}") for index, name in enumerate(moved)]) if named else ""
    rows = [[name, bytes_text(sum(each.up)), bytes_text(sum(each.down))] for name, each in moved.items()]
    rows.append(["all", bytes_text(sum(sum(each.up) for each in moved.values())),
                 bytes_text(sum(sum(each.down) for each in moved.values()))])  # fmt: skip
    caption = (
        "Bodies as the syncer counted them on the wire: up, contributions from the learners; down, versions and states "
        "to them."
    )
    return figure(caption, f'{keys}<div class="charts">{up}{down}</div>') + table("In all.", ["", "up", "down"], rows)

"""What the experiments have found, from their result files: the tables and the figures of results.md.

::

    python docs/results.py             draws every figure anew (needs matplotlib, extra ``plots``)

The tables are blocks of ``generate``, like those in the other documents. A figure bears the digest of the file it was
drawn from, so that a test sees one that is out of step. Decides how results are summed up: means over seeds with the
standard deviation between them, and changes against another trial of the same seed with their standard error. What
follows from them is written by hand, around the tables.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
EXPERIMENTS = DOCS.parent / "experiments"
RESULTS = EXPERIMENTS / "results"
FIGURES = DOCS / "figures"

sys.path.append(str(EXPERIMENTS))  # Scripts beside each other, and no package.

from result_file import FleetScore, RingScore, Score, Sheet, read  # noqa: E402

from unlockstep.core.status import LedgerStatus  # noqa: E402

BLUE, ORANGE, GREY, GREEN = "#2a78c8", "#c2410c", "#8a8f98", "#2f855a"

FIRST = {
    "failures": "dense: data-parallel, calm",
    "heterogeneity": "equal speeds",
    "learners": "rda, M = 1",
    "fragmentation": "balanced",
    "choices": "as it is",
    "transfers": "as it is",
    "outer": "data-parallel",
    "rates": "M = 8, rda, 0.7",
    "length": "8 learners, 600,000 tokens",
    "experts": "stacked",
}
"""Of every experiment a trial without which there is nothing to show."""


@cache
def sheet(experiment: str) -> Sheet | None:
    """What an experiment has left; None: nothing yet."""
    file = RESULTS / f"{experiment}.json"
    found = read(file) if file.exists() else None
    return found if found is not None and found.of(FIRST[experiment]) else None


Column = tuple[str, Callable[[Sequence[Score]], str]]
"""Its head, and what it says of the scores of one trial."""


def table(experiment: str, against: Callable[[str], str | None], *columns: Column) -> str:
    """One line a trial: loss over seeds, its change against another trial of the same seed, and the columns.

    Args:
        experiment: name of the result file.
        against: name of a trial -> of the one it is compared with; None: with none.
        columns: what else is shown.
    """
    found = sheet(experiment)
    if found is None:
        return f"Not measured yet: `python experiments/{experiment}.py --seed 0 1 2`."
    bases = {name: other for name in found.names if (other := against(name)) not in (None, name) and found.of(other)}
    is_one = len(set(bases.values())) == 1
    change = [f"change against {next(iter(bases.values()))}"] if is_one else ["change", "against"]
    heads = ["Trial", "nats/byte", *change, *(head for head, _ in columns)]
    lines = [
        f"`{found.command}`, commit {found.commit}:",
        "",
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
    ]
    for name in found.names:
        mine, base = found.of(name), bases.get(name)
        changed = "" if base is None else compared(mine, found.of(base))
        told = [changed] if is_one else [changed, base or ""]
        cells = [name, spread([score.loss for score in mine]), *told, *(say(mine) for _, say in columns)]
        lines.append("| " + " | ".join(cells) + " |")
    for figure, (source, draw) in DRAWINGS.items():
        if source == experiment:
            lines += ["", f"![{_first_words(draw)}](figures/{path_of(figure).name})"]
    return "\n".join(lines)


def _first_words(draw: Callable[..., Any]) -> str:
    return (draw.__doc__ or "").rstrip(".")


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean, and standard deviation between seeds."""
    if len(values) < 2:
        return f"{statistics.fmean(values):.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def compared(mine: Sequence[Score], others: Sequence[Score]) -> str:
    """Change of the loss against the other trial of the same seed, mean and standard error."""
    mean, error = change_of(mine, others)
    return f"{mean:+.2f} %" if error is None else f"{mean:+.2f} ± {error:.2f} %"


def change_of(mine: Sequence[Score], others: Sequence[Score]) -> tuple[float, float | None]:
    """The same as numbers, in percent; no error of a single seed."""
    base = {score.seed: score.loss for score in others}
    changes = [100 * (score.loss / base[score.seed] - 1) for score in mine if score.seed in base]
    if not changes:
        return math.nan, None
    if len(changes) < 2:
        return changes[0], None
    return statistics.fmean(changes), statistics.stdev(changes) / math.sqrt(len(changes))


def _ring(read: Callable[[RingScore], float], digits: int) -> Callable[[Sequence[Score]], str]:
    def say(scores: Sequence[Score]) -> str:
        values = [read(score.ring) for score in scores if score.ring is not None]
        return f"{statistics.fmean(values):.{digits}f}" if values else ""

    return say


def _percent(read: Callable[[RingScore], float]) -> Callable[[Sequence[Score]], str]:
    def say(scores: Sequence[Score]) -> str:
        values = [100 * read(score.ring) for score in scores if score.ring is not None]
        return f"{statistics.fmean(values):.1f} %" if values else ""

    return say


def _participants(scores: Sequence[Score]) -> str:
    rings = [score.ring for score in scores if score.ring is not None]
    if not rings:
        return ""
    return f"{statistics.fmean(r.participants for r in rings):.2f} of {statistics.fmean(r.live for r in rings):.2f}"


TAKING_PART: tuple[Column, ...] = (
    ("took part", _participants),
    ("versions behind", _ring(lambda ring: ring.staleness, 2)),
)


# ----------------------------------------------------------------------------------------------------- the tables


def failures() -> str:
    """Calm and failures, three kinds of models, fewer bits."""

    def against(name: str) -> str | None:
        kind = name.partition(":")[0]
        return f"{kind}: data-parallel, calm" if "data-parallel" in name else f"{kind}: 8 learners, calm"

    return table(
        "failures",
        against,
        ("labels right", _labels),
        ("goodput", lambda scores: _fleet(scores, lambda fleet: fleet.goodput)),
        ("simulator's", lambda scores: _fleet(scores, lambda fleet: fleet.simulated)),
        ("failures", _failures),
        ("took part", _participants),
    )


def _labels(scores: Sequence[Score]) -> str:
    right = [100 * other.accuracy for score in scores for other in score.others if other.name == "label"]
    return f"{spread(right, 1)} %" if right else ""


def _fleet(scores: Sequence[Score], read: Callable[[FleetScore], float]) -> str:
    values = [100 * read(score.fleet) for score in scores if score.fleet is not None]
    return f"{statistics.fmean(values):.1f} %" if values else ""


def _failures(scores: Sequence[Score]) -> str:
    values = [score.fleet.failures for score in scores if score.fleet is not None]
    return f"{statistics.fmean(values):.0f}" if values else ""


def heterogeneity() -> str:
    """Windows, rules, slow learners."""
    found = sheet("heterogeneity")
    ended_s: dict[int, float] = {}
    if found is not None:
        ended_s = {score.seed: score.ring.time_s for score in found.of("equal speeds") if score.ring is not None}

    def at_equal_time(scores: Sequence[Score]) -> str:
        losses = [_loss_at(score, ended_s[score.seed]) for score in scores if score.seed in ended_s]
        return spread(losses) if losses else ""

    return table(
        "heterogeneity",
        lambda name: "equal speeds",
        ("nats/byte when equal speeds are done", at_equal_time),
        *TAKING_PART,
        ("round open, steps", _ring(lambda ring: ring.open_steps, 2)),
        ("time idle", _percent(lambda ring: ring.idle)),
        ("idle if all waited", _percent(lambda ring: ring.lockstep_idle)),
    )


def _loss_at(score: Score, at_s: float) -> float:
    """Between the two points of the curve around it, on a straight line; beyond its ends, the end."""
    points = list(zip(score.curve_s, (loss for _, loss in score.curve), strict=True))
    before = [point for point in points if point[0] <= at_s]
    behind = [point for point in points if point[0] > at_s]
    if not before or not behind:
        return (before or behind)[-1 if before else 0][1]
    (begin_s, high), (end_s, low) = before[-1], behind[0]
    return high + (low - high) * (at_s - begin_s) / (end_s - begin_s)


def learners() -> str:
    """M and the merge."""

    def against(name: str) -> str | None:
        return None if name.startswith("norms") else name.replace("rda", "mean")

    return table(
        "learners",
        against,
        ("contributed norm", _ring(lambda ring: ring.contribution_norm, 4)),
        ("merged norm", _ring(lambda ring: ring.merged_norm, 4)),
        ("merged / contributed", _ring(lambda ring: ring.norm_ratio, 3)),
        ("mean cosine", _cosine),
    )


def _cosine(scores: Sequence[Score]) -> str:
    """Between two contributions to a round, by how much shorter their mean is: of M of equal length and cosine c it is
    sqrt((1 + (M - 1) c) / M) times as long."""
    count = round(statistics.fmean(score.ring.participants for score in scores if score.ring is not None))
    if "mean" not in scores[0].trial.name or count < 2:
        return ""
    return f"{(count * _mean_ratio(scores) ** 2 - 1) / (count - 1):.2f}"


def rates() -> str:
    """Rule of merging and outer rate."""
    return table("rates", lambda name: f"{name.split(',')[0]}, rda, 0.7")


def fragmentation() -> str:
    """How parameters are cut."""
    return table(
        "fragmentation",
        lambda name: "balanced",
        ("largest fragment, kB", lambda scores: _kilobytes(scores, max)),
        ("mean, kB", lambda scores: _kilobytes(scores, statistics.fmean)),
    )


BYTES_PER_ELEMENT = 2
"""Of a contribution: bfloat16."""


def _kilobytes(scores: Sequence[Score], of: Callable[[Sequence[int]], float]) -> str:
    sizes = [score.ring.fragment_elements for score in scores if score.ring is not None]
    return f"{of(sizes[0]) * BYTES_PER_ELEMENT / 1000:.1f}" if sizes and sizes[0] else ""


def choices() -> str:
    """One change at a time."""
    return table(
        "choices",
        lambda name: "as it is",
        *TAKING_PART,
    )


def outer() -> str:
    """One change at a time around the default recipe."""
    return table("outer", lambda name: "data-parallel", ("against the default", _against_the_default))


def _against_the_default(scores: Sequence[Score]) -> str:
    found = sheet("outer")
    return "" if found is None else compared(scores, found.of("the default"))


def transfers() -> str:
    """One change at a time, where bodies take time."""
    return table(
        "transfers",
        lambda name: "as it is",
        *TAKING_PART,
        ("round open, steps", _ring(lambda ring: ring.open_steps, 2)),
        ("time", _time_against("transfers", "as it is")),
        ("late", _share(lambda ledger: ledger.merged_late)),
        ("refused", _share(lambda ledger: sum(ledger.refused.values()))),
        ("overwritten", _share(lambda ledger: ledger.overwritten)),
    )


def _share(read: Callable[[LedgerStatus], float]) -> Callable[[Sequence[Score]], str]:
    """Of all tokens trained."""
    return _percent(lambda ring: read(ring.ledger) / ring.ledger.trained)


def _time_against(experiment: str, name: str) -> Callable[[Sequence[Score]], str]:
    """Time until the tokens were trained, over that of a trial of the same seed."""

    def say(scores: Sequence[Score]) -> str:
        found = sheet(experiment)
        others = [] if found is None else found.of(name)
        base = {score.seed: score.ring.time_s for score in others if score.ring is not None}
        ratios = [s.ring.time_s / base[s.seed] for s in scores if s.ring is not None and s.seed in base]
        return f"{statistics.fmean(ratios):.2f}" if ratios else ""

    return say


def length() -> str:
    """Short and long runs."""
    return table(
        "length",
        lambda name: name.replace("8 learners", "data-parallel"),
        ("inner steps", lambda scores: f"{statistics.fmean(score.steps for score in scores):,.0f}"),
        ("commits of a fragment", _ring(lambda ring: statistics.fmean(ring.rounds_per_fragment), 0)),
    )


def experts() -> str:
    """Experts without tokens."""
    return table("experts", lambda name: "stacked")


BLOCKS: dict[str, Callable[[], str]] = {
    "results of failures": failures,
    "results of heterogeneity": heterogeneity,
    "results of learners": learners,
    "results of rates": rates,
    "results of fragmentation": fragmentation,
    "results of choices": choices,
    "results of transfers": transfers,
    "results of outer": outer,
    "results of length": length,
    "results of experts": experts,
}


# ---------------------------------------------------------------------------------------------------- the figures


def digest(experiment: str) -> str:
    """Of a result file, as its figures bear it."""
    return hashlib.sha256((RESULTS / f"{experiment}.json").read_bytes()).hexdigest()


def draw_failures(plt: Any, found: Sheet) -> Any:
    """Loss of every run against calm data-parallel training of its seed."""
    kinds = [kind for kind in ("dense", "experts", "vision") if found.of(f"{kind}: data-parallel, calm")]
    rows = ("data-parallel, elastic", "8 learners, calm", "8 learners, failures")
    figure, axes = plt.subplots(1, len(kinds), figsize=(9, 2.2), sharey=True, squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        base = found.of(f"{kind}: data-parallel, calm")
        _dots(axis, [(row, found.of(f"{kind}: {row}"), base) for row in rows])
        axis.set_title(kind, fontsize=10)
    axes[0][0].set_xlabel("loss against calm data-parallel training, %", loc="left")
    return figure


def draw_timeline(plt: Any, found: Sheet) -> Any:
    """The same stretch of three runs: learners above, rounds below."""
    shown = [name for name in found.names if name.startswith("paper's rules, ") and found.of(name)[0].picture]
    figure, axes = plt.subplots(len(shown), 1, figsize=(9, 1.9 * len(shown)), sharex=True, squeeze=False)
    for axis, name in zip(axes[:, 0], shown, strict=True):
        picture = found.of(name)[0].picture
        assert picture is not None
        for row, spans in enumerate(picture.steps.values()):
            axis.broken_barh([(a, (b - a) * 0.96) for a, b in spans], (-row - 0.8, 0.6), color=BLUE)
        for place, each in enumerate(picture.rounds):
            low = -len(picture.steps) - 1.4 - 0.5 * (place % 3)
            axis.plot((each.opened_s, each.quorum_s), (low, low), color=GREY, linewidth=2)
            axis.plot((each.quorum_s, each.closed_s), (low, low), color=ORANGE, linewidth=4)
            axis.text(each.closed_s, low, f" {len(each.participants)}", fontsize=6, va="center")
        axis.set_title(name, fontsize=9, loc="left")
        axis.set_yticks([])
    axes[-1, 0].set_xlabel(
        "virtual seconds; blue: steps, grey: round waits for its quorum, orange: grace; number: took part"
    )
    return figure


def draw_slow(plt: Any, found: Sheet) -> Any:
    """Loss over time, half of the learners slower."""
    figure, axis = plt.subplots(figsize=(6, 3))
    names = ["equal speeds", *(name for name in found.names if name.startswith("half ") and "paper" not in name)]
    colours = {"equal": "black", "2x": GREEN, "5x": BLUE, "20x": ORANGE}
    for name in names:
        score = found.of(name)[0]
        colour = next(colour for word, colour in colours.items() if word in name)
        line = "--" if "fresh" in name else "-"
        axis.plot(score.curve_s, [loss for _, loss in score.curve], line, color=colour, label=name, linewidth=1.2)
    axis.set_xlabel("virtual seconds")
    axis.set_ylabel("nats/byte")
    axis.legend(fontsize=7)
    return figure


def draw_learners(plt: Any, found: Sheet) -> Any:
    """Loss and length of the merged outer gradient over M."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    counts = [1, 2, 4, 8, 16]
    for rule, colour in (("rda", BLUE), ("mean", ORANGE)):
        there = [count for count in counts if found.of(f"{rule}, M = {count}")]
        losses = [[score.loss for score in found.of(f"{rule}, M = {count}")] for count in there]
        left.plot(there, list(map(statistics.fmean, losses)), "o-", color=colour, label=rule)
        left.fill_between(there, list(map(min, losses)), list(map(max, losses)), color=colour, alpha=0.2)
        for series, line, batch in (("norms: ", "o-", "batch 4"), ("", "o--", "batch 16 / M")):
            there = [count for count in counts if found.of(f"{series}{rule}, M = {count}")]
            norms = [_mean_ratio(found.of(f"{series}{rule}, M = {count}")) for count in there]
            right.plot(there, norms, line, color=colour, label=f"{rule}, {batch}", markersize=4)
    right.plot(counts, [count**-0.5 for count in counts], ":", color=GREY, label="1 / sqrt(M)")
    for axis, name in ((left, "nats/byte, equal tokens and steps"), (right, "merged norm / contributed norm")):
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.set_xlabel("learners")
        axis.set_ylabel(name, fontsize=8)
        axis.legend(fontsize=8)
    right.set_yscale("log", base=2)
    right.set_yticks([1, 0.5, 0.25], ["1", "0.5", "0.25"])
    return figure


def _mean_ratio(scores: Sequence[Score]) -> float:
    return statistics.fmean(score.ring.norm_ratio for score in scores if score.ring is not None)


def draw_fragmentation(plt: Any, found: Sheet) -> Any:
    """What travels at each round of a pass over the parameters."""
    figure, axes = plt.subplots(1, len(found.names), figsize=(9, 2), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], found.names, strict=True):
        ring = found.of(name)[0].ring
        assert ring is not None
        sizes = [size * BYTES_PER_ELEMENT / 1000 for size in ring.fragment_elements]
        axis.bar(range(len(sizes)), sizes, color=BLUE)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("fragment")
    axes[0][0].set_ylabel("kB")
    return figure


def draw_choices(plt: Any, found: Sheet) -> Any:
    """Change of the loss by each choice."""
    base, names = found.of("as it is"), [name for name in found.names if name != "as it is"]
    figure, axis = plt.subplots(figsize=(7, 0.24 * len(names) + 0.8))
    _dots(axis, [(name, found.of(name), base) for name in names])
    axis.set_xlabel("change of the loss, %; small: seeds, large: mean")
    return figure


def draw_length(plt: Any, found: Sheet) -> Any:
    """What eight independent learners cost, by the length of the run."""
    figure, axis = plt.subplots(figsize=(5, 2.6))
    tokens = sorted({score.trial.tokens for score in found.scores})
    rows = [
        (found.of(f"8 learners, {count:,} tokens"), found.of(f"data-parallel, {count:,} tokens")) for count in tokens
    ]
    means = [change_of(ring, alone)[0] for ring, alone in rows]
    for count, (ring, alone) in zip(tokens, rows, strict=True):
        for score in ring:
            axis.plot([count / 1e6], [change_of([score], alone)[0]], ".", color=GREY)
    axis.plot([count / 1e6 for count in tokens], means, "o-", color=BLUE)
    axis.set_xscale("log", base=2)
    axis.set_xticks([count / 1e6 for count in tokens], [f"{count / 1e6:g}" for count in tokens])
    axis.set_xlabel("million tokens, all learners together")
    axis.set_ylabel("loss against data-parallel, %")
    axis.set_ylim(bottom=0)
    return figure


def _dots(axis: Any, rows: Sequence[tuple[str, Sequence[Score], Sequence[Score]]]) -> None:
    """A row each: every seed, and their mean."""
    axis.axvline(0, color=GREY, linewidth=0.8)
    for place, (_, scores, base) in enumerate(rows):
        changes = [change_of([score], base)[0] for score in scores]
        axis.plot(changes, [place] * len(changes), ".", color=GREY)
        if changes:
            axis.plot([statistics.fmean(changes)], [place], "o", color=BLUE)
    axis.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=8)
    axis.invert_yaxis()


DRAWINGS: Mapping[str, tuple[str, Callable[[Any, Sheet], Any]]] = {
    "failures": ("failures", draw_failures),
    "timeline": ("heterogeneity", draw_timeline),
    "slow": ("heterogeneity", draw_slow),
    "learners": ("learners", draw_learners),
    "fragmentation": ("fragmentation", draw_fragmentation),
    "choices": ("choices", draw_choices),
    "transfers": ("transfers", draw_choices),
    "length": ("length", draw_length),
}
"""Name of a figure -> the result file it shows, and how."""


def path_of(figure: str) -> Path:
    """Where a figure is kept."""
    return FIGURES / f"results-{figure}.svg"


def main() -> None:
    """Draw every figure whose results are there."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "unlockstep", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot as plt

    for name, (experiment, draw) in DRAWINGS.items():
        found = sheet(experiment)
        if found is None:
            print(f"no results yet: {experiment}", file=sys.stderr)
            continue
        figure = draw(plt, found)
        for axis in figure.axes:
            axis.spines[["top", "right"]].set_visible(False)
        metadata = {"Date": None, "Description": f"{experiment}.json {digest(experiment)}"}
        figure.savefig(path_of(name), bbox_inches="tight", metadata=metadata)
        plt.close(figure)
        print(f"written: {path_of(name).relative_to(DOCS)}")


if __name__ == "__main__":
    main()

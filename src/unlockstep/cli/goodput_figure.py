"""The figure of ``unlockstep simulate goodput --plot``: goodput over one parameter, and over chips per learner.

Decides what it looks like, and that the file is whole or not there. Does not decide what is simulated. Needs
matplotlib, the optional extra ``plots``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from unlockstep.core.errors import UsageError
from unlockstep.files import whole

SUFFIXES = (".png", ".pdf", ".svg")
BASELINE = "#c2410c"
"""Of a line that is no learner count: the rigid baseline."""
ASKED = "#111827"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet: goodput and its 95 % interval as fractions."""

    x: float
    chips_per_learner: float
    goodput: float
    low: float
    high: float
    published: float | None = None
    """What the paper states for it."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Fleets that differ in ``x`` alone."""

    label: str
    points: tuple[Point, ...]
    baseline: bool = False
    """Drawn apart, and left out of the collapse: its goodput is no function of chips per learner."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn."""

    title: str
    lines: tuple[Line, ...]
    """One curve each."""
    x_label: str
    """What ``Point.x`` is."""
    x_log: bool
    """Logarithmic axis."""
    collapse: bool
    """Second panel: all lines but the baselines over chips per learner."""
    asked: Point | None = None
    """The fleet that was asked for, among its neighbours."""
    from_zero: bool = False
    """Goodput from 0 to 100 %. Otherwise the axis begins a little below the lowest value, and says so."""

    @property
    def points(self) -> list[Point]:
        """Of all lines."""
        return [point for line in self.lines for point in line.points]


def check(path: Path) -> None:
    """Refuse a place that cannot take a figure, before anything is simulated.

    Raises:
        UsageError: matplotlib is missing, or the path has no known suffix, is a folder or cannot be written.
    """
    try:
        import matplotlib  # noqa: F401  only asked for: drawing imports what it needs
    except ImportError:
        raise UsageError('--plot needs matplotlib; install it with `pip install "unlockstep[plots]"`') from None
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot is {path}; the name must end with {', '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--plot is {path}, which cannot be written; name a file in a folder that exists")


def write(path: Path, figure: Figure) -> None:
    """Draw the figure and put it in its place at once.

    Args:
        path: of the picture; ``check`` has passed it.
        figure: what is on it.

    Raises:
        UsageError: the file cannot be written; nothing is left behind.
    """
    drawing = _draw(figure)
    try:
        with whole(path) as partial:
            drawing.savefig(partial, format=path.suffix[1:].lower())
    except OSError as error:
        raise UsageError(
            f"--plot is {path}, which cannot be written ({error.strerror}); choose another place"
        ) from None


def lowest_percent(figure: Figure) -> float:
    """Where the axis of goodput begins: the data fills most of it, and it begins with a round number."""
    if figure.from_zero:
        return 0
    low = 100 * min(point.low for point in figure.points)
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10) if 10 * step >= 100 - low)
    return max(0.0, round(step * math.floor(low / step - 0.5), 1))


def _draw(figure: Figure) -> Any:
    from matplotlib import figure as pictures

    drawing = pictures.Figure(figsize=(11 if figure.collapse else 6.5, 4.6), dpi=110, layout="constrained")
    drawing.suptitle(figure.title, x=0.01, ha="left", fontsize=12)
    axes = drawing.subplots(1, 2 if figure.collapse else 1, sharey=True, squeeze=False)[0]
    lowest = lowest_percent(figure)
    # Nothing above 100 % exists; the margin is room for the rings.
    axes[0].set_ylim(lowest, 100 + 0.05 * (100 - lowest))
    axes[0].set_yticks([tick for tick in axes[0].get_yticks() if lowest <= tick <= 100.0001])
    axes[0].set_ylabel(f"goodput, % (axis begins at {lowest:g})" if lowest else "goodput, %")
    colours = _colours(figure.lines)
    _lines(axes[0], figure, colours)
    if figure.collapse:
        _collapse(axes[1], figure, colours)
    return drawing


def _lines(axes: Any, figure: Figure, colours: Sequence[Any]) -> None:
    for line, colour in zip(figure.lines, colours, strict=True):
        x = [point.x for point in line.points]
        style = "--" if line.baseline else "-"
        goodputs = [100 * point.goodput for point in line.points]
        axes.plot(x, goodputs, style, marker=".", markersize=5, color=colour, label=line.label)
        low, high = ([100 * getattr(point, end) for point in line.points] for end in ("low", "high"))
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        stated = [(point.x, 100 * point.published) for point in line.points if point.published is not None]
        axes.plot(*zip(*stated, strict=True), "x", color=colour, markersize=6) if stated else None
    if any(point.published is not None for point in figure.points):
        axes.plot([], [], "x", color="#555555", markersize=6, label="stated in the paper")
    if figure.asked is not None:
        _mark(axes, figure.asked.x, figure.asked, f"asked for: {100 * figure.asked.goodput:.1f} %")
    axes.set_title("Goodput", loc="left", fontsize=11)
    axes.legend(fontsize=8, frameon=False, loc="best")
    _axis(axes, sorted({point.x for point in figure.points}), figure.x_label, figure.x_log)


def _collapse(axes: Any, figure: Figure, colours: Sequence[Any]) -> None:
    """Rings, a smaller one for each line, so that those in one place are all seen."""
    xs = set()
    for number, (line, colour) in enumerate(zip(figure.lines, colours, strict=True)):
        if not line.baseline:
            x = [point.chips_per_learner for point in line.points]
            ring = {"color": colour, "markersize": 4 + 14 * (1 - number / len(figure.lines)), "markerfacecolor": "none"}
            goodputs = [100 * point.goodput for point in line.points]
            axes.plot(x, goodputs, "o", markeredgewidth=1.6, clip_on=False, **ring)
            xs.update(x)
    if figure.asked is not None and any(figure.asked in line.points for line in figure.lines if not line.baseline):
        _mark(axes, figure.asked.chips_per_learner, figure.asked, None)
    axes.set_title("The same, over chips per learner", loc="left", fontsize=11)
    _axis(axes, sorted(xs), "chips per learner", True)


def _mark(axes: Any, x: float, asked: Point, label: str | None) -> None:
    look = {"color": ASKED, "markersize": 13, "markeredgecolor": "white", "zorder": 5, "clip_on": False}
    axes.plot([x], [100 * asked.goodput], "*", linestyle="none", label=label, **look)


def _axis(axes: Any, values: Sequence[float], label: str, log: bool) -> None:
    axes.set_xlabel(label)
    axes.grid(color="#e4e6ea", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if log and values[0] > 0:
        axes.set_xscale("log")
        if len(values) <= 9:
            axes.set_xticks(values, [_short(value) for value in values])
            axes.minorticks_off()


def _colours(lines: Sequence[Line]) -> list[Any]:
    """Light to dark along the lines; the baselines in a colour of their own."""
    from matplotlib import colormaps

    shades = iter(colormaps["viridis_r"](0.12 + 0.88 * i / max(1, len(lines) - 1)) for i in range(len(lines)))
    return [BASELINE if line.baseline else next(shades) for line in lines]


def _short(value: float) -> str:
    """1200000: ``1.2M``."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"

"""The figure of ``unlockstep simulate goodput --plot``: goodput over one parameter, and over chips per learner.

Decides what it looks like, and that the file is whole or not there. Does not decide what is simulated. Needs
matplotlib, the optional extra ``plots``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from unlockstep.core.errors import UsageError

SUFFIXES = (".png", ".pdf", ".svg")
BASELINE = "#c2410c"
"""Of a line that is no learner count: the rigid baseline."""


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


def write(path: Path, lines: Sequence[Line], *, x_label: str, x_log: bool, collapse: bool) -> None:
    """Draw the figure and put it in its place at once.

    Args:
        path: of the picture; ``check`` has passed it.
        lines: one curve each.
        x_label: what ``Point.x`` is.
        x_log: logarithmic axis.
        collapse: second panel, all lines but the baselines over chips per learner.

    Raises:
        UsageError: the file cannot be written; nothing is left behind.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11 if collapse else 6.5, 4.4), dpi=110, layout="constrained")
    axes = figure.subplots(1, 2 if collapse else 1, sharey=True, squeeze=False)[0]
    colours = _colours(lines)
    _lines(axes[0], lines, colours, x_label, x_log)
    if collapse:
        _collapse(axes[1], lines, colours)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        figure.savefig(partial, format=path.suffix[1:].lower())
        partial.replace(path)
    except OSError as error:
        raise UsageError(
            f"--plot is {path}, which cannot be written ({error.strerror}); choose another place"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _lines(axes: Any, lines: Sequence[Line], colours: Sequence[Any], x_label: str, x_log: bool) -> None:
    for line, colour in zip(lines, colours, strict=True):
        x = [point.x for point in line.points]
        style = "--" if line.baseline else "-"
        axes.plot(x, [100 * point.goodput for point in line.points], style, color=colour, label=line.label)
        low, high = ([100 * getattr(point, end) for point in line.points] for end in ("low", "high"))
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        stated = [(point.x, 100 * point.published) for point in line.points if point.published is not None]
        axes.plot(*zip(*stated, strict=True), "o", color=colour, markersize=5) if stated else None
    if any(point.published is not None for line in lines for point in line.points):
        axes.plot([], [], "o", color="#555555", markersize=5, label="stated in the paper")
    axes.set_title("Goodput", loc="left", fontsize=11)
    axes.set_ylabel("goodput, %")
    axes.legend(fontsize=8, frameon=False, loc="lower left")
    _axis(axes, sorted({point.x for line in lines for point in line.points}), x_label, x_log)
    axes.set_ylim(0, 101)


def _collapse(axes: Any, lines: Sequence[Line], colours: Sequence[Any]) -> None:
    """Rings, a smaller one for each line, so that those in one place are all seen."""
    xs = set()
    for number, (line, colour) in enumerate(zip(lines, colours, strict=True)):
        if not line.baseline:
            x = [point.chips_per_learner for point in line.points]
            ring = {"color": colour, "markersize": 4 + 14 * (1 - number / len(lines)), "markerfacecolor": "none"}
            axes.plot(x, [100 * point.goodput for point in line.points], "o", markeredgewidth=1.6, **ring)
            xs.update(x)
    axes.set_title("The same, over chips per learner", loc="left", fontsize=11)
    _axis(axes, sorted(xs), "chips per learner", True)


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

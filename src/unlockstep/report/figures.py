"""Charts as SVG text, drawn with the standard library: scales, axes, and the marks on them.

Decides how a chart is laid out and what its axes say. Does not decide what is drawn, nor colours: marks have a class,
and a style sheet (``STYLE``, shared by the page and by pictures that stand alone) gives it one for light, dark and
paper. Colours are those of Okabe and Ito, which colour-blind people tell apart; lines differ in their dashes as well.

A value is escaped where it becomes text (``text``): nothing that a log says can become markup.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from unlockstep.core.words import scaled

Point = tuple[float, float]

STYLE = """
:root, svg { --ink: #1c2127; --quiet: #5d6673; --grid: #e3e6ea; --paper: #ffffff; --panel: #f6f7f9;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #b07d00; --c5: #3f8fc4; --c6: #6a51a3;
  --c7: #5d6673; --merged: #0072b2; --merged_late: #56b4e9; --computing: #0072b2; --slowed: #8cc4e8; --waiting: #e69f00;
  --recovering: #009e73; --away: #cc79a7; --down: #d55e00; --refused: #7a3e9d; --overwritten: #b48bc9;
  --dropped: #9aa3ad; --lost: #50565e; --in_flight: #c9ced4; --collecting: #9aa3ad; --grace: #7a3e9d;
  --merging: #50565e; --unheard: #1c2127; }
@media (prefers-color-scheme: dark) { :root, svg { --ink: #e6e9ed; --quiet: #a3adb8; --grid: #333a43; --paper: #15181c;
  --panel: #1d2126; --c0: #56b4e9; --c1: #f0803c; --c2: #33c49a; --c3: #e39cc4; --c4: #e0b23c; --c5: #8fd0f5;
  --c6: #a996e0; --c7: #a3adb8; --merged: #3d9bd9; --merged_late: #9bd4f5; --computing: #3d9bd9; --slowed: #1f567d;
  --lost: #c9ced4; --in_flight: #50565e; --dropped: #7d8691; --refused: #a56bc9; --grace: #a56bc9;
  --merging: #e6e9ed; --unheard: #e6e9ed; } }
@media print { :root, svg { --ink: #000000; --quiet: #444444; --grid: #dddddd; --paper: #ffffff; --panel: #ffffff;
  --merged: #0072b2; --merged_late: #56b4e9; --computing: #0072b2; --slowed: #8cc4e8; --merging: #50565e; } }
svg { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
svg text.quiet { fill: var(--quiet); }
svg .axis { stroke: var(--quiet); stroke-width: 1; fill: none; }
svg .grid { stroke: var(--grid); stroke-width: 1; fill: none; }
svg .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
svg .thin { stroke-width: 1; opacity: .75; }
svg .cross { stroke-width: 1.4; fill: none; }
svg .rule { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 2; fill: none; }
svg .hit { fill: transparent; }
""".strip()
"""Colours by name, and what all charts share."""

SERIES = 8
"""Colours for lines; the ninth has the first one's, with other dashes."""

DASHES = ("", "5 3", "2 2", "8 3 2 3")

SETTLED_MIN, SETTLED_ROOM, SETTLED_GAIN = 4, 0.02, 1.5
"""Of a chart that leaves out where lines begin: points after that; how high it is at least, as a share of its lowest
value; how much lower it has to be than one of everything."""

DIGITS_MAX = 12
"""Of what a tick says."""


def text(value: object) -> str:
    """As text of an element, or between the quotes of an attribute."""
    return html.escape(str(value), quote=True)


def number(value: float) -> str:
    """For people: about three digits, with separators; ``12.5``, ``1,234``, ``0.00123``, ``2.1M``."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    size = abs(value)
    for least, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= least:
            return f"{value / least:.4g}{unit}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def share(value: float | None) -> str:
    """``92.3 %``; a dash for None."""
    return "–" if value is None else f"{round(100 * value, 1) + 0.0:.1f} %"


def coordinate(value: float) -> str:
    """For a path: at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About so many round numbers (1, 2 or 5 times a power of ten) from ``low`` to ``high``."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


def time_ticks(low_s: float, high_s: float, count: int = 5) -> list[float]:
    """The same for seconds: whole minutes, hours and days; below a second, as any number."""
    rough = (high_s - low_s) / max(1, count)
    if rough <= 1 or not math.isfinite(rough):
        return nice_ticks(low_s, high_s, count)
    step = next((step for step in TIME_STEPS_S if step >= rough), math.ceil(rough / 86_400) * 86_400)
    return [float(step * index) for index in range(math.ceil(low_s / step), math.floor(high_s / step) + 1)]


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts ``learner-2`` before ``learner-10``."""
    parts = re.split("([0-9]{1,18})", name)
    return [(1, 0, part) if at % 2 == 0 else (0, int(part), part) for at, part in enumerate(parts)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; with 2 and 5 times them where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)
    return [tick for power in powers for factor in factors if low <= (tick := factor * 10.0**power) <= high]


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to pixels; ``log`` needs ``low`` above 0."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        share_of = (value - low) / (high - low) if high > low else 0.5
        return self.begin + share_of * (self.end - self.begin)

    def ticks(self, count: int = 5) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else nice_ticks(self.low, self.high, count)


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis says."""

    label: str
    form: Callable[[float], str] = number
    low: float | None = None
    """Where it begins at the latest, and where it ends at the earliest."""
    high: float | None = None
    log: bool = False
    settles: float = 0.0
    """Of lines that fall steeply at first: it ends at the highest value after this share of them (``settled``)."""


def duration_s(value: float) -> str:
    """Seconds on an axis: ``30 s``, ``2:30`` (minutes), ``3h20``."""
    if value < 120:
        return f"{value:g} s"
    whole = round(value)
    return f"{whole // 60}:{whole % 60:02d}" if whole < 7200 else f"{whole // 3600}h{whole // 60 % 60:02d}"


def bytes_text(value: float) -> str:
    """``1.2 MB``, ``300 kB``."""
    return scaled(value, "B")


class Series(msgspec.Struct, frozen=True):
    """One line."""

    name: str
    points: Sequence[Point]
    index: int = 0
    """Which colour and dashes."""
    dots: bool = False
    """Points are marked: there are few."""
    thin: bool = False


@dataclass(slots=True)
class Chart:
    """Axes of one chart, and what has been drawn on them so far.

    Args:
        title: what it shows, for those who do not see it.
        x, y: its axes.
        xs, ys: all values that will be drawn, to know how far the axes reach.
        width, height: px.
    """

    title: str
    x_axis: Axis
    y_axis: Axis
    xs: Iterable[float]
    ys: Iterable[float]
    width: int = 420
    height: int = 240
    note: str = ""
    """Said above it."""
    marks: list[str] = field(default_factory=list)
    x: Scale = field(init=False)
    y: Scale = field(init=False)

    def __post_init__(self) -> None:
        self.x = _scale(self.x_axis, self.xs, 58, self.width - 12)
        self.y = _scale(self.y_axis, self.ys, self.height - 36, 12)

    def line(self, series: Series) -> None:
        """A line through points, up to the end of the axis; one that is no finite number interrupts it, with a cross
        at the upper edge."""
        path = "".join(
            "M" + "L".join(f"{coordinate(self.x(x))} {coordinate(self.y(y))}" for x, y in piece)
            + ("h0" if len(piece) == 1 else "")
            for piece in pieces_below(series.points, self.y.high)
        )  # fmt: skip
        colour, dash = f"var(--c{series.index % SERIES})", DASHES[series.index // SERIES % len(DASHES)]
        for x, y in series.points:
            if math.isfinite(x) and not math.isfinite(y):
                said = text(f"{series.name}: not a finite number at {self.x_axis.form(x)}")
                self.marks.append(
                    f'<path class="mark cross" stroke="{colour}" d="M{coordinate(self.x(x) - 3)} {self.y.end}l6 6m0 -6'
                    f'l-6 6"><title>{said}</title></path>'
                )
        if not path:
            return
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        thin = " thin" if series.thin else ""
        self.marks.append(
            f'<path class="mark line{thin}" stroke="{colour}" stroke-linecap="round"{dashes} d="{path}">'
            f"<title>{text(series.name)}</title></path>"
        )
        for x, y in series.points if series.dots else ():
            if math.isfinite(x) and math.isfinite(y) and y <= self.y.high:
                said = text(f"{series.name}: {self.y_axis.form(y)} at {self.x_axis.form(x)}")
                self.marks.append(
                    f'<circle class="mark" cx="{coordinate(self.x(x))}" cy="{coordinate(self.y(y))}" r="2.6" '
                    f'fill="{colour}"><title>{said}</title></circle>'
                )

    def bar(self, low: float, high: float, height: float, said: str, colour: str = "var(--c0)") -> None:
        """From ``low`` to ``high`` on the x axis, up from 0."""
        left, right, top, bottom = self.x(low), self.x(high), self.y(height), self.y(max(0.0, self.y.low))
        self.marks.append(
            f'<rect class="mark" x="{coordinate(left)}" y="{coordinate(top)}" '
            f'width="{coordinate(max(0.5, right - left))}" height="{coordinate(max(0.0, bottom - top))}" '
            f'fill="{colour}"><title>{text(said)}</title></rect>'
        )

    def svg(self) -> str:
        """The chart; an image with a name, for those who do not see it."""
        if not self.marks:
            return f'<p class="quiet">{text(self.title)}: nothing to draw.</p>'
        return picture(self.title, self.width, self.height, [*self._axes(), *self.marks])

    def _axes(self) -> list[str]:
        left, right, bottom, top = self.x.begin, self.x.end, self.y.begin, self.y.end
        parts = []
        if self.note:
            parts.append(f'<text class="quiet" x="{right}" y="{top - 3}" text-anchor="end">{text(self.note)}</text>')
        ticks = self.y.ticks(4)
        for value, said in zip(ticks, apart(ticks, self.y_axis.form), strict=True):
            at = coordinate(self.y(value))
            parts.append(f'<path class="grid" d="M{left} {at}H{right}"/>')
            parts.append(f'<text class="quiet" x="{left - 6}" y="{at}" text-anchor="end" dy="4">{text(said)}</text>')
        is_time = self.x_axis.form is duration_s
        for value in time_ticks(self.x.low, self.x.high, 4) if is_time else self.x.ticks(4):
            at = coordinate(self.x(value))
            parts.append(f'<path class="axis" d="M{at} {bottom}v4"/>')
            parts.append(tick_text(self.x(value), bottom + 15, self.x_axis.form(value), self.width))
        parts.append(f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>')
        parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 31}" text-anchor="middle">'
                     f"{text(self.x_axis.label)}</text>")  # fmt: skip
        middle = (top + bottom) / 2
        parts.append(f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">'
                     f"{text(self.y_axis.label)}</text>")  # fmt: skip
        return parts


CHARACTER = 6.5
"""Room for one on an axis, px."""


def tick_text(x: float, y: float, said: str, width: float) -> str:
    """Below a tick; where it would not fit into the picture, up to its edge."""
    room = len(said) * CHARACTER / 2
    x, anchor = (width - 1, "end") if x + room > width else (x, "middle")
    return f'<text class="quiet" x="{coordinate(x)}" y="{coordinate(y)}" text-anchor="{anchor}">{text(said)}</text>'


def _scale(axis: Axis, values: Iterable[float], begin: float, end: float) -> Scale:
    """Around all values, with a little air above and below, but not where the axis has a fixed end."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    air = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    if not axis.log:
        low, high = (low if axis.low is not None else low - air), high + (0 if axis.high is not None else air)
    low = low if axis.low is None else min(low, axis.low)
    high = high if axis.high is None else max(high, axis.high)
    return Scale(low, high if high > low else low + 1, begin, end, axis.log)


def pieces_below(points: Sequence[Point], high: float) -> list[list[Point]]:
    """What of a line is not above ``high``, cut where it crosses that, and where a point is not finite."""
    pieces: list[list[Point]] = [[]]
    before: Point | None = None
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pieces, before = [*pieces, []], None
            continue
        if before is not None and (before[1] > high) != (y > high):
            crossing = (before[0] + (x - before[0]) * (high - before[1]) / (y - before[1]), high)
            pieces[-1].append(crossing)
        if y <= high:
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
        before = x, y
    return [piece for piece in pieces if piece]


def settled(series: Sequence[Series], share_of: float) -> float | None:
    """Where an axis ends on which lines fall steeply at first: at the highest value after such a share of each line,
    counted from where the first begins. So whatever rises later is seen, and so is one that begins later. None: all of
    it is to be seen, since there are few points or little would be gained."""
    each = [[point for point in one.points if all(map(math.isfinite, point))] for one in series]
    each = [points for points in each if points]
    if not each:
        return None
    begin = min(x for points in each for x, _ in points)
    later = [[y for x, y in points if x >= begin + share_of * (max(x for x, _ in points) - begin)] for points in each]
    if max(map(len, later)) < SETTLED_MIN:
        return None
    values = [y for points in each for _, y in points]
    low = min(values)
    high = max(max(y for ys in later for y in ys), low + SETTLED_ROOM * abs(low))
    return high if max(values) - low > SETTLED_GAIN * (high - low) else None


def apart(ticks: Sequence[float], form: Callable[[float], str]) -> list[str]:
    """What is said of ticks: with as many digits as tell each from the next."""
    said = [form(tick) for tick in ticks]
    digits = 3
    while form is number and len(set(said)) < len(said) and digits < DIGITS_MAX:
        digits += 1
        said = [f"{tick:.{digits}g}" for tick in ticks]
    return said


def lines(title: str, x: Axis, y: Axis, series: Sequence[Series], width: int = 420, height: int = 240) -> str:
    """A chart of lines."""
    xs = [at for one in series for at, _ in one.points]
    ys = [value for one in series for _, value in one.points]
    high, note = settled(series, y.settles) if y.settles else None, ""
    if high is not None:
        highest = max(filter(math.isfinite, ys))
        ys = [min(value, high) for value in ys]
        note = f"cut off: up to {number(highest)} in the first {100 * y.settles:g} %"
    chart = Chart(title, x, y, xs, ys, width, height, note)
    for one in series:
        chart.line(one)
    return chart.svg()


class Part(msgspec.Struct, frozen=True):
    """One part of a stacked bar."""

    name: str
    value: float
    colour: str
    """Name of a colour in ``STYLE``."""


def stacked(title: str, rows: Sequence[tuple[str, Sequence[Part]]]) -> str:
    """Bars from left to right, one row each, of parts that add up to 1; as wide as there is room, with its name above.
    Parts below 0 take no room."""
    parts, tall = [], 38
    for index, (name, row) in enumerate(rows):
        y, at = index * tall, 0.0
        parts.append(f'<text x="0" y="{y + 14}">{text(clipped(name, 40))}</text>')
        whole = max(1.0, sum(max(0.0, part.value) for part in row))
        for part in row:
            wide = max(0.0, part.value) / whole * 100
            if wide < 0.02:
                continue
            said = text(f"{name}: {share(part.value)} {part.name}")
            parts.append(
                f'<rect class="mark" x="{at:.3f}%" y="{y + 18}" width="{wide:.3f}%" height="16" '
                f'fill="var(--{part.colour})"><title>{said}</title></rect>'
            )
            at += wide
    bottom = len(rows) * tall
    anchors = {0: "start", 100: "end"}
    for value in (0, 25, 50, 75, 100):
        anchor = anchors.get(value, "middle")
        parts.append(f'<text class="quiet" x="{value}%" y="{bottom + 12}" text-anchor="{anchor}">{value} %</text>')
    inside = "".join(parts)
    return f'<svg role="img" aria-label="{text(title)}" width="100%" height="{bottom + 18}">{inside}</svg>'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names beside their colours (names in ``STYLE``), as HTML."""
    items = "".join(
        f'<li><span class="key" style="background: var(--{colour})"></span>{text(name)}</li>'
        for name, colour in entries
    )
    return f'<ul class="legend">{items}</ul>'


def clipped(name: str, most: int) -> str:
    """A name in no more than so many characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def picture(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """Parts as one image with a name."""
    return (
        f'<svg role="img" aria-label="{text(title)}" viewBox="0 0 {coordinate(width)} {coordinate(height)}" '
        f'width="{coordinate(width)}" height="{coordinate(height)}">{"".join(parts)}</svg>'
    )


def standalone(svg: str) -> str:
    """A picture as a file of its own: with its name space and its colours."""
    opened, rest = svg.split(">", 1)
    return f'{opened} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>{rest}\n'

"""The timeline of a run: a row per learner that shows what it did, and above them the rounds with their grace windows.

Decides how time becomes pixels. A run of any length is drawn in so many columns: each shows how the time that falls
into it was spent, from top to bottom, so that nothing is lost below a pixel, and equal neighbours become one mark. What
a learner did is ``stretches``'; how a chart looks is ``figures``'. ``timeline_svg`` is also for pictures outside a
report::

    svg = timeline_svg(read_timeline(events), title="K = 1 with grace")
    Path("timeline.svg").write_text(standalone(svg))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from unlockstep import tape as tapes
from unlockstep.core.events import (
    Event,
    FragmentCommitted,
    LossSpiked,
    RolledBack,
    RoundClosed,
    RoundOpened,
    RunFinishing,
    SyncerResumed,
)
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.report import figures
from unlockstep.report.figures import coordinate, text
from unlockstep.report.stretches import Attendance, Doing, Stretch
from unlockstep.report.tape_time import TapeTime
from unlockstep.tape import SYNCER, Tape

COLUMNS_MAX = 1200
"""A run is drawn in at most so many columns."""

CELLS_MAX = 36_000
"""Columns times rows; where there are many rows, columns are fewer."""

ROWS_MAX = 60
"""Learners drawn; of more, the first."""

MARKS_MAX = 400
"""Things that happened, drawn as a mark each; if there are more, those of single learners are left out."""

INCIDENTS_MAX = 60
"""Stretches of a row that say what they are when pointed at."""

SPANS_MAX = 400
"""Rounds drawn one by one; of more it is drawn how much of the time they were open."""

LANES_MAX = 6
"""The same for rounds side by side."""

LEVELS = 20
"""How finely a column tells shares apart."""

KINDS = ("computing", "slowed", "waiting", "recovering", "away", "down")
"""What a column shows, from bottom to top; names of colours."""

UNHEARD = "unheard"
"""A line above what a column shows: computing of which nobody heard until it was over; name of a colour."""

ROUND_KINDS = ("collecting", "grace", "merging")
"""Of a round: until its quorum is in, until it closes, until its version is durable; names of colours."""


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at one moment."""

    at_ns: int
    what: str
    learner: str = ""
    """Whose row it belongs to; empty: all of them."""


class Span(msgspec.Struct, frozen=True):
    """An incident of a learner, or of the syncer."""

    begin_ns: int
    end_ns: int
    what: str


class RoundSpan(msgspec.Struct, frozen=True):
    """One round, drawn by itself."""

    opened_ns: int
    quorum_ns: int
    """Its quorum was in, or it had closed without."""
    closed_ns: int
    durable_ns: int
    grace_until_ns: int
    """Until when it could have stayed open."""
    said: str


@dataclass(slots=True)
class Row:
    """Shares of time, by column."""

    columns: int
    spent_ns: dict[str, list[float]] = field(default_factory=dict)
    incidents: list[Span] = field(default_factory=list)

    def add(self, kind: str, begin: float, end: float, unit_ns: float) -> None:
        """A stretch between two places, in columns."""
        cells = self.spent_ns.get(kind)
        if cells is None:
            cells = self.spent_ns[kind] = [0.0] * self.columns
        begin, end = max(0.0, begin), min(float(self.columns), end)
        if end <= begin:
            return
        first, last = int(begin), min(int(end), self.columns - 1)
        if first == last:
            cells[first] += (end - begin) * unit_ns
            return
        cells[first] += (first + 1 - begin) * unit_ns
        for column in range(first + 1, last):
            cells[column] += unit_ns
        cells[last] += (end - last) * unit_ns


@dataclass(slots=True)
class Timeline:
    """A run, or a part of it, in columns."""

    zero_ns: int
    """What the axis calls 0 s."""
    begin_ns: int
    end_ns: int
    columns: int
    rows: dict[str, Row]
    """By learner, ascending."""
    left_out: int
    """Learners for whom there was no row."""
    rounds: Row
    spans: list[RoundSpan]
    """Rounds one by one, the first ``SPANS_MAX``."""
    rounds_seen: int
    marks: list[Mark]
    marks_left_out: int
    """Where there are too many, those of single learners."""
    syncer: Row

    @property
    def unit_ns(self) -> float:
        return max(1, self.end_ns - self.begin_ns) / self.columns


def read_timeline(
    events: Iterable[Event],
    *,
    begin_ns: int,
    end_ns: int,
    learners: Sequence[str],
    zero_ns: int | None = None,
    undisturbed_ns: Mapping[str, int] | None = None,
    tape: Tape | None = None,
    simulated: bool = True,
) -> Timeline:
    """What is to be drawn of a run, or of a part of it (``TimelineReader``)."""
    reader = TimelineReader(
        begin_ns=begin_ns,
        end_ns=end_ns,
        learners=learners,
        zero_ns=zero_ns,
        undisturbed_ns=undisturbed_ns,
        tape=tape,
        simulated=simulated,
    )
    for event in events:
        reader.see(event)
    return reader.timeline()


class TimelineReader:
    """Reads events of a run from its beginning, in the order they were logged.

    Args:
        begin_ns, end_ns: the part of the run that is drawn.
        learners: whose rows.
        zero_ns: what the axis calls 0 s; None: the beginning of the part.
        undisturbed_ns: how long a step of each takes undisturbed; what a step takes beyond that is drawn as
            ``slowed`` where it is as much again.
        tape: what was done to the run.
        simulated: whether its time was virtual.
    """

    def __init__(
        self,
        *,
        begin_ns: int,
        end_ns: int,
        learners: Sequence[str],
        zero_ns: int | None = None,
        undisturbed_ns: Mapping[str, int] | None = None,
        tape: Tape | None = None,
        simulated: bool = True,
    ) -> None:
        shown = list(learners)[:ROWS_MAX]
        columns = max(60, min(COLUMNS_MAX, CELLS_MAX // max(1, len(shown))))
        self._timeline = Timeline(
            zero_ns=begin_ns if zero_ns is None else zero_ns,
            begin_ns=begin_ns,
            end_ns=max(end_ns, begin_ns + 1),
            columns=columns,
            rows={name: Row(columns) for name in shown},
            left_out=len(learners) - len(shown),
            rounds=Row(columns),
            spans=[],
            rounds_seen=0,
            marks=[],
            marks_left_out=0,
            syncer=Row(columns),
        )
        self._undisturbed_ns = undisturbed_ns or {}
        self._tape = TapeTime(tape, simulated)
        self._attendance = Attendance(self._take, self._tape)
        self._opened: dict[int, int] = {}
        self._closed: dict[int, RoundClosed] = {}
        self._seen_ns = 0

    def see(self, event: Event) -> None:
        self._tape.see(event)
        self._attendance.see(event)
        match event:
            case RoundOpened():
                self._opened[event.round] = event.at_ns
            case RoundClosed():
                self._closed[event.round] = event
            case FragmentCommitted():
                self._round(event)
            case SyncerResumed():
                self._opened.clear()
                self._closed.clear()
                self._put(self._timeline.syncer, Doing.DOWN.value, self._seen_ns, event.at_ns, "no syncer")
                self._mark(event.at_ns, f"the syncer goes on, life {event.life}")
            case RolledBack():
                self._mark(event.at_ns, f"the run has gone back to record {event.record}")
            case LossSpiked():
                self._mark(event.at_ns, f"the validation loss has leapt to {figures.number(event.loss)}")
            case RunFinishing():
                self._mark(event.at_ns, f"the run begins to finish: {event.reason}")
        self._seen_ns = event.at_ns

    def timeline(self) -> Timeline:
        """There are no more events."""
        self._attendance.finish()
        for at_ns, action in self._tape.actions():
            learner = "" if action.target == SYNCER else action.target
            self._mark(at_ns, f"tape: {tapes.said(action)}", learner)
        timeline = self._timeline
        if len(timeline.marks) > MARKS_MAX:  # What happened to the run as a whole comes first.
            kept = [mark for mark in timeline.marks if not mark.learner][:MARKS_MAX]
            timeline.marks_left_out, timeline.marks = len(timeline.marks) - len(kept), kept
        timeline.marks.sort(key=lambda mark: mark.at_ns)
        return timeline

    def _mark(self, at_ns: int, what: str, learner: str = "") -> None:
        timeline = self._timeline
        if timeline.begin_ns <= at_ns <= timeline.end_ns:
            timeline.marks.append(Mark(at_ns, what, learner))

    def _take(self, stretch: Stretch) -> None:
        learner, doing, begin_ns, end_ns = stretch.learner, stretch.doing, stretch.begin_ns, stretch.end_ns
        row = self._timeline.rows.get(learner)
        if row is None:
            return
        if doing is not Doing.COMPUTING:
            said = "" if doing is Doing.WAITING else f"{learner}: {doing.value}"
            self._put(row, doing.value, begin_ns, end_ns, said)
            return
        if stretch.unheard:
            said = f"{learner}: computing; nobody heard of it until it was over"
            self._put(row, UNHEARD, begin_ns, end_ns, said)
        own_ns = self._undisturbed_ns.get(learner, 0)
        length_ns = end_ns - begin_ns
        if not own_ns or length_ns <= 2 * own_ns * stretch.steps:
            self._put(row, doing.value, begin_ns, end_ns, "")
        elif stretch.steps == 1:
            self._put(row, "slowed", begin_ns, end_ns - own_ns, f"{learner}: a step takes longer")
            self._put(row, doing.value, end_ns - own_ns, end_ns, "")
        else:  # When each of them was nobody knows: they are drawn side by side.
            part = own_ns * stretch.steps / length_ns
            self._put(row, "slowed", begin_ns, end_ns, f"{learner}: steps take longer", 1 - part)
            self._put(row, doing.value, begin_ns, end_ns, "", part)

    def _put(self, row: Row, kind: str, begin_ns: int, end_ns: int, said: str, part: float = 1.0) -> None:
        timeline, unit_ns = self._timeline, self._timeline.unit_ns
        begin, end = ((at_ns - timeline.begin_ns) / unit_ns for at_ns in (begin_ns, end_ns))
        row.add(kind, begin, end, unit_ns * part)
        if not said or begin_ns >= timeline.end_ns or end_ns <= timeline.begin_ns:
            return
        latest = row.incidents[-1] if row.incidents else None
        if latest is not None and latest.what == said and latest.end_ns == begin_ns:
            row.incidents[-1] = Span(latest.begin_ns, end_ns, said)
        elif len(row.incidents) < INCIDENTS_MAX and end_ns - begin_ns > unit_ns / 2:
            row.incidents.append(Span(begin_ns, end_ns, said))

    def _round(self, event: FragmentCommitted) -> None:
        opened_ns, closed = self._opened.pop(event.round, None), self._closed.pop(event.round, None)
        timeline = self._timeline
        if opened_ns is None or closed is None or opened_ns > timeline.end_ns or event.at_ns < timeline.begin_ns:
            return
        quorum_ns = min(opened_ns + closed.quorum_ns, closed.at_ns)
        for kind, begin_ns, end_ns in zip(
            ROUND_KINDS, (opened_ns, quorum_ns, closed.at_ns), (quorum_ns, closed.at_ns, event.at_ns), strict=True
        ):
            self._put(timeline.rounds, kind, begin_ns, end_ns, "")
        timeline.rounds_seen += 1
        if len(timeline.spans) < SPANS_MAX:
            said = (
                f"round {event.round}, fragment {event.fragment}, version {event.version}: "
                f"{len(closed.participants)} of {closed.live} live; {closed.sentence}"
            )
            grace_ns = max(closed.at_ns, quorum_ns + closed.grace_ns)
            timeline.spans.append(RoundSpan(opened_ns, quorum_ns, closed.at_ns, event.at_ns, grace_ns, said))


# ------------------------------------------------------------------------------------------------------- drawing

_LEFT, _WIDE, _RIGHT, _ROW, _LANE = 96, 1000, 8, 20, 8
"""Room for names; of the drawing; beside it; height of a row, and of a lane of rounds; px."""

UNHEARD_TALL = 3


def timeline_svg(timeline: Timeline, title: str, *, names: bool = True) -> str:
    """The picture.

    Args:
        timeline: what is drawn.
        title: for those who do not see it.
        names: beside their rows; else they are to be shown by ``names_svg``, so that they stay where they are while
            the drawing is scrolled.
    """
    left = _LEFT if names else 10
    width = left + _WIDE + _RIGHT
    places, height = _places(timeline)
    parts = [*(_names(timeline, places) if names else ())]

    def x(at_ns: float) -> float:
        share = (at_ns - timeline.begin_ns) / (timeline.end_ns - timeline.begin_ns)
        return left + min(1.0, max(0.0, share)) * _WIDE

    parts += _axis(timeline, x, left, height)
    parts += _round_parts(timeline, x, left, places["rounds"])
    parts += _row_parts(timeline.syncer, x, left, places["syncer"], 8, timeline.unit_ns)
    for name, row in timeline.rows.items():
        parts += _row_parts(row, x, left, places[f"row {name}"], _ROW - 5, timeline.unit_ns)
    for mark in timeline.marks:
        top = places.get(f"row {mark.learner}", 16.0) if mark.learner else 16.0
        long = _ROW - 3 if mark.learner else height - 34
        parts.append(
            f'<path class="mark rule" d="M{coordinate(x(mark.at_ns))} {coordinate(top - 1)}v{coordinate(long)}">'
            f"<title>{text(mark.what)}, at {_seconds(mark.at_ns - timeline.zero_ns)}</title></path>"
        )
    return figures.picture(title, width, height, parts)


def names_svg(timeline: Timeline) -> str:
    """The names of the rows alone."""
    places, height = _places(timeline)
    return figures.picture("Names of the rows", _LEFT, height, _names(timeline, places))


def _seconds(ns: float) -> str:
    return f"{ns / NANOSECONDS_PER_SECOND:.3f} s"


def _lanes(timeline: Timeline) -> list[list[RoundSpan]]:
    """Rounds one by one, side by side where they overlap; nothing if there are too many."""
    lanes: list[list[RoundSpan]] = []
    if timeline.rounds_seen > len(timeline.spans):
        return []
    for span in sorted(timeline.spans, key=lambda span: span.opened_ns):
        lane = next((lane for lane in lanes if lane[-1].durable_ns <= span.opened_ns), None)
        if lane is None:
            lanes.append(lane := [])
        lane.append(span)
    return lanes if len(lanes) <= LANES_MAX else []


def _places(timeline: Timeline) -> tuple[dict[str, float], float]:
    """Upper edge of every row, and the height of all; px."""
    places = {"rounds": 18.0}
    at = 18.0 + max(18, _LANE * len(_lanes(timeline))) + 6
    if timeline.syncer.incidents:
        places["syncer"] = at
        at += 14
    places.setdefault("syncer", at)
    for name in timeline.rows:
        places[f"row {name}"] = at
        at += _ROW
    return places, at + 34


def _names(timeline: Timeline, places: Mapping[str, float]) -> list[str]:
    said = [("rounds", places["rounds"] + 12)]
    if timeline.syncer.incidents:
        said.append(("syncer", places["syncer"] + 8))
    said += [(name, places[f"row {name}"] + 12) for name in timeline.rows]
    return [
        f'<text x="{_LEFT - 8}" y="{coordinate(y)}" text-anchor="end">{text(figures.clipped(name, 15))}'
        f"<title>{text(name)}</title></text>"
        for name, y in said
    ]


def _axis(timeline: Timeline, x: Callable[[float], float], left: float, height: float) -> list[str]:
    first_s, last_s = (
        (at_ns - timeline.zero_ns) / NANOSECONDS_PER_SECOND for at_ns in (timeline.begin_ns, timeline.end_ns)
    )
    bottom = height - 24
    parts = [f'<path class="axis" d="M{left} {coordinate(bottom)}h{_WIDE}"/>']
    for tick in figures.time_ticks(first_s, last_s, 8):
        at = coordinate(x(timeline.zero_ns + tick * NANOSECONDS_PER_SECOND))
        parts.append(f'<path class="grid" d="M{at} 14V{coordinate(bottom)}"/>')
        place = x(timeline.zero_ns + tick * NANOSECONDS_PER_SECOND)
        parts.append(figures.tick_text(place, bottom + 14, figures.duration_s(tick), left + _WIDE + _RIGHT))
    return parts


def _row_parts(
    row: Row, x: Callable[[float], float], left: float, top: float, tall: float, unit_ns: float
) -> list[str]:
    """One path a kind, made of rectangles; and what is said of incidents."""
    parts = []
    for kind, path in _paths(row, KINDS, left, top, tall, unit_ns):
        parts.append(f'<path class="mark" fill="var(--{kind})" d="{path}"><title>{kind}</title></path>')
    for _, path in _paths(row, (UNHEARD,), left, top - 2, UNHEARD_TALL, unit_ns):
        parts.append(f'<path class="mark" fill="var(--{UNHEARD})" d="{path}"/>')
    for span in row.incidents:
        begin, end = x(span.begin_ns), x(span.end_ns)
        said = text(f"{span.what}, {_seconds(span.end_ns - span.begin_ns)}")
        parts.append(
            f'<rect class="hit" x="{coordinate(begin)}" y="{coordinate(top)}" '
            f'width="{coordinate(max(1.0, end - begin))}" height="{tall}"><title>{said}</title></rect>'
        )
    return parts


def _paths(
    row: Row, kinds: Sequence[str], left: float, top: float, tall: float, unit_ns: float
) -> list[tuple[str, str]]:
    """Rectangles of each kind: neighbours that look alike are one. What is nothing of these is left blank."""
    wide = _WIDE / row.columns
    drawn: dict[str, list[str]] = {kind: [] for kind in kinds if kind in row.spent_ns}
    present = {kind: row.spent_ns[kind] for kind in drawn}
    first, before = 0, None
    for column in range(row.columns + 1):
        now = None
        if column < row.columns:
            whole = max(unit_ns, sum(cells[column] for cells in present.values()))
            now = tuple(round(cells[column] / whole * LEVELS) for cells in present.values())
        if now == before:
            continue
        if before is not None:
            at, levels = 0.0, max(LEVELS, sum(before))
            for kind, level in zip(present, before, strict=True):
                if level:
                    high = tall * level / levels
                    begin, y = coordinate(left + first * wide), coordinate(top + tall - at - high)
                    across = coordinate((column - first) * wide + 0.1)
                    drawn[kind].append(f"M{begin} {y}h{across}v{coordinate(high)}h-{across}z")
                    at += high
        first, before = column, now
    return [(kind, "".join(paths)) for kind, paths in drawn.items() if paths]


def _round_parts(timeline: Timeline, x: Callable[[float], float], left: float, top: float) -> list[str]:
    lanes = _lanes(timeline)
    if not lanes:
        return [
            f'<path class="mark" fill="var(--{kind})" d="{path}"><title>rounds: {kind}</title></path>'
            for kind, path in _paths(timeline.rounds, ROUND_KINDS, left, top, 16, timeline.unit_ns)
        ]
    parts = []
    for index, lane in enumerate(lanes):
        y, tall = top + index * _LANE, _LANE - 2
        for span in lane:
            edges = (span.opened_ns, span.quorum_ns, span.closed_ns, span.durable_ns)
            boxes = "".join(
                f'<rect class="mark" fill="var(--{kind})" x="{coordinate(x(begin))}" y="{coordinate(y)}" '
                f'width="{coordinate(max(0.4, x(end) - x(begin)))}" height="{tall}"/>'
                for kind, begin, end in zip(ROUND_KINDS, edges, edges[1:], strict=False)
                if end > begin
            )
            begin, end = x(span.quorum_ns), x(span.grace_until_ns)
            window = f'<path stroke="var(--grace)" d="M{coordinate(begin)} {coordinate(y + tall)}H{coordinate(end)}"/>'
            parts.append(f"<g>{boxes}{window}<title>{text(span.said)}</title></g>")
    return parts

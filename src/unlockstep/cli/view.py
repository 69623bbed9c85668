"""What a person sees while a run goes on: a picture that changes on a terminal, lines everywhere else.

Decides what is shown of a ``Status``, which changes are worth a line, and how the time left is estimated. Reads no
clock: the time comes with every call. Does not decide anything about the run.

``picture`` and ``news`` are pure functions; ``LiveView`` and ``PlainView`` put them on a console
(``launch.local.Watcher``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unlockstep.core.foreign_text import printable
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.status import EvaluationStatus, LearnerStatus, RoundStatus, Status
from unlockstep.core.words import counted, scaled
from unlockstep.launch.drill import progress
from unlockstep.launch.local import ENDING

NOTES_SHOWN = 5
LINE_EVERY_S = 5.0
"""Time between two lines about progress."""

ETA_SHARE_MIN = 0.02
ETA_ELAPSED_S_MIN = 3.0
"""The time left is said once so much of the run, and of time, has passed since the first step."""

WIDTH_FOR_UPLOADS = 90
"""Of a terminal that has room for what learners upload in, and how fast."""

SPARKS = "▁▂▃▄▅▆▇█"

_STATE_STYLES = {"live": "green", "joining": "yellow", "away": "red", "gone": "red", "quarantined": "bold red"}
_STATE_WORDS = {"joining": "loading", "live": "training", "away": "no connection"}


class Eta:
    """Estimates the time left: what is left of the run, at the mean pace since the first step.

    ::

        left = elapsed * (1 - share) / (share - share at the first step seen)

    Only one clock is used: the syncer's (``Status.at_ns``), or, where that is virtual, the one of whoever looks.
    Learners that are starting do not count: before the first step there is no estimate, and none until a little of the
    run is done.
    """

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def left_ns(self, status: Status, now_ns: int | None = None) -> int | None:
        """Nanoseconds until the end of the run, None if unknown. ``now_ns``: of whoever looks at a virtual run."""
        at_ns = status.at_ns if now_ns is None else now_ns
        share = progress(status)
        if self._first is None:
            if status.clock == 0 and status.ledger.trained == 0:
                return None
            self._first = at_ns, share
        if status.state in ENDING:
            return None
        elapsed_ns, done = at_ns - self._first[0], share - self._first[1]
        if done < ETA_SHARE_MIN or elapsed_ns < ETA_ELAPSED_S_MIN * NANOSECONDS_PER_SECOND:
            return None
        return round(elapsed_ns * (1 - share) / done)


# --------------------------------------------------------------------------------------------------- the picture


def picture(
    status: Status | None,
    *,
    title: str,
    names: Sequence[str],
    left_ns: int | None,
    elapsed_ns: int,
    notes: Iterable[str],
    width: int,
    virtual: bool = False,
) -> Group:
    """Everything there is to see at one moment.

    Args:
        status: of the run; None while the syncer starts.
        title: what is trained on what.
        names: of the learners there are to be.
        left_ns: estimate of the time left, if there is one.
        elapsed_ns: since the command was given.
        notes: the newest last.
        width: of the terminal, characters.
        virtual: the run's time is not that of whoever looks, and is shown too.
    """
    parts: list[RenderableType] = [Text(), _title(status, title, elapsed_ns, width)]
    if status is None:
        parts += [Text(), Text("  the syncer is starting", "dim")]
    else:
        parts += [Text(), _progress(status, left_ns, width), Text(), _learners(status, names, width), Text()]
        parts.append(_facts(status, width, virtual))
    listed = list(notes)[-NOTES_SHOWN:]
    if listed:
        parts += [Text(), *(Text(f"  {note}", "dim", overflow="ellipsis", no_wrap=True) for note in listed)]
    return Group(*parts)


def _title(status: Status | None, title: str, elapsed_ns: int, width: int) -> Table:
    line = Table.grid(expand=True)
    line.add_column(overflow="ellipsis", no_wrap=True)
    line.add_column(justify="right", no_wrap=True)
    name = "" if status is None else f" (run {status.run})"
    line.width = width
    line.add_row(Text.assemble(("unlockstep", "bold"), (f": {title}{name}", "")), Text(clock_time(elapsed_ns), "dim"))
    return line


def _progress(status: Status, left_ns: int | None, width: int) -> Table:
    share = progress(status)
    if status.state in ENDING:
        left = {"finishing": "last steps", "draining": "last rounds", "finished": "finished"}[status.state]
    elif left_ns is not None:
        left = f"{clock_time(left_ns)} left"
    else:
        left = "" if status.clock else "starting"
    line = Table.grid(padding=(0, 2))
    line.width = width
    for ratio in (None, 1, None, None, None):
        line.add_column(ratio=ratio, no_wrap=True)
    line.add_row(
        f"  {_steps(status)}",
        ProgressBar(1.0, share, complete_style="green", finished_style="green"),
        f"{share:4.0%}",
        counted(status.ledger.trained, "token"),
        Text(left, "bold"),
    )
    return line


def _steps(status: Status) -> str:
    if status.data is not None and status.data.epochs:
        return f"step {status.clock}, epoch {status.data.epoch:.2f} of {status.data.epochs}"
    ends_by_steps = status.steps_max and not status.tokens_max
    return f"step {status.clock} of {status.steps_max}" if ends_by_steps else f"step {status.clock}"


def _learners(status: Status, names: Sequence[str], width: int) -> Table:
    has_room = width >= WIDTH_FOR_UPLOADS
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    rows.add_column("  learner", no_wrap=True)
    rows.add_column("state", no_wrap=True, min_width=13)
    for heading in ("tokens/s", "loss", "clock", "last round", *(["upload"] * has_room)):
        rows.add_column(heading, justify="right", no_wrap=True, min_width=7)
    here = {learner.learner: learner for learner in status.learners}
    for name in sorted({*names, *here}):
        if name in here:
            row = _learner(here[name], _newest_round(status), status.state == "finished")
            rows.add_row(*row, *([_upload(here[name])] * has_room))
        else:
            rows.add_row(f"  {name}", Text("starting", "yellow"), *["-"] * (4 + has_room))
    return rows


def _learner(learner: LearnerStatus, newest_round: int | None, finished: bool) -> tuple[RenderableType, ...]:
    live = learner.state == "live"
    state = (
        Text("done")
        if finished
        else Text(_STATE_WORDS.get(learner.state, learner.state), _STATE_STYLES.get(learner.state, ""))
    )
    if learner.strikes:
        state.append(f" {learner.strikes} refused", "red")
    return (
        Text(f"  {learner.learner}"),
        state,
        f"{tokens_per_s(learner):,.0f}" if live and learner.step_ns else "-",
        f"{learner.loss:.3f}" if live and learner.loss is not None else "-",
        str(learner.clock) if learner.steps else "-",
        _last_round(learner, newest_round),
    )


def tokens_per_s(learner: LearnerStatus) -> float:
    """By its moving average of step times; 0 before there is one."""
    return learner.tokens_per_step * NANOSECONDS_PER_SECOND / learner.step_ns if learner.step_ns else 0.0


def _upload(learner: LearnerStatus) -> str:
    """The format of its contributions, and how fast its link is."""
    rate = learner.upload_bytes_per_s
    return learner.codec if rate is None else f"{learner.codec} {scaled(rate, 'B/s')}"


def _newest_round(status: Status) -> int | None:
    """The newest round that has been merged."""
    return max((member.last_round for member in status.learners if member.last_round is not None), default=None)


def _last_round(learner: LearnerStatus, newest: int | None) -> str:
    if learner.last_round is None or newest is None:
        return "-"
    behind = newest - learner.last_round
    return f"{learner.last_round}" if behind == 0 else f"{learner.last_round} (-{behind})"


def _facts(status: Status, width: int, virtual: bool) -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(no_wrap=True, overflow="ellipsis", max_width=max(20, width - 16))
    for collecting in status.rounds:
        facts.add_row("  round", round_line(collecting))
    if not status.rounds:
        facts.add_row("  round", _between_rounds(status))
    facts.add_row("  validation", _validation(status.evaluations, max(8, min(40, width - 50))))
    facts.add_row("  tokens", _tokens(status))
    if virtual:
        facts.add_row("  virtual time", clock_time(status.at_ns))
    return facts


def _between_rounds(status: Status) -> str:
    """What is said while no round is open: why the last one closed, and when the next one opens."""
    following = f"round {status.round_next.round} is due at step {status.round_next.due_clock}"
    closed = status.round_closed
    return (
        following if closed is None else f"{closed.round} (fragment {closed.fragment}) {closed.sentence}; {following}"
    )


def round_line(collecting: RoundStatus) -> str:
    """A round, and why it is open."""
    return f"{collecting.round} (fragment {collecting.fragment}): {collecting.sentence}"


def _validation(evaluations: Sequence[EvaluationStatus], width: int) -> str:
    if not evaluations:
        return "not yet"
    curve = sparkline([evaluation.nats_per_byte for evaluation in evaluations], width)
    return f"{curve} {loss_line(evaluations[-1])}"


def loss_line(evaluation: EvaluationStatus) -> str:
    """A validation loss, and when."""
    if evaluation.nats_per_byte is None:
        return f"not a number at step {evaluation.clock}"
    others = "".join(f", {printable(score.name)} {score.accuracy:.1%}" for score in evaluation.scores)
    return f"{evaluation.nats_per_byte:.3f} nats/byte{others} at step {evaluation.clock}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """One character per value, the largest the tallest; of more than ``width`` values, that many, evenly spread."""
    if len(values) > width:
        values = [values[round(index * (len(values) - 1) / (width - 1))] for index in range(width)]
    finite = [value for value in values if value is not None]
    if not finite:
        return "?" * len(values)
    low, high = min(finite), max(finite)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join("?" if value is None else SPARKS[round((value - low) * scale)] for value in values)


def _tokens(status: Status) -> str:
    ledger, rounds = status.ledger, counted(status.rounds_committed, "round")
    merged = ledger.merged + ledger.merged_late
    parts = [f"{merged / ledger.trained:.0%} merged in {rounds}" if ledger.trained else rounds]
    if status.participation is not None:
        parts.append(f"participation {status.participation:.0%}")
    parts.append(f"downtime {status.downtime_ns / NANOSECONDS_PER_SECOND:.1f} s")
    return ", ".join(parts)


def clock_time(ns: int) -> str:
    """``0:05``, ``12:34``, ``1:02:03``."""
    seconds = ns // NANOSECONDS_PER_SECOND
    minutes, hours = seconds // 60, seconds // 3600
    return f"{hours}:{minutes % 60:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"


# --------------------------------------------------------------------------------------------------- lines


def news(before: Status | None, after: Status) -> list[str]:
    """What has happened between two looks at a run, a line each."""
    lines: list[str] = []
    known = {} if before is None else {learner.learner: learner for learner in before.learners}
    for learner in after.learners:
        lines += _learner_news(known.get(learner.learner), learner, after)
    seen = 0 if before is None or not before.evaluations else before.evaluations[-1].at_ns
    for evaluation in after.evaluations:
        if evaluation.at_ns > seen:
            lines.append(f"validation loss {loss_line(evaluation)}")
    if before is not None and before.state != after.state:
        words = {"running": "every parameter is in place, training begins", "finishing": "the end is reached",
                 "draining": "the last rounds collect what is left", "finished": "the run is over"}  # fmt: skip
        lines += [words[after.state]] if after.state in words else []
    refused = sum(after.refusals.values()) - (0 if before is None else sum(before.refusals.values()))
    if refused > 0:
        reasons = ", ".join(f"{reason} {count}" for reason, count in after.refusals.items())
        lines.append(f"{counted(refused, 'more contribution')} refused (so far: {reasons})")
    return lines


def _learner_news(before: LearnerStatus | None, after: LearnerStatus, status: Status) -> list[str]:
    was, now = ("" if before is None else before.state), after.state
    restarted = before is not None and before.incarnation != after.incarnation
    if now == was and not restarted:
        return []
    name = after.learner
    if now == "joining":
        return [f"{name} is back and loads the parameters" if after.incarnation > 1 else f"{name} has joined"]
    if now == "live":
        loaded = f"{name} trains again, from version {max(status.versions, default=0)} on"
        return [loaded if after.incarnation > 1 else f"{name} trains"]
    if status.state in ENDING:
        return []
    words = {
        "away": "has lost its connection",
        "gone": "is counted no longer: its lease has ended or it has left",
        "quarantined": "is quarantined",
    }
    return [f"{name} {words.get(now, now)}"]


def progress_line(status: Status, left_ns: int | None, virtual: bool = False) -> str:
    """Where the run is, in one line; with its own time, if that is ``virtual``."""
    live = [learner for learner in status.learners if learner.state == "live"]
    losses = [m.loss for m in live if m.loss is not None]
    parts = [
        f"{_steps(status)} ({progress(status):.0%})",
        counted(status.ledger.trained, "token"),
        f"{len(live)} of {len(status.learners)} learners train",
        f"{sum(map(tokens_per_s, live)):,.0f} tokens/s",
    ]
    if losses:
        parts.append(f"loss {sum(losses) / len(losses):.3f}")
    if status.rounds:
        parts.append(f"round {round_line(status.rounds[-1])}")
    if virtual:
        parts.append(f"virtual time {clock_time(status.at_ns)}")
    if left_ns is not None:
        parts.append(f"{clock_time(left_ns)} left")
    return "; ".join(parts)


# --------------------------------------------------------------------------------------------------- on a console


class LiveView:
    """A picture, drawn anew whenever there is something new.

    Args:
        console: a terminal.
        names: of the learners there are to be.
        title: what is trained on what.
        virtual: the run's time is not that of the calls.
    """

    def __init__(self, console: Console, names: Sequence[str], title: str, virtual: bool = False) -> None:
        self._names = names
        self._title = title
        self._virtual = virtual
        self._notes: deque[str] = deque(maxlen=NOTES_SHOWN)
        self._status: Status | None = None
        self._eta = Eta()
        self._began_ns: int | None = None
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, status: Status, now_ns: int) -> None:
        """Draw a new status."""
        for line in news(self._status, status):
            self._add(line, now_ns)
        self._status = status
        self._draw(now_ns)

    def note(self, text: str, now_ns: int) -> None:
        """Add a line below."""
        self._add(text, now_ns)
        self._draw(now_ns)

    def _add(self, text: str, now_ns: int) -> None:
        self._notes.append(f"{clock_time(self._elapsed_ns(now_ns))}  {text}")

    def _elapsed_ns(self, now_ns: int) -> int:
        if self._began_ns is None:
            self._began_ns = now_ns
        return now_ns - self._began_ns

    def _draw(self, now_ns: int) -> None:
        status = self._status
        drawn = picture(
            status,
            title=self._title,
            names=self._names,
            left_ns=None if status is None else self._eta.left_ns(status, now_ns if self._virtual else None),
            elapsed_ns=self._elapsed_ns(now_ns),
            notes=self._notes,
            width=self._console.width,
            virtual=self._virtual,
        )
        self._live.update(drawn, refresh=True)


class PlainView:
    """A line for everything that matters, and one about progress every ``LINE_EVERY_S``.

    Args:
        console: anything that can be written to.
        names: of the learners there are to be.
        title: what is trained on what.
        virtual: the run's time is not that of the calls.
    """

    def __init__(self, console: Console, names: Sequence[str], title: str, virtual: bool = False) -> None:
        self._console = console
        self._opening = f"{title}, learners: {len(names)}"
        self._virtual = virtual
        self._status: Status | None = None
        self._eta = Eta()
        self._began_ns: int | None = None
        self._line_ns = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def show(self, status: Status, now_ns: int) -> None:
        """Say what is new, and from time to time where the run is."""
        for line in news(self._status, status):
            self.note(line, now_ns)
        self._status = status
        left_ns = self._eta.left_ns(status, now_ns if self._virtual else None)
        if status.clock and now_ns >= self._line_ns and status.state not in ENDING:
            self._line_ns = now_ns + int(LINE_EVERY_S * NANOSECONDS_PER_SECOND)
            self.note(progress_line(status, left_ns, self._virtual), now_ns)

    def note(self, text: str, now_ns: int) -> None:
        """Write a line."""
        if self._began_ns is None:
            self._began_ns = now_ns
            self._write(f"0:00  {self._opening}")
        self._write(f"{clock_time(now_ns - self._began_ns)}  {text}")

    def _write(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

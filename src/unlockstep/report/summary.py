"""The end of a run on one screen, and as one JSON object.

Decides which numbers a summary holds and how they look. What each of them means is in ``accounting``.
"""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from unlockstep.core.foreign_text import printable
from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.core.reasons import DepartureReason, Recovered
from unlockstep.core.status import LedgerStatus
from unlockstep.core.words import counted
from unlockstep.report.accounting import Accounting, LearnerAccount, Validation
from unlockstep.report.presence import Absence

SHARE_WORDS = {
    "merged": "merged",
    "merged_late": "merged late",
    "slowed": "slower steps",
    "waiting": "waiting",
    "recovering": "recovering",
    "away": "away",
    "down": "down",
    "refused": "refused",
    "overwritten": "overwritten",
    "dropped": "dropped",
    "lost": "lost",
    "in_flight": "in flight",
}
"""Parts of goodput and of what it lacks (``goodput.Shares``), for people."""


class Files(msgspec.Struct, frozen=True):
    """Where everything is."""

    config: str
    run_log: str
    logs: str | None
    """Of the processes, if they were started together."""
    summary: str | None
    """This, if it was written."""
    model: str | None
    """The final model, if it was written."""


class Summary(msgspec.Struct, frozen=True):
    """A run that is over, or as far as it went."""

    run: str
    ending: str
    """``finished``, ``stopped`` before its end, ``failed``, ``interrupted``, or ``unfinished``: it goes on,
    or was cut short."""
    sentence: str
    """Why it ended."""
    accounting: Accounting
    files: Files
    starting: tuple[str, ...] = ()
    """Learners that were starting again when it ended."""


def table(summary: Summary) -> Group:
    """The summary for a terminal."""
    accounting = summary.accounting
    last = {absence.learner: number for number, absence in enumerate(accounting.absences)}
    parts: list[RenderableType] = [
        Text(),
        _headline(summary),
        Text(),
        _indented(_facts(accounting)),
        Text(),
        _indented(_learners(accounting)),
        *(
            _indented(Text(_absence(absence, absence.learner in summary.starting, last[absence.learner] > number)))
            for number, absence in enumerate(accounting.absences)
            if not _is_farewell(absence)
        ),
        Text(),
        _indented(_files(summary.files)),
    ]
    return Group(*parts)


def plain(summary: Summary, width: int = 100) -> str:
    """The same as plain text, in lines of at most ``width`` characters."""
    out = StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(table(summary))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def duration(ns: int) -> str:
    """``0 s``, ``4.2 s``, ``1 min 24 s``, ``2 h 05 min``."""
    seconds = ns / NANOSECONDS_PER_SECOND
    if seconds < 0.05:
        return "0 s" if ns < NANOSECONDS_PER_SECOND // 2000 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole // 60 % 60:02d} min"


def _indented(part: Table | Text) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)


def _headline(summary: Summary) -> Text:
    accounting = summary.accounting
    early = dict.fromkeys(("stopped", "interrupted", "unfinished"), "bold yellow")
    style = {"finished": "bold green", **early}.get(summary.ending, "bold red")
    trained = f"{counted(accounting.clock, 'step')} and {counted(accounting.ledger.trained, 'token')}"
    ending = (f"{summary.run}: {summary.ending}", style)
    return Text.assemble(ending, f" after {trained} in {duration(accounting.duration_ns)}")


def _facts(accounting: Accounting) -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    facts.add_row("validation loss", _validation(accounting))
    facts.add_row("goodput", _goodput(accounting))
    facts.add_row("global downtime", duration(accounting.downtime_ns))
    if accounting.resumed:
        without_ns = accounting.without_syncer_ns
        # Before anybody had trained nobody missed it.
        gone = f", and was gone for {duration(without_ns)}" if without_ns else ""
        facts.add_row("syncer", f"went on {_times(accounting.resumed)} from what it had saved{gone}")
    if accounting.rolled_back:
        facts.add_row("parameters", f"went back {_times(accounting.rolled_back)} to an earlier state")
    facts.add_row("participation", _participation(accounting))
    facts.add_row("tokens", _tokens(accounting))
    if accounting.data is not None:
        facts.add_row("data", _data(accounting))
    if accounting.refusals:
        refusals = ", ".join(f"{reason} {count}" for reason, count in accounting.refusals.items())
        facts.add_row("refused", f"{refusals} (contributions)")
    if accounting.commit.count:
        commit = accounting.commit
        facts.add_row("merge", f"{duration(commit.median_ns)} per commit, {duration(commit.largest_ns)} at most")
    if accounting.open_by_reason:
        waits = (f"{count.count} {reason.replace('_', ' ')} after {duration(count.median_ns)}"
                 for reason, count in accounting.open_by_reason.items())  # fmt: skip
        facts.add_row("rounds closed", ", ".join(waits))
    return facts


def _goodput(accounting: Accounting) -> str:
    """And where the rest went, the larger parts first; what is less than a thousandth of the whole is left out."""
    if accounting.goodput is None:
        return "nobody has begun a step"
    shares = accounting.goodput.shares
    rest = {name: getattr(shares, name) for name in SHARE_WORDS if name not in ("merged", "merged_late")}
    parts = [f"{value:.1%} {SHARE_WORDS[name]}"
             for name, value in sorted(rest.items(), key=lambda part: -part[1]) if abs(value) >= 0.001]  # fmt: skip
    return f"{accounting.goodput.goodput:.1%} of what was possible" + (f"; {', '.join(parts)}" if parts else "")


def _validation(accounting: Accounting) -> str:
    if not accounting.evaluations:
        return "not measured"
    first, last = accounting.evaluations[0], accounting.evaluations[-1]
    return _loss(last) if first is last else f"{_loss(last)}, from {_loss(first)}"


def _loss(evaluation: Validation) -> str:
    if evaluation.nats_per_byte is None:
        return f"not a number at step {evaluation.clock}"
    others = "".join(f", {printable(score.name)} {score.accuracy:.1%}" for score in evaluation.scores)
    return f"{evaluation.nats_per_byte:.4f} nats/byte{others} at step {evaluation.clock}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _participation(accounting: Accounting) -> str:
    rounds = f"{counted(accounting.rounds_committed, 'round')} committed, {accounting.rounds_empty} empty"
    if accounting.participation is None:
        return rounds
    return f"{accounting.participation:.1%} of live learners per round; {rounds}"


CLASSES: tuple[tuple[str, Callable[[LedgerStatus], float]], ...] = (
    ("merged", lambda ledger: ledger.merged),
    ("merged late", lambda ledger: ledger.merged_late),
    ("refused", lambda ledger: sum(ledger.refused.values())),
    ("overwritten", lambda ledger: ledger.overwritten),
    ("dropped", lambda ledger: ledger.dropped),
    ("lost", lambda ledger: ledger.lost),
    ("in flight", lambda ledger: ledger.in_flight),
)
"""What can become of a token, and where the ledger says how many."""


def _tokens(accounting: Accounting) -> str:
    ledger = accounting.ledger
    shares = (f"{count(ledger) / ledger.trained:.2%} {name}" for name, count in CLASSES if count(ledger))
    listed = ", ".join(shares) if ledger.trained else "none trained"
    balance = "" if abs(accounting.balance) < 0.5 else f"; {accounting.balance:,.0f} were under way at the end"
    return listed + balance


def _data(accounting: Accounting) -> str:
    data = accounting.data
    assert data is not None, "asked for only if there is any"
    parts = [f"{data.granted:,} granted of {data.sequences:,} an epoch", f"{data.reached:,} in the model"]
    parts += [f"{count:,} {name}" for count, name in ((data.returned, "granted anew"), (data.repeated, "repeated"),
              (data.held, "held at the end"), (data.waiting, "not granted again")) if count]  # fmt: skip
    balance = f"; {accounting.data_balance} differ from the log" if accounting.data_balance else ""
    return f"{data.epoch:.2f} epochs: sequences {', '.join(parts)}{balance}"


def _learners(accounting: Accounting) -> Table:
    shown = [(name, count) for name, count in CLASSES if name == "merged" or count(accounting.ledger)]
    learners = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    learners.add_column("learner", no_wrap=True)
    leased = ("granted", "returned") if any(learner.data for learner in accounting.learners) else ()
    for heading in (
        "steps",
        "tokens",
        *leased,
        *(name for name, _ in shown),
        "took part",
        "largest gap",
        "others down",
    ):
        learners.add_column(heading, justify="right")
    for learner in accounting.learners:
        ledger = learner.ledger
        name = learner.learner if learner.starts == 1 else f"{learner.learner} (x{learner.starts})"
        learners.add_row(
            Text(printable(name)),
            f"{learner.steps:,}",
            f"{ledger.trained:,.0f}",
            *(_leased(learner) if leased else ()),
            *(_share(count(ledger), ledger.trained) for _, count in shown),
            "-" if learner.participation is None else f"{learner.participation:.1%}",
            *_gaps(learner),
        )
    return learners


def _leased(learner: LearnerAccount) -> tuple[str, str]:
    """Sequences."""
    data = learner.data
    return ("-", "-") if data is None else (f"{data.granted:,}", f"{data.returned:,}" if data.returned else "-")


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if part and whole else "-"


def _gaps(learner: LearnerAccount) -> tuple[str, str]:
    """Largest gap between inner steps over the median, in all and while another learner was down."""
    ratios = (learner.gap_ratio, learner.gap_ratio_others_down)
    shown = tuple("-" if ratio is None else f"{ratio:.1f}x" for ratio in ratios)
    return shown[0], shown[1]


def _is_farewell(absence: Absence) -> bool:
    """It left in order and for good, as when a run is interrupted: that is no incident."""
    return absence.reason is DepartureReason.LEFT and absence.joined_ns is None


_WAYS = {
    Recovered.DONOR: "with the state of another learner",
    Recovered.CHECKPOINT: "with its checkpoint",
    Recovered.SYNCER: "with the syncer's parameters alone",
}


def _absence(absence: Absence, starting: bool, goes_again: bool) -> str:
    learner = printable(absence.learner)
    if absence.joined_ns is None:
        end = "the run ended while it was starting again" if starting else "did not return"
        return f"{learner} went away and {end}"
    text = f"{learner} was away for {duration(absence.joined_ns - absence.gone_ns)}"
    if absence.contributed_ns is None:
        return f"{text} and {'went again before it contributed' if goes_again else 'contributed nothing after that'}"
    way = f", {_WAYS[absence.recovered]}" if absence.recovered in _WAYS else ""
    after = duration(absence.contributed_ns - absence.joined_ns)
    return f"{text}; it contributed again {after} after it had joined{way}"


def _files(files: Files) -> Table:
    listed = Table.grid(padding=(0, 2))
    listed.add_column(style="bold", no_wrap=True)
    listed.add_column(overflow="fold")
    for name, path in (
        ("model", files.model or "not written"),
        ("run log", files.run_log),
        ("configuration", files.config),
        ("summary", files.summary),
        ("logs", files.logs),
    ):
        if path is not None:
            listed.add_row(name, Text(path))  # No markup: a folder may be called [/red].
    return listed

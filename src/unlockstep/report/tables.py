"""The tables of the page of a run: its settings, its learners, its tokens, its rounds.

Part of the room ``report``. Decides their columns, and how much of a long run is listed.
"""

from __future__ import annotations

from collections.abc import Sequence

from unlockstep.report.figures import number, share, text
from unlockstep.report.presence import Absence
from unlockstep.report.run_view import RunView, seconds_from
from unlockstep.report.sheet import brief, table
from unlockstep.report.summary import CLASSES, duration

NAMED_MAX = 12
"""Weights of a round that are told."""

ROWS_MAX = 120
"""Rows of a table of learners."""


def first(shown: int, whole: int) -> str:
    return f" The first {shown:,} of {whole:,}." if shown < whole else ""


def learners_section(view: RunView) -> str:
    accounting = view.summary.accounting
    learners = accounting.learners[:ROWS_MAX]
    note = first(len(learners), len(accounting.learners))
    rows = [
        [
            learner.learner,
            f"{learner.starts:,}",
            f"{learner.steps:,}",
            number(learner.ledger.trained),
            share(learner.goodput.goodput if learner.goodput else None),
            f"{learner.rounds_merged:,} of {learner.rounds_live:,}",
            share(learner.participation),
            brief(learner.gap.median_ns),
            brief(learner.gap.largest_ns),
        ]
        for learner in learners
    ]
    heads = [
        "learner",
        "starts",
        "steps",
        "tokens",
        "goodput",
        "rounds",
        "participation",
        "median step",
        "longest step",
    ]
    listed = table(f"One row a learner.{note}", heads, rows)
    from_s = seconds_from(view)
    absences = [
        [
            absence.learner,
            f"{from_s(absence.gone_ns):.1f} s",
            _cause(absence),
            "never" if absence.joined_ns is None else duration(absence.joined_ns - absence.gone_ns),
            "–" if absence.live_ns is None or absence.joined_ns is None
            else duration(absence.live_ns - absence.joined_ns),
            "–" if absence.recovered is None else absence.recovered.value,
        ]
        for absence in accounting.absences[: ROWS_MAX]
    ]  # fmt: skip
    if not absences:
        return listed
    note = first(len(absences), len(accounting.absences))
    return listed + table(
        f"Who was gone.{note}",
        ["learner", "gone at", "because", "back after", "first step after that", "state from"],
        absences,
    )


def _cause(absence: Absence) -> str:
    """The syncer only knows that it heard nothing any more; the tape knows why."""
    if absence.killed:
        return "killed by the tape"
    return "lost its connection" if absence.reason is None else absence.reason.value.replace("_", " ")


def tokens_section(view: RunView) -> str:
    accounting = view.summary.accounting
    ledger = accounting.ledger
    rows = [
        [name, f"{count(ledger):,.0f}", share(count(ledger) / ledger.trained if ledger.trained else None)]
        for name, count in CLASSES
    ]
    rows.append(["trained", f"{ledger.trained:,.0f}", share(1.0 if ledger.trained else None)])
    books = table("What became of every token that was reported, mean over fragments.", ["", "tokens", "share"], rows)
    refused = [[reason.replace("_", " "), f"{count:,}", f"{ledger.refused.get(reason, 0):,.0f}"]
               for reason, count in accounting.refusals.items()]  # fmt: skip
    if refused:
        books += table("Contributions refused.", ["reason", "contributions", "tokens"], refused)
    return books + (
        '<p class="quiet">What a process trained while nobody could hear it, and did not live to report, nobody can '
        "count: it is in the time away.</p>"
    )


def settings_section(views: Sequence[RunView]) -> str:
    """How runs were set up, side by side; what differs between them is marked."""
    names = dict.fromkeys(name for view in views for name, _ in view.settings)
    if not names:
        return "<p>Nobody has said how this run was set up.</p>"
    each = [dict(view.settings) for view in views]
    rows = [[name, *(settings.get(name, "–") for settings in each)] for name in names]
    marked = [at for at, row in enumerate(rows) if len(set(row[1:])) > 1]
    caption = "The main settings; all of them are in the run's config.toml."
    heads = ["", ""] if len(views) == 1 else ["", *(view.label for view in views)]
    if marked:
        caption = "The main settings of each run; what differs is marked."
    return table(caption, heads, rows, words=range(len(views) + 1), marked=marked)


def rounds_section(view: RunView) -> str:
    rounds, from_s = view.rounds, seconds_from(view)
    if not rounds.rows:
        return "<p>No round has closed.</p>"
    heads = ("round", "fragment", "version", "opened", "open", "quorum", "grace granted", "commit", "took part",
             "weights", "tokens", "norm", "why it closed")  # fmt: skip

    def cell(value: float | None, shown: str) -> str:
        return f'<td data-value="{-1 if value is None else value}">{text(shown)}</td>'

    lines_ = []
    for row in rounds.rows:
        weights = " ".join(
            f"<span>{text(name)} {weight:.2f}</span>" for name, weight in list(row.weights.items())[:NAMED_MAX]
        )
        more = len(row.weights) - NAMED_MAX
        commit = "–" if row.commit_ns is None else brief(row.commit_ns)
        lines_.append(
            f'<tr><th scope="row" data-value="{row.round}">{row.round}</th>{cell(row.fragment, str(row.fragment))}'
            + cell(row.version, "empty" if row.version is None else str(row.version))
            + cell(row.opened_ns, f"{from_s(row.opened_ns):.2f} s")
            + cell(row.open_ns, brief(row.open_ns))
            + cell(row.quorum_ns, brief(row.quorum_ns))
            + cell(row.grace_ns, brief(row.grace_ns))
            + cell(row.commit_ns, commit)
            + cell(len(row.participants), f"{len(row.participants)} of {row.live}")
            + f'<td class="words">{weights}{f" and {more} more" if more > 0 else ""}</td>'
            + cell(row.tokens, f"{row.tokens:,}")
            + cell(row.norm, number(row.norm))
            + f'<td class="words">{text(row.reason)}: {text(row.sentence)}</td></tr>'
        )
    shown = len(rounds.rows)
    note = "Every round that has closed."
    if shown < rounds.seen:
        log = text(view.summary.files.run_log)
        note = f"The first and the last of {rounds.seen:,} rounds, {shown} in all; the others are in {log}."
    head = "".join(
        f'<th scope="col"{" class=name" if name in ("weights", "why it closed") else ""}>{text(name)}</th>'
        for name in heads
    )
    return (
        f'<p>{note}</p><div class="tall"><table class="rounds"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines_)}</tbody></table></div>"
    )

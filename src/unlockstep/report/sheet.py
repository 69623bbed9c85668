"""What a page is made of: the document itself, figures and tables with a sentence, and what the words mean.

Part of the room ``report``. Decides the HTML of these; what is in them is up to ``page`` and ``comparison``. All that
a log says is escaped where it becomes text; a content policy in the page keeps a browser from loading or running
anything else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence

from unlockstep.core.ids import NANOSECONDS_PER_SECOND
from unlockstep.report.figures import text
from unlockstep.report.style import PAGE_STYLE, SCRIPT
from unlockstep.report.summary import duration

DEFINITIONS = (
    ("Goodput", "Tokens that were merged, on time or late, over the tokens that all learners on the roster would have "
     "trained at their undisturbed speed. The rest is told apart without remainder: time in which less was trained "
     "(slower steps, waiting, recovering, away, down) and tokens that were trained and not merged (refused, "
     "overwritten, dropped, lost, in flight)."),
    ("Roster", "A learner is on it from its first step until it leaves in order, and again from its next join. Who was "
     "killed stays on it. With an event tape it is who is on the tape."),
    ("Undisturbed speed", "That of a learner's median step; or, if its steps on the whole were faster, theirs."),
    ("Slower steps, slowed", "Steps took longer than the median one; the timeline shows those that took more than "
     "twice as long. A process that was stopped is in such a step, and away once its lease is over."),
    ("Waiting", "In no step, and not known to be without a connection: for parameters, for data, for the end."),
    ("Recovering", "A new process had joined, and had not begun its first step."),
    ("Away", "Without a connection, and in no step that anybody ever heard of."),
    ("Down", "There was no process: from the last step it reported until the next one joined."),
    ("Merged late", "Merged in a later round: the contribution's own had closed, or had another one of its learner."),
    ("Refused", "Tokens of contributions that do not count; the page of a run lists the reasons."),
    ("Overwritten", "Trained, and replaced by a version that its learner adopted before it was handed over."),
    ("Dropped", "Given up by a learner that left in order, never delivered, or not merged when the run ended."),
    ("Lost", "With a learner that died or did not return, or with the syncer when it died."),
    ("In flight", "Trained, and neither merged nor known to be gone."),
    ("Uptime", "Share of the time since the first step in which at least one learner trained. Who trained on while its "
     "link was cut, or there was no syncer, did: that is known once it reports again."),
    ("Live", "Of a learner: it holds a lease, is connected and has taken a step since it joined."),
    ("Participation", "Contributions in a round over live learners, mean over rounds."),
    ("Fragment", "A part of the parameters that is merged, sent and adopted as one piece."),
    ("Round", "One collection of contributions for one commit of one fragment."),
    ("Contribution", "What one learner has trained of a fragment, for one round."),
    ("Quorum", "Contributions a round needs before it may close."),
    ("Grace window", "How long a round may stay open after its quorum is in."),
    ("Version", "How many commits a fragment has had."),
    ("Staleness", "Versions of a fragment committed between the one a contribution started from and its arrival."),
    ("Donor", "A learner whose parameters and inner optimizer a new process has taken."),
    ("nats/byte", "Loss of the global model on text that nobody trained on, per byte of that text; 0.693 of it "
     "(ln 2) is one bit."),
)  # fmt: skip


def document(title: str, head: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """A whole page: what comes first, then sections (anchor, heading, content)."""
    links = "".join(f'<a href="#{anchor}">{text(heading)}</a>' for anchor, heading, _ in sections)
    body = "".join(
        f'<section id="{anchor}"><h2>{text(heading)}</h2>{inside}</section>' for anchor, heading, inside in sections
    )
    # Styles inline: keys in legends have a colour of their own.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {_source(SCRIPT)}; img-src data:"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<title>{text(title)}</title><link rel="icon" href="data:,"><style>{PAGE_STYLE}</style></head>'
        f'<body><header>{head}<nav aria-label="Sections">{links}</nav></header><main>{body}</main>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _source(inline: str) -> str:
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def figure(caption: str, inside: str, kind: str = "") -> str:
    """A chart with a sentence."""
    return f'<figure class="{kind}"><figcaption>{text(caption)}</figcaption>{inside}</figure>'


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: Sequence[int] = (0,),
    marked: Sequence[int] = (),
) -> str:
    """A table whose cells are text; the columns ``words`` are aligned to the left, the rows ``marked`` stand out."""

    def cells(row: Sequence[str]) -> str:
        first = f'<th scope="row" class="name">{text(row[0])}</th>'
        return first + "".join(
            f'<td class="words">{text(cell)}</td>' if at in words else f"<td>{text(cell)}</td>"
            for at, cell in enumerate(row[1:], start=1)
        )

    head = "".join(
        f'<th scope="col"{" class=name" if at in words else ""}>{text(name)}</th>' for at, name in enumerate(heads)
    )
    body = "".join(f"<tr{' class=marked' if at in marked else ''}>{cells(row)}</tr>" for at, row in enumerate(rows))
    return (
        f'<div class="scroll"><table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def brief(ns: int) -> str:
    """Of something that often takes less than a second: ``12 ms``, ``0.85 s``, else as any duration."""
    seconds = ns / NANOSECONDS_PER_SECOND
    if seconds >= 10 or ns == 0:
        return duration(ns)
    return f"{seconds * 1000:.3g} ms" if seconds < 0.5 else f"{seconds:.2f} s"


def definitions() -> str:
    """What the words mean that stand on pages."""
    listed = "".join(f"<dt>{text(word)}</dt><dd>{text(meaning)}</dd>" for word, meaning in DEFINITIONS)
    return f'<dl class="words-list">{listed}</dl>'

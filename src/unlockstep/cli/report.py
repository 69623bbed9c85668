"""``unlockstep report``: what runs amounted to, or have so far, and whether they kept the rules; from their folders.

Decides what is printed, what is written by itself and what on request, and the exit code. Which files of a run are read
is ``report_run``'s, the numbers are ``report``'s, the rules are ``checkers``'.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from unlockstep.checkers import Violation
    from unlockstep.cli.report_run import FoundRun
    from unlockstep.core.events import Event
    from unlockstep.core.options import ProtocolOptions
    from unlockstep.report.summary import Summary
    from unlockstep.runlog import Events

TIMER_NS_MAX = 1_000_000_000
"""How late the host of a real syncer may be for a deadline: it may have been busy. The log shows up to 20 ms."""

VIOLATIONS_SHOWN_MAX = 20


def report(
    runs: Annotated[list[Path], typer.Argument(help="A run folder, or the run.jsonl in it.", metavar="RUN...")],
    check: Annotated[bool, typer.Option("--check", help="Check every rule; exit code 1 if one is broken.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; then a page is written with --html alone.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Where the page goes. [default: report.html in the run folder; of several runs, here]"),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the run as a trace (.json) for ui.perfetto.dev.", metavar="FILE")
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(help="Write scalars for TensorBoard; needs the extra tensorboard.", metavar="DIR"),
    ] = None,
) -> None:
    """Sum up runs, over or not, and write a page of them. Check that they kept the protocol's rules."""
    from unlockstep.cli.exits import RunFailed
    from unlockstep.cli.output import print_json, wide_console
    from unlockstep.cli.report_files import Reported, check_targets, labels_of
    from unlockstep.cli.report_run import find_run, missing_end, sum_up
    from unlockstep.core.errors import UsageError

    if trace is not None and len(runs) > 1:
        raise UsageError(f"--trace {trace} is of one run, and {len(runs)} are given; name one")
    found = [find_run(run) for run in runs]
    page = _page_place(found, html, as_json)
    targets = {"the page" if html is None else "--html": page, "--trace": trace, "--tensorboard": tensorboard}
    check_targets([one.events.path for one in found], targets)
    for one in found if check else ():
        _require_beginning(one)
    console = wide_console(stderr=as_json)
    records, reported, broken, cut, rules = [], [], set[str](), list[str](), 0
    for one, label in zip(found, labels_of([one.folder for one in found]), strict=True):
        checks = _check(one.events, one.config.protocol) if check else None
        summed = sum_up(one)
        if summed is None and not check:
            raise UsageError(f"{one.events.path} contradicts itself and cannot be summed up; --check says where")
        summary = None if summed is None else summed[0]
        if summed is not None:
            reported.append(Reported(one, *summed))
        missing = missing_end(one)
        cut += [] if missing is None else [missing]
        if as_json:
            records.append(_record(one, summary, checks))
        else:
            _show(console, one, summary, missing, label if len(found) > 1 else "")
            if checks is not None:
                _show_checks(console, checks)
        rules = len(checks or ())
        broken |= {rule for rule, violations in (checks or {}).items() if violations}
    if as_json:
        print_json(records[0] if len(records) == 1 else {"runs": records})
    _write(console, reported, page, html is not None, trace, tensorboard, as_json)
    if broken:
        names = ", ".join(rule for rule in sorted(broken))
        raise RunFailed(f"the run{' breaks' if len(runs) == 1 else 's break'} {len(broken)} of {rules} rules: {names}")
    if check and cut:
        raise UsageError(f"{cut[0]}, to have that checked, too")


def _page_place(found: Sequence[FoundRun], html: Path | None, as_json: bool) -> Path | None:
    """Where the page goes, wanted or by itself; None: there is none."""
    from unlockstep.cli.report_files import PAGE_FILE

    if html is not None or as_json:
        return html
    return found[0].folder / PAGE_FILE if len(found) == 1 else Path(PAGE_FILE)


def _require_beginning(found: FoundRun) -> None:
    """A log can be checked from the beginning of the run alone."""
    from unlockstep.core.errors import UsageError

    if found.header.continues is not None:
        raise UsageError(
            f"{found.events.path} begins in the middle of the run, and its beginning is with the syncer that led "
            f"before; to have it checked, call it {_own_name(found.events)} and put {found.header.continues.file} of "
            "that one beside it"
        )


def _write(
    console: Console,
    runs: list[Any],
    page: Path | None,
    is_wanted: bool,
    trace: Path | None,
    tensorboard: Path | None,
    as_json: bool,
) -> None:
    """What is wanted; that the page nobody asked for cannot be written is no failure."""
    from unlockstep.cli.report_files import write_page, write_scalars, write_trace
    from unlockstep.core.errors import UsageError

    def tell(what: str) -> None:
        if not as_json:
            console.print(f"  {what}", markup=False, highlight=False, soft_wrap=True)

    if not runs:
        return
    if page is not None:
        try:
            write_page(runs, page)
            tell(f"page written: {page}")
        except UsageError as error:
            if is_wanted:
                raise
            tell(str(error))
    if trace is not None:
        write_trace(runs[0], trace)
        tell(f"trace written: {trace} (open it at https://ui.perfetto.dev)")
    if tensorboard is not None:
        write_scalars(runs, tensorboard)
        tell(f"scalars written: {tensorboard}")


def _own_name(events: Events) -> str:
    """Of a log that goes on where another syncer's left off, if it were beside that."""
    from unlockstep.core.events import SyncerResumed
    from unlockstep.runlog import part_path

    life = next((event.life for event in events if isinstance(event, SyncerResumed)), 2)
    return part_path(events.path, life, 1).name


def _check(events: Iterable[Event], options: ProtocolOptions) -> dict[str, list[Violation]]:
    """Every rule, and what breaks it."""
    from unlockstep.checkers import RULES
    from unlockstep.checkers import check as find

    checks: dict[str, list[Violation]] = {rule: [] for rule in RULES}
    for found in find(events, options, timer_ns=TIMER_NS_MAX, transfer_ns=_transfer_ns(events, options)):
        checks[found.rule].append(found)
    return checks


def _transfer_ns(events: Iterable[Event], options: ProtocolOptions) -> int:
    """How long the network and the disk of this run take at most: a lease, or what the log shows. (The longest commit,
    and the longest time from the opening of a round to a contribution for it.)"""
    from unlockstep.core.events import ContributionAccepted, FragmentCommitted, RoundOpened

    longest_ns = options.lease_ns
    opened_ns: dict[int, int] = {}
    for event in events:
        match event:
            case RoundOpened():
                opened_ns[event.round] = event.at_ns
            case ContributionAccepted():
                longest_ns = max(longest_ns, event.at_ns - opened_ns.get(event.round, event.at_ns))
            case FragmentCommitted():
                longest_ns = max(longest_ns, event.commit_ns)
    return longest_ns


def _record(found: FoundRun, summary: Summary | None, checks: dict[str, list[Violation]] | None) -> dict[str, Any]:
    import msgspec

    record = {"run": found.header.run} if summary is None else msgspec.to_builtins(summary)
    return record if checks is None else {**record, "checks": checks}


def _show(console: Console, found: FoundRun, summary: Summary | None, missing: str | None, label: str) -> None:
    """A label, where there are several runs: they may all have one name."""
    from unlockstep.core.foreign_text import printable
    from unlockstep.report.summary import table

    if label:
        console.print(f"\n{printable(label)}", style="bold", markup=False, highlight=False, soft_wrap=True)
    if summary is None:
        console.print(f"{found.events.path} contradicts itself: it cannot be summed up", markup=False)
        return
    console.print(table(summary))
    if found.header.continues is not None:
        console.print("  The log begins in the middle of the run: what came before is not counted.", markup=False)
    if found.events.torn_bytes:
        console.print("  The last line of the run log was cut short and counts for nothing.", markup=False)
    if missing is not None:
        console.print(f"  The end of the log is not there: {missing}.", markup=False, highlight=False, soft_wrap=True)


def _show_checks(console: Console, checks: dict[str, list[Violation]]) -> None:
    from rich.padding import Padding
    from rich.table import Table

    from unlockstep.checkers import RULES
    from unlockstep.core.ids import seconds

    rules = Table.grid(padding=(0, 2))
    for style in ("bold", None, "dim"):
        rules.add_column(style=style)
    for rule, found in checks.items():
        rules.add_row(rule, "[red]broken[/]" if found else "[green]kept[/]", RULES[rule])
    console.print()
    console.print(Padding(rules, (0, 0, 0, 2), expand=False))
    everything = sorted((each for found in checks.values() for each in found), key=lambda each: each.at_ns)
    if everything:
        console.print()
    for each in everything[:VIOLATIONS_SHOWN_MAX]:
        console.print(f"  {each.rule}, at {seconds(each.at_ns)}: {each.sentence}", markup=False, highlight=False)
    if len(everything) > VIOLATIONS_SHOWN_MAX:
        console.print(f"  and {len(everything) - VIOLATIONS_SHOWN_MAX} more")

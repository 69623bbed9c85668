"""``unlockstep report``: what a run amounted to, or has so far, and whether it kept the rules; from its folder alone.

Decides which files are read, what is said of a log that is cut short or contradicts itself, and the exit code. The
numbers are ``report``'s, the rules are ``checkers``'.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from unlockstep.checkers import Violation
    from unlockstep.config import RunConfig
    from unlockstep.core.events import Event
    from unlockstep.core.options import ProtocolOptions
    from unlockstep.report.accounting import Accounting
    from unlockstep.report.summary import Files, Summary
    from unlockstep.runlog import Events, Header

TIMER_NS_MAX = 1_000_000_000
"""How late the host of a real syncer may be for a deadline: it may have been busy. The log shows up to 20 ms."""

VIOLATIONS_SHOWN_MAX = 20


def report(
    run: Annotated[Path, typer.Argument(help="A run folder, or the run.jsonl in it.", metavar="RUN")],
    check: Annotated[bool, typer.Option("--check", help="Check every rule; exit code 1 if one is broken.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Sum up a run, over or not. Check that it kept the protocol's rules."""
    from unlockstep.cli.exits import RunFailed
    from unlockstep.cli.output import print_json, wide_console
    from unlockstep.core.errors import UsageError

    folder, header, events, config = _open(run)
    options = config.protocol
    if check and header.continues is not None:
        raise UsageError(
            f"{events.path} begins in the middle of the run, and its beginning is with the syncer that led before; to "
            f"have it checked, call it {_own_name(events)} and put {header.continues.file} of that one beside it"
        )
    checks = _check(events, options) if check else None
    summary = _summarise(folder, header, events, config, is_checked=check)
    console = wide_console(stderr=as_json)
    if as_json:
        print_json(_record(header, summary, checks))
    else:
        _show(console, header, events, summary)
    if checks is None:
        return
    broken = [rule for rule, found in checks.items() if found]
    if not as_json:
        _show_checks(console, checks)
    if broken:
        raise RunFailed(f"the run breaks {len(broken)} of {len(checks)} rules: {', '.join(broken)}")


def _own_name(events: Events) -> str:
    """Of a log that goes on where another syncer's left off, if it were beside that."""
    from unlockstep.core.events import SyncerResumed
    from unlockstep.runlog import part_path

    life = next((event.life for event in events if isinstance(event, SyncerResumed)), 2)
    return part_path(events.path, life, 1).name


def _open(run: Path) -> tuple[Path, Header, Events, RunConfig]:
    """Folder, log and settings of a run.

    Raises:
        UsageError: one of its files is not there, cannot be read, or is another run's.
    """
    from unlockstep import config as run_config
    from unlockstep import runlog
    from unlockstep.cli.run_folder import CONFIG_FILE, RUN_LOG_FILE
    from unlockstep.core.errors import UsageError

    folder, log_file = (run, run / RUN_LOG_FILE) if run.is_dir() else (run.parent, run)
    if not log_file.is_file():
        raise UsageError(f"there is no run log {log_file}; give the folder of a run, or the {RUN_LOG_FILE} in it")
    header, events = runlog.read(log_file)
    config_file = folder / CONFIG_FILE
    if not config_file.is_file():
        raise UsageError(
            f"there is no {config_file}, and without the run's settings its log cannot be judged; restore it"
        )
    config = run_config.load(config_file)
    if run_config.digest(config) != header.config_digest:
        raise UsageError(f"{config_file} is not the configuration that {log_file} was written under; restore it")
    return folder, header, events, config


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


def _summarise(folder: Path, header: Header, events: Events, config: RunConfig, is_checked: bool) -> Summary | None:
    """What the run amounts to; None if its log contradicts itself so badly that nobody can tell.

    Raises:
        UsageError: the same, if nobody has asked what is wrong with it.
    """
    from unlockstep.core.errors import UsageError
    from unlockstep.report.accounting import account
    from unlockstep.report.summary import Summary

    try:
        accounting = account(events, config.protocol)
    except LookupError:
        if not is_checked:
            raise UsageError(f"{events.path} contradicts itself and cannot be summed up; --check says where") from None
        return None
    ending, sentence = _ending(folder, accounting, config)
    return Summary(header.run, ending, sentence, accounting, _files(folder, events.path))


def _ending(folder: Path, accounting: Accounting, config: RunConfig) -> tuple[str, str]:
    """How the run ended, and why: in the words of whoever watched it, or as the log has it."""
    import msgspec

    from unlockstep.cli.train import SUMMARY_FILE

    class Told(msgspec.Struct):
        ending: str
        sentence: str

    try:
        told = msgspec.json.decode((folder / SUMMARY_FILE).read_bytes(), type=Told)
        return told.ending, told.sentence
    except (OSError, msgspec.DecodeError):
        pass
    if accounting.ended and (stopped := stopped_early(accounting, config)) is not None:
        return "stopped", stopped
    if accounting.ended:
        return "finished", "the run has finished"
    return "unfinished", "its log ends before the run does: it goes on, or was cut short"


def stopped_early(accounting: Accounting, config: RunConfig) -> str | None:
    """A sentence, if the run had not come as far as its settings say; None: it had, or that cannot be told."""
    from unlockstep.core.run_states import how_ended

    steps_max, tokens_max = config.run.steps, config.run.tokens
    if tokens_max:
        trained = round(accounting.ledger.trained)
        return f"the run was stopped at {trained} of {tokens_max} tokens" if trained < tokens_max else None
    if config.data.epochs or 0 < steps_max <= accounting.clock:
        return None
    return how_ended(True, accounting.clock, steps_max)


def _files(folder: Path, log_file: Path) -> Files:
    from unlockstep.cli.run_folder import CONFIG_FILE, MODEL_FOLDER
    from unlockstep.cli.train import LOG_FOLDER, SUMMARY_FILE
    from unlockstep.report.summary import Files

    def there(name: str) -> str | None:
        return str(folder / name) if (folder / name).exists() else None

    return Files(
        config=str(folder / CONFIG_FILE),
        run_log=str(log_file),
        logs=there(LOG_FOLDER),
        summary=there(SUMMARY_FILE),
        model=there(MODEL_FOLDER),
    )


def _record(header: Header, summary: Summary | None, checks: dict[str, list[Violation]] | None) -> dict[str, Any]:
    import msgspec

    record = {"run": header.run} if summary is None else msgspec.to_builtins(summary)
    return record if checks is None else {**record, "checks": checks}


def _show(console: Console, header: Header, events: Events, summary: Summary | None) -> None:
    from unlockstep.report.summary import table

    if summary is None:
        console.print(f"{events.path} contradicts itself: it cannot be summed up", markup=False)
        return
    console.print(table(summary))
    if header.continues is not None:
        console.print("  The log begins in the middle of the run: what came before is not counted.", markup=False)
    if events.torn_bytes:
        console.print("  The last line of the run log was cut short and counts for nothing.", markup=False)


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

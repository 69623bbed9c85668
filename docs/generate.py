"""The parts of the documents that the code knows better: tables and state diagrams, read from it and written into them.

::

    python docs/generate.py            writes every block anew; a test fails while one is out of step

A block begins with ``<!-- generated: NAME -->`` and ends with ``<!-- end -->``. Decides how a block is read from the
code and what it looks like. What stands around it is written by hand. Texts are the code's own docstrings; a name that
explains itself has none there, and the documents say a little more than the code must: those words are in ``WORDS``.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

import measure  # beside this file
import msgspec
import results  # beside this file

from unlockstep import checkers, config, tape
from unlockstep.core import (
    events,
    ids,
    learner,
    membership,
    messages,
    options,
    reasons,
    shapes,
    sync_round,
    syncer,
    window,
)
from unlockstep.core.status import LedgerStatus, Status
from unlockstep.net.access import roles
from unlockstep.net.bulk import carriage, channel, client, downloading, streams
from unlockstep.net.clients import learner as learner_client
from unlockstep.net.syncer import holds, metrics, service
from unlockstep.net.wire import api, packing, timeouts
from unlockstep.sim.fleet import YEAR_S, Fleet

DOCS = Path(__file__).resolve().parent
IMPORT_TABLE = DOCS.parent / "tests" / "architecture" / "test_imports.py"

_BLOCK = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)

WORDS = {
    # settings
    "run.name": "Name of the run; part of its address.",
    "run.seed": "Seed of the initial parameters and of the order of the data.",
    "data.sequence_length": "Inputs per training sequence, tokens.",
    "data.validation_share": "Share of the tokens kept for validation.",
    "inner.learning_rate": "Peak rate.",
    "inner.beta1": "AdamW.",
    "inner.beta2": "AdamW.",
    "inner.weight_decay": "Of matrices; vectors and scalars do not decay.",
    "inner.warmup_steps": "Length of the linear warm-up, in steps of the learner's clock; for a process that starts "
    "later once more, over its own first steps.",
    "inner.final_share": "Where the cosine ends, as a share of the peak.",
    "inner.batch_size": "Sequences per micro-batch.",
    "outer.optimizer": "`nesterov` or `sgd`.",
    "outer.learning_rate": "Outer rate.",
    "outer.momentum": "Of `nesterov`.",
    "outer.merge": "How tensors that are neither embeddings nor buffers are merged.",
    "adoption.mode": "See [protocol.md](protocol.md#adoption).",
    "protocol.participation": "See [protocol.md](protocol.md#who-is-asked).",
    "protocol.late": "See [protocol.md](protocol.md#late-contributions).",
    "protocol.anchor": "See [numerics.md](numerics.md#outer-gradient).",
    "limits.tokens_per_step_max": "A contribution with more tokens per step is refused.",
    "evaluation.batches": "Fixed validation batches per evaluation.",
    "evaluation.batch_size": "Sequences in each.",
    "local.learners": "Learner processes.",
    "local.evaluator": "Whether an evaluator is started.",
    # events
    "LearnerJoined": "A process became a member, or took up its membership again.",
    "JoinWasRefused": "A process was turned away; `detail` is the sentence it was told.",
    "LearnerDeparted": "A learner holds no lease any more.",
    "StepReported": "An inner step is done. `clock` is the learner's.",
    "RoundOpened": "A round collects; `asked` are those asked at once.",
    "ContributionAccepted": "An upload is kept until its round commits.",
    "ContributionRefused": "An upload does not count.",
    "RoundClosed": "A round takes nothing more; `sentence` says why.",
    "FragmentCommitted": "A fragment has a new version, and everybody was told.",
    "FragmentAdopted": "A learner took a version, between two inner steps.",
    "EvaluationReported": "An evaluator's result.",
    "RunFinished": "The end. What follows are evaluations of the last versions, and connections that close.",
    # messages
    "JoinRefused": "The process may not take part; `detail` is for a person.",
    # reasons
    "protocol_version": "Learner and syncer are of different versions.",
    "bad_name": "The name cannot be part of an address.",
    "layout_mismatch": "Its tensors, or how it cuts them, are not the run's.",
    "JoinRefusal.run_finished": "The run takes no more steps.",
    "JoinRefusal.quarantined": "It was shut out before.",
    "too_many_learners": "`protocol.learners_max` are present.",
    "JoinRefusal.superseded": "Another process has joined under the name since.",
    "unknown_process": "It has taken part before, but in nothing this syncer knows of: the syncer was started anew.",
    "data_mismatch": "Its corpus is another one than the run's, or is cut otherwise.",
    "waiting_for_quorum": "Open: fewer than K contributions are in.",
    "waiting_for_the_last": "Open: the run ends, and the round waits for everyone it has asked, quorum or not.",
    "waiting_in_grace": "Open: the quorum is in, others may still arrive in time.",
    "everyone_in": "Closes: everybody it waits for has answered.",
    "grace_ended": "Closes: the grace window is over.",
    "no_grace": "Closes: there was no slack to wait.",
    "nobody_left": "Open: no learner is alive.",
}


# ------------------------------------------------------------------------------------------- reading the code


class Field(NamedTuple):
    """A field of a record, or a constant of a module."""

    name: str
    annotation: str
    text: str
    """What the code says of it, on one line; empty if nothing."""


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _fields(body: list[ast.stmt]) -> list[Field]:
    """Assignments, each with the string that follows it."""
    found: list[Field] = []
    names: list[str] = []
    last_line = 0
    for statement in body:
        text = _constant_text(statement)
        if text and names:
            found = [f._replace(text=text) if f.name in names and not f.text else f for f in found]
            names = []
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names = [statement.target.id]
            found.append(Field(statement.target.id, ast.unparse(statement.annotation), ""))
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            # Constants under one docstring stand directly below one another.
            adjacent = names and statement.lineno == last_line + 1
            names = [*(names if adjacent else []), statement.targets[0].id]
            found.append(Field(statement.targets[0].id, "", ""))
        else:
            names = []
        last_line = statement.end_lineno or 0
    return found


def _constant_text(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return _one_line(str(statement.value.value))
    return ""


def _one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _class(kind: type) -> ast.ClassDef:
    tree = _tree(sys.modules[kind.__module__])
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


def _record(kind: type) -> tuple[str, list[Field]]:
    """What a record is for, and its fields with those it inherits."""
    node = _class(kind)
    inherited = [f for base in kind.__bases__ if base.__module__ == kind.__module__ for f in _record(base)[1]]
    return _one_line(ast.get_docstring(node) or ""), inherited + _fields(node.body)


def _said(own: str, key: str) -> str:
    """The code's words, or those in ``WORDS``; never both, so that there is one place to change."""
    if bool(own) == (key in WORDS):
        raise KeyError(f"{key} is explained {'twice' if own else 'nowhere'}: in its docstring or in WORDS")
    return own or WORDS[key]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


# ------------------------------------------------------------------------------------------- the blocks


def diagram(moves: Mapping[Any, Mapping[Any, Any]], start: Enum) -> str:
    """A table of legal moves, ``{state: {move: state}}``, as a Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start.value}"]
    for state, targets in moves.items():
        for target in dict.fromkeys(targets.values()):
            labels = ", ".join(move.value for move, to in targets.items() if to is target)
            lines.append(f"    {state.value} --> {target.value}: {labels}")
        if not targets:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join([*lines, "```"])


def settings() -> str:
    """Every section of the configuration with its fields, defaults and meanings."""
    parts = []
    for section in msgspec.structs.fields(config.RunConfig):
        about, fields = _record(section.type)
        defaults = {field.name: field for field in msgspec.structs.fields(section.type)}
        rows = []
        for field in fields:
            default = defaults[field.name].default
            text = _said(field.text, f"{section.name}.{field.name}")
            if isinstance(default, Enum):
                text = f"One of {', '.join(f'`{member.value}`' for member in type(default))}. {text}"
            rows.append((f"`{field.name}`", f"`{_toml(default)}`", text))
        parts.append(f"#### `[{section.name}]`\n\n{about}\n\n{_table(('Setting', 'Default', 'Meaning'), rows)}")
    return "\n\n".join(parts)


def _toml(value: Any) -> str:
    text = json.dumps(msgspec.to_builtins(value))
    return "0.3333 (1/3)" if value == 1 / 3 else text


def fleet_table() -> str:
    """Every setting of a simulated fleet."""
    fields = {field.name: field for field in msgspec.structs.fields(Fleet)}
    rows = []
    for name, _, text in _record(Fleet)[1]:
        default = fields[name].default
        shown = "" if default is msgspec.NODEFAULT else "1 year" if default == YEAR_S else f"`{_toml(default)}`"
        rows.append((f"`{name}`", shown, text))
    return _table(("Setting", "Default", "Meaning"), rows)


def event_table() -> str:
    """Every kind of line a run log may hold."""
    rows = []
    for kind in get_args(events.Event):
        about, fields = _record(kind)
        names = ", ".join(f"`{field.name}`" for field in fields if field.name != "at_ns")
        rows.append((f"`{kind.__name__}`", names, _said(about, kind.__name__)))
    return _table(("Event", "Fields, besides `at_ns`", "What happened"), rows)


def message_table(family: Any) -> Callable[[], str]:
    """Every message of one direction."""

    def table() -> str:
        rows = []
        for kind in get_args(family):
            about, fields = _record(kind)
            names = ", ".join(f"`{field.name}`" for field in fields)
            rows.append((f"`{kind.__name__}`", names, _said(about, kind.__name__)))
        return _table(("Message", "Fields", "Meaning"), rows)

    return table


def reason_table(kind: type[Enum]) -> Callable[[], str]:
    """Every reason of one kind."""

    def table() -> str:
        texts = {field.name: field.text for field in _record(kind)[1]}
        rows = []
        for reason in kind:
            key = f"{kind.__name__}.{reason.value}"
            rows.append((f"`{reason.value}`", _said(texts[reason.name], key if key in WORDS else reason.value)))
        return _table(("Reason", "Meaning"), rows)

    return table


def limit_table() -> str:
    """The limits of the protocol and its hosts that are constants; those that are settings are in the configuration."""
    rows = []
    core = (ids, messages, shapes, options, learner)
    bodies = (client, carriage, channel, downloading, holds, streams)
    for module in (*core, config, api, packing, *bodies, timeouts, service, learner_client):
        for field in _fields(_tree(module).body):
            if field.name.startswith("_") or not re.search(r"(_MAX|_MIN|_BYTES|PER_LEASE)$", field.name):
                continue
            value = getattr(module, field.name)
            home = module.__name__.removeprefix("unlockstep.")
            rows.append((f"`{field.name}`", f"{value:,}".replace(",", " "), f"`{home}`", field.text))
    return _table(("Limit", "Value", "Where", "Meaning"), rows)


def permission_table() -> str:
    """Which roles may make which request; and, in the last rows, say which message."""

    def marks(may: Callable[[roles.Role], bool]) -> tuple[str, ...]:
        return tuple("yes" if may(role) else "" for role in roles.Role)

    requests = [
        (
            f"`{method} {route}`",
            *(("without a token",) * len(roles.Role) if allowed is None else marks(allowed.__contains__)),
        )
        for (method, route), allowed in roles.PERMISSIONS.items()
    ]
    said = [
        (f"message `{kind.__name__}`", *marks(lambda role, kind=kind: roles.may_say(kind, role)))  # type: ignore[misc]
        for kind in get_args(messages.LearnerMessage)
    ]
    return _table(("Request", *(f"`{role.value}`" for role in roles.Role)), [*requests, *said])


def timeout_table() -> str:
    """Every deadline of the network: from the defaults, and from other settings and measurements."""
    defaults = timeouts.derive()
    near = timeouts.derive(timeouts.Leases(lease_s=2), timeouts.Measured(round_trip_s=0.001))
    far = timeouts.derive(timeouts.Leases(lease_s=60), timeouts.Measured(1.0, 1e6, 1e6, 10.0), 400_000_000)
    rows = [
        (f"`{field.name}`", *(f"{round(getattr(each, field.name), 2):g}" for each in (defaults, near, far)), field.text)
        for field in _record(timeouts.Timeouts)[1]
    ]
    head = ("Deadline", "Defaults", "A lease of 2 s, 1 ms", "60 s, 1 s, 1 MB/s, steps of 10 s, 400 MB", "What it is")
    return _table(head, rows)


def metric_table() -> str:
    """Every metric, from an exposition in which each has a sample."""
    ledger = LedgerStatus(1, 1, 1, {"late": 1}, 1, 1, 1, 1)
    numbers = {field.name: 0 for field in msgspec.structs.fields(Status)}
    texts = {"run": "run", "state": "running"}
    tuples: dict[str, Any] = {"rounds": (), "versions": (), "evaluations": (), "participation": 1.0}
    known = {"late": 1}
    live = [_live_learner()]
    status = Status(**{**numbers, **texts, **tuples, "ledger": ledger, "refusals": known, "learners": tuple(live)})
    rows = []
    exposition = metrics.prometheus(status, 0, 0).splitlines()
    for help_line, type_line, sample in zip(exposition, exposition[1:], exposition[2:], strict=False):
        if help_line.startswith("# HELP"):
            _, _, name, meaning = help_line.split(" ", 3)
            label = re.search(r"\{(\w+)=", sample)
            rows.append((f"`{name}`", type_line.split()[-1], f"`{label[1]}`" if label else "", meaning))
    rows.append(("`unlockstep_validation_loss`", "gauge", "", "Of the global model, nats per token."))
    return _table(("Metric", "Type", "Label", "Meaning"), rows)


def _live_learner() -> Any:
    from unlockstep.core.status import LearnerStatus

    return LearnerStatus("a", 1, "live", 1, 1, 1, 1, 1.0, None, None, 1, 0, 0)


def grace_examples() -> str:
    """Equation 3 with numbers, by the function that the syncer uses."""
    defaults = options.ProtocolOptions()
    tau, gamma = defaults.overlap_steps, defaults.grace_factor
    rows = []
    for step, quorum, sync in ((100, 30, 50), (100, 10, 20), (100, 150, 100)):
        slack = tau * step - (quorum + sync)
        granted = window.grace_ns(defaults, *(ms * 1_000_000 for ms in (step, quorum, sync))) / 1e6
        sum_up = f"{tau} * {step} - ({quorum} + {sync}) = {slack}"
        rows.append((str(step), str(quorum), str(sync), sum_up, f"{gamma * slack:g}", f"**{granted:g}**"))
    return _table(("xi_step", "xi_quorum", "xi_sync", "slack", "gamma * slack", "grace, ms"), rows)


def slow_learner() -> str:
    head = ("How the slow learner adopts", "Its inner steps", "Contributions", "Share of its work contributed")
    return _table(head, measure.slow_learner())


def late() -> str:
    return _table(("`protocol.late`", "Work contributed in time", "Work contributed late"), measure.late())


def import_table() -> dict[str, str]:
    """The table that ``tests/architecture/test_imports.py`` enforces."""
    for node in ast.parse(IMPORT_TABLE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "IMPORTS":
            table: dict[str, str] = ast.literal_eval(node.value)
            return table
    raise LookupError(f"{IMPORT_TABLE} has no IMPORTS")


def rooms() -> str:
    """Who may import whom, in words."""
    rows = []
    for room, allowed in import_table().items():
        ours = [name.removeprefix("unlockstep.") for name in allowed.split() if name.startswith("unlockstep.")]
        theirs = [name for name in allowed.split() if not name.startswith(("unlockstep.", "*"))]
        everything = "everything, when it is needed" if "*" in allowed else ""
        name = room.removeprefix("unlockstep.") if room != "unlockstep" else "unlockstep (the package itself)"
        rows.append((f"`{name}`", everything or ", ".join(f"`{n}`" for n in ours), ", ".join(f"`{n}`" for n in theirs)))
    return _table(("Room", "may import", "and of other packages"), rows)


def rule_table() -> str:
    """What ``unlockstep report --check`` checks."""
    kinds = {rule: "safety" if rule in checkers.SAFETY else "liveness" for rule in checkers.RULES}
    rows = [(f"`{rule}`", meaning, kinds[rule]) for rule, meaning in checkers.RULES.items()]
    return _table(("Rule", "It says", "Kind"), rows)


def tape_moves() -> str:
    """What can be done to a target of a tape, as it stands."""
    rows = [
        (state.value, ", ".join(f"`{name}`" for name, kind in tape.KINDS.items() if kind in moves))
        for state, moves in tape.MOVES.items()
    ]
    return _table(("The target is", "it can be told to"), rows)


def speed_table() -> str:
    """What a slow learner gives, by who is asked."""
    head = ("P", "H", "times slower", *(f"`{asked}`, `{mode}`" for asked, mode in measure.RULES))
    return _table(head, measure.speeds())


BLOCKS: dict[str, Callable[[], str]] = {
    "run states": lambda: diagram(syncer.MOVES, syncer.RunState.EMPTY),
    "member states": lambda: diagram(membership.MOVES, membership.MemberState.GONE),
    "learner states": lambda: diagram(learner.MOVES, learner.LearnerState.JOINING),
    "round states": lambda: diagram(sync_round.MOVES, sync_round.RoundState.OPEN),
    "learner messages": message_table(messages.LearnerMessage),
    "syncer messages": message_table(messages.SyncerMessage),
    "refusal reasons": reason_table(reasons.RefusalReason),
    "join refusals": reason_table(reasons.JoinRefusal),
    "departure reasons": reason_table(reasons.DepartureReason),
    "window reasons": reason_table(reasons.WindowReason),
    "participation": reason_table(options.Participation),
    "permissions": permission_table,
    "limits": limit_table,
    "events": event_table,
    "timeouts": timeout_table,
    "metrics": metric_table,
    "settings": settings,
    "fleet": fleet_table,
    "rooms": rooms,
    "grace examples": grace_examples,
    "slow learner": slow_learner,
    "late": late,
    "drained": measure.drained,
    "rules": rule_table,
    "speeds": speed_table,
    "tape moves": tape_moves,
    **results.BLOCKS,
}


def rendered(text: str) -> str:
    """``text`` with every block as the code would have it. Raises KeyError for a block that does not exist."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]()}\n\n{block[3]}", text)


def block_names(text: str) -> list[str]:
    """The blocks in a document, in order."""
    return [name for _, name, _ in _BLOCK.findall(text)]


def main() -> None:
    """Write every document anew."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if rendered(text) != text:
            path.write_text(rendered(text), encoding="utf-8")
            print(f"written: {path.relative_to(DOCS)}")


if __name__ == "__main__":
    main()

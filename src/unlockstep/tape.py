"""The event tape: what goes wrong in a run, and when. One input for the simulator and for real processes.

::

    name = "one_crash"                                        TOML, for people
    learners = ["a", "b"]

    [[action]]
    at_s = 20.5
    do = "kill"
    target = "a"

    {"schema":1,"name":"one_crash","learners":["a","b"],"end_ns":20500000000}       JSON lines, for machines
    {"do":"kill","at_ns":20500000000,"target":"a"}

A tape that is being played is JSON lines, too: its header says ``"end_ns":0``, the time of the last action, whichever
that is by then, and ``began_ns`` once it has begun. From then on each further action is a line behind it. A last line
without its line break is a write that a crash cut short, and counts for nothing.

Decides the actions, the two file formats, and which stories make sense. Does not decide how an action is carried out
(``sim.world`` does for virtual time) and knows nothing of the protocol. Once built, a tape is valid: nothing checks it
again.

A story is *contradictory*, and refused, when an action cannot be done to its target as it stands by then: ``MOVES`` and
``LINK_MOVES`` say what can. What merely changes nothing, like giving a learner the speed it has, is allowed:

- A stopped process can be killed. It cannot be stopped again, nor asked to leave: it would not hear of it.
- A dead learner comes back by ``restart``; one that left, or never was there, comes by ``join``.
- Speed, throttle, delay and the state of a disk are levels: setting one replaces the last, and 1, 0 or ``free`` lifts
  it. Jumps of a clock add up. A link is cut once: to cut it in another direction, heal it first. Healing lifts the cut
  alone.
- Speed, link, disk and clock belong to the name: they outlast stop, death and restart, and are changed while it is
  dead. They end when the learner leaves or is replaced: who comes then begins without any.
- What a process does, its disk and its clock are of the syncer as well. Everything else is done to a learner.
- Actions at the same time are applied in the order written.
"""

from __future__ import annotations

import difflib
import functools
import os
import tomllib
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
import tomli_w

from unlockstep.core.errors import UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND, is_learner_name
from unlockstep.core.words import counted
from unlockstep.files import whole

SCHEMA_VERSION = 1

SYNCER = "syncer"
"""The target that is the syncer; no learner of a tape may be called so."""

EVALUATOR = "evaluator"
"""A process of a run beside its learners, of which nothing is done by a tape; nor may a learner be called so."""

AT_NS_MAX = 2**62
"""The latest time a tape can name (146 years): twice of it still fits into 64 bits."""

UNSEEN_NS = 3 * NANOSECONDS_PER_SECOND
"""How long a learner that is replaced stays out of sight."""

# Beyond these a simulation would come to steps of no length or of years.
FACTOR_MIN, FACTOR_MAX = 1e-3, 1e6
MBIT_PER_S_MIN, MBIT_PER_S_MAX = 1e-3, 1e9
DELAY_S_MAX = 60.0
JUMP_S_MAX = 1e9
"""Thirty years: what a clock that has lost its battery is off by."""

BODIES_MAX = 2**31

SHOWN_MAX = 80
"""Characters of a wrong value that a complaint shows."""

Format = Literal["toml", "jsonl"]

_FORMATS: dict[str, Format] = {".toml": "toml", ".jsonl": "jsonl"}
_SHIPPED = resources.files("unlockstep") / "tapes"
_SECONDS = {"at_ns": "at_s", "end_ns": "end_s", "began_ns": "began_s"}
_NANOSECOND = Decimal("1e-9")
_Record = TypeVar("_Record", bound=msgspec.Struct)


class _Action(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="do",
    tag=str.lower,
):
    at_ns: int
    """Since the run began."""
    target: str
    """A learner's name, or ``SYNCER``."""


class Kill(_Action, frozen=True):
    """The process dies at once and says nothing (SIGKILL)."""


class Stop(_Action, frozen=True):
    """The process stands still and keeps what it has (SIGSTOP)."""


class Continue(_Action, frozen=True):
    """A stopped process goes on where it stood (SIGCONT)."""


class Restart(_Action, frozen=True):
    """A new process under the name of a dead one."""


class Slow(_Action, frozen=True, kw_only=True):
    """From now on a step takes ``factor`` times as long as at the learner's own speed; 1 gives that back."""

    factor: float


class Cut(_Action, frozen=True, kw_only=True):
    """Messages do not get through that way; ``up`` is towards the syncer. Any cut stops bodies both ways, which need an
    answer or a request, and new connections."""

    direction: Literal["both", "up", "down"] = "both"


class Heal(_Action, frozen=True):
    """The link is whole again, as fast as it was: a throttle stays."""


class Throttle(_Action, frozen=True, kw_only=True):
    """From now on the link carries so much each way and no more; 0 lifts it."""

    mbit_per_s: float


class Corrupt(_Action, frozen=True, kw_only=True):
    """Each of the next ``bodies`` bodies the learner uploads arrives with one bit flipped."""

    bodies: int = 1


class Delay(_Action, frozen=True, kw_only=True):
    """From now on everything on the link arrives so much later, each way; 0 lifts it."""

    seconds: float


class Fill(_Action, frozen=True):
    """The disk is full: nothing more can be written to it. What is on it can be read."""


class Free(_Action, frozen=True):
    """There is room on the disk again."""


class Jump(_Action, frozen=True, kw_only=True):
    """The wall clock is set forward so much, or back if it is negative."""

    seconds: float


class Join(_Action, frozen=True):
    """A new learner begins."""


class Leave(_Action, frozen=True):
    """A learner says goodbye and ends (SIGTERM)."""


class Replace(_Action, frozen=True):
    """Whoever starts learners has lost sight of one and starts another process under its name, elsewhere. The old one
    lives: ``UNSEEN_NS`` later its link is whole again, and it runs."""


Action = (
    Kill
    | Stop
    | Continue
    | Restart
    | Slow
    | Cut
    | Heal
    | Throttle
    | Corrupt
    | Join
    | Leave
    | Replace
    | Delay
    | Fill
    | Free
    | Jump
)

KINDS: dict[str, type[Action]] = {kind.__name__.lower(): kind for kind in get_args(Action)}
"""Every action by the name it has in a file."""

SYNCER_KINDS: tuple[type[Action], ...] = (Kill, Stop, Continue, Restart, Fill, Free, Jump)


class TargetState(Enum):
    ABSENT = "not part of the run"
    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class LinkState(Enum):
    WHOLE = "whole"
    CUT = "cut"


_OF_LINKS: tuple[type[Action], ...] = (Cut, Heal, Throttle)
_OF_HOSTS: tuple[type[Action], ...] = (Delay, Fill, Free, Jump)
"""Behind all others wherever kinds are listed: the stories of old seeds stay what they were."""

MOVES: dict[TargetState, dict[type[Action], TargetState]] = {
    TargetState.ABSENT: {Join: TargetState.RUNNING},
    TargetState.RUNNING: {
        Kill: TargetState.DEAD,
        Stop: TargetState.STOPPED,
        Leave: TargetState.ABSENT,
        **dict.fromkeys((Slow, Corrupt, Replace, *_OF_LINKS, *_OF_HOSTS), TargetState.RUNNING),
    },
    TargetState.STOPPED: {
        Kill: TargetState.DEAD,
        Continue: TargetState.RUNNING,
        Replace: TargetState.RUNNING,
        **dict.fromkeys((Slow, Corrupt, *_OF_LINKS, *_OF_HOSTS), TargetState.STOPPED),
    },
    TargetState.DEAD: {
        Restart: TargetState.RUNNING,
        **dict.fromkeys((*_OF_LINKS, *_OF_HOSTS), TargetState.DEAD),
    },
}

LINK_MOVES: dict[LinkState, dict[type[Action], LinkState]] = {
    LinkState.WHOLE: {Cut: LinkState.CUT},
    LinkState.CUT: dict.fromkeys((Heal, Leave, Replace), LinkState.WHOLE),
}


class Standing:
    """Where every target stands as a story goes on: what can be done next, for a check and for who makes up stories."""

    def __init__(self, learners: tuple[str, ...]) -> None:
        self._processes = dict.fromkeys((*learners, SYNCER), TargetState.RUNNING)
        self._links: dict[str, LinkState] = {}

    def process(self, target: str) -> TargetState:
        return self._processes.get(target, TargetState.ABSENT)

    def link(self, target: str) -> LinkState:
        return self._links.get(target, LinkState.WHOLE)

    def possible(self, target: str) -> tuple[type[Action], ...]:
        """What can be done to a target now."""
        return tuple(kind for kind in MOVES[self.process(target)] if self._can(kind, target))

    def move(self, action: Action) -> None:
        """Take in an action. Raises UsageError if it cannot be done; then nothing has changed."""
        kind, target = type(action), action.target
        if not self._can(kind, target):
            raise UsageError(self._objection(kind, target))
        link = self.link(target)
        self._processes[target] = MOVES[self.process(target)][kind]
        self._links[target] = LINK_MOVES[link].get(kind, link)

    def _can(self, kind: type[Action], target: str) -> bool:
        if target == SYNCER and kind not in SYNCER_KINDS:
            return False
        if kind in (Cut, Heal) and kind not in LINK_MOVES[self.link(target)]:
            return False
        return kind in MOVES[self.process(target)]

    def _objection(self, kind: type[Action], target: str) -> str:
        process, link = self.process(target), self.link(target)
        if target == SYNCER and kind not in SYNCER_KINDS:
            reason = f"{_name(kind)} is for learners; the syncer is {process.value} by then"
        elif kind not in MOVES[process]:
            reason = f"{target} is {process.value} by then"
        else:
            reason = f"the link of {target} is {link.value} by then"
        possible = ", ".join(map(_name, self.possible(target)))
        return f"{reason}, which allows {possible}; change the action, its target or its time"


class Tape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A story: who is there at the start, and what is done to whom.

    Raises:
        UsageError: the story is contradictory or a value is out of range; one sentence with tape, action, value, fix.
    """

    name: str
    about: str = ""
    learners: tuple[str, ...]
    """There at the start, running, at their own speed, each on a whole link."""
    actions: tuple[Action, ...] = ()
    """In the order of time."""
    end_ns: int = 0
    """How long the story lasts. Given as 0 it becomes the time of the last action."""
    began_ns: int | None = None
    """Of a tape that was played on real processes: when it began, in the log of their run. None: nobody says."""

    def __post_init__(self) -> None:
        self._check_header()
        standing = Standing(self.learners)
        last_ns = 0
        for number, action in enumerate(self.actions, start=1):
            try:
                _check_values(action, last_ns)
                standing.move(action)
            except UsageError as error:
                raise UsageError(f"tape {self.name!r}, action {number} ({_said(action)}): {error}") from None
            last_ns = action.at_ns
        if self.end_ns == 0:
            msgspec.structs.force_setattr(self, "end_ns", last_ns)
        elif self.end_ns < last_ns:
            raise UsageError(
                f"tape {self.name!r}: end_ns is {self.end_ns} ({_seconds(self.end_ns)} s) but its last action is at "
                f"{_seconds(last_ns)} s; end later or drop what comes behind"
            )

    @property
    def cast(self) -> tuple[str, ...]:
        """Every learner on it, each once: those there at the start, then the others as actions first name them."""
        others = (action.target for action in self.actions if action.target != SYNCER)
        return tuple(dict.fromkeys((*self.learners, *others)))

    def _check_header(self) -> None:
        spelling = "use letters, digits, _ and - (64 at most, no mark in front)"
        if not is_learner_name(self.name):
            raise UsageError(f"the name of a tape is {_show(self.name)}; {spelling}")
        for learner in self.learners:
            if not is_learner_name(learner) or learner in (SYNCER, EVALUATOR):
                raise UsageError(
                    f"tape {self.name!r}: learners has {_show(learner)}; {spelling}, and not {SYNCER!r} or "
                    f"{EVALUATOR!r}"
                )
        if len(set(self.learners)) < len(self.learners):
            twice = max(self.learners, key=self.learners.count)
            raise UsageError(f"tape {self.name!r}: learners has {twice!r} twice; give each learner a name of its own")
        if not self.learners and not any(isinstance(action, Join) for action in self.actions):
            raise UsageError(f"tape {self.name!r}: learners is empty and nobody joins; name a learner or let one join")
        if not 0 <= self.end_ns <= AT_NS_MAX:
            raise UsageError(f"tape {self.name!r}: end_ns is {self.end_ns}; it must be from 0 to {AT_NS_MAX}")
        if self.began_ns is not None and not 0 <= self.began_ns <= AT_NS_MAX:
            raise UsageError(f"tape {self.name!r}: began_ns is {self.began_ns}; it must be from 0 to {AT_NS_MAX}")


def shipped() -> tuple[str, ...]:
    """The names of the tapes that come with this package."""
    files = (entry.name for entry in _SHIPPED.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def read(path_or_name: str | Path) -> Tape:
    """The tape in a file whose name ends in ``.toml`` or ``.jsonl``, or a shipped one by its name.

    Raises:
        UsageError: there is no such tape, it cannot be read, or it is not a valid one.
    """
    name, path = str(path_or_name), Path(path_or_name)
    file_format = _FORMATS.get(path.suffix)
    if file_format is None:
        if name not in shipped():
            close = difflib.get_close_matches(name, shipped(), n=1)
            fix = f"did you mean {close[0]}?" if close else "choose one of these"
            raise UsageError(
                f"tape {name!r} is neither a file that ends in .toml or .jsonl nor one of {', '.join(shipped())}; {fix}"
            )
        return loads((_SHIPPED / f"{name}.toml").read_text(encoding="utf-8"), "toml", source=f"tape {name!r}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"tape {path} does not exist; check the path") from None
    except UnicodeDecodeError:
        raise UsageError(f"tape {path} is not UTF-8 text; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"tape {path} cannot be read ({error}); check that it is a file") from None
    return loads(text, file_format, source=str(path))


def loads(text: str, file_format: Format, source: str = "the text") -> Tape:
    """The tape in a text, which complaints call ``source``. Raises UsageError as ``read`` does."""
    return _loads_toml(text, source) if file_format == "toml" else _loads_lines(text, source)


def dumps_toml(tape: Tape) -> str:
    """A tape as TOML. ``loads(dumps_toml(tape), "toml") == tape``."""
    header = {"name": tape.name, "about": tape.about, "learners": tape.learners, "end_s": _seconds(tape.end_ns)}
    if tape.began_ns is not None:
        header["began_s"] = _seconds(tape.began_ns)
    tables = [tomli_w.dumps(header)]
    for action in tape.actions:
        fields = msgspec.to_builtins(action)
        tables.append("[[action]]\n" + tomli_w.dumps({"at_s": _seconds(fields.pop("at_ns")), **fields}))
    return "\n".join(tables)


def dumps_lines(tape: Tape, *, goes_on: bool = False) -> str:
    """A tape as JSON lines. ``loads(dumps_lines(tape), "jsonl") == tape``. ``goes_on``: lines of further actions
    (``dumps_action``) may be written behind it, and it ends with the last of them."""
    header = {"schema": SCHEMA_VERSION, "name": tape.name, "about": tape.about, "learners": tape.learners}
    began = {} if tape.began_ns is None else {"began_ns": tape.began_ns}
    records = ({**header, "end_ns": 0 if goes_on else tape.end_ns, **began}, *tape.actions)
    return "".join(msgspec.json.encode(record).decode() + "\n" for record in records)


def dumps_action(action: Action) -> bytes:
    """The line of an action, to be written behind the others of a tape in JSON lines."""
    return msgspec.json.encode(action) + b"\n"


def write(tape: Tape, path: str | Path) -> None:
    """Write a tape to a file whose name ends in ``.toml`` or ``.jsonl``: whole, or not at all.

    Raises:
        UsageError: another ending, or a file that cannot be written.
    """
    path = Path(path)
    check_place(path)
    text = dumps_toml(tape) if _FORMATS[path.suffix] == "toml" else dumps_lines(tape)
    try:
        with whole(path) as partial:
            partial.write_text(text, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        raise _unwritable(path, str(error)) from None


def check_place(path: Path) -> None:
    """Raises UsageError for a place that cannot take a tape."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"tape {path} ends in {path.suffix!r}; let its name end in .toml or .jsonl")
    if path.is_dir():
        raise _unwritable(path, "it is a folder")
    if not path.parent.is_dir():
        raise _unwritable(path, f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _unwritable(path, "no permission")


def _unwritable(path: Path, reason: str) -> UsageError:
    return UsageError(f"tape {path} cannot be written ({reason}); choose a folder you may write to")


# ------------------------------------------------------------------------------------------------ reading


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """All of a tape but its actions: the first line of JSON lines, the keys above the tables of TOML."""

    name: str
    about: str = ""
    learners: tuple[str, ...]
    end_ns: int = 0
    began_ns: int | None = None


def _loads_lines(text: str, source: str) -> Tape:
    records: list[Any] = []
    lines = text.removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            records.append(msgspec.json.decode(line))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if number == len(lines) and not text.endswith("\n") and _goes_on(records):
                break  # Cut short.
            raise UsageError(f"{source}, line {number} is not JSON ({error}); correct it there") from None
    header = _header(records[0], f"{source}, line 1", "jsonl")
    behind = enumerate(records[1:], start=2)
    actions = (_action(record, f"{source}, line {number}", "jsonl") for number, record in behind)
    return _tape(header, tuple(actions), source)


def _goes_on(records: list[Any]) -> bool:
    """Whether the header, if there is one, is that of a tape which was being played when it was written."""
    header = records[0] if records else None
    return isinstance(header, dict) and header.get("end_ns") == 0 and header.get("began_ns") is not None


def _loads_toml(text: str, source: str) -> Tape:
    try:
        settings = tomllib.loads(text, parse_float=Decimal)
    except ArithmeticError:
        raise UsageError(f"{source} has a number that is too large to read; correct it there") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not TOML ({error}); correct it there") from None
    if "story" in settings:
        raise UsageError(
            f"{source} is a story, which has settings of its own beside its tape; play it with "
            f"unlockstep simulate swarm --story {source}"
        )
    records = settings.pop("action", [])
    if not isinstance(records, list):
        raise UsageError(f"{source}: action is {_show(records)}; begin each action with [[action]]")
    header = _header({"schema": SCHEMA_VERSION, **settings}, source, "toml")
    actions = (_action(record, f"{source}, action {number}", "toml") for number, record in enumerate(records, start=1))
    return _tape(header, tuple(actions), source)


def _tape(header: _Header, actions: tuple[Action, ...], source: str) -> Tape:
    try:
        return Tape(actions=actions, **msgspec.structs.asdict(header))
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _header(record: object, where: str, file_format: Format) -> _Header:
    fields = _object(record, where)
    schema = fields.pop("schema", None)
    if schema != SCHEMA_VERSION:
        raise UsageError(
            f"{where}: schema is {_show(schema)} but this version reads schema {SCHEMA_VERSION}; "
            "check that it is a tape, and which version wrote it"
        )
    return _convert(fields, _Header, where, file_format, beside="action" if file_format == "toml" else "schema")


def _action(record: object, where: str, file_format: Format) -> Action:
    fields = _object(record, where)
    do = fields.pop("do", None)
    if not isinstance(do, str) or do not in KINDS:
        raise UsageError(f"{where}: do is {_show(do)}; choose one of {', '.join(KINDS)}")
    return _convert(fields, KINDS[do], where, file_format, beside="do")


def _object(record: object, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise UsageError(f"{where} is {_show(record)}; write fields there, each with its name")
    return record


def _convert(record: dict[str, Any], kind: type[_Record], where: str, file_format: Format, beside: str) -> _Record:
    """A record of plain values as what it stands for, or a sentence that names the first field that is wrong.
    ``beside`` is a field that can be there as well, and was taken out."""
    fields = _fields(kind, file_format)
    for name in record:
        if name not in fields:
            known = ", ".join((*fields, beside))
            raise UsageError(f"{where}: {_show(name)} is not a field there; choose from {known}")
    for name, field in fields.items():
        if field.required and name not in record:
            raise UsageError(f"{where}: {name} is missing; add it")
    values = {}
    for name, value in record.items():
        field = fields[name]
        values[field.name] = value if field.name == name else _nanoseconds(value, name, where)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError:
        wrong = next(name for name in record if not _fits(values[fields[name].name], fields[name].type))
        fix = f"it must be {_describe(fields[wrong].type)}"
        raise UsageError(f"{where}: {wrong} is {_show(record[wrong])}; {fix}") from None


@functools.cache
def _fields(kind: type[msgspec.Struct], file_format: Format) -> dict[str, msgspec.structs.FieldInfo]:
    """The fields of a record by the names they have in a file: TOML has times in seconds."""
    spelling = _SECONDS if file_format == "toml" else {}
    return {spelling.get(field.name, field.name): field for field in msgspec.structs.fields(kind)}


def _fits(value: object, kind: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    words = {int: "a whole number", int | None: "a whole number", float: "a number", str: "text"}
    return words.get(kind, "a list of names")


def _nanoseconds(value: object, name: str, where: str) -> int:
    """Seconds as read from TOML in whole nanoseconds, exactly."""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        number = Decimal(value)
        if number.is_finite() and 0 <= number <= _seconds(AT_NS_MAX) and number == number.quantize(_NANOSECOND):
            return int(number.scaleb(9))
    raise UsageError(
        f"{where}: {name} is {_show(value)}; it must be a number of seconds from 0 to {_seconds(AT_NS_MAX)}, "
        "with nine digits behind the point at most"
    )


def _seconds(ns: int) -> int | Decimal:
    """Nanoseconds in seconds, exactly, in the shortest spelling."""
    whole, rest = divmod(ns, NANOSECONDS_PER_SECOND)
    return Decimal(ns).scaleb(-9).normalize() if rest else whole


def _check_values(action: Action, last_ns: int) -> None:
    """What can be said of an action without knowing how its target stands. Written so that NaN fulfils nothing."""
    at_ns, target = action.at_ns, action.target
    if not 0 <= at_ns <= AT_NS_MAX:
        raise UsageError(f"at_ns is {at_ns}; it must be from 0 to {AT_NS_MAX}")
    if at_ns < last_ns:
        raise UsageError(f"the action before it is at {_seconds(last_ns)} s; put the actions in the order of time")
    if not is_learner_name(target):
        raise UsageError(f"target is {_show(target)}; name a learner (letters, digits, _ and -) or {SYNCER!r}")
    if target == EVALUATOR:
        raise UsageError(f"target is {target!r}, which tapes leave alone; name a learner or {SYNCER!r}")
    match action:
        case Slow(factor=factor) if not FACTOR_MIN <= factor <= FACTOR_MAX:
            raise UsageError(f"factor is {factor}; it must be from {FACTOR_MIN:g} to {FACTOR_MAX:g}")
        case Throttle(mbit_per_s=rate) if not (rate == 0 or MBIT_PER_S_MIN <= rate <= MBIT_PER_S_MAX):
            raise UsageError(
                f"mbit_per_s is {rate}; it must be from {MBIT_PER_S_MIN:g} to {MBIT_PER_S_MAX:g}, or 0 to lift it"
            )
        case Delay(seconds=seconds) if not 0 <= seconds <= DELAY_S_MAX:
            raise UsageError(f"seconds is {seconds}; it must be from 0, which lifts it, to {DELAY_S_MAX:g}")
        case Jump(seconds=seconds) if not -JUMP_S_MAX <= seconds <= JUMP_S_MAX:
            raise UsageError(f"seconds is {seconds}; it must be from {-JUMP_S_MAX:g} to {JUMP_S_MAX:g}")
        case Corrupt(bodies=bodies) if not 1 <= bodies <= BODIES_MAX:
            raise UsageError(f"bodies is {_show(bodies)}; it must be from 1 to {BODIES_MAX}")


def said(action: Action) -> str:
    """What an action does, in a few words: ``slow a (factor 4)``, ``throttle a (mbit_per_s 0: lifted)``."""
    names = [name for name in action.__struct_fields__ if name not in ("at_ns", "target")]
    values = ", ".join(f"{name} {_plain(getattr(action, name))}" for name in names)
    match action:
        case Slow(factor=1):
            values += ": its own speed"
        case Throttle(mbit_per_s=0) | Delay(seconds=0):
            values += ": lifted"
    return f"{_name(type(action))} {action.target}" + (f" ({values})" if values else "")


def fingerprint(tape: Tape) -> str:
    """By which a tape is told from others of its name, for people: ``12 actions, 3fa94c``. When it began is no part of
    it, nor when it ended."""
    told = msgspec.structs.replace(tape, end_ns=0, began_ns=None)
    digest = blake2b(dumps_lines(told).encode(), digest_size=3).hexdigest()
    return f"{counted(len(tape.actions), 'action')}, {digest}"


def cut_short(tape: Tape, left: int) -> str:
    """What is said of a run that ended before so many actions of its tape were played."""
    actions = counted(len(tape.actions), "action")
    return f"ended before the tape was over: {left} of its {actions} {'was' if left == 1 else 'were'} not played"


def _said(action: Action) -> str:
    target = action.target if is_learner_name(action.target) else _show(action.target)
    return f"{_name(type(action))} {target} at {_seconds(action.at_ns)} s"


def _plain(value: object) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _name(kind: type[Action]) -> str:
    return kind.__name__.lower()


def _show(value: object) -> str:
    """A value in a sentence: on one line, and short whatever was in the file."""
    try:
        text = str(value) if isinstance(value, Decimal) else repr(value)
    except (ValueError, RecursionError):  # An integer of thousands of digits, or lists a thousand deep.
        return "too large to show"
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."

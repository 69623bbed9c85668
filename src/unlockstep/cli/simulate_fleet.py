"""From flags, a file and sweeps to the fleets of ``unlockstep simulate``.

Decides how settings of a fleet are written, what wins (defaults, the file, flags, the sweep), and which of them make no
sense together. The file is TOML; its keys are the fields of ``Fleet``. What a field means, and which values it takes,
is ``sim.fleet``.
"""

from __future__ import annotations

import difflib
import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from unlockstep.core.errors import ConfigError, UsageError
from unlockstep.sim.advise import LEARNERS_MAX, powers_of_two
from unlockstep.sim.fleet import ELASTIC_ONLY, RIGID_ONLY, YEAR_S, Fleet

POINTS_MAX = 1000
"""Fleets in one sweep."""

FIELDS = {field.name: field for field in msgspec.structs.fields(Fleet)}

FLAGS = (*(name for name in FIELDS if name != "elastic"), "rigid", "mtbi_years")
"""Names of the flags that say something about a fleet."""

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter and the values it takes in turn."""

    name: str
    """As written."""
    values: tuple[Any, ...]
    """In the unit of the name."""

    @property
    def field(self) -> str:
        """The field of ``Fleet`` it stands for."""
        return _SPELLINGS.get(self.name, (self.name, 1))[0]

    def setting(self, value: Any) -> Any:
        """A value in the unit of the field."""
        return value * _SPELLINGS[self.name][1] if self.name in _SPELLINGS else value


_SPELLINGS = {"mtbi_years": ("interruption_s", YEAR_S), "mtbi_s": ("interruption_s", 1), "slice": ("slice_chips", 1)}
"""Names that flags have and fields do not: the field, and its units in one of theirs. A file may use both."""


def settings(file: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a fleet: those of the file, with the flags in their place.

    Args:
        file: TOML, or None.
        flags: by the names of Fleet's fields, beside ``rigid`` and ``mtbi_years``; None: not given.

    Raises:
        UsageError: an unreadable file, or settings that contradict each other. ConfigError: a value of the wrong type.
    """
    given = {name: value for name, value in flags.items() if name in FIELDS and value is not None}
    years = flags.get("mtbi_years")
    if years is not None:
        if "interruption_s" in given:
            raise UsageError("--mtbi-years and --mtbi-s say the same in two units; give one of them")
        given["interruption_s"] = years * YEAR_S
    found = {**({} if file is None else _by_field(_read(file))), **given}
    rigid = flags.get("rigid")
    if rigid:
        _require_one_learner(found.setdefault("learners", 1))
    return found if rigid is None else {**found, "elastic": not rigid}


def _by_field(written: Mapping[str, Any]) -> dict[str, Any]:
    """A file's settings, each under the name of its field and in that field's unit."""
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in written.items():
        field, units = _SPELLINGS.get(name, (name, 1))
        if field in names:
            raise UsageError(f"--config has {names[field]} and {name}, which say the same; give one of them")
        if name in _SPELLINGS:
            _require_kind(name, value, FIELDS[field].type)
        names[field], found[field] = name, value if units == 1 else value * units
    return found


def _require_one_learner(learners: Any) -> None:
    if learners != 1:
        raise UsageError(
            f"--rigid is the baseline of one learner, but learners is {learners}; add --learners 1, or drop --rigid "
            "and set elastic = false in a --config file"
        )


def check_use(found: Mapping[str, Any], flags: Mapping[str, Any], sweeps: Sequence[Sweep]) -> None:
    """Refuse a flag or a sweep that would be ignored, or that gives the baseline of ``--rigid`` more learners.

    Args:
        found: ``settings`` of the same flags.
        flags: as there.
        sweeps: what takes several values; empty for a single fleet.

    Raises:
        UsageError: the sentence says what would make use of it.
    """
    for sweep in sweeps:
        if flags.get("rigid") and sweep.field == "learners":
            for value in sweep.values:
                _require_one_learner(value)
    swept = [sweep.field for sweep in sweeps]
    if "elastic" in swept:
        return
    elastic = found.get("elastic", True)
    idle, kind, fix = (RIGID_ONLY, "rigid", "add --rigid") if elastic else (ELASTIC_ONLY, "elastic", "drop --rigid")
    for name in idle:
        if name in swept or flags.get(name) is not None:
            written = f"--sweep {name}" if name in swept else f"--{name.replace('_', '-')}"
            other = "an elastic" if elastic else "a rigid"
            raise UsageError(f"{written} is for {kind} fleets and changes nothing for {other} one; drop it, or {fix}")


def advised(found: Mapping[str, Any], learners: str | None, learners_max: int | None) -> tuple[Fleet, tuple[int, ...]]:
    """What ``advise`` is asked about: chips that fail, whose M is open, and the M to choose among.

    Args:
        found: ``settings``; its ``learners`` is one of the M.
        learners: M as written after ``--learners``: then no others count.
        learners_max: largest power of two to consider; None: the adviser's own.

    Raises:
        UsageError: ``elastic`` is false, or both limits are given. ConfigError: as ``fleet``.
    """
    for name in ("learners", "elastic"):
        if name in found:
            _require_kind(name, found[name], FIELDS[name].type)
    if found.get("elastic") is False:
        raise UsageError(
            "elastic is false, but advice is for learners that go on without the slices they have lost; drop it, "
            "since the rigid baseline is compared anyway"
        )
    chips, given = found.get("chips"), (0,) if learners is None else parse_learners(learners)
    if type(chips) is int and given[0] > 0:
        slice_chips = found.get("slice_chips")
        if slice_chips is None:
            found = {**found, "slice_chips": max(1, min(FIELDS["slice_chips"].default, chips // given[-1]))}
        elif type(slice_chips) is int and chips < given[0] * slice_chips:
            raise UsageError(
                f"--slice is {slice_chips}, and of {chips} chips {given[0]} learners cannot have one slice each; say "
                f"--slice {max(1, chips // given[0])} or less, or choose fewer learners"
            )
    # Spares are the baseline's, and only a fleet that is rigid may have them.
    asked = fleet({**found, "learners": 1, "elastic": not found.get("spares")})
    if learners is None:
        usual = powers_of_two(asked, LEARNERS_MAX if learners_max is None else learners_max)
        return asked, tuple(sorted({*usual, found.get("learners", 1)} - {1}))
    if learners_max is not None:
        raise UsageError("--learners already says which M to choose among; drop --learners-max")
    return asked, parse_learners(learners)


def parse_learners(text: str) -> tuple[int, ...]:
    """``--learners 5`` or ``--learners 4,5,8``, ascending, each once.

    Raises:
        UsageError: something else than whole numbers with commas between them.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry.isdecimal() and len(entry) < 10 for entry in entries):
        raise UsageError(f"--learners is {text!r}; write one M, or several as 4,5,8")
    return tuple(sorted({int(entry) for entry in entries}))


def fleet(found: Mapping[str, Any]) -> Fleet:
    """The fleet with these settings.

    Raises:
        ConfigError: chips are missing, or a field is unknown, of the wrong type or out of range.
    """
    for name, value in found.items():
        if name not in FIELDS:
            fix = "write elastic = false" if name == "rigid" else suggest(name, FIELDS)
            raise ConfigError(f"{name} is not a setting of a fleet; {fix}")
        _require_kind(name, value, FIELDS[name].type)
    if "chips" not in found:
        raise ConfigError("chips is missing; say how many there are with --chips, or as chips = NUMBER in --config")
    return msgspec.convert(dict(found), Fleet)


def grid(found: Mapping[str, Any], sweeps: Sequence[Sweep]) -> list[Fleet]:
    """Every combination of the swept values, the last sweep fastest.

    Raises:
        UsageError: too many, or the same field twice. ConfigError: as ``fleet``, for one of them.
    """
    fields = [sweep.field for sweep in sweeps]
    if len(set(fields)) < len(fields):
        raise UsageError(f"--sweep names {fields[0]} twice; give all its values at once")
    if len(fields) > 2:
        raise UsageError(f"--sweep is given {len(fields)} times; two parameters are the most a table can show")
    count = math.prod(len(sweep.values) for sweep in sweeps)
    if count > POINTS_MAX:
        raise UsageError(f"--sweep asks for {count} fleets; {POINTS_MAX} at most")
    columns = ([sweep.setting(value) for value in sweep.values] for sweep in sweeps)
    return [fleet({**found, **dict(zip(fields, values, strict=True))}) for values in itertools.product(*columns)]


def parse_sweep(text: str) -> Sweep:
    """``FIELD=a,b,c`` or ``FIELD=start:stop:count``, spaced evenly in the logarithm.

    Raises:
        UsageError: another form, an unknown field, or values that are no numbers.
    """
    name, equals, listing = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals:
        raise UsageError(f"--sweep is {text!r}; write FIELD=a,b,c or FIELD=start:stop:count")
    if name not in (known := [*FIELDS, *_SPELLINGS]):
        fix = "sweep elastic=true,false" if name == "rigid" else suggest(name, known)
        raise UsageError(f"--sweep names {name!r}, which is not a setting of a fleet; {fix}")
    kind: Any = FIELDS[Sweep(name=name, values=()).field].type
    if ":" in listing:
        return Sweep(name=name, values=_spaced(name, kind, listing))
    return Sweep(name=name, values=tuple(_value(name, kind, entry) for entry in listing.split(",")))


def suggest(name: str, known: Iterable[str]) -> str:
    """What a name that does not exist was meant to be."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(names)}"


def _spaced(name: str, kind: Any, listing: str) -> tuple[Any, ...]:
    """Values from start to stop, a constant factor apart; whole where the field is."""
    refusal = UsageError(
        f"--sweep gives {name} the values {listing!r}; write start:stop:count, start and stop above 0, count 2 to "
        f"{POINTS_MAX}"
    )
    ends, _, number = listing.rpartition(":")
    if kind is bool or ends.count(":") != 1 or not number.strip().isdecimal():
        raise refusal
    first, last = (_value(name, kind, end) for end in ends.split(":"))
    count = int(number)
    if not (first > 0 and last > 0 and 2 <= count <= POINTS_MAX):
        raise refusal
    values = (first * (last / first) ** (i / (count - 1)) for i in range(count))
    return tuple(dict.fromkeys(round(value) if kind is int else value for value in values))


def _value(name: str, kind: Any, text: str) -> Any:
    """One value of a sweep; a whole number may be written as 2.4e6."""
    text = text.strip()
    if kind is bool and text in ("true", "false"):
        return text == "true"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if kind is bool or not math.isfinite(value) or (kind is int and value != int(value)):
        raise UsageError(f"--sweep gives {name} the value {text!r}; it must be {_KINDS[kind]}")
    return int(value) if kind is int else value


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"--config is {file}, which does not exist; check the path") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config is {file}, which is not UTF-8 text; save it as UTF-8 TOML") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"--config is {file}, which is not TOML ({error}); correct it there") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--config is {file}, which cannot be read ({error}); check that it is a file") from None


def _require_kind(name: str, value: object, kind: Any) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise ConfigError(f"{name} is {value!r}; it must be {_KINDS[kind]}") from None

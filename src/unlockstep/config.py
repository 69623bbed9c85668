"""A run's configuration: one frozen record with a section per concern, read from TOML, written back equal.

Decides every setting's name, default and limits, how ``--set section.field=value`` is read, and the checks that span
sections. Does not decide what a setting does: each section names the module that reads it. Once built, a configuration
is valid: nothing checks it again.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from unlockstep.core.adoption import Adoption
from unlockstep.core.errors import ConfigError
from unlockstep.core.formats import Codec, Packing, Rounding
from unlockstep.core.ids import is_learner_name
from unlockstep.core.merge import MergeRule
from unlockstep.core.options import Dealing, ProtocolOptions, RollbackOptions
from unlockstep.core.words import counted

SIZE_MAX = 2**20
"""Largest batch, sequence and accumulation: beyond any use."""

SCHEDULES = ("cosine", "constant")
OUTER_OPTIMIZERS = ("nesterov", "sgd")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[section]``. Conditions are written positively, so that NaN fulfils none of them."""

    def _require(self, name: str, valid: bool, fix: str) -> None:
        if not valid:
            section = type(self).__name__.removesuffix("Section").lower()
            value = getattr(self, name)
            shown = msgspec.to_builtins(list(value) if isinstance(value, tuple) else value)
            raise ConfigError(f"{section}.{name} is {shown!r}; {fix}")

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            fix = f"it must be at least {least}" + (" and finite" if isinstance(value, float) else "")
            self._require(name, least <= value < math.inf, fix)

    def _at_most(self, most: int, *names: str) -> None:
        for name in names:
            self._require(name, getattr(self, name) <= most, f"it must be at most {most}")

    def _above_zero(self, *names: str) -> None:
        for name in names:
            self._require(name, 0 < getattr(self, name) < math.inf, "it must be above 0 and finite")

    def _filled(self, *names: str) -> None:
        for name in names:
            self._require(name, bool(getattr(self, name).strip()), "it must not be empty")


class RunSection(_Section, frozen=True):
    """Name, randomness and length of the run."""

    name: str = "run"
    seed: int = 0
    steps: int = 512
    """The run ends when the syncer's clock (inner steps) reaches this; with ``tokens`` it only paces schedules."""
    tokens: int = 0
    """Above 0: the run ends when the learners have trained this many tokens in total, whatever its steps."""

    def __post_init__(self) -> None:
        self._require("name", is_learner_name(self.name), "use letters, digits, _ and - (64 at most, no mark in front)")
        self._require("seed", 0 <= self.seed < 2**63, "it must be a whole number from 0 to 2**63 - 1")
        self._at_least(0, "steps", "tokens")
        self._at_most(2**53, "steps", "tokens")


class ModelSection(_Section, frozen=True):
    """What is trained (``models``)."""

    spec: str = "llama-tiny"
    """A preset, a path to a transformers ``config.json``, or ``package.module:factory``."""

    def __post_init__(self) -> None:
        self._filled("spec")


class Deal(Enum):
    """Who trains on what."""

    SHARDS = "shards"
    """Learner i of M reads its own share of every epoch, whatever becomes of the others."""
    LEASES = "leases"
    """The syncer grants every learner what comes next: each sequence is trained as often as any other."""


class DataSection(_Section, frozen=True):
    """What it is trained on (``data``)."""

    source: str = "stdlib"
    """``stdlib`` (the Python standard library's own source), a folder, a text file, a ``.jsonl`` file, or ``digits`` (a
    megabyte of ``stdlib`` and as many tokens of images with their labels, for a model that sees)."""
    text_field: str = "text"
    """Field of a JSON line that holds the text."""
    tokenizer: str = "bytes"
    """``bytes`` (vocabulary 256) or the path of a Hugging Face ``tokenizer.json``."""
    sequence_length: int = 128
    validation_share: float = 0.05
    deal: Deal = Deal.SHARDS
    """``shards`` or ``leases``; the four settings below are of leases (``core.leasing``)."""
    chunk_sequences: int = 64
    """Sequences granted at once."""
    stock_sequences: int = 256
    """What a learner has before it at least: so much it trains without hearing from the syncer."""
    epochs: int = 0
    """Above 0: the run ends when every sequence is trained so often; its steps then only pace schedules. 0: no end."""

    def __post_init__(self) -> None:
        self._filled("source", "text_field", "tokenizer")
        self._at_least(1, "sequence_length")
        self._at_most(SIZE_MAX, "sequence_length")
        self._at_least(0, "epochs")
        self._at_least(1, "chunk_sequences", "stock_sequences")
        self._at_most(2**32, "chunk_sequences", "stock_sequences", "epochs")
        self._require(
            "epochs",
            self.epochs == 0 or self.deal is Deal.LEASES,
            "with data.deal = 'shards' nobody knows what all learners have trained: choose 'leases', or 0 for no end",
        )
        self._require("validation_share", 0 < self.validation_share < 1, "it must lie between 0 and 1, both excluded")

    @property
    def dealing(self) -> Dealing | None:
        """How the syncer deals the corpus out; None if it does not."""
        if self.deal is Deal.SHARDS:
            return None
        return Dealing(chunk_sequences=self.chunk_sequences, stock_sequences=self.stock_sequences, epochs=self.epochs)


class InnerSection(_Section, frozen=True):
    """A learner's own optimizer: AdamW (``learners.torch_backend``)."""

    learning_rate: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.1
    gradient_norm_max: float = 1.0
    """Gradients are clipped to this norm; 0 switches clipping off."""
    warmup_steps: int = 30
    schedule: str = "cosine"
    """``cosine`` (down to ``final_share`` at ``run.steps``) or ``constant``; a function of the learner's clock."""
    final_share: float = 0.3
    batch_size: int = 4
    accumulation: int = 1
    """Micro-batches per inner step, each of ``batch_size`` sequences."""
    threads: int = 1
    """torch threads per learner; 0 leaves torch's choice."""

    def __post_init__(self) -> None:
        self._above_zero("learning_rate")
        for name in ("beta1", "beta2"):
            self._require(name, 0 <= getattr(self, name) < 1, "it must be from 0 up to, but not including, 1")
        self._at_least(0, "weight_decay", "gradient_norm_max", "warmup_steps", "threads")
        self._require("schedule", self.schedule in SCHEDULES, f"choose one of {', '.join(SCHEDULES)}")
        self._require("final_share", 0 <= self.final_share <= 1, "it must be from 0 to 1")
        self._at_least(1, "batch_size", "accumulation")
        self._at_most(SIZE_MAX, "batch_size", "accumulation")


class OuterSection(_Section, frozen=True):
    """The syncer's optimizer and merge (``core.outer``, ``core.merge``)."""

    optimizer: str = "nesterov"
    learning_rate: float = 0.7
    momentum: float = 0.0
    merge: MergeRule = MergeRule.RADIAL_DIRECTIONAL

    def __post_init__(self) -> None:
        self._require("optimizer", self.optimizer in OUTER_OPTIMIZERS, f"choose one of {', '.join(OUTER_OPTIMIZERS)}")
        self._above_zero("learning_rate")
        self._require("momentum", 0 <= self.momentum < 1, "it must be from 0 up to, but not including, 1")


class AdoptionSection(_Section, frozen=True):
    """How a learner takes a commit between two inner steps (``core.adoption``)."""

    mode: Adoption = Adoption.CARRY
    blend_alpha: float = 0.5
    """Share of the local value kept by ``blend``."""

    def __post_init__(self) -> None:
        self._require("blend_alpha", 0 <= self.blend_alpha <= 1, "it must be from 0 to 1")


class CodecSection(_Section, frozen=True):
    """Numeric format of bodies on the wire (``core.codec``)."""

    upload: Codec = Codec.BFLOAT16
    """Outer gradients, learner to syncer."""
    upload_fallbacks: tuple[Codec, ...] = ()
    """Coarser formats, the finest first, of which the syncer chooses for a learner whose link does not carry ``upload``
    in the time a round may take (``core.codec_choice``); none: every learner uses ``upload``."""
    upload_rounding: Rounding = Rounding.NEAREST
    """... to int8, int4 and int2: ``nearest`` or ``stochastic``."""
    upload_feedback: bool = True
    """What rounding to int8, int4 or int2 takes from a contribution is added to the next one of the fragment
    (``core.feedback``); a learner then keeps a float32 copy of the model for it."""
    upload_packing: Packing = Packing.NONE
    """... and make it smaller without losing a bit: ``zlib``, or the much faster ``zstd`` (``net.wire.packing``)."""
    download: Codec = Codec.FLOAT32
    """Committed versions, syncer to learner."""

    @property
    def uploads(self) -> tuple[Codec, ...]:
        """Formats a learner may be asked to upload in, the finest first."""
        return (self.upload, *self.upload_fallbacks)

    def __post_init__(self) -> None:
        bits = [codec.bits for codec in self.uploads]
        self._require(
            "upload_fallbacks",
            all(coarser < finer for finer, coarser in itertools.pairwise(bits)),
            "each must be coarser than the one before it, and than codec.upload",
        )
        if self.upload_rounding is Rounding.STOCHASTIC:
            self._require(
                "upload_rounding",
                any(codec.is_integer for codec in self.uploads),
                "codec.upload and its fallbacks are not rounded to integers: leave it at 'nearest'",
            )
            self._require(
                "upload_rounding",
                Codec.INT2 not in self.uploads or not self.upload_feedback,
                "int2 is drawn with codec.upload_feedback, and what is left over would outgrow what is sent: choose "
                "'nearest', or switch the feedback off",
            )


class LimitsSection(_Section, frozen=True):
    """What is refused as absurd, whoever sends it (``core.outer_gradient``)."""

    norm_max: float = 1e6
    """Largest norm of one fragment's outer gradient."""
    outlier_factor: float = 10.0
    """... and how many times as long it may be as recent ones, steps compared with steps; 0 switches this bound off."""
    tokens_per_step_max: int = 2**32
    state_bytes_max: int = 2**40
    """Largest state of a learner, parameters and inner optimizer, that is passed on to another (``core.donation``)."""

    def __post_init__(self) -> None:
        self._above_zero("norm_max")
        self._at_least(0, "outlier_factor")
        self._at_least(1, "tokens_per_step_max", "state_bytes_max")


class Durability(Enum):
    """What is on disk before anybody hears of a commit."""

    COMMIT = "commit"
    """The commit. Nothing that was published is ever lost."""
    INTERVAL = "interval"
    """Some earlier one: at most ``interval_commits`` are lost with the syncer's process, all fragments together."""


class DurabilitySection(_Section, frozen=True):
    """What of a run outlives the syncer's process (``store``)."""

    mode: Durability = Durability.COMMIT
    """``commit``: every commit, before anybody hears of it. ``interval``: some earlier one."""
    interval_commits: int = 16
    """Under ``interval``: the most that can be lost; a save is due when half as many are not saved."""
    records_kept: int = 8
    """Saves that stay on disk, and the fragments they name: the newest that is sound is used. More than there are
    fragments, so that there is an earlier version of each."""
    lease_s: float = 5.0
    """Silence after which a standby syncer takes over, seconds."""

    def __post_init__(self) -> None:
        self._at_least(1, "interval_commits", "records_kept")
        self._require("lease_s", 0.1 <= self.lease_s <= 3600, "choose between 0.1 seconds and one hour (3600)")

    @property
    def commits_lost_max(self) -> int:
        """0 where every commit is saved before it is told of."""
        return self.interval_commits if self.mode is Durability.INTERVAL else 0


class EvaluationSection(_Section, frozen=True):
    """The evaluator: validation loss of the global model (``learners.evaluation``)."""

    interval_s: float = 8.0
    """Shortest time between the starts of two evaluations."""
    batches: int = 8
    batch_size: int = 16

    def __post_init__(self) -> None:
        self._above_zero("interval_s")
        self._at_least(1, "batches", "batch_size")


class RecoverySection(_Section, frozen=True):
    """Where a learner that is new, or has lost everything, has its inner optimizer's state from (``core.recovery``)."""

    donor: bool = True
    """From another learner that trains, if there is one; off: from its own checkpoint, or from nowhere."""


class CheckpointSection(_Section, frozen=True):
    """A learner's own checkpoint, if it is given a file for one (``integrations.learner_checkpoint``)."""

    interval_s: float = 30.0
    """Longest time between two; a young process writes more often. 0: only when it leaves a run that goes on."""

    def __post_init__(self) -> None:
        self._at_least(0, "interval_s")


class LocalSection(_Section, frozen=True):
    """A run on this machine (``launch.local``)."""

    learners: int = 4
    evaluator: bool = True
    restarts_max: int = 3
    """Times in a row a process that dies by itself is started again; one that has got something done counts anew."""
    kill_share: float = 1 / 3
    """Where in the run one learner is killed (SIGKILL), as a share of its length; 0 kills nobody."""
    kill_down_s: float = 5.0
    """How long it stays away."""
    slowdown: tuple[float, ...] = ()
    """Per learner: its steps take this many times as long (an injected pause); missing entries are 1."""
    threads_syncer: int = 1
    """Threads the merge uses."""

    def __post_init__(self) -> None:
        self._at_least(1, "learners", "threads_syncer")
        self._at_least(0, "restarts_max", "kill_down_s")
        self._require("kill_share", 0 <= self.kill_share < 1, "it must be from 0 up to, but not including, 1")
        at_least_one = all(1 <= factor < math.inf for factor in self.slowdown)
        self._require("slowdown", at_least_one, "every entry must be at least 1 and finite")
        self._require(
            "slowdown",
            len(self.slowdown) <= self.learners,
            f"it has {len(self.slowdown)} entries for {counted(self.learners, 'learner')} (local.learners): one each "
            "at most",
        )


class VirtualSection(_Section, frozen=True):
    """A run in one process under virtual time (``virtual``): what there takes how long. A learner's own speed is its
    entry in ``local.slowdown``."""

    enabled: bool = False
    """The run is one: ``train`` trains it so, with or without ``--virtual``."""
    step_s: float = 0.1
    """An inner step of a learner that nothing slows down, virtual seconds."""
    jitter: float = 0.0
    """Standard deviation of a step's duration, as a share of its mean (lognormal); 0: all steps take equally long."""
    message_s: float = 0.001
    """A control message, one way."""
    body_s: float = 0.02
    """One fragment, one way, on a link that is not the bottleneck."""
    mbit_per_s: float = 0.0
    """What a learner's link carries each way, shared by the bodies on it; 0: it is never the bottleneck."""
    commit_s: float = 0.01
    """Merge and outer step."""
    save_s: float = 0.002
    """From when the syncer's state is what it is to its being on disk."""
    start_s: float = 0.0
    """From when the tape starts a process, of a learner or of the syncer, to its being there. Who is there when the run
    begins has started."""

    def __post_init__(self) -> None:
        self._above_zero("step_s")
        self._require("jitter", 0 <= self.jitter <= 1, "it must be from 0 to 1")
        self._at_least(0, "message_s", "body_s", "mbit_per_s", "commit_s", "save_s", "start_s")
        self._at_most(86_400, "step_s", "message_s", "body_s", "commit_s", "save_s", "start_s")


class RunConfig(_Section, frozen=True):
    """Everything a run needs to be started again."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    inner: InnerSection = InnerSection()
    outer: OuterSection = OuterSection()
    adoption: AdoptionSection = AdoptionSection()
    codec: CodecSection = CodecSection()
    protocol: ProtocolOptions = ProtocolOptions()
    limits: LimitsSection = LimitsSection()
    rollback: RollbackOptions = RollbackOptions()
    durability: DurabilitySection = DurabilitySection()
    evaluation: EvaluationSection = EvaluationSection()
    recovery: RecoverySection = RecoverySection()
    checkpoint: CheckpointSection = CheckpointSection()
    local: LocalSection = LocalSection()
    virtual: VirtualSection = VirtualSection()

    def __post_init__(self) -> None:
        if self.run.steps == 0 and self.run.tokens == 0 and self.data.epochs == 0:
            raise ConfigError("run.steps and run.tokens are both 0, so the run would never end; set one of them")
        step, data = self.inner.batch_size * self.inner.accumulation, self.data
        if data.deal is Deal.LEASES and data.stock_sequences < step:
            raise ConfigError(
                f"data.stock_sequences is {data.stock_sequences} but a step takes {step} sequences (inner.batch_size "
                "times inner.accumulation); no step could ever begin: raise it to at least that"
            )
        if self.run.steps == 0 and self.inner.schedule == "cosine":
            raise ConfigError(
                "inner.schedule is 'cosine' but run.steps is 0, so it has no end to fall towards; set run.steps or "
                "choose inner.schedule = 'constant'"
            )
        learners, protocol = self.local.learners, self.protocol
        if protocol.quorum > learners:
            raise ConfigError(
                f"protocol.quorum is {protocol.quorum} but local.learners is {learners}; no round could ever close: "
                "lower the quorum or start more learners"
            )
        if learners > protocol.learners_max:
            raise ConfigError(
                f"local.learners is {learners} but protocol.learners_max is {protocol.learners_max}; "
                "start fewer learners or admit more"
            )
        if protocol.overlap_steps > protocol.interval_steps:
            raise ConfigError(
                f"protocol.overlap_steps is {protocol.overlap_steps} but protocol.interval_steps is "
                f"{protocol.interval_steps}; a round must be over before its fragment is due again: lower the overlap "
                "or lengthen the interval"
            )


def load(path: str | Path) -> RunConfig:
    """The configuration in a TOML file; what it leaves out has its default.

    Raises:
        ConfigError: the file cannot be read, or holds a setting that is unknown, of the wrong type or out of range.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist; check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"configuration file {path} is not UTF-8 text; save it as UTF-8 TOML") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"configuration file {path} cannot be read ({error}); check that it is a file") from None
    return loads(text, source=f"configuration file {path}")


def loads(text: str, source: str | None = None) -> RunConfig:
    """The configuration in a TOML text; complaints begin with ``source``. Raises ConfigError as ``load`` does."""
    try:
        settings = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source or 'the configuration'} is not TOML ({error}); correct it there") from None
    try:
        return _build(settings)
    except ConfigError as error:
        raise ConfigError(str(error) if source is None else f"{source}: {error}") from None


def dumps(config: RunConfig) -> str:
    """Every setting as TOML. ``loads(dumps(config)) == config``."""
    return tomli_w.dumps(msgspec.to_builtins(config))


def digest(config: RunConfig) -> str:
    """SHA-256 of the configuration as TOML, hexadecimal: two runs with the same digest have the same settings."""
    return hashlib.sha256(dumps(config).encode()).hexdigest()


def apply(config: RunConfig, overrides: Iterable[str]) -> RunConfig:
    """The configuration with settings replaced, checked once all of them are in.

    Args:
        overrides: ``section.field=value`` each. The value is read as TOML; what is not TOML is taken as text, so that
            ``data.source=books/`` needs no quotes. Of two for one field the last counts.

    Raises:
        ConfigError: an override of another form, or a setting that is unknown, of the wrong type or out of range.
    """
    settings = msgspec.to_builtins(config)
    for override in overrides:
        path, equals, text = override.partition("=")
        section, dot, field = path.strip().partition(".")
        if not (equals and dot):
            raise ConfigError(f"override {override!r} is not a setting; write section.field=value")
        settings.setdefault(section, {})[field] = _value(text.strip())
    return _build(settings)


def _value(text: str) -> Any:
    try:
        values = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return values["value"] if len(values) == 1 else text  # A line break in the text must not smuggle in a second key.


def _build(settings: dict[str, Any]) -> RunConfig:
    _check_names(settings)
    try:
        return msgspec.convert(settings, RunConfig)
    except msgspec.ValidationError as error:
        raise _explain(settings, error) from None


def _check_names(settings: dict[str, Any]) -> None:
    sections = {section.name: section.type for section in msgspec.structs.fields(RunConfig)}
    for section, fields in settings.items():
        if section not in sections:
            raise ConfigError(f"{section or repr(section)} is not a section; {_suggest(section, sections)}")
        known = sections[section].__struct_fields__
        for field in fields if isinstance(fields, dict) else ():
            if field not in known:
                raise ConfigError(f"{section}.{field} is not a setting; {_suggest(field, known, f'{section}.')}")


def _suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {prefix}{close[0]}?" if close else f"choose one of {', '.join(names)}"


def _explain(settings: dict[str, Any], error: msgspec.ValidationError) -> ConfigError:
    """One sentence for a value of the wrong type. Of msgspec's own message only the path is used: ``$.section.field``,
    with ``[0]`` behind it for an element of a list."""
    found = re.search(r"at `\$\.(\w+)(?:\.(\w+))?", str(error))
    if found is None:
        return ConfigError(f"the configuration is not valid ({error}); correct it")
    section, field = found.groups()
    if field is None:
        return ConfigError(f"{section} is {settings[section]!r}; it must be a section that begins with [{section}]")
    kind = typing.get_type_hints(typing.get_type_hints(RunConfig)[section])[field]
    return ConfigError(f"{section}.{field} is {settings[section][field]!r}; it must be {_describe(kind)}")


_NUMBERS = "a list of numbers in brackets"


def _describe(kind: Any) -> str:
    if isinstance(kind, types.GenericAlias):
        item = typing.get_args(kind)[0]
        return f"a list in brackets, each {_describe(item)}" if issubclass(item, Enum) else _NUMBERS
    if issubclass(kind, Enum):
        return f"one of {', '.join(member.value for member in kind)}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}[kind]

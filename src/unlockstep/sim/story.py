"""One run told in advance: settings, learners and their speeds, links, and a tape of what goes wrong.

Decides what is drawn from a seed, and how often. Swarm style: in each story most kinds of fault are missing and the
others are likely, and every limit is tiny or ordinary; what never meets in an average run meets here. Does not decide
what must hold of a story (``swarm``).

A story is kept in a TOML file that is a tape (``unlockstep.tape``) with a table ``[story]`` more. Of its settings only
those that differ from the defaults are written.
"""

from __future__ import annotations

import random
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from unlockstep import config as run_config
from unlockstep import tape as tapes
from unlockstep.config import Durability, RunConfig
from unlockstep.core.adoption import Adoption
from unlockstep.core.errors import UsageError
from unlockstep.core.formats import Codec, Rounding
from unlockstep.core.merge import MergeRule
from unlockstep.core.options import Anchor, Late, Participation, ProtocolOptions, RollbackOptions
from unlockstep.sim.network import MILLISECOND_NS, SECOND_NS, Costs, LinkModel

_PLAIN = (Codec.FLOAT32, Codec.BFLOAT16)
_INTEGERS = tuple(codec for codec in Codec if codec.is_integer)

STEPS_ENDLESS = 10**6
"""Length of a run that goes on until it is told to end."""

SHAPES = ((1, 1, 1), (1, 4, 2), (2, 3, 0), (3, 8, 2), (4, 4, 2), (4, 8, 8), (5, 12, 3), (8, 4, 2), (6, 24, 2))
"""P, H and tau: more and fewer fragments than steps, whole numbers of rounds a step and not, one round at a time and
several."""

RATIOS = (1, 1, 1, 1, 1.3, 2, 3, 4, 5, 8, 12, 13, 20)
"""How many times slower than the fastest: many of them divide an H."""

YOUNG: tuple[type[tapes.Action], ...] = (tapes.Delay, tapes.Fill, tapes.Free, tapes.Jump)
"""Came later. A jump of the wall clock changes nothing here, and so never happens."""

_Trouble = tuple[float, int, type[tapes.Action], type[tapes.Action]]
"""Where in the tape, as a share of it; how long; what begins it, and what ends it."""

RECOVERIES: tuple[type[tapes.Action], ...] = (tapes.Join, tapes.Restart, tapes.Continue, tapes.Heal)
"""Never missing: what is broken for good has no more to tell."""


class Story(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that happens in a run, but for what the protocol makes of it."""

    seed: int
    """Of the network's chance, of every learner's noise, and of who is asked to make progress in the end."""
    config: RunConfig
    step_ns: dict[str, int]
    """Every learner of the tape -> duration of its inner step at its own speed."""
    costs: Costs = Costs()
    links: LinkModel = LinkModel()
    diverges: dict[str, int] = {}
    """Learners whose model becomes NaN once, in this step of a process."""
    evaluation_ns: int = 0
    """Above 0: so often, until the tape ends, a validation loss is reported."""
    spikes: tuple[int, ...] = ()
    """Numbers of those, from 0, that are out of all proportion."""
    corpus_sequences: int = 0
    """Of an imaginary corpus, where the configuration has it dealt out by leases; a step takes
    ``inner.batch_size`` of them."""
    tape: tapes.Tape
    """What goes wrong, until ``tape.end_ns``; after that nothing does any more."""


def draw(seed: int) -> Story:
    """The story of a seed: the same whenever it is asked for."""
    chance = random.Random(seed)
    names = tuple(f"learner-{number}" for number in range(chance.choice((1, 2, 2, 3, 3, 4, 5, 6))))
    at_start = names[: chance.randint(1, len(names))]
    fastest_ns = chance.choice((20, 50, 100, 100, 130)) * MILLISECOND_NS
    step_ns = {name: round(fastest_ns * chance.choice(RATIOS)) for name in names}
    end_ns = max(chance.choice((2, 4, 6)) * SECOND_NS, min(3 * max(step_ns.values()), 12 * SECOND_NS))
    end_ns *= chance.choice((1, 1, 1, 1, 6))
    diverges = {name: chance.randint(1, 40) for name in names if chance.random() < 0.5} if _rarely(chance) else {}
    disk = random.Random(f"{seed}/disk")
    data = random.Random(f"{seed}/data")
    config = msgspec.structs.replace(_config(chance, len(names)), durability=_durability(disk))
    if data.random() < 0.5:
        config = _leases(data, config)
    recovery = run_config.RecoverySection(donor=random.Random(f"{seed}/recovery").random() < 0.5)
    config = msgspec.structs.replace(config, recovery=recovery)
    judge = random.Random(f"{seed}/judge")
    if judge.random() < 0.3:
        rollback = RollbackOptions(spike_factor=2.0, window=judge.choice((1, 2, 5)))
        config = msgspec.structs.replace(config, rollback=rollback)
    config = _quarantine(config, random.Random(f"{seed}/quarantine"))
    config = _integers(config, random.Random(f"{seed}/codec"))
    # Often nothing happens until the first rounds are over: what goes wrong then has more to go wrong with.
    calm_ns = chance.choice((0, 1, 2)) * config.protocol.interval_steps * fastest_ns
    return Story(
        seed=seed,
        config=config,
        step_ns=step_ns,
        costs=Costs(
            message_ns=chance.choice((0, 1, 1, 30)) * MILLISECOND_NS,
            body_ns=chance.choice((0, 20, 20, 300)) * MILLISECOND_NS,
            commit_ns=chance.choice((0, 10, 10, 300)) * MILLISECOND_NS,
            save_ns=disk.choice((0, 2, 2, 200)) * MILLISECOND_NS,
        ),
        links=_links(chance),
        diverges=diverges,
        corpus_sequences=data.choice((3, 20, 60, 400)) if config.data.dealing else 0,
        **(_evaluations(judge) if config.rollback.spike_factor else {}),
        tape=_tape(
            chance,
            f"seed-{seed}",
            names,
            at_start,
            calm_ns,
            calm_ns + end_ns,
            _deaths(disk) + _full_disks(seed),
            _young(seed),
        ),
    )


def _rarely(chance: random.Random) -> bool:
    return chance.random() < 0.15


def _config(chance: random.Random, learners: int) -> RunConfig:
    fragments, interval_steps, overlap_steps = chance.choice(SHAPES)
    quorum = min(learners, chance.choice((1, 1, 1, 2, 2, 3)))
    tiny = chance.random() < 0.3
    anchor = chance.choice((Anchor.LEARNER, Anchor.LEARNER, Anchor.SYNCER))
    protocol = ProtocolOptions(
        fragments=fragments,
        interval_steps=interval_steps,
        overlap_steps=overlap_steps,
        quorum=quorum,
        participation=chance.choice((Participation.LATEST, Participation.LATEST, Participation.FRESH)),
        late=chance.choice(list(Late)),
        anchor=anchor,
        grace_factor=chance.choice((0.0, 0.5, 0.8, 0.95)),
        grace_cap_steps=chance.choice((0.0, 1.0, 1.0, 3.0)),
        average_weight=chance.choice((0.25, 1.0)),
        lease_s=chance.choice((0.5, 2.0, 2.0, 10.0)),
        staleness_max=chance.choice((0, 1, 2)) if tiny else 16,
        strikes_max=chance.choice((1, 2)) if tiny else 3,
        closed_rounds_max=chance.choice((1, 2, 8)) if tiny else 4096,
        learners_max=chance.randint(quorum, learners) if tiny else 1024,
    )
    momentum = chance.choice((0.0, 0.5, 0.9))
    # Numbers that stay small: of a run whose parameters explode nothing can be demanded.
    is_touchy = momentum > 0.5 or anchor is Anchor.SYNCER
    return RunConfig(
        run=_length(chance),
        inner=run_config.InnerSection(schedule="constant"),
        outer=run_config.OuterSection(
            optimizer="nesterov" if momentum else "sgd",
            learning_rate=chance.choice((0.1, 0.3) if is_touchy else (0.4, 0.7)),
            momentum=momentum,
            merge=chance.choice(list(MergeRule)),
        ),
        adoption=run_config.AdoptionSection(mode=chance.choice(list(Adoption)), blend_alpha=chance.choice((0.2, 0.5))),
        codec=run_config.CodecSection(upload=chance.choice(_PLAIN), download=chance.choice(_PLAIN)),
        protocol=protocol,
        local=run_config.LocalSection(learners=quorum),
    )


def _evaluations(chance: random.Random) -> dict[str, Any]:
    """The losses that somebody reports."""
    share = chance.choice((0.05, 0.2, 0.6))
    spikes = tuple(number for number in range(200) if chance.random() < share)
    return {"evaluation_ns": chance.choice((50, 200, 700)) * MILLISECOND_NS, "spikes": spikes}


def _quarantine(config: RunConfig, chance: random.Random) -> RunConfig:
    """Long enough to be noticed, short enough for a story."""
    pause_s = chance.choice((0.0, 0.2, 1.0, 3.0))
    changes = {"quarantine_s": pause_s, "quarantine_s_max": max(0.05, pause_s * chance.choice((1, 4)))}
    return msgspec.structs.replace(config, protocol=msgspec.structs.replace(config.protocol, **changes))


def _integers(config: RunConfig, chance: random.Random) -> RunConfig:
    """In half of the stories what is handed over is rounded to integers, by some learners or all of them; in a quarter
    what is published is."""
    codec = config.codec
    if chance.random() < 0.5:
        formats = sorted(chance.sample(list(Codec), chance.choice((1, 1, 2, 3))), key=lambda codec: -codec.bits)
        if not formats[-1].is_integer:
            formats[-1:] = [chance.choice(_INTEGERS)]
        feedback = chance.random() < 0.7
        may_draw = Codec.INT2 not in formats or not feedback
        codec = run_config.CodecSection(
            upload=formats[0],
            upload_fallbacks=tuple(formats[1:]),
            upload_rounding=chance.choice(list(Rounding)) if may_draw else Rounding.NEAREST,
            upload_feedback=feedback,
            download=codec.download,
        )
    if chance.random() < 0.25:
        codec = msgspec.structs.replace(codec, download=chance.choice(_INTEGERS))
    return msgspec.structs.replace(config, codec=codec)


def _durability(chance: random.Random) -> run_config.DurabilitySection:
    mode = chance.choice((Durability.COMMIT, Durability.COMMIT, Durability.INTERVAL))
    return run_config.DurabilitySection(mode=mode, interval_commits=chance.choice((2, 5, 30)))


def _leases(chance: random.Random, config: RunConfig) -> RunConfig:
    """The corpus is dealt out. Often it has an end: then the run has one, too."""
    batch = chance.choice((1, 1, 2, 3))
    chunk = chance.choice((1, 2, 3, 5, 16))
    data = run_config.DataSection(
        deal=run_config.Deal.LEASES,
        chunk_sequences=chunk,
        stock_sequences=max(batch, chance.choice((1, chunk, 2 * chunk, 4 * chunk))),
        epochs=chance.choice((0, 0, 1, 2)),
    )
    inner = msgspec.structs.replace(config.inner, batch_size=batch)
    return msgspec.structs.replace(config, data=data, inner=inner)


def _length(chance: random.Random) -> run_config.RunSection:
    """Mostly until the run is told to end, else so short that it ends in the middle of the tape: by steps or tokens."""
    steps = chance.randint(5, 60) if _rarely(chance) else STEPS_ENDLESS
    return run_config.RunSection(steps=steps, tokens=20 * steps if steps < STEPS_ENDLESS and steps % 2 else 0)


def _links(chance: random.Random) -> LinkModel:
    return LinkModel(
        jitter_ns=chance.choice((0, 0, 0, 5, 200)) * MILLISECOND_NS,
        loss=chance.choice((0.0, 0.0, 0.0, 0.05, 0.3)),
        damage=chance.choice((0.0, 0.0, 0.0, 0.05)),
        repeats=chance.choice((0.0, 0.0, 0.0, 0.1, 0.5)),
        bits_per_s=chance.choice((0.0, 0.0, 0.0, 1e5, 2e4)),
        attempts=chance.choice((1, 2, 0, 0)),
    )


# ------------------------------------------------------------------------------------------------ the tape


def _tape(
    chance: random.Random,
    name: str,
    learners: tuple[str, ...],
    at_start: tuple[str, ...],
    begin_ns: int,
    end_ns: int,
    troubles: list[_Trouble],
    young: dict[type[tapes.Action], int],
) -> tapes.Tape:
    """Walk through what is possible (``tape.Standing``), each kind of action with a likelihood of this story's own; and
    the syncer has ``troubles`` beside that."""
    weights = {kind: chance.choice((0, 0, 1, 1, 5)) for kind in tapes.KINDS.values() if kind not in YOUNG}
    weights |= young
    for kind in RECOVERIES:
        weights[kind] = max(1, weights[kind])
    syncer_share = chance.choice((0.0, 0.0, 0.1, 0.3))
    times = sorted(chance.randrange(begin_ns, end_ns) for _ in range(chance.choice((0, 2, 4, 8, 12, 20))))
    moments: list[tuple[int, type[tapes.Action] | None]] = [(at_ns, None) for at_ns in times]
    for share, away_ns, begins, ends in troubles:
        at_ns = round(begin_ns + share * (end_ns - begin_ns))
        moments += [(at_ns, begins), (min(at_ns + away_ns, end_ns), ends)]
    standing = tapes.Standing(at_start)
    actions = []
    for at_ns, what in sorted(moments, key=lambda moment: moment[0]):
        if what is not None:
            target, kinds = tapes.SYNCER, [kind for kind in standing.possible(tapes.SYNCER) if kind is what]
        else:
            target = tapes.SYNCER if chance.random() < syncer_share else chance.choice(learners)
            kinds = [kind for kind in standing.possible(target) if weights[kind]]
        if kinds:
            kind = what or chance.choices(kinds, [weights[kind] for kind in kinds])[0]
            action = kind(at_ns=at_ns, target=target, **_values(chance, kind))
            standing.move(action)
            actions.append(action)
    return tapes.Tape(name=name, learners=at_start, actions=tuple(actions), end_ns=end_ns)


def _young(seed: int) -> dict[type[tapes.Action], int]:
    """How likely the kinds are that older stories do not have: in three of four stories none of them happens, and
    those are what they were before there were any."""
    chance = random.Random(f"{seed}/young")
    if chance.random() < 0.75:
        return dict.fromkeys(YOUNG, 0)
    return {kind: chance.choice((0, 1, 5)) for kind in YOUNG} | {tapes.Free: 2, tapes.Jump: 0}


def _full_disks(seed: int) -> list[_Trouble]:
    """In one of ten stories: when the syncer's disk is full, and for how long."""
    chance = random.Random(f"{seed}/full")
    count = chance.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 2))
    return [
        (chance.random(), chance.choice((10, 300, 2000)) * MILLISECOND_NS, tapes.Fill, tapes.Free) for _ in range(count)
    ]


def _deaths(chance: random.Random) -> list[_Trouble]:
    """In three of eight stories: where in the tape the syncer dies, as a share of it, and how long it is away."""
    count = chance.choice((0, 0, 0, 0, 0, 1, 2, 5))
    return [
        (chance.random(), chance.choice((0, 100, 1000)) * MILLISECOND_NS, tapes.Kill, tapes.Restart)
        for _ in range(count)
    ]


def _values(chance: random.Random, kind: type[tapes.Action]) -> dict[str, Any]:
    """The level of an action that has one."""
    if kind is tapes.Slow:
        return {"factor": chance.choice((0.5, 1.0, 2.0, 5.0, 20.0))}
    if kind is tapes.Cut:
        return {"direction": chance.choice(("both", "up", "down"))}
    if kind is tapes.Throttle:
        return {"mbit_per_s": chance.choice((0.0, 0.002, 0.02, 1.0))}
    if kind is tapes.Corrupt:
        return {"bodies": chance.choice((1, 1, 3, 10))}
    if kind is tapes.Delay:
        return {"seconds": chance.choice((0.0, 0.02, 0.2, 1.0))}
    return {}


# ------------------------------------------------------------------------------------------------ files


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[story]``."""

    seed: int
    step_ns: dict[str, int]
    costs: Costs = Costs()
    links: LinkModel = LinkModel()
    diverges: dict[str, int] = {}
    corpus_sequences: int = 0
    evaluation_ns: int = 0
    spikes: tuple[int, ...] = ()
    config: dict[str, dict[str, Any]] = {}
    """Section -> setting -> value, of those that are not as in ``RunConfig()``."""


def dumps(story: Story) -> str:
    """A story as TOML. ``loads(dumps(story)) == story``."""
    table: dict[str, Any] = {"seed": story.seed, "step_ns": story.step_ns}
    for name, usual in (("costs", Costs()), ("links", LinkModel())):
        ordinary = msgspec.to_builtins(usual)
        values = msgspec.to_builtins(getattr(story, name))
        table[name] = {field: value for field, value in values.items() if value != ordinary[field]}
    table |= {"diverges": story.diverges, "corpus_sequences": story.corpus_sequences}
    if story.evaluation_ns:
        table |= {"evaluation_ns": story.evaluation_ns, "spikes": list(story.spikes)}
    table |= {"config": _differences(story.config)}
    filled = {name: value for name, value in table.items() if value not in ({}, 0) or name == "seed"}
    return f"{tapes.dumps_toml(story.tape)}\n{tomli_w.dumps({'story': filled})}"


def loads(text: str, source: str = "the story") -> Story:
    """The story in a text.

    Raises:
        UsageError: it is not one; the sentence says where, and how to mend it.
    """
    try:
        whole = tomllib.loads(text, parse_float=Decimal)
        if "story" not in whole:
            raise _no_story(source)
        table = msgspec.convert(tomllib.loads(text)["story"], _Settings)
    except (ValueError, ArithmeticError, RecursionError, msgspec.ValidationError) as error:
        raise UsageError(f"{source} is not a story ({error}); correct it there") from None
    whole.pop("story")
    story = Story(
        seed=table.seed,
        config=run_config.loads(tomli_w.dumps(table.config), source),
        step_ns=table.step_ns,
        costs=table.costs,
        links=table.links,
        diverges=table.diverges,
        corpus_sequences=table.corpus_sequences,
        evaluation_ns=table.evaluation_ns,
        spikes=table.spikes,
        tape=tapes.loads(tomli_w.dumps(whole), "toml", source),
    )
    if missing := sorted(set(story.tape.cast) - story.step_ns.keys()):
        raise UsageError(f"{source}: step_ns says nothing of {', '.join(missing)}; add how long its steps take")
    return story


def read(path: str | Path) -> Story:
    """The story in a file. Raises UsageError as ``loads``, or if the file cannot be read."""
    if str(path) in tapes.shipped() or Path(path).suffix == ".jsonl":
        raise _no_story(str(path))
    try:
        return loads(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"story {path} cannot be read ({error}); check the path") from None


def _no_story(source: str) -> UsageError:
    return UsageError(
        f"{source} is not a story (it has no table [story]); if it is a tape, play it with "
        f"unlockstep simulate tape {source}"
    )


def _differences(config: RunConfig) -> dict[str, dict[str, Any]]:
    default = msgspec.to_builtins(RunConfig())
    different = {
        section: {name: value for name, value in fields.items() if value != default[section][name]}
        for section, fields in msgspec.to_builtins(config).items()
    }
    return {section: fields for section, fields in different.items() if fields}

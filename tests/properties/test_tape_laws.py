"""Laws of the event tape: what is valid survives both formats; whatever else is written raises nothing unforeseen."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from unlockstep import tape
from unlockstep.chaos.supervisor import PlayedTape
from unlockstep.core.errors import UsageError
from unlockstep.tape import (
    KINDS,
    SYNCER,
    Action,
    Corrupt,
    Cut,
    Delay,
    Fill,
    Free,
    Heal,
    Join,
    Jump,
    Kill,
    Leave,
    Restart,
    Slow,
    Standing,
    Tape,
    Throttle,
)

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True)
learner_names = names.filter(lambda name: name != SYNCER)
texts = st.text(st.characters(exclude_categories=["Cs"]))
factors = st.floats(tape.FACTOR_MIN, tape.FACTOR_MAX)
rates = st.just(0.0) | st.floats(tape.MBIT_PER_S_MIN, tape.MBIT_PER_S_MAX)
FEW = ("a", "b", "c")


def values_of(kind: type[Action]) -> dict[str, st.SearchStrategy[object]]:
    return {
        Slow: {"factor": factors},
        Throttle: {"mbit_per_s": rates},
        Cut: {"direction": st.sampled_from(["both", "up", "down"])},
        Corrupt: {"bodies": st.integers(1, tape.BODIES_MAX)},
        Delay: {"seconds": st.floats(0, tape.DELAY_S_MAX)},
        Jump: {"seconds": st.floats(-tape.JUMP_S_MAX, tape.JUMP_S_MAX)},
    }.get(kind, {})


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    """A valid story, made up with the help of what ``Standing`` says is possible next."""
    everybody = draw(st.lists(learner_names, min_size=1, max_size=4, unique=True))
    learners = tuple(everybody[: draw(st.integers(1, len(everybody)))])
    standing, actions = Standing(learners), []
    for at_ns in sorted(draw(st.lists(st.integers(0, tape.AT_NS_MAX), max_size=12))):
        target = draw(st.sampled_from([*everybody, SYNCER]))
        kind = draw(st.sampled_from(standing.possible(target)))
        values = {field: draw(strategy) for field, strategy in values_of(kind).items()}
        actions.append(kind(at_ns=at_ns, target=target, **values))
        standing.move(actions[-1])
    last_ns = actions[-1].at_ns if actions else 0
    end_ns = draw(st.just(0) | st.integers(last_ns, tape.AT_NS_MAX))
    began_ns = draw(st.none() | st.integers(0, tape.AT_NS_MAX))
    return Tape(
        name=draw(names), about=draw(texts), learners=learners, actions=tuple(actions), end_ns=end_ns, began_ns=began_ns
    )


@given(tapes())
def test_a_tape_reads_back_equal_from_both_formats(valid: Tape) -> None:
    assert tape.loads(tape.dumps_toml(valid), "toml") == valid
    assert tape.loads(tape.dumps_lines(valid), "jsonl") == valid


@given(tapes(), st.integers(0, tape.AT_NS_MAX))
def test_what_was_played_is_a_tape_after_every_action_and_every_byte(whole: Tape, log_ns: int) -> None:
    """A kill may cut short the line that is being written: the file then is the tape that it was before."""
    with tempfile.TemporaryDirectory() as folder:
        path, notes = Path(folder) / "tape.jsonl", []
        played = PlayedTape(whole, path, notes.append)
        assert not path.exists()
        played.begin(log_ns)
        done: tuple[Action, ...] = ()
        for action in whole.actions:
            before, text_before = part_of(whole, done, log_ns), path.read_text(encoding="utf-8")
            assert tape.read(path) == before
            played.add(action, action.at_ns)
            text = path.read_text(encoding="utf-8")
            done = (*done, action)
            assert text.startswith(text_before)
            for end in {len(text_before), len(text_before) + 1, len(text) - 2}:
                assert tape.loads(text[:end], "jsonl") == before
            assert tape.read(path) == part_of(whole, done, log_ns)
        played.end(whole.end_ns)
        assert tape.read(path) == msgspec.structs.replace(whole, began_ns=log_ns)
        assert notes == []


def part_of(whole: Tape, actions: tuple[Action, ...], log_ns: int) -> Tape:
    return Tape(name=whole.name, about=whole.about, learners=whole.learners, actions=actions, began_ns=log_ns)


@given(st.integers(0, 30 * 86_400 * 10**9))
def test_seconds_are_exact_to_the_nanosecond(at_ns: int) -> None:
    text = (
        f'name = "x"\nlearners = []\n[[action]]\nat_s = {at_ns // 10**9}.{at_ns % 10**9:09}\ndo = "join"\ntarget = "a"'
    )
    assert tape.loads(text, "toml").actions[0].at_ns == at_ns


anything_done = st.lists(
    st.builds(
        lambda kind, target, values: kind(at_ns=0, target=target, **values.get(kind, {})),
        st.sampled_from(list(KINDS.values())),
        st.sampled_from([*FEW, SYNCER]),
        st.fixed_dictionaries(
            {Slow: st.just({"factor": 2.0}), Throttle: st.just({"mbit_per_s": 1.0})}
            | dict.fromkeys((Delay, Jump), st.just({"seconds": 1.0}))
        ),
    ),
    max_size=8,
)


@given(anything_done)
def test_what_is_accepted_never_does_anything_to_a_process_that_is_not_there(actions: list[Action]) -> None:
    try:
        Tape(name="x", learners=FEW[:2], actions=tuple(actions))
    except UsageError as error:
        assert str(error).startswith("tape 'x', action ")
        assert len(str(error).splitlines()) == 1
        return
    alive = {*FEW[:2], SYNCER}
    for action in actions:
        if isinstance(action, Join | Restart):
            assert action.target not in alive
            alive.add(action.target)
        elif not isinstance(action, Cut | Heal | Throttle | Delay | Fill | Free | Jump):
            assert action.target in alive
            alive -= {action.target} if isinstance(action, Kill | Leave) else set()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
toml_values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.times(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
field_names = st.sampled_from(["at_s", "at_ns", "target", "factor", "bodies", "direction", "mbit_per_s", "seconds"])


def actions_of(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """Something like an action: a field or two are what they should be, the others are not."""
    begun = st.fixed_dictionaries(
        {}, optional={"do": st.sampled_from(list(KINDS)) | values, "target": st.sampled_from(FEW)}
    )
    return st.builds(lambda one, other: {**one, **other}, begun, st.dictionaries(field_names, values, max_size=3))


def headers_of(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    sound = {"schema": st.just(1), "name": st.just("x"), "learners": st.just(["a"])}
    wrong = st.dictionaries(st.sampled_from([*sound, "about", "end_s", "end_ns", "action"]), values, max_size=1)
    return st.builds(lambda one, other: {**one, **other}, st.fixed_dictionaries(sound), wrong)


@given(headers_of(json_values), st.lists(actions_of(json_values) | json_values, max_size=3))
def test_any_json_gives_a_tape_or_one_sentence(header: object, records: list[object]) -> None:
    text = "\n".join(msgspec.json.encode(record).decode() for record in (header, *records))
    one_sentence(text, "jsonl")


@given(headers_of(toml_values), st.lists(actions_of(toml_values), max_size=3))
def test_any_toml_gives_a_tape_or_one_sentence(header: dict[str, object], records: list[object]) -> None:
    one_sentence(tomli_w.dumps({"action": records, **header}), "toml")


@given(
    st.text() | st.binary().map(lambda data: data.decode("utf-8", errors="replace")), st.sampled_from(["toml", "jsonl"])
)
def test_any_text_gives_a_tape_or_one_sentence(text: str, file_format: tape.Format) -> None:
    one_sentence(text, file_format)


def one_sentence(text: str, file_format: tape.Format) -> None:
    try:
        tape.loads(text, file_format)
    except UsageError as error:
        assert len(str(error).splitlines()) == 1

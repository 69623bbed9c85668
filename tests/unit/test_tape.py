"""The event tape: both files come back as they were written; what makes no sense is refused in one sentence."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from unlockstep import tape
from unlockstep.core.errors import UsageError
from unlockstep.tape import (
    AT_NS_MAX,
    KINDS,
    LINK_MOVES,
    MOVES,
    SYNCER,
    SYNCER_KINDS,
    Action,
    Continue,
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
    LinkState,
    Replace,
    Restart,
    Slow,
    Standing,
    Stop,
    Tape,
    TargetState,
    Throttle,
)

SECOND = 1_000_000_000

EVERY_ACTION: tuple[Action, ...] = (
    Kill(at_ns=0, target="a"),
    Restart(at_ns=1, target="a"),
    Stop(at_ns=1, target="b"),
    Slow(at_ns=1, target="b", factor=2.5),
    Continue(at_ns=1_500_000_000, target="b"),
    Cut(at_ns=2 * SECOND, target="a", direction="up"),
    Heal(at_ns=3 * SECOND, target="a"),
    Cut(at_ns=3 * SECOND, target="a"),
    Throttle(at_ns=3 * SECOND, target="b", mbit_per_s=0.1),
    Corrupt(at_ns=4 * SECOND, target="b", bodies=3),
    Delay(at_ns=4 * SECOND, target="b", seconds=0.25),
    Fill(at_ns=4 * SECOND, target=SYNCER),
    Free(at_ns=5 * SECOND, target=SYNCER),
    Jump(at_ns=5 * SECOND, target="b", seconds=-86_400.0),
    Join(at_ns=5 * SECOND, target="c"),
    Replace(at_ns=5 * SECOND, target="c"),
    Leave(at_ns=6 * SECOND, target="a"),
    Kill(at_ns=7 * SECOND, target=SYNCER),
    Restart(at_ns=30 * 86_400 * SECOND + 1, target=SYNCER),
)
EVERYTHING = Tape(name="everything", about='All "twelve".\n', learners=("a", "b"), actions=EVERY_ACTION)


def story(*actions: Action, learners: tuple[str, ...] = ("a", "b"), end_ns: int = 0) -> Tape:
    return Tape(name="story", learners=learners, actions=actions, end_ns=end_ns)


def complaint(*actions: Action, learners: tuple[str, ...] = ("a", "b"), end_ns: int = 0) -> str:
    with pytest.raises(UsageError) as caught:
        story(*actions, learners=learners, end_ns=end_ns)
    return str(caught.value)


def complaint_about(text: str, file_format: tape.Format) -> str:
    with pytest.raises(UsageError) as caught:
        tape.loads(text, file_format, source="night." + file_format)
    return str(caught.value)


# ----------------------------------------------------------------------------------------------- the files


@pytest.mark.parametrize("ending", ["toml", "jsonl"])
def test_a_tape_comes_back_as_it_was_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"everything.{ending}"
    tape.write(EVERYTHING, path)
    assert tape.read(path) == EVERYTHING
    assert tape.read(str(path)) == EVERYTHING


def test_what_an_action_does_is_said_with_its_values() -> None:
    lifted = (
        Slow(at_ns=8 * SECOND, target="b", factor=1.0),
        Throttle(at_ns=8 * SECOND, target="b", mbit_per_s=0.0),
        Delay(at_ns=8 * SECOND, target="b", seconds=0.0),
        Corrupt(at_ns=8 * SECOND, target="b", bodies=2_000_000),
        Jump(at_ns=8 * SECOND, target="b", seconds=1e9),
    )
    assert [tape.said(action) for action in (*EVERY_ACTION, *lifted)] == [
        "kill a",
        "restart a",
        "stop b",
        "slow b (factor 2.5)",
        "continue b",
        "cut a (direction up)",
        "heal a",
        "cut a (direction both)",
        "throttle b (mbit_per_s 0.1)",
        "corrupt b (bodies 3)",
        "delay b (seconds 0.25)",
        "fill syncer",
        "free syncer",
        "jump b (seconds -86400)",
        "join c",
        "replace c",
        "leave a",
        "kill syncer",
        "restart syncer",
        "slow b (factor 1: its own speed)",
        "throttle b (mbit_per_s 0: lifted)",
        "delay b (seconds 0: lifted)",
        "corrupt b (bodies 2000000)",
        "jump b (seconds 1000000000)",
    ]


def test_the_example_holds_every_action() -> None:
    assert {type(action) for action in EVERY_ACTION} == set(KINDS.values())
    assert list(KINDS) == [
        "kill", "stop", "continue", "restart", "slow", "cut", "heal", "throttle", "corrupt", "join", "leave", "replace",
        "delay", "fill", "free", "jump",
    ]  # fmt: skip


def test_toml_as_people_read_it() -> None:
    crash = story(Kill(at_ns=20 * SECOND, target="a"), Restart(at_ns=35_500_000_000, target="a"), learners=("a",))
    assert tape.dumps_toml(crash) == (
        'name = "story"\nabout = ""\nlearners = [\n    "a",\n]\nend_s = 35.5\n\n'
        '[[action]]\nat_s = 20\ndo = "kill"\ntarget = "a"\n\n'
        '[[action]]\nat_s = 35.5\ndo = "restart"\ntarget = "a"\n'
    )


def test_json_lines_as_machines_read_them() -> None:
    assert tape.dumps_lines(story(Corrupt(at_ns=7, target="a"), Cut(at_ns=7, target="b", direction="down"))) == (
        '{"schema":1,"name":"story","about":"","learners":["a","b"],"end_ns":7}\n'
        '{"do":"corrupt","at_ns":7,"target":"a"}\n'
        '{"do":"cut","at_ns":7,"target":"b","direction":"down"}\n'
    )


def test_what_a_file_leaves_out_has_its_default() -> None:
    text = 'name = "x"\nlearners = ["a"]\naction = [{ at_s = 1.5, do = "cut", target = "a" }]'
    cut = Cut(at_ns=1_500_000_000, target="a", direction="both")
    assert tape.loads(text, "toml") == Tape(name="x", learners=("a",), actions=(cut,), end_ns=1_500_000_000)


def test_seconds_are_exact_to_the_nanosecond_after_a_month() -> None:
    text = 'name = "x"\nlearners = []\n[[action]]\nat_s = 2592000.000000001\ndo = "join"\ntarget = "a"'
    assert tape.loads(text, "toml").actions[0].at_ns == 2_592_000_000_000_001


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ('name = 3\nlearners = ["a"]', "name is 3; it must be text"),
        ('name = "x"\nlearners = "a"', "learners is 'a'; it must be a list of names"),
        ('name = "x"', "learners is missing; add it"),
        ('learners = ["a"]', "name is missing; add it"),
        (
            'name = "x"\nlearner = ["a"]',
            "is not a field there; choose from name, about, learners, end_s, ",
        ),
        ('name = "x"\nlearners = ["a"]\nend_ns = 1', "'end_ns' is not a field there; choose from name, about, "),
        ('name = "x"\nlearners = ["a"]\nend_s = nan', "end_s is NaN; it must be a number of seconds from 0 to "),
        ('name = "x"\nlearners = ["a"]\nschema = 2', "schema is 2 but this version reads schema 1; check that "),
        ('name = "x"\nlearners = ["a"]\naction = "kill"', "action is 'kill'; begin each action with [[action]]"),
        ('name = "x"\nlearners = ["a"]\nend_s = 1e-10', "with nine digits behind the point at most"),
        ('name = "x y"\nlearners = ["a"]', "the name of a tape is 'x y'; use letters, digits, _ and - (64 at most, "),
    ],
)
def test_a_wrong_header_in_toml_is_named(header: str, sentence: str) -> None:
    said = complaint_about(header, "toml")
    assert said.startswith("night.toml: ")
    assert sentence in said


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ('do = "kill"', "at_s is missing; add it"),
        ('at_s = 1\ndo = "kill"', "target is missing; add it"),
        ('at_s = 1\ntarget = "a"', "do is None; choose one of kill, stop, continue, restart, slow, cut, heal, "),
        ('at_s = 1\ndo = "explode"\ntarget = "a"', "do is 'explode'; choose one of kill, stop, "),
        ('at_s = 1\ndo = ["kill"]\ntarget = "a"', "do is ['kill']; choose one of kill, "),
        ('at_ns = 1\ndo = "kill"\ntarget = "a"', "'at_ns' is not a field there; choose from at_s, target, do"),
        (
            'at_s = 1\ndo = "kill"\ntarget = "a"\nfactor = 2',
            "'factor' is not a field there; choose from at_s, target, do",
        ),
        ('at_s = -1\ndo = "kill"\ntarget = "a"', "at_s is -1; it must be a number of seconds from 0 to "),
        ('at_s = inf\ndo = "kill"\ntarget = "a"', "at_s is Infinity; it must be a number of seconds from 0 to "),
        ('at_s = 5e9\ndo = "kill"\ntarget = "a"', "at_s is 5E+9; it must be a number of seconds from 0 to "),
        ('at_s = true\ndo = "kill"\ntarget = "a"', "at_s is True; it must be a number of seconds from 0 to "),
        ('at_s = 1\ndo = "kill"\ntarget = 7', "target is 7; it must be text"),
        ('at_s = 1\ndo = "slow"\ntarget = "a"\nfactor = "x"', "factor is 'x'; it must be a number"),
        ('at_s = 1\ndo = "corrupt"\ntarget = "a"\nbodies = 1.5', "bodies is 1.5; it must be a whole number"),
        ('at_s = 1\ndo = "cut"\ntarget = "a"\ndirection = "left"', "direction is 'left'; it must be one of both, up, "),
    ],
)
def test_a_wrong_action_in_toml_is_named_by_its_number(action: str, sentence: str) -> None:
    first = '[[action]]\nat_s = 0\ndo = "kill"\ntarget = "b"\n'
    said = complaint_about(f'name = "x"\nlearners = ["a", "b"]\n{first}[[action]]\n{action}', "toml")
    assert said.startswith("night.toml, action 2: ")
    assert sentence in said


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("", "night.jsonl, line 1 is not JSON ("),
        ('{"name":"x","learners":["a"]}', "night.jsonl, line 1: schema is None but this version reads schema 1; "),
        ("[1]", "night.jsonl, line 1 is [1]; write fields there, each with its name"),
        (
            '{"schema":1,"run":"x"}',
            "night.jsonl, line 1: 'run' is not a field there; choose from name, about, learners, end_ns, ",
        ),
        ('{"schema":1,"name":"x","learners":["a"]}\n\n', "night.jsonl, line 2 is not JSON ("),
        ('{"schema":1,"name":"x","learners":["a"]}\n{"do":"kill"', "night.jsonl, line 2 is not JSON ("),
        (
            '{"schema":1,"name":"x","learners":["a"]}\n{"do":"kill","at_ns":1.5,"target":"a"}',
            "night.jsonl, line 2: at_ns is 1.5; it must be a whole number",
        ),
        (
            '{"schema":1,"name":"x","learners":["a"]}\n{"do":"kill","at_s":1,"target":"a"}',
            "night.jsonl, line 2: 'at_s' is not a field there; choose from at_ns, target, do",
        ),
    ],
)
def test_a_wrong_line_of_json_is_named_by_its_number(lines: str, sentence: str) -> None:
    assert complaint_about(lines, "jsonl").startswith(sentence)


def test_a_contradiction_in_a_file_names_file_tape_and_action() -> None:
    text = (
        '{"schema":1,"name":"x","learners":["a"]}\n'
        '{"do":"kill","at_ns":1000000000,"target":"a"}\n{"do":"kill","at_ns":2500000000,"target":"a"}\n'
    )
    assert complaint_about(text, "jsonl") == (
        "night.jsonl: tape 'x', action 2 (kill a at 2.5 s): a is dead by then, which allows restart, cut, throttle, "
        "delay, fill, free, jump; change the action, its target or its time"
    )


def test_what_is_wrong_is_shown_in_short() -> None:
    assert len(complaint_about(f'name = "{"x" * 10_000}"\nlearners = []', "toml")) < 200
    assert len(complaint(Kill(at_ns=0, target="x\n" * 10_000)).splitlines()) == 1
    assert "end_s is too large to show" in complaint_about(
        f'name = "x"\nlearners = ["a"]\nend_s = 0x{"f" * 9999}', "toml"
    )


def test_a_story_is_told_from_a_tape_and_how_to_play_it() -> None:
    text = 'name = "x"\nlearners = ["a"]\n[story]\nseed = 1\nstep_ns = { a = 1 }'
    assert complaint_about(text, "toml") == (
        "night.toml is a story, which has settings of its own beside its tape; "
        "play it with unlockstep simulate swarm --story night.toml"
    )


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("on_crash", "; did you mean one_crash?"),
        ("swizzel", "; did you mean swizzle?"),
        ("42", "; choose one of these"),
    ],
)
def test_a_shipped_tape_that_is_misspelt_is_guessed(name: str, ending: str) -> None:
    with pytest.raises(UsageError) as caught:
        tape.read(name)
    assert str(caught.value).endswith(ending)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    for name, sentence in {
        "gone.toml": "does not exist; check the path",
        "folder.toml": "cannot be read",
        "latin.jsonl": "is not UTF-8 text; save it as UTF-8",
        "a\0b.toml": "cannot be read",
        "tape.json": "is neither a file that ends in .toml or .jsonl nor one of calm, flash_crowd, ",
    }.items():
        with pytest.raises(UsageError, match=sentence):
            tape.read(tmp_path / name)


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"let its name end in \.toml or \.jsonl"):
        tape.write(EVERYTHING, tmp_path / "tape.json")
    with pytest.raises(UsageError, match="cannot be written"):
        tape.write(EVERYTHING, tmp_path / "gone" / "tape.toml")


def test_a_tape_takes_the_place_of_another_at_once(tmp_path: Path) -> None:
    """Whoever reads while it is written sees the old one whole; nothing but the tape is left."""
    path = tmp_path / "tape.jsonl"
    tape.write(EVERYTHING, path)
    with path.open("rb") as reading:
        tape.write(story(Kill(at_ns=1, target="a")), path)
        assert reading.read().decode() == tape.dumps_lines(EVERYTHING)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tape.jsonl"]


def test_twenty_thousand_actions_load_in_half_a_second() -> None:
    moves = ((Kill, 0), (Restart, 1))
    actions = tuple(kind(at_ns=2 * n + after, target="a") for n in range(10_000) for kind, after in moves)
    text = tape.dumps_lines(story(*actions))
    began = time.process_time()
    assert tape.loads(text, "jsonl").actions == actions
    assert time.process_time() - began < 0.5


# ------------------------------------------------------------------------------------------- shipped tapes


def test_the_shipped_tapes_have_these_names() -> None:
    assert tape.shipped() == (
        "calm", "flash_crowd", "one_crash", "rolling_restarts", "slow_half", "swizzle", "syncer_crash",
    )  # fmt: skip


@pytest.mark.parametrize("name", tape.shipped())
def test_a_shipped_tape_says_what_it_is_and_survives_both_formats(name: str) -> None:
    shipped = tape.read(name)
    assert shipped.name == name
    assert shipped.about.endswith(".")
    assert set(shipped.learners) <= {"learner-0", "learner-1", "learner-2", "learner-3"}
    assert 60 * SECOND <= shipped.end_ns <= 120 * SECOND
    assert tape.loads(tape.dumps_toml(shipped), "toml") == shipped
    assert tape.loads(tape.dumps_lines(shipped), "jsonl") == shipped


@pytest.mark.parametrize("name", tape.shipped())
def test_a_shipped_tape_ends_with_every_target_whole_and_nobody_dead(name: str) -> None:
    shipped = tape.read(name)
    standing = Standing(shipped.learners)
    for action in shipped.actions:
        standing.move(action)
    for target in {*shipped.learners, SYNCER, *(action.target for action in shipped.actions)}:
        assert standing.process(target) in (TargetState.RUNNING, TargetState.ABSENT)
        assert standing.link(target) is LinkState.WHOLE


def test_rolling_restarts_take_one_learner_after_the_other() -> None:
    done = [(type(action), action.target) for action in tape.read("rolling_restarts").actions]
    assert done == [(kind, f"learner-{index}") for index in range(4) for kind in (Kill, Restart)]


def test_swizzle_heals_in_another_order_than_it_cuts() -> None:
    actions = tape.read("swizzle").actions
    cut, healed = ([action.target for action in actions if isinstance(action, kind)] for kind in (Cut, Heal))
    assert sorted(cut) == sorted(healed) == ["learner-0", "learner-1", "learner-2", "learner-3"]
    assert cut != healed


# ------------------------------------------------------------------------------------------ contradictions


def an_action(kind: type[Action], at_ns: int, target: str) -> Action:
    levels = {Slow: {"factor": 2.0}, Throttle: {"mbit_per_s": 10.0}}
    levels |= {Delay: {"seconds": 1.0}, Jump: {"seconds": 1.0}}
    return kind(at_ns=at_ns, target=target, **levels.get(kind, {}))


WAYS: dict[TargetState, tuple[type[Action], ...]] = {
    TargetState.ABSENT: (Leave,),
    TargetState.RUNNING: (),
    TargetState.STOPPED: (Stop,),
    TargetState.DEAD: (Kill,),
}


@pytest.mark.parametrize("link", LinkState)
@pytest.mark.parametrize("process", TargetState)
@pytest.mark.parametrize("kind", KINDS.values())
def test_every_action_in_every_state_is_either_listed_or_refused(
    kind: type[Action], process: TargetState, link: LinkState
) -> None:
    if process is TargetState.ABSENT and link is LinkState.CUT:
        return  # Leaving ends the cut: there is no such state.
    way = (*((Cut,) if link is LinkState.CUT else ()), *WAYS[process])
    actions = [an_action(step, at_ns, "a") for at_ns, step in enumerate((*way, kind))]
    about_links = kind in (Cut, Heal)
    if kind in MOVES[process] and (not about_links or kind in LINK_MOVES[link]):
        story(*actions)
    else:
        assert f"story', action {len(actions)} ({kind.__name__.lower()} a at " in complaint(*actions)


@pytest.mark.parametrize("kind", KINDS.values())
def test_only_what_is_of_a_process_its_disk_and_its_clock_can_be_done_to_the_syncer(kind: type[Action]) -> None:
    way = {Continue: (Stop,), Restart: (Kill,)}.get(kind, ())
    actions = [an_action(step, at_ns, SYNCER) for at_ns, step in enumerate((*way, kind))]
    if kind in SYNCER_KINDS:
        story(*actions)
    else:
        assert f"{kind.__name__.lower()} is for learners; the syncer is running by then" in complaint(*actions)


def test_a_stopped_process_can_be_killed_but_not_stopped_again() -> None:
    story(Stop(at_ns=0, target="a"), Kill(at_ns=1, target="a"), Restart(at_ns=2, target="a"))
    assert "a is stopped by then, which allows kill, continue, " in complaint(
        Stop(at_ns=0, target="a"), Stop(at_ns=1, target="a")
    )


def test_a_cut_outlasts_a_restart_and_can_be_healed_while_its_learner_is_dead() -> None:
    cut, kill, restart = Cut(at_ns=0, target="a"), Kill(at_ns=1, target="a"), Restart(at_ns=2, target="a")
    assert "the link of a is cut by then" in complaint(cut, kill, restart, Cut(at_ns=3, target="a"))
    story(cut, kill, Heal(at_ns=1, target="a"), restart)


def test_a_cut_ends_when_its_learner_leaves() -> None:
    away = (Cut(at_ns=0, target="a"), Leave(at_ns=1, target="a"), Join(at_ns=2, target="a"))
    assert "the link of a is whole by then" in complaint(*away, Heal(at_ns=3, target="a"))


def test_a_target_that_nobody_knows_is_refused() -> None:
    assert complaint(Kill(at_ns=SECOND, target="c")) == (
        "tape 'story', action 1 (kill c at 1 s): c is not part of the run by then, which allows join; "
        "change the action, its target or its time"
    )


def test_actions_of_one_time_are_applied_as_written() -> None:
    story(Kill(at_ns=5, target="a"), Restart(at_ns=5, target="a"))
    assert "a is running by then" in complaint(Restart(at_ns=5, target="a"), Kill(at_ns=5, target="a"))


def test_setting_a_level_that_is_set_changes_nothing_and_is_allowed() -> None:
    story(Slow(at_ns=0, target="a", factor=1.0), Throttle(at_ns=0, target="a", mbit_per_s=0.0))
    story(Slow(at_ns=0, target="a", factor=3.0), Slow(at_ns=0, target="a", factor=3.0))


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf"), 1e-9, 1e9])
def test_a_factor_out_of_range_is_refused(factor: float) -> None:
    assert f"factor is {factor}; it must be from 0.001 to 1e+06" in complaint(Slow(at_ns=0, target="a", factor=factor))


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf"), 1e-9])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    assert f"mbit_per_s is {rate}; it must be from " in complaint(Throttle(at_ns=0, target="a", mbit_per_s=rate))


@pytest.mark.parametrize("bodies", [0, -1, 2**31 + 1])
def test_a_number_of_bodies_out_of_range_is_refused(bodies: int) -> None:
    assert f"bodies is {bodies}; it must be from 1 to " in complaint(Corrupt(at_ns=0, target="a", bodies=bodies))


def test_times_are_from_zero_to_their_limit_and_in_order() -> None:
    story(Kill(at_ns=AT_NS_MAX, target="a"), end_ns=AT_NS_MAX)
    assert "at_ns is -1; it must be from 0 to " in complaint(Kill(at_ns=-1, target="a"))
    assert f"at_ns is {AT_NS_MAX + 1}; it must be from 0 to " in complaint(Kill(at_ns=AT_NS_MAX + 1, target="a"))
    assert "the action before it is at 2 s; put the actions in the order of time" in complaint(
        Kill(at_ns=2 * SECOND, target="a"), Kill(at_ns=SECOND, target="b")
    )


def test_a_story_ends_with_its_last_action_or_later() -> None:
    kill = Kill(at_ns=2 * SECOND, target="a")
    assert story(kill).end_ns == 2 * SECOND
    assert story(kill, end_ns=3 * SECOND).end_ns == 3 * SECOND
    assert story().end_ns == 0
    assert "end_ns is 1000000000 (1 s) but its last action is at 2 s; end later or drop what comes behind" in complaint(
        kill, end_ns=SECOND
    )
    assert "end_ns is -1; it must be from 0 to " in complaint(end_ns=-1)


def test_a_tape_that_was_played_says_when_it_began() -> None:
    text = '{"schema":1,"name":"x","learners":["a"],"end_ns":0,"began_ns":BEGAN}\n'
    began = tape.loads(text.replace("BEGAN", "1500000000"), "jsonl")
    assert began.began_ns == 1_500_000_000 and "began_s = 1.5\n" in tape.dumps_toml(began)
    for value, fix in (('"soon"', "it must be a whole number"), ("-1", "it must be from 0 to ")):
        with pytest.raises(UsageError, match=f"began_ns is .*; {fix}"):
            tape.loads(text.replace("BEGAN", value), "jsonl")


@pytest.mark.parametrize(
    ("learners", "sentence"),
    [
        (("a", "b", "a"), "learners has 'a' twice; give each learner a name of its own"),
        (("a", SYNCER), "learners has 'syncer'; use letters, digits, _ and - (64 at most, no mark in front), and not "),
        (("a", "b c"), "learners has 'b c'; use letters, "),
        ((), "learners is empty and nobody joins; name a learner or let one join"),
    ],
)
def test_learners_have_names_of_their_own(learners: tuple[str, ...], sentence: str) -> None:
    assert sentence in complaint(learners=learners)


def test_a_run_may_begin_empty_if_somebody_joins() -> None:
    assert story(Join(at_ns=1, target="a"), learners=()).learners == ()
    assert "target is 'a b'; name a learner (letters, digits, _ and -) or 'syncer'" in complaint(
        Join(at_ns=1, target="a b")
    )


def test_a_last_line_that_was_cut_short_counts_for_nothing_only_if_the_tape_was_being_played() -> None:
    played = story(Kill(at_ns=SECOND, target="a"), Kill(at_ns=2 * SECOND, target="b"))
    cut = tape.dumps_lines(msgspec.structs.replace(played, began_ns=7), goes_on=True)[:-4]
    read = tape.loads(cut, "jsonl")
    assert read.actions == played.actions[:1] and read.end_ns == SECOND
    for text in (cut + "\n", tape.dumps_lines(played)[:-4], tape.dumps_lines(played, goes_on=True)[:-4]):
        with pytest.raises(UsageError, match="line 3 is not JSON"):
            tape.loads(text, "jsonl")

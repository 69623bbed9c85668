"""What of a tape, an address or flags is refused, in one sentence and before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from unlockstep.cli import tape as app
from unlockstep.cli.app import run
from unlockstep.cli.exits import UNANSWERED, USAGE
from unlockstep.cli.tape import timeline
from unlockstep.tape import Cut, Heal, Join, Kill, Leave, Restart, Slow, Stop, Tape, read

TAPE = 'name = "t"\nlearners = ["a", "b"]\n'


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = USAGE) -> str:
    assert run(list(arguments)) == code
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error


@pytest.fixture
def tape(tmp_path: Path) -> str:
    path = tmp_path / "t.toml"
    path.write_text(TAPE)
    return str(path)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--kill",), "--kill is the drill of a run without a tape"),
        (("--no-kill",), "--kill is the drill of a run without a tape"),
        (("--learners", "3"), "--learners is 3 but tape 't' begins with 2"),
    ],
)
def test_a_run_with_a_tape_has_its_learners_and_no_drill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tape: str, flags: tuple[str, ...], sentence: str
) -> None:
    folder = tmp_path / "run"
    assert sentence in complaint(capsys, "train", "--tape", tape, "--out", str(folder), *flags)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('name = "t"\nlearners = []\n[[action]]\nat_s = 1\ndo = "join"\ntarget = "a"', "begins without learners"),
        ('name = "t"\nlearners = ["evaluator", "a"]', "and not 'syncer' or 'evaluator'"),
        (TAPE + '[[action]]\nat_s = 1\ndo = "join"\ntarget = "evaluator"', "target is 'evaluator', which tapes leave"),
        (TAPE + '[[action]]\nat_s = 1\ndo = "continue"\ntarget = "a"', "a is running by then"),
        (TAPE + '[[action]]\nat_s = 1\ndo = "delay"\ntarget = "a"\nseconds = 99', "it must be from 0"),
        (TAPE + '[[action]]\nat_s = 1\ndo = "jump"\ntarget = "a"\nseconds = -2e9', "it must be from -1e+09 to 1e+09"),
    ],
)
def test_a_tape_that_cannot_be_played_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    assert sentence in complaint(capsys, "train", "--tape", str(path), "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_tape_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean one_crash?" in complaint(capsys, "chaos", "http://127.0.0.1:1", "--tape", "one_crush")


def test_links_to_tls_cannot_be_broken(capsys: pytest.CaptureFixture[str], tape: str) -> None:
    assert "play the tape on a run without TLS" in complaint(capsys, "chaos", "https://127.0.0.1:1", "--tape", tape)


def test_without_a_syncer_nothing_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str], tape: str) -> None:
    out = tmp_path / "out"
    nobody = "http://127.0.0.1:1"
    assert nobody in complaint(capsys, "chaos", nobody, "--tape", tape, "--out", str(out), code=UNANSWERED)
    assert not out.exists()


def test_a_resumed_run_has_no_tape(tmp_path: Path, capsys: pytest.CaptureFixture[str], tape: str) -> None:
    assert "leave out all other settings" in complaint(capsys, "train", "--resume", str(tmp_path), "--tape", tape)


# ----------------------------------------------------------------------------------------------- unlockstep tape


def test_a_tape_is_drawn_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.toml"
    flags = ("--learners", "2", "--for-s", "100", "--seed", "1", "--kill-every-s", "20", "--syncer-stop-every-s", "50")
    assert run(["tape", "draw", *flags, "--out", str(path)]) == 0
    drawn = read(path)
    assert drawn.learners == ("learner-0", "learner-1") and drawn.end_ns == 100 * 10**9
    capsys.readouterr()
    assert run(["tape", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "kill every 20 s for 15 s" in shown and all(f"  kill {name}\n" in shown for name in drawn.learners)


def test_learners_on_a_drawn_tape_are_called_as_one_likes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.toml"
    flags = ("--learners", "2", "--prefix", "guest-", "--kill-every-s", "20", "--out", str(path))
    assert run(["tape", "draw", *flags]) == 0
    drawn = read(path)
    assert drawn.learners == ("guest-0", "guest-1")
    assert {action.target for action in drawn.actions} == {"guest-0", "guest-1"}


def test_a_file_is_not_overwritten_unless_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.toml"
    path.write_text("mine")
    draw = ("tape", "draw", "--out", str(path))
    assert f"{path} exists; nothing is overwritten without --force" in complaint(capsys, *draw)
    assert path.read_text() == "mine"
    assert run([*draw, "--force"]) == 0
    assert read(path).name == "seed-0"


def test_what_happens_to_the_syncer_is_not_said_to_happen_to_a_learner() -> None:
    command = next(each for each in typer.main.get_command(app.tape).commands.values() if each.name == "draw")
    said = {option.name: option.help or "" for option in command.params}
    for kind in ("kill", "stop", "fill"):
        assert said[f"{kind}_every_s"].endswith("a learner.")
        assert said[f"syncer_{kind}_every_s"].endswith("the syncer.")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("my.toml", "--prefix", "a b"), "'a b0'"),
        (("my.txt",), "let its name end in .toml or .jsonl"),
        (("my.toml", "--learners", "0"), "--learners is 0"),
        (("my.toml", "--for-s", "0"), "it must be above 0"),
        (("my.toml", "--kill-every-s", "-1"), "give a mean above 0"),
        (("my.toml", "--slow-every-s", "1", "--slow-factor", "0"), "factor is 0.0"),
    ],
)
def test_a_tape_that_nobody_could_play_is_not_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], sentence: str
) -> None:
    out, *more = flags
    assert sentence in complaint(capsys, "tape", "draw", "--out", str(tmp_path / out), *more)
    assert list(tmp_path.iterdir()) == []


def test_a_line_of_time_shows_who_runs_stands_is_cut_off_and_is_not_there() -> None:
    actions = (
        Stop(at_ns=1, target="a"),
        Kill(at_ns=2, target="a"),
        Restart(at_ns=3, target="a"),
        Cut(at_ns=4, target="a"),
        Join(at_ns=5, target="b"),
        Heal(at_ns=5, target="a"),
        Leave(at_ns=7, target="b"),
    )
    shown = Tape(name="x", learners=("a",), actions=actions, end_ns=8)
    assert timeline(shown, "a", 8) == "=s.=x==="
    assert timeline(shown, "b", 8) == ".....==."


def test_a_line_of_time_shows_who_is_slower_than_its_own_speed() -> None:
    actions = (
        Slow(at_ns=1, target="a", factor=4.0),
        Cut(at_ns=2, target="a"),
        Heal(at_ns=3, target="a"),
        Slow(at_ns=4, target="a", factor=1.0),
        Slow(at_ns=5, target="a", factor=2.0),
        Leave(at_ns=6, target="a"),
        Join(at_ns=7, target="a"),
    )
    shown = Tape(name="x", learners=("a", "b"), actions=actions, end_ns=8)
    assert timeline(shown, "a", 8) == "=-x-=-.="
    assert timeline(shown, "b", 8) == "========"

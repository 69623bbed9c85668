"""Learners that join somebody else's run to be broken there: theirs are broken, and nobody else's."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import toy_processes
from support.commands import commands, ended, processes, until, url_of
from support.full_disk import files_of_at_most
from support.live_run import small_config
from support.secret_files import secrets_in
from support.syncer_thread import syncer_thread
from support.tape_run import SECOND_NS, toy_config
from support.train_process import TINY, Train, is_gone
from unlockstep import config as run_config
from unlockstep import tape as tapes
from unlockstep.chaos.guests import Guests
from unlockstep.cli import app, exits
from unlockstep.config import DataSection, ModelSection
from unlockstep.core.status import Status
from unlockstep.launch.folders import new_folder
from unlockstep.launch.local import Ending
from unlockstep.net.access.security import ServerSecurity
from unlockstep.net.clients.observer import read_status
from unlockstep.tape import Tape

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(sys.platform != "linux", reason="limits on others are Linux's")]

TESTS = Path(__file__).parents[1]
PROGRAM = (sys.executable, toy_processes.__file__)


@pytest.fixture
def run_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run with a learner that nobody here may touch."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    config = tmp_path / "config.toml"
    config.write_text(run_config.dumps(toy_config(1, lease_s=2.0)))
    (tmp_path / "told").mkdir()
    with processes() as launch:
        syncer = launch(
            sys.executable, "-m", "unlockstep", "syncer", "--config", str(config), "--listen", "127.0.0.1:0",
            "--run-dir", str(tmp_path / "host"),
        )  # fmt: skip
        url = url_of(syncer)
        launch(
            *PROGRAM, str(tmp_path / "told"), "learner", "--syncer", url, "--name", "bystander", "--shard", "0",
            "--shards", "1", "--parent-pid", str(os.getpid()),
        )  # fmt: skip
        until(url, lambda status: status.clock > 5, run="tape")
        yield url


def guests(tmp_path: Path, url: str, tape: Tape, notes: list[str], seen: list[Status]) -> Guests:
    folder = tmp_path / "guests"
    folder.mkdir(exist_ok=True)
    return Guests(
        tape, url, folder, folder / "tape.jsonl", before=read_status(url), read_status=read_status, note=notes.append,
        program=(*PROGRAM, str(tmp_path / "told")), show=seen.append,
    )  # fmt: skip


def test_guests_are_killed_and_stopped_and_nobody_else_notices(tmp_path: Path, run_url: str) -> None:
    second = SECOND_NS
    actions = (
        tapes.Kill(at_ns=second // 5, target="g1"),
        tapes.Stop(at_ns=second // 5, target="g2"),
        tapes.Restart(at_ns=3 * second, target="g1"),
        tapes.Continue(at_ns=4 * second, target="g2"),
        tapes.Cut(at_ns=4 * second, target="g2"),
        tapes.Heal(at_ns=5 * second, target="g2"),
    )
    tape, notes = Tape(name="visit", learners=("g1", "g2"), actions=actions, end_ns=6 * second), []
    seen: list[Status] = []
    outcome = guests(tmp_path, run_url, tape, notes, seen).run()
    assert (outcome.ending, outcome.sentence) == (Ending.FINISHED, "the tape has been played"), notes
    assert [type(action) for action in tapes.read(tmp_path / "guests" / "tape.jsonl").actions] == [
        type(action) for action in actions
    ]
    assert {each.learner for each in seen[-1].learners} == {"bystander", "g1", "g2"}, "whoever watches sees all of it"
    state = read_status(run_url)
    (bystander,) = [each for each in state.learners if each.learner == "bystander"]
    assert (bystander.incarnation, bystander.state) == (1, "live")
    log = (tmp_path / "host" / "run.jsonl").read_text().splitlines()
    assert not any('"bystander"' in line and ("Away" in line or "Departed" in line) for line in log)
    assert any('"LearnerDeparted"' in line and '"g2"' in line and "lease_expired" in line for line in log)


def test_the_same_tape_a_second_time_begins_when_its_learners_train_and_not_before(
    tmp_path: Path, run_url: str
) -> None:
    tape = Tape(name="twice", learners=("g1",), actions=(tapes.Jump(at_ns=1, target="g1", seconds=60.0),))
    for incarnation in (1, 2):
        notes: list[str] = []
        seen: list[Status] = []
        outcome = guests(tmp_path, run_url, tape, notes, seen).run()
        assert (outcome.ending, outcome.sentence) == (Ending.FINISHED, "the tape has been played"), notes
        known = {each.learner: each for each in seen[-1].learners}
        assert (known["g1"].incarnation, known["g1"].state) == (incarnation, "live")


def test_a_tape_that_begins_with_nobody_begins_at_once(tmp_path: Path, run_url: str) -> None:
    actions = (tapes.Join(at_ns=1, target="g1"), tapes.Leave(at_ns=SECOND_NS, target="g1"))
    notes: list[str] = []
    outcome = guests(tmp_path, run_url, Tape(name="later", learners=(), actions=actions), notes, []).run()
    assert (outcome.ending, outcome.sentence) == (Ending.FINISHED, "the tape has been played"), notes
    assert [type(action) for action in tapes.read(tmp_path / "guests" / "tape.jsonl").actions] == [
        tapes.Join,
        tapes.Leave,
    ]


@pytest.mark.parametrize(
    ("tape", "sentence"),
    [
        (
            'learners = ["x"]\n[[action]]\nat_s = 1\ndo = "kill"\ntarget = "syncer"',
            "has not started and does not touch",
        ),
        ('learners = ["bystander"]', "a learner of that name is in the run and was not started here"),
    ],
)
def test_what_would_touch_others_is_refused_before_anything_is_started(
    tmp_path: Path, run_url: str, tape: str, sentence: str
) -> None:
    file = tmp_path / "t.toml"
    file.write_text('name = "t"\n' + tape)
    with commands() as start:
        code, error = ended(start("chaos", run_url, "--tape", str(file), "--out", str(tmp_path / "out")))
    assert code == 2 and sentence in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_code_that_a_syncer_names_is_refused_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = small_config(model=ModelSection(spec="support.tiny_lm:tiny_lm"))
    out = tmp_path / "out"
    with syncer_thread(settings, tmp_path) as syncer:
        assert app.run(["chaos", syncer.url, "--tape", tape_file(tmp_path), "--out", str(out)]) == exits.USAGE
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "say --trust-syncer if whoever runs the syncer may name it" in error
    assert not out.exists()


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, *flags: str, code: int = exits.USAGE) -> str:
    """What is said of it, in one line; nothing is left."""
    out = tmp_path / "new" / "out"
    assert app.run(["chaos", url, "--tape", tape_file(tmp_path), "--out", str(out), *flags]) == code
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and not out.parent.exists()
    return error


def test_a_run_over_tls_cannot_be_broken_whatever_its_address_is_written_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with syncer_thread(small_config(), tmp_path, security=secrets_in(tmp_path / "secrets").server()) as syncer:
        plain = syncer.url.replace("https", "http")
        error = refused(tmp_path, capsys, plain, code=exits.UNANSWERED)
        assert "if it speaks TLS, its links cannot be broken" in error and "https" not in error
        assert "play the tape on a run without TLS" in refused(tmp_path, capsys, syncer.url)


def test_a_token_that_does_not_train_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    with syncer_thread(small_config(), tmp_path, security=ServerSecurity(tokens=secrets.folder / "tokens.toml")) as at:
        flags = ("--token-file", str(secrets.folder / "observer.token"))
        assert "the token shown has the role observer, which does not train" in refused(
            tmp_path, capsys, at.url, *flags
        )


def test_a_folder_in_which_other_guests_begin_is_left_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with syncer_thread(small_config(), tmp_path) as syncer, new_folder(out):
        assert app.run(["chaos", syncer.url, "--tape", tape_file(tmp_path), "--out", str(out)]) == exits.USAGE
        assert out.is_dir()
    assert capsys.readouterr().err == f"error: folder {out} is in use; choose another one with --out\n"


def test_nothing_is_left_of_guests_without_room_for_their_tape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with syncer_thread(small_config(), tmp_path) as syncer:
        tape_file(tmp_path)
        with files_of_at_most(10):
            out = tmp_path / "out"
            assert app.run(["chaos", syncer.url, "--tape", str(tmp_path / "t.toml"), "--out", str(out)]) == exits.USAGE
    error = capsys.readouterr().err
    assert "tape.jsonl cannot be written" in error and len(error.splitlines()) == 1
    assert not out.exists()


def test_nothing_is_left_of_guests_that_cannot_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every learner finds that out by itself: there is no such text on its machine."""
    missing = tmp_path / "missing.txt"
    with syncer_thread(small_config(data=DataSection(source=str(missing))), tmp_path) as syncer:
        assert str(missing) in refused(tmp_path, capsys, syncer.url, "--trust-syncer")


def tape_file(folder: Path, *lines: str) -> str:
    path = folder / "t.toml"
    path.write_text("\n".join(['name = "t"', 'learners = ["a", "b"]', "end_s = 3600", *lines]))
    return str(path)


STOPPED = '[[action]]\nat_s = 0.1\ndo = "stop"\ntarget = "b"'


@pytest.mark.timeout(120)
def test_a_killed_supervisor_leaves_no_process_behind_not_even_a_stopped_one(tmp_path: Path) -> None:
    with Train(tmp_path, *TINY, "--tape", tape_file(tmp_path, STOPPED), "--steps", "1000000", "--plain") as train:
        train.until("the tape: stop b")
        pids = train.pids()
        assert {"a", "b", "syncer"} <= pids.keys()
        couriers = [pid for pid in sessions_of(pids.values()) if pid not in pids.values()]
        assert couriers, "every learner has one"
        os.kill(train.process.pid, signal.SIGKILL)
        assert all(is_gone(pid, 30.0) for pid in (*pids.values(), *couriers))


@pytest.mark.timeout(120)
def test_ctrl_c_in_the_middle_of_a_tape_ends_everything_and_keeps_what_was_played(tmp_path: Path) -> None:
    with Train(tmp_path, *TINY, "--tape", tape_file(tmp_path, STOPPED), "--steps", "1000000", "--plain") as train:
        train.until("the tape: stop b")
        pids = train.pids()
        os.kill(train.process.pid, signal.SIGINT)
        train.end()
        assert train.process.returncode == 130
        assert all(is_gone(pid) for pid in pids.values())
        played = tapes.read(train.run / "tape.jsonl")
        assert [type(action) for action in played.actions] == [tapes.Stop] and played.end_ns < 3600 * SECOND_NS


@pytest.mark.timeout(120)
def test_a_learner_begins_on_a_full_disk_and_trains(tmp_path: Path) -> None:
    done = (("fill", 0.1), ("kill", 0.2), ("restart", 0.3))
    actions = [f'[[action]]\nat_s = {at_s}\ndo = "{do}"\ntarget = "b"' for do, at_s in done]
    with Train(tmp_path, *TINY, "--tape", tape_file(tmp_path, *actions), "--steps", "1000000", "--plain") as train:
        train.until("b trains again")
        os.kill(train.process.pid, signal.SIGINT)
        train.end()


def sessions_of(leaders: object) -> list[int]:
    """The processes of these sessions."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) in set(leaders):  # type: ignore[call-overload]
                found.append(int(path.name))
        except OSError:
            pass
    return found

"""The command line: what it offers, and that a mistake is one sentence and an exit code."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unlockstep.cli import app, exits
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError, UsageError

ACCESS = "--ca --cert --key --token-file"
FLAGS = {
    "syncer": "--config --set --listen --advertise --run-dir --store --standby --no-standby --insecure --no-insecure "
    "--secrets --tls-cert --tls-key --tokens --client-ca --parent-pid --json --help",
    "learner": "--syncer --name --shard --shards --slowdown --checkpoint --notice-s --run --parent-pid --json --help "
    "--bandwidth-mbit --trust-syncer " + ACCESS,
    "evaluator": f"--syncer --out --name --run --parent-pid --json --help --trust-syncer {ACCESS}",
    "status": f"--run --json --help {ACCESS}",
    "stop": f"--run --help {ACCESS}",
    "doctor": f"--listen --advertise --secrets --run --rates --no-rates --json --help {ACCESS}",
    "report": "--check --json --html --trace --tensorboard --help",
}

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def sentence(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command line says on stderr, after checking that it is refused in one line without a traceback."""

    def refused(*arguments: str, code: int = exits.USAGE) -> str:
        assert app.run(arguments) == code
        written = capsys.readouterr()
        assert written.out == "" and written.err.count("\n") == 1 and written.err.startswith("error: ")
        return written.err

    return refused


# ------------------------------------------------------------------------------------------------- what it offers


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    check = (
        "import sys; from unlockstep.cli.app import run; run(['--help'])\n"
        "print(*sorted({'torch', 'transformers', 'aiohttp', 'numpy'} & sys.modules.keys()), file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert shown.stderr.strip() == ""
    assert all(name in shown.stdout for name in ("train", *FLAGS))


@pytest.mark.parametrize("name", FLAGS)
def test_the_flags_of_a_command_are_these(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag is a promise: taking one away or renaming it breaks somebody's script."""
    assert app.run([name, "--help"]) == exits.DONE
    shown = capsys.readouterr().out
    found = [word.rstrip(",") for word in shown.replace("/", " ").split() if word.startswith("--")]
    assert set(FLAGS[name].split()) <= set(found) and set(found) <= set(FLAGS[name].split())


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--version"]) == exits.DONE
    assert capsys.readouterr().out.count(".") == 2


# ------------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("the port is taken"), 2, "error: the port is taken\n"),
        (exits.RunFailed("the syncer is gone"), 1, "error: the syncer is gone\n"),
        (RemoteProtocolError("no such message"), 1, "error: no such message\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_a_sentence_and_a_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "app", raising(error))
    assert app.run([]) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("error", [LocalProtocolError("odd"), ZeroDivisionError("odd")])
def test_a_bug_keeps_its_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "app", raising(error))
    assert app.run([]) == exits.BUG
    assert "Traceback" in capsys.readouterr().err


def raising(error: BaseException) -> Callable[..., None]:
    def command(*_: object, **__: object) -> None:
        raise error

    return command


def test_an_unknown_flag_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["status", "--colour"]) == exits.USAGE
    assert "--colour" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("protocol.fragment=3", "protocol.fragment is not a setting; did you mean protocol.fragments?"),
        ("protocl.fragments=3", "protocl is not a section; did you mean protocol?"),
        ("protocol.interval_steps=0", "protocol.interval_steps is 0; it must be at least 1"),
        ("protocol.quorum=5", "protocol.quorum is 5 but local.learners is 4"),
        ("run.steps=many", "run.steps is 'many'"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_made(
    override: str, said: str, sentence: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert said in sentence("syncer", "--set", override, "--listen", "127.0.0.1:0", "--run-dir", str(folder))
    assert not folder.exists()


def test_a_configuration_file_that_is_not_there_is_named(sentence: Callable[..., str], tmp_path: Path) -> None:
    assert f"configuration file {tmp_path / 'x.toml'} does not exist" in sentence(
        "syncer", "--config", str(tmp_path / "x.toml")
    )


def test_a_port_in_use_leaves_nothing_behind(sentence: Callable[..., str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = sentence("syncer", "--listen", f"127.0.0.1:{port}", "--run-dir", str(tmp_path / "runs" / "a"))
    assert f"127.0.0.1:{port} is in use by another process; stop that one or choose another port" in said
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_that_cannot_be_made_is_named(sentence: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "run"
    said = sentence("syncer", "--listen", "127.0.0.1:0", "--run-dir", str(folder))
    assert f"run folder {folder} cannot be written" in said and "--run-dir" in said
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_run_folder_with_a_run_in_it_is_left_alone(sentence: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("precious")
    arguments = ("--set", "run.seed=3", "--listen", "127.0.0.1:0", "--run-dir", str(tmp_path))
    assert f"run folder {tmp_path} already holds a run" in sentence("syncer", *arguments)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("run.jsonl", "precious")]


def test_a_store_that_cannot_be_written_is_named_and_nothing_stays(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.symlink_to(tmp_path / "gone" / "away")
    code = app.run(["syncer", "--listen", "127.0.0.1:0", "--run-dir", str(tmp_path / "run"), "--store", str(store)])
    said = capsys.readouterr().err
    assert code == exits.USAGE and "Traceback" not in said
    assert f"{store / 'records'} cannot be written (No such file or directory); choose with --store" in said
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def test_an_empty_store_is_refused(sentence: Callable[..., str], tmp_path: Path) -> None:
    """As from a variable that is not set: the folder one happens to be in is no place to save a run."""
    assert "--store is empty" in sentence(
        "syncer", "--listen", "127.0.0.1:0", "--run-dir", str(tmp_path), "--store", ""
    )


def test_a_folder_without_the_settings_of_its_run_is_refused(sentence: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("precious")
    assert "holds a run but no config.toml" in sentence("syncer", "--listen", "127.0.0.1:0", "--run-dir", str(tmp_path))


@pytest.mark.parametrize("folder", ["nothing", "."])
def test_a_standby_without_settings_is_refused_at_once(
    folder: str, sentence: Callable[..., str], tmp_path: Path
) -> None:
    """It would otherwise find out, when the leader has died, that its own are not those of the run."""
    said = sentence("syncer", "--standby", "--listen", "127.0.0.1:0", "--run-dir", str(tmp_path / folder))
    assert "whose settings a standby could take: start its syncer first, or give the settings with --config" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "[::]", "example.org"])
def test_listening_beyond_this_machine_has_to_be_asked_for(host: str, sentence: Callable[..., str]) -> None:
    said = sentence("syncer", "--listen", host)
    assert f"--listen is {host}:7077, which others can reach, and connections are neither encrypted nor auth" in said
    assert "give --secrets DIR, made by `unlockstep certs make`" in said


@pytest.mark.parametrize(
    "command",
    [
        ("status", NOBODY),
        ("stop", NOBODY),
        ("learner", "--syncer", NOBODY),
        ("evaluator", "--syncer", NOBODY),
    ],
)
def test_a_syncer_that_does_not_answer_is_named(command: tuple[str, ...], sentence: Callable[..., str]) -> None:
    assert f"no syncer answers at {NOBODY}" in sentence(*command, code=exits.UNANSWERED)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--slowdown", "0.5"), "--slowdown is 0.5; it must be at least 1"),
        (("--slowdown", "inf"), "--slowdown is inf"),
        (("--shard", "-1"), "--shard is -1"),
        (("--shards", "0"), "--shards is 0"),
        (("--notice-s", "1e12"), "--notice-s is 1000000000000.0; it must be at least 1 and at most a day"),
        (("--bandwidth-mbit", "0"), "--bandwidth-mbit is 0.0; give Mbit/s, at least 0.1 and finite"),
        (("--bandwidth-mbit", "0.01"), "--bandwidth-mbit is 0.01; give Mbit/s, at least 0.1 and finite"),
        (("--bandwidth-mbit", "nan"), "--bandwidth-mbit is nan; give Mbit/s, at least 0.1 and finite"),
    ],
)
def test_a_bad_argument_of_a_learner_is_named(
    arguments: tuple[str, ...], said: str, sentence: Callable[..., str]
) -> None:
    assert said in sentence("learner", "--syncer", NOBODY, *arguments)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full exists on Linux only")
def test_a_full_disk_is_a_sentence() -> None:
    """Whoever keeps a command's output on a disk that fills up has found no bug."""
    command = [sys.executable, "-m", "unlockstep", "simulate", "bandwidth", "--params", "1e9", "--step-s", "1"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == exits.FAILED
    assert "No space left on device" in ended.stderr and "Traceback" not in ended.stderr

"""Processes are started in sessions of their own, ended in order or by force, and never left behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from unlockstep.core.errors import UsageError
from unlockstep.launch import processes as process_module
from unlockstep.launch.processes import Exit, Processes, Wakeup, last_lines

FAR_S = 60.0
"""Longer than any test may take: what is waited for so long must end for another reason."""


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    """As in a terminal, even if the tests themselves were started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with Wakeup() as wakeup:
            yield wakeup
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def processes(tmp_path: Path, wakeup: Wakeup) -> Iterator[Processes]:
    with Processes(tmp_path, wakeup) as processes:
        yield processes


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A named pipe: reading it waits for a writer, and reads to the end once all writers are gone."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def python(script: str, pipe: Path) -> tuple[str, ...]:
    """A process that tells the pipe once SIGTERM cannot end it any more, and then goes by its script."""
    opening = "import os, signal; TERM = {signal.SIGTERM}; signal.pthread_sigmask(signal.SIG_BLOCK, TERM)"
    return sys.executable, "-I", "-S", "-c", f"{opening}; open({str(pipe)!r}, 'w').close(); {script}"


def exits(processes: Processes, wakeup: Wakeup) -> list[Exit]:
    """The next ones, waited for."""
    while not (ended := processes.take_exits()):
        wakeup.wait(FAR_S)
    return ended


def pids(folder: Path) -> dict[str, int]:
    return msgspec.json.decode((folder / "processes.json").read_bytes(), type=dict[str, int])


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_end_is_reported_once_with_its_code_and_what_was_printed(processes: Processes, wakeup: Wakeup) -> None:
    processes.start("a", shell("echo out; echo err >&2; exit 3"))
    assert exits(processes, wakeup) == [Exit("a", 3)]
    assert processes.take_exits() == []
    assert processes.log("a").read_text() == "out\nerr\n"


def test_a_later_start_under_a_name_goes_on_in_its_file(processes: Processes, wakeup: Wakeup) -> None:
    for number in ("1", "2"):
        processes.start("a", shell(f"echo {number}"))
        exits(processes, wakeup)
    assert processes.log("a").read_text() == "1\n2\n"
    assert processes.said("a", 5) == ["2"], "what an earlier one has said is no reason of this one's"
    processes.start("a", shell("exit 1"))
    exits(processes, wakeup)
    assert processes.said("a", 5) == [] == processes.said("b", 5)


def test_who_runs_is_on_record(processes: Processes, wakeup: Wakeup, tmp_path: Path) -> None:
    processes.start("a", shell("exec sleep 60"))
    processes.start("b", shell("exec sleep 60"))
    assert processes.running == tuple(pids(tmp_path)) == ("a", "b")
    processes.kill("a")
    assert exits(processes, wakeup) == [Exit("a", -signal.SIGKILL)]
    assert processes.running == tuple(pids(tmp_path)) == ("b",)


def test_a_killed_process_takes_its_own_children_along(processes: Processes, wakeup: Wakeup, pipe: Path) -> None:
    processes.start("a", shell(f"exec 3>{pipe}; echo ready >&3; sleep 60 & sleep 60"))
    with pipe.open() as read:
        assert read.readline() == "ready\n"
        processes.kill("a")
        assert read.read() == ""
    assert exits(processes, wakeup) == [Exit("a", -signal.SIGKILL)]


def test_a_process_that_ends_leaves_nothing_behind_that_it_had_started(
    processes: Processes, wakeup: Wakeup, pipe: Path
) -> None:
    processes.start("a", shell(f"exec 3>{pipe}; echo ready >&3; sleep 60 & exit 1"))
    with pipe.open() as read:
        assert read.readline() == "ready\n"
        assert exits(processes, wakeup) == [Exit("a", 1)]
        assert read.read() == ""


def test_stopping_asks_first(processes: Processes, pipe: Path) -> None:
    processes.start("a", python("signal.sigwait(TERM); print('bye')", pipe))
    pipe.read_text()
    processes.stop(["a", "nobody"], FAR_S)
    assert processes.running == ()
    assert processes.log("a").read_text() == "bye\n"


def test_who_does_not_listen_is_killed_when_the_time_is_up(processes: Processes, pipe: Path, tmp_path: Path) -> None:
    processes.start("a", python("signal.pause()", pipe))
    pipe.read_text()
    pid = pids(tmp_path)["a"]
    processes.stop(["a"], 0.05)
    assert processes.running == ()
    assert not is_there(pid)


def test_a_second_signal_ends_the_patience(processes: Processes, wakeup: Wakeup, pipe: Path) -> None:
    """Here the process itself sends it, when it is asked to end."""
    processes.start("a", python("signal.sigwait(TERM); os.kill(os.getppid(), signal.SIGINT); signal.pause()", pipe))
    pipe.read_text()
    processes.stop(["a"], FAR_S)
    assert processes.running == ()
    assert wakeup.stop_signals == [signal.SIGINT]


def test_a_signal_that_is_sent_twice_in_one_moment_is_one_request(wakeup: Wakeup) -> None:
    """``timeout`` sends it to the process and to its group."""
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
    assert wakeup.stop_signals == [signal.SIGTERM]


def test_two_signals_that_lie_apart_are_two(wakeup: Wakeup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "AGAIN_S", 0.0)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    assert wakeup.stop_signals == [signal.SIGTERM, signal.SIGINT]


def test_an_error_leaves_nobody_behind(wakeup: Wakeup, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"), Processes(tmp_path, wakeup) as processes:
        processes.start("a", shell("exec sleep 60"))
        pid = pids(tmp_path)["a"]
        raise RuntimeError("mine")
    assert not is_there(pid)
    assert pids(tmp_path) == {}


def test_what_cannot_be_started_is_one_sentence(processes: Processes) -> None:
    with pytest.raises(UsageError, match="a cannot be started"):
        processes.start("a", ("/no/such/program",))
    assert processes.running == ()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_ends_the_wait_and_is_noted(wakeup: Wakeup, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    wakeup.wait(FAR_S)
    assert wakeup.stop_signals == [number]


def test_signals_mean_afterwards_what_they_meant_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Wakeup():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_started_with_nohup_survives_the_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Wakeup() as wakeup:
            os.kill(os.getpid(), signal.SIGHUP)
            wakeup.wait(0)
            assert wakeup.stop_signals == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_end_in_words() -> None:
    assert Exit("a", 1).sentence == "exited with code 1"
    assert Exit("a", -9).sentence == "was killed (SIGKILL)"
    assert Exit("a", -40).sentence == "was killed (signal 40)"


def test_last_lines_are_those_that_are_not_empty(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n\ntwo\xff\n" + b"x" * 20_000 + b"\nthree\n\n")
    assert last_lines(path, 1) == ["three"]
    assert last_lines(tmp_path / "none", 3) == []

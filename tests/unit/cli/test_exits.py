"""How a process ends: signals become a request, and the time a process may take to end is bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from unlockstep.cli import exits

WAIT_S = 10.0

LOAD = "import os, signal, threading; from unlockstep.cli import exits\n"


def end_of(script: str) -> int:
    """The exit code of a process that runs the script."""
    return subprocess.run([sys.executable, "-c", LOAD + script], timeout=WAIT_S).returncode


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_a_request_and_an_exit_code(number: int, code: int) -> None:
    before = signal.getsignal(number)
    with exits.stop_request() as stop:
        assert stop.exit_code == 0
        os.kill(os.getpid(), number)
        assert stop.asked.wait(WAIT_S)
    assert stop.exit_code == code
    assert signal.getsignal(number) is before


def test_whoever_wants_to_know_of_the_request_is_called_once() -> None:
    calls: list[str] = []
    with exits.stop_request() as stop:
        stop.then(lambda: calls.append("early"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked.wait(WAIT_S)
        stop.then(lambda: calls.append("late"))
    assert sorted(calls) == ["early", "late"]


def test_the_death_of_the_parent_is_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "PARENT_LOOK_S", 0.01)
    with exits.stop_request(parent_pid=os.getppid()) as stop:
        assert not stop.asked.wait(0.05)
    with exits.stop_request(parent_pid=os.getpid()) as stop:  # Nobody is its own parent.
        assert stop.asked.wait(WAIT_S)
    assert stop.exit_code == 143


def test_a_second_signal_ends_the_process_at_once() -> None:
    script = """
exits.AGAIN_S = 0
with exits.stop_request() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    stop.asked.wait()
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
"""
    assert end_of(script) == 130


def test_a_signal_that_is_sent_twice_in_one_moment_is_one_request() -> None:
    """``timeout`` sends it to the process and to its group: what is asked to end in order must not end at once."""
    script = """
with exits.stop_request() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    stop.asked.wait()
    os.kill(os.getpid(), signal.SIGTERM)
raise SystemExit(7)
"""
    assert end_of(script) == 7


def test_a_process_that_cannot_end_in_order_is_ended_in_time() -> None:
    script = """
exits.ENDING_S_MAX = 0.05
with exits.stop_request() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()
"""
    assert end_of(script) == 143

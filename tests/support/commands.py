"""``unlockstep`` as processes of a test: how they are started, asked and waited for.

Decides that none of them outlives its test and that this folder's parent is on their path. Decides nothing about what
they do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from unlockstep.core.errors import UsageError
from unlockstep.core.status import Status
from unlockstep.net.access.security import NO_SECURITY, ClientSecurity
from unlockstep.net.clients.observer import read_status

TESTS = Path(__file__).parents[1]
COMMAND_S_MAX = 60.0
"""What takes longer than this, on a busy machine, has failed: a process that imports torch takes seconds to begin."""

LOOK_S = 0.02

Launch = Callable[..., "subprocess.Popen[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def processes() -> Iterator[Launch]:
    """Starts a command line, in a session of its own and with pipes for what it is told and says; none outlives the
    block. ``errors``: a file for what it says on stderr, which otherwise is a pipe, too."""
    started: list[subprocess.Popen[str]] = []
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def launch(*command: str, errors: Path | None = None) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with ExitStack() as stack:
            if errors is not None:
                pipes["stderr"] = stack.enter_context(errors.open("ab"))
            process = subprocess.Popen(command, text=True, env=environment, start_new_session=True, **pipes)
        started.append(process)
        return process

    try:
        yield launch
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.communicate()


@contextmanager
def commands() -> Iterator[Start]:
    """Starts ``unlockstep`` with the arguments given; none outlives the block."""
    with processes() as launch:
        yield lambda *arguments: launch(sys.executable, "-m", "unlockstep", *arguments)


def ended(process: subprocess.Popen[str], timeout_s: float = COMMAND_S_MAX) -> tuple[int, str]:
    """Exit code and stderr of a process that is about to end."""
    _, err = process.communicate(timeout=timeout_s)
    return process.returncode, err


def url_of(process: subprocess.Popen[str]) -> str:
    """Where a syncer listens, once it does."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "://" in line, (line, process.stderr.read() if process.stderr and process.poll() is not None else "")
    return next(word.rstrip(",") for word in line.split() if word.startswith(("http://", "https://")))


def until(
    url: str,
    enough: Callable[[Status], bool],
    *,
    run: str = "small",
    timeout_s: float = COMMAND_S_MAX,
    security: ClientSecurity = NO_SECURITY,
) -> Status:
    """What a syncer says of its run, once it is so. It is asked now and then: what it does needs the processor too."""
    status, pause = None, threading.Event()
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        try:
            status = read_status(url, run, security)
        except UsageError:
            pause.wait(LOOK_S)
            continue
        if enough(status):
            return status
        pause.wait(LOOK_S)
    raise AssertionError(f"waited in vain at {url}: {status}")

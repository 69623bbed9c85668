"""Processes of one run: started, watched, signalled and reaped by the one that started them.

Decides that a process leads a session of its own, that its output goes to a file of its name, that only processes
started here are ever signalled, and that none outlives the ``with`` block. Does not decide what is started or why
(``local``).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import msgspec

from unlockstep.core.errors import UsageError
from unlockstep.core.ids import NANOSECONDS_PER_SECOND

_TAIL_BYTES = 16 * 1024
"""How much of the end of an output file is looked at for its last lines."""

AGAIN_S = 0.5
"""A signal that comes sooner after the first is the same request, sent to this process and to its group."""

_REAP_S = 0.1
"""How often the end of a process is looked for while it is waited for; a signal of its end comes sooner."""


class Wakeup:
    """Waiting that ends early when a child ends or a signal asks this process to end. Main thread only.

    Signals are noted in ``stop_signals`` and never raise: no place in the caller's code can be torn apart by one.
    """

    def __init__(self) -> None:
        self.stop_signals: list[signal.Signals] = []
        """SIGINT, SIGTERM and SIGHUP as they arrived, but for what came in one moment with the first."""
        self._first_s = 0.0

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._previous_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._previous: dict[signal.Signals, Any] = {}
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            if signum is not signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # ... as nohup wants it.
                self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for signum, previous in self._previous.items():
            signal.signal(signum, previous)
        signal.set_wakeup_fd(self._previous_fd)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_s: float) -> None:
        """Return after ``timeout_s``, or as soon as a child has ended or a signal has come."""
        select.select([self._read], [], [], max(0.0, timeout_s))
        with suppress(BlockingIOError):
            os.read(self._read, 4096)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGCHLD:
            return
        now_s = time.monotonic()
        if not self.stop_signals:
            self._first_s = now_s
        if not self.stop_signals or now_s - self._first_s >= AGAIN_S:
            self.stop_signals.append(signal.Signals(signum))


@dataclass(frozen=True, slots=True)
class Exit:
    """A process that has ended."""

    name: str
    status: int
    """Its exit code; minus the number of the signal that ended it."""

    @property
    def sentence(self) -> str:
        """``exited with code 1``, ``was killed (SIGKILL)``."""
        if self.status >= 0:
            return f"exited with code {self.status}"
        try:
            return f"was killed ({signal.Signals(-self.status).name})"
        except ValueError:
            return f"was killed (signal {-self.status})"


class Processes:
    """The processes of a run, by name. At most one of a name runs at a time.

    Args:
        folder: gets ``logs/NAME.log`` for what a process prints (a later start under the name appends) and
            ``processes.json``, the pid of everyone that runs.
        wakeup: how to wait.
        now_ns: the clock; monotonic.

    Leaving the ``with`` block, by whatever way, ends all of them.
    """

    def __init__(self, folder: Path, wakeup: Wakeup, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._folder = folder
        self._wakeup = wakeup
        self._now_ns = now_ns
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._said_from: dict[str, int] = {}
        """Length of the log when whoever has the name was started."""
        self._lock = threading.RLock()
        """Held while somebody is signalled or reaped: a number that is free again may be another process's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._signal(list(self._running), signal.SIGKILL)  # Those that stand still, too.
        for process in self._running.values():
            process.wait()
        self._running.clear()
        self._record()

    @property
    def running(self) -> tuple[str, ...]:
        """Names of those that run, in the order of their start."""
        return tuple(self._running)

    def log(self, name: str) -> Path:
        """Where a process of this name writes what it prints."""
        return self._folder / "logs" / f"{name}.log"

    def said(self, name: str, count: int) -> list[str]:
        """The last lines that are not empty of what the latest process of this name has printed, none of one before."""
        if name not in self._said_from:
            return []
        return last_lines(self.log(name), count, self._said_from[name])

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start ``command`` under a name that nobody running has."""
        assert name not in self._running, f"{name} is already running"
        path = self.log(name)
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as output:
                self._said_from[name] = output.tell()
                self._running[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                    start_new_session=True,
                )
        except OSError as error:
            raise UsageError(f"{name} cannot be started ({error}); check {path.parent} and the installation") from None
        self._record()

    def take_exits(self) -> list[Exit]:
        """Those that have ended since the last call, reaped."""
        with self._lock:
            ended = [Exit(name, p.returncode) for name, p in self._running.items() if p.poll() is not None]
            for exited in ended:
                process = self._running.pop(exited.name)
                with suppress(ProcessLookupError, PermissionError):  # What it had started and left behind.
                    os.killpg(process.pid, signal.SIGKILL)
        if ended:
            self._record()
        return ended

    def kill(self, name: str) -> None:
        """SIGKILL, at once; its end is reported by ``take_exits``."""
        self._signal([name], signal.SIGKILL)

    def end(self, name: str) -> None:
        """SIGTERM; its end is reported by ``take_exits``."""
        self._signal([name], signal.SIGTERM)

    def stand(self, name: str) -> None:
        """SIGSTOP: it stands still, with all it has started. From any thread."""
        self._signal([name], signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """SIGCONT. From any thread."""
        self._signal([name], signal.SIGCONT)

    def rename(self, name: str, new: str) -> None:
        """Whoever runs under a name runs under another one from now on."""
        assert new not in self._running, f"{new} is already running"
        self._running = {new if each == name else each: process for each, process in self._running.items()}
        self._record()

    def on_process(self, name: str, do: Callable[[int], object]) -> None:
        """Do something with the pid of one that runs; it stays that process's for as long."""
        with self._lock:
            process = self._running.get(name)
            if process is not None and process.returncode is None:
                do(process.pid)

    def stop(self, names: Sequence[str], timeout_s: float) -> None:
        """SIGTERM, then SIGKILL for those that still run after ``timeout_s`` or at a further stop signal; reaped."""
        waiting = [name for name in names if name in self._running]
        signals = len(self._wakeup.stop_signals)
        self._signal(waiting, signal.SIGTERM)
        self._signal(waiting, signal.SIGCONT)  # Who stands still could not hear of it.
        until_ns = self._now_ns() + int(timeout_s * NANOSECONDS_PER_SECOND)
        while any(name in self._running for name in waiting):
            left_s = (until_ns - self._now_ns()) / NANOSECONDS_PER_SECOND
            if left_s <= 0 or len(self._wakeup.stop_signals) > signals:
                self._signal(waiting, signal.SIGKILL)
                for process in [self._running[name] for name in waiting if name in self._running]:
                    process.wait()
            else:
                self._wakeup.wait(min(left_s, _REAP_S))
            self.take_exits()

    def _signal(self, names: Sequence[str], signum: signal.Signals) -> None:
        """To the whole session of each. What has ended but is not reaped keeps its pid: nobody else is hit."""
        for name in names:
            self.on_process(name, lambda pid: _signal_session(pid, signum))

    def _record(self) -> None:
        pids = {name: process.pid for name, process in self._running.items()}
        with suppress(OSError):  # For people and tests; the run does not depend on it.
            (self._folder / "processes.json").write_bytes(msgspec.json.encode(pids))


def _signal_session(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # PermissionError: macOS, of a group of zombies.
        os.killpg(pid, signum)


def last_lines(path: Path, count: int, start_bytes: int = 0) -> list[str]:
    """The last lines of a text file that are not empty, from a place in it on; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(start_bytes, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]

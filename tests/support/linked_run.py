"""A run between sites: a syncer and toy learners as processes, each in a network namespace of its own.

Decides how a test follows such a run: by what the run log says, which its syncer writes as things happen, by what
learners say of their steps, and by what the kernel says of connections. Never by waiting for time to pass.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from support import toy_processes
from support.commands import url_of
from support.links import Star, inside
from unlockstep import config as run_config
from unlockstep import runlog
from unlockstep.cli.app import run as command
from unlockstep.config import CodecSection, DurabilitySection, InnerSection, RunConfig, RunSection
from unlockstep.core.events import Event
from unlockstep.core.formats import Codec
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.status import Status
from unlockstep.net.access.security import NO_SECURITY, ClientSecurity
from unlockstep.net.clients.observer import read_status
from unlockstep.net.wire.timeouts import BACKOFF_S_MAX
from unlockstep.report.accounting import account

WAIT_S = 60.0
"""What has not happened by then, on a busy machine, never will."""

GONE_S_MAX = 5.0
"""From the order to go to the end of a process, wherever its syncer is."""

SAYS_STEPS = 5

LOOK_S = 0.05
"""How often the kernel is asked about connections, of which it tells nobody by itself."""

ESTABLISHED = "01"

Kind = TypeVar("Kind", bound=Event)

STEP_S = 0.05
"""Of a toy learner, where nothing else is said."""


def linked_config(steps: int = 10**6, lease_s: float = 2.0, fragments: int = 4, interval_steps: int = 8) -> RunConfig:
    """Of a run whose learners are missed soon, with bodies of the same size both ways."""
    return RunConfig(
        run=RunSection(name="sites", steps=steps),
        inner=InnerSection(schedule="constant"),
        protocol=ProtocolOptions(fragments=fragments, interval_steps=interval_steps, lease_s=lease_s),
        durability=DurabilitySection(lease_s=lease_s),
        codec=CodecSection(upload=Codec.BFLOAT16, download=Codec.BFLOAT16),
    )


class FollowedLog:
    """The run log of a syncer in another process, event by event as it is written."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._follow, args=(lines,), name="followed-log", daemon=True).start()

    def _follow(self, lines: Iterator[str]) -> None:
        next(lines, None)  # The header.
        for line in lines:
            if not line.endswith("\n"):
                return  # Whoever copied it out has been ended in the middle of it.
            event = msgspec.json.decode(line, type=Event)
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()

    @property
    def mark(self) -> int:
        """How many events there are: what comes after it is new."""
        return len(self.events)

    def until(self, enough: Callable[[list[Event]], bool], since: int = 0, timeout_s: float = WAIT_S) -> list[Event]:
        """The events from a mark on, once it is so."""
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self.events[since:]), timeout_s), self.events[since:][-20:]
            return self.events[since:]

    def wait(self, kind: type[Kind], since: int = 0, timeout_s: float = WAIT_S, **fields: object) -> Kind:
        """The first event of a kind with these fields since a mark."""

        def found(events: list[Event]) -> list[Kind]:
            mine = [event for event in events if isinstance(event, kind)]
            return [event for event in mine if all(getattr(event, name) == value for name, value in fields.items())]

        return found(self.until(lambda events: bool(found(events)), since, timeout_s))[0]


class FollowedLearner:
    """What a toy learner in another process does, by its own account."""

    def __init__(self, lines: Iterator[str], name: str) -> None:
        self.count = 0
        """Steps it has taken."""
        self.reports: dict[int, int] = {}
        """Number of a step -> when the report of it was given to the connection, by the clock all processes share."""
        self._name = name
        self._has_ended = False
        self._changed = threading.Condition()
        threading.Thread(target=self._follow, args=(lines,), name=f"followed-{name}", daemon=True).start()

    def _follow(self, lines: Iterator[str]) -> None:
        for line in lines:
            with self._changed:
                what, number, at_ns = line.split()
                if what == "step":
                    self.count = int(number)
                else:
                    self.reports[int(number)] = int(at_ns)
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def until(self, count: int, timeout_s: float = WAIT_S) -> None:
        """Wait until it has taken so many steps."""
        with self._changed:
            self._changed.wait_for(lambda: self.count >= count or self._has_ended, timeout_s)
            assert self.count >= count, f"{self._name} is at {self.count} of {count} steps"


class LinkedRun:
    """A syncer and the learners of a star.

    Args:
        star: where.
        config: of the run.
        folder: of everything the processes write.
        secured: with TLS and tokens; otherwise open to all.
    """

    def __init__(self, star: Star, config: RunConfig, folder: Path, secured: bool = False) -> None:
        self.star = star
        self.config = config
        self.folder = folder / "run"
        self._logs = folder / "logs"
        self._logs.mkdir()
        given = folder / "given.toml"
        given.write_text(run_config.dumps(config))
        self._secrets = _make_secrets(star, folder / "secrets") if secured else None
        asks = ("--insecure",) if self._secrets is None else ("--secrets", str(self._secrets))
        where = ("--listen", "0.0.0.0:0", "--advertise", star.address(0), *asks)
        self.syncer = self._start_unlockstep(
            star.syncer, "syncer", "--config", str(given), "--run-dir", str(self.folder), *where
        )
        self.port = int(url_of(self.syncer).rpartition(":")[2])
        tail = star.start(star.syncer, "tail", f"--pid={os.getpid()}", "-n", "+1", "-f", str(self.folder / "run.jsonl"))
        assert tail.stdout is not None
        self.log = FollowedLog(tail.stdout)
        self.learners: dict[str, subprocess.Popen[str]] = {}
        self.followed: dict[str, FollowedLearner] = {}

    def url(self, number: int) -> str:
        """Of the syncer, as this learner knows it."""
        return f"{self._scheme}://{self.star.address(number)}:{self.port}"

    @property
    def _scheme(self) -> str:
        return "http" if self._secrets is None else "https"

    def join(self, number: int, *arguments: str) -> str:
        """A learner begins; returns its name."""
        name = f"learner-{number}"
        program = (sys.executable, toy_processes.__file__, str(self._logs), "learner", "--syncer", self.url(number))
        tied = ("--shard", str(number), "--shards", str(len(self.star.links)), "--parent-pid", str(os.getpid()))
        shows = ()
        if self._secrets is not None:
            shows = ("--ca", str(self._secrets / "ca.pem"), "--token-file", str(self._secrets / "learner.token"))
        real = ("--courier", "process", "--backoff-s-max", str(BACKOFF_S_MAX))
        paced = ("--says-steps", str(SAYS_STEPS), "--step-s", str(STEP_S), *real)
        self.learners[name] = self.star.start(
            self.star.learners[number],
            *(*program, "--name", name, *tied, *paced, *shows, *arguments),
            errors=self._logs / f"{name}.log",
        )
        stdout = self.learners[name].stdout
        assert stdout is not None
        self.followed[name] = FollowedLearner(stdout, name)
        return name

    def join_all(self, *arguments: str) -> list[str]:
        """One learner behind every link."""
        return [self.join(number, *arguments) for number in range(len(self.star.links))]

    def step_on(self, count: int, *names: str) -> None:
        """Wait until each of these learners, by its own account, has taken so many more steps."""
        targets = {name: self.followed[name].count + count for name in names}
        for name, target in targets.items():
            self.followed[name].until(target, WAIT_S + 2 * count * STEP_S)

    def status(self) -> Status:
        """What the syncer says, asked at its own site."""
        security = NO_SECURITY
        if self._secrets is not None:
            security = ClientSecurity.of(ca=self._secrets / "ca.pem", token=self._secrets / "observer.token")
        with inside(self.star.syncer):
            return read_status(f"{self._scheme}://127.0.0.1:{self.port}", self.config.run.name, security)

    def now_ns(self) -> int:
        """Time of the run, as of about now."""
        return self.status().at_ns

    def connections(self, number: int) -> int:
        """Connections to this learner that the syncer's site believes in."""
        with inside(self.star.syncer):
            rows = [line.split() for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]]
        own = "".join(f"{int(part):02X}" for part in reversed(self.star.address(number).split(".")))
        return sum(row[1] == f"{own}:{self.port:04X}" and row[3] == ESTABLISHED for row in rows)

    def until_disconnected(self, number: int, timeout_s: float = WAIT_S) -> None:
        """Wait until the syncer's site believes in no connection to this learner."""
        _until(lambda: self.connections(number) == 0, timeout_s)

    def leave(self, *names: str, by: signal.Signals = signal.SIGTERM) -> None:
        """Tell learners to go; each must, in time and in order, and leave no process behind."""
        for name in names:
            self.learners[name].send_signal(by)
        end_s = time.monotonic() + GONE_S_MAX
        for name in names:
            assert self.learners[name].wait(end_s - time.monotonic()) == 128 + by, (name, self.said(name))
            site = self.star.learners[int(name.removeprefix("learner-"))]
            _until(lambda site=site: not self.star.processes(site), end_s - time.monotonic())  # type: ignore[misc]

    def end(self) -> list[Event]:
        """Whoever is still there goes in order, the syncer last; returns all that has happened."""
        self.leave(*(name for name, learner in self.learners.items() if learner.poll() is None))
        self.syncer.send_signal(signal.SIGTERM)
        assert self.syncer.wait(GONE_S_MAX) == 128 + signal.SIGTERM, self.said("syncer")
        return self.events()

    def events(self) -> list[Event]:
        """All that has happened in a run that is over; every rule must have been kept, that tokens balance among
        them."""
        events = list(runlog.read(self.folder / "run.jsonl")[1])
        assert account(events, self.config.protocol).ended
        assert command(["report", str(self.folder), "--check"]) == 0
        return events

    def said(self, name: str) -> str:
        """What a process has written to stderr."""
        return (self._logs / f"{name}.log").read_text()

    def _start_unlockstep(self, namespace: str, command: str, *arguments: str) -> subprocess.Popen[str]:
        program = (sys.executable, "-m", "unlockstep", command)
        tied = ("--parent-pid", str(os.getpid()))
        return self.star.start(namespace, *program, *arguments, *tied, errors=self._logs / f"{command}.log")


def _make_secrets(star: Star, folder: Path) -> Path:
    addresses = [star.address(number) for number in range(len(star.links))]
    hosts = [option for address in (*addresses, "127.0.0.1") for option in ("--host", address)]
    assert command(["certs", "make", str(folder), *hosts]) == 0
    return folder


def _until(is_so: Callable[[], bool], timeout_s: float) -> None:
    """For what nobody tells of by itself: the kernel is asked again and again."""
    end_s, pause = time.monotonic() + timeout_s, threading.Event()
    while not is_so():
        assert time.monotonic() < end_s, "it did not come to that"
        pause.wait(LOOK_S)


@contextmanager
def linked_run(star: Star, config: RunConfig, folder: Path, secured: bool = False) -> Iterator[LinkedRun]:
    """A run whose syncer listens; if the block fails, what the processes have said is told with the failure."""
    try:
        yield LinkedRun(star, config, folder, secured)
    except BaseException as error:
        for log in sorted((folder / "logs").glob("*.log")):
            error.add_note(f"--- {log.name}\n{log.read_text()[-4000:]}")
        raise

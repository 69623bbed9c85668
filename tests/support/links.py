"""Sites on one machine: network namespaces in a star around a syncer, each learner behind an emulated link of its own.

::

    namespace learner-0 ── link 0 (10.77.0.2 ... 10.77.0.1) ──┐
    namespace learner-1 ── link 1 (10.77.1.2 ... 10.77.1.1) ──┼── namespace syncer
    namespace learner-2 ── link 2 (10.77.2.2 ... 10.77.2.1) ──┘

What runs in a namespace has the kernel's whole network stack to itself and reaches the others only through links, each
a ``link_forwarder``. Decides names, addresses and that nothing of it is left behind: namespaces, interfaces and
processes go when the block ends, and those of a process that was killed go when the next star is built.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from support.commands import Launch, processes
from support.link_cable import Shape
from support.link_forwarder import Command, Report, tun

FORWARDER = Path(__file__).with_name("link_forwarder.py")
NAMESPACES = Path("/run/netns")
PREFIX = "ult-links"
"""Of every namespace: ``ult-links-PID-NAME``."""

PLAIN = Shape()
LEARNERS_MAX = 8
FRAMES_WAITING_MAX = 10_000
"""Between a network stack and its forwarder: nothing is lost there because the machine is busy for a moment."""

_TCP = Path("/proc/sys/net/ipv4")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def why_not() -> str | None:
    """Why there can be no namespaces and links on this machine, if so."""
    if sys.platform != "linux":
        return "network namespaces are a thing of Linux"
    if os.geteuid() != 0:
        return "to make network namespaces one must be root"
    if shutil.which("ip") is None:
        return "the command ip is missing: install iproute2"
    try:
        os.close(tun(f"ul{os.getpid()}t"))
    except OSError as error:
        return f"no TUN interface can be made, of which links consist ({error.strerror})"
    trial = _namespace("trial")
    try:
        _ip("netns", "add", trial)
        _ip("netns", "del", trial)
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted here: {error.stderr.strip()}"
    return None


class Link:
    """One emulated link; ``up`` is from the learner to the syncer.

    Args:
        process: its forwarder, ready.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.up = self.down = Shape()

    def be(self, both: Shape | None = None, *, up: Shape | None = None, down: Shape | None = None) -> Report:
        """Be shaped like this from now on; what is not given stays. Returns what has happened until now."""
        up, down = up or both, down or both
        self.up, self.down = up or self.up, down or self.down
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with suppress(BrokenPipeError):
            stdin.write(msgspec.json.encode(Command(up, down)).decode() + "\n")
            stdin.flush()
        if not (line := stdout.readline()):
            raise EOFError("the forwarder of this link has ended")
        return msgspec.json.decode(line, type=Report)

    def change(self, **fields: object) -> Report:
        """Both directions, in these fields of ``Shape``."""
        return self.be(up=_changed(self.up, fields), down=_changed(self.down, fields))

    def cut(self, *, up: bool = True, down: bool = True) -> None:
        """Let nothing through, in these directions; nobody is told."""
        self.be(up=_changed(self.up, {"is_cut": up}), down=_changed(self.down, {"is_cut": down}))

    def heal(self) -> None:
        """Be what it was before it was cut."""
        self.change(is_cut=False)

    def report(self) -> Report:
        """What has happened until now."""
        return self.be()


def _changed(shape: Shape, fields: dict[str, object]) -> Shape:
    return msgspec.structs.replace(shape, **fields)


class Star:
    """One namespace for a syncer and one for each learner."""

    def __init__(self, links: list[Link], launch: Launch) -> None:
        self.links = links
        self.syncer = _namespace("syncer")
        self.learners = [_learner_namespace(number) for number in range(len(links))]
        self._launch = launch

    def address(self, learner: int) -> str:
        """Of the syncer, as seen by this learner."""
        return f"10.77.{learner}.1"

    def processes(self, namespace: str) -> list[int]:
        """Whoever runs there."""
        return [int(pid) for pid in _ip("netns", "pids", namespace).split()]

    def start(self, namespace: str, *command: str, errors: Path | None = None) -> subprocess.Popen[str]:
        """A process in one of the namespaces, which does not outlive the star; see ``processes``."""
        return self._launch("ip", "netns", "exec", namespace, *command, errors=errors)


@contextmanager
def star(learners: int, shape: Shape = PLAIN, seed: int = 0) -> Iterator[Star]:
    """A star of so many links, all of this shape, gone when the block ends. To be asked for where ``why_not`` is None.
    Congestion control is CUBIC everywhere, as on most machines.

    Args:
        seed: of all losses.
    """
    assert learners <= LEARNERS_MAX
    _sweep()
    with ExitStack() as stack:
        for name in ("syncer", *(f"learner-{number}" for number in range(learners))):
            _ip("netns", "add", _namespace(name))
            stack.callback(_delete, _namespace(name))
            _ip("-n", _namespace(name), "link", "set", "lo", "up")
            set_congestion_control(_namespace(name), "cubic")
        launch = stack.enter_context(processes())
        links = [_link(launch, number, seed + 2 * number) for number in range(learners)]
        for link in links:
            link.be(shape)
        yield Star(links, launch)


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Sockets and threads that the calling thread makes meanwhile are in this namespace."""
    with Path("/proc/thread-self/ns/net").open() as home, (NAMESPACES / namespace).open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def set_congestion_control(namespace: str, name: str) -> None:
    """How connections opened in a namespace from now on share a link: ``cubic``, ``reno`` or ``bbr``.

    A namespace may take only what is allowed outside all of them; for this moment it is.
    """
    allowed = (_TCP / "tcp_allowed_congestion_control").read_text()
    (_TCP / "tcp_allowed_congestion_control").write_text(f"{allowed.strip()} {name}")
    try:
        with inside(namespace):
            (_TCP / "tcp_congestion_control").write_text(name)
    finally:
        (_TCP / "tcp_allowed_congestion_control").write_text(allowed)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _link(launch: Launch, number: int, seed: int) -> Link:
    """From a learner's namespace to the syncer's, both ends up."""
    ends = {f"ul{os.getpid()}l{number}": _learner_namespace(number), f"ul{os.getpid()}s{number}": _namespace("syncer")}
    process = launch(sys.executable, str(FORWARDER), *ends, str(seed))
    assert process.stdout is not None and process.stderr is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"a link could not be made: {process.stderr.read()}")
    addresses = (f"10.77.{number}.2", f"10.77.{number}.1")
    for (device, namespace), own, other in zip(ends.items(), addresses, reversed(addresses), strict=True):
        _ip("link", "set", device, "netns", namespace)
        _ip("-n", namespace, "address", "add", own, "peer", other, "dev", device)
        _ip("-n", namespace, "link", "set", device, "txqueuelen", str(FRAMES_WAITING_MAX), "up")
    return Link(process)


def _namespace(name: str) -> str:
    return f"{PREFIX}-{os.getpid()}-{name}"


def _learner_namespace(number: int) -> str:
    return _namespace(f"learner-{number}")


def _ip(*arguments: str) -> str:
    return subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True).stdout


def _delete(namespace: str) -> None:
    with suppress(subprocess.CalledProcessError):
        _ip("netns", "del", namespace)


def _sweep() -> None:
    """Namespaces of processes that are no more."""
    for path in NAMESPACES.glob(f"{PREFIX}-*"):
        pid = path.name.split("-")[2]
        if not Path("/proc", pid).exists():
            _delete(path.name)

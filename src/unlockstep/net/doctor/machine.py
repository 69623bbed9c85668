"""This machine, as a place for a syncer or a learner: what it has, and what is in the way.

Decides what is looked at and what is too little. Facts come from the system, each in a function of its own; what is
made of them is pure. Nothing is changed, and nobody else is asked.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from unlockstep import __version__
from unlockstep.certificates import Certificate, is_for
from unlockstep.core.errors import UsageError
from unlockstep.core.words import counted
from unlockstep.net.access.tokens import Entry
from unlockstep.net.doctor.diagnosis import CERTIFICATE_DAYS_MIN, Finding, fail, ok, warn
from unlockstep.net.wire import names
from unlockstep.net.wire.interfaces import Interface, interfaces
from unlockstep.net.wire.listening import Endpoint, listen_once, told_as
from unlockstep.net.wire.names import Address
from unlockstep.net.wire.sockets import open_files_max

PACKAGES = ("numpy", "aiohttp", "msgspec", "torch", "transformers")
NEEDED = ("numpy", "aiohttp", "msgspec")

BYTES_PER_PARAMETER = 9
"""Of a syncer's memory, when commits are merged and saved (``benchmarks/syncer_memory.py``)."""

MEMORY_BYTES_MIN = 2**30
ROOM_BYTES_MIN = 2**30
FILES_MIN = 1024
FILES_PER_LEARNER = 16
"""Connections that one learner may hold open at the syncer, generously."""

EPOCH_OF_THIS_PROGRAM_S = 1_735_689_600
"""2025: a clock before that is not set."""

_TIME_ERROR = 5
_TIMEX_BYTES = 512
"""More than ``struct timex`` has anywhere."""


def examine(
    listen: Endpoint,
    advertise: str | None,
    secrets_finding: Callable[[Endpoint], Finding] | None = None,
) -> Iterator[Finding]:
    """All findings, one after the other.

    Args:
        listen: where a syncer would listen.
        advertise: what it would tell others; None: what it finds itself.
        secrets_finding: says something of what it would show and ask for there; None: nothing was given.
    """
    known = interfaces()
    yield python(sys.version_info[:3], platform.python_implementation(), platform.system())
    yield packages(_versions())
    yield host_name(socket.gethostname(), names.resolve(socket.gethostname()), names.local_address(4))
    yield network(known, advertise is not None)
    yield listening(listen, advertise)
    found = no_secrets(listen) if secrets_finding is None else secrets_finding(listen)
    if found is not None:
        yield found
    yield memory(available_memory())
    yield room("temporary files", Path(tempfile.gettempdir()), _free(Path(tempfile.gettempdir())), "TMPDIR")
    yield room("run folder", Path.cwd(), _free(Path.cwd()), "--run-dir")
    yield open_files(open_files_max())
    yield clock(time.time(), is_clock_set())


# ------------------------------------------------------------------------------------------- findings


def python(version: Sequence[int], implementation: str, system: str) -> Finding:
    """The interpreter."""
    return ok("python", f"{implementation} {'.'.join(map(str, version))} on {system}")


def packages(found: Mapping[str, str | None]) -> Finding:
    """What is installed."""
    listed = ", ".join(f"{name} {version}" for name, version in found.items() if version is not None)
    missing = [name for name in NEEDED if found.get(name) is None]
    if missing:
        return fail("packages", f"{', '.join(missing)} is missing", "install unlockstep with pip, which brings it")
    if found.get("torch") is None:
        listed += "; no torch: this machine can be a syncer, and no learner"
    return ok("packages", f"unlockstep {__version__}, {listed}")


def host_name(host: str, addresses: Sequence[Address], way_out: Address | None) -> Finding:
    """What the machine calls itself (C48)."""
    example = f", here {way_out}" if way_out is not None else ""
    if not addresses:
        return warn(
            "host name",
            f"{host}, which is not known to this machine itself",
            f"others may not resolve it either: give addresses{example}",
        )
    if all(address.is_loopback for address in addresses):
        return warn(
            "host name",
            f"{host} means {addresses[0]} here: whoever listens on that name is reached by nobody else",
            f"do not use it with --listen: give the address{example}, or mend the line in /etc/hosts",
        )
    return ok("host name", f"{host} is {', '.join(map(str, addresses))}")


def network(known: Sequence[Interface], is_advertised: bool = False) -> Finding:
    """Interfaces that others can be reached by."""
    if not known:
        return ok("network", "this system does not tell about its interfaces")
    outward = [each for each in known if any(not (a.is_loopback or a.is_link_local) for a in each.addresses)]
    if not outward:
        return warn(
            "network",
            "no interface but loopback has an address: only this machine is reached",
            "for a run on several machines, connect this one to a network",
        )
    listed = "; ".join(_described(each) for each in outward)
    if not (is_advertised or any(each.has_default_route for each in known)):
        return warn(
            "network", f"{listed}; no default route", "say with --advertise which address others shall use, or add one"
        )
    return ok("network", listed)


def _described(interface: Interface) -> str:
    own = ", ".join(str(a) for a in interface.addresses if not a.is_link_local)
    speed = "" if interface.mbit_per_s is None else f", {interface.mbit_per_s} Mbit/s"
    return f"{interface.name} {own}{speed}{', default route' if interface.has_default_route else ''}"


def listening(endpoint: Endpoint, advertise: str | None) -> Finding:
    """Whether a syncer could listen there, and what it would tell others."""
    try:
        told, notes = told_as(endpoint, advertise)
        bound = listen_once(told)
    except UsageError as error:
        sentence, _, fix = str(error).partition("; ")
        return fail("listen", sentence, fix)
    free = f"{endpoint} is free" if endpoint.port else f"a free port at {endpoint.host} is there"
    about = f"{free}; others would be told {bound.url}"
    warnings = [note for note in notes if not note.startswith("others are told")]
    return warn("listen", about, "; ".join(warnings)) if warnings else ok("listen", about)


def secrets(certificate: Certificate, tokens: Mapping[str, Entry], told_host: str, now: datetime.datetime) -> Finding:
    """What a syncer here would show, and whom it would let in.

    Args:
        certificate: its own.
        tokens: by name.
        told_host: of the address that others are told.
        now: with a time zone.
    """
    days = (certificate.ends - now).days
    about = (
        f"a certificate for {', '.join(certificate.names)}, {counted(days, 'day')} left; {_described_tokens(tokens)}"
    )
    if not is_for(certificate.names, told_host):
        return fail(
            "secrets",
            f"{about}; but others are told {told_host}, which the certificate is not for",
            "make one that is (`unlockstep certs make --host`), or tell them another name with --advertise",
        )
    if days < CERTIFICATE_DAYS_MIN:
        return warn("secrets", about, "have it renewed soon: `unlockstep certs renew` on the machine with its ca.key")
    soon = now + datetime.timedelta(days=CERTIFICATE_DAYS_MIN)
    ending = sorted(name for name, entry in tokens.items() if entry.expires is not None and entry.expires < soon)
    if ending:
        return warn(
            "secrets",
            f"{about}; {', '.join(ending)} expire within {CERTIFICATE_DAYS_MIN} days, or have",
            "make others (`unlockstep certs token`) and hand them out",
        )
    return ok("secrets", about)


def no_secrets(endpoint: Endpoint) -> Finding | None:
    """What a syncer there would do without; None: nobody minds."""
    if names.is_loopback(endpoint.host):
        return None
    return warn(
        "secrets",
        f"none are given, and others can reach {endpoint}: the syncer will not listen there",
        "make some (`unlockstep certs make`) and give them with --secrets, or say --insecure to the syncer",
    )


def _described_tokens(tokens: Mapping[str, Entry]) -> str:
    counts = Counter(entry.role.value for entry in tokens.values())
    return f"tokens: {', '.join(f'{count} {role}' for role, count in sorted(counts.items())) or 'none'}"


def memory(available: int | None) -> Finding:
    """What a process may take."""
    if available is None:
        return ok("memory", "this system does not tell")
    about = (
        f"{_gb(available)} are free: a syncer for {available / BYTES_PER_PARAMETER / 1e6:,.0f} M parameters, at most"
    )
    if available < MEMORY_BYTES_MIN:
        return warn("memory", about, "end other processes, or raise the limit of the container")
    return ok("memory", about)


def room(name: str, folder: Path, free: int | None, setting: str) -> Finding:
    """Whether there is room for the bodies of a run."""
    if free is None:
        return fail(name, f"{folder} cannot be used", f"choose another with {setting}")
    about = f"{_gb(free)} are free in {folder}"
    if free < ROOM_BYTES_MIN:
        return warn(name, about, f"free some, or choose another with {setting}")
    return ok(name, about)


def open_files(limit: int | None) -> Finding:
    """How many connections a process may hold."""
    if limit is None:
        return ok("open files", "no limit")
    about = f"{limit} at most: a syncer for about {max(0, limit // FILES_PER_LEARNER - 4)} learners"
    if limit < FILES_MIN:
        return warn("open files", about, "raise it: ulimit -n 65536")
    return ok("open files", about)


def clock(now_s: float, is_set: bool | None) -> Finding:
    """Whether the clock can be right."""
    about = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < EPOCH_OF_THIS_PROGRAM_S:
        return fail("clock", f"{about} is in the past", "set it: no certificate is valid then")
    if is_set is False:
        return warn(
            "clock",
            f"{about}, and the system does not know whether that is right",
            "have it set by NTP (timedatectl set-ntp true): certificates and logs go by the clock",
        )
    return ok("clock", about + (", kept by NTP" if is_set else ""))


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"


# ------------------------------------------------------------------------------------------- facts


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def available_memory(
    meminfo: Callable[[], str] = lambda: Path("/proc/meminfo").read_text(),
    group: Path = Path("/sys/fs/cgroup"),
) -> int | None:
    """Bytes that are free, in the machine and in the container; None: not known."""
    found: list[int] = []
    with suppress(OSError, ValueError, KeyError):
        lines = dict(line.split(":", 1) for line in meminfo().splitlines() if ":" in line)
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError, KeyError):
        limit = (group / "memory.max").read_text()
        found.append(max(0, int(limit) - int((group / "memory.current").read_text())))
    return min(found, default=None)


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free if os.access(folder, os.W_OK) else None
    except OSError:
        return None


def is_clock_set() -> bool | None:
    """Whether the kernel takes its clock for synchronised; None: it does not say."""
    if sys.platform != "linux":
        return None
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state != _TIME_ERROR)

"""The network interfaces of this machine: names, addresses, link speed and the default route, as Linux shows them.

Decides how that is read, in files and by one system call. Where a system has neither, nothing is known, and nobody
fails for it.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unlockstep.net.wire.names import Address

_SYS = Path("/sys/class/net")
_IPV6 = Path("/proc/net/if_inet6")
_ROUTES = Path("/proc/net/route")
_ROUTES_IPV6 = Path("/proc/net/ipv6_route")

_SIOCGIFCONF = 0x8912
_ENTRIES = 128
_ENTRY_BYTES = 16 + max(16, struct.calcsize("P") * 3)
"""``struct ifreq``: a name, then a union whose largest member holds two pointers and more."""
_ADDRESS = slice(16 + 4, 16 + 8)

_RTF_UP = 0x1


SLOW_FACTOR = 2.0
"""An interface is slow if another one of the machine is so many times as fast."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface."""

    name: str
    addresses: tuple[Address, ...] = ()
    mbit_per_s: int | None = None
    """Speed of its link; None: not known, as of most virtual ones."""
    is_up: bool = True
    has_default_route: bool = False


def much_faster(mbit_per_s: int | None, known: Sequence[Interface]) -> Interface | None:
    """The fastest interface in use, if it is far faster than this; None: it is not, or the speeds are not known."""
    in_use = [each for each in known if each.mbit_per_s is not None and each.is_up and each.addresses]
    fastest = max(in_use, key=lambda each: each.mbit_per_s or 0, default=None)
    if fastest is None or mbit_per_s is None or (fastest.mbit_per_s or 0) < SLOW_FACTOR * mbit_per_s:
        return None
    return fastest


def interfaces() -> tuple[Interface, ...]:
    """All that is known; empty where the system does not say."""
    addresses: dict[str, list[Address]] = {}
    for name, address in (*_ipv4_addresses(), *ipv6_addresses(_read(_IPV6))):
        addresses.setdefault(name, []).append(address)
    ways_out = {*default_routes(_read(_ROUTES)), *default_routes_ipv6(_read(_ROUTES_IPV6))}
    with suppress(OSError):
        return tuple(
            Interface(
                name=name,
                addresses=tuple(addresses.get(name, ())),
                mbit_per_s=link_speed(_read(_SYS / name / "speed")),
                is_up=_read(_SYS / name / "operstate").strip() != "down",
                has_default_route=name in ways_out,
            )
            for _, name in socket.if_nameindex()
        )
    return ()


def link_speed(text: str) -> int | None:
    """Of ``/sys/class/net/*/speed``, Mbit/s; a link without one says -1, or cannot be read."""
    with suppress(ValueError):
        speed = int(text)
        return speed if 0 < speed < 2**31 - 1 else None
    return None


def default_routes(text: str) -> Iterator[str]:
    """The interfaces of the default routes in ``/proc/net/route``."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000" and int(fields[3], 16) & _RTF_UP:
            yield fields[0]


def default_routes_ipv6(text: str) -> Iterator[str]:
    """The same of ``/proc/net/ipv6_route``."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 10 and fields[0] == "0" * 32 and fields[1] == "00" and fields[9] != "lo":
            yield fields[9]


def ipv6_addresses(text: str) -> Iterator[tuple[str, Address]]:
    """Interface and address of every line of ``/proc/net/if_inet6``."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 6:
            yield fields[5], ipaddress.IPv6Address(bytes.fromhex(fields[0]))


def _ipv4_addresses() -> Iterator[tuple[str, Address]]:
    """Interface and address, by the call that ``ifconfig`` uses; an alias counts to its interface."""
    try:
        import fcntl
    except ImportError:
        return
    import array

    room = array.array("B", bytes(_ENTRIES * _ENTRY_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        answer = fcntl.ioctl(asked, _SIOCGIFCONF, struct.pack("iP", len(room), room.buffer_info()[0]))
        (filled, _) = struct.unpack("iP", answer)
        entries = room.tobytes()[:filled]
        for start in range(0, filled, _ENTRY_BYTES):
            entry = entries[start : start + _ENTRY_BYTES]
            name = entry[:16].split(b"\0", 1)[0].decode(errors="replace").partition(":")[0]
            yield name, ipaddress.IPv4Address(entry[_ADDRESS])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""

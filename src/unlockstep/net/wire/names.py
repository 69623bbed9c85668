"""Names and addresses of hosts: what they mean here, and which of them lead back to where they are said.

Decides what counts as a machine's own name for itself. Does not decide what follows from that.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_ANYWHERE = {4: ("203.0.113.1", socket.AF_INET), 6: ("2001:db8::1", socket.AF_INET6)}
"""Addresses for documentation, which nobody has (RFC 5737, RFC 3849): only the default route leads to them."""


@dataclass(frozen=True, slots=True)
class Target:
    """A syncer's address, taken apart."""

    url: str
    host: str
    port: int
    is_tls: bool

    @classmethod
    def of(cls, url: str) -> Target:
        """Of an address as ``api.base_urls`` gives it."""
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        return cls(url, parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls)

    @property
    def authority(self) -> str:
        """The field ``Host``."""
        return f"{bracketed(self.host)}:{self.port}"


def literal(host: str) -> Address | None:
    """The address, if ``host`` is one and not a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_localhost(host: str) -> bool:
    """Whether this name always means the machine on which it is said (RFC 6761)."""
    name = host.rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost")


def is_other_name(host: str) -> bool:
    """Whether it is a name, and none that says of itself that it means this machine."""
    return literal(host) is None and not is_localhost(host)


def is_loopback(host: str) -> bool:
    """Whether it says of itself that it is this machine only."""
    address = literal(host)
    return is_localhost(host) if address is None else address.is_loopback


def bracketed(host: str) -> str:
    """As it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def resolve(host: str) -> tuple[Address, ...]:
    """The addresses a name has here, in the order they are tried; none if it is not known. Blocks."""
    address = literal(host)
    if address is not None:
        return (address,)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(ipaddress.ip_address(str(entry[4][0])) for entry in found))


def local_address(version: int, to: str | None = None) -> Address | None:
    """This machine's address on the way to another one; nothing is sent.

    Args:
        version: 4 or 6.
        to: the other one's address; None: whoever is behind the default route.
    """
    anywhere, family = _ANYWHERE[version]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((to or anywhere, 9))
            address = ipaddress.ip_address(str(probe.getsockname()[0]))
    except OSError:
        return None
    return None if address.is_unspecified or (to is None and address.is_loopback) else address


def advice(host: str) -> str:
    """What may be wrong with a name that was to lead to a syncer: the end of a sentence, empty if nothing. Blocks."""
    address = literal(host)
    if address is not None and address.is_unspecified:
        return f"; {host} means all addresses of a machine and is none to connect to"
    if address is not None:
        return ""
    found = resolve(host)
    if not found:
        return f"; the name {host} is not known on this machine: check its spelling, or give the address"
    if is_other_name(host) and all(each.is_loopback for each in found):
        return (
            f"; {host} means {found[0]} here, which is this machine itself (often a line in /etc/hosts): if the syncer "
            "is on another one, give its address"
        )
    return ""

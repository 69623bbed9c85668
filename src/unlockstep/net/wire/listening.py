"""Where a syncer listens, and what others are told to connect to.

Decides how ``--listen`` and ``--advertise`` are read, and which of a machine's addresses others are told when nobody
says. A name that leads back to the machine itself is refused where others are to come: they would knock at their own
door. Does not decide who may listen beyond this machine (``cli.syncer``), nor what is said to whom.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from unlockstep.core.errors import UsageError
from unlockstep.net.wire import names
from unlockstep.net.wire.api import PORT_DEFAULT, base_urls
from unlockstep.net.wire.interfaces import Interface, interfaces, much_faster
from unlockstep.net.wire.names import Address

ALL_ADDRESSES = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place to listen at, and its name."""

    host: str
    port: int
    """0: a free one."""
    told_host: str = ""
    """What others are told instead of ``host``."""
    advertised: str = ""
    """What others are told, whole: as somebody said."""
    scheme: str = "http"

    def __str__(self) -> str:
        return f"{names.bracketed(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """What others are told."""
        return self.advertised or f"{self.scheme}://{names.bracketed(self.told_host or self.host)}:{self.port}"

    @property
    def url_host(self) -> str:
        """Its name or address in that."""
        return urlsplit(self.advertised).hostname or "" if self.advertised else self.told_host or self.host


def parse_listen(text: str) -> Endpoint:
    """``HOST:PORT``, ``[ADDRESS]:PORT`` (IPv6), ``:PORT`` (all IPv4 addresses) or ``HOST`` (the default port).

    Raises:
        UsageError: it is none of these.
    """
    if "//" in text:
        raise UsageError(f"--listen is {text}; give HOST:PORT, without http:// (what others are told is --advertise)")
    host, bracket, rest = text.rpartition("]")
    if bracket:
        host, port = host.removeprefix("["), rest.removeprefix(":")
        is_sound = text.startswith("[") and (rest == "" or rest[0] == ":") and ":" in host
    else:
        host, colon, port = text.rpartition(":")
        if not colon:
            host, port = text, ""
        if ":" in host:
            raise UsageError(f"--listen is {text}; write an IPv6 address in brackets: [ADDRESS]:{PORT_DEFAULT}")
        host, is_sound = host or ALL_ADDRESSES, bool(text.strip()) and not text.endswith(":")
    if not is_sound or not host.strip():
        raise UsageError(f"--listen is {text!r}; write HOST:PORT, :PORT or [IPv6 ADDRESS]:PORT")
    if port and not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise UsageError(f"--listen is {text}, but {port} is no port; choose one from 0 to 65535 (0 takes a free one)")
    return Endpoint(host, int(port) if port else PORT_DEFAULT)


def told_as(
    endpoint: Endpoint,
    advertise: str | None,
    resolve: Callable[[str], Sequence[Address]] = names.resolve,
    look: Callable[[], Sequence[Interface]] = interfaces,
) -> tuple[Endpoint, tuple[str, ...]]:
    """The endpoint with what others are told of it, and what whoever started this should know.

    Args:
        endpoint: as it was asked for.
        advertise: as it was asked for; None: it was not.
        resolve: the addresses of a name. Blocks.
        look: the interfaces of this machine.

    Raises:
        UsageError: others cannot connect to what they would be told.
    """
    addresses = resolve(endpoint.host)
    if not addresses:
        raise UsageError(
            f"--listen is {endpoint.host}, a name that is not known on this machine; check its spelling, or give an "
            "address"
        )
    is_local = all(address.is_loopback for address in addresses)
    if is_local and names.is_other_name(endpoint.host):
        raise UsageError(
            f"--listen is {endpoint.host}, which on this machine means {addresses[0]}, where nobody else can connect "
            f"(often a line in /etc/hosts); give the address itself{_for_example(look())}, or {ALL_ADDRESSES} for all"
        )
    if advertise is not None:
        return _advertised(endpoint, advertise, is_local, resolve)
    if not addresses[0].is_unspecified:
        notes = () if is_local else _slow(addresses[0], look())
        return endpoint, notes
    chosen = _way_out(addresses[0].version, look())
    if chosen is None:
        raise UsageError(
            f"--listen is {endpoint.host}, all addresses of this machine, and there is no default route that tells "
            f"which of them others should use; say so with --advertise http://ADDRESS:{endpoint.port or 'PORT'}"
        )
    note = f"others are told {chosen}, the address of the default route; --advertise URL tells them another"
    return replace(endpoint, told_host=str(chosen)), (note, *_slow(chosen, look()))


def _advertised(
    endpoint: Endpoint, advertise: str, is_local: bool, resolve: Callable[[str], Sequence[Address]]
) -> tuple[Endpoint, tuple[str, ...]]:
    has_scheme = "//" in advertise
    try:
        (url,) = base_urls(advertise if has_scheme else f"{endpoint.scheme}://{advertise}")
    except (UsageError, ValueError):
        raise UsageError(f"--advertise is {advertise!r}; write one address, {endpoint.scheme}://HOST:PORT") from None
    host = urlsplit(url).hostname or ""
    if has_scheme or urlsplit(url).port is not None:
        endpoint = replace(endpoint, advertised=url)
    else:
        endpoint = replace(endpoint, told_host=host)
    if is_local:
        return endpoint, ()
    address = names.literal(host)
    if not names.is_other_name(host) and (address is None or address.is_loopback or address.is_unspecified):
        raise UsageError(
            f"--advertise is {advertise}, but {host} is a machine's own name for itself: whoever connects there finds "
            "nobody; give the name or address under which others reach this machine"
        )
    found = () if address is not None else resolve(host)
    if found and all(each.is_loopback for each in found):
        note = (
            f"{host} means {found[0]} on this machine (often a line in /etc/hosts); check on another one, with "
            f"`unlockstep doctor {url}`, that it means something else there"
        )
        return endpoint, (note,)
    if address is None and not found:
        return endpoint, (f"{host} is not known on this machine; check that others can resolve it",)
    return endpoint, ()


def _way_out(version: int, known: Sequence[Interface]) -> Address | None:
    """This machine's address on the default route; without one, its only address that others may reach."""
    chosen = names.local_address(version)
    if chosen is not None:
        return chosen
    own = [a for each in known for a in each.addresses if a.version == version and _is_reachable(a)]
    return own[0] if len(own) == 1 else None


def _is_reachable(address: Address) -> bool:
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _for_example(known: Sequence[Interface]) -> str:
    chosen = _way_out(4, known)
    return "" if chosen is None else f" ({chosen})"


def _slow(address: Address, known: Sequence[Interface]) -> tuple[str, ...]:
    """A sentence if the interface of an address is much slower than another one."""
    chosen = next((each for each in known if address in each.addresses), None)
    faster = None if chosen is None else much_faster(chosen.mbit_per_s, known)
    if chosen is None or faster is None:
        return ()
    return (
        f"{address} is on {chosen.name} ({chosen.mbit_per_s} Mbit/s), but {faster.name} has {faster.mbit_per_s} "
        f"Mbit/s; to use that one, listen on or advertise {faster.addresses[0]}",
    )


def listen_once(endpoint: Endpoint) -> Endpoint:
    """Whether that could be; nobody is answered.

    Raises:
        UsageError: it cannot.
    """
    with port_errors(endpoint):
        family, _, _, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            return replace(endpoint, port=listener.getsockname()[1])


@contextmanager
def port_errors(endpoint: Endpoint) -> Iterator[None]:
    """Turns what keeps a port from being listened on into a sentence."""
    try:
        yield
    except PermissionError:
        raise UsageError(
            f"{endpoint} may not be listened on by this user; choose a port above 1023, or have a proxy pass it on"
        ) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"{endpoint} is in use by another process; stop that one or choose another port (0 takes a free one)"
            ) from None
        raise UsageError(
            f"{endpoint} cannot be listened on ({error.strerror or error}); choose an address of this machine"
        ) from None
    except OverflowError:
        raise UsageError(f"port is {endpoint.port}; choose one from 0 to 65535") from None

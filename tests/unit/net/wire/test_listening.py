"""How an address to listen on is read, and what others are told (C48)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address

import pytest

from unlockstep.core.errors import UsageError
from unlockstep.net.wire import listening
from unlockstep.net.wire.interfaces import Interface
from unlockstep.net.wire.listening import Endpoint, parse_listen, told_as
from unlockstep.net.wire.names import Address

ONE_NIC = (
    Interface("lo", (ip_address("127.0.0.1"), ip_address("::1"))),
    Interface("eth0", (ip_address("10.0.0.5"), ip_address("fe80::5")), 10_000, has_default_route=True),
)
TWO_NICS = (
    Interface("eth0", (ip_address("10.0.0.5"),), 1000, has_default_route=True),
    Interface("ib0", (ip_address("10.1.0.5"),), 100_000),
)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:7077", Endpoint("127.0.0.1", 7077)),
        ("syncer.example.org:80", Endpoint("syncer.example.org", 80)),
        ("one", Endpoint("one", 7077)),
        (":9000", Endpoint("0.0.0.0", 9000)),
        ("one:0", Endpoint("one", 0)),
        ("[::1]:7078", Endpoint("::1", 7078)),
        ("[2001:db8::7]", Endpoint("2001:db8::7", 7077)),
        ("[fe80::1%eth0]:1", Endpoint("fe80::1%eth0", 1)),
    ],
)
def test_an_address_to_listen_on_is_read(text: str, endpoint: Endpoint) -> None:
    assert parse_listen(text) == endpoint


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "write HOST:PORT, :PORT or"),
        (":", "write HOST:PORT, :PORT or"),
        ("one:", "write HOST:PORT, :PORT or"),
        ("[]:1", "write HOST:PORT, :PORT or"),
        ("[one]:1", "write HOST:PORT, :PORT or"),
        ("[::1]7077", "write HOST:PORT, :PORT or"),
        ("x[::1]:7077", "write HOST:PORT, :PORT or"),
        ("::1:7077", r"--listen is ::1:7077; write an IPv6 address in brackets: \[ADDRESS\]:7077"),
        ("[::1", "write an IPv6 address in brackets"),
        ("one:http", "http is no port; choose one from 0 to 65535"),
        ("one:-1", "-1 is no port"),
        ("one:65536", "65536 is no port"),
        ("one:٣", "is no port"),
        ("http://one:1", r"without http:// \(what others are told is --advertise\)"),
    ],
)
def test_what_is_no_address_is_named_with_the_fix(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_listen(text)


def world(**addresses: str) -> Callable[[str], tuple[Address, ...]]:
    """What names mean: ``one="10.0.0.5"``."""

    def resolve(host: str) -> tuple[Address, ...]:
        text = {"localhost": "127.0.0.1", **addresses}.get(host, "")
        try:
            return tuple(ip_address(each) for each in text.split()) or (ip_address(host),)
        except ValueError:
            return ()

    return resolve


@pytest.fixture(autouse=True)
def _way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default route of the machine in these tests."""
    routes = {4: ip_address("10.0.0.5"), 6: ip_address("2001:db8::5")}
    monkeypatch.setattr(listening.names, "local_address", lambda version, to=None: routes[version])


def told(listen: str, advertise: str | None = None, known: Sequence[Interface] = ONE_NIC, **names: str) -> str:
    """What others are told when a free port has become 7099."""
    endpoint, _ = told_as(parse_listen(listen), advertise, world(**names), lambda: known)
    assert endpoint.port in (0, 7077)
    return Endpoint(endpoint.host, 7099, endpoint.told_host, endpoint.advertised).url


@pytest.mark.parametrize(
    ("listen", "advertise", "url"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:7099"),
        ("localhost:0", None, "http://localhost:7099"),
        ("10.0.0.5:0", None, "http://10.0.0.5:7099"),
        ("one", None, "http://one:7099"),
        ("[::1]:0", None, "http://[::1]:7099"),
        (":0", None, "http://10.0.0.5:7099"),
        ("[::]:0", None, "http://[2001:db8::5]:7099"),
        (":0", "https://syncer.example.org", "https://syncer.example.org"),
        (":0", "http://192.0.2.7:80", "http://192.0.2.7:80"),
        (":0", "one:81", "http://one:81"),
        (":0", "one", "http://one:7099"),
        ("127.0.0.1:0", "https://behind.a.proxy", "https://behind.a.proxy"),
        ("127.0.0.1:0", "http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ],
)
def test_others_are_told_the_address_that_leads_here(listen: str, advertise: str | None, url: str) -> None:
    assert told(listen, advertise, one="10.0.0.5", **{"syncer.example.org": "10.0.0.5"}) == url


def test_a_free_port_stands_in_what_others_are_told_only_if_it_was_not_said() -> None:
    endpoint, _ = told_as(parse_listen(":0"), "http://one:81", world(one="10.0.0.5"), lambda: ONE_NIC)
    assert endpoint.url == "http://one:81"


@pytest.mark.parametrize("name", ["gpu7", "gpu7.example.org"])
def test_a_name_that_means_loopback_is_not_listened_on(name: str) -> None:
    """As many distributions have it in /etc/hosts: others resolve it too, knock, and nobody is there."""
    with pytest.raises(UsageError, match=rf"--listen is {name}, which on this machine means 127.0.1.1.*\(10.0.0.5\)"):
        told(f"{name}:0", **{name: "127.0.1.1"})


def test_a_name_that_means_nothing_is_not_listened_on() -> None:
    with pytest.raises(UsageError, match="--listen is gpu8, a name that is not known on this machine"):
        told("gpu8:0")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:7077", "http://127.9.9.9:1", "http://[::1]:1", "http://0.0.0.0:7077", "http://[::]:1"]
)
@pytest.mark.parametrize("listen", [":0", "10.0.0.5:0"])
def test_an_address_that_leads_home_is_not_advertised(listen: str, url: str) -> None:
    with pytest.raises(UsageError, match=r"--advertise is .* is a machine's own name for itself: whoever connects"):
        told(listen, url)


@pytest.mark.parametrize("url", ["http://localhost:7077", "LOCALHOST", "http://syncer.localhost"])
def test_localhost_is_not_advertised(url: str) -> None:
    with pytest.raises(UsageError, match="is a machine's own name for itself"):
        told(":0", url)


@pytest.mark.parametrize("url", ["", "ftp://one", "http://one:1,http://two:1", "http://", "http://one:99999"])
def test_what_is_no_address_is_not_advertised(url: str) -> None:
    with pytest.raises(UsageError, match=r"--advertise is '.*'; write one address, http://HOST:PORT"):
        told(":0", url)


def notes(listen: str, advertise: str | None = None, known: Sequence[Interface] = ONE_NIC, **names: str) -> str:
    return "\n".join(told_as(parse_listen(listen), advertise, world(**names), lambda: known)[1])


def test_whoever_listens_everywhere_hears_which_address_others_are_told() -> None:
    assert (
        notes(":0") == "others are told 10.0.0.5, the address of the default route; --advertise URL tells them another"
    )
    assert notes("10.0.0.5:0") == notes("127.0.0.1:0") == ""


def test_a_name_that_may_mean_something_else_elsewhere_is_a_note() -> None:
    said = notes(":0", "http://gpu7:7077", gpu7="127.0.1.1")
    assert "gpu7 means 127.0.1.1 on this machine" in said and "unlockstep doctor http://gpu7:7077" in said
    assert notes(":0", "http://gpu8:7077") == "gpu8 is not known on this machine; check that others can resolve it"


@pytest.mark.parametrize("listen", [":0", "10.0.0.5:0"])
def test_a_slow_interface_beside_a_fast_one_is_a_note(listen: str) -> None:
    said = notes(listen, None, TWO_NICS)
    assert "10.0.0.5 is on eth0 (1000 Mbit/s), but ib0 has 100000 Mbit/s; to use that one, listen on or adv" in said
    assert "10.1.0.5" in said
    assert notes("10.1.0.5:0", None, TWO_NICS) == ""


def test_without_a_default_route_the_only_address_is_told_and_several_are_not_guessed_among(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening.names, "local_address", lambda version, to=None: None)
    assert told(":0") == "http://10.0.0.5:7099"
    with pytest.raises(UsageError, match=r"no default route that tells which .* --advertise http://ADDRESS:PORT"):
        told(":0", None, TWO_NICS)

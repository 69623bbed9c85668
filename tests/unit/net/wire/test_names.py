"""What names and addresses lead back to where they are said."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

import pytest

from unlockstep.net.wire import names


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose /etc/hosts says that it is itself."""
    known = {"gpu7": "127.0.1.1", "one": "10.0.0.5", "localhost": "127.0.0.1"}

    def getaddrinfo(host: str, port: object, **_: object) -> list[Any]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[host], 0))] * 2

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("host", "loopback", "other"),
    [
        ("localhost", True, False),
        ("LocalHost.", True, False),
        ("x.localhost", True, False),
        ("127.0.0.1", True, False),
        ("127.255.0.9", True, False),
        ("::1", True, False),
        ("0.0.0.0", False, False),
        ("10.0.0.5", False, False),
        ("one", False, True),
        ("localhost.example.org", False, True),
    ],
)
def test_which_hosts_say_that_they_are_here(host: str, loopback: bool, other: bool) -> None:
    assert (names.is_loopback(host), names.is_other_name(host)) == (loopback, other)


def test_an_address_is_resolved_to_itself_and_a_name_to_each_of_its_addresses_once(hosts: None) -> None:
    assert names.resolve("2001:db8::7") == (ip_address("2001:db8::7"),)
    assert names.resolve("one") == (ip_address("10.0.0.5"),)
    assert names.resolve("nobody") == names.resolve("x" * 300) == ()


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("gpu7", "; gpu7 means 127.0.1.1 here, which is this machine itself"),
        ("nobody", "; the name nobody is not known on this machine: check its spelling"),
        ("0.0.0.0", "; 0.0.0.0 means all addresses of a machine and is none to connect to"),
    ],
)
def test_whoever_finds_nobody_hears_what_the_name_means(hosts: None, host: str, said: str) -> None:
    """C48"""
    assert names.advice(host).startswith(said)


@pytest.mark.parametrize("host", ["one", "10.0.0.5", "127.0.0.1", "localhost"])
def test_a_name_that_means_what_it_says_needs_no_advice(hosts: None, host: str) -> None:
    assert names.advice(host) == ""


def test_the_own_address_on_the_way_to_loopback_is_loopback() -> None:
    assert names.local_address(4, "127.0.0.1") == ip_address("127.0.0.1")
    way_out = names.local_address(4)
    assert way_out is None or not (way_out.is_loopback or way_out.is_unspecified)

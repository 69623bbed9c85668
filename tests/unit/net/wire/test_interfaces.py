"""What Linux says of its network interfaces, as text, and that this machine has some."""

from __future__ import annotations

import sys
from ipaddress import ip_address

import pytest

from unlockstep.net.wire.interfaces import default_routes, default_routes_ipv6, interfaces, ipv6_addresses, link_speed

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth1\t00000000\t0100000B\t0002\t0\t0\t0\t00000000\t0\t0\t0
"""
ROUTES_IPV6 = (
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 "
    "00000400 00000001 00000000 00000003     eth0\n"
    "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 "
    "00000100 00000001 00000000 00000001     eth1\n"
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 "
    "ffffffff 00000001 00000000 00200200       lo\n"
)


def test_a_default_route_is_one_to_everywhere_that_is_up() -> None:
    assert list(default_routes(ROUTES)) == ["eth0"]
    assert list(default_routes_ipv6(ROUTES_IPV6)) == ["eth0"]
    assert list(default_routes("")) == list(default_routes_ipv6("garbage\n")) == []


def test_ipv6_addresses_are_read() -> None:
    text = "20010db8000000000000000000000005 02 40 00 80     eth0\nodd line\n"
    assert list(ipv6_addresses(text)) == [("eth0", ip_address("2001:db8::5"))]


@pytest.mark.parametrize(
    ("text", "speed"), [("10000\n", 10_000), ("-1\n", None), ("4294967295\n", None), ("", None), ("0", None)]
)
def test_a_link_has_a_speed_if_it_says_so(text: str, speed: int | None) -> None:
    assert link_speed(text) == speed


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show their interfaces in files")
def test_this_machine_has_a_loopback_interface() -> None:
    assert any(ip_address("127.0.0.1") in each.addresses for each in interfaces())

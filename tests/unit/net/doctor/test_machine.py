"""What is made of this machine, and how its facts are read."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from unlockstep.net.doctor import machine
from unlockstep.net.doctor.diagnosis import Finding, State
from unlockstep.net.wire.interfaces import Interface
from unlockstep.net.wire.listening import parse_listen

LO = Interface("lo", (ip_address("127.0.0.1"),))
ETH0 = Interface("eth0", (ip_address("10.0.0.5"), ip_address("fe80::5")), 10_000, has_default_route=True)
WAY_OUT = ip_address("10.0.0.5")


def said(found: Finding) -> str:
    return f"{found.state.value}: {found.finding} -> {found.fix}"


def test_packages_that_are_missing_are_named() -> None:
    whole = {"numpy": "2.4", "aiohttp": "3.14", "msgspec": "0.23", "torch": "2.13", "transformers": "5.0"}
    assert machine.packages(whole).state is State.OK
    assert "this machine can be a syncer, and no learner" in machine.packages(whole | {"torch": None}).finding
    assert said(machine.packages(whole | {"numpy": None})).startswith("fail: numpy is missing -> install")


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ("10.0.0.5", "ok: gpu7 is 10.0.0.5"),
        (
            "127.0.1.1",
            "warn: gpu7 means 127.0.1.1 here: whoever listens on that name is reached by nobody else -> do not",
        ),
        (
            "",
            "warn: gpu7, which is not known to this machine itself -> others may not resolve it either: give addresses",
        ),
    ],
)
def test_a_host_name_that_means_loopback_is_a_warning(addresses: str, expected: str) -> None:
    """C48"""
    found = machine.host_name("gpu7", [ip_address(each) for each in addresses.split()], WAY_OUT)
    assert said(found).startswith(expected)
    assert found.state is State.OK or "here 10.0.0.5" in found.fix


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ((LO, ETH0), "ok: eth0 10.0.0.5, 10000 Mbit/s, default route"),
        ((LO,), "warn: no interface but loopback has an address"),
        ((LO, Interface("eth0", (ip_address("10.0.0.5"),))), "warn: eth0 10.0.0.5; no default route -> say with --adv"),
        ((), "ok: this system does not tell"),
    ],
)
def test_interfaces_are_listed_with_what_is_wrong(known: tuple[Interface, ...], expected: str) -> None:
    assert said(machine.network(known)).startswith(expected)


def test_without_a_default_route_it_will_do_to_say_what_others_are_told() -> None:
    known = (LO, Interface("eth0", (ip_address("10.0.0.5"),)))
    assert said(machine.network(known, is_advertised=True)).startswith("ok: eth0 10.0.0.5")


def test_where_a_syncer_would_listen_is_tried() -> None:
    found = machine.listening(parse_listen("127.0.0.1:0"), None)
    assert found.state is State.OK and "others would be told http://127.0.0.1:" in found.finding
    assert said(machine.listening(parse_listen("203.0.113.7:0"), None)).startswith(
        "fail: 203.0.113.7:0 cannot be listened on (Cannot assign requested address) -> choose an address of this"
    )
    assert said(machine.listening(parse_listen("127.0.0.1:0"), "nobody's://x")).startswith("fail: --advertise is")


def test_memory_is_what_the_machine_and_its_container_leave(tmp_path: Path) -> None:
    def meminfo() -> str:
        return "MemTotal:       32000000 kB\nMemAvailable:    9000000 kB\nHugePages_Total:       0\n"

    assert machine.available_memory(meminfo, tmp_path) == 9_000_000 * 1024
    (tmp_path / "memory.max").write_text("4000000000\n")
    (tmp_path / "memory.current").write_text("1000000000\n")
    assert machine.available_memory(meminfo, tmp_path) == 3_000_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.available_memory(meminfo, tmp_path) == 9_000_000 * 1024
    assert machine.available_memory(lambda: "", tmp_path) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (machine.memory(18 * 10**9), "ok: 18 GB are free: a syncer for 2,000 M parameters, at most"),
        (machine.memory(10**8), "warn: 0.1 GB are free"),
        (machine.memory(None), "ok: this system does not tell"),
        (machine.room("run folder", Path("x"), 5 * 10**9, "--run-dir"), "ok: 5 GB are free in x"),
        (
            machine.room("run folder", Path("x"), 10**6, "--run-dir"),
            "warn: 0.001 GB are free in x -> free some, or choo",
        ),
        (
            machine.room("run folder", Path("x"), None, "--run-dir"),
            "fail: x cannot be used -> choose another with --run",
        ),
        (machine.open_files(65_536), "ok: 65536 at most: a syncer for about 4092 learners"),
        (machine.open_files(256), "warn: 256 at most: a syncer for about 12 learners -> raise it"),
        (machine.open_files(None), "ok: no limit"),
        (machine.clock(1_800_000_000, True), "ok: 2027-01-15 08:00:00 UTC, kept by NTP"),
        (machine.clock(1_800_000_000, None), "ok: 2027-01-15 08:00:00 UTC -> "),
        (machine.clock(1_800_000_000, False), "warn: 2027-01-15 08:00:00 UTC, and the system does not know"),
        (machine.clock(0, True), "fail: 1970-01-01 00:00:00 UTC is in the past -> set it"),
    ],
)
def test_too_little_is_a_warning(found: Finding, expected: str) -> None:
    assert said(found).startswith(expected)


def test_whether_the_clock_is_kept_is_asked_without_setting_it() -> None:
    assert machine.is_clock_set() in (True, False, None)

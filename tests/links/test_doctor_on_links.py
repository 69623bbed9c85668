"""``unlockstep doctor`` on links whose properties are known: what it says of them is so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.link_cable import Shape
from support.linked_run import WAIT_S, LinkedRun, linked_config, linked_run
from support.links import star, why_not

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

DOCTOR = (sys.executable, "-m", "unlockstep", "doctor")
OCEAN = Shape(delay_ms=50, rate_mbit=20)


def examined(run: LinkedRun, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and what it says of the way from the first learner's site."""
    process = run.star.start(run.star.learners[0], *DOCTOR, run.url(0), "--json", *arguments)
    out, _ = process.communicate(timeout=WAIT_S)
    return process.returncode, msgspec.json.decode(out)["links"][0]


def test_a_round_trip_is_what_the_link_takes_and_a_dead_link_is_named(tmp_path: Path) -> None:
    with star(1, OCEAN) as site, linked_run(site, linked_config(), tmp_path) as run:
        code, link = examined(run, "--no-rates")
        assert code == 0
        assert 0.1 <= link["measured"]["round_trip_s"] < 0.15
        site.links[0].cut()
        code, link = examined(run)
        assert code == 1
        assert [(each["name"], each["state"]) for each in link["findings"]] == [("names", "ok"), ("port", "fail")]


@pytest.mark.slow
def test_rates_are_those_of_the_link(tmp_path: Path) -> None:
    with star(1, OCEAN) as site, linked_run(site, linked_config(), tmp_path) as run:
        code, link = examined(run)
        assert code == 0
        carries_bytes_per_s = OCEAN.rate_mbit * 1e6 / 8
        for way in ("up_bytes_per_s", "down_bytes_per_s"):
            assert 0.7 * carries_bytes_per_s < link["measured"][way] < 1.1 * carries_bytes_per_s


def test_a_machine_with_several_networks_must_say_which_one_others_use(tmp_path: Path) -> None:
    """C48: there is no default route to take it from."""
    with star(2) as site:
        process = site.start(site.syncer, *DOCTOR, "--listen", ":7077", "--json")
        out, _ = process.communicate(timeout=WAIT_S)
        findings = msgspec.json.decode(out)["machine"]
        (listen,) = [each for each in findings if each["name"] == "listen"]
        assert process.returncode == 1
        assert listen["state"] == "fail" and "--advertise http://ADDRESS:7077" in listen["fix"]
        told = ("--listen", ":7077", "--advertise", site.address(1), "--json")
        process = site.start(site.syncer, *DOCTOR, *told)
        out, _ = process.communicate(timeout=WAIT_S)
        assert all(each["state"] != "fail" for each in msgspec.json.decode(out)["machine"])

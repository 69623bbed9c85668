"""docs/sites.md does what it says: its commands, as they stand, on three machines that reach each other by links.

Each place of the page is a network namespace with a folder of its own, in which the name of the syncer means what it
means there. ``scp`` copies between folders; everything else is the real thing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.commands import COMMAND_S_MAX
from support.link_cable import Shape
from support.links import Star, star, why_not

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

PAGE = Path(__file__).parents[2] / "docs" / "sites.md"
SYNCER = "syncer.example.org"
PLACES = {"the syncer": SYNCER, "site-a": "site-a.example.org", "site-b": "site-b.example.org"}
STAYS = re.compile(r"unlockstep (?:syncer|learner|evaluator) ")
"""Commands that go on until the run is over."""

CITIES = Shape(delay_ms=10, rate_mbit=200)


class Line(NamedTuple):
    """One command, and where it is given."""

    place: str
    command: str


def page_lines(text: str) -> Iterator[Line]:
    """Every command of the page, in order."""
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        place = ""
        for line in block.splitlines():
            if (found := re.match("# at (the syncer|site-a|site-b)", line)) is not None:
                place = found[1]
            else:
                yield Line(place, line)


class Cities:
    """Three machines, and the commands given there."""

    def __init__(self, site: Star, folder: Path) -> None:
        self._folder = folder
        self._star = site
        self._logs: dict[subprocess.Popen[str], Path] = {}
        programs = folder / "bin"
        programs.mkdir()
        for name, does in (
            ("unlockstep", f'exec {sys.executable} -m unlockstep "$@"'),
            (
                "scp",
                'for last; do :; done; for file; do [ "$file" = "$last" ] || '
                f'cp "$file" {folder}/"${{last%%:*}}/${{last#*:}}"; done',
            ),
        ):
            (programs / name).write_text(f"#!/bin/sh\n{does}\n")
            (programs / name).chmod(0o755)
        means = {"the syncer": "127.0.0.1", "site-a": site.address(0), "site-b": site.address(1)}
        for place, address in means.items():
            (folder / PLACES[place]).mkdir()
            (folder / f"{place}.hosts").write_text(f"127.0.0.1 localhost\n{address} {SYNCER}\n")

    def at(self, place: str, name: str) -> Path:
        """A file in the folder of a place."""
        return self._folder / PLACES[place] / name

    def give(self, line: Line) -> subprocess.Popen[str]:
        """Begin a command, in a shell."""
        namespaces = dict(zip(PLACES, (self._star.syncer, *self._star.learners), strict=True))
        hosts, here = self._folder / f"{line.place}.hosts", self._folder / PLACES[line.place]
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        log = self._folder / f"{len(self._logs)}.log"
        log.touch()
        there = f"mount --bind '{hosts}' /etc/hosts && cd '{here}' && PATH='{path}' && exec 2>>'{log}'"
        process = self._star.start(namespaces[line.place], "sh", "-c", f"{there} && exec {line.command}")
        self._logs[process] = log
        return process

    def ends_well(self, process: subprocess.Popen[str]) -> str:
        """What it says on stdout, once it has ended with code 0."""
        out, _ = process.communicate(timeout=COMMAND_S_MAX)
        said = self._logs[process].read_text()
        assert process.returncode == 0, f"{process.args}\n{out}\n{said}"
        return out

    def until(self, process: subprocess.Popen[str], said: str) -> None:
        """Follow what it says on stderr until that is among it, or it ends."""
        log = self._logs[process]
        tail = self._star.start(self._star.syncer, "tail", "-n", "+1", "-f", f"--pid={process.pid}", str(log))
        assert tail.stdout is not None
        assert any(said in line for line in tail.stdout), log.read_text()


def test_every_command_of_the_page_on_three_machines(tmp_path: Path) -> None:
    text = PAGE.read_text()
    lines = list(page_lines(text))
    assert lines and all(line.place in PLACES for line in lines)
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with star(2, CITIES) as site:
        cities, stays = Cities(site, tmp_path), {}
        cities.at("the syncer", "run.toml").write_text(settings)
        ready: dict[str, Callable[[subprocess.Popen[str]], object]] = {
            "syncer": lambda process: process.stdout is not None and process.stdout.readline(),
            "learner": lambda process: cities.until(process, "joined as"),
            "evaluator": lambda process: cities.until(process, "validation loss"),
        }
        for line in lines:
            process = cities.give(line)
            if STAYS.match(line.command):
                stays[line.command] = process
                ready[line.command.split()[1]](process)
            else:
                cities.ends_well(process)
            if line.command.startswith("unlockstep stop"):
                for each in stays.values():
                    cities.ends_well(each)
                assert cities.at("site-b", "model").is_dir()
                stays = {}
        assert not stays

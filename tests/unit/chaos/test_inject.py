"""What a process sees whose clock and disk are spoiled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unlockstep.chaos.knobs import Knobs
from unlockstep.files import DISK_FULL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits on others are Linux's")

PROGRAM = """
import errno, logging, os, sys, time
from unlockstep.net.courier.memory_files import MemoryFile

logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y", stream=sys.stdout, level=logging.INFO)
for line in sys.stdin:
    if line == "time\\n":
        print(time.time(), time.time_ns(), time.gmtime().tm_year, time.strftime("%Y"), flush=True)
    elif line == "log\\n":
        logging.info("logged")
    elif line == "write\\n":
        try:
            with open(sys.argv[1], "w") as file:
                file.write("x")
            print("written", flush=True)
        except OSError as error:
            print(error.errno, flush=True)
    else:
        print(MemoryFile(100_000).bytes.size, flush=True)
"""

YEAR_S = 366 * 86_400


class Process:
    def __init__(self, folder: Path) -> None:
        program = folder / "program.py"
        program.write_text(PROGRAM)
        self.knobs = Knobs(folder / "chaos" / "a")
        self.process = subprocess.Popen(
            (sys.executable, "-m", "unlockstep.chaos.inject", str(self.knobs.path), str(program), str(folder / "file")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def spoiled(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    process.process.communicate()
    process.knobs.close()


def test_its_wall_clock_is_off_by_as_much_as_it_is_told(spoiled: Process) -> None:
    def year() -> list[str]:
        return spoiled.ask("time").split()[2:]

    now = int(year()[0])
    spoiled.knobs.clock_offset_ns = 10 * YEAR_S * 10**9
    assert year() == [str(now + 10)] * 2
    assert spoiled.ask("log") == f"{now + 10} logged"
    seconds, nanoseconds = spoiled.ask("time").split()[:2]
    assert float(seconds) == pytest.approx(int(nanoseconds) / 1e9, abs=60)
    spoiled.knobs.clock_offset_ns = 0
    assert year() == [str(now)] * 2


def test_a_full_disk_takes_no_file_and_all_the_memory_and_room_is_seen_at_once(spoiled: Process) -> None:
    assert spoiled.ask("write") == "written" and spoiled.knobs.is_ready
    spoiled.knobs.limit_files(spoiled.process.pid, True)
    assert int(spoiled.ask("write")) in DISK_FULL
    assert spoiled.ask("memory") == "100000"
    assert int(spoiled.ask("write")) in DISK_FULL
    spoiled.knobs.limit_files(spoiled.process.pid, False)
    assert spoiled.ask("write") == "written"


def test_a_process_that_has_ended_is_not_limited(spoiled: Process) -> None:
    spoiled.process.communicate()
    spoiled.knobs.limit_files(spoiled.process.pid, True)


def test_what_is_told_outlives_the_process(tmp_path: Path) -> None:
    first = Knobs(tmp_path / "a")
    first.clock_offset_ns = -5
    first.close()
    second = Knobs(tmp_path / "a")
    assert (second.clock_offset_ns, second.is_ready, os.path.getsize(tmp_path / "a")) == (-5, False, 16)
    second.close()

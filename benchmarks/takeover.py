"""How long a run stands still when its syncer freezes or dies and a standby takes over.

Real processes: a leading syncer, a standby on the same store, and two toy learners that know both addresses. Printed
for each lease: from the signal to the standby's leading (it answers as the syncer), to the first learner that is back,
and to the first new commit; medians and ranges.

    python benchmarks/takeover.py            # --repeats 10, leases of 0.5, 2 and 5 s: 3 min
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.commands import commands, until, url_of
from support.live_run import small_config
from support.toy_site import toy_site
from unlockstep import config as run_config
from unlockstep.config import DurabilitySection, RunSection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--leases", type=float, nargs="+", default=[0.5, 2.0, 5.0])
    options = parser.parse_args()
    logging.disable()  # Learners say what they notice; here it is meant.
    console = Console(width=110)
    table = Table("lease, s", "signal", "standby leads, s", "learner back, s", "new commit, s", "in leases")
    for lease_s in options.leases:
        for fate in (signal.SIGKILL, signal.SIGSTOP):
            told = f"lease {lease_s:g} s, {fate.name}"
            times = [measure(lease_s, fate) for _ in track(range(options.repeats), told, console=Console(stderr=True))]
            leads, back, commits = zip(*times, strict=True)
            table.add_row(
                f"{lease_s:g}",
                fate.name,
                spread(leads),
                spread(back),
                spread(commits),
                f"{statistics.median(commits) / lease_s:.1f}",
            )
    console.print(table)


def spread(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def measure(lease_s: float, fate: signal.Signals) -> tuple[float, float, float]:
    """Seconds from the signal to the standby's leading, to the first learner's return, and to the first new commit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = small_config(run=RunSection(name="small", steps=10**6), durability=DurabilitySection(lease_s=lease_s))
        given = folder / "given.toml"
        given.write_text(run_config.dumps(config))
        with commands() as run:

            def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
                process = run("syncer", "--run-dir", str(folder / "run"), "--listen", "127.0.0.1:0", *arguments)
                return process, url_of(process)

            leader, first = start("--config", str(given))
            _, second = start("--standby")
            with toy_site(f"{first},{second}", config, 2):
                before = until(first, lambda status: status.rounds_committed >= 20)
                began_s = time.monotonic()
                os.kill(leader.pid, fate)
                until(second, lambda status: True)
                leads_s = time.monotonic() - began_s
                until(second, lambda status: any(learner.state == "live" for learner in status.learners))
                back_s = time.monotonic() - began_s
                until(second, lambda status: sum(status.versions) > before.rounds_committed + 2)
                return leads_s, back_s, time.monotonic() - began_s


if __name__ == "__main__":
    main()

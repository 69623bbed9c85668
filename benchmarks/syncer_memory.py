"""Memory of a syncer: bytes per parameter above an idle one, at rest and at most, while a model is merged and saved.

    python benchmarks/syncer_memory.py [--parameters 100000000] [--rounds 30] [--folder .]

The syncer is ``unlockstep syncer`` in a process of its own; one learner without a framework, in this process, brings
the model and contributes to one round after the other. What is counted is resident memory (VmRSS; the peak by
resetting VmHWM), so it needs Linux. The store, twice the model and more, goes to ``--folder``.

At rest a syncer holds two arrays: the values, which are also the body that is sent, and the momentum: 8 bytes a
parameter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.live_run import learner
from unlockstep import config as run_config
from unlockstep.config import LocalSection, OuterSection, RunConfig, RunSection
from unlockstep.core.messages import LearnerInput, Published
from unlockstep.core.options import ProtocolOptions
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import LearnerLoop

FRAGMENTS = 24
TENSORS = 96
WAIT_S = 600.0
SETTLE_S = 2.0
"""From the last commit to rest: the save that belongs to it is over, and so is every transfer."""


class Receiver:
    """A learner's loop; counts the versions it is told of."""

    def __init__(self, loop: LearnerLoop) -> None:
        self._loop = loop
        self.next_deadline_ns, self.on_deadline = loop.next_deadline_ns, loop.on_deadline
        self.commits = 0
        self._changed = threading.Condition()

    def deliver(self, message: LearnerInput) -> None:
        """See ``net.clients.learner.Receiver``."""
        if isinstance(message, Published):
            with self._changed:
                self.commits += message.notice.version > 0
                self._changed.notify_all()
        self._loop.deliver(message)

    def wait_for_commit(self, seen: int) -> None:
        """... after so many, or a moment: there may be none before the next step."""
        with self._changed:
            self._changed.wait_for(lambda: self.commits > seen, 1.0)


def resident_bytes(pid: int, field: str = "VmRSS") -> int:
    """A line of ``/proc/PID/status``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure(folder: Path, parameters: int, rounds: int) -> dict[str, int]:
    """Resident bytes of the syncer by what it was doing."""
    config = RunConfig(
        run=RunSection(steps=10**6),
        outer=OuterSection(momentum=0.9),
        protocol=ProtocolOptions(fragments=FRAGMENTS, interval_steps=FRAGMENTS),
        local=LocalSection(learners=1),
    )
    (folder / "run.toml").write_text(run_config.dumps(config))
    command = [sys.executable, "-m", "unlockstep", "syncer", "--config", str(folder / "run.toml"), "--json"]
    command += ["--listen", "127.0.0.1:0", "--run-dir", str(folder / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        time.sleep(SETTLE_S)
        found = {"idle": resident_bytes(process.pid)}
        backend = ToyBackend(sizes=[parameters // TENSORS] * TENSORS, learning_rate=1e-4, tokens_per_step=10)
        client, loop = learner(url, config, "learner", backend)
        receiver = Receiver(loop)
        client.start(receiver)
        try:
            assert loop.wait_until_may_step(WAIT_S), "the model was not taken"
            time.sleep(SETTLE_S)
            found["seeded"] = resident_bytes(process.pid)
            found["seeding, at most"] = resident_bytes(process.pid, "VmHWM")
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
            while receiver.commits < rounds:
                seen = receiver.commits
                loop.finish_step(backend.inner_step(loop.clock))
                assert loop.wait_until_may_step(WAIT_S)
                receiver.wait_for_commit(seen)
            found["rounds, at most"] = resident_bytes(process.pid, "VmHWM")
            time.sleep(SETTLE_S)
            found["at rest"] = resident_bytes(process.pid)
        finally:
            client.close()
        return found
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Resident memory of a syncer, per parameter.")
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path(), help="for the store")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        found = measure(Path(folder), arguments.parameters, arguments.rounds)
    idle = found.pop("idle")
    print(f"{arguments.parameters:,} parameters in {FRAGMENTS} fragments; an idle syncer takes {idle / 2**20:.0f} MiB")
    print(f"{'':<20}{'MiB above that':>16}{'bytes a parameter':>20}")
    for what, size in found.items():
        above = size - idle
        print(f"{what:<20}{above / 2**20:>16.0f}{above / arguments.parameters:>20.2f}")


if __name__ == "__main__":
    main()

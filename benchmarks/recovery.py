"""How long a run is without its syncer: from SIGKILL until another process of it listens, is found, and commits.

    python benchmarks/recovery.py [--parameters 1000000] [--kills 10]

The syncer is ``unlockstep syncer`` in a process of its own, started again at once: the pause of whoever does that
(``unlockstep train``: 0.5 s) comes on top. Two learners without a framework run in this process and find it by
themselves; they take 20 steps a second and train on meanwhile. Times count from the kill: to the line that says where
the syncer listens, to the first ``Welcome`` of any learner, and to the first version that nobody had been told of.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.live_run import learner
from unlockstep import config as run_config
from unlockstep.config import LocalSection, RunConfig, RunSection
from unlockstep.core.messages import LearnerInput, Published, Welcome
from unlockstep.core.options import ProtocolOptions
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import LearnerLoop

STEP_S = 0.05
LEARNERS = 2
CALM_COMMITS = 8
"""Between a recovery and the next kill."""
WAIT_S = 60.0


class Watch:
    """When what was heard of a syncer, by any learner."""

    def __init__(self) -> None:
        self.newest: dict[int, int] = {}
        self.welcomed_s = self.published_s = float("inf")
        """First since ``expect``."""
        self._changed = threading.Condition()

    def expect(self) -> None:
        """The syncer is gone."""
        with self._changed:
            self.welcomed_s = self.published_s = float("inf")

    def hear(self, message: LearnerInput) -> None:
        """From any thread."""
        with self._changed:
            if isinstance(message, Welcome):
                self.welcomed_s = min(self.welcomed_s, time.perf_counter())
            elif isinstance(message, Published):
                notice = message.notice
                if notice.version > self.newest.get(notice.fragment, -1):
                    self.newest[notice.fragment] = notice.version
                    self.published_s = min(self.published_s, time.perf_counter())
            self._changed.notify_all()

    def wait_for_commits(self, count: int) -> None:
        """... more than there are."""
        with self._changed:
            goal = sum(self.newest.values()) + count
            assert self._changed.wait_for(lambda: sum(self.newest.values()) >= goal, WAIT_S), "the run has stopped"


class Receiver:
    """A learner's loop, listened to."""

    def __init__(self, loop: LearnerLoop, watch: Watch) -> None:
        self._loop, self._watch = loop, watch
        self.next_deadline_ns, self.on_deadline = loop.next_deadline_ns, loop.on_deadline

    def deliver(self, message: LearnerInput) -> None:
        """See ``net.clients.learner.Receiver``."""
        self._watch.hear(message)
        self._loop.deliver(message)


def learn(url: str, config: RunConfig, name: str, sizes: Sequence[int], watch: Watch, over: threading.Event) -> None:
    """Be a learner until it is over."""
    backend = ToyBackend(sizes=sizes, learning_rate=1e-4, tokens_per_step=10)
    client, loop = learner(url, config, name, backend)
    client.start(Receiver(loop, watch))
    try:
        while not over.wait(STEP_S):
            if loop.wait_until_may_step(STEP_S):
                loop.finish_step(backend.inner_step(loop.clock))
    finally:
        client.close()


def start(folder: Path, port: int) -> tuple[subprocess.Popen[str], str]:
    """A syncer that listens, and where."""
    command = [sys.executable, "-m", "unlockstep", "syncer", "--config", str(folder / "run.toml"), "--json"]
    command += ["--listen", f"127.0.0.1:{port}", "--run-dir", str(folder / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["url"]


def measure(folder: Path, parameters: int, kills: int) -> list[tuple[float, float, float]]:
    """Seconds from each kill until the syncer listened, a learner was back, a version was new."""
    config = RunConfig(
        run=RunSection(steps=10**6),
        protocol=ProtocolOptions(fragments=8, interval_steps=8),
        local=LocalSection(learners=LEARNERS),
    )
    (folder / "run.toml").write_text(run_config.dumps(config))
    sizes = [parameters // 32] * 32
    watch, over = Watch(), threading.Event()
    process, url = start(folder, 0)
    threads = [
        threading.Thread(target=learn, args=(url, config, f"learner-{index}", sizes, watch, over))
        for index in range(LEARNERS)
    ]
    found = []
    try:
        for thread in threads:
            thread.start()
        for _ in range(kills):
            watch.wait_for_commits(CALM_COMMITS)
            watch.expect()
            killed_s = time.perf_counter()
            process.kill()
            process.wait()
            watch.expect()
            process, _ = start(folder, int(url.rpartition(":")[2]))
            listens_s = time.perf_counter()
            watch.wait_for_commits(1)
            found.append((listens_s - killed_s, watch.welcomed_s - killed_s, watch.published_s - killed_s))
    finally:
        over.set()
        for thread in threads:
            thread.join()
        process.kill()
        process.communicate()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time without a syncer after its process was killed.")
    parser.add_argument("--parameters", type=int, default=1_000_000, help="of the model, float32")
    parser.add_argument("--kills", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), arguments.parameters, arguments.kills)
    print(f"{arguments.kills} kills, {arguments.parameters:,} parameters, in seconds from the kill")
    print(f"{'until':<34}{'median':>8}{'least':>8}{'most':>8}")
    whats = ("another process of it listens", "the first learner is back", "the first new commit is told of")
    for what, times in zip(whats, zip(*found, strict=True), strict=True):
        print(f"{what:<34}{statistics.median(times):>8.2f}{min(times):>8.2f}{max(times):>8.2f}")


if __name__ == "__main__":
    main()

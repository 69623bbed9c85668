"""``unlockstep`` with learners and an evaluator that need no framework: processes that start in a moment.

    python toy_processes.py FOLDER syncer|learner|evaluator ARGUMENTS

The syncer is the real one. A learner is ``ToyBackend`` on the real loop and the real client; it writes down in FOLDER
every version it is told of. The evaluator is the real one but for its model. Decides the problem they share.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np

from support import live_run
from unlockstep import config as run_config
from unlockstep.cli import app, exits
from unlockstep.config import RunConfig
from unlockstep.core.chunks import Float32
from unlockstep.core.errors import UsageError
from unlockstep.core.messages import GoneBack, LearnerInput, LearnerMessage, Progress, Published, VersionNotice, Welcome
from unlockstep.core.status import Score
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import LearnerLoop
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.clients.learner import CourierKind, LearnerClient
from unlockstep.net.clients.observer import read_config
from unlockstep.net.wire import timeouts

LAYERS = 8
ELEMENTS = 64
"""Of each layer."""

STEP_S = 0.01
"""How long a step takes: the pace of a run, which the clock of the machine sets in a real one."""

LEARNING_RATE = 0.001

BACKOFF_S_MAX = 0.5
"""Longest pause of a learner that looks for its syncer: seconds are whole epochs of a toy."""


def toy(seed: int, elements: int = ELEMENTS, noise: float = 0.5) -> ToyBackend:
    """Halves its loss in 350 steps: it is on its way for as long as a run takes, and what is lost shows at the end."""
    sizes = (elements,) * LAYERS
    return ToyBackend(seed=seed, sizes=sizes, learning_rate=LEARNING_RATE, tokens_per_step=10, noise=noise)


def say(what: str, number: int) -> None:
    """That it has happened, and when by the clock that all processes of a machine share; in one piece, from any
    thread."""
    os.write(sys.stdout.fileno(), f"{what} {number} {time.monotonic_ns()}\n".encode())


def say_reports(client: LearnerClient, every: int) -> None:
    """Say it whenever the report of so many steps is given to the connection."""
    send = client.send

    def say_and_send(message: LearnerMessage) -> None:
        if isinstance(message, Progress) and message.steps % every == 0:
            say("report", message.steps)
        send(message)

    client.send = say_and_send  # type: ignore[method-assign]


class Told(msgspec.Struct):
    """Somebody was told that this is a version of a fragment."""

    fragment: int
    version: int
    digest: str


class Witness:
    """Passes everything on to a learner's loop and writes down the versions it is told of (``Receiver``)."""

    def __init__(self, loop: LearnerLoop, path: Path) -> None:
        self._loop = loop
        self._file = path.open("ab", buffering=0)
        self.next_deadline_ns = loop.next_deadline_ns
        self.on_deadline = loop.on_deadline

    def deliver(self, message: LearnerInput) -> None:
        """See ``Receiver``."""
        notices: tuple[VersionNotice, ...] = ()
        if isinstance(message, Published):
            notices = (message.notice,)
        elif isinstance(message, GoneBack):
            notices = message.notices
        elif isinstance(message, Welcome):
            notices = message.versions
        for notice in notices:
            told = Told(notice.fragment, notice.version, notice.digest)
            self._file.write(msgspec.json.encode(told) + b"\n")
        self._loop.deliver(message)


def learner(folder: Path, arguments: list[str]) -> int:
    """``unlockstep learner``."""
    parser = argparse.ArgumentParser()
    for name, kind in {"syncer": str, "name": str, "shard": int, "shards": int, "parent-pid": int}.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--trust-syncer", action="store_true", help="not needed: nothing of a toy is named")
    parser.add_argument("--checkpoint", help="not used: all that a toy learner remembers is its place in the data")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="of each layer")
    parser.add_argument("--noise", type=float, default=0.5, help="of the optimum that is seen")
    parser.add_argument("--step-s", type=float, default=STEP_S, help="how long a step takes")
    for name in ("ca", "token-file"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--courier", choices=get_args(CourierKind), default="thread", help="where bulk is carried")
    parser.add_argument("--backoff-s-max", type=float, default=BACKOFF_S_MAX, help="longest pause without a syncer")
    parser.add_argument(
        "--says-steps", type=int, default=0, help="say so after so many steps, and when it reports them"
    )
    asked = parser.parse_args(arguments)
    security = ClientSecurity.of(ca=asked.ca, token=asked.token_file)
    config = run_config.loads(read_config(asked.syncer, security=security))
    backend = toy(100 * config.run.seed + asked.shard, asked.elements, asked.noise)
    timeouts.BACKOFF_S_MAX = asked.backoff_s_max
    client, loop = live_run.learner(asked.syncer, config, asked.name, backend, asked.courier, security)
    if asked.says_steps:
        say_reports(client, asked.says_steps)
    with exits.stop_request(asked.parent_pid) as stop:

        def may_step() -> bool:
            while loop.done is None and not stop.asked.is_set():
                if loop.wait_until_may_step(0.1):
                    return True
            return False

        client.start(Witness(loop, folder / f"{asked.name}-{os.getpid()}.jsonl"))
        try:
            if may_step():
                backend.seek(loop.steps_before)
            steps = 0
            while may_step():
                stop.asked.wait(asked.step_s)
                loop.finish_step(backend.inner_step(loop.clock))
                steps += 1
                if asked.says_steps and steps % asked.says_steps == 0:
                    say("step", steps)
            ended = loop.done is not None
            if not ended:
                loop.leave(timeout_s=1.0)
        finally:
            client.close()
        if loop.done is not None and loop.done.failed:
            raise exits.RunFailed(loop.done.reason)
        return exits.DONE if ended else stop.exit_code


class ToyExaminer:
    """Half the mean squared distance from the optimum, without noise (``cli.evaluator.Examiner``)."""

    def __init__(self, config: RunConfig) -> None:
        self._backend = toy(seed=0)
        self.layout = live_run.layout_of(self._backend, config)
        self._backend.bind(self.layout)
        self.has_model = False

    def evaluate(self, values: dict[int, Float32]) -> tuple[float, float, tuple[Score, ...]]:
        for fragment, value in values.items():
            self._backend.write_fragment(fragment, value)
        self.has_model = True
        loss = float(np.mean((self._backend.values - self._backend.optimum) ** 2)) / 2
        return loss, loss, ()

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        np.save(folder / "model.npy", self._backend.values)


def main(folder: Path, role: str, arguments: list[str]) -> int:
    """One process; returns its exit code."""
    if role == "learner":
        try:
            return learner(folder, arguments)
        except (UsageError, exits.RunFailed) as error:
            print(f"error: {error}", file=sys.stderr)
            return exits.USAGE if isinstance(error, UsageError) else exits.FAILED
    if role == "evaluator":
        from unlockstep.cli import evaluator

        evaluator.Examiner = ToyExaminer  # type: ignore[misc, assignment]
    return app.run([role, *arguments])


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))

"""``unlockstep learner``: one learner of a run, with the built-in recipe, until the run is over.

Decides what a learner process says of itself and how it is slowed down on purpose. Otherwise it is the loop that any
user may write: ``integrations.torch_loop`` around ``learners.torch_backend``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.cli.access import Ca, Cert, Key, RunName, TokenFile
from unlockstep.cli.exits import ENDING_S_MAX
from unlockstep.cli.trust import Trust, require_trusted
from unlockstep.core.words import counted

LEAVING_SHARE = 0.5
"""Of the time a process is given to end: for handing over. The rest is for the step it is in."""

NOTICE_S_MAX = 86_400.0
"""More than a clock can wait for would break what ends the process."""

if TYPE_CHECKING:
    from unlockstep.cli.exits import StopRequest
    from unlockstep.config import RunConfig
    from unlockstep.integrations.torch_loop import Learner
    from unlockstep.learners.torch_backend import TorchBackend
    from unlockstep.net.access.security import ClientSecurity


def learner(
    syncer: Annotated[str, typer.Option(help="Address of the syncer, http://host:port; of several, with commas.")],
    name: Annotated[
        str | None, typer.Option(help="Unique in the run, the same after a restart; default HOST-PID.")
    ] = None,
    shard: Annotated[
        int, typer.Option(help="Which share of the training text, from 0; not used with data leases.")
    ] = 0,
    shards: Annotated[int, typer.Option(help="How many shares there are.")] = 1,
    slowdown: Annotated[float, typer.Option(help="Make every step take this many times as long.")] = 1.0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="File to take inner optimizer, random state and data position from, and to keep."),
    ] = None,
    notice_s: Annotated[
        float, typer.Option(help="Seconds from SIGTERM until this process must be gone; handing over takes most of it.")
    ] = ENDING_S_MAX,
    bandwidth_mbit: Annotated[
        float | None, typer.Option(help="Most of the link that bulk may take, Mbit/s each way; default: what there is.")
    ] = None,
    run: RunName = None,
    trust_syncer: Trust = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    token_file: TokenFile = None,
    parent_pid: Annotated[int | None, typer.Option(help="End when this process is no longer the parent.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as one JSON object at the end.")] = False,
) -> int:
    """Train as one learner, with the settings of its syncer."""
    from unlockstep import config as run_config
    from unlockstep.cli.access import client_security
    from unlockstep.cli.assembly import loading, new_backend, require_torch
    from unlockstep.cli.exits import stop_request
    from unlockstep.cli.output import log_to_stderr
    from unlockstep.core.errors import UsageError
    from unlockstep.net.clients.observer import read_config

    require_torch("learner")
    if shard < 0 or shards < 1:
        raise UsageError(
            f"--shard is {shard} and --shards is {shards}; shares are counted from 0, and there is at least 1"
        )
    if not 1 <= slowdown < float("inf"):
        raise UsageError(f"--slowdown is {slowdown}; it must be at least 1 and finite")
    if not 1 <= notice_s <= NOTICE_S_MAX:
        raise UsageError(f"--notice-s is {notice_s}; it must be at least 1 and at most a day ({NOTICE_S_MAX:.0f})")
    _require_a_cap_that_will_do(bandwidth_mbit)
    log_to_stderr(name or "learner")
    security = client_security(ca, cert, key, token_file)
    config = run_config.loads(read_config(syncer, run, security), source=f"the configuration from {syncer}")
    require_trusted(config, trust_syncer)
    with stop_request(parent_pid, notice_s) as stop:
        with loading(config):
            backend = new_backend(config, shard, shards)
        ended = _train(
            backend, config, syncer, security, name, checkpoint, slowdown, notice_s, bandwidth_mbit, stop, as_json
        )
        return 0 if ended else stop.exit_code


def _require_a_cap_that_will_do(bandwidth_mbit: float | None) -> None:
    from unlockstep.core.errors import UsageError
    from unlockstep.net.bulk.pace import MBIT_PER_S_MIN

    if bandwidth_mbit is not None and not MBIT_PER_S_MIN <= bandwidth_mbit < float("inf"):
        raise UsageError(
            f"--bandwidth-mbit is {bandwidth_mbit}; give Mbit/s, at least {MBIT_PER_S_MIN} and finite, or leave it out"
        )


def _train(
    backend: TorchBackend,
    config: RunConfig,
    syncer: str,
    security: ClientSecurity,
    name: str | None,
    checkpoint: Path | None,
    slowdown: float,
    notice_s: float,
    bandwidth_mbit: float | None,
    stop: StopRequest,
    as_json: bool,
) -> bool:
    """Train until the run is over (True) or somebody asks to stop (False)."""
    from unlockstep.cli.exits import RunFailed
    from unlockstep.data import LeasedStream
    from unlockstep.integrations.torch_loop import Learner, LearnerFailed

    try:
        learner = Learner(
            backend.model,
            backend.optimizer,
            syncer=syncer,
            name=name,
            run=config.run.name,
            on_reset=backend.reset_optimizer,
            checkpoint=checkpoint,
            stateful={"recipe": backend},
            about=backend.about,
            data=backend.stream if isinstance(backend.stream, LeasedStream) else None,
            leave_s=LEAVING_SHARE * notice_s,
            bandwidth_mbit=bandwidth_mbit,
            ca=security.ca,
            cert=security.cert,
            key=security.key,
            token=security.token,
        )
        stop.then(learner.stop)
        with learner:
            report = Report(learner)
            backend.seek(learner.steps_before)
            if learner.recovered == "donor":
                backend.go_on_warm()
            going = learner.ended is None and not stop.asked.is_set()
            while going:
                began_s = time.perf_counter()
                stats = backend.inner_step(learner.clock)
                stop.asked.wait((slowdown - 1) * (time.perf_counter() - began_s))
                report.step(stats.tokens, stats.loss)
                going = learner.step(stats.tokens, stats.loss)
            ended = learner.ended
    except LearnerFailed as error:
        raise RunFailed(str(error)) from None
    report.end(ended, as_json)
    return ended is not None


class Report:
    """A line when the learner has joined, one every few seconds, and one at the end."""

    def __init__(self, learner: Learner) -> None:
        import logging

        from unlockstep.cli.output import Every

        self._learner = learner
        self._log = logging.getLogger("unlockstep.cli")
        self._every = Every()
        self._began_s = self._line_s = time.perf_counter()
        self._steps = self._tokens = self._line_tokens = 0
        self._loss = float("nan")
        before = f", {counted(learner.steps_before, 'step')} before" if learner.steps_before else ""
        self._log.info("joined as %s.%d at clock %d%s", learner.name, learner.incarnation, learner.clock, before)

    def step(self, tokens: int, loss: float) -> None:
        """An inner step is done."""
        self._steps += 1
        self._tokens += tokens
        self._line_tokens += tokens
        self._loss = loss
        if self._every.due():
            now_s = time.perf_counter()
            rate = self._line_tokens / (now_s - self._line_s)
            self._log.info("clock %d, %.0f tokens/s, loss %.4f", self._learner.clock, rate, loss)
            self._line_s, self._line_tokens = now_s, 0

    def end(self, ended: str | None, as_json: bool) -> None:
        """There are no more steps."""
        from unlockstep.cli.output import print_json

        seconds, reason = time.perf_counter() - self._began_s, ended or "asked to stop"
        steps, tokens = counted(self._steps, "step"), counted(self._tokens, "token")
        self._log.info("%s; trained %s, %s in %.1f s", reason, steps, tokens, seconds)
        if as_json:
            print_json(
                {
                    "learner": self._learner.name,
                    "incarnation": self._learner.incarnation,
                    "clock": self._learner.clock,
                    "steps": self._steps,
                    "tokens": self._tokens,
                    "loss": self._loss,
                    "seconds": round(seconds, 3),
                    "ended": reason,
                }
            )

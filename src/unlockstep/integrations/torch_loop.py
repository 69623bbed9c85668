"""A user's own PyTorch loop as a learner: join, train as before, say after each optimizer step what it did.

::

    with unlockstep.Learner(model, optimizer, syncer="http://host:7077", name="site-a") as learner:
        for batch in loader:
            loss = model(batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not learner.step(tokens=batch.numel(), loss=loss):
                break

Decides how a model, an optimizer and a syncer's address become a learner, and how such a learner begins and ends. Does
not decide what a step is (the user does), which settings the run has (the syncer does), nor anything of the protocol.
"""

from __future__ import annotations

import logging
import operator
import os
import re
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, SupportsIndex

from torch import Tensor, nn
from torch.optim import Optimizer

from unlockstep import config as run_config
from unlockstep.config import RunConfig
from unlockstep.core.errors import UnlockstepError, UsageError
from unlockstep.core.ids import LEARNER_NAME_LENGTH_MAX, is_learner_name
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.learners.backend import StepStats
from unlockstep.learners.torch_store import TorchStore, check_optimizer
from unlockstep.loop import LearnerLoop
from unlockstep.net.learner_client import LearnerClient
from unlockstep.net.observer_client import read_config

if TYPE_CHECKING:
    from unlockstep.core.layout import Layout

WAKE_S = 0.1
"""How often a learner that waits looks whether it was asked to stop."""

GOODBYE_S_MAX = 60.0
"""Longest wait, beyond one lease, for the end of a run whose last step this learner has taken."""

_log = logging.getLogger(__name__)


class LearnerFailed(UnlockstepError):
    """The syncer does not let this learner take part (any more): its text says why."""


class Learner:
    """One learner of a run, around a model and an optimizer that somebody else steps.

    Entering it joins the run and loads the global parameters; the first learner of all gives the run its own instead.
    From then on ``step`` is called once after every optimizer step. Leaving it, for whatever reason, leaves the run in
    order. The training thread waits for the network twice: for the first parameters, and at the end of the run until
    the last contributions are merged. Everything in between happens in a thread of its own; if the syncer is away,
    training goes on.

    What happens to the model:

    * Parameters that require a gradient when the learner is made are synchronised, in place, in whatever dtype and on
      whatever device they are. Tied weights are one tensor and stay tied. Frozen parameters are neither sent nor
      written.
    * Persistent float buffers (BatchNorm statistics) are averaged, or left to every learner with ``buffers="local"``.
      Integer buffers and those that are not persistent are left alone.
    * The optimizer keeps its state. It may have any parameter groups, as long as they hold the model's own parameters.

    What stays with the caller:

    * Gradient accumulation: call ``step`` once per optimizer step, with the tokens of all its micro-batches.
    * Learning rate: learners run at different speeds, so let schedules follow ``clock``, which counts the inner steps
      of the run, and not the number of steps this process has taken::

          for group in optimizer.param_groups:
              group["lr"] = schedule(learner.clock)

      The moments of a fresh AdamW are noisy: a learner that joins late does well to warm up over its own first steps.
    * Data: every learner needs its own share. ``steps_before`` says how many steps earlier processes of this name have
      taken, so that one that returns can go on where they stopped.
    * Random numbers: none are drawn here and no seed is set. Equal seeds give learners equal dropout masks.

    Args:
        model: any module. Learners of one run need equal names, shapes and dtypes; a ``DistributedDataParallel`` or
            ``torch.compile`` wrapper changes nothing.
        optimizer: what steps the model's parameters; several, if several do. Only looked at.
        syncer: its address, ``http://host:port``.
        name: unique in the run, and the same after a restart: letters, digits, ``_`` and ``-``. None makes one of host
            name and process number, under which nothing can be resumed.
        run: which of the syncer's runs; None: the one it has.
        timeout_s: longest wait for the first parameters, seconds; None waits as long as it takes.
        embedding_names: parameters (or modules of them) to be merged as embeddings; None detects them.
        buffers: ``"merge"`` or ``"local"``.

    Raises:
        UsageError: nobody answers at ``syncer``; a bad ``name``; a model with nothing to train or fewer tensors than
            the run has fragments; an optimizer that steps other tensors than the model's.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        syncer: str,
        name: str | None = None,
        run: str | None = None,
        timeout_s: float | None = None,
        embedding_names: Sequence[str] | None = None,
        buffers: Literal["merge", "local"] = "merge",
    ) -> None:
        self.name = default_name() if name is None else name
        if not is_learner_name(self.name):
            raise UsageError(
                f"name is {name!r}; use letters, digits, _ and - ({LEARNER_NAME_LENGTH_MAX} at most, no mark in front)"
            )
        self._store = TorchStore(model, embedding_names, buffers)
        check_optimizer(model, *([optimizer] if isinstance(optimizer, Optimizer) else optimizer))
        self._syncer = syncer
        self._timeout_s = timeout_s
        self.config: RunConfig = run_config.loads(read_config(syncer, run), source=f"the configuration from {syncer}")
        """The run's settings, as the syncer has them."""
        protocol = self.config.protocol
        self.layout: Layout = build_layout(self._store.tensors(), protocol.fragments, LayoutMethod(protocol.layout))
        """How the model is cut."""
        self._store.bind(self.layout)
        self._client: LearnerClient | None = None
        self._loop: LearnerLoop | None = None
        self._stop_asked = False

    # ------------------------------------------------------------------------------------------- begin and end

    def __enter__(self) -> Self:
        """Join the run and load its parameters.

        Raises:
            LearnerFailed: the syncer refuses this learner: another model, a run that has ended.
            UsageError: the parameters did not come within ``timeout_s``.
        """
        assert self._client is None, "a Learner is entered once; make a new one to join again"
        protocol, adoption = self.config.protocol, self.config.adoption
        self._client = LearnerClient(self._syncer, self.config.run.name, self.layout, self.config.codec)
        self._loop = LearnerLoop.create(
            self.name,
            self.layout,
            self._store,
            self._client,
            protocol=protocol,
            adoption=adoption.mode,
            blend_alpha=adoption.blend_alpha,
            now_ns=time.monotonic_ns,
        )
        self._client.start(self._loop)
        try:
            if not self._wait(self._timeout_s):
                raise UsageError(
                    f"no parameters came from {self._syncer} within timeout_s = {self._timeout_s:g}; check that the "
                    "syncer is running and its learners are alive, or wait longer"
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the run; takes a moment, at most a few seconds. Called by the end of the ``with`` block.

        Progress that has not arrived at the syncer is declared dropped, or refused.
        """
        if self._client is None or self._loop is None:
            return
        try:
            if self._loop.done is None:
                self._loop.leave()
        finally:
            self._client.close()

    def stop(self) -> None:
        """Ask the training thread to end, from any thread: ``step`` returns False next time, and waits are over."""
        self._stop_asked = True

    # ------------------------------------------------------------------------------------------- every step

    def step(self, tokens: SupportsIndex, loss: float | Tensor = float("nan")) -> bool:
        """One optimizer step is done: report it, hand over progress, take what was committed. Between two steps.

        The parameters may be others afterwards; gradients and optimizer state are untouched.

        Args:
            tokens: tokens (or samples, if all learners count those) the step was trained on, at least 0: its weight.
            loss: mean training loss of the step, nats per token, a number or a tensor of one element; shown to people
                only. Reading a tensor waits for the device it is on.

        Returns:
            Whether there is another step to take. False: the run has ended, or ``stop`` was called.

        Raises:
            LearnerFailed: this learner was shut out, or another process has joined under its name.
            UsageError: the learner was not entered, or ``tokens`` is negative.
        """
        if self._loop is None:
            raise UsageError("step was called before the learner had joined; call it inside `with Learner(...):`")
        count = operator.index(tokens)
        most = self.config.limits.tokens_per_step_max
        if not 0 <= count <= most:
            raise UsageError(f"tokens is {count}; give the number of tokens the step was trained on, from 0 to {most}")
        if self._stop_asked and not self._loop.may_step:  # Asked before the parameters were there.
            return False
        value = loss.item() if isinstance(loss, Tensor) else float(loss)
        self._loop.finish_step(StepStats(tokens=count, loss=value))
        if not self._loop.may_step:
            self._wait(GOODBYE_S_MAX + self.config.protocol.lease_s)
        return self._loop.may_step and not self._stop_asked

    @property
    def clock(self) -> int:
        """Inner steps of the run, as far as this learner knows: its own, moved on by what it adopts."""
        return 0 if self._loop is None else self._loop.clock

    @property
    def incarnation(self) -> int:
        """Which start of a learner of this name this is, from 1."""
        return 0 if self._loop is None else self._loop.incarnation

    @property
    def steps_before(self) -> int:
        """Optimizer steps that earlier processes under this name have taken: where the data goes on."""
        return 0 if self._loop is None else self._loop.steps_before

    @property
    def ended(self) -> str | None:
        """Why there are no more steps; None while there are."""
        return None if self._loop is None or self._loop.done is None else self._loop.done.reason

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait until a step may begin or no more will come; False if neither is so when the time is over."""
        assert self._loop is not None
        until_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not self._loop.wait_until_may_step(WAKE_S) and self._loop.done is None and not self._stop_asked:
            if time.monotonic() > until_s:
                _log.warning("learner %s has waited for the syncer for %g s and gives up", self.name, timeout_s)
                return False
        done = self._loop.done
        if done is not None and done.failed:
            raise LearnerFailed(f"learner {self.name} cannot take part: {done.reason}")
        return True


def default_name() -> str:
    """``host-pid``, spelled as a learner's name may be."""
    suffix = f"-{os.getpid()}"
    host = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()).lstrip("-_") or "learner"
    return host[: LEARNER_NAME_LENGTH_MAX - len(suffix)] + suffix

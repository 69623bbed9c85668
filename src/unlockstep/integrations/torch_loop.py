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
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, SupportsIndex, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from unlockstep import config as run_config
from unlockstep.config import Deal, RunConfig
from unlockstep.core.errors import UnlockstepError, UsageError
from unlockstep.core.ids import LEARNER_NAME_LENGTH_MAX, is_learner_name
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.reasons import Recovered
from unlockstep.data.leased import LeasedStream
from unlockstep.integrations.learner_checkpoint import LearnerCheckpoint
from unlockstep.learners.backend import StepStats
from unlockstep.learners.torch_state import Stateful, TorchInner
from unlockstep.learners.torch_store import TorchStore, check_optimizer
from unlockstep.loop import LearnerLoop
from unlockstep.net.access.security import ClientSecurity
from unlockstep.net.bulk.pace import MBIT_PER_S_MIN
from unlockstep.net.clients.learner import FLUSH_S_MAX, CourierKind, LearnerClient
from unlockstep.net.clients.observer import read_config
from unlockstep.net.wire.timeouts import leases_of

if TYPE_CHECKING:
    from unlockstep.core.layout import Layout

WAKE_S = 0.1
"""How often a learner that waits looks whether it was asked to stop."""

BYTES_PER_MBIT = 125_000

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
    * If the syncer has shut this learner out for what it handed over, ``step`` waits until it may come back, loads all
      parameters anew and clears the optimizer's state.

    What stays with the caller:

    * Gradient accumulation: call ``step`` once per optimizer step, with the tokens of all its micro-batches.
    * Learning rate: learners run at different speeds, so let schedules follow ``clock``, which counts the inner steps
      of the run, and not the number of steps this process has taken::

          for group in optimizer.param_groups:
              group["lr"] = schedule(learner.clock)

      The moments of a fresh AdamW are noisy: a learner that joins late, and of which ``recovered`` says ``"syncer"``,
      does well to warm up over its own first steps.
    * Data: every learner needs its own share. ``steps_before`` says how many steps earlier processes of this name have
      taken, so that one that returns can go on where they stopped. Or, in a run with ``data.deal = "leases"``, the
      syncer deals it out: whoever comes and goes, each sequence is trained as often as any other, and a run with
      ``data.epochs`` ends when all are::

          with unlockstep.Learner(model, optimizer, syncer=url, data=tokens) as learner:
              for batch in learner.batches():  # int64 [B, T + 1]
                  ...
                  learner.step(tokens=batch[:, 1:].size, loss=loss)
    * Random numbers: none are drawn here and no seed is set. Equal seeds give learners equal dropout masks.

    A learner that joins late, or returns after a crash, is given parameters and optimizer state of one that trains, if
    there is one (``recovery.donor`` of the run). All learners of a run then need equal optimizers, built in one order;
    a state that does not fit is a warning, and the next way is taken: its checkpoint, or a fresh optimizer.

    With ``checkpoint`` a learner that returns after a crash has its optimizer back. The file is written between two
    steps, copied in ``step`` and written beside the training; the one before it stays as ``NAME.previous``. Whatever
    else is to return with it is named in ``stateful``, and is to be up to date when ``step`` is called::

        with unlockstep.Learner(
            model, optimizer, syncer=url, name="site-a",
            checkpoint="site-a.safetensors", stateful={"scheduler": scheduler, "data": loader},
        ) as learner:

    When it is entered, a file of this run is taken: optimizers, ``stateful``, and of the model what is not
    synchronised; parameters are the syncer's. A file of this learner's name also brings back the random state and the
    entry called ``data``; one of another learner does not, since that one's data is its own. A file that is of no use
    is a warning.

    Args:
        model: any module. Learners of one run need equal names, shapes and dtypes; a ``DistributedDataParallel`` or
            ``torch.compile`` wrapper changes nothing.
        optimizer: what steps the model's parameters; several, if several do. Only looked at.
        syncer: its address, ``http://host:port``; those of its standbys after it, with commas between them.
        name: unique in the run, and the same after a restart: letters, digits, ``_`` and ``-``. None makes one of host
            name and process number, under which nothing can be resumed.
        run: which of the syncer's runs; None: the one it has.
        timeout_s: longest wait for the first parameters, seconds; None waits as long as it takes. Data is waited for
            without a limit.
        embedding_names: parameters (or modules of them) to be merged as embeddings; None detects them.
        buffers: ``"merge"`` or ``"local"``.
        on_reset: called, inside ``step``, after all parameters were loaded anew in the middle of the run and the
            optimizer's state was cleared: to warm up once more, say.
        checkpoint: the file to take up, and to keep; its folder is made.
        checkpoint_interval_s: longest time between two checkpoints, seconds; 0: only when the learner leaves a run that
            goes on; None: ``checkpoint.interval_s`` of the run.
        data: the training tokens, unsigned integers [N], the same for all learners that give any; cut into sequences
            of ``data.sequence_length`` and batches of ``inner.batch_size``, or as a ``data.LeasedStream`` of your own.
            None: this learner has data of its own.
        leave_s: given to hand over what has been trained when the learner leaves a run that goes on, seconds. Where
            machines are taken away with notice, that notice, less an inner step.
        courier: where what is large is encoded, sent and fetched: ``"process"``, a small child process, so that it
            neither slows training nor is slowed by it; ``"thread"``, where no child is wanted.
        bandwidth_mbit: most of the link that what is large may take, Mbit/s each way; None: what there is.
        stateful: what is kept in the file beside model and optimizer, by name: anything with ``state_dict()`` and
            ``load_state_dict()``.
        about: what the run log should know of this process, short texts by name: what would be needed to repeat it.
        ca: file of the certificate that vouches for the syncer's (``ca.pem`` of ``unlockstep certs``); None: those this
            machine trusts. Used where the address begins with ``https``.
        cert, key: files of this learner's own certificate, where the syncer asks for one.
        token: what the syncer asks for; a path (``pathlib.Path``) names a file, which is read anew at every connection.

    Raises:
        UsageError: nobody answers at ``syncer``, or the two do not accept each other; a bad ``name``; seconds that are
            none; a model with nothing to train or fewer tensors than the run has fragments; an optimizer that steps
            other tensors than the model's;
            ``checkpoint`` is no file; something in ``stateful`` has no state; ``data`` for a run that does not deal it
            out, or in another order.
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
        on_reset: Callable[[], None] = lambda: None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_interval_s: float | None = None,
        stateful: Mapping[str, Stateful] | None = None,
        about: Mapping[str, str] | None = None,
        data: LeasedStream | NDArray[np.unsignedinteger] | None = None,
        leave_s: float = FLUSH_S_MAX,
        courier: CourierKind = "process",
        bandwidth_mbit: float | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        token: str | os.PathLike[str] | None = None,
    ) -> None:
        _check_seconds(leave_s=leave_s, timeout_s=timeout_s, checkpoint_interval_s=checkpoint_interval_s)
        _check_stateful(stateful or {})
        if courier not in get_args(CourierKind):
            raise UsageError(f"courier is {courier!r}; choose process or thread")
        self._bytes_per_s = _bytes_per_s(bandwidth_mbit)
        self._leave_s, self._about = leave_s, about
        self._courier: CourierKind = courier
        self.name = default_name() if name is None else name
        if not is_learner_name(self.name):
            raise UsageError(
                f"name is {name!r}; use letters, digits, _ and - ({LEARNER_NAME_LENGTH_MAX} at most, no mark in front)"
            )
        self._store = TorchStore(model, embedding_names, buffers)
        self._optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        check_optimizer(model, *self._optimizers)
        self._on_reset = on_reset
        self._syncer, self._timeout_s = syncer, timeout_s
        self._security = ClientSecurity.of(ca, cert, key, token)
        settings = read_config(syncer, run, self._security)
        self.config: RunConfig = run_config.loads(settings, source=f"the configuration from {syncer}")
        """The run's settings, as the syncer has them."""
        protocol = self.config.protocol
        self.layout: Layout = build_layout(self._store.tensors(), protocol.fragments, LayoutMethod(protocol.layout))
        """How the model is cut."""
        self._store.bind(self.layout)
        self._data = None if data is None else self._leased(data)
        self._checkpoint: LearnerCheckpoint | None = None
        if checkpoint is not None:
            interval_s = self.config.checkpoint.interval_s if checkpoint_interval_s is None else checkpoint_interval_s
            self._checkpoint = LearnerCheckpoint(Path(checkpoint), interval_s, model, self._optimizers, stateful or {})
        self._inner = TorchInner(model, self._optimizers) if self.config.recovery.donor else None
        self._client: LearnerClient | None = None
        self._loop: LearnerLoop | None = None
        self._process = os.getpid()  # A forked one has a copy of this object, and nobody who speaks for it.
        self._stop_asked = False

    def _leased(self, data: LeasedStream | NDArray[np.unsignedinteger]) -> LeasedStream:
        of = self.config.data
        if of.deal is not Deal.LEASES:
            raise UsageError(
                f"data was given, but data.deal of the run is {of.deal.value!r}: leave it out, or start the syncer "
                'with data.deal = "leases"'
            )
        seed = self.config.run.seed
        if not isinstance(data, LeasedStream):
            data = LeasedStream(data, of.sequence_length, self.config.inner.batch_size, seed)
        if data.seed != seed:
            raise UsageError(
                f"data has the seed {data.seed}, but run.seed is {seed}: with another order than the others' some "
                f"sequences would be trained twice and others never; make the stream with seed={seed}"
            )
        if data.position or data.remaining:
            raise UsageError("data is a stream that another learner has taken from; make a new one for every learner")
        if data.course.step_sequences > of.stock_sequences:
            raise UsageError(
                f"a step takes {data.course.step_sequences} sequences, but data.stock_sequences of the run is "
                f"{of.stock_sequences}: take smaller steps, or start the syncer with a larger stock"
            )
        return data

    # ------------------------------------------------------------------------------------------- begin and end

    def __enter__(self) -> Self:
        """Join the run and load its parameters.

        Raises:
            LearnerFailed: the syncer refuses this learner: another model, a run that has ended.
            UsageError: the parameters did not come within ``timeout_s``; it was entered before.
        """
        if self._client is not None:
            raise UsageError("a Learner is entered once; make a new one to join again")
        protocol, adoption = self.config.protocol, self.config.adoption
        self._client = LearnerClient(
            self._syncer,
            self.config.run.name,
            self.layout,
            self.config.codec,
            leases=leases_of(self.config),
            flush_s=self._leave_s,
            courier=self._courier,
            bytes_per_s=self._bytes_per_s,
            security=self._security,
        )
        self._loop = LearnerLoop.create(
            self.name,
            self.layout,
            self._store,
            self._client,
            protocol=protocol,
            adoption=adoption.mode,
            blend_alpha=adoption.blend_alpha,
            now_ns=time.monotonic_ns,
            course=None if self._data is None else self._data.course,
            inner=self._inner,
            reset_optimizer=self._reset_optimizer,
            about=self._about,
        )
        if self._data is not None:
            self._data.take_by(self._loop.take)
        self._client.start(self._loop)
        try:
            if not self._wait(self._timeout_s):
                raise UsageError(
                    f"no parameters came from {self._syncer} within timeout_s = {self._timeout_s:g}; check that the "
                    "syncer is running and its learners are alive, or wait longer"
                )
            if self._checkpoint is not None and self._loop.may_step:
                self._checkpoint.take(self._loop, [tensor.name for tensor in self._store.tensors()])
            self._say_what_was_recovered()
        except BaseException:
            self._close(write=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An error may have come in the middle of a step: then the last checkpoint is a better one than what is here.
        is_alone = self._loop is not None and self._loop.done is not None and self._loop.done.is_alone
        self._close(write=kind is None or is_alone)

    def close(self) -> None:
        """Leave the run; takes a moment, at most about ``leave_s``. Called by the end of the ``with`` block.

        What has been trained since the last rounds is handed over first and counts in the next ones. What does not
        arrive in time is declared dropped, or refused. If the run goes on, a last checkpoint is written.
        """
        self._close(write=True)

    def _close(self, write: bool) -> None:
        if self._client is None or self._loop is None or os.getpid() != self._process:
            return
        try:
            if self._checkpoint is not None and write:
                self._checkpoint.write(self._loop)
            if self._loop.done is None:
                self._loop.leave(self._leave_s / 4)
        finally:
            self._client.close()
            if self._checkpoint is not None:
                self._checkpoint.wait()

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
        if self._stop_asked and not (self._loop.may_step or self._loop.is_in_step):
            return False  # Asked before the parameters were there, or before there was data: no step was taken.
        value = loss.item() if isinstance(loss, Tensor) else float(loss)
        self._loop.finish_step(StepStats(tokens=count, loss=value))
        self._wait_for_step()
        if self._checkpoint is not None and self._loop.may_step:
            self._checkpoint.step(self._loop)
        return self._loop.may_step and not self._stop_asked

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """What this learner is granted of ``data``, a batch for every step: int64 [B, T + 1], inputs and shifted
        targets; the very last one may have fewer rows. Waits while others train what is left, and ends with the run or
        by ``stop``. For gradient accumulation give a ``LeasedStream`` with the batch of a whole step, and cut it.

        Raises:
            LearnerFailed: as ``step`` does.
            UsageError: the learner was not entered, or has no ``data``; all it had was taken, and ``step`` not called.
        """
        if self._loop is None or self._data is None:
            raise UsageError("batches are of a learner that was given data and has joined: `with Learner(..., data=)`")
        while True:
            if self._loop.is_in_step and not (self._loop.may_step or self._stop_asked):
                raise UsageError(
                    "all batches at hand were taken, and step was not called since: call it after every batch, with "
                    "tokens=0 for one that is left out"
                )
            self._wait_for_step()
            if self._stop_asked or not self._loop.may_step:
                return
            yield self._data.next()

    def _wait_for_step(self) -> None:
        """Until the next step may begin, or none will: all parameters may be taken anew, and there may be more data
        when somebody who holds some goes. At the run's end until what was handed over is merged."""
        assert self._loop is not None and self._client is not None
        while self._loop.is_waiting and not self._stop_asked:
            self._loop.wait_until_may_step(WAKE_S)
        if not self._loop.may_step:
            self._wait(self._client.timeouts.goodbye_s)

    def _say_what_was_recovered(self) -> None:
        assert self._loop is not None
        sentences = {
            Recovered.DONOR: "takes parameters and inner optimizer from another learner",
            Recovered.CHECKPOINT: "takes the inner optimizer from its checkpoint, parameters from the syncer",
            Recovered.SYNCER: "takes parameters from the syncer; the inner optimizer begins anew",
        }
        if self._loop.recovered in sentences:
            level = logging.WARNING if self._loop.donor_was_unfit else logging.INFO
            _log.log(level, "learner %s %s: %s", self.name, sentences[self._loop.recovered], self._loop.recovered_why)

    @property
    def recovered(self) -> str | None:
        """What the optimizer remembers, since this learner was entered: ``"donor"``, another learner's state, or
        ``"checkpoint"``, that of its own file. ``"syncer"``: nothing, and it does well to warm up over its own first
        steps. None: it began the run, or has not been entered."""
        return None if self._loop is None or self._loop.recovered is None else self._loop.recovered.value

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
        """Optimizer steps that earlier processes under this name have taken: where the data goes on. As the syncer has
        heard, or as its checkpoint has it, whichever is further: what was merged is not trained on again."""
        known = 0 if self._loop is None else self._loop.steps_before
        return known if self._checkpoint is None else max(known, self._checkpoint.steps_before)

    @property
    def ended(self) -> str | None:
        """Why there are no more steps; None while there are."""
        return None if self._loop is None or self._loop.done is None else self._loop.done.reason

    def _reset_optimizer(self) -> None:
        for optimizer in self._optimizers:
            optimizer.state.clear()
        self._on_reset()

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait until a step may begin or no more will come; False if neither is so when the time is over, and it is not
        data that is waited for: others may take as long as they like."""
        assert self._loop is not None
        until_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not self._loop.wait_until_may_step(WAKE_S) and self._loop.done is None and not self._stop_asked:
            if time.monotonic() > until_s and not self._loop.waits_for_data:
                _log.warning("learner %s has waited for the syncer for %g s and gives up", self.name, timeout_s)
                return False
        done = self._loop.done
        if done is not None and done.failed:
            raise LearnerFailed(f"learner {self.name} cannot take part: {done.reason}")
        return True


def _check_seconds(**spans: float | None) -> None:
    for name, span_s in spans.items():
        if span_s is not None and not 0 <= span_s <= threading.TIMEOUT_MAX:
            raise UsageError(f"{name} is {span_s}; give seconds, at least 0 and finite")


def _bytes_per_s(bandwidth_mbit: float | None) -> float | None:
    if bandwidth_mbit is None:
        return None
    if not MBIT_PER_S_MIN <= bandwidth_mbit < float("inf"):
        raise UsageError(
            f"bandwidth_mbit is {bandwidth_mbit}; give Mbit/s, at least {MBIT_PER_S_MIN} and finite, or None: no limit"
        )
    return bandwidth_mbit * BYTES_PER_MBIT


def _check_stateful(stateful: Mapping[str, Stateful]) -> None:
    for name, part in stateful.items():
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise UsageError(
                f"stateful[{name!r}] is a {type(part).__name__}, which has no state_dict and load_state_dict: leave it "
                "out, or give both to it"
            )


def default_name() -> str:
    """``host-pid``, spelled as a learner's name may be."""
    suffix = f"-{os.getpid()}"
    host = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()).lstrip("-_") or "learner"
    return host[: LEARNER_NAME_LENGTH_MAX - len(suffix)] + suffix

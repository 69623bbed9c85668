"""``unlockstep evaluator``: validation loss of the global model while a run goes on, and the model at its end.

Decides when the global model is evaluated: when something new was committed, and at most every
``evaluation.interval_s``; once more at the end. Takes no part in the protocol: an observer fetches what is committed.
If the syncer goes away it keeps what it has and connects again, for ``protocol.away_s_max`` as learners do.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.cli.access import Ca, Cert, Key, RunName, TokenFile
from unlockstep.cli.trust import Trust, require_trusted
from unlockstep.core.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from unlockstep.cli.assembly import Text
    from unlockstep.cli.exits import StopRequest
    from unlockstep.config import RunConfig
    from unlockstep.core.chunks import Float32
    from unlockstep.core.layout import Layout
    from unlockstep.core.messages import Evaluation, VersionNotice
    from unlockstep.core.status import Score, Status
    from unlockstep.net.access.security import ClientSecurity
    from unlockstep.net.clients.observer import Observer

_log = logging.getLogger("unlockstep.cli")


def evaluator(
    syncer: Annotated[str, typer.Option(help="Address of the syncer, http://host:port; of several, with commas.")],
    out: Annotated[Path | None, typer.Option(help="Folder the final model is saved to.")] = None,
    name: Annotated[str, typer.Option(help="Name under which losses are reported.")] = "evaluator",
    run: RunName = None,
    trust_syncer: Trust = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    token_file: TokenFile = None,
    parent_pid: Annotated[int | None, typer.Option(help="End when this process is no longer the parent.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every evaluation as one JSON object.")] = False,
) -> int:
    """Validate the global model while it trains; save it."""
    from unlockstep import config as run_config
    from unlockstep.cli.access import client_security
    from unlockstep.cli.assembly import require_torch
    from unlockstep.cli.exits import stop_request
    from unlockstep.cli.output import log_to_stderr
    from unlockstep.models import check_can_save
    from unlockstep.net.clients.observer import read_config

    require_torch("evaluator")
    log_to_stderr(name)
    if out is not None:
        check_can_save(out)
    security = client_security(ca, cert, key, token_file)
    config = run_config.loads(read_config(syncer, run, security), source=f"the configuration from {syncer}")
    require_trusted(config, trust_syncer)
    with stop_request(parent_pid) as stop:
        line = Line(config, syncer, name, security)
        examiner = asyncio.run(_until_stopped(_observe(config, line, as_json), stop))
        if examiner is not None and out is not None and examiner.has_model:
            examiner.save(out)
        return stop.exit_code if examiner is None else 0


class Examiner:
    """The model of a run and the text it is validated on, always the same.

    Args:
        config: of the run.
        text: of the run, if it has been loaded.
        model: what is validated, as it is then; None: a model of its own, which is loaded first.
    """

    def __init__(self, config: RunConfig, text: Text | None = None, model: nn.Module | None = None) -> None:
        from unlockstep.cli.assembly import load_text, new_model
        from unlockstep.core.layout import LayoutMethod, build_layout
        from unlockstep.data import validation_batches
        from unlockstep.learners.torch_store import TorchStore

        text, evaluation = text or load_text(config), config.evaluation
        self._batches = validation_batches(
            text.validation, config.data.sequence_length, evaluation.batch_size, evaluation.batches
        )
        self._bytes_per_token = text.bytes_per_token
        self._model = model or new_model(config, text)
        self._store = TorchStore(self._model)
        protocol = config.protocol
        self.layout = build_layout(self._store.tensors(), protocol.fragments, LayoutMethod(protocol.layout))
        self._store.bind(self.layout)
        self._spec = config.model.spec
        self.has_model = False
        """Whether the model holds values of the run."""

    def load(self, values: dict[int, Float32]) -> None:
        """The model has these values."""
        for fragment, value in values.items():
            self._store.write_fragment(fragment, value)
        self.has_model = True

    def evaluate(self, values: dict[int, Float32]) -> tuple[float, float, tuple[Score, ...]]:
        """Validation loss with these fragments, the others as they are: nats per token and nats per byte, and what else
        the model is asked. Takes a while."""
        from unlockstep.core.status import Score
        from unlockstep.learners.evaluation import validation_scores
        from unlockstep.models import TEXT, causal_scores

        self.load(values)
        try:
            scores = validation_scores(self._model, self._batches, causal_scores)
        except Exception as error:  # whatever a model of the user's raises
            raise UsageError(
                f"model.spec = {self._spec!r} cannot be validated ({type(error).__name__}: {error}); it must be "
                "a causal language model: token ids in, logits out"
            ) from error
        loss = scores.pop(TEXT).nats
        others = tuple(Score(name, score.nats, score.accuracy) for name, score in scores.items())
        return loss, loss / self._bytes_per_token, others

    def save(self, folder: Path) -> None:
        """Write the model as evaluated last."""
        from unlockstep.models import save_model

        save_model(self._model, folder)
        _log.info("the final model is in %s", folder)


class Line:
    """The way to the syncer, whether or not it is there.

    Args:
        config: of the run.
        syncer: its address.
        name: of the observer.
        security: whom it trusts, and what it shows.
    """

    def __init__(self, config: RunConfig, syncer: str, name: str, security: ClientSecurity) -> None:
        from unlockstep.net.wire.timeouts import derive, leases_of

        self.name = name
        self._leases = leases_of(config)
        self._timeouts = derive(self._leases)
        self._run, self._codec, self._spec = config.run.name, config.codec.download, config.model.spec
        self._syncer = syncer
        self._security = security
        self._was_connected = False
        self._away_since_s: float | None = None
        self._complaints: set[str] = set()
        """What was wrong since there was a connection: an outage may take an hour, and is not told again and again."""

    @asynccontextmanager
    async def connection(self, layout: Layout) -> AsyncIterator[tuple[Observer, Status]]:
        """A connection, as soon as the syncer is there, and what it then says of itself.

        Raises:
            RunFailed: it has not been there for too long.
            UsageError: it does not accept this evaluator, and never did.
        """
        from unlockstep.cli.exits import RunFailed
        from unlockstep.net.clients.observer import Observer, Refused, read_status
        from unlockstep.net.clients.sessions import REFUSED_S

        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._timeouts.away_s
        for pause_s in self.pauses():
            async with AsyncExitStack() as stack:
                try:
                    observer = Observer(
                        self._syncer, self._run, self.name, layout, self._codec, self._leases, self._security
                    )
                    await stack.enter_async_context(observer)
                    status = await asyncio.to_thread(read_status, self._syncer, self._run, self._security)
                except UsageError as error:
                    if isinstance(error, Refused):  # Later, somebody may be about to mend it.
                        if not self._was_connected:
                            raise
                        pause_s = max(pause_s, REFUSED_S)
                    self.complain(error)
                    if loop.time() >= until_s:
                        raise RunFailed(
                            f"the syncer went away before run {self._run!r} was over and has not come back for "
                            f"{self._timeouts.away_s:g} s ({error}); start the evaluator again when it is there"
                        ) from None
                else:
                    self._note_connection()
                    yield observer, status
                    return
            await asyncio.sleep(pause_s)

    def complain(self, error: UsageError) -> None:
        """Say what is wrong, once in an outage."""
        if str(error) not in self._complaints:
            _log.warning("%s; trying again", error)
        self._complaints.add(str(error))

    def note_loss(self) -> None:
        """The connection has ended before the run has."""
        _log.warning("the connection to the syncer has ended; connecting again")
        self._away_since_s = asyncio.get_running_loop().time()

    def _note_connection(self) -> None:
        from unlockstep.net.clients.sessions import back_after

        self._was_connected, self._complaints = True, set()
        if self._away_since_s is not None:
            _log.warning(back_after(asyncio.get_running_loop().time() - self._away_since_s))
            self._away_since_s = None

    def pauses(self) -> Iterator[float]:
        """Before connecting again and again, without end; at random, so that not all come at once."""
        for failures in itertools.count(1):
            yield self._timeouts.backoff_s_after(failures) * random.uniform(0.5, 1.0)

    def require_same_model(self, status: Status, layout: Layout) -> None:
        """Raises UsageError if the run's model is not the one that was built here."""
        if status.layout_digest not in (None, layout.digest):
            raise UsageError(
                f"model.spec is {self._spec!r} but the learners of run {status.run!r} train another model; start the "
                "syncer with --set model.spec=package.module:factory, which the evaluator can build, too"
            )


class Replica:
    """The newest committed version of every fragment, as far as it has been fetched.

    What the syncer says is newest counts: one that saves only now and then may come back with earlier versions.
    """

    def __init__(self, fragments: int) -> None:
        self.values: dict[int, Float32] = {}
        self.clock = 0
        self.is_new = False
        """There is a complete model that nobody has looked at."""
        self.over = asyncio.Event()
        """The run is over, and nothing more will come."""
        self.news = asyncio.Event()
        """Set by either."""
        self.has_been_told = asyncio.Event()
        """To be set when the run is over and nothing more is to be said."""
        self._fragments = fragments
        self._notices: dict[int, VersionNotice] = {}
        self._observer: Observer | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        """Of each fragment; -1: none has been fetched."""
        notices = (self._notices.get(fragment) for fragment in range(self._fragments))
        return tuple(-1 if notice is None else notice.version for notice in notices)

    async def follow(self, line: Line, layout: Layout) -> None:
        """Fetch whatever is announced, in that order, until the run is over."""
        from unlockstep.net.clients.observer import Refused

        pauses = line.pauses()
        while True:
            before = dict(self._notices)
            async with line.connection(layout) as (observer, status):
                line.require_same_model(status, layout)
                self._observer = observer
                try:
                    is_over = await self._listen(observer, status)
                except Refused as refused:
                    if not self.values:
                        raise
                    line.complain(refused)
                    is_over = False
                if is_over:
                    self.over.set()
                    self.news.set()
                    await self.has_been_told.wait()
                    return
            line.note_loss()
            if self._notices != before:
                pauses = line.pauses()
            await asyncio.sleep(next(pauses))

    async def say(self, evaluation: Evaluation) -> None:
        """To the syncer; lost if it is away."""
        if self._observer is not None:
            await self._observer.send(evaluation)

    async def _listen(self, observer: Observer, status: Status) -> bool:
        """Until the connection ends (False) or the run (True)."""
        from unlockstep.core.messages import GoneBack, Published, Stop

        # What there is to fetch of a run that is over already: its syncer may not say so once more.
        final_versions = status.versions if status.state == "finished" else None
        if final_versions == ():
            return True
        async for message in observer.messages():
            if isinstance(message, Published):
                await self._fetch(observer, message.notice, message.clock)
            if isinstance(message, GoneBack):
                for notice in message.notices:
                    await self._fetch(observer, notice, message.clock)
            if isinstance(message, Stop) or self.versions == final_versions:
                return True
        return False

    async def _fetch(self, observer: Observer, notice: VersionNotice, clock: int) -> None:
        if self._notices.get(notice.fragment) == notice:
            return
        values = await observer.fetch(notice)
        if values is None:
            return
        self.values[notice.fragment] = values
        self._notices[notice.fragment] = notice
        self.clock = max(self.clock, clock)
        if len(self.values) == self._fragments:
            self.is_new = True
            self.news.set()


async def _until_stopped(observing: Coroutine[None, None, Examiner], stop: StopRequest) -> Examiner | None:
    """What comes of it; None if somebody asks to stop first."""
    loop, task = asyncio.get_running_loop(), asyncio.create_task(observing)
    stop.then(lambda: loop.call_soon_threadsafe(task.cancel))
    try:
        return await task
    except asyncio.CancelledError:
        return None
    except ExceptionGroup as group:  # what one task raised has ended the others
        raise group.exceptions[0] from None


async def _observe(config: RunConfig, line: Line, as_json: bool) -> Examiner:
    """Evaluate until the run is over. The examiner then holds the final model."""
    async with AsyncExitStack() as early:
        examiner = await _first_parameters(config, line, early)
        replica = Replica(examiner.layout.fragment_count)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(replica.follow(line, examiner.layout))
            while not replica.over.is_set():
                await replica.news.wait()
                await early.aclose()  # There is the other one.
                due_s = asyncio.get_running_loop().time() + config.evaluation.interval_s
                if replica.is_new:
                    await _evaluate(examiner, replica, line.name, as_json)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due_s):
                        await replica.over.wait()
            if replica.is_new:
                await _evaluate(examiner, replica, line.name, as_json)
            replica.has_been_told.set()
    return examiner


async def _first_parameters(config: RunConfig, line: Line, early: AsyncExitStack) -> Examiner:
    """What evaluates, once the run has parameters.

    The run is observed from the beginning, since at the end a syncer waits for its observers; but torch is loaded when
    there is something to evaluate: until then the learners need the processor.
    """
    from unlockstep.core.layout import Layout, LayoutMethod

    for pause_s in line.pauses():
        observer, _ = await early.enter_async_context(line.connection(Layout((), LayoutMethod.BALANCED)))
        _log.info("observes run %r and waits for the first parameters", config.run.name)
        async for _ in observer.messages():
            return await asyncio.to_thread(_new_examiner, config)
        await early.aclose()
        line.note_loss()
        await asyncio.sleep(pause_s)
    raise AssertionError("pauses never end")


def _new_examiner(config: RunConfig) -> Examiner:
    from unlockstep.cli.assembly import loading

    with loading(config):
        return Examiner(config)


async def _evaluate(examiner: Examiner, replica: Replica, name: str, as_json: bool) -> None:
    from unlockstep.cli.output import print_json
    from unlockstep.core.messages import Evaluation

    replica.is_new = False
    replica.news.clear()
    clock, versions = replica.clock, replica.versions
    # In a thread: what is committed meanwhile is fetched, and the connection stays alive.
    loss, nats_per_byte, scores = await asyncio.to_thread(examiner.evaluate, dict(replica.values))
    evaluation = Evaluation(name, clock, loss, nats_per_byte, versions, scores)
    await replica.say(evaluation)
    others = "".join(f", {score.name} {score.nats:.4f} nats, {score.accuracy:.1%} right" for score in scores)
    _log.info("clock %d: validation loss %.4f nats/token, %.4f nats/byte%s", clock, loss, nats_per_byte, others)
    if as_json:
        print_json(evaluation)

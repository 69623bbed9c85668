"""``unlockstep evaluator``: validation loss of the global model while a run goes on, and the model at its end.

Decides when the global model is evaluated: when something new was committed, and at most every
``evaluation.interval_s``; once more at the end. Takes no part in the protocol: an observer fetches what is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.core.errors import UsageError

if TYPE_CHECKING:
    from unlockstep.cli.exits import StopRequest
    from unlockstep.config import RunConfig
    from unlockstep.core.chunks import Float32
    from unlockstep.core.messages import Published
    from unlockstep.net.observer_client import Observer

_log = logging.getLogger("unlockstep.cli")


def evaluator(
    syncer: Annotated[str, typer.Option(help="Address of the syncer, http://host:port.")],
    out: Annotated[Path | None, typer.Option(help="Folder the final model is saved to.")] = None,
    name: Annotated[str, typer.Option(help="Name under which losses are reported.")] = "evaluator",
    run: Annotated[str | None, typer.Option(help="Name of the run, if the syncer has several.")] = None,
    parent_pid: Annotated[int | None, typer.Option(help="End when this process is no longer the parent.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every evaluation as one JSON object.")] = False,
) -> int:
    """Validate the global model while it trains; save it."""
    from unlockstep import config as run_config
    from unlockstep.cli.exits import stop_request
    from unlockstep.cli.output import log_to_stderr
    from unlockstep.models import check_can_save
    from unlockstep.net.observer_client import read_config

    log_to_stderr(name)
    if out is not None:
        check_can_save(out)
    config = run_config.loads(read_config(syncer, run), source=f"the configuration from {syncer}")
    with stop_request(parent_pid) as stop:
        examiner = asyncio.run(_until_stopped(_observe(config, syncer, name, as_json), stop))
        if examiner is not None and out is not None and examiner.has_model:
            examiner.save(out)
        return stop.exit_code if examiner is None else 0


class Examiner:
    """The model of a run and the text it is validated on, always the same."""

    def __init__(self, config: RunConfig) -> None:
        from unlockstep.cli.assembly import load_text, loading, new_model
        from unlockstep.core.layout import LayoutMethod, build_layout
        from unlockstep.data import validation_batches

        with loading(config):
            from unlockstep.learners.torch_store import TorchStore

            text, evaluation = load_text(config), config.evaluation
            self._batches = validation_batches(
                text.validation, config.data.sequence_length, evaluation.batch_size, evaluation.batches
            )
            self._bytes_per_token = text.bytes_per_token
            self._model = new_model(config, text)
            self._store = TorchStore(self._model)
        protocol = config.protocol
        self.layout = build_layout(self._store.tensors(), protocol.fragments, LayoutMethod(protocol.layout))
        self._store.bind(self.layout)
        self._spec = config.model.spec
        self.has_model = False
        """Whether the model holds values of the run."""

    def evaluate(self, values: dict[int, Float32]) -> tuple[float, float]:
        """Validation loss of these fragments, nats per token and nats per byte. Takes a while."""
        from unlockstep.learners.evaluation import validation_loss
        from unlockstep.models import causal_loss

        for fragment, value in values.items():
            self._store.write_fragment(fragment, value)
        self.has_model = True
        try:
            loss = validation_loss(self._model, self._batches, causal_loss)
        except Exception as error:  # whatever a model of the user's raises
            raise UsageError(
                f"model.spec = {self._spec!r} cannot be validated ({type(error).__name__}: {error}); it must be "
                "a causal language model: token ids in, logits out"
            ) from error
        return loss, loss / self._bytes_per_token

    def save(self, folder: Path) -> None:
        """Write the model as evaluated last."""
        from unlockstep.models import save_model

        save_model(self._model, folder)
        _log.info("the final model is in %s", folder)


class Replica:
    """The newest committed version of every fragment, as far as it has been fetched."""

    def __init__(self, observer: Observer, fragments: int) -> None:
        self.values: dict[int, Float32] = {}
        self.versions = [-1] * fragments
        self.clock = 0
        self.is_new = False
        """There is a complete model that nobody has looked at."""
        self.final_versions: tuple[int, ...] | None = None
        """What there is to fetch of a run that is over already: its syncer will not say so once more."""
        self.run_ended = False
        """The run is over."""
        self.over = asyncio.Event()
        """Nothing more will come."""
        self.news = asyncio.Event()
        """Set by either."""
        self._observer = observer

    async def follow(self) -> None:
        """Fetch whatever is announced, in that order, until the run or the connection ends."""
        from unlockstep.core.messages import Published, Stop

        async for message in self._observer.messages():
            if isinstance(message, Published):
                await self._fetch(message)
            if isinstance(message, Stop) or tuple(self.versions) == self.final_versions:
                self.run_ended = True
                break
        self.over.set()
        self.news.set()

    async def _fetch(self, published: Published) -> None:
        notice = published.notice
        values = await self._observer.fetch(notice)
        if values is None:
            return
        self.values[notice.fragment] = values
        self.versions[notice.fragment] = notice.version
        self.clock = max(self.clock, published.clock)
        if len(self.values) == len(self.versions):
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


async def _observe(config: RunConfig, syncer: str, name: str, as_json: bool) -> Examiner:
    """Evaluate until the run is over. The examiner then holds the final model."""
    from unlockstep.cli.exits import RunFailed
    from unlockstep.core.layout import Layout, LayoutMethod
    from unlockstep.net.observer_client import Observer, read_status

    run, codec = config.run.name, config.codec.download
    async with AsyncExitStack() as connections:
        # Observed from the beginning, since at the end a syncer waits for its observers; but torch is loaded when there
        # is something to evaluate: until then the learners need the processor.
        async with Observer(syncer, run, name, Layout((), LayoutMethod.BALANCED), codec) as early:
            _log.info("observes run %s and waits for the first parameters", run)
            async for _ in early.messages():
                break
            examiner = await asyncio.to_thread(Examiner, config)
            observer = Observer(syncer, run, name, examiner.layout, codec)
            try:
                await connections.enter_async_context(observer)
            except UsageError:
                raise RunFailed(_gone(syncer, run)) from None
        replica = Replica(observer, examiner.layout.fragment_count)
        status = await asyncio.to_thread(read_status, syncer, run)
        if status.layout_digest not in (None, examiner.layout.digest):
            raise UsageError(
                f"model.spec is {config.model.spec!r} but the learners of run {run!r} train another model; start the "
                "syncer with --set model.spec=package.module:factory, which the evaluator can build, too"
            )
        if status.state == "finished":
            replica.final_versions = status.versions
            if not status.versions:
                return examiner
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(replica.follow())
            while not replica.over.is_set():
                await replica.news.wait()
                due_s = asyncio.get_running_loop().time() + config.evaluation.interval_s
                if replica.is_new:
                    await _evaluate(examiner, replica, observer, as_json)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due_s):
                        await replica.over.wait()
        if not replica.run_ended:
            raise RunFailed(_gone(syncer, run))
        if replica.is_new:
            await _evaluate(examiner, replica, observer, as_json)
    return examiner


def _gone(syncer: str, run: str) -> str:
    return f"the syncer at {syncer} went away before run {run} was over; start the evaluator again"


async def _evaluate(examiner: Examiner, replica: Replica, observer: Observer, as_json: bool) -> None:
    from unlockstep.cli.output import print_json
    from unlockstep.core.messages import Evaluation

    replica.is_new = False
    replica.news.clear()
    clock, versions = replica.clock, tuple(replica.versions)
    # In a thread: what is committed meanwhile is fetched, and the connection stays alive.
    loss, nats_per_byte = await asyncio.to_thread(examiner.evaluate, dict(replica.values))
    evaluation = Evaluation(observer.name, clock, loss, nats_per_byte, versions)
    await observer.send(evaluation)
    _log.info("clock %d: validation loss %.4f nats/token, %.4f nats/byte", clock, loss, nats_per_byte)
    if as_json:
        print_json(evaluation)

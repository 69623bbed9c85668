"""``unlockstep replay``: a run once more, from its folder alone, and whether it comes out with the same bits.

Decides which runs this command can repeat, what is compared at the end, and how the answer is given. What is repeated,
and in which order, is ``replay``'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unlockstep.core.words import counted

if TYPE_CHECKING:
    from unlockstep.cli.assembly import Text
    from unlockstep.cli.report_run import FoundRun
    from unlockstep.config import RunConfig
    from unlockstep.core.data_book import Grant
    from unlockstep.core.events import Event
    from unlockstep.learners.torch_performer import TorchPerformer
    from unlockstep.replay.script import Process, Script
    from unlockstep.replay.stage import Replayed
    from unlockstep.store.run_store import RunStore

PROGRESS_S = 2.0
"""Time between two lines about progress."""

OWN_LOOP = (
    "learner {name} trained in a loop of its own, which this command cannot make again: in Python, "
    "unlockstep.replay.stage.replay can, given what it trained"
)

NO_MODEL = (
    "{path} is of a simulation (unlockstep simulate): its learners trained no model that could be trained again; the "
    "same tape, settings and seed simulate the same run"
)


def replay(
    run: Annotated[Path, typer.Argument(help="A run folder, or the run.jsonl in it.", metavar="RUN")],
    until: Annotated[
        int | None, typer.Option(help="Stop after the commit of this round; default: the end of the log.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder the model is saved to as it comes out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Repeat a run from its log, and compare every bit. Exit code 1 if something comes out differently."""
    from unlockstep.cli.assembly import load_text, loading, require_torch
    from unlockstep.cli.exits import RunFailed
    from unlockstep.cli.output import log_to_stderr, print_json
    from unlockstep.cli.report_run import find_run, missing_end
    from unlockstep.core.errors import UsageError
    from unlockstep.replay.script import read_script
    from unlockstep.replay.stage import replay as repeat

    found = find_run(run)
    folder, header, events, config = found.folder, found.header, found.events, found.config
    if header.continues is not None:
        raise UsageError(
            f"{events.path} begins in the middle of the run; its beginning is with the syncer that led before: put "
            f"{header.continues.file} of that one beside it"
        )
    if until is None and (missing := missing_end(found)) is not None:
        raise UsageError(f"{missing}, or repeat with --until what is there")
    require_torch("replay")
    log = log_to_stderr("replay")
    script = read_script(events, until)
    if script.seeder is None or not script.commits:
        raise UsageError(f"{events.path} holds no commit{'' if until is None else f' up to round {until}'} to repeat")
    _require_round(script, until, events.path)
    _require_the_recipe(script, found)
    if until is None:
        _require_sound_store(folder)
    with loading(config):
        other = other_machine(script)
        if other:
            log.warning("%s", other)
        _check_out(out)
        text = load_text(config)
        began_s = time.monotonic()
        told = _Progress(script, log.info)
        done = repeat(script, config, lambda process: performer(config, text, process), on_step=told.step)
    seconds = time.monotonic() - began_s
    differences = [] if done.divergence is None else [done.divergence.sentence]
    if not differences and until is None:
        differences += list(_compare_files(folder, config, text, events, done))
    if out is not None:
        _save(config, text, done, out)
    if as_json:
        print_json(_record(done, script, differences, seconds))
    if differences:
        raise RunFailed(differences[0] + (f" ({other})" if other else ""))
    if not as_json:
        newest = max(done.kept.values(), key=lambda kept: kept.version).version
        print(
            f"identical: {counted(done.commits, 'commit')} of {counted(len(done.kept), 'fragment')} (up to version "
            f"{newest}), {counted(done.steps, 'inner step')} of "
            f"{counted(len(_followed(script)), 'process', 'processes')}, in {seconds:.0f} s"
        )


def _followed(script: Script) -> list[Process]:
    return [process for process in script.processes.values() if process.until.steps or process.seeds]


def _require_round(script: Script, until: int | None, path: Path) -> None:
    """Raises UsageError if there is no commit of the round that is to be the last."""
    from unlockstep.core.errors import UsageError
    from unlockstep.replay.script import Commit

    rounds = {chapter.event.round for chapter in script.chapters if isinstance(chapter, Commit)}
    if until is not None and until not in rounds:
        raise UsageError(
            f"--until is {until}, and {path} holds no commit of that round; name one that was committed, "
            f"from {min(rounds)} to {max(rounds)}"
        )


def _require_the_recipe(script: Script, found: FoundRun) -> None:
    """Raises UsageError if a learner that is needed was made by somebody else, or trained nothing."""
    from unlockstep.cli.assembly import RECIPE
    from unlockstep.core.errors import UsageError

    if found.simulated and not any(process.about for process in script.processes.values()):
        raise UsageError(NO_MODEL.format(path=found.events.path))
    for process in _followed(script):
        about = process.about
        shares = about.get("shard", ""), about.get("shards", "")
        if about.get("recipe") != RECIPE or not all(share.isdecimal() for share in shares) or int(shares[1]) < 1:
            raise UsageError(OWN_LOOP.format(name=process.key.learner))


def other_machine(script: Script) -> str:
    """A sentence if learners had another torch or another kind of CPU than this process: bits may depend on both."""
    from unlockstep.cli.assembly import about_recipe

    here = about_recipe(0, 1)
    for process in _followed(script):
        for what in ("torch", "cpu"):
            there = process.about.get(what, "")
            if there != here[what]:
                return (
                    f"{process.key.learner} trained with {what} {there}, and here is {here[what]}: equal bits are only "
                    "promised with equal ones"
                )
    return ""


def performer(config: RunConfig, text: Text, process: Process) -> TorchPerformer:
    """What a process of ``unlockstep learner`` trained, as it was when it began."""
    from unlockstep.cli.assembly import new_backend
    from unlockstep.core.course import CourseState
    from unlockstep.data import LeasedStream
    from unlockstep.learners.random_states import OwnGenerators
    from unlockstep.learners.torch_performer import TorchPerformer

    about = process.about
    backend = new_backend(config, int(about["shard"]), int(about["shards"]), text, is_alone=False)
    stream, generators = backend.stream, backend.generators
    assert isinstance(generators, OwnGenerators), "a backend that is not alone has its own"
    course = stream.course if isinstance(stream, LeasedStream) else None

    def feed(parts: Sequence[Grant]) -> None:
        assert course is not None, "a run that grants places has learners with leased streams"
        course.resume(CourseState(parts[0].at, grants=tuple(parts)))

    return TorchPerformer(backend, generators, feed)


class _Progress:
    """A line every few seconds, with the time it will still take."""

    def __init__(self, script: Script, say: Callable[..., object]) -> None:
        from unlockstep.cli.output import Every

        self._steps, self._commits = script.steps, script.commits
        self._say = say
        self._every = Every(PROGRESS_S)
        self._began_s = time.monotonic()

    def step(self, steps: int, commits: int) -> None:
        """So far it is."""
        if steps and self._every.due():
            left_s = (time.monotonic() - self._began_s) * max(0, self._steps - steps) / steps
            self._say(
                "step %d of %d, commit %d of %d, about %.0f s left", steps, self._steps, commits, self._commits, left_s
            )


# ------------------------------------------------------------------------------------------- the end


def _compare_files(
    folder: Path, config: RunConfig, text: Text, events: Iterable[Event], done: Replayed
) -> Iterable[str]:
    """What of the run's own files is not what came out. The log has every digest; the files have every byte."""
    with _readable(folder):
        yield from _compare_store(folder, done)
        yield from _compare_model(folder, config, text, events, done)


def _require_sound_store(folder: Path) -> None:
    """Raises UsageError if what was saved last is damaged: then it could not be compared at the end, hours later."""
    from unlockstep.cli.run_folder import STORE_FOLDER
    from unlockstep.core.errors import UsageError
    from unlockstep.store.fragment_files import Damaged

    if (store := _store(folder)) is None:
        return
    with _readable(folder):
        loaded = store.load()
    if loaded is None:  # A run that has a commit was saved when it had its first parameters.
        bad = f"{store.place.describe('records')} holds nothing of what was saved"
    elif loaded.damaged:
        bad = loaded.damaged[0]
    else:
        try:
            if loaded.record.fragments:
                store.sound_layout(loaded.record.layout_digest)
            return
        except Damaged as error:
            bad = str(error)
    raise UsageError(
        f"{bad}; put a copy of it back, or move {folder / STORE_FOLDER} away to compare with the log alone"
    )


def _store(folder: Path) -> RunStore | None:
    """Of the run; None if it was saved elsewhere, or somebody has moved it away."""
    from unlockstep.cli.run_folder import STORE_FOLDER
    from unlockstep.store.place import open_place
    from unlockstep.store.run_store import RunStore

    place = folder / STORE_FOLDER
    with _readable(folder):
        return RunStore(open_place(place)) if place.exists() else None


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turns what keeps a file of the run from being read into a sentence; that of a full disk is a temporary file's."""
    from unlockstep.core.errors import UsageError
    from unlockstep.files import DISK_FULL

    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        raise UsageError(
            f"{error.filename or folder} cannot be read ({error.strerror}); make it readable, or move it away to "
            "compare with the log alone"
        ) from None


def _compare_store(folder: Path, done: Replayed) -> Iterable[str]:
    import numpy as np

    store = _store(folder)
    loaded = None if store is None else store.load()
    yield from () if loaded is None else loaded.damaged  # What it holds of the last versions is not what was saved.
    for file in () if loaded is None else loaded.record.fragments:
        kept = done.kept.get(file.fragment)
        if kept is None or kept.version != file.version or loaded is None:
            continue  # The run goes on, or its syncer died before it had saved what the log ends with.
        values, state = loaded.arrays[file.fragment]
        same = np.array_equal(values.view(np.uint32), kept.values.view(np.uint32))
        if not (same and state.tobytes() == kept.outer_state.tobytes()):
            yield f"fragment {file.fragment} in the store is not what version {file.version} of it comes out as"


def _compare_model(
    folder: Path, config: RunConfig, text: Text, events: Iterable[Event], done: Replayed
) -> Iterable[str]:
    """The evaluator's copy, if it is of the last versions."""
    import tempfile

    from unlockstep.cli.run_folder import MODEL_FOLDER
    from unlockstep.core.events import EvaluationReported

    model = folder / MODEL_FOLDER / "model.safetensors"
    scored = [event.versions for event in events if isinstance(event, EvaluationReported)]
    newest = tuple(done.kept[fragment].version for fragment in sorted(done.kept))
    if not model.is_file() or scored[-1:] != [newest]:
        return
    with tempfile.TemporaryDirectory() as place:
        _save(config, text, done, Path(place) / MODEL_FOLDER)
        if (Path(place) / MODEL_FOLDER / "model.safetensors").read_bytes() != model.read_bytes():
            yield f"{model} is not the model that comes out"


def _check_out(out: Path | None) -> None:
    """Raises UsageError for a place that is a run's, or holds something, or cannot be written."""
    from unlockstep.cli.run_folder import run_around
    from unlockstep.core.errors import UsageError
    from unlockstep.models import check_can_save

    if out is None:
        return
    if (folder := run_around(out)) is not None:
        raise UsageError(f"--out {out} is in {folder}, which is a run's; choose a folder outside of it")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"--out {out} is not empty, and nothing is overwritten; choose a new folder")
    check_can_save(out)


def _save(config: RunConfig, text: Text, done: Replayed, out: Path) -> None:
    """The global model as learners get it, written whole or not at all."""
    from unlockstep.cli.assembly import new_model
    from unlockstep.core.codec import fragment_codecs
    from unlockstep.learners.torch_store import TorchStore
    from unlockstep.models import save_model

    if done.layout is None or not done.kept:
        return
    model = new_model(config, text)
    store = TorchStore(model)
    store.bind(done.layout)
    codecs = fragment_codecs(done.layout, config.codec.download)
    for fragment, kept in done.kept.items():
        store.write_fragment(fragment, codecs[fragment].decode(codecs[fragment].encode(kept.values)))
    save_model(model, out)


def _record(done: Replayed, script: Script, differences: list[str], seconds: float) -> dict[str, Any]:
    import msgspec

    return {
        "identical": not differences,
        "divergence": None if done.divergence is None else msgspec.to_builtins(done.divergence),
        "differences": differences,
        "commits": done.commits,
        "commits_total": script.commits,
        "steps": done.steps,
        "processes": len(_followed(script)),
        "versions": [done.kept[fragment].version for fragment in sorted(done.kept)],
        "digests": [done.kept[fragment].digest for fragment in sorted(done.kept)],
        "seconds": round(seconds, 3),
    }

"""``unlockstep simulate swarm``: thousands of stories of what can go wrong, played through the production core.

Decides what is played where, what is said of it and the exit code: each verdict that is a failure has its own
(``exits``). What a story is and how it is judged is ``sim.story`` and ``sim.swarm``.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.cli.output import Every, print_json, wide_console
from unlockstep.core.words import counted

if TYPE_CHECKING:
    from rich.console import Console

    from unlockstep.core.events import Event
    from unlockstep.sim.cargo import Freight
    from unlockstep.sim.story import Story
    from unlockstep.sim.swarm import Outcome
    from unlockstep.sim.syncer_host import MakeCore

SEEDS_PER_JOB_MIN = 50
"""Fewer are not worth a process of their own."""

SEEDS_AT_ONCE = 8
"""Given to a process together."""

SEED_MAX = 10**15
"""Any seed is below, so that numbers made of it are ordinary ones."""

CANARY_SEEDS = 200
"""Within so many seeds every canary must be caught."""

HOPELESS_SAID = (
    "hopeless: nothing broke, but too few sound learners were left to demand progress of; only safety was checked"
)


def swarm(
    seeds: Annotated[int | None, typer.Option(help="How many stories. [default: 1000; for a canary 200]")] = None,
    first: Annotated[int, typer.Option(help="Seed of the first one.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes. [default: one for each core]")] = None,
    seed: Annotated[int | None, typer.Option(help="Play the story of this seed alone.")] = None,
    story: Annotated[
        Path | None,
        typer.Option(help="Play the story in this file alone: a tape with a table [story], as --out has them."),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="With --seed or --story: write run.jsonl and config.toml here, for unlockstep report. New or empty."
        ),
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Break the core on purpose, in the way of this name or, one after the other, in all: the swarm must "
            "catch it. A wrong name lists those there are.",
        ),
    ] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Play all, even if one fails.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the stories that fail, made small: seed-N.toml.")] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> int:
    """Hunt for faults in the protocol. Runs seeded stories of failures, each checked for safety and for progress.

    A story is passed; hopeless, if nothing broke but too few sound learners were left to demand progress of; crash,
    safety or liveness, if it fails; or out_of_resources, if it took too long to tell. Exit code: 0 if none fails, else
    of the first failure: crash 10, safety 11, liveness 12; out_of_resources 13 if nothing is worse.
    """
    from unlockstep.core.errors import UsageError
    from unlockstep.sim.canaries import CANARIES
    from unlockstep.sim.canaries import canary as find

    console = wide_console(stderr=as_json)
    for name, value in (("--seed", seed), ("--first", first), ("--seeds", seeds)):
        if value is not None and not 0 <= value <= SEED_MAX:
            raise UsageError(f"{name} is {value}; it must be from 0 to {SEED_MAX}")
    if seed is not None or story is not None:
        if seed is not None and story is not None:
            raise UsageError(f"--seed {seed} and --story {story} are two stories; give one of them")
        name = f"seed {seed}" if story is None else f"story {story}"
        for option, given in (("--seeds", seeds is not None), ("--jobs", jobs is not None), ("--first", first != 0)):
            if given:
                raise UsageError(f"{option} is for many stories, but {name} is one; leave it out")
        if canary == "all":
            raise UsageError(f"--canary all is for many stories, but {name} is one; name a canary")
        return _replay(name, _told(seed, story), canary, run_dir, console, as_json)
    if run_dir is not None:
        raise UsageError(f"--run-dir {run_dir} is given without a story; add --seed or --story")
    if seeds is not None and seeds < 1:
        raise UsageError(f"--seeds is {seeds}; it must be at least 1")
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs is {jobs}; it must be at least 1")
    if canary is not None:
        names = tuple(CANARIES) if canary == "all" else (canary,)
        for name in names:
            find(name)
        return _try_canaries(names, range(first, first + (seeds or CANARY_SEEDS)), console, as_json)
    return _hunt(range(first, first + (seeds or 1000)), jobs or _cores(), keep_going, out, console, as_json)


def _told(seed: int | None, story: Path | None) -> Story:
    from unlockstep.sim import story as stories

    return stories.read(story) if story is not None else stories.draw(seed or 0)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Of the first failure; of the first one that cannot be told, if there is none."""
    from unlockstep.cli import exits
    from unlockstep.sim.swarm import Verdict

    codes = {Verdict.CRASH: exits.CRASH, Verdict.SAFETY: exits.SAFETY, Verdict.LIVENESS: exits.LIVENESS}
    failed = next((codes[outcome.verdict] for outcome in outcomes if outcome.failed), None)
    if failed is not None:
        return failed
    undecided = any(outcome.verdict is Verdict.OUT_OF_RESOURCES for outcome in outcomes)
    return exits.OUT_OF_RESOURCES if undecided else exits.DONE


def _said(outcome: Outcome, name: str = "") -> str:
    text = f"{name or f'seed {outcome.seed}'}: {outcome.verdict.value}"
    if outcome.rule:
        text += f", rule {outcome.rule}, at {outcome.at_ns / 1e9:.6g} s"
    return f"{text}: {outcome.sentence}" if outcome.sentence else text


# ------------------------------------------------------------------------------------------------ one story


def _replay(name: str, story: Story, canary: str | None, run_dir: Path | None, console: Console, as_json: bool) -> int:
    import msgspec

    from unlockstep.cli.run_folder import new_run_log
    from unlockstep.cli.simulated_run import refuse_used, report_line
    from unlockstep.sim.swarm import play

    if run_dir is not None:
        refuse_used(run_dir)
    make_core, freight = _parts(canary)
    events: list[Event] = []
    outcome = play(story, make_core=make_core, freight=freight, record=events.extend)
    if run_dir is not None:
        with new_run_log(run_dir, story.config, simulated=True) as log:
            log.write(events)
    if as_json:
        folder = None if run_dir is None else str(run_dir)
        print_json({"story": name, **msgspec.to_builtins(outcome), "run_folder": folder})
    else:
        counts = f"{counted(outcome.happenings, 'happening')}, {counted(outcome.commits, 'commit')}"
        pointer = () if run_dir is None else (report_line(run_dir),)
        for line in (_said(outcome, name), counts, *pointer):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return exit_code([outcome])


def _parts(canary: str | None) -> tuple[MakeCore, Freight | None]:
    """What is to be played with: the production core, or one that is broken."""
    from unlockstep.sim.canaries import canary as find
    from unlockstep.sim.syncer_host import production_core

    if canary is None:
        return production_core, None
    broken = find(canary)
    return broken.make_core, broken.freight


# ------------------------------------------------------------------------------------------------ canaries


def _try_canaries(names: Sequence[str], seeds: range, console: Console, as_json: bool) -> int:
    from unlockstep.cli import exits
    from unlockstep.sim.canaries import CANARIES

    caught: dict[str, Outcome | None] = {}
    for name in names:
        caught[name] = outcome = catch(name, seeds)
        if as_json:
            continue
        about = f"canary {name} ({CANARIES[name].about})"
        if outcome is None:
            console.print(
                f"{about} is NOT caught within {counted(len(seeds), 'seed')}: the swarm is blind to it",
                markup=False,
                soft_wrap=True,
            )
        else:
            within = outcome.seed - seeds.start + 1
            console.print(
                f"{about} is caught, as it should be, by story {within}: {_said(outcome)}", markup=False, soft_wrap=True
            )
    if as_json:
        print_json({name: None if outcome is None else outcome for name, outcome in caught.items()})
    return exits.DONE if all(caught.values()) else exits.FAILED


def catch(name: str, seeds: range) -> Outcome | None:
    """The first of these stories that shows a canary to be broken."""
    return next((outcome for outcome in map(functools.partial(_play, name), seeds) if outcome.failed), None)


def _play(canary: str | None, seed: int) -> Outcome:
    from unlockstep.sim import story as stories
    from unlockstep.sim.swarm import play

    make_core, freight = _parts(canary)
    return play(stories.draw(seed), make_core=make_core, freight=freight)


# ------------------------------------------------------------------------------------------------ many stories


def _hunt(seeds: range, jobs: int, keep_going: bool, out: Path, console: Console, as_json: bool) -> int:
    from unlockstep.cli import exits

    began_s, interrupted = time.monotonic(), False
    outcomes: list[Outcome] = []
    try:
        with _outcomes(seeds, jobs) as played, _Progress(len(seeds), wide_console(stderr=True)) as progress:
            for outcome in played:
                outcomes.append(outcome)
                progress.advance(outcome)
                if outcome.failed and not keep_going:
                    break
    except KeyboardInterrupt:
        interrupted = True
    lasted_s = time.monotonic() - began_s
    failed = [outcome for outcome in outcomes if outcome.failed]
    files = {} if interrupted else {outcome.seed: save(outcome, out, console) for outcome in failed}
    verdicts = Counter(outcome.verdict.value for outcome in outcomes)
    if as_json:
        failures = [{"outcome": outcome, "story": files.get(outcome.seed)} for outcome in failed]
        print_json(
            {
                "first": seeds.start,
                "seeds": len(seeds),
                "played": len(outcomes),
                "verdicts": verdicts,
                "commits": sum(outcome.commits for outcome in outcomes),
                "failures": failures,
                "seconds": round(lasted_s, 3),
            }
        )
    else:
        _sum_up(seeds, outcomes, verdicts, lasted_s, interrupted, console)
    return exits.INTERRUPTED if interrupted else exit_code(outcomes)


def _sum_up(
    seeds: range,
    outcomes: Sequence[Outcome],
    verdicts: Counter[str],
    lasted_s: float,
    interrupted: bool,
    console: Console,
) -> None:
    from unlockstep.sim.swarm import Verdict

    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    each_ms = 1000 * lasted_s / max(1, len(outcomes))
    commits = sum(outcome.commits for outcome in outcomes)
    console.print(
        f"{len(outcomes)} of {len(seeds)} stories played: {counts or 'none'}; "
        f"{counted(commits, 'commit')} in {lasted_s:.1f} s, {each_ms:.0f} ms a story",
        markup=False,
        soft_wrap=True,
    )
    if any(outcome.verdict is Verdict.HOPELESS for outcome in outcomes):
        console.print(HOPELESS_SAID, markup=False, soft_wrap=True)
    if interrupted:
        console.print(f"interrupted; go on with --first {seeds.start + len(outcomes)}", markup=False, soft_wrap=True)


@contextmanager
def _outcomes(seeds: range, jobs: int) -> Iterator[Iterator[Outcome]]:
    """What becomes of the stories of these seeds, in their order."""
    jobs = min(jobs, max(1, len(seeds) // SEEDS_PER_JOB_MIN))
    play = functools.partial(_play, None)
    if jobs == 1:
        yield map(play, seeds)
        return
    before = signal.signal(signal.SIGTERM, _exit_in_order)
    try:
        with closing(elsewhere(play, seeds, jobs)) as played:
            yield played
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit_in_order(number: int, frame: object) -> None:
    """So that no process of ours is left behind, or complains."""
    from unlockstep.cli import exits

    raise SystemExit(exits.SIGNALLED + number)


def elsewhere(play: Callable[[int], Outcome], seeds: range, jobs: int) -> Generator[Outcome, None, None]:
    """``map(play, seeds)`` in so many processes, a few seeds ahead. When it is closed, they are ended.

    Raises:
        RunFailed: one of the processes is gone, killed by somebody.
    """
    from unlockstep.cli.exits import RunFailed

    strangers = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin_process)
    waiting: deque[Future[list[Outcome]]] = deque()
    number = 0

    def in_order() -> Iterator[list[Outcome]]:
        for start in range(0, len(seeds), SEEDS_AT_ONCE):
            waiting.append(pool.submit(_play_some, play, seeds[start : start + SEEDS_AT_ONCE]))
            if len(waiting) > 2 * jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        for some in in_order():
            yield from some
            number += len(some)
    except BrokenProcessPool:
        raise RunFailed(
            f"a process that played stories is gone, killed by somebody or for want of memory, after {number} of "
            f"{len(seeds)} stories; go on with --first {seeds.start + number}, or fewer --jobs"
        ) from None
    finally:
        for child in multiprocessing.active_children():
            if child not in strangers:
                child.terminate()
        pool.shutdown(cancel_futures=True)


def _begin_process() -> None:
    """Ctrl-C is for the process that has started this one; without that one, nobody waits for what is played here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "begun by another process"
    parent.join()
    os._exit(1)


def _play_some(play: Callable[[int], Outcome], seeds: range) -> list[Outcome]:
    return [play(seed) for seed in seeds]


def save(outcome: Outcome, out: Path, console: Console, canary: str | None = None) -> str:
    """Say how the story of a seed fails, make it small, and write it down.

    Returns:
        The file; nothing if it cannot be written.
    """
    from unlockstep.files import whole
    from unlockstep.sim import story as stories
    from unlockstep.sim.shrink import PLAYS_MAX, shrink
    from unlockstep.sim.swarm import play

    story = stories.draw(outcome.seed)
    make_core, freight = _parts(canary)
    again = functools.partial(play, make_core=make_core, freight=freight)
    console.print(_said(outcome), markup=False, soft_wrap=True)
    console.print(f"replay: unlockstep simulate swarm --seed {outcome.seed}", markup=False, soft_wrap=True)
    with _Progress(PLAYS_MAX, console, "shrinking") as progress:
        small, found = shrink(story, outcome, again, watch=lambda plays, smallest: progress.advance(None))
    path = out / f"seed-{outcome.seed}.toml"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial:
            partial.write_text(stories.dumps(small), encoding="utf-8")
    except OSError as error:
        console.print(
            f"{path} cannot be written ({error}); choose another folder with --out", markup=False, soft_wrap=True
        )
        return ""
    was, now = len(story.tape.actions), len(small.tape.actions)
    console.print(
        f"shrunk to {now} of {was} actions, {len(small.step_ns)} of {len(story.step_ns)} learners: "
        f"unlockstep simulate swarm --story {path}",
        markup=False,
        soft_wrap=True,
    )
    console.print(_said(found), markup=False, soft_wrap=True)
    return str(path)


class _Progress:
    """A bar with the time left on a terminal; elsewhere a line now and then."""

    def __init__(self, total: int, console: Console, what: str = "playing") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[found]}"),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(what, total=total, found="")
        self._what = what
        self._console = console
        self._total = total
        self._done = 0
        self._failed = 0
        self._began_s = time.monotonic()
        self._every = Every()

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, outcome: Outcome | None) -> None:
        self._done += 1
        self._failed += outcome is not None and outcome.failed
        found = f"{self._failed} failed" if self._failed else ""
        self._bar.update(self._task, advance=1, found=found)
        if not self._console.is_terminal and self._every.due():
            left_s = (time.monotonic() - self._began_s) / self._done * (self._total - self._done)
            text = f"{self._what}: {self._done} of {self._total}, {left_s:.0f} s left {found}".rstrip()
            self._console.print(text, markup=False, soft_wrap=True)

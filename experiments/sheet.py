"""What the experiments have in common outside the trials: options, progress, the table, and the file of results.

Decides how results are shown, and when they are kept (``result_file``): after every trial, so that Ctrl-C (exit code
130) loses one at most.
"""

from __future__ import annotations

import argparse
import math
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from result_file import RingScore, Score, Sheet, Trial, read, write
from trial import run

FOLDER = Path(__file__).parent
SHOW_INTERVAL_S = 1.0
LINE_INTERVAL_S = 10.0
"""Where standard error is no terminal."""


def conduct(experiment: str, about: str | None, trials: Callable[[bool], Sequence[Trial]]) -> None:
    """Parse the command line, carry out the trials one after the other, print their table, keep the results.

    Args:
        experiment: name of the result file.
        about: what ``--help`` says: the docstring of the experiment.
        trials: what to try; True asks for a version that takes seconds and shows only that everything works.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few steps of each trial; keeps no results")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="seeds of parameters and data (default: 0)")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the trials whose name contains this")
    parser.add_argument("--add", action="store_true", help="keep what is in the result file, and only add to it")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    arguments = parser.parse_args()
    chosen = [trial for trial in trials(arguments.quick) if arguments.only in trial.name]
    if arguments.quick:  # Evaluations would take most of the time.
        chosen = [msgspec.structs.replace(trial, curve_points=1) for trial in chosen]
    is_kept = not arguments.quick and (arguments.add or not arguments.only)
    file = FOLDER / "results" / f"{experiment}.json" if is_kept else None
    torch.set_num_threads(1)
    commit = _commit()
    scores = _kept(file, commit) if arguments.add and file is not None else []
    there = {(score.trial.name, score.seed) for score in scores}
    wanted = [(trial, seed) for seed in arguments.seed for trial in chosen if (trial.name, seed) not in there]
    is_stopped = False
    try:
        for number, (trial, seed) in enumerate(wanted, start=1):
            place = f"{number}/{len(wanted)} {trial.name}, seed {seed}"
            shown = _Progress(place, trial.tokens)
            scores.append(run(trial, seed, shown))
            shown.ended(scores[-1])
            if file is not None:
                _write(file, experiment, commit, scores)
    except KeyboardInterrupt:
        is_stopped = True
        print("\nstopped; what is finished is kept", file=sys.stderr)
    if arguments.json:
        print(msgspec.json.encode(scores).decode())
    else:
        print(table(scores))
        if len({score.seed for score in scores}) > 1:
            print(f"\n{means(scores)}")
    if is_stopped:  # Whoever waits for all of them is not to go on.
        sys.exit(128 + signal.SIGINT)


def table(scores: Sequence[Score]) -> str:
    """One line per score, as Markdown."""
    head = (
        "| trial | seed | tokens | steps | nats/byte | against the first | time against it | ideal | participants | "
        "staleness | dropped, lost | seconds |"
    )
    lines = [head, "|---" * (head.count("|") - 1) + "|"]
    for score in scores:
        first = next(other for other in scores if other.seed == score.seed)
        against = f"{100 * (score.loss / first.loss - 1):+.1f} %"
        lines.append(
            f"| {score.trial.name} | {score.seed} | {score.tokens:,} | {score.steps} | {score.loss:.3f} | {against} | "
            f"{_how_it_went(score.ring, first.ring)} | {score.seconds:.0f} |"
        )
    return "\n".join(lines)


def means(scores: Sequence[Score]) -> str:
    """One line per trial, over its seeds: each loss against that of the first trial under the same seed."""
    lines = ["| trial | seeds | nats/byte | against the first, mean and standard error |", "|---|---|---|---|"]
    first = {score.seed: score.loss for score in scores if score.trial.name == scores[0].trial.name}
    for name in dict.fromkeys(score.trial.name for score in scores):
        mine = [score for score in scores if score.trial.name == name and score.seed in first]
        changes = [100 * (score.loss / first[score.seed] - 1) for score in mine]
        spread = statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else 0.0
        loss = statistics.fmean(score.loss for score in mine)
        lines.append(f"| {name} | {len(mine)} | {loss:.3f} | {statistics.fmean(changes):+.2f} ± {spread:.2f} % |")
    return "\n".join(lines)


def _kept(file: Path, commit: str) -> list[Score]:
    """What earlier runs of the same code have left; those of other code do not stand beside it."""
    found = read(file) if file.exists() else None
    return list(found.scores) if found is not None and found.commit == commit else []


def _how_it_went(ring: RingScore | None, first: RingScore | None) -> str:
    if ring is None:
        return "| | | | "
    times = "|" if first is None else f"{ring.time_s / first.time_s:.3f} | {ring.ideal_s / first.ideal_s:.3f}"
    gone = 100 * (ring.ledger.dropped + ring.ledger.lost) / ring.ledger.trained
    return f"{times} | {ring.participants:.2f} of {ring.live:.2f} | {ring.staleness:.2f} | {gone:.2f} %"


def _write(file: Path, experiment: str, commit: str, scores: Sequence[Score]) -> None:
    sheet = Sheet(
        command=" ".join(["python", f"experiments/{experiment}.py", *sys.argv[1:]]),
        commit=commit,
        python=platform.python_version(),
        torch=str(torch.__version__),
        scores=tuple(scores),
    )
    write(file, sheet)


def _commit() -> str:
    """The commit whose code was loaded, with a mark if the tree had changes of its own, but for results."""
    described = _git("describe", "--always", "--abbrev=12") or "unknown"
    return described + ("-dirty" if _git("status", "--porcelain", "--", ":/", ":(exclude)results") else "")


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", "-C", str(FOLDER), *arguments], capture_output=True, text=True, check=False)
    return found.stdout.strip()


class _Progress:
    """On standard error, while a trial runs: on a terminal one line, written anew each time; else a line now and then,
    and one at the end."""

    def __init__(self, place: str, tokens: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._place, self._tokens, self._now_s = place, tokens, now_s
        self._is_terminal = sys.stderr.isatty()
        self._interval_s = SHOW_INTERVAL_S if self._is_terminal else LINE_INTERVAL_S
        self._started_s = now_s()
        self._shown_s = 0.0 if self._is_terminal else self._started_s

    def __call__(self, tokens: int, loss: float | None) -> None:
        now_s = self._now_s()
        if now_s - self._shown_s < self._interval_s:
            return
        self._shown_s = now_s
        left_s = (now_s - self._started_s) * max(0, self._tokens - tokens) / max(1, tokens)
        so_far = "" if loss is None else f", {loss:.3f} nats/byte"
        # Learners end the step they are in: a ring trains more than it is asked for.
        self._say(f"{self._place}: {min(1.0, tokens / self._tokens):4.0%}, {left_s:.0f} s left{so_far}")

    def ended(self, score: Score) -> None:
        """The trial is over."""
        self._say(f"{self._place}: 100%, {score.loss:.3f} nats/byte")
        if self._is_terminal:
            print(file=sys.stderr)

    def _say(self, line: str) -> None:
        print(f"\r{line:<100}" if self._is_terminal else line, end="" if self._is_terminal else "\n", file=sys.stderr,
              flush=True)  # fmt: skip

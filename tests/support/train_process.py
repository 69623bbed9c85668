"""``unlockstep train`` as a real process on a small problem, and what a test needs to break it.

Decides how a test waits: for a line of the output or the end of a process, never for time to pass.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from unlockstep import runlog
from unlockstep.core.events import Event

TESTS = Path(__file__).parents[1]

SMALL = (
    *("--set", "data.sequence_length=32", "--set", "data.validation_share=0.2"),
    *("--set", "inner.batch_size=2", "--set", "inner.warmup_steps=2"),
    *("--set", "evaluation.interval_s=1", "--set", "evaluation.batches=1", "--set", "evaluation.batch_size=2"),
    *("--set", "protocol.fragments=4", "--set", "protocol.interval_steps=4"),
)
"""Settings that make a step a matter of milliseconds."""

TINY = ("--model", "support.tiny_lm:tiny_lm")
"""A model that is built in a moment."""


class Train:
    """A run in ``folder``, as a context that leaves no process behind.

    Args:
        folder: gets the corpus, and the run in ``run``.
        arguments: of ``unlockstep train``, besides ``SMALL``.
        resumes: go on with the run that is there, without ``SMALL``.
    """

    def __init__(self, folder: Path, *arguments: str, resumes: bool = False) -> None:
        self.run = folder / "run"
        corpus = folder / "corpus.txt"
        if not resumes:  # Another process may read it.
            corpus.write_text("".join(f"{number} times {number} is {number * number}.\n" for number in range(2000)))
        settings = ("--resume", str(self.run)) if resumes else ("--data", str(corpus), "--out", str(self.run), *SMALL)
        self.process = subprocess.Popen(
            (sys.executable, "-m", "unlockstep", "train", *settings, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
        )
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            for pid in self.pids().values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()

    def until(self, *texts: str) -> None:
        """Read the output until each of these texts has been in some line."""
        assert self.process.stdout is not None
        waited = set(texts)
        while waited:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"the run ended without saying {waited}:\n{self.output}{self.end()}")
            self.output += line
            waited -= {text for text in waited if text in line}

    @property
    def url(self) -> str:
        """Of its syncer, once it has said it."""
        return self.output.partition("the syncer listens at ")[2].split()[0]

    def pids(self) -> dict[str, int]:
        """The processes of the run, by name."""
        return msgspec.json.decode((self.run / "processes.json").read_bytes(), type=dict[str, int])

    def end(self, timeout_s: float = 60.0) -> str:
        """Wait for the end; returns what was written to stderr."""
        output, errors = self.process.communicate(timeout=timeout_s)
        self.output += output
        return errors

    def events(self) -> list[Event]:
        """The run log as it is."""
        return list(runlog.read(self.run / "run.jsonl")[1])


def is_gone(pid: int, timeout_s: float = 0.0) -> bool:
    """Whether a process that somebody else reaps has ended, or does so in this time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)

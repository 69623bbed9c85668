"""The command lines of a run's processes. Decides arguments; not who is started when (``local``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


class CommandLines:
    """Of one run.

    Args:
        program: the command line of ``unlockstep``, without a subcommand.
        folder: of the run.
    """

    def __init__(self, program: Sequence[str], folder: Path) -> None:
        self._program = tuple(program)
        self._folder = folder

    def syncer(self, port: str) -> tuple[str, ...]:
        """One on loopback; port 0: any that is free."""
        config = ("--config", str(self._folder / "config.toml"))
        listen = ("--listen", f"127.0.0.1:{port}")
        return (*self._program, "syncer", *config, *listen, "--run-dir", str(self._folder), *self._tie())

    def evaluator(self, url: str) -> tuple[str, ...]:
        """One that writes the model into the folder."""
        out = ("--out", str(self._folder / "model"))
        return (*self._program, "evaluator", "--syncer", url, "--trust-syncer", *out, *self._tie())

    def learner(
        self, url: str, name: str, share: tuple[int, int], pace: float = 1, options: Sequence[str] = ("--trust-syncer",)
    ) -> tuple[str, ...]:
        """One with a checkpoint in the folder. Who started all processes wrote the settings, too."""
        shard = ("--shard", str(share[0]), "--shards", str(share[1]))
        checkpoint = ("--checkpoint", str(self._folder / "learners" / f"{name}.safetensors"))
        pause = ("--slowdown", str(pace)) if pace != 1 else ()
        start = (*self._program, "learner", "--syncer", url, *options, "--name", name)
        return (*start, *shard, *checkpoint, *pause, *self._tie())

    def _tie(self) -> tuple[str, ...]:
        """A child that finds its parent gone ends itself: even if this process is killed nobody stays behind."""
        return ("--parent-pid", str(os.getpid()))

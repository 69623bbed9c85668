"""The ``unlockstep`` command. Every module here imports what it needs late, so that ``--help`` comes at once."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script: runs a command, and turns its outcome into an exit code (``cli.exits``)."""
    from unlockstep.cli.app import run

    raise SystemExit(run())

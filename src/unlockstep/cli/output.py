"""How the commands of one process print: log lines on stderr, results on stdout.

Decides the form of a line, and how often one comes. Does not decide what is worth a line.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unlockstep.core.foreign_text import printable

if TYPE_CHECKING:
    from rich.console import Console

Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the live view, also on a terminal.")]

WIDTH_WITHOUT_TERMINAL = 120

LOG_EVERY_S = 10.0
"""Time between two lines about progress."""


def log_to_stderr(name: str) -> logging.Logger:
    """The logger of a command. Its lines, and warnings of the library, go to stderr as ``time name: text``."""
    form = f"%(asctime)s {name}: %(message)s"
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(_Printable(form, datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[shown], force=True)
    logger = logging.getLogger("unlockstep.cli")
    for told in ("unlockstep.cli", "unlockstep.net.syncer.service", "unlockstep.integrations.learner_checkpoint"):
        logging.getLogger(told).setLevel(logging.INFO)
    return logger


class _Printable(logging.Formatter):
    """A message is one line, whoever has written parts of it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def print_json(record: Any) -> None:
    """One record as one line of JSON on stdout. A number that is not finite becomes null."""
    import msgspec

    print(msgspec.json.encode(record).decode(), flush=True)


class Every:
    """Says when it is time for the next line."""

    def __init__(self, interval_s: float = LOG_EVERY_S) -> None:
        self._interval_s = interval_s
        self._next_s = time.monotonic() + interval_s

    def due(self) -> bool:
        """True once per interval."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True


def wide_console(stderr: bool = False, markup: bool = True) -> Console:
    """A console as wide as the terminal; where there is none, wide enough for every table. Without ``markup`` a text is
    shown as it is, whatever it has in brackets."""
    from rich.console import Console

    console = Console(stderr=stderr, markup=markup)
    return console if console.is_terminal else Console(stderr=stderr, markup=markup, width=WIDTH_WITHOUT_TERMINAL)

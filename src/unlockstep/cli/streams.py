"""Standard output and standard error of a command that outlasts whoever reads them.

Decides what becomes of a command when nobody takes what it prints: a pipe whose reader has left, a full disk, a
terminal that is gone. Does not decide what is printed.

A write that fails is missed, and the command goes on to its own end. A full disk is tried again with every write, since
it may have room again; anything else is given up. Standard error is only for whoever watches. So is standard output
where a run is watched; elsewhere it is the result, and one that is lost makes the command fail when it is through,
unless it was the reader who wanted no more of it (``| head``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from unlockstep.files import DISK_FULL


class Stream:
    """A stream to which a write never fails.

    Args:
        inner: the stream itself.
        is_result: what is printed there is what the command is for.
        told: gets a sentence the first time that a write is missed; None: nobody does.
    """

    def __init__(self, inner: TextIO, is_result: bool, told: TextIO | None) -> None:
        self._inner, self._told = inner, told
        self.is_result = is_result
        """False: it is only for whoever watches."""
        self.is_lost = False
        """A part of the result is."""
        self._has_missed = False
        with suppress(AttributeError):  # Of no encoding.
            if inner.errors == "strict":  # A name that cannot be printed is no reason to end a run, either.
                cast(Any, inner).reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, text: str) -> int:
        """Write; returns how many characters that are."""
        try:
            if not self._inner.closed:  # Else a log outlives the command that it was set up by.
                self._inner.write(text)
        except OSError as error:
            self._miss(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all of them."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what has been held back so far."""
        try:
            if not self._inner.closed:
                self._inner.flush()
        except OSError as error:
            self._miss(error)

    def end(self) -> None:
        """Nothing more is to be printed. What is still held back is written now or never: not when Python ends, which
        would have an exit code of its own for it."""
        self.flush()
        if self._has_missed:
            self._give_up()

    def _miss(self, error: OSError) -> None:
        if error.errno not in DISK_FULL:
            self._give_up()
        if self._has_missed:
            return
        self._has_missed = True
        reason = error.strerror or str(error)
        if not self.is_result:
            self._tell(f"standard output takes no more ({reason}); the command goes on without it")
        elif not isinstance(error, BrokenPipeError):
            self.is_lost = True
            self._tell(f"error: standard output cannot be written ({reason}); send it elsewhere, or make room for it")

    def _tell(self, sentence: str) -> None:
        if self._told is not None:
            print(sentence, file=self._told, flush=True)

    def _give_up(self) -> None:
        with suppress(OSError, ValueError):  # ValueError: it is no file of the operating system.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._inner.fileno())
            os.close(nowhere)


@contextmanager
def outlasting_streams() -> Iterator[Stream | None]:
    """Both standard streams while the block runs; yields standard output, None if there is none."""
    before = sys.stdout, sys.stderr
    errors = None if before[1] is None else Stream(before[1], is_result=False, told=None)
    output = None if before[0] is None else Stream(before[0], is_result=True, told=cast(TextIO, errors))
    sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, errors)
    try:
        yield output
    finally:
        for stream in (output, errors):
            if stream is not None:
                stream.end()
        sys.stdout, sys.stderr = before

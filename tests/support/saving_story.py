"""A process that writes one checkpoint after the other, to be killed.

Decides what is in them: every element of the n-th is n, so that a mixture of two would show.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from unlockstep.learners import checkpoint
from unlockstep.learners.backend import State, TensorBits

ELEMENTS = 1 << 19


def state(number: int) -> State:
    parts = [np.full(ELEMENTS, number, "<f4") for _ in range(4)]
    bits = [TensorBits("float32", values.shape, values.view(np.uint8)) for values in parts]
    return State({f"part.{part}": bits[part] for part in range(4)}, {"number": number})


def number_of(state: State) -> int:
    """Which checkpoint it is; fails if it is a mixture."""
    number = state.facts["number"]
    assert sorted(state.tensors) == [f"part.{part}" for part in range(4)]
    assert all((bits.data.view("<f4") == number).all() for bits in state.tensors.values())
    return number


def save_for_ever(path: Path, first: int, said: Connection) -> None:
    """Numbers from ``first`` on; each is said once it is saved."""
    while True:
        checkpoint.save(path, state(first))
        said.send(first)
        first += 1


def die_at(path: Path, number: int, call: int) -> None:
    """Save this number, and be killed before the ``call``-th thing that changes the disk, or after the last."""
    count = 0

    def dying(do: Callable[..., Any]) -> Callable[..., Any]:
        def then(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            if count == call:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return do(*arguments, **named)

        return then

    checkpoint.save_file = dying(checkpoint.save_file)  # type: ignore[assignment]
    os.fsync = dying(os.fsync)
    os.replace = dying(os.replace)
    checkpoint.save(path, state(number))
    os.kill(os.getpid(), signal.SIGKILL)

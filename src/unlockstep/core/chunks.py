"""Large arrays in pieces that fit a core's cache, spread over threads without changing a bit of the result.

Chained whole-array numpy calls read and write main memory at every operator; on a chunk, all but the first find it in
cache. Chunks are dealt to threads in spans, large enough that starting one costs nothing. Both boundaries are fixed
numbers, so the order of every sum is the same for one thread and for many.

Decides the sizes. Starts no thread: the caller lends an ``Executor``, or ``None`` to stay in the calling thread. Do not
lend the executor the caller itself runs in: with all its threads waiting for spans, no span would start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from concurrent.futures import Executor

Float32: TypeAlias = npt.NDArray[np.float32]

CHUNK_ELEMENTS = 128 * 1024
"""512 KiB of float32: two such arrays share the second-level cache of a core, and a call on one outlasts the handover
of the interpreter from thread to thread."""

SPAN_ELEMENTS = 1024 * 1024
"""What one task works on."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def chunks(start: int, stop: int) -> Iterator[slice]:
    """``start:stop`` cut every ``CHUNK_ELEMENTS``."""
    for begin in range(start, stop, CHUNK_ELEMENTS):
        yield slice(begin, min(begin + CHUNK_ELEMENTS, stop))


def spans(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """``start:stop`` cut every ``SPAN_ELEMENTS``, as pairs (start, stop)."""
    for begin in range(start, stop, SPAN_ELEMENTS):
        yield begin, min(begin + SPAN_ELEMENTS, stop)


def run(executor: Executor | None, task: Callable[[Argument], Result], arguments: Iterable[Argument]) -> list[Result]:
    """``[task(a) for a in arguments]``, side by side if there is an executor; results in order of the arguments."""
    return list(map(task, arguments) if executor is None else executor.map(task, arguments))


def scratch() -> Float32:
    """One chunk of float32 to work in; every task takes its own."""
    return np.empty(CHUNK_ELEMENTS, np.float32)

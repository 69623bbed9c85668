"""How fast one core turns outer gradients into bodies and back, in every format, beside a copy of the same run.

    python benchmarks/codec.py --size 16777216 --repeats 9

GB/s counts the float32 of one fragment once (4 bytes an element), whatever is read and written; seconds are those of
the processor, so that what else runs on the machine counts only as far as it takes memory bandwidth. Encoding is what a
learner does: anchor minus local, rounded, into a new body. *Feedback* adds what rounding took before and keeps what it
takes now; *drawn* rounds stochastically. The copy reads and writes 4 bytes an element, encoding reads 8, with feedback
it reads 12 and writes 4: that is what memory allows, and the share of it says what the arithmetic costs. *Error* is the
root mean square of what is lost, as a share of that of the values, for normally distributed ones.

The second table is where the time of an integer format goes: the largest element of every block, by the size of a
block, beside the steps that do not depend on it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from unlockstep.core.chunks import CHUNK_ELEMENTS
from unlockstep.core.codec import FragmentCodec
from unlockstep.core.formats import BLOCK_ELEMENTS, Codec
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout

BLOCKS = (16, 32, 64, 128, 256, 1024)


@dataclass(frozen=True, slots=True)
class Row:
    """One format; rates are GB/s of float32 on one core, None where the format has no such thing."""

    codec: str
    bits_per_element: float
    error: float
    encode: float
    encode_feedback: float | None
    encode_drawn: float | None
    encode_of_memory: float
    """Share of what memory allows."""
    feedback_of_memory: float | None
    decode: float | None
    """None: a body of float32 is read where it lies."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """How fast the largest element of every block is found in the cache."""

    block: int
    gigabytes_per_s: float


def median_s(step: Callable[[], object], repeats: int) -> float:
    """Median processor time of ``step`` after one run that does not count."""
    step()
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def measure(size: int, repeats: int) -> tuple[float, list[Row]]:
    """GB/s of a copy, and every format."""
    anchor, local = np.random.default_rng(0).standard_normal((2, size), np.float32)
    delta, lost = anchor - local, np.zeros(size, np.float32)
    gigabytes = 4e-9 * size
    copy = gigabytes / median_s(lambda: np.copyto(lost, delta), repeats)
    layout = build_layout([TensorSpec("w", (size,), "float32", Role.PARAMETER)], 1, LayoutMethod.BALANCED)
    rows = []
    for codec in Codec:
        fragment = FragmentCodec(layout, 0, codec)
        lost[:] = 0
        body = fragment.encode(anchor, less=local)
        error = float(np.linalg.norm(fragment.decode(body) - delta) / np.linalg.norm(delta))

        def rate(step: Callable[[], object]) -> float:
            return gigabytes / median_s(step, repeats)

        encode = rate(lambda: fragment.encode(anchor, less=local))  # noqa: B023, run before they change
        feedback = rate(lambda: fragment.encode(anchor, less=local, lost=lost))  # noqa: B023
        drawn = rate(lambda: fragment.encode(anchor, less=local, chance=7)) if codec.is_integer else None  # noqa: B023
        decode = None if codec is Codec.FLOAT32 else rate(lambda: fragment.decode(body))  # noqa: B023
        written = codec.bits_per_element / 8
        rows.append(
            Row(
                codec=codec.value,
                bits_per_element=codec.bits_per_element,
                error=error,
                encode=encode,
                encode_feedback=feedback if codec.is_integer else None,
                encode_drawn=drawn,
                encode_of_memory=encode * (8 + written) / (8 * copy),
                feedback_of_memory=feedback * (16 + written) / (8 * copy) if codec.is_integer else None,
                decode=decode,
            )
        )
    return copy, rows


def reductions(repeats: int) -> list[Reduction]:
    """The step whose cost depends on the size of a block."""
    bits = np.random.default_rng(0).integers(0, 2**32, CHUNK_ELEMENTS, np.uint32)
    found = []
    for block in BLOCKS:
        rows = bits.reshape(-1, block)
        seconds = median_s(lambda: np.maximum.reduce(rows, axis=1), 20 * repeats)  # noqa: B023
        found.append(Reduction(block, 4e-9 * CHUNK_ELEMENTS / seconds))
    return found


def text(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Encoding and decoding of one fragment on one core, against a copy.")
    parser.add_argument("--size", type=int, default=16 * 1024 * 1024, help="float32 elements")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    copy, rows = measure(arguments.size, arguments.repeats)
    found = reductions(arguments.repeats)
    if arguments.json:
        everything = {
            "copy": copy,
            "rows": [asdict(row) for row in rows],
            "reductions": [asdict(each) for each in found],
        }
        print(json.dumps(everything))
        return
    print(f"{arguments.size} float32; GB/s of float32 on one core; a copy: {copy:.1f}")
    print(
        f"{'':10}{'bits':>7}{'error':>9}{'encode':>9}{'feedback':>10}{'drawn':>8}{'decode':>9}{'of memory':>12}"
        f"{'feedback':>10}"
    )
    for row in rows:
        print(
            f"{row.codec:10}{row.bits_per_element:>7g}{row.error:>9.4f}{row.encode:>9.2f}"
            f"{text(row.encode_feedback):>10}{text(row.encode_drawn):>8}{text(row.decode):>9}"
            f"{row.encode_of_memory:>12.0%}"
            f"{'' if row.feedback_of_memory is None else f'{row.feedback_of_memory:.0%}':>10}"
        )
    print(f"\nLargest element of every block, in the cache; {BLOCK_ELEMENTS} is what bodies have:")
    print("block " + "".join(f"{each.block:>8}" for each in found))
    print("GB/s  " + "".join(f"{each.gigabytes_per_s:>8.1f}" for each in found))


if __name__ == "__main__":
    main()

"""How large is a block, and which numbers does it hold: what rounding takes from real outer gradients and parameters.

Outer gradients of one learner of the default recipe, at two intervals, and the parameters it had. Each is cut into
blocks of so many elements, every block scaled by its largest element, and rounded to the nearest of a set of numbers:

* *symmetric*: integers up to 7 (4 bits), a step is 1/7 of the largest element;
* *signed*: integers from -8 to 7, -8 is the largest element with its sign: a step is 1/8 of it (what ``core.blocks``
  does);
* *nf4*: the quantiles of a normal distribution; *e2m1*, *e3m0*: small floating-point numbers.

The error is the root mean square of what is lost, as a share of that of the values, mean over the fragments. A scale
is a bfloat16.

    python experiments/blocks.py                  # 1 min on one core
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from recipe import LEARNERS, RECIPE
from trial import STEP_NS, _backend

from unlockstep.config import RunConfig, apply
from unlockstep.core.layout import Layout
from unlockstep.learners.backend import Backend
from unlockstep.loop import Contribution
from unlockstep.sim.cargo import ArrayCodecs, ArrayFreight, Cargo, Codecs, Parcel
from unlockstep.sim.world import World

STEPS = 128
KEPT = 32
"""Of the last contributions."""

BLOCKS = (16, 32, 64, 128, 256, 1024)
SCALE_BITS = 16

Blocks = NDArray[np.float32]
Rounded = Callable[[Blocks, Blocks], Blocks]
"""Blocks[b, size], their largest elements with sign[b, 1] -> what comes back."""

NF4 = (
    *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
E2M1 = tuple(sign * level / 6 for sign in (-1, 1) for level in (0, 0.5, 1, 1.5, 2, 3, 4, 6))
E3M0 = tuple(sign * level for sign in (-1, 1) for level in (0, *(2.0**-power for power in range(7))))


class Row(msgspec.Struct, frozen=True):
    """One set of numbers and one size of a block."""

    code: str
    bits: int
    block: int
    bits_per_element: float
    gradients: float
    """Error for outer gradients of few steps."""
    long_gradients: float
    """... of four times as many."""
    parameters: float


class _Listening(ArrayFreight):
    """Keeps what a learner hands over."""

    def __init__(self) -> None:
        self.made: list[Contribution] = []

    def codecs(self, layout: Layout, config: RunConfig, backend: Backend) -> Codecs:
        return _Codecs(layout, config, self.made)

    def cargo(self, layout: Layout, config: RunConfig, executor: Executor | None, saved: Any = None) -> Cargo:
        return super().cargo(layout, config, executor, saved)


class _Codecs(ArrayCodecs):
    def __init__(self, layout: Layout, config: RunConfig, made: list[Contribution]) -> None:
        super().__init__(layout, config)
        self._made = made

    def pack(self, made: Contribution) -> Parcel:
        if made.learner == "learner0":
            self._made.append(made)
        return super().pack(made)


def contributions(interval: int) -> list[Contribution]:
    """The last ones of a learner, with so many steps between two rounds of a fragment."""
    config = apply(RunConfig(), [*RECIPE, f"run.steps={STEPS}", f"protocol.interval_steps={interval}"])
    freight = _Listening()
    ring = World(config, freight=freight)
    for number in range(LEARNERS):
        ring.join(f"learner{number}", _backend(config, number, LEARNERS), STEP_NS)
    ring.run()
    return freight.made[-KEPT:]


def integers(bits: int, *, signed: bool) -> Rounded:
    lowest = 2 ** (bits - 1)

    def rounded(blocks: Blocks, extremes: Blocks) -> Blocks:
        step = _bfloat16(extremes / np.float32(-lowest if signed else lowest - 1))
        codes = np.clip(np.rint(blocks / np.where(step == 0, 1, step)), -lowest + (not signed), lowest - 1)
        return np.asarray(codes * step, np.float32)

    return rounded


def numbers(levels: tuple[float, ...]) -> Rounded:
    table = np.unique(np.float32(levels))
    between = (table[1:] + table[:-1]) / 2

    def rounded(blocks: Blocks, extremes: Blocks) -> Blocks:
        scale = _bfloat16(np.abs(extremes))
        return np.asarray(table[np.searchsorted(between, blocks / np.where(scale == 0, 1, scale))] * scale, np.float32)

    return rounded


CODES: tuple[tuple[str, int, Rounded], ...] = (
    ("symmetric", 8, integers(8, signed=False)),
    ("signed", 8, integers(8, signed=True)),
    ("symmetric", 4, integers(4, signed=False)),
    ("signed", 4, integers(4, signed=True)),
    ("nf4", 4, numbers(NF4)),
    ("e2m1", 4, numbers(E2M1)),
    ("e3m0", 4, numbers(E3M0)),
    ("symmetric", 2, integers(2, signed=False)),
    ("signed", 2, integers(2, signed=True)),
)


def _bfloat16(values: Blocks) -> Blocks:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (((bits >> 16) & 1) + np.uint32(0x7FFF) + bits & np.uint32(0xFFFF0000)).view(np.float32)


def error(rounded: Rounded, block: int, values: Blocks) -> float:
    blocks = np.zeros((-(-values.size // block), block), np.float32)
    blocks.reshape(-1)[: values.size] = values
    extremes = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    return float(np.linalg.norm(rounded(blocks, extremes) - blocks) / np.linalg.norm(blocks))


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.set_num_threads(1)
    short, long = contributions(4), contributions(16)
    rows = []
    for code, bits, rounded in CODES:
        for block in BLOCKS:
            gradients, long_gradients = (
                round(float(np.mean([error(rounded, block, one.anchor - one.local) for one in made])), 4)
                for made in (short, long)
            )
            parameters = round(float(np.mean([error(rounded, block, one.local) for one in short[-4:]])), 4)
            rows.append(
                Row(code, bits, block, bits + SCALE_BITS / block, gradients, long_gradients, parameters),
            )
    print("| code | bits | block | bits per element | gradients | of 4 times the steps | parameters |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(str(part) for part in msgspec.structs.astuple(row)) + " |")
    encoded = msgspec.json.format(msgspec.json.encode(rows), indent=1)
    (Path(__file__).parent / "results" / "blocks.json").write_bytes(encoded + b"\n")


if __name__ == "__main__":
    main()

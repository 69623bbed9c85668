"""How much smaller bodies get without losing a bit, and how fast: real outer gradients and parameters, every format.

One contribution to each fragment of the default recipe, and the parameters they were made of. *MB/s* are bytes of the
body and seconds of the processor, on one core; *below* is the link, in Mbit/s, on which packing and sending what is
left takes less time than sending the body as it is.

    python experiments/packing.py                 # 1 min on one core
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch
from blocks import contributions
from recipe import RECIPE

from unlockstep.config import RunConfig, apply
from unlockstep.core.codec import FragmentCodec
from unlockstep.core.formats import Codec, Packing
from unlockstep.core.layout import Layout, LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.net.wire.packing import pack, unpack

REPEATS = 5


class Row(msgspec.Struct, frozen=True):
    """One format, packed in one way."""

    what: str
    codec: str
    packing: str
    share: float
    """What is left of the body."""
    pack_mb_per_s: float
    unpack_mb_per_s: float
    below_mbit_per_s: float


def median_s(step: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def measured(what: str, values: np.ndarray, codec: Codec, packing: Packing) -> Row:
    body = FragmentCodec(_layout(values.size), 0, codec).encode(values)
    packed = pack(body, packing, codec)
    assert unpack(packed, packing, codec, len(body)) == body
    share = len(packed) / len(body)
    pack_s = median_s(lambda: pack(body, packing, codec))
    unpack_s = median_s(lambda: unpack(packed, packing, codec, len(body)))
    saved_bytes = len(body) - len(packed)
    return Row(
        what=what,
        codec=codec.value,
        packing=packing.value,
        share=round(share, 3),
        pack_mb_per_s=round(len(body) / pack_s / 1e6),
        unpack_mb_per_s=round(len(body) / unpack_s / 1e6),
        below_mbit_per_s=round(8 * saved_bytes / (pack_s + unpack_s) / 1e6),
    )


def _layout(size: int) -> Layout:
    return build_layout([TensorSpec("w", (size,), "float32", Role.PARAMETER)], 1, LayoutMethod.BALANCED)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.set_num_threads(1)
    fragments = apply(RunConfig(), RECIPE).protocol.fragments
    newest = {made.fragment: made for made in contributions(4)}
    assert len(newest) == fragments, "the last contributions are of every fragment"
    gradients = np.concatenate([made.anchor - made.local for made in newest.values()])
    parameters = np.concatenate([made.local for made in newest.values()])
    rows = [
        measured(what, values, codec, packing)
        for what, values in (("gradients", gradients), ("parameters", parameters))
        for codec in Codec
        for packing in (Packing.ZLIB, Packing.ZSTD)
    ]
    print("| what | format | packing | left | packed, MB/s | unpacked, MB/s | worth it below, Mbit/s |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(str(part) for part in msgspec.structs.astuple(row)) + " |")
    encoded = msgspec.json.format(msgspec.json.encode(rows), indent=1)
    (Path(__file__).parent / "results" / "packing.json").write_bytes(encoded + b"\n")


if __name__ == "__main__":
    main()

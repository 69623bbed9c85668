"""What a learner's checkpoint costs: the pause in the training thread, the write beside it, and reading it back.

    python benchmarks/checkpoint.py --model llama-20m --repeats 5 --folder /somewhere/on/a/disk

``pause`` is everything the training thread does: parameters and the moments of AdamW copied to the host; the anchors,
as large as the parameters, are only referred to. ``write`` is digest, file and fsync, in a thread of its own. ``copy``
is one numpy copy of as many bytes into new memory as the pause copies: the floor under it. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from unlockstep.learners import checkpoint
from unlockstep.learners.backend import State, TensorBits
from unlockstep.learners.random_states import random_state
from unlockstep.learners.torch_state import load_training_state, training_state
from unlockstep.models import build_model


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    megabytes: float
    median_ms: float


def median_ms(do: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        do()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def measure(spec: str, repeats: int, folder: Path) -> list[Row]:
    """The pause, the floor under it, the write and the way back."""
    torch.set_num_threads(1)
    model = build_model(spec, 256, 0)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    anchors = State(
        {
            f"anchor.{index}": TensorBits("float32", (p.numel(),), np.ones(p.numel(), np.float32).view(np.uint8))
            for index, p in enumerate(model.parameters())
        },
        {},
    )

    def pause() -> State:
        return training_state(model, [optimizer]) | random_state() | anchors

    state, path = pause(), folder / "a.safetensors"
    copied = sum(bits.data.nbytes for name, bits in state.tensors.items() if not name.startswith("anchor."))
    written = sum(bits.data.nbytes for bits in state.tensors.values())
    source = np.ones(copied, np.uint8)
    part = ("model.", "optimizer.", "group.")
    return [
        Row("copy", copied / 1e6, median_ms(source.copy, repeats)),
        Row("pause", copied / 1e6, median_ms(pause, repeats)),
        Row("write", written / 1e6, median_ms(lambda: checkpoint.save(path, state), repeats)),
        Row("read", written / 1e6, median_ms(lambda: checkpoint.load(path), repeats)),
        Row(
            "load", copied / 1e6, median_ms(lambda: load_training_state(state.part(*part), model, [optimizer]), repeats)
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-20m", help="as model.spec")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where to write")
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = measure(arguments.model, arguments.repeats, Path(folder))
    if arguments.json:
        for row in rows:
            print(json.dumps(asdict(row)))
        return
    print(f"{'':<8}{'MB':>8}{'ms':>8}")
    for row in rows:
        print(f"{row.what:<8}{row.megabytes:>8.0f}{row.median_ms:>8.0f}")


if __name__ == "__main__":
    main()

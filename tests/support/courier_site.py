"""A learner's courier without a learner: the fragments of a small model, and whoever carries them.

    python courier_site.py URL [fork]

As a program it is a learner that does nothing but have a courier: it says which process that is, and waits. With
``fork`` it also has a worker of its own, as a loop that loads data does, and says which process that is.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from unlockstep.config import CodecSection
from unlockstep.core.codec import FragmentCodec
from unlockstep.core.formats import Codec
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.loop import Contribution
from unlockstep.net.courier.child import ChildCarrier
from unlockstep.net.courier.courier import Carrier, Courier, ThreadCarrier, memory_bytes
from unlockstep.net.courier.jobs import Setting
from unlockstep.net.wire import api
from unlockstep.net.wire.link_meter import LinkMeter

SIZES = {"a": 100_000, "b": 7}
TENSORS = tuple(TensorSpec(name, (size,), "float32", Role.PARAMETER) for name, size in SIZES.items())
LAYOUT = build_layout(TENSORS, 2, LayoutMethod.TENSOR)
CODEC = CodecSection(upload=Codec.FLOAT32, download=Codec.FLOAT32)
QUERY = {"tokens": "10"}
TOKEN = "8f14e45fceea167a"


def setting(url: str) -> Setting:
    return Setting(url, "run", TENSORS, 2, LayoutMethod.TENSOR, CODEC)


def child_carrier(url: str, **options: Any) -> ChildCarrier:
    return ChildCarrier(setting(url), TOKEN, memory_bytes(LAYOUT, CODEC), **options)


def thread_carrier(url: str) -> ThreadCarrier:
    return ThreadCarrier(setting(url), TOKEN)


@asynccontextmanager
async def courier_of(carrier: Carrier) -> AsyncIterator[Courier]:
    """Open in the block."""
    courier = Courier(setting(""), LAYOUT, carrier, LinkMeter())
    await courier.open()
    try:
        yield courier
    finally:
        await courier.close()


async def ready(carrier: ChildCarrier) -> int:
    """The process, once jobs may come."""
    await carrier.ready()
    assert carrier.pid is not None
    return carrier.pid


def values(fragment: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.linspace(-1, 1, LAYOUT.fragment_size(fragment))).astype(np.float32)


def contribution(fragment: int = 0, scale: float = 1.0, tokens: int = 10, codec: Codec = Codec.FLOAT32) -> Contribution:
    """Three quarters of the way from these values to zero."""
    return Contribution(
        run_id="id", learner="a", incarnation=1, round=fragment, fragment=fragment, base_version=0, c_steps=1,
        c_tokens=tokens, tokens=tokens, anchor=values(fragment, scale), local=values(fragment, scale / 4), loads=1,
        codec=codec,
    )  # fmt: skip


def body(fragment: int, of: np.ndarray) -> bytes:
    return bytes(FragmentCodec(LAYOUT, fragment, Codec.FLOAT32).encode(of))


def version_path(fragment: int, version: int) -> str:
    return api.version_path("run", fragment, version)


async def _have_a_courier(url: str, forks: bool) -> None:
    carrier = child_carrier(url)
    async with courier_of(carrier):
        pids = [await ready(carrier)]
        if forks:
            worker = os.fork()
            if worker == 0:
                os.read(sys.stdin.fileno(), 1)  # Whatever becomes of the learner.
                os._exit(0)
            pids.append(worker)
        print(*pids, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_have_a_courier(sys.argv[1], "fork" in sys.argv[2:]))

"""A learner whose syncer is a script: the same steps, pulls and versions, in one process or in one after another.

::

    python -m support.resume_story FOLDER MODE-DTYPE ...    goes on from FOLDER/MODE-DTYPE.safetensors, prints its pages

Decides the model (with dropout and BatchNorm), what the syncer says in the middle of each step, and what is written
down of a step: everything that has to be equal.
"""

from __future__ import annotations

import hashlib
import random
import sys
import warnings
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from unlockstep.config import InnerSection
from unlockstep.core.adoption import Adoption
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.messages import (
    Connected,
    Fetched,
    HandedOver,
    LearnerMessage,
    Progress,
    Published,
    Pull,
    UploadArrived,
    VersionNotice,
    Welcome,
)
from unlockstep.core.options import ProtocolOptions
from unlockstep.data import TokenStream
from unlockstep.integrations.learner_checkpoint import loop_of_state, state_of_loop
from unlockstep.learners import checkpoint
from unlockstep.learners.backend import FloatArray
from unlockstep.learners.random_states import load_random_state, random_state
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.learners.torch_store import TorchStore
from unlockstep.loop import Contribution, LearnerLoop
from unlockstep.models.factory import causal_loss

STOP, END = 10, 20
"""The first process takes the steps before the first, the second one those before the second."""

PULLED = {2: 0, 5: 1, 8: 0, STOP - 1: 0, STOP: 1, 13: 0, 15: 1, 19: 0}
"""In the middle of which step which fragment is asked for; at ``STOP`` from the copy taken at the boundary before.
What was handed over before it decides when the next version is adopted."""

PUBLISHED = {4: (0, 1), 6: (0, 2), 7: (1, 1), 12: (0, 3), 16: (1, 2)}
"""In the middle of which step which fragment gets which version."""

TOKENS = np.random.default_rng(0).integers(0, 11, 900).astype(np.uint8)


class Page(msgspec.Struct, frozen=True):
    """What has to be equal of one step."""

    loss: float
    rates: list[float]
    position: int
    draws: list[float]
    """Of the three generators of the process."""
    clock: int
    progress: list[list[int]]
    """Counts reported."""
    uploads: list[str]
    """Digests of what was handed over so far in this step, with its counts."""
    parameters: str
    remembered: str
    """By the optimizer."""


class Net(nn.Module):
    """Tied head, dropout, BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.inner = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.2)
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(torch.tanh(self.inner(self.embedding(tokens))))
        return self.lm_head(self.norm(hidden.transpose(1, 2)).transpose(1, 2))


class Script:
    """The learner's link: keeps what is sent, gives the versions of the script."""

    def __init__(self, loop_sizes: list[int]) -> None:
        self.progress: list[Progress] = []
        self.uploads: list[str] = []
        self.under_way: list[UploadArrived] = []
        self._sizes = loop_sizes

    def send(self, message: LearnerMessage) -> None:
        if isinstance(message, Progress):
            self.progress.append(message)

    def fetch(self, notice: VersionNotice) -> None: ...

    def upload(self, made: Contribution) -> None:
        counts = (made.round, made.fragment, made.base_version, made.c_steps, made.c_tokens, made.tokens)
        self.uploads.append(digest(np.array(counts), made.anchor, made.local))
        self.under_way.append(UploadArrived(made.round, made.fragment, made.tokens))

    def forget(self, handed_over: HandedOver) -> None: ...

    def upload_seed(self, run_id: str, learner: str, incarnation: int, fragment: int, values: FloatArray) -> None: ...

    def take(self, payload: int) -> FloatArray:
        size = self._sizes[payload // 100]
        return np.random.default_rng(payload).normal(0, 0.3, size).astype(np.float32)

    def discard(self, payload: int) -> None: ...


class Story:
    """A learner and its script. It begins by loading version 0, or goes on from a file."""

    def __init__(self, mode: Adoption, dtype: str, resume: Path | None = None) -> None:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        model = Net().to(getattr(torch, dtype))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of 16 bits
            store = TorchStore(model)
        self._stream = TokenStream(TOKENS, sequence_length=6, batch_size=2, seed=1)
        settings = InnerSection(accumulation=2, warmup_steps=15, learning_rate=0.02)
        self.backend = TorchBackend(model, causal_loss, self._stream, settings, steps_total=30, store=store)
        layout = build_layout(store.tensors(), 2, LayoutMethod.BALANCED)
        self.backend.bind(layout)
        self.link = Script([layout.fragment_size(fragment) for fragment in range(2)])
        self.loop = LearnerLoop.create(
            "a", layout, self.backend, self.link,
            protocol=ProtocolOptions(fragments=2), adoption=mode, blend_alpha=0.5, now_ns=lambda: 0,
        )  # fmt: skip
        self._versions = [0, 0]
        if resume is None:
            self._connect()
            for fragment in range(2):
                self.loop.deliver(Fetched(fragment, 0, "", 100 * fragment))
        else:
            state = checkpoint.load(resume).state
            self.backend.load_state(state.part("model.", "optimizer.", "group."))
            load_random_state(state)
            self.loop.resume(loop_of_state(state))
            for step in range(STOP):
                self._note(step)
            self._connect()
        assert self.loop.wait_until_may_step(timeout_s=0)

    def save(self, path: Path) -> None:
        loop = self.loop.state()
        assert loop is not None
        checkpoint.save(path, self.backend.state() | random_state() | state_of_loop(loop))

    def steps(self, first: int, end: int) -> list[Page]:
        return [self._step(step) for step in range(first, end)]

    def _step(self, step: int) -> Page:
        self.link.uploads.clear()
        stats = self.backend.inner_step(self.loop.clock)
        if step in PULLED:
            self.loop.deliver(Pull(step, PULLED[step]))
        if step in PUBLISHED:
            fragment, version = self._note(step)
            self.loop.deliver(Published(VersionNotice(fragment, version, ""), clock=step + 2))
            self.loop.deliver(Fetched(fragment, version, "", 100 * fragment + version))
        self.loop.finish_step(stats)
        while self.link.under_way:
            self.loop.deliver(self.link.under_way.pop())
        said = self.link.progress[-1]
        state = self.backend.state()
        return Page(
            loss=stats.loss,
            rates=[group["lr"] for group in self.backend.optimizer.param_groups],
            position=self._stream.position,
            draws=[torch.rand(()).item(), random.random(), np.random.random()],
            clock=self.loop.clock,
            progress=[[said.steps, said.tokens], list(said.c_steps), list(said.c_tokens), list(said.overwritten)],
            uploads=list(self.link.uploads),
            parameters=digest(*(bits.data for bits in state.part("model.").tensors.values())),
            remembered=digest(*(bits.data for bits in state.part("optimizer.").tensors.values())),
        )

    def _note(self, step: int) -> tuple[int, int]:
        fragment, version = PUBLISHED.get(step, (0, self._versions[0]))
        self._versions[fragment] = version
        return fragment, version

    def _connect(self) -> None:
        notices = tuple(VersionNotice(fragment, version, "") for fragment, version in enumerate(self._versions))
        self.loop.deliver(Connected())
        self.loop.deliver(Welcome(1, 0, 10**10, notices, False, 0, "id"))


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def story(name: str, resume: Path | None = None) -> Story:
    mode, dtype = name.split("-")
    return Story(Adoption(mode), dtype, resume)


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    pages = {name: story(name, Path(folder) / f"{name}.safetensors").steps(STOP, END) for name in names}
    print(msgspec.json.encode(pages).decode())

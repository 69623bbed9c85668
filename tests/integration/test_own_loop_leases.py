"""A user's own loop that is dealt its data: what it waits for, what it says of its last step, what it may not do."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.live_run import WAIT_S, small_config
from support.syncer_thread import SyncerThread, syncer_thread
from unlockstep.config import DataSection, Deal, InnerSection, RunConfig
from unlockstep.core.errors import UsageError
from unlockstep.core.events import FragmentAdopted, RunFinished, StepReported
from unlockstep.data import LeasedStream
from unlockstep.integrations import torch_loop
from unlockstep.integrations.torch_loop import Learner

TOKENS = np.arange(33, dtype=np.uint8)
"""Sixteen sequences of two."""


def config(stock_sequences: int) -> RunConfig:
    data = DataSection(
        deal=Deal.LEASES, sequence_length=2, epochs=1, chunk_sequences=stock_sequences, stock_sequences=stock_sequences
    )
    return small_config(data=data, inner=InnerSection(batch_size=4))


def new_learner(syncer: SyncerThread, name: str, **options: Any) -> Learner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Learner(model, optimizer, syncer=syncer.url, name=name, **({"data": TOKENS} | options))


def test_a_step_with_the_last_of_the_stock_is_reported_if_the_stop_came_within_it(tmp_path: Path) -> None:
    """Otherwise its sequences are granted anew, although the model that is handed over has been trained on them."""
    with syncer_thread(config(stock_sequences=4), tmp_path) as syncer:
        with new_learner(syncer, "a") as learner:
            for batch in learner.batches():
                learner.stop()
                assert not learner.step(tokens=batch[:, 1:].size, loss=1.0)
        (step, *_) = syncer.live.log.wait(StepReported, learner="a", steps=1)
    assert (step.tokens, step.samples) == (8, 4)


def test_who_waits_for_data_has_its_parameters_and_waits_without_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is granted to another learner when it joins."""
    looked, late_s = threading.Semaphore(0), [0.0]

    def monotonic() -> float:
        looked.release()
        return time.monotonic() + late_s[0]

    monkeypatch.setattr(torch_loop, "time", SimpleNamespace(monotonic=monotonic, monotonic_ns=time.monotonic_ns))
    found: list[object] = []
    with syncer_thread(config(stock_sequences=16), tmp_path) as syncer:

        def run(learner: Learner) -> None:
            try:
                with learner:
                    found.append(len(list(learner.batches())))
            except UsageError as error:
                found.append(error)

        with new_learner(syncer, "first") as first:
            batches = first.batches()
            batch = next(batches)
            thread = threading.Thread(target=run, args=[new_learner(syncer, "second", timeout_s=WAIT_S)], daemon=True)
            thread.start()
            syncer.live.log.wait(FragmentAdopted, learner="second", count=2)
            late_s[0] = 2 * WAIT_S
            while looked.acquire(blocking=False):
                pass
            assert looked.acquire(timeout=WAIT_S) and looked.acquire(timeout=WAIT_S)
            first.step(tokens=batch[:, 1:].size)
            for batch in batches:
                first.step(tokens=batch[:, 1:].size)
        thread.join(WAIT_S)
        assert syncer.live.log.wait(RunFinished)
    assert found == [0]


def test_a_batch_without_a_step_is_one_sentence_when_there_is_no_other(tmp_path: Path) -> None:
    said = "step was not called since: call it after every batch"
    with syncer_thread(config(stock_sequences=4), tmp_path) as syncer, new_learner(syncer, "a") as learner:
        batches = learner.batches()
        next(batches)
        with pytest.raises(UsageError, match=said):
            next(batches)


def test_a_stream_in_another_order_or_begun_by_another_learner_is_refused(tmp_path: Path) -> None:
    """Else some sequences are trained twice, and some never."""
    with syncer_thread(config(stock_sequences=4), tmp_path) as syncer:
        with pytest.raises(UsageError, match=r"data has the seed 9, but run\.seed is 0"):
            new_learner(syncer, "a", data=LeasedStream(TOKENS, sequence_length=2, batch_size=4, seed=9))
        stream = LeasedStream(TOKENS, sequence_length=2, batch_size=4, seed=0)
        with new_learner(syncer, "a", data=stream) as learner:
            next(learner.batches())
        with pytest.raises(UsageError, match="a Learner is entered once"), learner:
            pass
        with pytest.raises(UsageError, match="another learner has taken from; make a new one"):
            new_learner(syncer, "a", data=stream)

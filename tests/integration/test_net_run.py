"""Whole runs over real sockets on loopback: the service, the client, the cores; toy models."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
from numpy.testing import assert_array_equal
from support.live_run import layout_of, live_syncer, small_config, train

from unlockstep.config import CodecSection
from unlockstep.core.codec import Codec
from unlockstep.core.events import EvaluationReported, FragmentCommitted, LearnerLive, RunFinished
from unlockstep.core.messages import Evaluation, Published, Stop
from unlockstep.learners.toy import ToyBackend
from unlockstep.net.observer_client import Observer


def test_two_learners_train_one_model_to_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with live_syncer(small_config(), tmp_path) as syncer:
            backends = [ToyBackend(), ToyBackend()]
            loops = await asyncio.gather(
                *(asyncio.to_thread(train, syncer, f"l{i}", backend) for i, backend in enumerate(backends))
            )
            assert syncer.service.over.is_set()
            assert [(loop.done.reason, loop.done.failed) for loop in loops] == [("the run has finished", False)] * 2
            versions = [e.version for e in syncer.log.events if isinstance(e, FragmentCommitted) and e.fragment == 0]
            assert versions == list(range(1, len(versions) + 1)) and versions
            assert syncer.service.storehouse.held_count == 0
            ledger = syncer.service.status().ledger
            assert ledger.in_flight == 0 and ledger.trained > 0

    threads = set(threading.enumerate())
    asyncio.run(run())
    assert {thread for thread in threading.enumerate() if not thread.daemon} <= threads

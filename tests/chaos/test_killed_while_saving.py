"""C41: a process is killed while it writes its checkpoint. There is a sound one afterwards, whenever it was."""

from __future__ import annotations

import multiprocessing
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from support.saving_story import die_at, number_of, save_for_ever, state
from unlockstep.learners.checkpoint import CheckpointWriter, load, previous_of, save

pytestmark = pytest.mark.chaos

KILLS = 20
CALLS = 6
"""Things that change the disk in one save: the bytes, their name, fsync, two renames, fsync of the folder."""

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "safetensors.torch"])


def test_a_process_killed_at_any_instant_leaves_a_sound_file(tmp_path: Path) -> None:
    path, random, number = tmp_path / "a", np.random.default_rng(0), 1
    save(path, state(0))
    for _ in range(KILLS):
        hear, said = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=save_for_ever, args=(path, number, said))
        process.start()
        said.close()
        saved = hear.recv()
        until_s = time.monotonic() + random.uniform(0, 0.05)
        while hear.poll(max(0, until_s - time.monotonic())):
            saved = hear.recv()
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        number = number_of(load(path).state)
        assert saved <= number <= saved + 1
        number += 1
        CheckpointWriter(path)
        assert {entry.name for entry in tmp_path.iterdir()} <= {"a", "a.previous"}


@pytest.mark.parametrize("call", range(CALLS + 1))
def test_between_any_two_changes_of_the_disk_there_is_a_sound_file(call: int, tmp_path: Path) -> None:
    """The old one until the new one has its bytes on the disk and its name."""
    path = tmp_path / "a"
    for number in (1, 2):
        save(path, state(number))
    process = PROCESSES.Process(target=die_at, args=(path, 3, call))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert number_of(load(path).state) == (3 if call >= 5 else 2)
    assert number_of(load(previous_of(path)).state) == (1 if call < 4 else 2)
    assert path.exists() == (call != 4)

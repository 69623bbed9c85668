"""A story is played the same way every time, down to the last bit, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.ring_story import digest, random_story

TESTS = Path(__file__).parents[1]
STORIES = ("3", "7", "11", "19")


def played_elsewhere(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "support.ring_story", *STORIES]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_same_story_gives_the_same_events_and_parameters() -> None:
    first, second = (random_story(5) for _ in range(2))
    assert first.events == second.events
    assert digest(first) == digest(second)


def test_another_story_gives_others() -> None:
    assert digest(random_story(5)) != digest(random_story(6))


def test_no_order_depends_on_how_python_hashes() -> None:
    outputs = {played_elsewhere(hash_seed) for hash_seed in ("0", "12345")}
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(STORIES)

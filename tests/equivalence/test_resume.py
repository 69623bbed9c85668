"""C43: twenty steps in one process, and ten, a checkpoint, a new process and ten more: the same bits."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from support.resume_story import END, PUBLISHED, PULLED, STOP, Page, story

TESTS = Path(__file__).parents[1]
STORIES = ("carry-float32", "blend-float32", "overwrite-float32", "carry-bfloat16")


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    """The story seeds those of the process."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_rng_state(before[0])
    random.setstate(before[1])
    np.random.set_state(before[2])


def in_a_new_process(folder: Path) -> dict[str, list[Page]]:
    environment = os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "support.resume_story", str(folder), *STORIES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=dict[str, list[Page]])


def test_a_new_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Losses, rates, data, generators, counts, what is handed over, parameters and what the optimizer remembers; with
    versions adopted, progress handed over and progress not handed over on either side of the cut, in each mode."""
    straight = {name: story(name).steps(0, END) for name in STORIES}
    for name in STORIES:
        first = story(name)
        assert first.steps(0, STOP) == straight[name][:STOP]
        first.save(tmp_path / f"{name}.safetensors")
    assert in_a_new_process(tmp_path) == {name: pages[STOP:] for name, pages in straight.items()}


def test_the_story_has_something_to_get_wrong() -> None:
    """Every page differs from the one before, every pull is answered, and versions change the parameters."""
    pages = story("carry-float32").steps(0, END)
    for field in ("loss", "draws", "position", "parameters", "remembered"):
        assert len({str(getattr(page, field)) for page in pages}) == END
    assert {step for step, page in enumerate(pages) if page.uploads} == set(PULLED)
    assert any(page.progress[3] != [0, 0] for page in story("overwrite-float32").steps(0, END))
    assert {step < STOP for step in PUBLISHED} == {step < STOP for step in PULLED} == {True, False}

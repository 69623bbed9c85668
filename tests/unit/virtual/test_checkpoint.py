"""What is read from a checkpoint is what was written: functions, locks, memory that is shared; or one sentence."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.tiny_lm import tied_lm
from unlockstep.core.errors import UsageError
from unlockstep.data import LeasedStream, TokenStream
from unlockstep.virtual import checkpoint


def there_and_back(path: Path, state: object, **constants: object) -> Any:
    checkpoint.write(path / "checkpoint", state, constants)
    return checkpoint.read(path / "checkpoint", constants)


def test_functions_share_what_they_refer_to(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(number: int) -> None:
        seen.append(number)

    do, kept = there_and_back(tmp_path, (lambda: note(7), seen))
    do()
    assert kept == [7] and seen == []


def test_locks_are_new_and_free_and_a_condition_keeps_its_own(tmp_path: Path) -> None:
    lock = threading.RLock()
    with lock:
        read, condition, plain = there_and_back(tmp_path, (lock, threading.Condition(lock), threading.Lock()))
    assert read is not lock and plain.acquire(blocking=False)
    with condition:
        assert read._is_owned()


def test_arrays_and_memory_that_were_shared_are_shared(tmp_path: Path) -> None:
    whole = np.arange(12, dtype=np.float32)
    body = memoryview(bytearray(range(16)))
    state = whole, whole[2:8:2], whole.reshape(3, 4)[1:], body[4:8], np.frombuffer(body, np.uint16)[1:]
    owner, part, block, piece, numbers = there_and_back(tmp_path, state)
    owner[:] = -1
    assert part.tolist() == [-1] * 3 and block.tolist() == [[-1] * 4] * 2
    piece[0] = 0
    assert numbers.tolist() == [2 + 256 * 3, 0 + 256 * 5, *(number + 256 * (number + 1) for number in range(6, 16, 2))]


def test_what_must_not_be_written_to_stays_so(tmp_path: Path) -> None:
    values = np.zeros(4, np.float32)
    view = values[:]
    view.setflags(write=False)
    owner, read, memory = there_and_back(tmp_path, (values, view, memoryview(b"abc")))
    assert (owner.flags.writeable, read.flags.writeable, memory.readonly) == (True, False, True)


def test_a_constant_is_named_and_not_written(tmp_path: Path) -> None:
    """Nor is what shows a part of it, such as the streams of a corpus."""
    tokens = np.arange(1_000_000, dtype=np.uint32)
    streams = TokenStream(tokens, 16, 2, seed=0, position=5), LeasedStream(tokens, 16, 2, seed=0)
    expected = TokenStream(tokens, 16, 2, seed=0, position=5).next()
    read, again, leased = there_and_back(tmp_path, (streams[0], tokens, streams[1]), text=tokens)
    assert again is tokens
    assert np.array_equal(read.next(), expected)
    assert np.shares_memory(leased._sequences, tokens)
    assert (tmp_path / "checkpoint").stat().st_size < 20_000


def test_tied_weights_are_tied_and_the_optimizer_steps_them(tmp_path: Path) -> None:
    model = tied_lm(32)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(of: nn.Module, by: torch.optim.Optimizer) -> list[bytes]:
        of(torch.arange(8)[None]).square().mean().backward()
        by.step()
        by.zero_grad()
        return [parameter.detach().numpy().tobytes() for parameter in of.parameters()]

    torch.manual_seed(1)
    step(model, optimizer)
    read, its = there_and_back(tmp_path, (model, optimizer))
    assert read.head.weight is read.embedding.weight
    torch.manual_seed(2)
    expected = step(model, optimizer)
    torch.manual_seed(2)
    assert step(read, its) == expected


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.fixture
def written(tmp_path: Path) -> Path:
    checkpoint.write(tmp_path / "checkpoint", [1, 2, 3], {})
    return tmp_path / "checkpoint"


def refused(file: Path) -> str:
    with pytest.raises(UsageError) as error:
        checkpoint.read(file, {})
    return str(error.value)


@pytest.mark.parametrize("place", [0, 20, -40])
def test_one_wrong_byte_is_damage(place: int, written: Path) -> None:
    data = bytearray(written.read_bytes())
    data[place] ^= 1
    written.write_bytes(data)
    assert "is damaged; restore it, or remove it: the run then begins anew" in refused(written)


@pytest.mark.parametrize("length", [0, 10, 400])
def test_one_that_was_cut_short_is_damaged(length: int, written: Path) -> None:
    written.write_bytes(written.read_bytes()[:length])
    assert "is damaged" in refused(written)


def test_other_versions_are_named(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "versions", lambda: {"torch": "9.9"})
    assert "torch is 9.9 here and was 2." in refused(written)


def test_another_user_s_is_not_read(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: written.stat().st_uid + 1)
    assert "is another user's, and reading it may run any code" in refused(written)


def test_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "checkpoint" in refused(tmp_path / "checkpoint") and "No such file" in refused(tmp_path / "checkpoint")


def test_one_that_cannot_be_written_leaves_the_last_one(written: Path) -> None:
    before = written.read_bytes()
    with pytest.raises(TypeError):
        checkpoint.write(written, (number for number in range(3)), {})
    assert written.read_bytes() == before
    assert [file.name for file in written.parent.iterdir()] == ["checkpoint"]

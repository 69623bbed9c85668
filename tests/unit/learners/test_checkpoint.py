"""The file: what others read of it, damage of every kind, the file before it, and writing beside the training."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from unlockstep.core.errors import UsageError
from unlockstep.learners.backend import State, TensorBits
from unlockstep.learners.checkpoint import CheckpointWriter, exists, load, previous_of, save
from unlockstep.learners.records import bits_of

BROAD = torch.tensor([[1.5, -2.0], [3.0, 0.1]], dtype=torch.bfloat16)


def state(number: float = 1.0) -> State:
    tensors = {"model.a": bits_of(torch.full((3,), number)), "b": bits_of(BROAD), "none": bits_of(torch.ones(0, 2))}
    return State(tensors, {"number": number, "nested": {"a": [1, None, "é"]}})


def same(one: State, other: State) -> bool:
    def flat(of: State) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        return {name: (bits.dtype, bits.shape, bits.data.tobytes()) for name, bits in of.tensors.items()}

    return flat(one) == flat(other) and one.facts == other.facts


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.safetensors"
    save(path, state(0.1))
    found = load(path)
    assert same(found.state, state(0.1))
    assert (found.path, found.passed_over) == (path, "")
    assert [entry.name for entry in path.parent.iterdir()] == ["a.safetensors"]


def test_numbers_that_are_not_finite_are_loaded_too(tmp_path: Path) -> None:
    save(tmp_path / "a", State({}, {"numbers": [math.inf, -math.inf, math.nan]}))
    assert repr(load(tmp_path / "a").state.facts) == "{'numbers': [inf, -inf, nan]}"


def test_any_reader_of_safetensors_opens_it(tmp_path: Path) -> None:
    """C46: bfloat16 stays bfloat16."""
    save(tmp_path / "a", state())
    tensors = load_file(tmp_path / "a")
    assert torch.equal(tensors["b"], BROAD) and tensors["b"].dtype == torch.bfloat16
    with safe_open(tmp_path / "a", "pt") as file:
        assert set(file.metadata()) == {"unlockstep", "sha256"}


def test_the_file_before_is_kept_and_used_in_place_of_a_damaged_one(tmp_path: Path) -> None:
    """C41"""
    path = tmp_path / "a"
    for number in (1.0, 2.0, 3.0):
        save(path, state(number))
    assert same(load(path).state, state(3.0))
    assert {entry.name for entry in tmp_path.iterdir()} == {"a", "a.previous"}
    path.write_bytes(path.read_bytes()[:-1])
    found = load(path)
    assert same(found.state, state(2.0))
    assert found.path == tmp_path / "a.previous"
    assert found.passed_over.startswith(f"checkpoint {path} cannot be read (")
    path.unlink()
    assert exists(path)
    assert load(path).passed_over == f"checkpoint {path} does not exist"


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """C41: in the length, the header, the facts and the tensors."""
    path = tmp_path / "a"
    save(path, state())
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=f"^checkpoint {path} (is damaged|cannot be read|is no checkpoint)"):
            load(path)


def test_any_missing_end_is_noticed(tmp_path: Path) -> None:
    """C41"""
    path = tmp_path / "a"
    save(path, state())
    sound = path.read_bytes()
    for length in range(len(sound)):
        path.write_bytes(sound[:length])
        with pytest.raises(UsageError, match=f"^checkpoint {path} cannot be read"):
            load(path)


def test_the_sentence_names_both_files_if_neither_is_of_use(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    with pytest.raises(UsageError) as caught:
        load(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"checkpoint {path} cannot be read (")
    assert f"; checkpoint {previous_of(path)} does not exist: name another checkpoint, or remove it" in sentence


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "a")
    with pytest.raises(UsageError, match=f"^checkpoint {tmp_path}/a is no checkpoint of a learner; "):
        load(tmp_path / "a")


def test_a_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "a", State({}, {"schema": 2}))
    with pytest.raises(UsageError, match="has schema 2, and this version reads 1"):
        load(tmp_path / "a")


def test_a_damaged_file_does_not_take_the_place_of_a_sound_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for number in (1.0, 2.0):
        save(path, state(number))
    path.write_bytes(b"damaged")
    save(path, state(3.0), keep_previous=False)
    assert same(load(path).state, state(3.0))
    path.unlink()
    assert same(load(path).state, state(1.0))


def test_a_writer_writes_one_after_the_other_and_cleans_up_after_the_dead(tmp_path: Path) -> None:
    path = tmp_path / "a"
    (tmp_path / ".a.4711.part").write_bytes(b"half")
    (tmp_path / ".b.4711.part").write_bytes(b"another's")
    writer = CheckpointWriter(path)
    assert {entry.name for entry in tmp_path.iterdir()} == {".b.4711.part"}
    for number in (1.0, 2.0):
        writer.write(state(number))
    writer.wait()
    assert not writer.is_busy
    assert same(load(path).state, state(2.0))
    assert same(load(previous_of(path)).state, state(1.0))


def test_a_write_that_fails_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    writer = CheckpointWriter(tmp_path / "file" / "a")
    with caplog.at_level(logging.WARNING):
        writer.write(state())
        writer.wait()
    assert f"checkpoint {tmp_path}/file/a could not be written (" in caplog.text
    assert caplog.text.rstrip().endswith("training goes on")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"checkpoint {tmp_path} is a folder; name a file"):
        CheckpointWriter(tmp_path)


@pytest.mark.parametrize("name", ["pipe", "a\0b", "n" * 300])
def test_what_can_be_no_file_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"checkpoint .* (is no|cannot be a) file"):
        CheckpointWriter(tmp_path / name)


def test_parts_are_joined_and_taken_apart() -> None:
    bits = TensorBits("uint8", (1,), np.zeros(1, np.uint8))
    joined = State({"a.x": bits}, {"one": 1}) | State({"b.x": bits}, {"two": 2})
    assert (sorted(joined.tensors), dict(joined.facts)) == (["a.x", "b.x"], {"one": 1, "two": 2})
    assert list(joined.part("b.").tensors) == ["b.x"]
    with pytest.raises(AssertionError):
        State({"a": bits}, {}) | State({"a": bits}, {})

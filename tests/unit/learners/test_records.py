"""What ``state_dict`` methods return, through JSON and tensors and back: equal, and of the same types."""

from __future__ import annotations

import json
from collections import Counter
from enum import IntEnum, StrEnum

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.errors import UsageError
from unlockstep.learners.backend import TensorBits
from unlockstep.learners.records import bits_of, flatten, tensor_of, unflatten

plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | st.dictionaries(st.integers(), st.integers(), max_size=3).map(Counter)
    ),
)


@given(values)
def test_every_value_comes_back_with_its_types(value: object) -> None:
    tensors: dict[str, TensorBits] = {}
    back = unflatten(json.loads(json.dumps(flatten(value, "it", tensors))), tensors.__getitem__)
    assert repr(back) == repr(value)
    assert tensors == {}


Whole = IntEnum("Whole", {"ONE": 1})
Word = StrEnum("Word", {"ONE": "one"})


@pytest.mark.parametrize(
    ("value", "plainly"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (Whole.ONE, 1),
        (Word.ONE, "one"),
    ],
)
def test_numbers_of_numpy_and_names_for_numbers_are_written_as_plain_ones(value: object, plainly: object) -> None:
    """A rate that a schedule computes with numpy is np.float64; neither a checkpoint nor a donor's state may fail."""
    written = flatten({"lr": [value]}, "it", {})
    assert msgspec.to_builtins(written) == written == {"dict": [["lr", [plainly]]]}
    assert type(written["dict"][0][1][0]) is type(plainly)


def test_tensors_travel_beside_the_json() -> None:
    tensors: dict[str, TensorBits] = {}
    value = {"a": [torch.tensor([1.0, 2.0])], 3: (torch.tensor(7),)}
    back = unflatten(json.loads(json.dumps(flatten(value, "it", tensors))), lambda name: tensor_of(tensors[name]))
    assert sorted(tensors) == ["it.3.0", "it.a.0"]
    assert back["a"][0].tolist() == [1.0, 2.0]
    assert (back[3][0].dtype, back[3][0].shape, back[3][0].item()) == (torch.int64, (), 7)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.float8_e4m3fn]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(torch.Size(shape).numel()).reshape(shape) / 3).to(dtype)
    back = tensor_of(bits_of(tensor))
    assert (back.dtype, back.shape) == (dtype, shape)
    assert back.flatten().view(torch.uint8).tolist() == tensor.flatten().view(torch.uint8).tolist()


def test_elements_are_in_row_order_whatever_the_memory_format() -> None:
    tensor = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    assert bits_of(tensor).data.view("<f4").tolist() == [float(n) for n in range(24)]


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    with pytest.raises(UsageError, match=r"^stateful\.scheduler\.f is a object, which a checkpoint cannot hold; "):
        flatten({"f": object()}, "stateful.scheduler", {})

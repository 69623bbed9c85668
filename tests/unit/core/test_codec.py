"""Codec: bodies other tools can open, exact rounding, and a refusal for every other sequence of bytes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from unlockstep.core.chunks import CHUNK_ELEMENTS
from unlockstep.core.codec import Codec, FragmentCodec, body_digest
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError
from unlockstep.core.layout import Layout, LayoutMethod, Role, TensorSpec, build_layout


def layout_of(**shapes: tuple[int, ...]) -> Layout:
    tensors = [TensorSpec(name=n, shape=s, dtype="float32", role=Role.PARAMETER) for n, s in shapes.items()]
    return build_layout(tensors, 1, LayoutMethod.BALANCED)


LAYOUT = layout_of(matrix=(2, 3), scalar=(), empty=(0, 4), ünïcode=(5,))
VALUES = np.linspace(-2, 2, 12, dtype=np.float32)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """``values`` through the codec and back."""
    codec = FragmentCodec(layout_of(w=(values.size,)), 0, Codec.BFLOAT16)
    return codec.decode(codec.encode(values.astype(np.float32)))


def bits(*patterns: int) -> np.ndarray:
    return np.array(patterns, np.uint32).view(np.float32)


def test_float32_comes_back_bit_for_bit() -> None:
    codec = FragmentCodec(LAYOUT, 0, Codec.FLOAT32)
    assert codec.decode(codec.encode(VALUES)).tobytes() == VALUES.tobytes()


@pytest.mark.parametrize("codec", Codec)
def test_a_body_has_exactly_the_stated_size(codec: Codec) -> None:
    """C16"""
    fragment = FragmentCodec(LAYOUT, 0, codec)
    header = int.from_bytes(fragment.encode(VALUES)[:8], "little")
    assert len(fragment.encode(VALUES)) == fragment.body_size == 8 + header + 12 * codec.bytes_per_element


def test_numpy_reader_of_the_format_opens_a_float32_body() -> None:
    tensors = safetensors.numpy.load(bytes(FragmentCodec(LAYOUT, 0, Codec.FLOAT32).encode(VALUES)))
    assert {name: array.shape for name, array in tensors.items()} == {
        "matrix": (2, 3),
        "scalar": (),
        "empty": (0, 4),
        "ünïcode": (5,),
    }
    assert np.array_equal(tensors["matrix"], VALUES[:6].reshape(2, 3))
    assert tensors["scalar"] == VALUES[6]
    assert np.array_equal(tensors["ünïcode"], VALUES[7:])


def test_torch_reader_of_the_format_opens_a_bfloat16_body() -> None:
    """C16"""
    tensors = safetensors.torch.load(bytes(FragmentCodec(LAYOUT, 0, Codec.BFLOAT16).encode(VALUES)))
    expected = torch.from_numpy(VALUES).to(torch.bfloat16)
    assert torch.equal(tensors["matrix"], expected[:6].reshape(2, 3))
    assert torch.equal(tensors["scalar"], expected[6])
    assert torch.equal(tensors["ünïcode"], expected[7:])
    assert tensors["empty"].shape == (0, 4)


@pytest.mark.parametrize("codec", Codec)
def test_the_header_names_layout_and_fragment_and_aligns_the_payload(codec: Codec) -> None:
    body = bytes(FragmentCodec(LAYOUT, 0, codec).encode(VALUES))
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    assert header["__metadata__"] == {"layout": LAYOUT.digest, "fragment": "0"}
    assert (8 + length) % 64 == 0
    assert len(body) - 8 - length == max(entry["data_offsets"][1] for n, entry in header.items() if n != "__metadata__")


def test_a_fragment_without_elements_is_a_header_alone() -> None:
    tensors = [TensorSpec(name=n, shape=(s,), dtype="float32", role=Role.PARAMETER) for n, s in [("a", 1), ("b", 0)]]
    layout = build_layout(tensors, 2, LayoutMethod.BALANCED)
    for codec in Codec:
        fragment = FragmentCodec(layout, 1, codec)
        body = fragment.encode(np.empty(0, np.float32))
        assert fragment.decode(body).shape == (0,)
        assert safetensors.torch.load(bytes(body))["b"].shape == (0,)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0, 1.0),
        (-0.0, -0.0),
        (1 + 2**-8, 1.0),
        (1 + 3 * 2**-8, 1 + 2**-6),
        (1 + 2**-8 + 2**-23, 1 + 2**-7),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (3.4e38, math.inf),
        (2.0**-133, 2.0**-133),
        (2.0**-135, 0.0),
    ],
    ids=["exact", "minus_zero", "tie_down", "tie_up", "above_tie", "inf", "minus_inf", "overflow", "subnormal", "to_0"],
)
def test_bfloat16_rounds_to_nearest_even(value: float, rounded: float) -> None:
    (result,) = bfloat16(np.array([value]))
    assert result == rounded
    assert math.copysign(1, result) == math.copysign(1, rounded)


def test_every_nan_stays_a_nan() -> None:
    """Adding the rounding bias to these bit patterns would give a number, or infinity."""
    patterns = bits(0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF)
    assert np.isnan(bfloat16(patterns)).all()


def test_bfloat16_equals_torch_on_every_upper_half_and_its_neighbours() -> None:
    upper = np.arange(2**16, dtype=np.uint32) << 16
    for lower in (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | lower).view(np.float32)
        numbers = values[~np.isnan(values)]
        expected = torch.from_numpy(numbers).to(torch.bfloat16).to(torch.float32).numpy()
        assert bfloat16(numbers).tobytes() == expected.tobytes()


def test_every_element_past_a_chunk_boundary_is_converted() -> None:
    """C11"""
    values = (np.arange(CHUNK_ELEMENTS + 3) % 251).astype(np.float32)
    assert np.array_equal(bfloat16(values), values)


@pytest.mark.parametrize("values", [VALUES[1:], VALUES.reshape(3, 4), VALUES.astype(np.float64)])
def test_values_of_another_size_shape_or_dtype_are_our_mistake(values: np.ndarray) -> None:
    with pytest.raises(LocalProtocolError, match="fragment 0 has 12 float32 elements"):
        FragmentCodec(LAYOUT, 0, Codec.FLOAT32).encode(values)


@pytest.mark.parametrize("codec", Codec)
def test_a_body_cut_short_anywhere_or_too_long_is_refused(codec: Codec) -> None:
    fragment = FragmentCodec(LAYOUT, 0, codec)
    body = bytes(fragment.encode(VALUES))
    for length in range(len(body)):
        with pytest.raises(RemoteProtocolError, match="bytes"):
            fragment.decode(body[:length])
    with pytest.raises(RemoteProtocolError, match="bytes"):
        fragment.decode(body + b"\0")


def test_a_header_with_any_byte_changed_is_refused() -> None:
    fragment = FragmentCodec(LAYOUT, 0, Codec.FLOAT32)
    body = bytearray(fragment.encode(VALUES))
    for position in range(len(body) - VALUES.nbytes):
        body[position] ^= 1
        with pytest.raises(RemoteProtocolError, match="another header"):
            fragment.decode(body)
        body[position] ^= 1
    assert np.array_equal(fragment.decode(body), VALUES)


def test_the_body_of_another_layout_of_equal_size_is_refused() -> None:
    """C17"""
    theirs = FragmentCodec(layout_of(w=(2, 3)), 0, Codec.FLOAT32).encode(VALUES[:6])
    with pytest.raises(RemoteProtocolError, match="another header"):
        FragmentCodec(layout_of(w=(3, 2)), 0, Codec.FLOAT32).decode(theirs)


def test_decoding_float32_copies_nothing() -> None:
    codec = FragmentCodec(LAYOUT, 0, Codec.FLOAT32)
    body = bytearray(codec.encode(VALUES))
    values = codec.decode(body)
    values[0] = 7
    assert codec.decode(body)[0] == 7
    assert not codec.decode(bytes(body)).flags.writeable


def test_the_digest_is_blake3_of_the_whole_body() -> None:
    assert body_digest(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"  # its specification's
    body = FragmentCodec(LAYOUT, 0, Codec.FLOAT32).encode(VALUES)
    assert body_digest(body) == body_digest(bytes(body)) != body_digest(bytes(body)[:-1])

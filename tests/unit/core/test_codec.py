"""Codec: bodies other tools can open, exact rounding, and a refusal for every other sequence of bytes."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from unlockstep.core.chunks import CHUNK_ELEMENTS, SPAN_ELEMENTS
from unlockstep.core.codec import FragmentCodec, body_digest
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError
from unlockstep.core.formats import Codec
from unlockstep.core.layout import Layout, LayoutMethod, Role, TensorSpec, build_layout


def layout_of(**shapes: tuple[int, ...]) -> Layout:
    tensors = [TensorSpec(name=n, shape=s, dtype="float32", role=Role.PARAMETER) for n, s in shapes.items()]
    return build_layout(tensors, 1, LayoutMethod.BALANCED)


PLAIN = (Codec.FLOAT32, Codec.BFLOAT16)
INTEGERS = (Codec.INT8, Codec.INT4, Codec.INT2)

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


@pytest.mark.parametrize("elements", [12, 64, 65, 1000])
@pytest.mark.parametrize("codec", Codec)
def test_a_body_has_exactly_the_stated_size(codec: Codec, elements: int) -> None:
    """C16. Integers travel in blocks of 64, the last one filled up, each with a scale of 2 bytes."""
    fragment = FragmentCodec(layout_of(w=(elements,)), 0, codec)
    body = fragment.encode(np.zeros(elements, np.float32))
    payload = {
        Codec.FLOAT32: 4 * elements,
        Codec.BFLOAT16: 2 * elements,
        Codec.INT8: math.ceil(elements / 64) * (64 + 2),
        Codec.INT4: math.ceil(elements / 64) * (32 + 2),
        Codec.INT2: math.ceil(elements / 64) * (16 + 2),
    }[codec]
    assert len(body) == fragment.body_size == 8 + int.from_bytes(body[:8], "little") + payload
    if elements % 64 == 0:
        assert payload == codec.bits_per_element / 8 * elements


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
    metadata = {"layout": LAYOUT.digest, "fragment": "0"}
    if codec in INTEGERS:
        tensors = '[["empty",0,[0,4]],["matrix",0,[2,3]],["scalar",6,[]],["ünïcode",7,[5]]]'
        metadata |= {"codec": codec.value, "block": "64", "tensors": tensors}
    assert header["__metadata__"] == metadata
    assert (8 + length) % 64 == 0
    assert len(body) - 8 - length == max(entry["data_offsets"][1] for n, entry in header.items() if n != "__metadata__")


def test_a_fragment_without_elements_is_a_header_alone() -> None:
    tensors = [TensorSpec(name=n, shape=(s,), dtype="float32", role=Role.PARAMETER) for n, s in [("a", 1), ("b", 0)]]
    layout = build_layout(tensors, 2, LayoutMethod.BALANCED)
    for codec in Codec:
        fragment = FragmentCodec(layout, 1, codec)
        body = fragment.encode(np.empty(0, np.float32))
        assert fragment.decode(body).shape == (0,)
        tensors = safetensors.torch.load(bytes(body))
        assert not any(tensor.numel() for tensor in tensors.values())
        assert tensors.keys() == ({"b"} if codec in PLAIN else {"codes", "scales"})


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


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [CHUNK_ELEMENTS + 3, SPAN_ELEMENTS + 64, SPAN_ELEMENTS + CHUNK_ELEMENTS - 1])
def test_every_element_past_a_chunk_boundary_is_converted(size: int, codec: Codec) -> None:
    """C11. Of every block the first number is -2: with it 1 and 0 are exact in every format."""
    values = (np.arange(size) // 7 % 2).astype(np.float32)
    values[::64] = -2
    fragment = FragmentCodec(layout_of(w=(size,)), 0, codec)
    assert np.array_equal(fragment.decode(fragment.encode(values)), values)


@pytest.mark.parametrize("chance", [None, 11])
@pytest.mark.parametrize("codec", Codec)
def test_the_number_of_threads_changes_no_byte(codec: Codec, chance: int | None) -> None:
    size = 2 * SPAN_ELEMENTS + 77
    values, less, lost = np.random.default_rng(0).standard_normal((3, size), np.float32)
    fragment, alone = FragmentCodec(layout_of(w=(size,)), 0, codec), lost.copy()
    with ThreadPoolExecutor(3) as executor:
        together = fragment.encode(values, executor, less=less, lost=lost, chance=chance)
        body = fragment.encode(values, less=less, lost=alone, chance=chance)
        assert together == body and lost.tobytes() == alone.tobytes()
        assert fragment.decode(body, executor).tobytes() == fragment.decode(body).tobytes()


@pytest.mark.parametrize("chance", [None, 11])
@pytest.mark.parametrize("codec", Codec)
def test_encoded_is_the_difference_and_what_was_lost_before(codec: Codec, chance: int | None) -> None:
    """``values - less + lost``, and ``lost`` is then what the body does not hold of it."""
    values, less, lost = np.random.default_rng(0).standard_normal((3, 12), np.float32)
    total = (values - less) + lost
    fragment = FragmentCodec(LAYOUT, 0, codec)
    body = fragment.encode(values, less=less, lost=lost, chance=chance)
    assert body == fragment.encode(total, chance=chance)
    assert lost.tobytes() == (total - fragment.decode(body)).tobytes()


@pytest.mark.parametrize("codec", INTEGERS)
def test_a_reader_of_the_format_gets_the_values_from_the_metadata_alone(codec: Codec) -> None:
    """What docs/numerics.md says: a tensor is codes times scales from its first element on."""
    body = bytes(FragmentCodec(LAYOUT, 0, codec).encode(VALUES))
    tensors = safetensors.torch.load(body)
    metadata = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])["__metadata__"]
    bits = int(metadata["codec"].removeprefix("int"))
    codes = (tensors["codes"].flatten()[:, None].int() >> torch.arange(0, 8, bits)) % 2**bits
    signed = codes - 2**bits * (codes >= 2 ** (bits - 1)).int()
    values = (signed.reshape(-1, int(metadata["block"])) * tensors["scales"].float()[:, None]).flatten()
    expected = FragmentCodec(LAYOUT, 0, codec).decode(body)
    for name, offset, shape in json.loads(metadata["tensors"]):
        found = values[offset : offset + math.prod(shape)].reshape(shape)
        assert np.array_equal(found.numpy(), expected[offset : offset + math.prod(shape)].reshape(shape)), name


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_lost_in_no_format_and_never_carried_on(codec: Codec, bad: float) -> None:
    values = VALUES.copy()
    values[4] = bad
    lost = np.zeros_like(values)
    decoded = FragmentCodec(LAYOUT, 0, codec).decode(FragmentCodec(LAYOUT, 0, codec).encode(values, lost=lost))
    assert not np.isfinite(decoded[4])
    assert np.isfinite(lost).all()


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


@pytest.mark.parametrize("codec", Codec)
def test_the_body_of_another_layout_of_equal_size_is_refused(codec: Codec) -> None:
    """C17"""
    theirs = FragmentCodec(layout_of(w=(2, 3)), 0, codec).encode(VALUES[:6])
    with pytest.raises(RemoteProtocolError, match="another header"):
        FragmentCodec(layout_of(w=(3, 2)), 0, codec).decode(theirs)


def test_decoding_float32_copies_nothing() -> None:
    codec = FragmentCodec(LAYOUT, 0, Codec.FLOAT32)
    body = bytearray(codec.encode(VALUES))
    values = codec.decode(body)
    values[0] = 7
    assert codec.decode(body)[0] == 7
    assert not codec.decode(bytes(body)).flags.writeable


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.FLOAT32])
def test_other_formats_are_decoded_to_where_they_are_wanted(codec: Codec) -> None:
    fragment, memory = FragmentCodec(LAYOUT, 0, codec), np.full(12, 7, np.float32)
    body = fragment.encode(VALUES)
    assert fragment.decode(body, out=memory) is memory
    assert memory.tobytes() == fragment.decode(body).tobytes()


def test_the_digest_is_blake3_of_the_whole_body() -> None:
    assert body_digest(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"  # its specification's
    body = FragmentCodec(LAYOUT, 0, Codec.FLOAT32).encode(VALUES)
    assert body_digest(body) == body_digest(bytes(body)) != body_digest(bytes(body)[:-1])

"""Laws of the codec: what comes back, how far rounding goes, and that bytes from outside have one way to fail."""

from __future__ import annotations

import contextlib

import numpy as np
import safetensors.torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unlockstep.core.codec import Codec, FragmentCodec
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout

LAYOUT = build_layout(
    [TensorSpec(name=n, shape=s, dtype="float32", role=Role.PARAMETER) for n, s in [("a", (2, 3)), ("b", (2,))]],
    1,
    LayoutMethod.BALANCED,
)
CODECS = {codec: FragmentCodec(LAYOUT, 0, codec) for codec in Codec}
BITS = arrays(np.uint32, 8)
NUMBERS = arrays(np.float32, 8, elements=st.floats(allow_nan=False, allow_infinity=False, width=32))


@given(BITS)
def test_float32_keeps_every_bit_of_anything(bits: np.ndarray) -> None:
    codec = CODECS[Codec.FLOAT32]
    assert codec.decode(codec.encode(bits.view(np.float32))).tobytes() == bits.tobytes()


@given(NUMBERS)
def test_bfloat16_is_off_by_at_most_one_part_in_256(values: np.ndarray) -> None:
    codec = CODECS[Codec.BFLOAT16]
    decoded = codec.decode(codec.encode(values)).astype(np.float64)
    finite = np.isfinite(decoded)
    error = np.abs(decoded - values.astype(np.float64))
    # Below the normal range the distance between neighbours is fixed: 2**-133, half of it when rounded.
    assert (error[finite] <= np.maximum(np.abs(values[finite].astype(np.float64)) * 2.0**-8, 2.0**-134)).all()
    # The largest bfloat16 is (2 - 2**-7) * 2**127; from half a step above it numbers round to infinity.
    assert (np.abs(values[~finite].astype(np.float64)) >= (2 - 2.0**-8) * 2.0**127).all()


@given(BITS)
def test_a_second_rounding_changes_nothing(bits: np.ndarray) -> None:
    codec = CODECS[Codec.BFLOAT16]
    once = codec.decode(codec.encode(bits.view(np.float32)))
    assert codec.decode(codec.encode(once)).tobytes() == once.tobytes()


@given(BITS)
def test_nan_and_infinity_stay_what_they_are(bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    codec = CODECS[Codec.BFLOAT16]
    decoded = codec.decode(codec.encode(values))
    assert np.array_equal(np.isnan(decoded), np.isnan(values))
    assert np.array_equal(decoded[np.isinf(values)], values[np.isinf(values)])


@given(st.sampled_from(Codec), st.binary(max_size=600))
def test_arbitrary_bytes_are_refused_and_nothing_else(codec: Codec, body: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        CODECS[codec].decode(body)


@given(st.sampled_from(Codec), NUMBERS, st.data())
def test_a_changed_body_is_refused_or_holds_other_values(codec: Codec, values: np.ndarray, data: st.DataObject) -> None:
    fragment = CODECS[codec]
    body = bytearray(fragment.encode(values))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(RemoteProtocolError):
        assert fragment.decode(body).tobytes() != fragment.decode(fragment.encode(values)).tobytes()


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__"),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        min_size=1,
        max_size=5,
    ).filter(lambda shapes: any(np.prod(shape) for shape in shapes.values())),
    st.sampled_from(Codec),
)
def test_every_body_is_a_file_the_reference_reader_opens(shapes: dict[str, tuple[int, ...]], codec: Codec) -> None:
    tensors = [TensorSpec(name=n, shape=s, dtype="float32", role=Role.PARAMETER) for n, s in shapes.items()]
    layout = build_layout(tensors, 1, LayoutMethod.BALANCED)
    fragment = FragmentCodec(layout, 0, codec)
    loaded = safetensors.torch.load(bytes(fragment.encode(np.arange(layout.fragment_size(0), dtype=np.float32))))
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == shapes
    for slot in layout.fragments[0]:
        assert loaded[slot.tensor.name].float().flatten().tolist() == list(range(slot.offset, slot.stop))

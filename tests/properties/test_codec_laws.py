"""Laws of the codec: what comes back, how far rounding goes, and that bytes from outside have one way to fail."""

from __future__ import annotations

import contextlib

import numpy as np
import safetensors.torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unlockstep.core.codec import FragmentCodec
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.formats import BLOCK_ELEMENTS, Codec
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout

LAYOUT = build_layout(
    [TensorSpec(name=n, shape=s, dtype="float32", role=Role.PARAMETER) for n, s in [("a", (2, 3)), ("b", (2,))]],
    1,
    LayoutMethod.BALANCED,
)
CODECS = {codec: FragmentCodec(LAYOUT, 0, codec) for codec in Codec}
PLAIN = (Codec.FLOAT32, Codec.BFLOAT16)
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


LENGTH = 3 * BLOCK_ELEMENTS - 11
LONG = build_layout([TensorSpec("w", (LENGTH,), "float32", Role.PARAMETER)], 1, LayoutMethod.BALANCED)
INTEGERS = {codec: FragmentCodec(LONG, 0, codec) for codec in Codec if codec.is_integer}
SEEDS = st.one_of(st.none(), st.integers(0, 2**64 - 1))
ELEMENTS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, 1.0, -1.0, 1e4, 1e-4, 2.0**-149, float(np.finfo(np.float32).max)]),
)


@given(st.sampled_from(list(INTEGERS)), arrays(np.float32, LENGTH, elements=ELEMENTS), SEEDS)
def test_an_integer_is_off_by_half_a_step_or_is_drawn_from_the_two_around(
    codec: Codec, values: np.ndarray, chance: int | None
) -> None:
    """A step is the extreme of the block / 2**(bits-1), drawn: / (2**(bits-1) - 1), and known to one part in 256, or
    in 128 if rounded away from zero. Nearest, an element almost as long as the extreme and of the other sign takes the
    highest code. The absolute terms: a scale below the normal range, and one so large that the lowest code would be
    infinite."""
    fragment = INTEGERS[codec]
    decoded = fragment.decode(fragment.encode(values, chance=chance)).astype(np.float64)
    assert np.isfinite(decoded).all()
    padded = np.zeros(3 * BLOCK_ELEMENTS)
    padded[:LENGTH] = np.abs(values.astype(np.float64))
    blocks = padded.reshape(-1, BLOCK_ELEMENTS)
    extreme = blocks.max(axis=1, keepdims=True)
    codes = 2 ** (codec.bits - 1)
    if chance is None:
        step = extreme / codes
        bound = np.maximum(step / 2 * (1 + 2.0**-8), blocks - (codes - 1) * step * (1 - 2.0**-8))
    else:
        bound = np.broadcast_to(extreme / (codes - 1) * (1 + 2.0**-7), blocks.shape)
    huge = extreme >= (2 - 2.0**-7) * 2.0**127
    bound = bound + codes * 2.0**-133 + huge * 2.0**120 * (1 + 2.0**-7)
    error = np.abs(decoded - values.astype(np.float64))
    assert (error <= bound.reshape(-1)[:LENGTH]).all()


@given(st.sampled_from(list(INTEGERS)), arrays(np.float32, LENGTH, elements=ELEMENTS), SEEDS)
def test_equal_values_have_equal_bytes(codec: Codec, values: np.ndarray, chance: int | None) -> None:
    fragment = INTEGERS[codec]
    assert fragment.encode(values, chance=chance) == fragment.encode(values.copy(), chance=chance)


@given(
    st.sampled_from(list(INTEGERS)),
    arrays(
        np.float32, LENGTH, elements=st.floats(-(2.0**99), 2.0**99, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30)
    ),
)
def test_a_second_rounding_to_integers_changes_nothing(codec: Codec, values: np.ndarray) -> None:
    """Where scales are in the normal range: then the extreme is the lowest code times its scale, exactly."""
    fragment = INTEGERS[codec]
    once = fragment.decode(fragment.encode(values))
    assert np.array_equal(fragment.decode(fragment.encode(once)), once)


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


@given(st.sampled_from(PLAIN), NUMBERS, st.data())
def test_a_changed_body_is_refused_or_holds_other_values(codec: Codec, values: np.ndarray, data: st.DataObject) -> None:
    """Not so for integers: a block of zeros has codes of no consequence. There only the digest tells."""
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
    st.sampled_from(PLAIN),
)
def test_every_body_is_a_file_the_reference_reader_opens(shapes: dict[str, tuple[int, ...]], codec: Codec) -> None:
    tensors = [TensorSpec(name=n, shape=s, dtype="float32", role=Role.PARAMETER) for n, s in shapes.items()]
    layout = build_layout(tensors, 1, LayoutMethod.BALANCED)
    fragment = FragmentCodec(layout, 0, codec)
    loaded = safetensors.torch.load(bytes(fragment.encode(np.arange(layout.fragment_size(0), dtype=np.float32))))
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == shapes
    for slot in layout.fragments[0]:
        assert loaded[slot.tensor.name].float().flatten().tolist() == list(range(slot.offset, slot.stop))

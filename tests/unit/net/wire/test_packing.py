"""Packing: every bit comes back, and no stranger's bytes become more than a body."""

from __future__ import annotations

import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.codec import FragmentCodec
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.formats import Codec, Packing
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.net.wire import packing
from unlockstep.net.wire.packing import pack, packed_size_max, require, unpack

SIZE = 5000
LAYOUT = build_layout([TensorSpec("w", (SIZE,), "float32", Role.PARAMETER)], 1, LayoutMethod.BALANCED)
PACKED = (Packing.ZLIB, Packing.ZSTD)


def body_of(codec: Codec) -> bytes:
    values = np.random.default_rng(0).standard_normal(SIZE, np.float32)
    return bytes(FragmentCodec(LAYOUT, 0, codec).encode(values))


@pytest.mark.parametrize("kind", Packing)
@pytest.mark.parametrize("codec", Codec)
def test_what_is_unpacked_is_what_was_packed(codec: Codec, kind: Packing) -> None:
    body = body_of(codec)
    packed = pack(body, kind, codec)
    assert unpack(packed, kind, codec, len(body)) == body
    assert len(packed) <= packed_size_max(len(body))
    assert kind is Packing.NONE or len(packed) < len(body)


def test_packing_puts_bytes_of_one_kind_side_by_side() -> None:
    """Of 16-bit elements the lower bytes, then the upper ones."""
    body = bytes([1, 10, 2, 20, 3, 30])
    assert zlib.decompress(pack(body, Packing.ZLIB, Codec.BFLOAT16)) == bytes([1, 2, 3, 10, 20, 30])
    assert zlib.decompress(pack(body, Packing.ZLIB, Codec.INT4)) == body


@pytest.mark.parametrize("kind", PACKED)
def test_noise_grows_by_less_than_is_allowed_for(kind: Packing) -> None:
    for size in (0, 1, 100, 10**6):
        noise = np.random.default_rng(size).bytes(size)
        assert len(pack(noise, kind, Codec.INT8)) <= packed_size_max(size)


def frames(content: bytes) -> dict[Packing, bytes]:
    return {Packing.ZLIB: zlib.compress(content), Packing.ZSTD: zstandard.ZstdCompressor().compress(content)}


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("size", [0, 1, 999, 1001])
def test_another_size_than_the_body_s_is_refused(kind: Packing, size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"does not have the {size} bytes expected"):
        unpack(frames(bytes(1000))[kind], kind, Codec.INT8, size)


@pytest.mark.parametrize("kind", PACKED)
def test_a_bomb_is_refused_before_it_is_unpacked(kind: Packing) -> None:
    """A hundred million zeros in some kilobytes, offered as a body of a thousand bytes."""
    bomb = frames(bytes(10**8))[kind]
    assert len(bomb) < 10**5
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError, match="does not have the 1000 bytes expected"):
        unpack(bomb, kind, Codec.INT8, 1000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 10**6


def test_a_frame_that_wants_a_large_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(bytes(2000)) + stream.flush()
    with pytest.raises(RemoteProtocolError, match="the body is not packed as zstd"):
        unpack(frame, Packing.ZSTD, Codec.INT8, 2000)


@pytest.mark.parametrize("kind", PACKED)
def test_a_packed_body_cut_short_or_followed_by_more_is_refused(kind: Packing) -> None:
    body = body_of(Codec.INT4)
    packed = bytes(pack(body, kind, Codec.INT4))
    for length in range(0, len(packed), 37):
        with pytest.raises(RemoteProtocolError):
            unpack(packed[:length], kind, Codec.INT4, len(body))
    with pytest.raises(RemoteProtocolError):
        unpack(packed + b"more", kind, Codec.INT4, len(body))


@given(st.sampled_from(PACKED), st.sampled_from(Codec), st.binary(max_size=200), st.integers(0, 300))
def test_arbitrary_bytes_are_refused_and_nothing_else(kind: Packing, codec: Codec, data: bytes, size: int) -> None:
    with suppress(RemoteProtocolError):
        unpack(data, kind, codec, 4 * size)


@given(st.sampled_from(PACKED), st.sampled_from(Codec), st.integers(0, 2000), st.integers(1, 255))
def test_a_damaged_packed_body_is_refused_or_has_the_size_of_the_body(
    kind: Packing, codec: Codec, position: int, damage: int
) -> None:
    body = body_of(codec)
    packed = bytearray(pack(body, kind, codec))
    packed[position % len(packed)] ^= damage
    with suppress(RemoteProtocolError):
        assert len(unpack(packed, kind, codec, len(body))) == len(body)


def test_without_its_package_zstd_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in Packing:
        require(kind)
    monkeypatch.setattr(packing, "zstandard", None)
    require(Packing.ZLIB)
    with pytest.raises(UsageError, match=r"codec.upload_packing is 'zstd', which needs the package zstandard: install"):
        require(Packing.ZSTD)

"""A body made smaller without losing a bit: what a learner may do to an upload, and the syncer undoes.

::

    packed = compress(planes(body))        planes: first the lowest byte of every element, then the next one, ...

The exponents of neighbouring numbers are alike and their lowest bits are noise: side by side, each kind is compressed
by what it is worth. Integers in blocks are one plane.

Decides the bytes, and that unpacking makes no more of them than the body has, whatever a stranger sends. Does not
decide who packs (``codec.upload_packing``), nor what a body means.
"""

from __future__ import annotations

import io
import zlib

import numpy as np
import numpy.typing as npt

from unlockstep.core.codec import Body
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.formats import Codec, Packing

try:
    import zstandard
except ImportError:  # It is an extra: ``pip install unlockstep[zstd]``.
    zstandard = None  # type: ignore[assignment]

Bytes = npt.NDArray[np.uint8]

LEVEL = 1
"""Of either algorithm. Measured: higher ones take several times as long for a percent (``experiments/packing.py``)."""

WINDOW_BYTES_MAX = 8 * 1024 * 1024
"""Memory that a stranger's zstd frame may ask for to be read; ours need half a megabyte."""


def require(packing: Packing) -> None:
    """Raises UsageError if it cannot be had here."""
    if packing is Packing.ZSTD and zstandard is None:
        raise UsageError(
            "codec.upload_packing is 'zstd', which needs the package zstandard: install unlockstep[zstd] at both ends, "
            "or choose 'zlib' or 'none'"
        )


def packed_size_max(size: int) -> int:
    """Longest packed body of so many bytes: what cannot be compressed grows a little."""
    return size + size // 128 + 1024


def pack(body: Body, packing: Packing, codec: Codec) -> memoryview:
    """The body, packed; itself if there is nothing to be done."""
    if packing is Packing.NONE:
        return memoryview(body)
    planes = _planes(np.frombuffer(body, np.uint8), codec)
    if packing is Packing.ZLIB:
        return memoryview(zlib.compress(planes.data, LEVEL))
    return memoryview(zstandard.ZstdCompressor(level=LEVEL).compress(planes.data))


def unpack(packed: Body, packing: Packing, codec: Codec, size: int) -> memoryview:
    """The body of ``size`` bytes.

    Raises:
        RemoteProtocolError: it is not that, packed in this way. At most ``size`` bytes were made of it, and a window.
    """
    if packing is Packing.NONE:
        if len(packed) != size:
            raise RemoteProtocolError(f"the body has {len(packed)} bytes, {size} are expected")
        return memoryview(packed)
    planes = np.empty(size, np.uint8)
    is_whole = _from_zlib(packed, planes) if packing is Packing.ZLIB else _from_zstd(packed, planes)
    if not is_whole:
        raise RemoteProtocolError(f"what is packed in the body does not have the {size} bytes expected")
    return _elements(planes, codec).data


def _from_zlib(packed: Body, out: Bytes) -> bool:
    """Whether just this many bytes were in it."""
    stream = zlib.decompressobj()
    try:
        made = stream.decompress(packed, out.size + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"the body is not packed as zlib: {error}") from None
    if len(made) != out.size or not stream.eof or stream.unused_data:
        return False
    out[:] = np.frombuffer(made, np.uint8)
    return True


def _from_zstd(packed: Body, out: Bytes) -> bool:
    """Whether just this many bytes were in it."""
    require(Packing.ZSTD)
    stream = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).stream_reader(io.BytesIO(packed))
    try:
        return _read_all(stream, out) == out.size and not stream.read(1)
    except zstandard.ZstdError as error:
        raise RemoteProtocolError(f"the body is not packed as zstd: {error}") from None


def _read_all(reader: zstandard.ZstdDecompressionReader, out: Bytes) -> int:
    filled = 0
    while filled < out.size:
        count = reader.readinto(out.data[filled:])
        if not count:
            break
        filled += count
    return filled


def _width(codec: Codec) -> int:
    return 1 if codec.is_integer else codec.bits // 8


def _planes(body: Bytes, codec: Codec) -> Bytes:
    width = _width(codec)
    if width == 1:
        return body
    planes = np.empty_like(body)
    for place, plane in enumerate(planes.reshape(width, -1)):
        plane[:] = body[place::width]
    return planes


def _elements(planes: Bytes, codec: Codec) -> Bytes:
    width = _width(codec)
    if width == 1:
        return planes
    body = np.empty_like(planes)
    for place, plane in enumerate(planes.reshape(width, -1)):
        body[place::width] = plane
    return body

"""A fragment as bytes: a safetensors file whose header both ends know in advance.

::

    │ 8 bytes: length of the header │ header: JSON, padded with spaces │ payload: the tensors, little-endian, no gaps │

The header names the tensors, their offsets, the digest of the layout and the fragment. It depends on the layout and the
format alone, so a receiver compares bytes and parses nothing; any safetensors reader can open what is stored.

Decides the bytes of a fragment in each numeric format. Does not decide which format is used, nor what a refused body
costs its sender.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from unlockstep.core.chunks import CHUNK_ELEMENTS, Float32, chunks, run, spans
from unlockstep.core.digests import digest_of
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError
from unlockstep.core.layout import RESERVED_NAME, Layout

if TYPE_CHECKING:
    from concurrent.futures import Executor

Body: TypeAlias = bytes | bytearray | memoryview

_PAYLOAD_ALIGNMENT = 64
"""The payload starts at a multiple of this many bytes, a cache line; the format asks for 8."""


class Codec(Enum):
    """How one element is written."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    """The upper half of a float32, rounded to nearest, ties to even: relative error at most 2**-8."""

    @property
    def bytes_per_element(self) -> int:
        """What one element costs on the wire."""
        return {Codec.FLOAT32: 4, Codec.BFLOAT16: 2}[self]


class FragmentCodec:
    """Writes and reads the bodies of one fragment in one numeric format."""

    def __init__(self, layout: Layout, fragment: int, codec: Codec) -> None:
        self.fragment = fragment
        self.codec = codec
        self.size = layout.fragment_size(fragment)
        self._header = _header(layout, fragment, codec)
        self.body_size = len(self._header) + self.size * codec.bytes_per_element

    def blank(self) -> memoryview:
        """A body with its header, and a payload still to be written."""
        body = np.empty(self.body_size, np.uint8)
        body[: len(self._header)] = np.frombuffer(self._header, np.uint8)
        return body.data

    def payload(self, body: Body) -> npt.NDArray[Any]:
        """The elements of ``body`` as stored, without a copy: float32[n], or the bits of bfloat16 as uint16[n]."""
        dtype = np.dtype("<f4") if self.codec is Codec.FLOAT32 else np.dtype("<u2")
        return np.frombuffer(body, dtype, self.size, len(self._header)) if self.size else np.empty(0, dtype)

    def encode(self, values: Float32, executor: Executor | None = None) -> memoryview:
        """The body that holds ``values``, float32[n], in ``body_size`` new bytes.

        Raises:
            LocalProtocolError: ``values`` is not float32[n].
        """
        if values.dtype != np.float32 or values.shape != (self.size,):
            raise LocalProtocolError(
                f"fragment {self.fragment} has {self.size} float32 elements, not {values.shape} of {values.dtype}"
            )
        body = self.blank()
        payload = self.payload(body)
        if self.codec is Codec.FLOAT32:
            np.copyto(payload, values)
        else:
            run(executor, lambda span: _to_bfloat16(values[slice(*span)], payload[slice(*span)]), spans(0, self.size))
        return body

    def decode(self, body: Body, executor: Executor | None = None) -> Float32:
        """The values in ``body``, float32[n]: for ``FLOAT32`` a view of it (writable only if it is), else a new array.

        Raises:
            RemoteProtocolError: the length or the header is not that of this fragment. Values may be anything.
        """
        if len(body) != self.body_size:
            raise RemoteProtocolError(
                f"body of fragment {self.fragment} has {len(body)} bytes, {self.body_size} are expected"
            )
        if bytes(body[: len(self._header)]) != self._header:
            raise RemoteProtocolError(
                f"body of fragment {self.fragment} has another header: other tensors, layout, fragment or number format"
            )
        payload = self.payload(body)
        if self.codec is Codec.FLOAT32:
            return payload.view(np.float32)
        values = np.empty(self.size, np.float32)
        run(executor, lambda span: _from_bfloat16(payload[slice(*span)], values[slice(*span)]), spans(0, self.size))
        return values


def fragment_codecs(layout: Layout, codec: Codec) -> tuple[FragmentCodec, ...]:
    """One for every fragment, at its index."""
    return tuple(FragmentCodec(layout, fragment, codec) for fragment in range(layout.fragment_count))


def body_digest(body: Body) -> str:
    """What a body is known by, in hex."""
    return digest_of(body).hex()


def _header(layout: Layout, fragment: int, codec: Codec) -> bytes:
    dtype = {Codec.FLOAT32: "F32", Codec.BFLOAT16: "BF16"}[codec]
    width = codec.bytes_per_element
    header: dict[str, object] = {RESERVED_NAME: {"layout": layout.digest, "fragment": str(fragment)}}
    for slot in layout.fragments[fragment]:
        header[slot.tensor.name] = {
            "dtype": dtype,
            "shape": slot.tensor.shape,
            "data_offsets": (slot.offset * width, slot.stop * width),
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _PAYLOAD_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _to_bfloat16(values: Float32, out: npt.NDArray[np.uint16]) -> None:
    """Round to nearest even by adding half of what is cut off, less one where the kept part is even.

    A carry out of the mantissa steps the exponent, which is right up to and including infinity. It would turn some NaN
    into numbers, so those take their upper half with the quiet bit set.
    """
    rounded = np.empty(min(values.size, CHUNK_ELEMENTS), np.uint32)
    for chunk in chunks(0, values.size):
        bits = values[chunk].view(np.uint32)
        work = rounded[: bits.size]
        np.right_shift(bits, 16, out=work)
        np.bitwise_and(work, 1, out=work)
        np.add(work, 0x7FFF, out=work)
        np.add(work, bits, out=work)
        np.right_shift(work, 16, out=work)
        np.copyto(out[chunk], work, casting="unsafe")
        nan = np.isnan(values[chunk])
        if nan.any():
            out[chunk][nan] = (bits[nan] >> 16) | 0x40


def _from_bfloat16(stored: npt.NDArray[np.uint16], out: Float32) -> None:
    for chunk in chunks(0, stored.size):
        bits = out[chunk].view(np.uint32)
        np.copyto(bits, stored[chunk])
        np.left_shift(bits, 16, out=bits)

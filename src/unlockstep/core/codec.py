"""A fragment as bytes: a safetensors file whose header both ends know in advance.

::

    │ 8 bytes: length of the header │ header: JSON, padded with spaces │ payload: tensors, little-endian, no gaps │

``float32`` and ``bfloat16``: the payload is the tensors of the fragment. ``int8``, ``int4`` and ``int2``: it is two
tensors of their own, ``codes`` and ``scales``, for all elements of the fragment one after the other (``blocks``); the
header's metadata say which tensor begins at which element.

The header also holds the digest of the layout and the fragment. It depends on the layout and the format alone, so a
receiver compares bytes and parses nothing; any safetensors reader can open what is stored.

Decides the bytes of a fragment in each numeric format. Does not decide which format is used, what is encoded
(``feedback``), nor what a refused body costs its sender.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from unlockstep.core.blocks import BlockEncoder, Bytes, Halves, block_count, code_bytes, decode
from unlockstep.core.chunks import CHUNK_ELEMENTS, Float32, chunks, run, spans
from unlockstep.core.digests import digest_of
from unlockstep.core.errors import LocalProtocolError, RemoteProtocolError
from unlockstep.core.formats import BLOCK_ELEMENTS, SCALE_BITS, Codec
from unlockstep.core.layout import RESERVED_NAME, Layout

if TYPE_CHECKING:
    from concurrent.futures import Executor

Body: TypeAlias = bytes | bytearray | memoryview

_Writer: TypeAlias = Callable[[slice, Float32, Float32 | None], None]
"""Writes the elements of a chunk, and what was lost of them."""

_PAYLOAD_ALIGNMENT = 64
"""The payload starts at a multiple of this many bytes, a cache line; the format asks for 8."""


class FragmentCodec:
    """Writes and reads the bodies of one fragment in one numeric format."""

    def __init__(self, layout: Layout, fragment: int, codec: Codec) -> None:
        self.fragment = fragment
        self.codec = codec
        self.size = layout.fragment_size(fragment)
        self._header = _header(layout, fragment, codec)
        if codec.is_integer:
            self._code_bytes = block_count(self.size) * code_bytes(codec.bits)
            payload_bytes = self._code_bytes + block_count(self.size) * SCALE_BITS // 8
        else:
            payload_bytes = self.size * codec.bits // 8
        self.body_size = len(self._header) + payload_bytes

    def blank(self) -> memoryview:
        """A body with its header, and a payload still to be written."""
        body = np.empty(self.body_size, np.uint8)
        body[: len(self._header)] = np.frombuffer(self._header, np.uint8)
        return body.data

    def payload(self, body: Body) -> npt.NDArray[Any]:
        """The elements of ``body`` as stored, without a copy: float32[n], or the bits of bfloat16 as uint16[n]. An
        integer format has no such thing."""
        assert not self.codec.is_integer, "an integer has no value without its scale"
        dtype = np.dtype("<f4") if self.codec is Codec.FLOAT32 else np.dtype("<u2")
        return np.frombuffer(body, dtype, self.size, len(self._header)) if self.size else np.empty(0, dtype)

    def encode(
        self,
        values: Float32,
        executor: Executor | None = None,
        *,
        less: Float32 | None = None,
        lost: Float32 | None = None,
        chance: int | None = None,
    ) -> memoryview:
        """The body that holds ``values - less + lost``, in ``body_size`` new bytes.

        Args:
            values: float32[n].
            executor: threads to lend; the bytes do not depend on it.
            less: float32[n] to be subtracted; ``None``: nothing.
            lost: float32[n] to be added, and then written over with what rounding has taken: the sum minus what the
                body decodes to, 0 where that is NaN. ``None``: nothing, and nobody wants to know.
            chance: seed of stochastic rounding, 64 bits, for an integer format; ``None`` rounds to nearest.

        Raises:
            LocalProtocolError: ``values`` is not float32[n].
        """
        if values.dtype != np.float32 or values.shape != (self.size,):
            raise LocalProtocolError(
                f"fragment {self.fragment} has {self.size} float32 elements, not {values.shape} of {values.dtype}"
            )
        body = self.blank()
        writer = self._block_writer if self.codec.is_integer else self._element_writer

        def encode_span(span: tuple[int, int]) -> None:
            write = writer(body, chance)
            work = np.empty(min(CHUNK_ELEMENTS, span[1] - span[0]), np.float32)
            for chunk in chunks(*span):
                total = values[chunk]
                if less is not None:
                    total = np.subtract(total, less[chunk], out=work[: total.size])
                if lost is not None:
                    total = np.add(total, lost[chunk], out=work[: total.size])
                write(chunk, total, None if lost is None else lost[chunk])

        run(executor, encode_span, spans(0, self.size))
        return body

    def decode(self, body: Body, executor: Executor | None = None, out: Float32 | None = None) -> Float32:
        """The values in ``body``, float32[n]: for ``FLOAT32`` a view of it (writable only if it is), else ``out``, or a
        new array.

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
        if self.codec is Codec.FLOAT32:
            return self.payload(body).view(np.float32)
        values = np.empty(self.size, np.float32) if out is None else out
        if self.codec.is_integer:
            codes, scales = self._blocks(body)

            def decode_span(span: tuple[int, int]) -> None:
                for chunk in chunks(*span):
                    decode(*self._blocks_of(chunk, codes, scales), self.codec.bits, values[chunk])

            run(executor, decode_span, spans(0, self.size))
        else:
            stored = self.payload(body)
            run(executor, lambda span: _from_bfloat16(stored[slice(*span)], values[slice(*span)]), spans(0, self.size))
        return values

    # ------------------------------------------------------------------------------------------- what a payload is

    def _element_writer(self, body: Body, chance: int | None) -> _Writer:
        payload = self.payload(body)

        def write(chunk: slice, total: Float32, lost: Float32 | None) -> None:
            if self.codec is Codec.FLOAT32:
                payload[chunk] = total
                if lost is not None:
                    lost[:] = 0
                return
            _to_bfloat16(total, payload[chunk])
            if lost is not None:
                _from_bfloat16(payload[chunk], lost)
                with np.errstate(invalid="ignore"):
                    np.subtract(total, lost, out=lost)
                np.copyto(lost, 0, where=~np.isfinite(lost))

        return write

    def _block_writer(self, body: Body, chance: int | None) -> _Writer:
        codes, scales = self._blocks(body)
        encoder = BlockEncoder(self.codec.bits, self.size)

        def write(chunk: slice, total: Float32, lost: Float32 | None) -> None:
            seed = None if chance is None else chance + chunk.start
            encoder.encode(total, *self._blocks_of(chunk, codes, scales), lost=lost, chance=seed)

        return write

    def _blocks(self, body: Body) -> tuple[Bytes, Halves]:
        """The codes and the bits of the scales, without a copy."""
        payload = np.frombuffer(body, np.uint8)[len(self._header) :]
        return payload[: self._code_bytes], payload[self._code_bytes :].view("<u2")

    def _blocks_of(self, chunk: slice, codes: Bytes, scales: Halves) -> tuple[Bytes, Halves]:
        """Those of a chunk, which begins with a block."""
        first, stop = chunk.start // BLOCK_ELEMENTS, block_count(chunk.stop)
        width = code_bytes(self.codec.bits)
        return codes[first * width : stop * width], scales[first:stop]


def fragment_codecs(layout: Layout, codec: Codec) -> tuple[FragmentCodec, ...]:
    """One for every fragment, at its index."""
    return tuple(FragmentCodec(layout, fragment, codec) for fragment in range(layout.fragment_count))


def body_digest(body: Body) -> str:
    """What a body is known by, in hex."""
    return digest_of(body).hex()


def _header(layout: Layout, fragment: int, codec: Codec) -> bytes:
    metadata = {"layout": layout.digest, "fragment": str(fragment)}
    tensors = (_block_tensors if codec.is_integer else _element_tensors)(layout, fragment, codec)
    if codec.is_integer:
        slots = [[slot.tensor.name, slot.offset, slot.tensor.shape] for slot in layout.fragments[fragment]]
        metadata |= {"codec": codec.value, "block": str(BLOCK_ELEMENTS), "tensors": _json(slots)}
    text = _json({RESERVED_NAME: metadata, **tensors}).encode()
    text += b" " * (-(8 + len(text)) % _PAYLOAD_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _element_tensors(layout: Layout, fragment: int, codec: Codec) -> dict[str, object]:
    width = codec.bits // 8
    return {
        slot.tensor.name: {
            "dtype": {Codec.FLOAT32: "F32", Codec.BFLOAT16: "BF16"}[codec],
            "shape": slot.tensor.shape,
            "data_offsets": (slot.offset * width, slot.stop * width),
        }
        for slot in layout.fragments[fragment]
    }


def _block_tensors(layout: Layout, fragment: int, codec: Codec) -> dict[str, object]:
    blocks, width = block_count(layout.fragment_size(fragment)), code_bytes(codec.bits)
    end, last = blocks * width, blocks * (width + SCALE_BITS // 8)
    return {
        "codes": {"dtype": "U8", "shape": (blocks, width), "data_offsets": (0, end)},
        "scales": {"dtype": "BF16", "shape": (blocks,), "data_offsets": (end, last)},
    }


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

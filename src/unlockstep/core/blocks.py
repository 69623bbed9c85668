"""Numbers as small integers in blocks, with one scale for each block.

::

    x_i  ~  code_i * scale             code: an integer of 8, 4 or 2 bits in two's complement; scale: a bfloat16

    nearest:     scale = extreme / -2**(bits - 1)              code = round(x / scale), ties to even
    stochastic:  scale = extreme / -(2**(bits - 1) - 1)        code = floor(x / scale + chance), chance in [0, 1)

*Extreme* is the element of the block that is largest in magnitude, with its sign. For rounding to nearest it gets the
lowest code, of which there is one more than of positive ones: a step is 1/8 of the extreme instead of 1/7 (4 bits), for
what an element of almost the same length and the other sign loses by having to take the highest code. For stochastic
rounding nothing may be cut off, or the expected value would not be exact: there the scale is rounded away from zero.

What is packed: consecutive elements from the lowest bits of a byte on. A block with a NaN or an infinity in it has NaN
for a scale, so all of it decodes to NaN: whoever receives it sees that there is something wrong. A block of zeros has
the scale 0. Every finite block decodes to finite numbers.

Decides the integers, to the bit: they depend on the values (and on the seed of chance) alone. Does not decide what lies
where in a body (``codec``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from unlockstep.core.chunks import CHUNK_ELEMENTS, Float32
from unlockstep.core.formats import BLOCK_ELEMENTS

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint16]
Words = npt.NDArray[np.uint32]

_ROUNDER = np.float32(1.5 * 2**23)
"""Added to a small float32, it leaves the nearest integer in the lowest bits of the sum, in two's complement."""

_NAN = np.float32("nan")

_CHANCES_PER_HASH = 4
_CHANCE_STEP = np.float32(2.0**-16)


def block_count(elements: int) -> int:
    """Blocks for so many elements; the last one may not be full."""
    return -(-elements // BLOCK_ELEMENTS)


def code_bytes(bits: int) -> int:
    """Bytes of a block's codes."""
    return BLOCK_ELEMENTS * bits // 8


class BlockEncoder:
    """Encodes one chunk after the other. Every task takes its own: it works in arrays that it keeps.

    Args:
        bits: of a code: 8, 4 or 2.
        elements_max: of the largest chunk.
    """

    def __init__(self, bits: int, elements_max: int = CHUNK_ELEMENTS) -> None:
        size = block_count(min(elements_max, CHUNK_ELEMENTS)) * BLOCK_ELEMENTS
        self._bits = bits
        self._padded = np.zeros(BLOCK_ELEMENTS if elements_max else 0, np.float32)
        self._magnitudes = np.empty(size, np.uint32)
        self._quotients = np.empty(size, np.float32)
        self._codes = np.empty(size, np.uint8)

    def encode(
        self, values: Float32, codes: Bytes, scales: Halves, *, lost: Float32 | None = None, chance: int | None = None
    ) -> None:
        """Write the codes and scales of a chunk.

        Args:
            values: float32[n], n at most a chunk.
            codes: uint8[block_count(n) * code_bytes(bits)] to write to. Beyond n the last block holds zeros.
            scales: the bits of bfloat16[block_count(n)] to write to.
            lost: float32[n] to write to: ``values`` minus what they decode to; 0 in blocks that decode to NaN. May be
                ``values``.
            chance: seed of this chunk's stochastic rounding; ``None`` rounds to nearest.
        """
        whole, blocks, at = _whole(values.size, self._bits)
        with np.errstate(all="ignore"):
            if whole:
                left = None if lost is None else lost[:whole]
                self._encode(values[:whole], codes[:at], scales[:blocks], left, chance, 0)
            if rest := values.size - whole:
                self._padded[:rest], self._padded[rest:] = values[whole:], 0
                self._encode(self._padded, codes[at:], scales[blocks:], self._padded, chance, whole)
                if lost is not None:
                    lost[whole:] = self._padded[:rest]

    def _encode(
        self, values: Float32, codes: Bytes, scales: Halves, lost: Float32 | None, chance: int | None, start: int
    ) -> None:
        highest = np.float32(2 ** (self._bits - 1) - 1)
        scale, is_finite = self._scales(values, chance is not None)
        unfit = None if is_finite.all() else ~is_finite
        scales[:] = scale.view(np.uint32) >> 16
        quotients = self._quotients[: values.size]
        rows = quotients.reshape(-1, BLOCK_ELEMENTS)
        divisor = np.where(scale == 0, np.float32(1), scale)[:, None]
        np.divide(values.reshape(rows.shape), divisor, out=rows)
        if unfit is not None:
            rows[unfit] = 0
        if chance is not None:
            noise = self._magnitudes[: values.size].view(np.float32)
            np.add(quotients, _chances(chance, start, noise), out=quotients)
        np.minimum(quotients, highest, out=quotients)
        np.maximum(quotients, -highest - 1, out=quotients)
        np.add(quotients, _ROUNDER, out=quotients)
        lowest = self._codes[: values.size]
        np.copyto(lowest, quotients.view(np.uint32), casting="unsafe")
        codes[:] = _packed(lowest, self._bits)
        if lost is not None:
            np.subtract(quotients, _ROUNDER, out=quotients)
            np.multiply(rows, scale[:, None], out=rows)
            np.subtract(values, quotients, out=lost)
            if unfit is not None:
                lost.reshape(rows.shape)[unfit] = 0

    def _scales(self, values: Float32, is_stochastic: bool) -> tuple[Float32, npt.NDArray[np.bool_]]:
        """The scale of every block, a bfloat16 in float32, and which blocks are finite."""
        extremes = self._extremes(values)
        is_finite = np.isfinite(extremes)
        divisions = 2 ** (self._bits - 1)
        if is_stochastic:
            exact = extremes / np.float32(1 - divisions)
            bits = exact.view(np.uint32) + np.uint32(0xFFFF)
        else:
            exact = extremes / np.float32(-divisions)
            bits = exact.view(np.uint32)
            bits = ((bits >> 16) & 1) + np.uint32(0x7FFF) + bits
        scale: Float32 = (bits & np.uint32(0xFFFF0000)).view(np.float32)
        # The lowest code times the scale is the largest number to come out; it must not leave the range of float32.
        largest = np.float32((2 - 2.0**-7) * 2.0 ** (127 - self._bits + 1))
        np.copyto(scale, np.copysign(largest, scale), where=np.abs(scale) > largest)
        scale[scale == 0] = 0  # without a sign
        scale[~is_finite] = _NAN
        return scale, is_finite

    def _extremes(self, values: Float32) -> Float32:
        """The element of every block that is largest in magnitude; with its sign moved to the lowest bit, the bits of a
        float32 are ordered as the magnitudes are, infinities and NaN last."""
        bits = values.view(np.uint32)
        turned, signs = self._magnitudes[: values.size], self._quotients[: values.size].view(np.uint32)
        np.left_shift(bits, 1, out=turned)
        np.right_shift(bits, 31, out=signs)
        np.bitwise_or(turned, signs, out=turned)
        largest: Words = np.maximum.reduce(turned.reshape(-1, BLOCK_ELEMENTS), axis=1)
        return ((largest >> 1) | (largest << 31)).view(np.float32)


def decode(codes: Bytes, scales: Halves, bits: int, out: Float32) -> None:
    """Read a chunk: float32[n] from what ``BlockEncoder.encode`` has written, or whatever else there is."""
    whole, blocks, at = _whole(out.size, bits)
    with np.errstate(all="ignore"):
        if whole:
            _decode(codes[:at], scales[:blocks], bits, out[:whole])
        if rest := out.size - whole:
            last = np.empty(BLOCK_ELEMENTS, np.float32)
            _decode(codes[at:], scales[blocks:], bits, last)
            out[whole:] = last[:rest]


def _whole(elements: int, bits: int) -> tuple[int, int, int]:
    """Of so many elements those in full blocks, these blocks, and the bytes of their codes."""
    blocks = elements // BLOCK_ELEMENTS
    return blocks * BLOCK_ELEMENTS, blocks, blocks * code_bytes(bits)


def _decode(codes: Bytes, scales: Halves, bits: int, out: Float32) -> None:
    if bits == 8:
        np.copyto(out, codes.view(np.int8))
    else:  # All the elements of a byte at once.
        table = _TABLES[bits]
        np.take(table, codes, out=out.view(table.dtype), mode="wrap")
    scale = np.left_shift(scales, 16, dtype=np.uint32).view(np.float32)
    rows = out.reshape(-1, BLOCK_ELEMENTS)
    np.multiply(rows, scale[:, None], out=rows)


def _table(bits: int, item: type[Any]) -> npt.NDArray[Any]:
    """The elements in every possible byte, as float32, and those of one byte taken for one item."""
    byte = np.arange(256)[:, None]
    codes = byte >> np.arange(0, 8, bits) & (2**bits - 1)
    signed = codes - 2**bits * (codes >= 2 ** (bits - 1))
    table: npt.NDArray[Any] = np.ascontiguousarray(signed, np.float32).view(item).reshape(256)
    return table


_TABLES = {4: _table(4, np.uint64), 2: _table(2, np.complex128)}


def _packed(codes: Bytes, bits: int) -> Bytes:
    """Codes of which the lowest ``bits`` count, without the others. Step by step: two neighbours, seen as one number of
    16 bits, are moved together."""
    while bits < 8:
        pairs = codes.view("<u2")
        np.bitwise_and(pairs, np.uint16((2**bits - 1) * 0x0101), out=pairs)
        np.bitwise_or(pairs, pairs >> np.uint16(8 - bits), out=pairs)
        codes, bits = pairs.astype(np.uint8), 2 * bits
    return codes


def _chances(seed: int, start: int, out: Float32) -> Float32:
    """Numbers in steps of 2**-16, evenly in (-1/2, 1/2), for elements from ``start`` on: the finaliser of splitmix64 of
    a counter. The same for the same seed and element, wherever it runs."""
    first = start // _CHANCES_PER_HASH
    hashed = np.arange(first, first + out.size // _CHANCES_PER_HASH, dtype="<u8")
    hashed += np.uint64(seed % 2**64)
    hashed ^= hashed >> np.uint64(30)
    hashed *= np.uint64(0xBF58476D1CE4E5B9)
    hashed ^= hashed >> np.uint64(27)
    hashed *= np.uint64(0x94D049BB133111EB)
    hashed ^= hashed >> np.uint64(31)
    np.copyto(out, hashed.view("<u2"))
    np.multiply(out, _CHANCE_STEP, out=out)
    return np.subtract(out, np.float32(0.5) - _CHANCE_STEP / 2, out=out)

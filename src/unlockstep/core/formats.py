"""The numeric formats in which fragments travel, by name: how many bits an element takes, and how integers are rounded.

Decides the vocabulary, and the size of a block. What the bits of an element are is decided in ``codec`` and
``blocks``; which format a learner uses, in ``codec_choice``.
"""

from __future__ import annotations

from enum import Enum

BLOCK_ELEMENTS = 64
"""Consecutive elements of a fragment that share a scale, in the integer formats."""

SCALE_BITS = 16
"""A scale is a bfloat16."""


class Codec(Enum):
    """How one element is written. In order: from the finest to the coarsest."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    """The upper half of a float32, rounded to nearest, ties to even: relative error at most 2**-8."""
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"
    """Multiples of a scale that every block has of its own (``blocks``)."""

    @property
    def bits(self) -> int:
        """Of an element."""
        return {Codec.FLOAT32: 32, Codec.BFLOAT16: 16, Codec.INT8: 8, Codec.INT4: 4, Codec.INT2: 2}[self]

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers in blocks."""
        return self.bits < 16

    @property
    def bits_per_element(self) -> float:
        """What an element costs on the wire, with its share of a scale."""
        return self.bits + (SCALE_BITS / BLOCK_ELEMENTS if self.is_integer else 0)


class Rounding(Enum):
    """How an element of a block becomes an integer."""

    NEAREST = "nearest"
    """The nearest one: the smallest error."""
    STOCHASTIC = "stochastic"
    """One of the two around it, by a chance that makes the expected value exact."""


class Packing(Enum):
    """How a body is made smaller without losing a bit (``net.wire.packing``)."""

    NONE = "none"
    ZLIB = "zlib"
    ZSTD = "zstd"

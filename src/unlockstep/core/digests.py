"""What a body is known by: BLAKE3, 32 bytes, written in hex.

Decides the hash. Every byte is hashed by who sends it and by who takes it; with SHA-256 that takes longer than moving
the byte on a fast link (2 against 7 GB/s a core where processors have instructions for either), and both are as hard to
forge. SHA-256 is understood too, because every computer has ``sha256sum``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol, TypeAlias

from blake3 import blake3

Buffer: TypeAlias = bytes | bytearray | memoryview

BLAKE3, SHA256 = "blake3", "sha-256"
"""As the fields of RFC 9530 are written."""

DIGEST_BYTES = 32


class Hasher(Protocol):
    """Bytes in, digest out; lets other threads run meanwhile."""

    def update(self, data: Buffer, /) -> object: ...

    def digest(self) -> bytes: ...

    def hexdigest(self) -> str: ...


_HASHERS: dict[str, Callable[[], Hasher]] = {BLAKE3: blake3, SHA256: hashlib.sha256}
ALGORITHMS = tuple(_HASHERS)


def hasher(algorithm: str = BLAKE3) -> Hasher:
    """One of ``ALGORITHMS`` that has seen nothing yet."""
    return _HASHERS[algorithm]()


def digest_of(data: Buffer) -> bytes:
    """BLAKE3 of ``data``."""
    return blake3(data).digest()

"""A fragment as a file: its tensors and the state of its outer optimizer, exact, for any safetensors reader.

::

    │ 8 bytes: length of the header │ header: JSON, padded with spaces │ tensors │ state │   all float32, little-endian

Decides the bytes and the name of such a file, and whether one is sound. Does not decide when one is written or deleted
(``run_store``). Arrays are neither copied to be written nor, once their file is in memory, to be read.
"""

from __future__ import annotations

import hashlib
import json
import re

import msgspec
import numpy as np

from unlockstep.core.chunks import Float32
from unlockstep.core.errors import LocalProtocolError, UnlockstepError
from unlockstep.core.layout import RESERVED_NAME, Layout
from unlockstep.store.place import Part, Place

FOLDER = "fragments"
STATE_NAME = "__outer_state__"
"""The outer optimizer's state, as a tensor beside the others; the metadata say if it had to get another name."""

NAME = re.compile(r"[0-9]{10,}-[0-9a-f]{12}\.safetensors")
"""Of a file in its folder: version, and the beginning of the digest of its bytes."""

_FULL_NAME = re.compile(rf"{FOLDER}/[0-9]{{3,}}/{NAME.pattern}")

_ALIGNMENT = 64
_FLOAT32 = np.dtype("<f4")


class Damaged(UnlockstepError):
    """A file of the store is missing or is not what was written.

    Attributes:
        name: what a person calls the file.
        reason: what is wrong with it; with the name before it a sentence.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.reason = reason


class FragmentFile(msgspec.Struct, frozen=True):
    """One version of one fragment in the store. The file never changes; another content has another name."""

    fragment: int
    version: int
    digest: str
    """Of the body that was published, which may hold the values rounded."""
    name: str
    size: int
    """Bytes."""
    sha256: str
    """Of all its bytes, in hex."""


def fragment_file(
    layout: Layout, fragment: int, version: int, digest: str, values: Float32, outer_state: Float32
) -> tuple[FragmentFile, list[Part]]:
    """A version as a file: what it will be called, and its bytes, which share the memory of the arrays.

    Args:
        layout: names and shapes of the tensors.
        fragment: which of its fragments.
        version: number of the version.
        digest: of the published body.
        values: float32[n], contiguous.
        outer_state: float32[m], contiguous; m may be 0.

    Raises:
        LocalProtocolError: an array is not of that kind.
    """
    size = layout.fragment_size(fragment)
    if values.shape != (size,) or outer_state.ndim != 1:
        raise LocalProtocolError(
            f"fragment {fragment} has float32[{size}] and a flat state, not {values.shape} and {outer_state.shape}"
        )
    parts: list[Part] = [
        _header(layout, fragment, version, digest, outer_state.size),
        _bytes(values),
        _bytes(outer_state),
    ]
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    sha256 = hashed.hexdigest()
    name = f"{FOLDER}/{fragment:03}/{version:010}-{sha256[:12]}.safetensors"
    return FragmentFile(fragment, version, digest, name, sum(map(len, parts)), sha256), parts


def read_fragment_file(place: Place, file: FragmentFile) -> tuple[Float32, Float32]:
    """Values and outer state, float32[n] and float32[m], with the bits that were written; not to be written to.

    Raises:
        Damaged: the file is missing or is not what was written.
    """
    name = place.describe(file.name)
    try:
        data = place.read(file.name)
    except FileNotFoundError:
        raise Damaged(name, "is missing") from None
    if len(data) != file.size:
        raise Damaged(name, f"has {len(data)} bytes instead of {file.size}")
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise Damaged(name, "does not have the SHA-256 it was written with")
    start, state_start = _sections(name, data)
    values = np.frombuffer(data, _FLOAT32, (state_start - start) // 4, start) if state_start > start else _nothing()
    state = np.frombuffer(data, _FLOAT32, -1, state_start) if len(data) > state_start else _nothing()
    return values.astype(np.float32, copy=False), state.astype(np.float32, copy=False)


def is_name(name: str) -> bool:
    """Whether a file of the store may be called so: a record that names another place does not come from here."""
    return _FULL_NAME.fullmatch(name) is not None


def _sections(name: str, data: bytes) -> tuple[int, int]:
    """Where the tensors and where the state begin. Raises Damaged if the file does not say so soundly."""
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start])
        state_start = start + header[header[RESERVED_NAME]["outer_state"]]["data_offsets"][0]
        is_sound = isinstance(state_start, int) and start <= state_start <= len(data)
    except (ValueError, LookupError, TypeError, RecursionError):
        is_sound = False
    if not is_sound or (len(data) - start) % 4 or (state_start - start) % 4:
        raise Damaged(name, "has a header that does not fit its content")
    return start, state_start


def _header(layout: Layout, fragment: int, version: int, digest: str, state_size: int) -> bytes:
    slots = layout.fragments[fragment]
    state_name = STATE_NAME
    while any(slot.tensor.name == state_name for slot in slots):
        state_name = f"_{state_name}_"
    metadata = {"fragment": str(fragment), "version": str(version), "digest": digest, "layout": layout.digest}
    header: dict[str, object] = {RESERVED_NAME: {**metadata, "outer_state": state_name}}
    for slot in slots:
        offsets = (4 * slot.offset, 4 * slot.stop)
        header[slot.tensor.name] = {"dtype": "F32", "shape": slot.tensor.shape, "data_offsets": offsets}
    start = 4 * layout.fragment_size(fragment)
    offsets = (start, start + 4 * state_size)
    header[state_name] = {"dtype": "F32", "shape": (state_size,), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(values: Float32) -> memoryview:
    if values.dtype != np.float32 or not values.flags.c_contiguous:
        raise LocalProtocolError(
            f"an array to be stored is {values.dtype} with strides {values.strides}, not flat float32"
        )
    return values.astype(_FLOAT32, copy=False).view(np.uint8).data


def _nothing() -> Float32:
    empty = np.empty(0, np.float32)
    empty.setflags(write=False)
    return empty

"""The state that one learner gives to another, as it travels: a safetensors file in memory.

Decides what is in it and how it is read: numbers and names, nothing that is ever executed, and every byte accounted
for. Does not decide what an inner optimizer remembers (``torch_state``) nor whether it fits (whoever loads it).

Tensors: ``fragment.P`` float32, the donor's parameters; the others as their backend calls them. One metadata entry,
``unlockstep``: JSON with the donor's versions and clock, its layout's digest, whose it is and of which moment, and the
facts of the inner state.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from unlockstep.core.codec import Body
from unlockstep.core.deeds import Moment
from unlockstep.core.errors import RemoteProtocolError
from unlockstep.core.layout import Layout
from unlockstep.core.messages import VersionNotice
from unlockstep.learners.backend import DTYPES, FloatArray, State, TensorBits

SCHEMA = 2

HEADER_BYTES_MAX = 64 * 1024 * 1024
"""Names, shapes and facts of a model with some hundred thousand tensors."""

_DTYPES = {code: (dtype, size) for dtype, (code, size) in DTYPES.items()}


class Donated(msgspec.Struct, frozen=True):
    """A learner's state at one step boundary."""

    notices: tuple[VersionNotice, ...]
    """By fragment, the version adopted last; an empty digest: it is not known."""
    clock: int
    fragments: tuple[FloatArray, ...]
    """The donor's parameters, float32[fragment_size] each."""
    inner: State
    """What its inner optimizer remembers."""
    of: Moment
    """Whose it is, and of when."""


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    layout_digest: str
    clock: int
    notices: tuple[VersionNotice, ...]
    inner: dict[str, Any]
    of: Moment


def encode_state(
    donated: Donated, layout: Layout, make_room: Callable[[int], bytearray | memoryview] = bytearray
) -> memoryview:
    """The body, laid into the room that is made for so many bytes. Equal states give equal bytes."""
    fragments = {
        f"fragment.{index}": TensorBits("float32", values.shape, np.ascontiguousarray(values, "<f4").view(np.uint8))
        for index, values in enumerate(donated.fragments)
    }
    assert not fragments.keys() & donated.inner.tensors.keys(), "an inner state has no fragments"
    tensors: Mapping[str, TensorBits] = {**fragments, **donated.inner.tensors}
    facts = _Facts(SCHEMA, layout.digest, donated.clock, donated.notices, dict(donated.inner.facts), donated.of)
    header: dict[str, Any] = {"__metadata__": {"unlockstep": json.dumps(msgspec.to_builtins(facts))}}
    offset = 0
    names = sorted(tensors, key=lambda name: (-DTYPES[tensors[name].dtype][1], name))  # all of them aligned
    for name in names:
        bits = tensors[name]
        header[name] = {
            "dtype": DTYPES[bits.dtype][0],
            "shape": list(bits.shape),
            "data_offsets": [offset, offset + bits.data.nbytes],
        }
        offset += bits.data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    body = memoryview(make_room(start + offset))
    body[:8], body[8:start] = len(text).to_bytes(8, "little"), text
    for name in names:
        data = tensors[name].data
        np.copyto(np.frombuffer(body[start : start + data.nbytes], np.uint8), data)
        start += data.nbytes
    return body


def decode_state(body: Body, layout: Layout) -> Donated:
    """What a body holds; its arrays are views of it.

    Raises:
        RemoteProtocolError: it is not such a body, or of another model.
    """
    view = memoryview(body).cast("B")
    size = int.from_bytes(view[:8], "little")
    if len(view) < 8 or size > min(HEADER_BYTES_MAX, len(view) - 8):
        raise RemoteProtocolError("the state has no header")
    try:
        header = msgspec.json.decode(view[8 : 8 + size])
        metadata = msgspec.convert(header.pop("__metadata__"), dict[str, str])
        facts = msgspec.json.decode(metadata["unlockstep"], type=_Facts)
        found = msgspec.convert(header, dict[str, _Tensor])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"the header of the state cannot be read: {error}") from None
    tensors = _tensors(found, np.frombuffer(view[8 + size :], np.uint8))
    if facts.schema != SCHEMA:
        raise RemoteProtocolError(f"the state has schema {facts.schema}, this version reads {SCHEMA}")
    if facts.layout_digest != layout.digest or len(facts.notices) != layout.fragment_count:
        raise RemoteProtocolError("the state is of another model, or one that is cut differently")
    fragments = [_fragment(tensors, index, layout) for index in range(layout.fragment_count)]
    if [notice.fragment for notice in facts.notices] != list(range(layout.fragment_count)) or facts.clock < 0:
        raise RemoteProtocolError("the state does not say of which versions it is")
    return Donated(facts.notices, facts.clock, tuple(fragments), State(tensors, facts.inner), facts.of)


def _tensors(found: dict[str, _Tensor], data: np.ndarray[Any, np.dtype[np.uint8]]) -> dict[str, TensorBits]:
    """Each tensor's bytes; they follow one another without a gap, to the end."""
    tensors, position = {}, 0
    for name, tensor in sorted(found.items(), key=lambda item: item[1].data_offsets):
        dtype, item_size = _DTYPES.get(tensor.dtype, ("", 0))
        start, stop = tensor.data_offsets
        fits = bool(dtype) and min(tensor.shape, default=0) >= 0 and stop - start == item_size * math.prod(tensor.shape)
        if not fits or start != position or stop > data.size:
            raise RemoteProtocolError(f"tensor {name[:100]!r} of the state does not have the bytes of its shape")
        tensors[name], position = TensorBits(dtype, tensor.shape, data[start:stop]), stop
    if position != data.size:
        raise RemoteProtocolError("the state has bytes that belong to no tensor")
    return tensors


def _fragment(tensors: dict[str, TensorBits], index: int, layout: Layout) -> FloatArray:
    bits = tensors.pop(f"fragment.{index}", None)
    if bits is None or bits.dtype != "float32" or bits.shape != (layout.fragment_size(index),):
        raise RemoteProtocolError(f"fragment {index} is missing in the state, or has another size")
    return bits.data.view("<f4")

"""The state of a learner as it travels: what goes in comes out, and nothing else is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from unlockstep.core.deeds import Moment
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.layout import LayoutMethod, build_layout
from unlockstep.core.messages import VersionNotice
from unlockstep.learners.backend import DTYPES, State, TensorBits
from unlockstep.learners.records import bits_of, tensor_of
from unlockstep.learners.state_body import Donated, decode_state, encode_state
from unlockstep.learners.toy import ToyBackend

TOY = ToyBackend(sizes=(3, 4))
LAYOUT = build_layout(TOY.tensors(), 2, LayoutMethod.BALANCED)


def encoded(state: Donated) -> bytes:
    return bytes(encode_state(state, LAYOUT))


def donated() -> Donated:
    fragments = tuple(np.arange(LAYOUT.fragment_size(p), dtype=np.float32) - p for p in range(2))
    inner = State(
        {
            "odd": TensorBits("bfloat16", (3,), np.arange(6, dtype=np.uint8)),
            "none": TensorBits("int64", (0,), np.zeros(0, np.uint8)),
            "scalar": TensorBits("float32", (), np.float32([2.5]).view(np.uint8)),
        },
        {"optimizers": [{"lr": 0.1}]},
    )
    return Donated((VersionNotice(0, 3, "x"), VersionNotice(1, 4, "")), 17, fragments, inner, Moment("donor", 1, 9, 4))


def test_what_goes_in_comes_out_and_any_reader_of_safetensors_opens_it() -> None:
    body = encoded(donated())
    back, given = decode_state(body, LAYOUT), donated()
    assert (back.notices, back.clock, back.inner.facts) == (given.notices, given.clock, given.inner.facts)
    for values, expected in zip(back.fragments, given.fragments, strict=True):
        assert_array_equal(values, expected)
    assert back.inner.tensors.keys() == given.inner.tensors.keys()
    for name, bits in given.inner.tensors.items():
        found = back.inner.tensors[name]
        assert (found.dtype, found.shape, found.data.tobytes()) == (bits.dtype, bits.shape, bits.data.tobytes())
    tensors = safetensors.torch.load(body)
    assert tensors["scalar"] == 2.5 and tensors["odd"].dtype is torch.bfloat16
    assert_array_equal(tensors["fragment.1"].numpy(), given.fragments[1])


@pytest.mark.parametrize("shape", [(2, 3), (0, 4), ()], ids=["matrix", "empty", "scalar"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_travels_byte_for_byte(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """C16. What torch holds of an element is what travels, two bytes of a bfloat16, and torch's reader finds it."""
    _, size = DTYPES[dtype]
    raw = np.arange(size * int(np.prod(shape)), dtype=np.uint8) % 2  # as bits of bool, too
    tensor = tensor_of(TensorBits(dtype, shape, raw))
    bits = bits_of(tensor)
    assert (tensor.dtype, tensor.element_size()) == (getattr(torch, dtype), size)
    assert bits.data.tobytes() == raw.tobytes()
    given = donated()
    body = encoded(msgspec.structs.replace(given, inner=State({"odd": bits}, {})))
    found = decode_state(body, LAYOUT).inner.tensors["odd"]
    assert (found.dtype, found.shape, found.data.tobytes()) == (dtype, shape, raw.tobytes())
    assert len(body) - len(encoded(msgspec.structs.replace(given, inner=State({}, {})))) < raw.size + 100
    (tmp_path / "body").write_bytes(body)
    read = bits_of(safetensors.torch.load_file(tmp_path / "body")["odd"])
    assert (read.dtype, read.data.tobytes()) == (dtype, raw.tobytes())


def test_a_dtype_that_no_file_holds_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"a tensor is torch.complex128, which a file cannot hold; keep it as one of"):
        bits_of(torch.zeros(2, dtype=torch.complex128))


def header_of(body: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(body[:8], "little")
    return json.loads(body[8 : 8 + size]), body[8 + size :]


def with_header(change: Callable[[dict[str, Any]], object]) -> bytes:
    header, data = header_of(encoded(donated()))
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def with_facts(**changes: object) -> bytes:
    def change(header: dict[str, Any]) -> None:
        facts = json.loads(header["__metadata__"]["unlockstep"]) | changes
        header["__metadata__"]["unlockstep"] = json.dumps(facts)

    return with_header(change)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no header"),
        (b"\xff" * 16, "no header"),
        (encoded(donated())[:-1], "bytes of its shape"),
        (encoded(donated()) + b"\0", "belong to no tensor"),
        (with_header(lambda header: header.pop("__metadata__")), "cannot be read"),
        (with_header(lambda header: header.pop("fragment.0")), "bytes of its shape"),
        (with_header(lambda header: header["scalar"].update(dtype="F128")), "bytes of its shape"),
        (with_header(lambda header: header["scalar"].update(shape=[-1, -1])), "bytes of its shape"),
        (with_header(lambda header: header["scalar"].update(code="print()")), "cannot be read"),
        (with_facts(schema=1), "schema 1"),
        (with_facts(layout_digest="other"), "another model"),
        (with_facts(notices=[]), "another model"),
        (with_facts(clock=-1), "which versions"),
        (with_facts(clock="soon"), "cannot be read"),
    ],
)
def test_what_is_not_such_a_body_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        decode_state(body, LAYOUT)


@given(st.integers(0, 600), st.binary(max_size=8))
def test_whatever_is_damaged_raises_only_one_kind_of_error(position: int, noise: bytes) -> None:
    body = bytearray(encoded(donated()))
    body[position : position + len(noise)] = noise
    with suppress(RemoteProtocolError):
        decode_state(bytes(body), LAYOUT)

"""Whatever somebody else has written, whoever reads it takes it or refuses it, with the error that is for that.

What a fuzzer finds (``make fuzz``) becomes an example here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.hostile import READERS


@st.composite
def spoilt(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """A sound sample with a few edits: bytes replaced, put in, taken out or repeated; or cut short."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(1, 8))
        match draw(st.sampled_from(["replace", "insert", "remove", "repeat", "cut"])):
            case "replace":
                data[at : at + size] = draw(st.binary(min_size=size, max_size=size))
            case "insert":
                data[at:at] = draw(st.binary(min_size=size, max_size=size))
            case "remove":
                del data[at : at + size]
            case "repeat":
                data[at:at] = data[at : at + 4 * size]
            case "cut":
                del data[at:]
    return bytes(data)


@pytest.mark.parametrize("name", READERS)
def test_a_sample_is_taken(name: str) -> None:
    for sample in READERS[name].samples:
        READERS[name].read(sample)


@pytest.mark.parametrize("name", READERS)
def test_what_was_spoilt_is_taken_or_refused(name: str) -> None:
    reader = READERS[name]

    @settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
    @given(spoilt(reader.samples) | st.binary(max_size=100))
    def law(data: bytes) -> None:
        reader.read(data)

    law()


FOUND = [
    ("messages", b"\x82\xa1a" + b"\x91" * 100_000),
    ("messages", b"\x91" * 100_000),
    ("settings", b"a=" + b"[" * 50_000),
    ("tokens", b"a=" + b"[" * 50_000),
    ("records", b'{"fragments":' + b"[" * 100_000),
    ("layouts", b"[" * 100_000),
    ("fragments", (10**6).to_bytes(8, "little") + b"[" * 100_000),
    ("fragments", (2**63).to_bytes(8, "little")),
    ("states", (50_000).to_bytes(8, "little") + b"[" * 50_000),
]


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_is_refused(name: str, data: bytes) -> None:
    READERS[name].read(data)


@pytest.mark.parametrize(
    "name", ["../../outside", "/etc/passwd", "fragments/000/../../../x", "records/0000000001.json"]
)
def test_a_record_that_names_a_file_outside_of_the_store_is_passed_over(name: str) -> None:
    (sample,) = READERS["records"].samples
    inside = b"fragments/001/0000000003-"
    start = sample.index(b'"' + inside) + 1
    stop = sample.index(b'"', start)
    READERS["records"].read(sample[:start] + name.encode() + sample[stop:])

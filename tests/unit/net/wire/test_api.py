"""Paths, digest fields and query records that both ends share."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.digests import ALGORITHMS
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.net.wire import api
from unlockstep.net.wire.ranges import BodyDigest


def test_the_digest_of_nothing_is_written_as_the_standard_writes_it() -> None:
    digest = hashlib.sha256(b"").hexdigest()
    assert api.content_digest(digest, "sha-256") == "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"


@given(st.binary(min_size=32, max_size=32), st.sampled_from(ALGORITHMS))
def test_a_digest_field_reads_back(digest: bytes, algorithm: str) -> None:
    field = api.content_digest(digest.hex(), algorithm)
    assert api.parse_content_digest(field) == BodyDigest(digest.hex(), algorithm=algorithm)
    assert api.parse_content_digest(f"sha-512=:AAAA:, {field}") == BodyDigest(digest.hex(), algorithm=algorithm)


@given(st.text())
@pytest.mark.parametrize("frame", ["{}", "sha-256={}", "sha-256=:{}:", "blake3=:{}:"])
def test_any_other_digest_field_is_refused(frame: str, text: str) -> None:
    try:
        found = api.parse_content_digest(frame.format(text))
    except RemoteProtocolError:
        return
    assert len(bytes.fromhex(found.hex)) == 32


def test_names_in_paths_cannot_leave_their_place() -> None:
    assert api.status_path("../etc") == "/v1/runs/..%2Fetc"
    assert api.version_path("run", 3, 7) == "/v1/runs/run/fragments/3/versions/7"
    assert api.contribution_path("run", 9, "l0", 2) == "/v1/runs/run/rounds/9/contributions/l0.2"


@pytest.mark.parametrize("number", [str(2**63 - 1), str(-(2**63)), "0"])
def test_counts_fill_64_bits(number: str) -> None:
    query = {"c_steps": number, "c_tokens": number, "tokens": number}
    assert msgspec.convert(query, api.CountsQuery, strict=False).tokens == int(number)


@pytest.mark.parametrize("number", [str(2**63), str(-(2**63) - 1), "1e30", "nan", "1.5", "", " 1", "0x10", "١x"])
def test_counts_that_are_no_whole_number_of_64_bits_are_refused(number: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"c_steps": "1", "c_tokens": number, "tokens": "1"}, api.CountsQuery, strict=False)


@pytest.mark.parametrize("host", ["a..b", "a" * 64, f"a.{'b' * 64}", "a b", ""])
def test_a_host_that_no_resolver_can_be_asked_for_is_no_address(host: str) -> None:
    with pytest.raises(UsageError, match=r"the syncer's address is .*; write http://host:port"):
        api.base_urls(f"http://{host}:7077")


@pytest.mark.parametrize("before", ["name:secret@", "name@", "@"])
def test_what_stands_before_a_host_is_refused_and_not_repeated(before: str) -> None:
    with pytest.raises(UsageError, match="in front of host; leave that out") as refused:
        api.base_urls(f"https://{before}host:7077")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://host:7077", "https://[::1]:7077", "http://b.example", "http://a_b.c."])
def test_names_and_addresses_are_taken_as_they_are(url: str) -> None:
    assert api.base_urls(url) == (url,)


def test_a_name_in_another_script_is_asked_for_as_resolvers_know_it() -> None:
    urls = api.base_urls("http://bücher.example,例え.jp,https://例え.jp:443")
    assert urls == (
        "http://xn--bcher-kva.example",
        f"http://xn--r8jz45g.jp:{api.PORT_DEFAULT}",
        "https://xn--r8jz45g.jp:443",
    )

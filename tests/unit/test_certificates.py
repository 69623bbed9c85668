"""What certificates say, and what they may be used for."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from unlockstep.certificates import NotACertificate, Pair, is_host, issue, new_authority, read_certificate

NOW = datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def told(tmp_path: Path, pair: Pair) -> tuple[str, tuple[str, ...], datetime.datetime, bool]:
    path = tmp_path / "cert.pem"
    path.write_bytes(pair.cert)
    found = read_certificate(path)
    assert found.begins == NOW - datetime.timedelta(minutes=10)
    assert found.begins_s < NOW.timestamp() < found.ends_s
    return found.subject, found.names, found.ends, found.is_authority


def test_an_authority_and_what_it_signs_say_who_they_are(tmp_path: Path) -> None:
    authority = new_authority("mine", NOW, 100)
    assert told(tmp_path, authority) == ("mine", (), NOW + 100 * DAY, True)
    syncer = issue(authority, "syncer", ["a.example", "10.0.0.1", "::1"], NOW, 30)
    assert told(tmp_path, syncer) == ("syncer", ("a.example", "10.0.0.1", "::1"), NOW + 30 * DAY, False)
    assert told(tmp_path, issue(authority, "client", [], NOW, 30)) == ("client", (), NOW + 30 * DAY, False)


def test_nothing_outlives_the_authority_that_signed_it(tmp_path: Path) -> None:
    assert told(tmp_path, issue(new_authority("mine", NOW, 10), "c", [], NOW, 1000))[2] == NOW + 10 * DAY


def test_a_certificate_that_is_renewed_keeps_its_key() -> None:
    authority = new_authority("mine", NOW, 100)
    before = issue(authority, "syncer", ["a"], NOW, 30)
    after = issue(authority, "syncer", ["a"], NOW + DAY, 30, before.key)
    assert after.key == before.key and after.cert != before.cert


def test_an_authority_with_another_key_is_of_no_use() -> None:
    one, other = new_authority("mine", NOW), new_authority("mine", NOW)
    with pytest.raises(ValueError, match="the authority's key is not that of its certificate"):
        issue(Pair(one.cert, other.key), "c", [], NOW, 1)


@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_that_holds_no_certificate_says_so(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_bytes(content)
    with pytest.raises(NotACertificate):
        read_certificate(tmp_path / "cert.pem")


@pytest.mark.parametrize("name", ["a", "a.example", "*.example", "10.0.0.1", "::1", "A-1.b-2", "x" * 63])
def test_a_certificate_can_be_for_a_host_or_an_address(name: str) -> None:
    assert is_host(name)


@pytest.mark.parametrize(
    "name", ["", "a b", "a:7077", "https://a", "a/b", "-a", "a-", "a..b", "x" * 64, "a." * 130, "*", "a.*", "é", "a_b"]
)
def test_a_certificate_is_for_nothing_else(name: str) -> None:
    assert not is_host(name)

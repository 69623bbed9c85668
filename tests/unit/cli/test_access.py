"""Where a command takes certificates and tokens from, and when a syncer may be reached by others."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.secret_files import Secrets, secrets_in
from unlockstep.cli.access import client_security, require_secured, server_security, told_in_vain
from unlockstep.core.errors import UsageError
from unlockstep.net.access.security import OPEN, ServerSecurity
from unlockstep.net.wire.listening import Endpoint

HTTPS = "https://127.0.0.1:7077"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Secrets:
    monkeypatch.delenv("UNLOCKSTEP_TOKEN", raising=False)
    monkeypatch.delenv("UNLOCKSTEP_CA", raising=False)
    return secrets_in(tmp_path / "secrets")


def test_flags_come_before_the_environment(secrets: Secrets, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_security(None, None, None, None).headers(HTTPS) == {}
    monkeypatch.setenv("UNLOCKSTEP_TOKEN", "from-the-environment\n")
    monkeypatch.setenv("UNLOCKSTEP_CA", str(secrets.ca))
    found = client_security(None, None, None, None)
    assert (found.ca, found.headers(HTTPS)) == (secrets.ca, {"Authorization": "Bearer from-the-environment"})
    file = secrets.folder / "observer.token"
    found = client_security(secrets.folder / "syncer.pem", None, None, file)
    assert found.ca == secrets.folder / "syncer.pem"
    assert found.headers(HTTPS) == {"Authorization": f"Bearer {secrets.token('observer')}"}


def test_an_environment_that_holds_nothing_is_none(secrets: Secrets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNLOCKSTEP_TOKEN", "")
    monkeypatch.setenv("UNLOCKSTEP_CA", "")
    found = client_security(None, None, None, None)
    assert (found.ca, found.headers(HTTPS)) == (None, {})


def test_a_wrong_environment_is_one_sentence(secrets: Secrets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNLOCKSTEP_TOKEN", "two words")
    with pytest.raises(UsageError, match="does not hold a token") as error:
        client_security(None, None, None, None)
    assert "two words" not in str(error.value)
    monkeypatch.setenv("UNLOCKSTEP_TOKEN", "")
    monkeypatch.setenv("UNLOCKSTEP_CA", "/gone")
    with pytest.raises(UsageError, match="/gone does not exist"):
        client_security(None, None, None, None)


def test_a_path_in_the_place_of_a_token_is_pointed_out(
    secrets: Secrets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is shown all the same: who says that a token may not look so?"""
    file = secrets.folder / "learner.token"
    for told, count in ((str(secrets.ca), 1), ("gone/learner.token", 2), (secrets.token("learner"), 2), ("x" * 256, 2)):
        monkeypatch.setenv("UNLOCKSTEP_TOKEN", told)
        assert client_security(None, None, None, None).headers(HTTPS) == {"Authorization": f"Bearer {told}"}
        assert client_security(None, None, None, file).headers(HTTPS)
        assert caplog.text.count("UNLOCKSTEP_TOKEN looks like the path of a file; it is to hold the token") == count
    assert "gone" not in caplog.text


def test_a_folder_of_secrets_is_certificate_key_and_tokens_in_one(secrets: Secrets) -> None:
    assert server_security(secrets.folder, None, None, None, None).is_complete
    assert server_security(secrets.folder, None, None, None, secrets.ca).is_complete


def test_a_folder_is_not_mixed_with_single_files(secrets: Secrets) -> None:
    with pytest.raises(UsageError, match="--tokens is given beside --secrets"):
        server_security(secrets.folder, None, None, secrets.folder / "tokens.toml", None)
    with pytest.raises(UsageError, match="which is not a folder; make one"):
        server_security(secrets.ca, None, None, None, None)


def test_who_can_be_reached_by_others_needs_tls_and_tokens(secrets: Secrets) -> None:
    folder = secrets.folder
    complete = secrets.server()
    without_tokens = ServerSecurity(folder / "syncer.pem", folder / "syncer.key")
    without_tls = ServerSecurity(tokens=folder / "tokens.toml")
    for security in (OPEN, complete, without_tls, without_tokens):
        require_secured(Endpoint("127.0.0.1", 1), False, security)
        require_secured(Endpoint("0.0.0.0", 1), True, security)
    require_secured(Endpoint("0.0.0.0", 1), False, complete)
    for security, missing in (
        (OPEN, "neither encrypted nor authorised"),
        (without_tokens, "no token is asked for"),
        (without_tls, "connections are not encrypted"),
    ):
        with pytest.raises(UsageError, match=f"0.0.0.0:1, which others can reach, and .*{missing}; give --secrets"):
            require_secured(Endpoint("0.0.0.0", 1), False, security)


def test_what_others_are_told_and_the_certificate_is_not_for_is_said(secrets: Secrets) -> None:
    cert = secrets.folder / "syncer.pem"
    assert told_in_vain(cert, Endpoint("127.0.0.1", 0, scheme="https")) == ()
    assert told_in_vain(cert, Endpoint("0.0.0.0", 1, advertised="https://localhost:7077")) == ()
    assert told_in_vain(None, Endpoint("0.0.0.0", 1, told_host="192.0.2.1")) == ()
    for told in (Endpoint("0.0.0.0", 1, told_host="192.0.2.1"), Endpoint("::", 1, advertised="https://192.0.2.1:7")):
        (sentence,) = told_in_vain(cert, told)
        assert sentence.startswith(f"others are told 192.0.2.1, which the certificate {cert} is not for; tell them a")

"""``unlockstep doctor`` and syncers that speak TLS and ask for tokens: what it says of whoever is let in, or is not."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from support.gates import refusals
from support.live_run import small_config
from support.secret_files import other_authority, secrets_in, write_pair
from support.syncer_thread import syncer_thread
from unlockstep.certificates import issue
from unlockstep.cli import app, exits
from unlockstep.net.doctor import link_rates

CONFIG = small_config()
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback there is no slow start to wait for. Nothing comes from the environment."""
    monkeypatch.setattr(link_rates, "SETTLE_S", 0.01)
    monkeypatch.setattr(link_rates, "WINDOW_S", 0.05)
    monkeypatch.delenv("UNLOCKSTEP_TOKEN", raising=False)
    monkeypatch.delenv("UNLOCKSTEP_CA", raising=False)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = app.run(["doctor", *arguments])
    return code, capsys.readouterr().out


def test_whoever_is_let_in_hears_by_whom_and_as_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    with syncer_thread(CONFIG, tmp_path, security=secrets.server()) as syncer:
        assert syncer.url.startswith("https://")
        token = str(secrets.folder / "learner.token")
        code, said = doctor(capsys, syncer.url, "--ca", str(secrets.ca), "--token-file", token)
    assert code == exits.DONE
    assert "ok   tls             TLSv1.3 with TLS_" in said and "days left" in said
    assert "ok   token           the token has the role learner" in said
    assert "ok   rate up" in said and "ok   rate down" in said and "ok   settings" in said


def test_a_doctor_that_has_seen_enough_leaves_no_line_in_the_log_and_no_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    with syncer_thread(CONFIG, tmp_path, security=secrets.server()) as syncer:
        token = str(secrets.folder / "learner.token")
        code, said = doctor(capsys, syncer.url, "--ca", str(secrets.ca), "--token-file", token)
    assert code == exits.DONE, said
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []
    assert refusals(tmp_path) == []


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (None, "fail token           this syncer asks for a token"),
        ("nobody's", "fail token           the token is not one of this syncer's"),
    ],
)
def test_a_token_that_is_missing_or_wrong_is_told(
    token: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    if token is not None:
        monkeypatch.setenv("UNLOCKSTEP_TOKEN", token)
    with syncer_thread(CONFIG, tmp_path, security=secrets.server()) as syncer:
        code, found = doctor(capsys, syncer.url, "--ca", str(secrets.ca))
    assert code == exits.FAILED and said in found and "-> give the token with --token-file" in found


def test_an_observer_may_look_and_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    assert app.run(["certs", "token", str(secrets.folder), "--role", "observer", "--name", "looker"]) == exits.DONE
    token = str(secrets.folder / "looker.token")
    capsys.readouterr()
    with syncer_thread(CONFIG, tmp_path, security=secrets.server()) as syncer:
        code, said = doctor(capsys, syncer.url, "--ca", str(secrets.ca), "--token-file", token, "--no-rates")
    assert code == exits.DONE
    assert "warn token           the token has the role observer: it may look, and not take part" in said


def test_an_authority_that_is_not_trusted_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    write_pair(secrets.folder, "syncer", issue(other_authority(), "syncer", ("127.0.0.1",), NOW, 30))
    with syncer_thread(CONFIG, tmp_path, security=secrets.server()) as syncer:
        code, said = doctor(capsys, syncer.url, "--ca", str(secrets.ca))
    assert code == exits.FAILED
    assert "was made by an authority that is not trusted here (it is of unlockstep authority)" in said
    assert "-> give the ca.pem of that syncer with --ca" in said


def test_a_name_that_the_certificate_does_not_have_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    secrets.replace_syncer(("one.example.org",))
    with syncer_thread(CONFIG, tmp_path, security=secrets.server()) as syncer:
        code, said = doctor(capsys, syncer.url, "--ca", str(secrets.ca))
    assert code == exits.FAILED and "is for another name (it has one.example.org)" in said


def test_http_where_https_is_spoken_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    with syncer_thread(CONFIG, tmp_path, security=secrets.server()) as syncer:
        code, said = doctor(capsys, syncer.url.replace("https", "http"))
    assert code == exits.FAILED and f"-> write {syncer.url}" in said


def test_a_client_without_the_certificate_that_is_asked_for_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    secrets.add_client("site-a")
    pair = ("--cert", str(secrets.folder / "site-a.pem"), "--key", str(secrets.folder / "site-a.key"))
    access = ("--ca", str(secrets.ca), "--token-file", str(secrets.folder / "learner.token"))
    with syncer_thread(CONFIG, tmp_path, security=secrets.server(mutual=True)) as syncer:
        code, said = doctor(capsys, syncer.url, *access)
        assert code == exits.FAILED and "give --cert and --key" in said
        code, said = doctor(capsys, syncer.url, *access, *pair, "--no-rates")
    assert code == exits.DONE and "ok   token           the token has the role learner" in said


def test_a_token_is_not_sent_in_the_clear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("secret")
    code, said = doctor(capsys, "http://192.0.2.1:1", "--token-file", str(tmp_path / "token"), "--no-rates")
    assert code == exits.FAILED  # Nobody is there; nothing was said to anybody.
    assert "secret" not in said


# ------------------------------------------------------------------------------------------------- a syncer to be


def test_the_secrets_of_a_syncer_are_examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(secrets_in(tmp_path / "secrets").folder)
    code, said = doctor(capsys, "--listen", "127.0.0.1:0", "--secrets", folder)
    assert (
        "ok   secrets         a certificate for localhost, 127.0.0.1, ::1, 29 days left" in said
        and "tokens: 1 admin" in said
    )
    assert "others would be told https://127.0.0.1:" in said
    code, said = doctor(capsys, "--listen", ":0", "--secrets", folder, "--advertise", "https://one.example.org")
    assert code == exits.FAILED
    assert "but others are told one.example.org, which the certificate is not for" in said


def test_secrets_that_are_of_no_use_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = secrets_in(tmp_path / "secrets")
    secrets.replace_syncer(expired=True)
    code, said = doctor(capsys, "--listen", "127.0.0.1:0", "--secrets", str(secrets.folder))
    assert code == exits.FAILED and "fail secrets" in said and "has expired on" in said


def test_a_port_for_others_without_secrets_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = doctor(capsys, "--listen", ":0", "--advertise", "http://one.example.org")
    assert "warn secrets         none are given, and others can reach 0.0.0.0:0" in said

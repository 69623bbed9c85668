"""``unlockstep certs``: what it makes, who may read it, and that nothing is overwritten or left half made."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from unlockstep.certificates import read_certificate
from unlockstep.cli import app, certs, exits
from unlockstep.net.access.roles import Role
from unlockstep.net.access.tokens import Tokens, read_token_file, read_tokens

Said = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command says on stdout, which ends well."""

    def run(*arguments: str | Path) -> str:
        assert app.run(["certs", *map(str, arguments)]) == exits.DONE, capsys.readouterr().err
        return capsys.readouterr().out

    return run


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Said:
    """The sentence with which a command is refused."""

    def run(*arguments: str | Path) -> str:
        assert app.run(["certs", *map(str, arguments)]) == exits.USAGE
        written = capsys.readouterr()
        assert written.out == "" and written.err.count("\n") == 1 and written.err.startswith("error: ")
        return written.err

    return run


@pytest.fixture
def folder(tmp_path: Path, say: Said) -> Path:
    say("make", tmp_path / "secrets", "--host", "syncer.example", "--host", "10.0.0.1")
    return tmp_path / "secrets"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_everything_a_syncer_and_its_sites_need_is_made_and_said(tmp_path: Path, say: Said) -> None:
    folder = tmp_path / "a" / "secrets"
    said = say("make", folder, "--host", "syncer.example", "--host", "::1", "--days", "30")
    roles = {f"{role.value}.token" for role in Role}
    assert contents(folder).keys() == {"ca.pem", "ca.key", "syncer.pem", "syncer.key", "tokens.toml"} | roles
    names = read_certificate(folder / "syncer.pem").names
    assert set(names) == {"syncer.example", "::1", "localhost", "127.0.0.1"}
    assert f"syncer --listen :7077 --advertise https://syncer.example:7077 --secrets {folder}" in said
    assert "learner --syncer https://syncer.example:7077 --ca ca.pem" in said
    assert [path.name for path in folder.parent.iterdir()] == ["secrets"]


def test_the_commands_that_are_told_can_be_given_where_the_host_is_an_ipv6_address(tmp_path: Path, say: Said) -> None:
    said = say("make", tmp_path / "secrets", "--host", "2001:db8::1")
    assert "syncer --listen [::]:7077 --advertise https://[2001:db8::1]:7077 --secrets" in said
    assert "learner --syncer https://[2001:db8::1]:7077 --ca ca.pem" in said


def test_what_is_secret_only_its_owner_may_read(folder: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    public = {"ca.pem", "syncer.pem"}
    assert all(mode == 0o600 for name, mode in modes.items() if name not in public)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_file_of_tokens_holds_none_and_knows_each(folder: Path) -> None:
    text, tokens = (folder / "tokens.toml").read_text(), Tokens(folder / "tokens.toml")
    for role in Role:
        token = read_token_file(folder / f"{role.value}.token")
        assert token not in text
        assert (tokens.identify(token).token, tokens.identify(token).role) == (role.value, role)


def test_a_token_of_a_site_is_added_and_taken_away(folder: Path, say: Said) -> None:
    said = say("token", folder, "--role", "learner", "--name", "site-a", "--days", "7", "--learners", "site-a")
    token = read_token_file(folder / "site-a.token")
    assert token not in said and "--token-file site-a.token" in said
    identity = Tokens(folder / "tokens.toml").identify(token)
    assert (identity.token, identity.role, identity.learners) == ("site-a", Role.LEARNER, "site-a")
    assert stat.S_IMODE((folder / "tokens.toml").stat().st_mode) == 0o600
    say("revoke", folder, "site-a")
    assert "site-a" not in read_tokens(folder / "tokens.toml") and not (folder / "site-a.token").exists()
    assert len(read_tokens(folder / "tokens.toml")) == len(Role)


def test_a_client_has_a_certificate_of_its_own(folder: Path, say: Said) -> None:
    assert "--client-ca" in say("client", folder, "site-a", "--days", "7")
    found = read_certificate(folder / "site-a.pem")
    assert (found.subject, found.names, found.is_authority) == ("site-a", (), False)
    assert stat.S_IMODE((folder / "site-a.key").stat().st_mode) == 0o600


def test_the_syncers_certificate_is_renewed_for_the_same_hosts_and_key(folder: Path, say: Said) -> None:
    before, key = read_certificate(folder / "syncer.pem"), (folder / "syncer.key").read_bytes()
    say("renew", folder, "--days", "700")
    after = read_certificate(folder / "syncer.pem")
    assert after.names == before.names and (after.ends - before.ends).days == 335
    assert (folder / "syncer.key").read_bytes() == key
    say("renew", folder, "--host", "other.example")
    assert "other.example" in read_certificate(folder / "syncer.pem").names


def test_what_is_there_is_shown_with_its_end(folder: Path, say: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    say("token", folder, "--role", "observer", "--name", "board", "--days", "7", "--learners", "x")
    say("client", folder, "site-a")
    shown = say("show", folder)
    assert "authority" in shown and "syncer.example" in shown and "client site-a" in shown
    assert "(7 days)" in shown and "(365 days)" in shown and "for good" in shown and "EXPIRED" not in shown
    later = certs._now() + certs.datetime.timedelta(days=400)
    monkeypatch.setattr(certs, "_now", lambda: later)
    assert say("show", folder).count("EXPIRED") == 3


def test_nothing_is_overwritten(folder: Path, say: Said, refuse: Said) -> None:
    say("client", folder, "site-a")
    before = contents(folder)
    assert "exists and is not empty; nothing is overwritten" in refuse("make", folder, "--host", "a")
    assert "site-a.pem exists; nothing is overwritten" in refuse("client", folder, "site-a")
    assert "has a token named 'learner' already" in refuse("token", folder, "--role", "learner", "--name", "learner")
    (folder / "b.token").write_text("somebody's")
    before = contents(folder)
    assert "b.token exists; nothing is overwritten" in refuse("token", folder, "--role", "learner", "--name", "b")
    assert contents(folder) == before


def test_a_folder_that_is_there_and_empty_is_taken(tmp_path: Path, say: Said) -> None:
    (tmp_path / "s").mkdir()
    say("make", tmp_path / "s", "--host", "a")
    assert (tmp_path / "s" / "syncer.key").exists()


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, refuse: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(certs.os, "fsync", full)
    assert "cannot be written (No space left on device)" in refuse("make", tmp_path / "s", "--host", "a")
    assert list(tmp_path.iterdir()) == []


def test_a_token_that_cannot_be_entered_is_not_left_about(
    folder: Path, refuse: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder)

    def full(path: Path, content: bytes, mode: int) -> None:
        raise certs._unwritable(path, OSError(28, "No space left on device"))

    monkeypatch.setattr(certs, "_replace", full)
    assert "No space left on device" in refuse("token", folder, "--role", "learner", "--name", "b")
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("make", "{new}", "--host", "a b"), "--host is 'a b'; give a host name or an IP address"),
        (("make", "{new}", "--host", "https://a:7077"), "without port or https://"),
        (("make", "{new}", "--host", "a", "--days", "0"), "--days is 0; it must be at least 1"),
        (("make", "{new}", "--host", "a", "--days", "9999999"), "--days is 9999999; it must be"),
        (("renew", "{new}"), "is not to be had (No such file or directory); make it with `unlockstep certs make`"),
        (("client", "{folder}", "../x"), "the name is '../x'; use letters, digits"),
        (("token", "{folder}", "--role", "root", "--name", "x"), "--role is 'root'; choose one of learner, evaluator"),
        (("token", "{folder}", "--role", "learner", "--name", "a/b"), "the name is 'a/b'"),
        (("token", "{folder}", "--role", "learner", "--name", "x", "--learners", "*"), "--learners is '*'"),
        (("revoke", "{folder}", "nobody"), "has no token named 'nobody'; it has learner, evaluator"),
        (("show", "{new}"), "is not a folder; make one with `unlockstep certs make`"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], said: str, folder: Path, refuse: Said) -> None:
    before = contents(folder)
    new = folder.parent / "new"
    assert said in refuse(*(text.format(folder=folder, new=new) for text in arguments))
    assert contents(folder) == before and not new.exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "ca.key").unlink(), "ca.key cannot be read"),
        (lambda folder: (folder / "ca.key").write_text("hello"), "is of no use"),
        (lambda folder: (folder / "ca.pem").write_text("hello"), "is of no use"),
        (lambda folder: (folder / "syncer.pem").write_text("hello"), "syncer.pem is no certificate"),
    ],
)
def test_a_folder_that_was_spoilt_is_one_sentence(
    spoil: Callable[[Path], object], said: str, folder: Path, refuse: Said
) -> None:
    spoil(folder)
    assert said in refuse("renew", folder)

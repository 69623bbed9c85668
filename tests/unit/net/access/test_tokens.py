"""Tokens: who is known by one, what a file of them may say, and what becomes of a file that changes."""

from __future__ import annotations

import os
from hmac import compare_digest
from pathlib import Path

import pytest

from unlockstep.core.errors import UsageError
from unlockstep.net.access import tokens as tokens_module
from unlockstep.net.access.roles import Role
from unlockstep.net.access.tokens import (
    Identity,
    TokenRefused,
    Tokens,
    new_token,
    read_token_file,
    read_tokens,
    token_digest,
)

ONE, OTHER = "one-token", "another-token"


def written(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def section(name: str, token: str, role: str = "learner", **more: str) -> str:
    lines = [f"[tokens.{name}]", f'role = "{role}"', f'sha256 = "{token_digest(token)}"']
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in more.items())]) + "\n"


def test_who_shows_a_token_has_its_name_and_role(tmp_path: Path) -> None:
    text = section("a", ONE) + section("b", OTHER, "admin", learners='"site-b"')
    tokens = Tokens(written(tmp_path / "t", text))
    assert tokens.identify(ONE) == Identity("a", Role.LEARNER)
    assert tokens.identify(OTHER) == Identity("b", Role.ADMIN, "site-b")


@pytest.mark.parametrize(
    "shown", ["", "one-toke", "one-token ", "ONE-TOKEN", token_digest(ONE), "é" * 40, "x" * 10_000]
)
def test_who_shows_anything_else_is_refused_without_repeating_it(shown: str, tmp_path: Path) -> None:
    tokens = Tokens(written(tmp_path / "t", section("a", ONE)))
    with pytest.raises(TokenRefused, match="not one of this syncer's") as refused:
        tokens.identify(shown)
    assert not shown or shown not in str(refused.value)


def test_every_entry_is_compared_in_constant_time_wherever_the_right_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def noted(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return compare_digest(one, other)

    monkeypatch.setattr(tokens_module.hmac, "compare_digest", noted)
    text = "".join(section(f"t{number}", f"token-{number}") for number in range(20))
    tokens = Tokens(written(tmp_path / "t", text))
    for shown in ("token-0", "token-19", "none"):
        compared.clear()
        try:
            tokens.identify(shown)
        except TokenRefused:
            assert shown == "none"
        assert len(compared) == 20 and len(set(compared)) == 20


def test_a_token_counts_until_it_expires(tmp_path: Path) -> None:
    now_s = [1_000.0]
    text = section("a", ONE, expires="1970-01-01T00:20:00Z")
    tokens = Tokens(written(tmp_path / "t", text), lambda: now_s[0])
    identity = tokens.identify(ONE)
    now_s[0] = 1_199.0
    assert tokens.identify(ONE) == identity and tokens.is_valid(identity)
    now_s[0] = 1_200.0
    with pytest.raises(TokenRefused, match=r"'a' has expired; ask"):
        tokens.identify(ONE)
    assert not tokens.is_valid(identity)


def test_tokens_are_replaced_while_the_syncer_runs(tmp_path: Path) -> None:
    path = written(tmp_path / "t", section("old", ONE))
    tokens = Tokens(path)
    identity = tokens.identify(ONE)
    written(path, section("old", ONE) + section("new", OTHER))
    tokens.refresh()
    assert (tokens.identify(ONE).token, tokens.identify(OTHER).token) == ("old", "new")
    written(path, section("new", OTHER))
    tokens.refresh()
    assert tokens.identify(OTHER).token == "new" and not tokens.is_valid(identity)
    with pytest.raises(TokenRefused):
        tokens.identify(ONE)


def test_a_token_whose_role_was_changed_is_another_one(tmp_path: Path) -> None:
    path = written(tmp_path / "t", section("a", ONE, "admin"))
    tokens = Tokens(path)
    identity = tokens.identify(ONE)
    written(path, section("a", ONE, "observer"))
    tokens.refresh()
    assert not tokens.is_valid(identity)


def test_a_file_that_is_spoiled_while_the_syncer_runs_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "t", section("a", ONE))
    tokens = Tokens(path)
    for spoil in (lambda: path.write_text("[tokens"), path.unlink):
        spoil()
        tokens.refresh()
        tokens.refresh()  # Once is enough.
        assert tokens.identify(ONE).token == "a"
    assert [record.message.endswith("the tokens stay as they were") for record in caplog.records] == [True, True]


BAD = {
    "not TOML": ("[tokens", "is not TOML"),
    "deep": ("a=" + "[" * 50_000, "is not TOML"),
    "other section": ("[token.a]\nrole='learner'", "has 'token'; it holds nothing but"),
    "no table": ("tokens = 3", "has 'tokens'; it holds nothing but"),
    "no section": ("[tokens]\na = 1", r"\[tokens.a\] is not valid"),
    "no role": (f"[tokens.a]\nsha256 = '{token_digest(ONE)}'", "missing required field `role`"),
    "unknown role": (section("a", ONE, "root"), "Invalid enum value 'root'"),
    "no digest": ("[tokens.a]\nrole='learner'", "missing required field `sha256`"),
    "short digest": ("[tokens.a]\nrole='learner'\nsha256='00'", "must be 64 hexadecimal digits"),
    "a token instead": ("[tokens.a]\nrole='learner'\nsha256='hunter2'", "must be 64 hexadecimal digits"),
    "unknown field": (section("a", ONE, secret='"x"'), "unknown field `secret`"),
    "no time zone": (section("a", ONE, expires="2030-01-01T00:00:00"), "say the time zone"),
    "a day": (section("a", ONE, expires="2030-01-01"), "is not valid"),
    "not a time": (section("a", ONE, expires='"soon"'), "is not valid"),
    "no name": (section('"a b"', ONE), "'a b' is no name"),
    "moved cursor": (section('"a\\u001b[2J"', ONE), "is no name"),
    "no prefix": (section("a", ONE, learners='"*"'), "give what the learners' names begin with"),
    "twice": (section("a", ONE) + section("b", ONE), "are one token"),
    "not text": ("\udcff", "is not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_token_file_that_is_none_is_one_sentence(name: str, tmp_path: Path) -> None:
    text, sentence = BAD[name]
    path = tmp_path / "tokens.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=sentence) as error:
        read_tokens(path)
    assert "hunter2" not in str(error.value) and "\x1b" not in str(error.value) and "\n" not in str(error.value)


def test_a_token_file_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t", section("a", ONE))
    path.chmod(0o646)
    with pytest.raises(UsageError, match="may be written by everybody on this machine; chmod o-w"):
        read_tokens(path)


NO_FILE = [(lambda path: None, "does not exist; make one"), (Path.mkdir, "is not a file"), (os.mkfifo, "is not a file")]


@pytest.mark.parametrize(("make", "sentence"), NO_FILE)
def test_a_token_file_that_is_no_file_is_one_sentence(make: object, sentence: str, tmp_path: Path) -> None:
    make(tmp_path / "t")  # type: ignore[operator]
    with pytest.raises(UsageError, match=sentence):
        Tokens(tmp_path / "t")


def test_a_token_file_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t", section("a", ONE) + section("b", OTHER))
    monkeypatch.setattr(tokens_module, "TOKENS_MAX", 1)
    with pytest.raises(UsageError, match="has 2 tokens, 1 at most"):
        read_tokens(path)
    monkeypatch.setattr(tokens_module, "FILE_BYTES_MAX", 10)
    with pytest.raises(UsageError, match="more than 10 bytes"):
        read_tokens(path)


def test_new_tokens_are_long_and_fit_a_header() -> None:
    found = {new_token() for _ in range(100)}
    assert len(found) == 100
    assert all(len(token) >= 43 and token.isascii() and token.isprintable() for token in found)


def test_a_client_reads_its_token_from_a_file_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path / "t", f"  {ONE}\n")
    assert read_token_file(path) == ONE
    path.chmod(0o640)  # A group is how a container is given one.
    assert read_token_file(path) == ONE
    path.chmod(0o644)
    with pytest.raises(UsageError, match="may be read by everybody on this machine; chmod 600"):
        read_token_file(path)


@pytest.mark.parametrize("text", ["", "two words", "x" * 257, "é", "a\nb", "\x00"])
def test_a_file_without_a_token_is_one_sentence_that_does_not_repeat_it(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not hold a token: one word") as error:
        read_token_file(written(tmp_path / "t", text))
    assert not text or text not in str(error.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist; ask whoever runs the syncer"):
        read_token_file(tmp_path / "t")

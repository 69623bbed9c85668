"""The audit trail: what is told one by one, what is counted, and that nothing in it grows without end."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from unlockstep.net.access import audit as audit_module
from unlockstep.net.access.audit import Audit, Peer, Refused, shortened
from unlockstep.net.access.roles import Role
from unlockstep.net.access.tokens import Identity

PEER = Peer("10.0.0.1", Identity("site-a", Role.LEARNER))
STRANGER = Peer("10.0.0.9")
NOW = datetime.datetime(2030, 1, 2, 3, 4, 5, 678_000, datetime.UTC)


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def audit(tmp_path: Path, clock: Clock) -> Audit:
    return Audit(tmp_path, lambda: NOW, clock)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def test_who_joins_and_leaves_is_told_with_address_and_token(audit: Audit, tmp_path: Path) -> None:
    audit.joined("l0", 3, PEER)
    audit.left("l0", 3, "lease_expired", PEER)
    audit.ended(Peer("10.0.0.2", Identity("root", Role.ADMIN)))
    who = {"at": "2030-01-02T03:04:05.678Z", "address": "10.0.0.1", "token": "site-a", "role": "learner"}
    assert lines(tmp_path) == [
        {**who, "what": "joined", "learner": "l0", "incarnation": 3},
        {**who, "what": "left", "learner": "l0", "incarnation": 3, "reason": "lease_expired"},
        {"at": who["at"], "what": "ended", "address": "10.0.0.2", "token": "root", "role": "admin"},
    ]


def test_a_refusal_is_told_with_its_reason(audit: Audit, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit.refused(Refused.WRONG_TOKEN, STRANGER, "the token is not one of this syncer's (GET /)")
    (line,) = lines(tmp_path)
    assert (line["what"], line["reason"], line["address"]) == ("refused", "wrong_token", "10.0.0.9")
    assert "token" not in line and "role" not in line
    assert caplog.messages == ["refused 10.0.0.9: the token is not one of this syncer's (GET /)"]


def test_a_flood_is_counted(audit: Audit, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(10_000):
        audit.refused(Refused.TLS, Peer(f"10.0.0.{number % 7}"), "no TLS")
    audit.refused(Refused.MALFORMED, STRANGER, "not HTTP")
    assert len(lines(tmp_path)) == audit_module.TOLD_ONE_BY_ONE_MAX + 1
    clock.s = audit_module.PERIOD_S
    audit.look()
    last = lines(tmp_path)[-1]
    assert (last["what"], last["reason"], last["count"], last["addresses"]) == ("refused_more", "tls", 9_980, 7)
    assert len(caplog.messages) == 3
    audit.look()
    assert len(lines(tmp_path)) == audit_module.TOLD_ONE_BY_ONE_MAX + 2, "nothing more is to be told"


def test_a_period_that_is_over_is_told_when_the_next_refusal_comes(audit: Audit, clock: Clock, tmp_path: Path) -> None:
    for _ in range(audit_module.TOLD_ONE_BY_ONE_MAX + 1):
        audit.refused(Refused.TLS, STRANGER, "no TLS")
    clock.s = 1e6
    audit.refused(Refused.TLS, STRANGER, "no TLS")
    assert [line["what"] for line in lines(tmp_path)][-2:] == ["refused_more", "refused"]


def test_addresses_are_counted_up_to_a_limit(audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "ADDRESSES_COUNTED_MAX", 10)
    for number in range(1_000):
        audit.refused(Refused.TLS, Peer(str(number)), "no TLS")
    audit.flush()
    assert lines(tmp_path)[-1]["addresses"] == 10


def test_the_file_has_a_largest_size_and_so_many_before_it(
    audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "FILE_BYTES_MAX", 1_000)
    for number in range(200):
        audit.joined("l0", number, PEER)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size < 1_200 for file in files)
    assert lines(tmp_path)[-1]["incarnation"] == 199


def test_a_clock_that_is_set_back_holds_no_count_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "PERIOD_S", 0.0)
    monkeypatch.setattr(audit_module, "TOLD_ONE_BY_ONE_MAX", 0)
    times = [NOW]
    audit = Audit(tmp_path, lambda: times[0])
    audit.refused(Refused.WRONG_TOKEN, STRANGER, "no")
    times[0] -= datetime.timedelta(days=1)
    audit.look()
    assert [line["count"] for line in lines(tmp_path) if line["what"] == "refused_more"] == [1]


def test_there_is_no_file_until_there_is_something_to_tell(audit: Audit, tmp_path: Path) -> None:
    audit.flush()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(tmp_path / "gone", lambda: NOW)
    audit.joined("l0", 1, PEER)
    audit.joined("l0", 2, PEER)
    assert [message.endswith("the run goes on without") for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("plain", "plain"),
        ("two\nlines\x1b[2J", "two\N{REPLACEMENT CHARACTER}lines\N{REPLACEMENT CHARACTER}[2J"),
        ("\u202eback", "\N{REPLACEMENT CHARACTER}back"),
        ("x" * 301, "x" * 299 + "…"),
    ],
)
def test_what_a_stranger_says_moves_no_cursor(said: str, told: str) -> None:
    assert shortened(said) == told

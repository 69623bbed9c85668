"""``unlockstep doctor`` as a person runs it: what it prints, and its exit code."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.live_run import small_config
from support.peers import answering, http, peer
from support.syncer_thread import syncer_thread
from unlockstep.cli import app, exits
from unlockstep.core.ids import PROTOCOL_VERSION
from unlockstep.net.doctor import link_rates

CONFIG = small_config()


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback there is no slow start to wait for."""
    monkeypatch.setattr(link_rates, "SETTLE_S", 0.01)
    monkeypatch.setattr(link_rates, "WINDOW_S", 0.05)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = app.run(["doctor", *arguments])
    return code, capsys.readouterr().out


def test_a_syncer_in_order_is_found_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with syncer_thread(CONFIG, tmp_path) as syncer:

        async def seed() -> None:
            async with aiohttp.ClientSession() as session:
                await syncer.live.puppet(session, "l0").start()

        syncer.do(seed)
        code, said = doctor(capsys, syncer.url)
    assert code == exits.DONE
    lines = said.splitlines()
    assert lines[0] == syncer.url
    names = [line.split()[1] for line in lines if line.startswith(("ok", "warn", "fail"))]
    assert names == [
        *("names", "port", "way", "tls", "versions", "token", "round", "clock", "rate", "rate", "settings", "run")
    ]
    assert not any(line.startswith("fail") for line in lines)
    assert "timeouts        connect_s" in said and "gone_s" in said


def test_findings_come_as_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with syncer_thread(CONFIG, tmp_path) as syncer:
        code, said = doctor(capsys, syncer.url, "--json", "--no-rates")
    report: dict[str, Any] = json.loads(said)
    (link,) = report["links"]
    assert (code, report["ok"], link["url"]) == (exits.DONE, True, syncer.url)
    assert {found["name"] for found in link["findings"]} >= {"names", "port", "versions", "round trip", "clock"}
    assert link["measured"]["round_trip_s"] > 0 and link["measured"]["up_bytes_per_s"] is None
    assert link["timeouts"]["gone_s"] == 10.0


def test_what_is_wrong_is_said_with_the_fix_and_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    code, said = doctor(capsys, f"127.0.0.1:{port}")
    assert code == exits.FAILED
    assert f"fail port            127.0.0.1 port {port} refuses connections" in said
    assert "-> start the syncer, check its port" in said


def test_a_standby_is_told_from_the_one_that_leads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = b'{"error":"this syncer stands by; nobody is known to lead"}'
    with (
        peer(answering(http("503 Service Unavailable", sentence))) as port,
        syncer_thread(CONFIG, tmp_path) as syncer,
    ):
        code, said = doctor(capsys, f"http://127.0.0.1:{port},{syncer.url}", "--no-rates")
    assert code == exits.DONE
    assert "warn answer          this syncer stands by; nobody is known to lead" in said
    assert "ok   versions" in said


def test_another_protocol_is_where_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    about = b'{"unlockstep":"9.0","protocol":99,"now_ns":0,"runs":["r"],"role":"learner"}'
    with peer(answering(http("200 OK", about))) as port:
        code, said = doctor(capsys, f"127.0.0.1:{port}")
    assert code == exits.FAILED
    assert "fail versions        the syncer is unlockstep 9.0 (protocol 99), this is" in said
    assert "round trip" not in said


def test_a_connection_that_breaks_while_it_is_used_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    """This one closes every connection after its first answer, and has nothing else to say."""
    about = b'{"unlockstep":"9.0","protocol":%d,"now_ns":0,"runs":["r"],"role":"learner"}' % PROTOCOL_VERSION
    with peer(answering(http("200 OK", about))) as port:
        code, said = doctor(capsys, f"127.0.0.1:{port}", "--no-rates")
    assert code == exits.FAILED and ("fail link" in said or "fail token" in said)


def test_this_machine_is_examined_without_an_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = doctor(capsys, "--listen", "127.0.0.1:0")
    assert code == exits.DONE
    names = [line[5:21].strip() for line in said.splitlines() if line.startswith(("ok", "warn", "fail"))]
    assert names == [
        *("python", "packages", "host name", "network", "listen", "memory", "temporary files"),
        *("run folder", "open files", "clock"),
    ]


def test_a_port_that_is_taken_is_found_before_a_syncer_finds_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = doctor(capsys, "--listen", f"127.0.0.1:{port}", "--json")
    report = json.loads(said)
    (found,) = [each for each in report["machine"] if each["name"] == "listen"]
    assert (code, report["ok"], found["state"]) == (exits.FAILED, False, "fail")
    assert found["finding"] == f"127.0.0.1:{port} is in use by another process"


@pytest.mark.parametrize("arguments", [("ftp://one",), ("--listen", "::1:1"), ("one:99999",)])
def test_what_is_no_address_is_a_usage_error(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["doctor", *arguments]) == exits.USAGE
    assert capsys.readouterr().err.startswith("error: ")


def test_ctrl_c_ends_it_at_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from unlockstep.net.doctor import examination

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(examination, "ask", interrupted)
    with peer(answering(b"")) as port:
        assert doctor(capsys, f"127.0.0.1:{port}")[0] == exits.INTERRUPTED

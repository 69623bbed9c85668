"""What stands in for a syncer that is not there just now: proxies, load balancers, tunnels. That passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.peers import Serve, answering, authority, hanging_up, http, peer, private
from unlockstep.cli import app, exits
from unlockstep.core.errors import Unanswered, UsageError
from unlockstep.net.access.security import NO_SECURITY, ClientSecurity
from unlockstep.net.clients.observer import end_run, read_about, read_config, read_status

HTML = b"<html><title>no upstream</title></html>"


def gone_after_hearing(connection: object) -> None:
    """As a tunnel does that finds nobody at its other end."""
    connection.recv(65536)  # type: ignore[attr-defined]


AWAY: dict[str, Serve] = {
    "hangs up": hanging_up,
    "hears and hangs up": gone_after_hearing,
    "502": answering(http("502 Bad Gateway", HTML)),
    "530": answering(http("530 Origin Unreachable", HTML)),
    "503": answering(http("503 Service Unavailable", HTML)),
    "504": answering(http("504 Gateway Timeout", HTML)),
    "too many": answering(http("429 Too Many Requests", b'{"error":"too many requests from this address; wait"}')),
    "stands by": answering(http("503 Service Unavailable", b'{"error":"this syncer stands by"}')),
}
OTHERS = {
    "404": answering(http("404 Not Found", HTML)),
    "HTML": answering(http("200 OK", HTML)),
    "400": answering(http("400 Bad Request", b"The plain HTTP request was sent to HTTPS port")),
    "500": answering(http("500 Internal Server Error", HTML)),
}


@pytest.mark.parametrize("serve", AWAY.values(), ids=AWAY.keys())
def test_whoever_asks_takes_it_for_nobody(serve: Serve) -> None:
    with peer(serve) as port:
        for ask in (read_about, read_config, read_status, end_run):
            with pytest.raises(Unanswered):
                ask(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("serve", OTHERS.values(), ids=OTHERS.keys())
def test_what_is_no_syncer_is_the_users_to_mend(serve: Serve) -> None:
    with peer(serve) as port, pytest.raises(UsageError, match="is not an unlockstep syncer") as refused:
        read_about(f"http://127.0.0.1:{port}")
    assert not isinstance(refused.value, Unanswered)


def test_a_hang_up_may_have_other_reasons_which_are_named(tmp_path: Path) -> None:
    with peer(hanging_up) as port:
        with pytest.raises(Unanswered, match=r"hung up.* that the syncer is running.*if it speaks TLS, write https://"):
            read_about(f"http://127.0.0.1:{port}", NO_SECURITY)
        somebody = authority(tmp_path)
        with pytest.raises(Unanswered, match=r"hung up.* that the syncer is running.*--client-ca.* --cert and --key"):
            read_about(f"https://127.0.0.1:{port}", ClientSecurity(ca=somebody.path))
    with (
        peer(private(somebody.server(), gone_after_hearing)) as port,
        pytest.raises(Unanswered, match="hung up"),
    ):
        read_about(f"https://127.0.0.1:{port}", ClientSecurity(ca=somebody.path))


@pytest.mark.parametrize(
    "command",
    [
        ("learner", "--syncer", "URL"),
        ("evaluator", "--syncer", "URL"),
        ("status", "URL"),
        ("stop", "URL"),
        ("chaos", "URL", "--tape", "one_crash"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_asks_ends_with_the_code_for_nobody(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with peer(gone_after_hearing) as port:
        url = f"http://127.0.0.1:{port}"
        assert app.run([url if each == "URL" else each for each in command]) == exits.UNANSWERED
    assert f"error: no syncer answers at {url}" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []

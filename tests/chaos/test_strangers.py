"""Ten thousand bad requests while learners train: none has an effect, and every kind is told of with its reason.

The syncer, which speaks TLS and asks for certificates and tokens, and the strangers (``support/strangers.py``) are
processes of their own; the learners are real ones with toy models.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from support import strangers
from support.commands import COMMAND_S_MAX, commands, until, url_of
from support.live_run import small_config
from support.secret_files import Secrets, other_authority, secrets_in
from support.toy_site import toy_site
from unlockstep import config as run_config
from unlockstep import runlog
from unlockstep.checkers import check
from unlockstep.cli import app, certs, exits
from unlockstep.config import LimitsSection, RunSection
from unlockstep.core.events import LearnerAway, LearnerJoined, RunFinished

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is read from /proc"),
    pytest.mark.timeout(300),
]

STORMS = [(2400, 300, 300), pytest.param((5000, 2500, 2500), marks=pytest.mark.slow)]
"""Of requests. The first has the slow ones; after the second, the syncer has all the memory it needs."""
CONFIG = small_config(run=RunSection(name="small", steps=10**6), limits=LimitsSection(outlier_factor=0))
"""Near the optimum what a toy hands over is noise, and some of it is ten times as long as the last."""
GROWTH_KB_MAX = 8 * 1024
"""Of the syncer's memory during the last storm: at its longest, 3 KB a request."""
LINES_MAX = 250
"""On stderr, of 10 000 requests."""

REASONS = {
    strangers.garbage: "tls",
    strangers.plain_http: "tls",
    strangers.no_certificate: "tls",
    strangers.expired_certificate: "tls",
    strangers.foreign_certificate: "tls",
    strangers.half_handshake: "tls",
    strangers.no_token: "no_token",
    strangers.wrong_token: "wrong_token",
    strangers.expired_token: "wrong_token",
    strangers.not_allowed: "not_allowed",
    strangers.another_name: "not_allowed",
    strangers.gzip_bomb: "not_allowed",
    strangers.foreign_origin: "foreign_origin",
    strangers.huge_head: "malformed",
    strangers.malformed_frame: "malformed",
    strangers.slow_head: "too_slow",
    strangers.path_tricks: "not_there",
    strangers.oversize: "too_large",
}
"""What is written down of each kind. Who hangs up by itself (``half_a_head``) has not been refused."""

SENTENCES = [
    "the client does not speak TLS",
    "speaks plain HTTP to a TLS port",
    "the client has no certificate",
    "the client's certificate has expired",
    "the client's certificate is not one of ours",
    "this syncer asks for a token",
    "the token is not one of this syncer's",
    "the token 'gone' has expired",
    "the token 'observer' has the role observer",
    "a page of another site may not do this",
    "a request did not come within 10 s",
    "there is no run '../../etc/passwd' here",
    "control message does not decode",
    "bytes, 67108864 at most",
]


def stolen_secrets(folder: Path) -> Secrets:
    """Those of the syncer, and what the strangers have got hold of."""
    secrets = secrets_in(folder)
    secrets.add_client("own")
    secrets.add_client("expired", expired=True)
    secrets.add_client("foreign", authority=other_authority())
    certs.token(folder, "learner", "mallory", None, "mallory")
    certs.token(folder, "learner", "gone", 1)
    tokens = folder / "tokens.toml"
    lines = [
        "expires = 2020-01-01T00:00:00Z" if "expires" in line else line for line in tokens.read_text().splitlines()
    ]
    tokens.write_text("\n".join(lines))
    return secrets


def storm(url: str, secrets: Secrets, count: int, *how: str) -> dict[str, dict[str, int]]:
    """How each kind was answered."""
    command = [sys.executable, strangers.__file__, url, str(secrets.folder), str(count), *how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * COMMAND_S_MAX, check=True)
    return json.loads(done.stdout)


def resident_kb(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def told(folder: Path) -> tuple[Counter[str], str]:
    """Refusals by reason, those that were only counted among them; and all sentences."""
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    by_reason = Counter[str]()
    for line in lines:
        if line["what"].startswith("refused"):
            by_reason[line["reason"]] += line.get("count", 1)
    assert {line.get("learner") for line in lines if line["what"] == "joined"} == {"toy-0", "toy-1"}
    return by_reason, "\n".join(line.get("sentence", "") for line in lines)


@pytest.mark.parametrize("storms", STORMS, ids=sum)
def test_ten_thousand_bad_requests_change_nothing(storms: tuple[int, ...], tmp_path: Path) -> None:
    secrets, folder = stolen_secrets(tmp_path / "secrets"), tmp_path / "run"
    (tmp_path / "given.toml").write_text(run_config.dumps(CONFIG))
    arguments = ["--config", tmp_path / "given.toml", "--listen", "127.0.0.1:0", "--run-dir", folder]
    arguments += ["--secrets", secrets.folder, "--client-ca", secrets.ca]
    admin, answers = secrets.client("admin", "own"), Counter[tuple[str, str]]()
    with commands() as start:
        syncer = start("syncer", *map(str, arguments))
        url = url_of(syncer)
        with toy_site(url, CONFIG, 2, secrets.client("learner", "own")) as learners:
            until(url, lambda status: status.rounds_committed >= 5, security=admin)
            for number, count in enumerate(storms):
                before = until(url, lambda status: True, security=admin)
                memory_kb, files = resident_kb(syncer.pid), len(os.listdir(f"/proc/{syncer.pid}/fd"))
                for kind, statuses in storm(url, secrets, count, *["quick"][:number]).items():
                    answers.update({(kind, status): n for status, n in statuses.items()})
            # The rounds went on, and nobody but the learners has had a part in them.
            after = until(url, lambda now: now.rounds_committed > before.rounds_committed + 10, security=admin)
            assert [member.learner for member in after.learners] == ["toy-0", "toy-1"]
            assert after.refusals == {} and after.evaluations == ()
            assert resident_kb(syncer.pid) - memory_kb < GROWTH_KB_MAX
            until(url, lambda _: len(os.listdir(f"/proc/{syncer.pid}/fd")) <= files + 2, security=admin)
            for learner in learners:
                assert np.abs(learner.backend.values - learner.backend.optimum).max() < 0.2, "as without strangers"
        syncer.send_signal(signal.SIGTERM)
        _, err = syncer.communicate(timeout=COMMAND_S_MAX)
    made = sum(answers.values())
    assert made >= 0.95 * sum(storms) and not [kind for kind, status in answers if status.startswith("2")]
    by_reason, sentences = told(folder)
    expected = Counter[str]()
    for kind, reason in REASONS.items():
        expected[reason] += sum(n for (name, _), n in answers.items() if name == kind.__name__)
    assert by_reason.keys() == expected.keys()  # On a busy machine some are too slow for what they are about.
    assert all(by_reason[reason] >= 0.9 * n for reason, n in expected.items()), (by_reason, expected)
    assert [sentence for sentence in SENTENCES if sentence not in sentences] == []
    assert len(err.splitlines()) < LINES_MAX and "Traceback" not in err
    assert not any(token in err + sentences for token in strangers.Site.of(url, secrets.folder).tokens.values())

    _, events = runlog.read(folder / "run.jsonl")
    events = list(events)
    assert check(events, CONFIG.protocol, timer_ns=10**9, transfer_ns=10**10) == []
    assert app.run(["report", str(folder), "--check"]) == exits.DONE
    (end,) = [event for event in events if isinstance(event, RunFinished)]
    assert end.ledger is not None and end.ledger.in_flight == 0 and end.ledger.refused == {}
    assert sum(isinstance(event, LearnerJoined) for event in events) == 2
    away = [event for event in events if isinstance(event, LearnerAway)]
    assert len(away) <= 2, "but at the end, no learner has lost its connection"

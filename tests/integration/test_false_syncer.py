"""What answers where a syncer should be may be anybody: whoever asks it ends with one sentence that is fit to be shown,
and runs nothing, reads nothing and believes nothing that it was not told to."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from support.false_syncer import false_syncer, honest_about, reply, trickle
from support.live_run import WAIT_S, layout_of, learner, small_config
from support.peers import peer
from unlockstep import config as run_config
from unlockstep.cli import app, exits, output
from unlockstep.config import DataSection, ModelSection, RunConfig
from unlockstep.core.data_book import Grant
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.ids import PROTOCOL_VERSION
from unlockstep.core.messages import (
    Farewell,
    GoneBack,
    Granted,
    HandedOver,
    Join,
    Published,
    Pull,
    Settled,
    StateReady,
    SyncerMessage,
    VersionNotice,
    Welcome,
    decode_learner_message,
    encode,
)
from unlockstep.learners.toy import ToyBackend
from unlockstep.net.access.security import NO_SECURITY
from unlockstep.net.bulk.client import Bulk
from unlockstep.net.clients import observer
from unlockstep.net.clients.observer import Observer, end_run, read_about, read_config, read_status
from unlockstep.net.doctor import examination
from unlockstep.net.doctor.examination import Examination
from unlockstep.net.wire.api import control_path

SENTENCE_CHARACTERS_MAX = 1000


@pytest.fixture(autouse=True)
def untouched_logs() -> Iterator[None]:
    """A command that runs in this process logs to stderr; not so afterwards."""
    root, command = logging.getLogger(), logging.getLogger("unlockstep.cli")
    handlers, levels = root.handlers[:], (root.level, command.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    command.setLevel(levels[1])


MOVES = "\x1b[2J\x1b]0;mine\x07\r\n\u202e\x9b"
"""Clears a terminal, renames it, begins a line, turns the writing round."""


def about(**fields: object) -> bytes:
    sound = {"unlockstep": "1", "protocol": PROTOCOL_VERSION, "now_ns": 0, "runs": ["small"], "role": "admin"}
    return json.dumps(sound | fields).encode()


BODIES = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[1]",
    "no UTF-8": b'{"error":"\xff\xfe"}',
    "deep": b"[" * 200_000,
    "deep in a field": b'{"unlockstep":' + b'{"a":' * 100_000,
    "deep in a field that nobody reads": b'{"x":' + b"[" * 100_000,
    "packed": gzip.compress(bytes(10**6)),
    "no run": about(runs=[]),
    "a run elsewhere": about(runs=["../../elsewhere"]),
    "a run of two lines": about(runs=["a b\r\nX: y"]),
    "a run that moves the cursor": about(runs=[MOVES]),
    "a long run": about(runs=["a" * 10**6]),
    "half a character": about(runs=["\ud800"]),
    "another version": about(unlockstep=MOVES, protocol=99),
    "an error that moves the cursor": json.dumps({"error": MOVES}).encode(),
    "settings that move the cursor": b'"\\u001b[2J" = 1',
}
ANSWERS = {
    **{name: reply(body) for name, body in BODIES.items()},
    **{f"{name}, refused": reply(body, 403) for name, body in BODIES.items()},
    "elsewhere": reply(b"", 302, "Location: http://127.0.0.1:1/\r\n"),
    "another protocol": b"HTTP/1.1 101 -\r\n\r\n",
    "no status": reply(b"x", 999),
    "hangs up": b"",
    "no HTTP": b"\x00\xff" * 100,
    "a cursor for HTTP": f"{MOVES}\r\n\r\n".encode(),
    "a cursor for a reason": b"HTTP/1.1 500 \x1b[2J\r\nContent-Length: 0\r\n\r\n",
    "a long head": b"HTTP/1.1 200 -\r\nX: " + b"a" * 10**5 + b"\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 -\r\n" + b"X: a\r\n" * 10**4,
    "longer than it is": b"HTTP/1.1 200 -\r\nContent-Length: 1000000000000000\r\n\r\nabc",
    "shorter than nothing": b"HTTP/1.1 200 -\r\nContent-Length: -5\r\n\r\nabc",
    "a chunk that is too long": b"HTTP/1.1 200 -\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nab",
    "no chunk": b"HTTP/1.1 200 -\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab",
}


def settings_of(url: str) -> RunConfig:
    return run_config.loads(read_config(url), source="the configuration")


def body_of(url: str) -> None:
    bulk = Bulk(url, NO_SECURITY)
    try:
        bulk.download("/v1/runs/small/fragments/0/versions/1", 100, "00" * 32)
    finally:
        bulk.close()


ASKED: dict[str, Callable[[str], object]] = {
    "who it is": read_about,
    "its settings": settings_of,
    "its state": read_status,
    "to end": end_run,
}


def shows(sentence: str) -> None:
    assert sentence.isprintable() and 0 < len(sentence) < SENTENCE_CHARACTERS_MAX, sentence


@pytest.mark.parametrize("answer", ANSWERS)
def test_whatever_it_answers_a_client_believes_it_or_says_one_sentence(
    answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for known in ({}, honest_about(about())):
        with false_syncer(ANSWERS[answer], known) as url:
            for ask in ASKED.values():
                with suppress(UsageError):
                    ask(url)
            assert app.run(["status", url]) in (exits.DONE, exits.USAGE, exits.UNANSWERED)
            out, err = capsys.readouterr()
            if err:
                shows(err.removesuffix("\n"))
            assert all(line.isprintable() for line in out.splitlines()) and not set(out) & set(MOVES) - {"\n"}


def test_an_answer_that_trickles_in_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "ANSWER_S_MAX", 0.2)
    monkeypatch.setattr(examination, "ANSWER_S_MAX", 0.2)
    with peer(trickle) as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(UsageError, match=r"no syncer answers at .* \(IncompleteRead\("):
            read_about(url)
        *_, last = Examination(url, NO_SECURITY).findings()
    assert last.finding.startswith(f"what answers at {url} is not an unlockstep syncer")


def test_settings_that_are_cut_off_are_none() -> None:
    whole = reply(run_config.dumps(RunConfig(model=ModelSection(spec="another"))).encode())
    cut = pytest.raises(UsageError, match=r"no syncer answers at .* \(IncompleteRead\(")
    with false_syncer(whole[: whole.index(b"spec = ")], honest_about(about())) as url, cut:
        settings_of(url)


@pytest.mark.parametrize("answer", ["deep", "no run", "packed", "no UTF-8, refused", "another version"])
def test_whatever_it_answers_doctor_says_what_it_has_found(answer: str) -> None:
    for known in ({}, honest_about(about())):
        with false_syncer(ANSWERS[answer], known) as url:
            assert list(Examination(url, NO_SECURITY, with_rates=False).findings())


@pytest.mark.parametrize(
    "answer", ["a list", "deep, refused", "no UTF-8, refused", "elsewhere", "an error that moves the cursor, refused"]
)
def test_a_body_that_is_none_is_an_error_of_the_syncer(answer: str) -> None:
    with false_syncer(ANSWERS[answer]) as url, pytest.raises(RemoteProtocolError) as error:
        body_of(url)
    shows(str(error.value))


# ------------------------------------------------------------------------------------------------- what it names

NAMED = {
    "code": RunConfig(model=ModelSection(spec="false_syncer_code:model")),
    "a model": RunConfig(model=ModelSection(spec="secret.json")),
    "a text": RunConfig(data=DataSection(source="secret.txt")),
    "a tokenizer": RunConfig(data=DataSection(tokenizer="secret.json")),
}


@pytest.mark.parametrize("command", ["learner", "evaluator"])
@pytest.mark.parametrize("named", NAMED)
def test_code_and_files_that_it_names_are_left_alone(
    named: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The module would leave a trace by being imported; the files are not there."""
    trace = tmp_path / "trace"
    (tmp_path / "false_syncer_code.py").write_text(f"open({str(trace)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = run_config.dumps(NAMED[named]).encode()
    with false_syncer(reply(settings), honest_about(about())) as url:
        assert app.run([command, "--syncer", url]) == exits.USAGE
    assert "say --trust-syncer if whoever runs the syncer may name it" in capsys.readouterr().err
    assert not trace.exists()


# ------------------------------------------------------------------------------------------------- what it says

NOTICE = VersionNotice(0, 1, "00" * 32)
WELCOME = Welcome(1, 0, 10**9, (NOTICE, msgspec.structs.replace(NOTICE, fragment=1)), False, 0, "id")

SAID: dict[str, SyncerMessage] = {
    "a pull of no fragment": Pull(0, 2),
    "a pull of a fragment from behind": Pull(0, -1),
    "a pull of no round": Pull(-1, 0),
    "the last pulls of no fragment": Farewell((Pull(0, 0), Pull(1, 9))),
    "a version of no fragment": Published(msgspec.structs.replace(NOTICE, fragment=2), 1),
    "a version below zero": Published(msgspec.structs.replace(NOTICE, version=-1), 1),
    "a clock without end": Published(NOTICE, 2**63),
    "going back to no fragment": GoneBack((msgspec.structs.replace(NOTICE, fragment=2),), 1),
    "a welcome to other fragments": msgspec.structs.replace(
        WELCOME, versions=(msgspec.structs.replace(NOTICE, fragment=7),)
    ),
    "a welcome to nobody": msgspec.structs.replace(WELCOME, incarnation=-1),
    "a welcome that wants no fragment": msgspec.structs.replace(WELCOME, wanted=(HandedOver(0, 5, 1),)),
    "a welcome that keeps other fragments": msgspec.structs.replace(WELCOME, versions_kept=(0, 0, 0)),
    "a welcome with data from behind": msgspec.structs.replace(WELCOME, grants=(Grant(0, 0, 5, 4),)),
    "what became of no fragment": Settled(0, 2, 1, False, None),
    "a state of less than nothing": StateReady(1, "00" * 32, -1),
    "data before its beginning": Granted((Grant(0, 0, -3, 4),), False),
}


@asynccontextmanager
async def speaking(speak: Callable[[web.WebSocketResponse], Awaitable[None]]) -> AsyncIterator[str]:
    """The address of one that does this with every control connection."""

    async def control(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await speak(socket)
        return socket

    app = web.Application()
    app.router.add_get(control_path("small"), control)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("said", SAID)
def test_a_message_that_does_not_fit_the_model_costs_the_syncer_its_connection_alone(
    said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The learner comes again, as if the connection had broken."""

    async def run() -> None:
        comes_again = asyncio.Event()
        joins = 0

        async def speak(socket: web.WebSocketResponse) -> None:
            nonlocal joins
            joins += isinstance(decode_learner_message(await socket.receive_bytes()), Join)
            if joins == 2:
                comes_again.set()
            await socket.send_bytes(encode(SAID[said]))
            await socket.receive()

        async with speaking(speak) as url:
            client, loop = learner(url, small_config(), "l0", ToyBackend())
            client.start(loop)
            try:
                await asyncio.wait_for(comes_again.wait(), WAIT_S)
                assert loop.done is None
            finally:
                await asyncio.to_thread(client.close)

    asyncio.run(run())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x91" * 100_000, encode(SAID["a version of no fragment"])])
def test_what_is_no_message_ends_an_observers_connection_or_is_nothing_to_fetch(frame: bytes) -> None:
    async def run() -> None:
        async with speaking(lambda socket: socket.send_bytes(frame)) as url:
            config = small_config()
            layout = layout_of(ToyBackend(), config)
            async with Observer(url, "small", "eye", layout, config.codec.download) as observer:
                heard = [message async for message in observer.messages()]
                assert [await observer.fetch(message.notice) for message in heard] in ([], [None])

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


# ------------------------------------------------------------------------------------------------- what is shown


def test_a_line_of_a_log_is_one_line_whoever_has_written_parts_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    output.log_to_stderr("here")
    logging.getLogger("unlockstep.net").warning("it says %s", MOVES)
    (line,) = capsys.readouterr().err.splitlines()
    shows(line)


def test_an_error_is_one_line_whoever_has_written_parts_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["status", f"http://{MOVES}"]) == exits.USAGE
    shows(capsys.readouterr().err.removesuffix("\n"))

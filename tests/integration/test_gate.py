"""Who gets past the gate of a syncer, over real sockets: tokens and roles, pages of other sites, what clients show."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from support.gates import audited, gated, on_loop, refusals, secured
from support.live_run import live_syncer, small_config
from unlockstep.core.errors import RemoteProtocolError, UsageError
from unlockstep.core.events import EvaluationReported, LearnerDeparted
from unlockstep.core.messages import Evaluation, JoinRefused, Leave, Published, Pull
from unlockstep.core.reasons import JoinRefusal
from unlockstep.net.access.limits import Limits
from unlockstep.net.access.roles import Role
from unlockstep.net.access.security import NO_SECURITY, ClientSecurity
from unlockstep.net.clients.observer import end_run, read_about, read_status
from unlockstep.net.clients.sessions import client_session
from unlockstep.net.wire.timeouts import derive

# ------------------------------------------------------------------------------------------------- tokens and roles

STATUSES = {
    # Without a token; then as learner, evaluator, observer, admin.
    "GET /": (200, 200, 200, 200, 200),
    "GET /healthz": (200, 200, 200, 200, 200),
    "GET /metrics": (401, 200, 200, 200, 200),
    "GET /v1/runs": (401, 200, 200, 200, 200),
    "GET /v1/runs/small": (401, 200, 200, 200, 200),
    "GET /v1/runs/small/config": (401, 200, 200, 200, 200),
    "GET /v1/runs/small/fragments/0/versions/0": (401, 404, 404, 403, 404),
    "PUT /v1/runs/small/fragments/0/versions/0": (401, 404, 403, 403, 404),
    "PUT /v1/runs/small/rounds/0/contributions/l.1": (401, 404, 403, 403, 404),
    "PUT /v1/runs/small/states/1": (401, 400, 403, 403, 400),
    "GET /v1/runs/small/states/1": (401, 404, 403, 403, 404),
    "GET /v1/runs/small/control": (401, 400, 403, 403, 400),
    "GET /v1/runs/small/control?observer=me": (401, 403, 400, 400, 400),
    "POST /v1/runs/other/stop": (401, 403, 403, 403, 404),
    "GET /nowhere": (401, 404, 404, 404, 404),
    "DELETE /v1/runs": (401, 405, 405, 405, 405),
}


@on_loop
async def test_every_role_may_do_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    async with secured(tmp_path) as at:
        found: dict[str, tuple[int, ...]] = {}
        for token in (None, *(role.value for role in Role)):
            async with at.session(token) as session:
                for line in STATUSES:
                    method, path = line.split()
                    async with session.request(method, at.syncer.url + path) as response:
                        status, body = response.status, await response.text()
                        found[line] = (*found.get(line, ()), status)
                        assert response.headers["X-Content-Type-Options"] == "nosniff"
                        assert (status == 401) is ("WWW-Authenticate" in response.headers)
                        assert status not in (401, 403) or json.loads(body)["error"]
        assert found == STATUSES
        reasons = {reason for reason, _ in refusals(tmp_path)}
        assert {"no_token", "not_allowed"} <= reasons
        told = (tmp_path / "audit.jsonl").read_text()
        assert not any(at.secrets.token(role.value) in told for role in Role)


@on_loop
async def test_no_token_a_wrong_one_and_an_expired_one_are_refused_by_name(tmp_path: Path) -> None:
    async with secured(tmp_path) as at, at.session(None) as session:
        at.change_tokens('role = "observer"', 'role = "observer"\nexpires = 2020-01-01T00:00:00Z')
        token = at.secrets.token("learner")
        for headers, path, sentence in (
            ({}, "/v1/runs", "asks for a token"),
            ({}, f"/v1/runs?token={token}", "asks for a token"),  # In a URL it would be written down everywhere.
            ({"Authorization": "Bearer wrong"}, "/v1/runs", "not one of this syncer's"),
            ({"Authorization": f"Basic {token}"}, "/v1/runs", "asks for a bearer token"),
            ({"Authorization": f"Bearer {at.secrets.token('observer')}"}, "/v1/runs", "'observer' has expired"),
            ({"Authorization": "Bearer wrong"}, "/healthz", "not one of this syncer's"),
        ):
            async with session.get(at.syncer.url + path, headers=headers) as response:
                assert response.status == 401 and sentence in (await response.json())["error"]
        assert [reason for reason, _ in refusals(tmp_path)] == ["no_token", "no_token", *["wrong_token"] * 4]


@on_loop
async def test_an_observer_listens_and_an_evaluator_reports(tmp_path: Path) -> None:
    async with secured(tmp_path) as at, at.session("learner") as trains:
        seeder = at.syncer.puppet(trains, "l0")
        await seeder.join()
        await seeder.seed()
        async with at.session("observer") as session:
            eye = at.syncer.puppet(session, "eye")
            await eye.observe()
            await eye.hear(Published)
            await eye.say(Evaluation("eye", 0, 1.0, 1.0, (0, 0)))
            assert await eye.closed() == aiohttp.WSCloseCode.PROTOCOL_ERROR
        assert ("malformed", "Evaluation is not for this token's role to say") in refusals(tmp_path)
        async with at.session("evaluator") as session:
            judge = at.syncer.puppet(session, "judge")
            await judge.observe()
            await judge.say(Evaluation("judge", 0, 1.0, 1.0, (0, 0)))
            assert (await at.syncer.log.until(EvaluationReported))[0].source == "judge"


@on_loop
async def test_a_token_of_one_site_does_not_speak_for_another(tmp_path: Path) -> None:
    async with secured(tmp_path) as at:
        at.change_tokens('role = "learner"', 'role = "learner"\nlearners = "site-a"')
        async with at.session("learner") as session:
            own, others = at.syncer.puppet(session, "site-a-1"), at.syncer.puppet(session, "site-b-1")
            refused = await others.knock()
            assert isinstance(refused, JoinRefused) and refused.reason is JoinRefusal.BAD_NAME
            assert "may only speak for learners whose names begin 'site-a'" in refused.detail
            await own.join()
            others.incarnation = 1
            assert [status for status, _ in await others.seed()] == [403, 403]
            assert [status for status, _ in await own.seed()] == [201, 201]
            assert (await others.contribute(Pull(0, 0), b""))[0] == 403
        joined = [line for line in audited(tmp_path) if line["what"] == "joined"]
        assert [(line["learner"], line["token"], line["role"]) for line in joined] == [
            ("site-a-1", "learner", "learner")
        ]


@on_loop
async def test_who_leaves_or_falls_silent_is_told_with_where_it_came_from(tmp_path: Path) -> None:
    async with secured(tmp_path) as at, at.session("learner") as session:
        learner = at.syncer.puppet(session, "l0")
        await learner.join()
        await learner.say(Leave("l0", learner.incarnation, (0, 0)))
        await at.syncer.log.until(LearnerDeparted)
        left = [line for line in audited(tmp_path) if line["what"] == "left"]
        who = [(line["learner"], line["incarnation"], line["reason"], line["token"], line["address"]) for line in left]
        assert who == [("l0", 1, "left", "learner", "127.0.0.1")]


@on_loop
async def test_a_token_that_is_taken_away_ends_what_was_begun_with_it(tmp_path: Path) -> None:
    async with secured(tmp_path, Limits(sweep_s=0.02)) as at, at.session("learner") as session:
        learner = at.syncer.puppet(session, "l0")
        await learner.join()
        at.change_tokens("[tokens.learner]", "[tokens.learner-of-old]")
        await learner.closed()
        assert ("wrong_token", "its token was taken away, or has expired") in refusals(tmp_path)
        async with session.get(at.syncer.url + "/v1/runs") as response:
            assert response.status == 200, "the same token under another name is another one"


# ------------------------------------------------------------------------------------------------- the end from afar


@on_loop
async def test_an_admin_ends_the_run_in_order(tmp_path: Path) -> None:
    async with secured(tmp_path) as at, at.session("learner") as trains, at.session("admin") as session:
        learner = at.syncer.puppet(trains, "l0")
        await learner.start()
        for _ in range(2):
            async with session.post(at.syncer.base + "/stop") as response:
                assert (response.status, await response.json()) == (202, {"outcome": "stopping"})
        assert at.syncer.service.is_asked_to_end
        assert [line["token"] for line in audited(tmp_path) if line["what"] == "ended"] == ["admin"]


# ------------------------------------------------------------------------------------------------- pages of other sites

PAGES = {
    "the page itself": ({"Host": "localhost:1"}, 200),
    "another name for it": ({"Host": "127.0.0.1:1"}, 200),
    "IPv6": ({"Host": "[::1]:1"}, 200),
    "a name somebody points here": ({"Host": "evil.example:1"}, 421),
    "a name that looks like it": ({"Host": "localhost.evil.example"}, 421),
    "no name": ({"Host": ""}, 421),
    "no sense": ({"Host": "[::1"}, 421),
    "a look from elsewhere": ({"Host": "localhost:1", "Origin": "https://evil.example"}, 200),
}


@pytest.mark.parametrize("case", PAGES)
def test_a_syncer_for_this_machine_answers_only_to_its_names(case: str, tmp_path: Path) -> None:
    headers, status = PAGES[case]

    async def run() -> None:
        async with gated(tmp_path) as (_, url), aiohttp.ClientSession() as session:
            async with session.get(url + "/v1/runs", headers=headers) as response:
                assert response.status == status
                assert "Access-Control-Allow-Origin" not in response.headers
            assert [reason for reason, _ in refusals(tmp_path)] == ["foreign_host"] * (status == 421)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://localhost:1", 200),
        ("http://LOCALHOST:1", 200),
        ("http://localhost:2", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_page_of_another_site_changes_nothing(origin: str | None, status: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with gated(tmp_path) as (_, url), aiohttp.ClientSession() as session:
            headers = {"Host": "localhost:1"} | ({} if origin is None else {"Origin": origin})
            for method in ("PUT", "POST", "DELETE"):
                async with session.request(method, url + "/v1/runs", headers=headers) as response:
                    assert response.status == status
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
            async with session.get(url + "/v1/runs", headers=headers | upgrade) as response:
                assert response.status == status
            assert {reason for reason, _ in refusals(tmp_path)} == ({"foreign_origin"} if status == 403 else set())

    asyncio.run(run())


@on_loop
async def test_a_page_of_another_site_opens_no_control_connection(tmp_path: Path) -> None:
    async with live_syncer(small_config(), tmp_path) as syncer, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(syncer.base + "/control", origin="https://evil.example")
        assert refused.value.status == 403
        await (await session.ws_connect(syncer.base + "/control", origin=syncer.url)).close()


@on_loop
async def test_where_a_token_is_asked_for_any_name_will_do(tmp_path: Path) -> None:
    async with secured(tmp_path) as at, at.session("learner") as session:
        response = await session.get(at.syncer.url + "/v1/runs", headers={"Host": "syncer.example"})
        assert response.status == 200


# ------------------------------------------------------------------------------------------------- clients


@on_loop
async def test_what_a_client_reads_it_reads_over_tls_with_its_token(tmp_path: Path) -> None:
    async with secured(tmp_path) as at:
        client = at.secrets.client("observer")
        assert (await asyncio.to_thread(read_status, at.syncer.url, None, client)).state == "empty"
        for security, sentence in (
            (at.secrets.client(None), "asks for a token"),
            (ClientSecurity.of(at.secrets.ca, token="wrong"), "not one of this syncer's"),
            (ClientSecurity.of(token="wrong"), "give the ca.pem of its"),
        ):
            with pytest.raises(UsageError, match=sentence):
                await asyncio.to_thread(read_status, at.syncer.url, None, security)
        plain = at.syncer.url.replace("https", "http")
        with pytest.raises(UsageError, match="if it speaks TLS, write https://"):
            await asyncio.to_thread(read_status, plain, None, NO_SECURITY)
        with pytest.raises(UsageError, match="has the role observer, which may not do this"):
            await asyncio.to_thread(end_run, at.syncer.url, "small", client)


@on_loop
async def test_a_token_does_not_follow_a_redirection(tmp_path: Path) -> None:
    asked = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization"))
        raise web.HTTPTemporaryRedirect(f"http://localhost:{request.url.port}/elsewhere")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", elsewhere)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    client = ClientSecurity(token="mine")
    with pytest.raises(UsageError):
        await asyncio.to_thread(read_about, url, client)
    async with client_session(url, client, derive()) as session:
        session.headers.update(client.headers(url))
        with pytest.raises(RemoteProtocolError, match="a redirection was sent"):
            await session.get(url)
    assert asked == ["Bearer mine"] * 2
    await runner.cleanup()

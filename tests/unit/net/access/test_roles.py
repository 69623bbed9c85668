"""Who may do what: the table says it of every route and every message, and nothing is open by oversight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import pytest
from aiohttp import web

from unlockstep.core.messages import Evaluation, Heartbeat, Join, LearnerMessage
from unlockstep.net.access.roles import (
    OBSERVES,
    PERMISSIONS,
    Role,
    canonical,
    may_do,
    may_say,
    needs_token,
)
from unlockstep.net.syncer.resources import application
from unlockstep.net.wire import api
from unlockstep.net.wire.timeouts import derive


@web.middleware
async def open_gate(request: web.Request, handler: object) -> web.StreamResponse:
    raise NotImplementedError


def test_every_route_there_is_has_its_line() -> None:
    app = application(SimpleNamespace(timeouts=derive(), hashers=None), open_gate)  # type: ignore[arg-type]  # Nobody asks it.
    routes = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    routes = {(method, route) for method, route in routes if method != "HEAD"}
    assert routes | {("GET", api.CONTROL_ROUTE + OBSERVES)} == set(PERMISSIONS)


L, E, O, A = Role.LEARNER, Role.EVALUATOR, Role.OBSERVER, Role.ADMIN  # noqa: E741


@pytest.mark.parametrize(
    ("method", "route", "allowed"),
    [
        ("GET", api.STATUS_ROUTE, {L, E, O, A}),
        ("HEAD", api.STATUS_ROUTE, {L, E, O, A}),
        ("GET", api.CONFIG_ROUTE, {L, E, O, A}),
        ("GET", "/metrics", {L, E, O, A}),
        ("GET", api.CONTROL_ROUTE, {L, A}),
        ("GET", api.CONTROL_ROUTE + OBSERVES, {E, O, A}),
        ("GET", canonical(api.VERSION_ROUTE), {L, E, A}),
        ("PUT", canonical(api.VERSION_ROUTE), {L, A}),
        ("PUT", canonical(api.CONTRIBUTION_ROUTE), {L, A}),
        ("PUT", canonical(api.STATE_ROUTE), {L, A}),
        ("GET", canonical(api.STATE_ROUTE), {L, A}),
        ("POST", api.STOP_ROUTE, {A}),
        ("DELETE", api.STATUS_ROUTE, {A}),
        ("GET", "/a/route/that/nobody/has/entered", {A}),
    ],
)
def test_a_role_may_do_what_it_is_for(method: str, route: str, allowed: set[Role]) -> None:
    assert {role for role in Role if may_do(PERMISSIONS, method, route, role)} == allowed


def test_only_the_page_and_the_sign_of_life_need_no_token() -> None:
    assert {key for key in PERMISSIONS if not needs_token(PERMISSIONS, *key)} == {("GET", "/"), ("GET", "/healthz")}
    assert needs_token(PERMISSIONS, "POST", "/")


def test_every_message_has_its_line() -> None:
    for kind in get_args(LearnerMessage):
        assert may_say(kind, Role.ADMIN)


@pytest.mark.parametrize(("kind", "allowed"), [(Join, {L, A}), (Heartbeat, {L, A}), (Evaluation, {E, A})])
def test_a_role_may_say_what_it_is_for(kind: type[LearnerMessage], allowed: set[Role]) -> None:
    assert {role for role in Role if may_say(kind, role)} == allowed


@pytest.mark.parametrize(
    ("route", "plain"),
    [
        (api.VERSION_ROUTE, "/v1/runs/{run}/fragments/{fragment}/versions/{version}"),
        (api.CONTRIBUTION_ROUTE, "/v1/runs/{run}/rounds/{round}/contributions/{learner}.{incarnation}"),
        ("/v1/runs/{run}", "/v1/runs/{run}"),
        ("/{path:.*}", "/{path}"),
    ],
)
def test_a_route_is_known_without_its_patterns(route: str, plain: str) -> None:
    assert canonical(route) == plain

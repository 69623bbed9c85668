"""Roles, and what each may do: every route of ``api`` and every message, one table each.

Decides who may do what. What is not in the tables nobody but an admin may do. Does not decide who has which role
(``tokens``) nor how a refusal looks (``gate``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from unlockstep.core.messages import (
    Evaluation,
    Heartbeat,
    Join,
    LearnerMessage,
    Leave,
    Leaving,
    Progress,
    StateDeclined,
    StateWanted,
)
from unlockstep.net.wire import api


class Role(Enum):
    """What the bearer of a token is trusted with."""

    LEARNER = "learner"
    """Trains: reads settings and versions, hands over contributions and states."""
    EVALUATOR = "evaluator"
    """Reads settings and versions, reports validation losses."""
    OBSERVER = "observer"
    """Reads what the syncer says of the run; no parameters."""
    ADMIN = "admin"
    """Everything, and ends the run."""


Permissions = Mapping[tuple[str, str], frozenset[Role] | None]
"""By method and route (``canonical``), who may; None: everybody, even without a token."""

EVERY_ROLE = frozenset(Role)
TRAINS = frozenset({Role.LEARNER, Role.ADMIN})
_READS_PARAMETERS = TRAINS | {Role.EVALUATOR}
_WATCHES = frozenset({Role.EVALUATOR, Role.OBSERVER, Role.ADMIN})
_ADMIN = frozenset({Role.ADMIN})

OBSERVES = "?observer"
"""After the control route: the connection is an observer's."""


def canonical(route: str) -> str:
    """A route without the patterns of its variables: ``/v1/runs/{run}``."""
    return re.sub(r"\{(\w+):(?:[^{}]|\{[^{}]*\})*\}", r"{\1}", route)


PERMISSIONS: Permissions = {
    ("GET", "/"): None,  # The page itself says nothing of the run; what it shows it asks for.
    ("GET", "/healthz"): None,
    ("GET", "/metrics"): EVERY_ROLE,
    ("GET", api.ABOUT_ROUTE): EVERY_ROLE,
    ("GET", api.PROBE_ROUTE): EVERY_ROLE,
    ("PUT", api.PROBE_ROUTE): EVERY_ROLE,
    ("GET", api.RUNS_ROUTE): EVERY_ROLE,
    ("GET", api.STATUS_ROUTE): EVERY_ROLE,
    ("GET", api.CONFIG_ROUTE): EVERY_ROLE,
    ("GET", api.CONTROL_ROUTE): TRAINS,
    ("GET", api.CONTROL_ROUTE + OBSERVES): _WATCHES,
    ("GET", canonical(api.VERSION_ROUTE)): _READS_PARAMETERS,
    ("GET", canonical(api.VERSION_DIGESTS_ROUTE)): _READS_PARAMETERS,
    ("PUT", canonical(api.VERSION_ROUTE)): TRAINS,
    ("PUT", canonical(api.CONTRIBUTION_ROUTE)): TRAINS,
    ("PUT", canonical(api.STATE_ROUTE)): TRAINS,
    ("GET", canonical(api.STATE_ROUTE)): TRAINS,
    ("GET", canonical(api.STATE_DIGESTS_ROUTE)): TRAINS,
    ("POST", api.STOP_ROUTE): _ADMIN,
}

STANDBY_ROUTE = "/{path:.*}"
STANDBY_PERMISSIONS: Permissions = {
    (method, canonical(STANDBY_ROUTE)): EVERY_ROLE for method in ("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")
}
"""A syncer that stands by says where the one is that leads, to whoever has a token."""

_SAYS: Mapping[type[LearnerMessage], frozenset[Role]] = {
    Join: TRAINS,
    Heartbeat: TRAINS,
    Progress: TRAINS,
    Leaving: TRAINS,
    Leave: TRAINS,
    StateWanted: TRAINS,
    StateDeclined: TRAINS,
    Evaluation: frozenset({Role.EVALUATOR, Role.ADMIN}),
}


def may_do(permissions: Permissions, method: str, route: str, role: Role) -> bool:
    """Whether a role may make this request. A route that nobody has entered is an admin's."""
    allowed = permissions.get(("GET" if method == "HEAD" else method, route), _ADMIN)
    return allowed is None or role in allowed


def needs_token(permissions: Permissions, method: str, route: str) -> bool:
    """Whether the request is for those who have a role."""
    return permissions.get(("GET" if method == "HEAD" else method, route), _ADMIN) is not None


def may_say(kind: type[LearnerMessage], role: Role) -> bool:
    """Whether a role may send such a message on its control connection."""
    return role in _SAYS[kind]

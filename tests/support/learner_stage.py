"""A ``LearnerCore`` alone: the test plays the syncer and the model, and sees every action.

Decides nothing but the checks a real model would make: fragments are read and written between two inner steps only,
and what is uploaded was copied at the last boundary.
"""

from __future__ import annotations

from typing import Any, TypeVar

from support.core_builders import LEASE_NS, STEP_NS, learner_core, options
from unlockstep.core.actions import (
    Adopt,
    LearnerAction,
    LoadState,
    Send,
    TakeSnapshot,
    TakeState,
    Upload,
    UploadSeed,
)
from unlockstep.core.adoption import Adoption
from unlockstep.core.deeds import AdoptionNotice
from unlockstep.core.learner import LearnerState
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Fetched,
    HandedOver,
    LearnerInput,
    LearnerMessage,
    Progress,
    Published,
    StepFinished,
    VersionNotice,
    Welcome,
)
from unlockstep.core.options import ProtocolOptions

Kind = TypeVar("Kind")


def adoptions(progress: Progress) -> list[AdoptionNotice]:
    """What a report says of adoptions."""
    return [deed for deed in progress.deeds if isinstance(deed, AdoptionNotice)]


class LearnerStage:
    """The learner and all it has wanted."""

    def __init__(
        self,
        protocol: ProtocolOptions | None = None,
        adoption: Adoption = Adoption.OVERWRITE,
        alpha: float = 0.5,
        has_state: bool = False,
    ) -> None:
        self.options = protocol or options()
        self.core = learner_core("a", self.options, adoption, alpha, has_state=has_state)
        self.now_ns = 0
        self.actions: list[LearnerAction] = []
        self._snapshots: set[int] = set()

    def tell(self, message: LearnerInput) -> list[LearnerAction]:
        """The learner hears something; returns what it wants done."""
        at_boundary = isinstance(message, StepFinished) or not self.core.may_step
        self.core.receive(message, self.now_ns)
        return self._collect(at_boundary)

    def wait(self, duration_ns: int) -> list[LearnerAction]:
        """Time passes; deadlines come when they are due."""
        end_ns, wanted = self.now_ns + duration_ns, list[LearnerAction]()
        while self.core.next_deadline_ns() <= end_ns:
            self.now_ns = self.core.next_deadline_ns()
            at_boundary = not self.core.may_step
            self.core.on_deadline(self.now_ns)
            wanted += self._collect(at_boundary)
        self.now_ns = end_ns
        return wanted

    def step(self, tokens: int = 10) -> list[LearnerAction]:
        self.now_ns += STEP_NS
        return self.tell(StepFinished(tokens, STEP_NS, 1.0))

    def welcome(
        self,
        *,
        incarnation: int = 1,
        clock: int = 0,
        version: int = 0,
        seed: bool = False,
        steps_before: int = 0,
        life: int = 1,
        wanted: tuple[HandedOver, ...] = (),
        kept: int | None = None,
    ) -> list[LearnerAction]:
        """The syncer's answer to ``Join``, every fragment being at this version (negative: no version yet).

        Args:
            life: of the syncer.
            wanted: what it has not.
            kept: the version of every fragment that this life has begun with; None: it has begun the run.

        It has heard of all deeds that were ever said.
        """
        heard = max((deed.number for progress in self.said(Progress) for deed in progress.deeds), default=0)
        fragments = range(self.options.fragments)
        versions = tuple(notice(fragment, version) for fragment in fragments) if version >= 0 else ()
        kept_versions = () if kept is None else (kept,) * len(fragments)
        return self.tell(
            Welcome(
                incarnation,
                clock,
                LEASE_NS,
                versions,
                seed,
                steps_before,
                "id",
                life,
                tuple(wanted),
                kept_versions,
                deeds=heard,
            )
        )

    def return_to(self, **welcome: Any) -> list[LearnerAction]:
        """The connection breaks, and the syncer answers on the next one; returns all that is wanted from then on."""
        self.tell(Disconnected())
        return self.tell(Connected()) + self.welcome(**welcome)

    def publish(self, fragment: int, version: int, clock: int = 0) -> list[LearnerAction]:
        return self.tell(Published(notice(fragment, version), clock))

    def fetched(self, fragment: int, version: int, payload: int = 0) -> list[LearnerAction]:
        return self.tell(Fetched(fragment, version, f"digest-{fragment}-{version}", payload))

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Actions of one kind, oldest first."""
        return [action for action in self.actions if isinstance(action, kind)]

    def said(self, kind: type[Kind]) -> list[Kind]:
        """Messages of one kind sent to the syncer, oldest first."""
        return [action.message for action in self.of(Send) if isinstance(action.message, kind)]

    @property
    def last_progress(self) -> Progress:
        return self.said(Progress)[-1]

    def _collect(self, at_boundary: bool) -> list[LearnerAction]:
        wanted = self.core.take_actions()
        self.actions += wanted
        if at_boundary:
            self._snapshots.clear()
        for action in wanted:
            if isinstance(action, TakeSnapshot | Adopt | UploadSeed | TakeState | LoadState):
                assert at_boundary, f"{action} touches the model in the middle of a step"
            if isinstance(action, TakeSnapshot):
                self._snapshots.add(action.fragment)
            if isinstance(action, Adopt):
                self._snapshots.discard(action.fragment)
            if isinstance(action, Upload):
                assert action.fragment in self._snapshots, f"{action} has no copy of the last boundary"
                self._snapshots.remove(action.fragment)
        return wanted


def notice(fragment: int, version: int) -> VersionNotice:
    return VersionNotice(fragment, version, f"digest-{fragment}-{version}")


def sent(actions: list[LearnerAction]) -> list[LearnerMessage]:
    """What of these goes to the syncer."""
    return [action.message for action in actions if isinstance(action, Send)]


def only(kind: type[Kind], actions: list[LearnerAction]) -> list[Kind]:
    """Those of one kind."""
    return [action for action in actions if isinstance(action, kind)]


def training(
    protocol: ProtocolOptions | None = None, adoption: Adoption = Adoption.OVERWRITE, alpha: float = 0.5
) -> LearnerStage:
    """A learner that has loaded version 0 of every fragment and is about to take its first step."""
    stage = LearnerStage(protocol, adoption, alpha)
    stage.tell(Connected())
    stage.welcome()
    for fragment in range(stage.options.fragments):
        stage.fetched(fragment, 0)
    assert stage.core.state is LearnerState.TRAINING
    return stage


def seeding(protocol: ProtocolOptions | None = None) -> LearnerStage:
    """A learner whose parameters become version 0, uploaded but not stored yet."""
    stage = LearnerStage(protocol)
    stage.tell(Connected())
    stage.welcome(version=-1, seed=True)
    return stage

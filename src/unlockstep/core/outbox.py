"""What a core has to say to its host and has not said yet: actions to carry out, events to log.

Decides nothing. Shared by the parts of the syncer, so that what they do comes out in one order.
"""

from __future__ import annotations

from unlockstep.core.actions import Save, SendTo, SyncerAction
from unlockstep.core.events import Event
from unlockstep.core.messages import SyncerMessage


class Outbox:
    """Two lists that are emptied by taking them."""

    def __init__(self) -> None:
        self._actions: list[SyncerAction] = []
        self._events: list[Event] = []

    def act(self, action: SyncerAction) -> None:
        self._actions.append(action)

    def send_to(self, learner: str, incarnation: int, message: SyncerMessage) -> None:
        self._actions.append(SendTo(learner, incarnation, message))

    def save(self, is_commit: bool = False) -> None:
        """What follows promises something that must not be forgotten."""
        self._actions.append(Save(is_commit))

    def log(self, event: Event) -> None:
        self._events.append(event)

    def take_actions(self) -> list[SyncerAction]:
        actions, self._actions = self._actions, []
        return actions

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

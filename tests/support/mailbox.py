"""What a learner's client tells its receiver, kept for a test that plays the core."""

from __future__ import annotations

import threading
import time
from typing import Any

from support.live_run import WAIT_S
from unlockstep.core.ids import NEVER_NS
from unlockstep.core.messages import LearnerInput


class Mailbox:
    """A receiver that keeps what it is told; the test plays the core."""

    def __init__(self) -> None:
        self.deadline_ns = NEVER_NS
        self.on_deadline_calls = 0
        self._messages: list[LearnerInput] = []
        self._changed = threading.Condition()

    def deliver(self, message: LearnerInput) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def next_deadline_ns(self) -> int:
        return self.deadline_ns

    def on_deadline(self) -> None:
        if time.monotonic_ns() >= self.deadline_ns:
            with self._changed:
                self.deadline_ns = NEVER_NS
                self.on_deadline_calls += 1
                self._changed.notify_all()

    def wait(self, kind: type[Any]) -> Any:
        """Take the first message of a kind, once it is there."""

        def first() -> LearnerInput | None:
            return next((message for message in self._messages if isinstance(message, kind)), None)

        with self._changed:
            assert self._changed.wait_for(first, WAIT_S), f"no {kind.__name__}"
            found = first()
            assert found is not None
            self._messages.remove(found)
            return found

    def wait_for_deadline(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.on_deadline_calls > 0, WAIT_S)

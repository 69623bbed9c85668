"""Toy learners in threads of this process, of a syncer that is a process of its own, at one address or at several.

Decides how such a learner is paced, and that every digest it was ever told is remembered: what was told must be kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.live_run import WAIT_S, layout_of
from unlockstep.config import RunConfig
from unlockstep.core.actions import Done
from unlockstep.core.messages import LearnerInput, Published, Welcome
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import LearnerLoop
from unlockstep.net.access.security import NO_SECURITY, ClientSecurity
from unlockstep.net.clients.learner import LearnerClient
from unlockstep.net.wire.timeouts import leases_of

STEP_S = 0.02
"""What an inner step of a toy learner takes."""


class _Listening(LearnerLoop):
    """Remembers what the syncer has promised."""

    told: dict[tuple[int, int], str]
    lives: set[int]

    def deliver(self, message: LearnerInput) -> None:
        notices = message.versions if isinstance(message, Welcome) else ()
        if isinstance(message, Published):
            notices = (message.notice,)
        if isinstance(message, Welcome):
            self.lives.add(message.life)
        for notice in notices:
            self.told.setdefault((notice.fragment, notice.version), notice.digest)
        super().deliver(message)


class ToyLearner:
    """One that trains until the run is over, or the site is closed."""

    def __init__(self, urls: str, config: RunConfig, name: str, seed: int, security: ClientSecurity) -> None:
        self.backend = ToyBackend(seed=seed, noise=0.1)
        layout = layout_of(self.backend, config)
        self.backend.bind(layout)
        self._client = LearnerClient(
            urls,
            config.run.name,
            layout,
            config.codec,
            leases=leases_of(config),
            courier="thread",
            security=security,
        )
        self.loop = _Listening.create(
            name,
            layout,
            self.backend,
            self._client,
            protocol=config.protocol,
            adoption=config.adoption.mode,
            blend_alpha=config.adoption.blend_alpha,
            now_ns=time.monotonic_ns,
        )
        self.loop.told, self.loop.lives = {}, set()  # type: ignore[attr-defined]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._train, name=name, daemon=True)
        self._client.start(self.loop)
        self._thread.start()

    @property
    def told(self) -> dict[tuple[int, int], str]:
        """(fragment, version) -> digest, of everything that was announced to it."""
        return dict(self.loop.told)  # type: ignore[attr-defined]

    @property
    def lives(self) -> set[int]:
        """Of the syncer, that have welcomed it."""
        return set(self.loop.lives)  # type: ignore[attr-defined]

    @property
    def done(self) -> Done | None:
        return self.loop.done

    def until_done(self) -> None:
        """Wait until there are no more steps, because the run is over or for it alone."""
        self._thread.join(WAIT_S)

    def _train(self) -> None:
        while not self._over.is_set() and self.loop.done is None:
            if self.loop.wait_until_may_step(0.1):
                self._over.wait(STEP_S)
                self.loop.finish_step(self.backend.inner_step(self.loop.clock))

    def close(self) -> None:
        self._over.set()
        self._thread.join(WAIT_S)
        self._client.close()


@contextmanager
def toy_site(
    urls: str, config: RunConfig, count: int, security: ClientSecurity = NO_SECURITY
) -> Iterator[list[ToyLearner]]:
    """So many learners, gone when the block ends."""
    learners = [ToyLearner(urls, config, f"toy-{number}", number, security) for number in range(count)]
    try:
        yield learners
    finally:
        for learner in learners:
            learner.close()

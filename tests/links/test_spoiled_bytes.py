"""One wrong byte above TCP, in a body or in a control frame: it is found and made good, and nobody is worse off.

No checksum of a packet sees what a broken middlebox does. A body has a digest. A control frame has none, but most of
what can be wrong with one is no message any more; all of it is found by TLS.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.live_run import small_config
from support.proxy import Direction, proxy
from support.syncer_thread import syncer_thread
from support.toy_site import toy_site
from unlockstep.config import RunSection
from unlockstep.core.events import FragmentAdopted, FragmentCommitted, RunFinished
from unlockstep.report.accounting import account

LINES_END = b"\r\n\r\n"

BODIES: dict[str, tuple[Direction, bytes]] = {
    "of_the_seed": ("up", b"/versions/0"),
    "of_a_contribution": ("up", b"/contributions/"),
    "of_a_version": ("down", b"application/octet-stream"),
}

FRAMES: dict[str, tuple[Direction, tuple[bytes, ...], int]] = {
    "header_up": ("up", (b"/control", LINES_END), 0),
    "message_up": ("up", (b"/control", LINES_END), 8),  # Behind the header of a frame of up to 64 kB, and its mask.
    "header_down": ("down", (b"101 Switching", LINES_END), 0),
    "message_down": ("down", (b"101 Switching", LINES_END, b"Publishe"), 0),
}


def run_through(direction: Direction, behind: tuple[bytes, ...], skip: int, folder: Path) -> None:
    """A run of two learners with this byte spoiled comes to its end with all that was trained."""
    config = small_config(run=RunSection(name="small", steps=40))
    with (
        syncer_thread(config, folder) as syncer,
        proxy(syncer.url, direction, *behind, skip=skip) as (url, done),
        toy_site(url, config, 2) as learners,
    ):
        syncer.live.log.wait(RunFinished)
        assert done.is_set()
        for learner in learners:
            learner.until_done()
            assert learner.done is not None and not learner.done.failed, learner.done
    events = syncer.live.log.events
    accounting = account(events, config.protocol)
    assert accounting.balance == 0
    assert accounting.ledger.refused == {} and accounting.ledger.lost == 0
    committed = {(e.fragment, e.version): e.digest for e in events if isinstance(e, FragmentCommitted)}
    adopted = [event for event in events if isinstance(event, FragmentAdopted) and event.version > 0]
    assert adopted and all(committed[event.fragment, event.version] == event.digest for event in adopted)


@pytest.mark.parametrize("name", BODIES)
def test_a_body_with_a_wrong_byte_is_carried_again(name: str, tmp_path: Path) -> None:
    direction, behind = BODIES[name]
    run_through(direction, (behind, LINES_END), 20, tmp_path)


@pytest.mark.parametrize("name", FRAMES)
def test_a_control_frame_with_a_wrong_byte_costs_its_connection_alone(name: str, tmp_path: Path) -> None:
    run_through(*FRAMES[name], tmp_path)

"""An upload that is given up: declared undelivered only once it is known that its link was not cut."""

from __future__ import annotations

import asyncio

import pytest

from support.courier_site import LAYOUT, contribution, setting
from unlockstep.core.formats import Packing
from unlockstep.core.messages import Disconnected, LearnerInput, UploadArrived, UploadFailed
from unlockstep.net.clients.learner_bulk import LearnerBulk
from unlockstep.net.courier.courier import Courier, Parcel, ThreadCarrier
from unlockstep.net.courier.jobs import Answered, Job, Result
from unlockstep.net.wire.link_meter import LinkMeter

FAILED = UploadFailed(0, 0, 10, 10)


class Answering(ThreadCarrier):
    """Carries nothing: every upload ends with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(setting("http://127.0.0.1:1"), None)
        self.status = status

    async def carry(self, job: Job, parcel: Parcel) -> Result:
        return Answered(job.number, self.status, "as the test has it")


async def told_of(status: int, is_cut: bool) -> tuple[list[LearnerInput], list[LearnerInput]]:
    """What is told of an upload with this outcome: before it is known whether the link is cut, and in the end."""
    told: list[LearnerInput] = []
    asked, known = asyncio.Event(), asyncio.Event()

    async def link_is_known() -> None:
        asked.set()
        await known.wait()

    courier = Courier(setting(""), LAYOUT, Answering(status), LinkMeter())
    async with asyncio.TaskGroup() as tasks:
        bulk = LearnerBulk("run", Packing.NONE, courier, tasks, told.append, lambda: None, link_is_known)
        bulk.upload(contribution())
        over = asyncio.create_task(bulk.arrive())
        await asyncio.wait([asyncio.create_task(asked.wait()), over], return_when=asyncio.FIRST_COMPLETED)
        before = [*told]
        if is_cut:
            told.append(Disconnected())
        known.set()
        asked.set()
        await over
    await courier.close()
    return before, told


def test_what_did_not_arrive_is_kept_until_it_is_known_that_the_link_is_cut() -> None:
    assert asyncio.run(told_of(0, is_cut=True)) == ([], [Disconnected(), FAILED])


def test_what_did_not_arrive_over_a_whole_link_has_failed_in_the_end() -> None:
    assert asyncio.run(told_of(0, is_cut=False)) == ([], [FAILED])


@pytest.mark.parametrize(("status", "told"), [(202, UploadArrived(0, 0, 10)), (409, FAILED)])
def test_what_the_syncer_has_answered_is_told_at_once(status: int, told: LearnerInput) -> None:
    assert asyncio.run(told_of(status, is_cut=False)) == ([told], [told])

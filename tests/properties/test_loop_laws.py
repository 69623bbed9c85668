"""Laws of the loop: what a contribution is counted for is what is in it, whatever happens in whatever order and thread.

Every inner step moves every fragment by exactly one and reports ten tokens. So the outer gradient of a contribution
must be minus its steps, to the last bit, and its tokens ten times its steps.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.core_builders import LEASE_NS
from support.learner_stage import notice
from support.loop_bench import Bench, training
from unlockstep.core.adoption import Adoption
from unlockstep.core.messages import (
    Connected,
    Disconnected,
    Fenced,
    Finish,
    Progress,
    Published,
    Pull,
    UploadArrived,
    Welcome,
)
from unlockstep.core.outer_gradient import outer_gradient
from unlockstep.core.reasons import DepartureReason

WHOLE = [Adoption.OVERWRITE, Adoption.CARRY]
"""Modes after which the work left in a fragment is a whole number of steps."""

happenings = st.lists(
    st.one_of(
        st.just(("step",)),
        st.tuples(st.just("pull"), st.integers(0, 1)),
        st.tuples(st.just("publish"), st.integers(0, 1)),
        st.tuples(st.just("arrive"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["delivered", "cut", "connect", "fence"])),
    ),
    max_size=60,
)


class World:
    """What the syncer would know: the newest round and version of each fragment, and the learner's incarnation."""

    def __init__(self, adoption: Adoption) -> None:
        self.bench = training(adoption)
        self.rounds = [0, 1]
        self.versions = [0, 0]
        self.incarnation = 1
        self.delivered = 0

    def happen(self, what: str, fragment: int = 0) -> None:
        bench = self.bench
        match what:
            case "step":
                bench.step(1, 1)
            case "pull":
                bench.loop.deliver(Pull(self.rounds[fragment], fragment))
                self.rounds[fragment] += 2
            case "publish":
                self.versions[fragment] += 1
                bench.loop.deliver(Published(notice(fragment, self.versions[fragment]), 0))
            case "arrive":
                wanted = [each for each in bench.wire.fetches if each.fragment == fragment and each.version > 0]
                if wanted:
                    bench.arrive(fragment, wanted[-1].version, 1000.0 * wanted[-1].version)
            case "delivered":
                if self.delivered < len(bench.wire.uploads):
                    made = bench.wire.uploads[self.delivered]
                    self.delivered += 1
                    bench.loop.deliver(UploadArrived(made.round, made.fragment, made.tokens))
            case "cut":
                bench.loop.deliver(Disconnected())
            case "connect":
                bench.loop.deliver(Disconnected())
                self.welcome()
            case "fence":
                bench.loop.deliver(Fenced(DepartureReason.LEASE_EXPIRED))
                self.incarnation += 1
                self.welcome()

    def welcome(self) -> None:
        self.bench.loop.deliver(Connected())
        versions = tuple(notice(fragment, version) for fragment, version in enumerate(self.versions))
        self.bench.loop.deliver(Welcome(self.incarnation, 0, LEASE_NS, versions, False, 0, "id"))


def check_contributions(bench: Bench) -> None:
    for made in bench.wire.uploads:
        assert made.c_steps > 0
        assert outer_gradient(made.anchor, made.local).tolist() == [-made.c_steps]
        assert made.c_tokens == 10 * made.c_steps


@pytest.mark.parametrize("adoption", WHOLE)
@given(story=happenings)
def test_a_contribution_holds_exactly_the_steps_it_is_counted_for(
    adoption: Adoption, story: list[tuple[str, int]]
) -> None:
    world = World(adoption)
    for what, *fragment in story:
        world.happen(what, *fragment)
    check_contributions(world.bench)


@pytest.mark.parametrize("adoption", Adoption)
@given(story=happenings)
def test_every_token_is_handed_over_overwritten_or_still_held(adoption: Adoption, story: list[tuple[str, int]]) -> None:
    """As the learner itself reports it in the end."""
    world = World(adoption)
    for what, *fragment in story:
        world.happen(what, *fragment)
    world.happen("connect")
    world.happen("step")
    bench = world.bench
    last = [message for message in bench.wire.sent if isinstance(message, Progress)][-1]
    for fragment in range(2):
        handed = sum(made.c_tokens for made in bench.wire.uploads if made.fragment == fragment)
        assert handed + last.overwritten[fragment] + last.c_tokens[fragment] == last.tokens


@pytest.mark.parametrize("adoption", Adoption)
@given(story=happenings, finish=st.booleans())
def test_whatever_happens_a_learner_can_finish_or_leave(
    adoption: Adoption, story: list[tuple[str, int]], finish: bool
) -> None:
    world = World(adoption)
    for what, *fragment in story:
        world.happen(what, *fragment)
    bench = world.bench
    if finish:
        bench.loop.deliver(Finish())
        world.happen("step")
        assert not bench.loop.may_step
        for fragment in range(2):
            world.happen("pull", fragment)
        assert not bench.loop.wait_until_may_step(timeout_s=0)
    bench.loop.leave(timeout_s=0)
    assert bench.loop.done is not None
    assert bench.wire.bodies == {}


@pytest.mark.parametrize("adoption", WHOLE)
def test_it_holds_while_a_second_thread_asks_and_delivers(adoption: Adoption) -> None:
    """Nothing is timed: whichever thread is first, what is counted is what is handed over."""
    world = World(adoption)
    barrier = threading.Barrier(2)

    def network() -> None:
        barrier.wait()
        for number in range(400):
            world.happen(("pull", "publish", "arrive", "delivered")[number % 4], number // 4 % 2)

    thread = threading.Thread(target=network)
    thread.start()
    barrier.wait()
    for _ in range(400):
        world.happen("step")
    thread.join()
    for fragment in range(2):  # If the other thread was first, nothing was handed over yet from so old a version.
        world.happen("arrive", fragment)
        world.happen("pull", fragment)
        world.happen("step")
    check_contributions(world.bench)
    assert len(world.bench.wire.uploads) > 2
    assert np.isfinite(world.bench.store.values).all()
    assert world.bench.store.threads == {threading.get_ident()}

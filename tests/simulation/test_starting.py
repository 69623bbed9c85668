"""Processes take time to start: until then they are not there, and who dies meanwhile never is."""

from __future__ import annotations

import msgspec
import pytest

from support.ring_story import MS, SECOND_NS, STEP_NS, end, of, settings, toy
from unlockstep import tape as tapes
from unlockstep.core.events import LearnerJoined, SyncerResumed
from unlockstep.sim.network import Costs
from unlockstep.sim.world import World
from unlockstep.tape import SYNCER

START_NS = 3 * SECOND_NS
COSTS = Costs(start_ns=START_NS)
CONNECTING_NS = 2 * COSTS.message_ns
"""A connection, and the first word on it."""


def ring(*actions: tapes.Action) -> World:
    """Learners a and b, and what happens to them."""
    world = World(settings(lease_s=1.0), COSTS)
    tape = tapes.Tape(name="starts", learners=("a", "b"), actions=actions)
    world.schedule(tape, lambda name: (toy(world.config, ord(name)), STEP_NS))
    return world


def joined_ns(world: World, name: str) -> list[int]:
    return [event.at_ns for event in of(LearnerJoined, world.events) if event.learner == name and not event.resumed]


def at(seconds: float, kind: type[tapes.Action], target: str = "b", **values: object) -> tapes.Action:
    return msgspec.convert({"at_ns": round(seconds * SECOND_NS), "target": target, **values}, kind)


def test_who_is_there_at_the_beginning_has_started() -> None:
    world = ring()
    world.run(SECOND_NS)
    assert joined_ns(world, "a") == joined_ns(world, "b") == [CONNECTING_NS]
    end(world)


@pytest.mark.parametrize(
    ("actions", "name"),
    [
        ((at(1, tapes.Kill), at(2, tapes.Restart)), "b"),
        ((at(2, tapes.Join, "c"),), "c"),
        ((at(2, tapes.Replace),), "b"),
    ],
)
def test_a_learner_that_the_tape_starts_is_there_when_it_has_started(
    actions: tuple[tapes.Action, ...], name: str
) -> None:
    world = ring(*actions)
    world.run(8 * SECOND_NS)
    assert joined_ns(world, name)[-1] == 2 * SECOND_NS + START_NS + CONNECTING_NS
    end(world)


def test_a_learner_that_is_killed_while_it_starts_never_is_there() -> None:
    world = ring(at(1, tapes.Kill), at(2, tapes.Restart), at(4, tapes.Kill), at(4.5, tapes.Restart))
    world.run(9 * SECOND_NS)
    assert joined_ns(world, "b") == [CONNECTING_NS, 4500 * MS + START_NS + CONNECTING_NS]
    end(world)


def test_a_learner_that_is_told_to_leave_while_it_starts_just_ends() -> None:
    world = ring(at(2, tapes.Join, "c"), at(3, tapes.Leave, "c"))
    world.run(9 * SECOND_NS)
    assert joined_ns(world, "c") == [] and not world.is_up("c")
    end(world)


def test_who_is_stopped_or_slowed_down_while_it_starts_needs_so_much_longer() -> None:
    """Stopped for two seconds after the first; or three times slower for the last two."""
    for actions in (
        (at(3, tapes.Stop), at(5, tapes.Continue)),
        (at(3, tapes.Slow, factor=3.0), at(12, tapes.Slow, factor=1.0)),
    ):
        world = ring(at(1, tapes.Kill), at(2, tapes.Restart), *actions)
        world.run(14 * SECOND_NS)
        longer_ns = 2 * SECOND_NS if isinstance(actions[0], tapes.Stop) else 4 * SECOND_NS
        assert joined_ns(world, "b")[-1] == 2 * SECOND_NS + START_NS + longer_ns + CONNECTING_NS
        end(world)


def test_a_slow_host_starts_its_processes_slowly() -> None:
    world = ring(at(0.5, tapes.Slow, factor=2.0), at(1, tapes.Kill), at(2, tapes.Restart))
    world.run(9 * SECOND_NS)
    assert joined_ns(world, "b")[-1] == 2 * SECOND_NS + 2 * START_NS + CONNECTING_NS
    end(world)


def test_a_syncer_is_there_when_it_has_started() -> None:
    world = ring(at(1, tapes.Kill, SYNCER), at(2, tapes.Restart, SYNCER))
    world.run(4 * SECOND_NS)
    assert len(world.lives) == 1 and not world.syncer.life.is_alive and world.syncer_runs
    world.run(9 * SECOND_NS)
    (resumed,) = of(SyncerResumed, world.events)
    assert resumed.at_ns == 2 * SECOND_NS + START_NS
    end(world)


def test_a_syncer_that_is_killed_while_it_starts_never_is_there() -> None:
    kill, restart = (at(each, tapes.Kill, SYNCER) for each in (1, 4)), at(2, tapes.Restart, SYNCER)
    first, second = kill
    world = ring(first, restart, second, at(4.5, tapes.Restart, SYNCER))
    world.run(4400 * MS)
    assert not world.syncer_runs
    world.run(9 * SECOND_NS)
    assert [event.at_ns for event in of(SyncerResumed, world.events)] == [4500 * MS + START_NS]
    end(world)


def test_a_syncer_that_is_stopped_while_it_starts_needs_so_much_longer() -> None:
    actions = (at(1, tapes.Kill), at(2, tapes.Restart), at(3, tapes.Stop), at(5, tapes.Continue))
    world = ring(*(msgspec.structs.replace(action, target=SYNCER) for action in actions))
    world.run(4 * SECOND_NS)
    assert world.syncer_is_stopped and not world.syncer_runs
    world.run(9 * SECOND_NS)
    assert [event.at_ns for event in of(SyncerResumed, world.events)] == [4 * SECOND_NS + START_NS]
    end(world)


def test_a_syncer_that_had_no_room_takes_its_time_too() -> None:
    world = ring(at(1, tapes.Fill, SYNCER), at(2, tapes.Free, SYNCER))
    world.run(9 * SECOND_NS)
    assert [event.at_ns for event in of(SyncerResumed, world.events)] == [2 * SECOND_NS + START_NS]
    end(world)

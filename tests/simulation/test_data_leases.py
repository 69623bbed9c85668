"""Learners that come and go by chance, under virtual time: every sequence is trained as often as asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unlockstep import tape as tapes
from unlockstep.checkers import check
from unlockstep.config import DataSection, Deal, InnerSection, LocalSection, RunConfig, RunSection
from unlockstep.core.course import Course
from unlockstep.core.data_book import Grant
from unlockstep.core.events import DataReturned, Event, LearnerDeparted, RunFinished, RunFinishing, StepReported
from unlockstep.core.leasing import EVERYTHING_TRAINED
from unlockstep.core.messages import EndRun
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import DepartureReason
from unlockstep.learners.backend import Backend
from unlockstep.learners.toy import ToyBackend
from unlockstep.sim import story as stories
from unlockstep.sim.network import MILLISECOND_NS, SECOND_NS
from unlockstep.sim.swarm import Verdict, play
from unlockstep.sim.world import World

SEQUENCES = 101
STEP_NS = 100 * MILLISECOND_NS


def settings_of(epochs: int = 1, quorum: int = 1, **protocol: Any) -> RunConfig:
    return RunConfig(
        run=RunSection(steps=5 if epochs else 10**6),  # with an end of the data it only paces schedules
        data=DataSection(deal=Deal.LEASES, chunk_sequences=8, stock_sequences=12, epochs=epochs),
        inner=InnerSection(batch_size=3, schedule="constant"),
        protocol=ProtocolOptions(**{"fragments": 3, "interval_steps": 6, "quorum": quorum, "lease_s": 2.0, **protocol}),
        local=LocalSection(learners=3),
    )


def world_of(config: RunConfig, sequences: int = SEQUENCES) -> World:
    return World(config, make_course=lambda _: Course(sequences, "imaginary", config.inner.batch_size))


def start(name: str) -> tuple[Backend, int]:
    return ToyBackend(sizes=(4, 4, 4), tokens_per_step=3), STEP_NS


def log_of(world: World) -> list[Event]:
    return [event for life in world.lives for event in life.take_events()]


def times_trained(world: World) -> Counter[tuple[int, int]]:
    """How often each (epoch, place) was taken by anybody."""
    grants: list[Grant] = [grant for process in world.started for grant in process.taken]
    return Counter((grant.epoch, place) for grant in grants for place in range(grant.start, grant.stop))


def asked_for(epochs: int, sequences: int = SEQUENCES) -> set[tuple[int, int]]:
    return {(epoch, place) for epoch in range(epochs) for place in range(sequences)}


def finished(events: list[Event]) -> RunFinished:
    return next(event for event in events if isinstance(event, RunFinished))


@pytest.mark.parametrize(("learners", "epochs"), [(1, 1), (3, 2)])
def test_undisturbed_learners_train_every_sequence_once_an_epoch_and_the_run_ends(learners: int, epochs: int) -> None:
    world = world_of(settings_of(epochs))
    for number in range(learners):
        world.join(f"learner-{number}", *start("any"))
    world.run(until_ns=600 * SECOND_NS)
    assert world.ended
    assert times_trained(world) == dict.fromkeys(asked_for(epochs), 1)
    events = log_of(world)
    assert check(events, world.config.protocol) == []
    data = finished(events).data
    assert data is not None
    assert (data.reached, data.trained, data.repeated, data.held, data.waiting) == (SEQUENCES * epochs,) * 2 + (0, 0, 0)
    ends = [process.loop.done for process in world.started]
    assert all(end is not None and not end.failed for end in ends)


def test_what_a_learner_had_not_brought_in_when_it_died_is_trained_by_others() -> None:
    """C47"""
    world = world_of(settings_of())
    for name in ("a", "b"):
        world.join(name, *start(name))
    world.run(until_ns=int(1.55 * SECOND_NS))
    world.kill("b")
    died_with = world.process("b").taken
    world.run(until_ns=600 * SECOND_NS)
    assert world.ended
    events = log_of(world)
    returned = [event for event in events if isinstance(event, DataReturned)]
    assert [event.learner for event in returned] == ["b"]
    counts = times_trained(world)
    assert counts.keys() == asked_for(1)
    twice = {place for place, count in counts.items() if count > 1}
    of_b = {(g.epoch, place) for g in died_with for place in range(g.start, g.stop)}
    back = {(g.epoch, place) for g in returned[0].grants for place in range(g.start, g.stop)}
    assert max(counts.values()) <= 2 and twice == of_b & back, "what it trained and took with it, and nothing else"
    data = finished(events).data
    assert data is not None and data.reached == SEQUENCES and data.repeated <= len(twice)
    assert check(events, world.config.protocol) == []


def test_who_leaves_in_order_leaves_its_data_to_the_others() -> None:
    world = world_of(settings_of())
    for name in ("a", "b"):
        world.join(name, *start(name))
    world.run(until_ns=SECOND_NS)
    world.process("b").leave()
    world.run(until_ns=600 * SECOND_NS)
    events = log_of(world)
    assert world.ended and times_trained(world).keys() == asked_for(1)
    departed = [event.reason for event in events if isinstance(event, LearnerDeparted)]
    assert departed == [DepartureReason.LEFT]
    assert check(events, world.config.protocol) == []


def test_a_joiner_that_finds_nothing_left_waits_and_takes_over_from_who_dies() -> None:
    """The last chunk is with a slow learner; all others are at rest until its lease has ended."""
    world = world_of(settings_of(), sequences=24)
    world.join("slow", ToyBackend(sizes=(4, 4, 4)), 10 * SECOND_NS)
    world.join("quick", *start("quick"))
    world.run(until_ns=8 * SECOND_NS)
    world.join("joiner", *start("joiner"))
    world.run(until_ns=9 * SECOND_NS)
    joiner = world.process("joiner")
    assert joiner.loop.waits_for_data and joiner.steps == 0
    world.kill("slow")
    world.run(until_ns=600 * SECOND_NS)
    assert world.ended and times_trained(world).keys() == asked_for(1, sequences=24)
    assert check(log_of(world), world.config.protocol) == []


def test_learners_without_data_wait_for_a_syncer_that_is_away_and_go_on() -> None:
    world = world_of(settings_of(epochs=0, lease_s=10.0))
    for name in ("a", "b"):
        world.join(name, *start(name))
    world.run(until_ns=3 * SECOND_NS)
    world.apply(tapes.Kill(at_ns=0, target=tapes.SYNCER), start)
    world.run(until_ns=30 * SECOND_NS)
    stood = {name: world.process(name).steps for name in ("a", "b")}
    assert all(world.process(name).loop.waits_for_data for name in stood)
    world.run(until_ns=40 * SECOND_NS)
    assert stood == {name: world.process(name).steps for name in stood}, "there was nothing to train"
    world.apply(tapes.Restart(at_ns=0, target=tapes.SYNCER), start)
    world.run(until_ns=60 * SECOND_NS)
    assert all(world.process(name).steps > stood[name] + 20 for name in stood)
    world.tell(EndRun("enough"))
    world.run(until_ns=70 * SECOND_NS)
    assert world.ended and check(log_of(world), world.config.protocol, rules=("data", "tokens")) == []
    assert max(times_trained(world).values()) == 1, "both have lived all the time: nothing is trained twice"


def test_a_run_whose_quorum_is_out_of_reach_at_its_end_says_what_is_missing() -> None:
    """K = 2, and one of two has gone: what the other one trains alone can never be merged."""
    world = world_of(settings_of(quorum=2))
    for name in ("a", "b"):
        world.join(name, *start(name))
    world.run(until_ns=SECOND_NS)
    world.kill("b")
    world.run(until_ns=600 * SECOND_NS)
    events = log_of(world)
    assert world.ended
    reason = next(event.reason for event in events if isinstance(event, RunFinishing))
    assert reason == f"{EVERYTHING_TRAINED}, and no more of it can be merged"
    data = finished(events).data
    assert data is not None and data.reached + data.held == SEQUENCES == data.dealt and data.held > 0
    assert check(events, world.config.protocol, rules=("data", "tokens", "quorum")) == []


def test_clocks_do_not_end_a_run_whose_data_has_an_end() -> None:
    world = world_of(settings_of())
    world.join("a", *start("a"))
    world.run(until_ns=600 * SECOND_NS)
    steps = [event.steps for event in log_of(world) if isinstance(event, StepReported)]
    assert steps[-1] == -(-SEQUENCES // 3) > world.config.run.steps


@given(seed=st.integers(0, 10**6), epochs=st.integers(1, 2))
@example(seed=1253, epochs=1)
@settings(deadline=None, max_examples=25)
def test_joining_and_leaving_by_chance_trains_every_sequence_as_often_as_asked(seed: int, epochs: int) -> None:
    """Stories of the swarm, with all their faults; it looks at what learners have really taken, too."""
    story = stories.draw(seed)
    data = DataSection(deal=Deal.LEASES, chunk_sequences=4, stock_sequences=6, epochs=epochs)
    inner = msgspec.structs.replace(story.config.inner, batch_size=2)
    protocol = msgspec.structs.replace(story.config.protocol, quorum=1)
    run = RunSection(steps=10**6)
    config = msgspec.structs.replace(story.config, data=data, inner=inner, protocol=protocol, run=run)
    story = msgspec.structs.replace(story, config=config, corpus_sequences=40)
    events: list[Event] = []
    outcome = play(story, record=events.extend)
    assert outcome.verdict in (Verdict.PASSED, Verdict.HOPELESS), outcome
    reasons = [event.reason for event in events if isinstance(event, RunFinishing)]
    if reasons and reasons[-1].startswith(EVERYTHING_TRAINED):
        end = finished(events[::-1]).data
        assert end is not None and (end.reached, end.waiting, end.held) == (40 * epochs, 0, 0)

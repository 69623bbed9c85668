"""Ten thousand rounds: what a syncer and a learner remember does not grow (C50)."""

from __future__ import annotations

import gc
from collections.abc import Callable

from support.core_builders import MS, STEP_NS
from support.learner_stage import notice, training
from support.syncer_stage import SyncerStage, running
from unlockstep.core.actions import Upload
from unlockstep.core.events import FragmentCommitted
from unlockstep.core.messages import Fetched, HandedOver, Published, Pull, Settled

ROUNDS = 10_000


def reachable(root: object) -> int:
    """Objects that hang on this one, itself included; not what is shared with the rest of the program."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        for child in gc.get_referents(waiting.pop()):
            if id(child) not in seen and not isinstance(child, type) and not callable(child):
                seen.add(id(child))
                waiting.append(child)
    return len(seen)


def growth(advance: Callable[[], None], root: object) -> tuple[int, int]:
    """Objects after a tenth of the rounds, and after all of them."""
    for _ in range(ROUNDS // 10):
        advance()
    early = reachable(root)
    for _ in range(ROUNDS - ROUNDS // 10):
        advance()
    return early, reachable(root)


def a_round(stage: SyncerStage, number: int) -> None:
    """Two learners step; one contributes on time and one late, and twice; now and then a learner restarts."""
    clock = stage.core.status(stage.now_ns).clock + 2
    for name in ("a", "b"):
        stage.step(name, clock=clock)
    (collecting,) = stage.core.status(stage.now_ns).rounds
    late = stage.hand_over("b", collecting.round)
    stage.contribute("a", collecting.round)
    stage.wait(STEP_NS)
    stage.tell(late)
    stage.tell(late)
    stage.commit()
    forget(stage)
    if number % 100 == 0:
        stage.disconnect("b")
        stage.join("b")
        stage.report("b")
        stage.step("b", clock=0)


def forget(stage: SyncerStage) -> None:
    """The stage remembers everything; the syncer must not."""
    stage.processes[:] = stage.puppets.values()
    for puppet in stage.processes:
        puppet.heard.clear()
    stage.events.clear()
    stage.actions.clear()


def test_a_syncer_does_not_grow() -> None:
    stage = running("a", "b", fragments=1, interval_steps=2, closed_rounds_max=64)
    count = iter(range(1, ROUNDS + 1))
    early, late = growth(lambda: a_round(stage, next(count)), stage.core)
    assert stage.core.notices[0].version >= ROUNDS - 200
    assert late <= early + 50


def test_a_learner_does_not_grow() -> None:
    stage = training()
    versions = iter(range(1, ROUNDS + 1))

    def advance() -> None:
        """What it hands over is settled some time later."""
        version = next(versions)
        fragment = version % 2
        round = 2 * version + fragment
        stage.tell(Pull(round, fragment))
        given = [HandedOver(each.round, each.fragment, each.tokens) for each in stage.of(Upload)]
        for made in given:
            stage.tell(Settled(made.round, made.fragment, made.tokens, late=False, refusal=None))
        stage.tell(Published(notice(fragment, version), version))
        stage.tell(Fetched(fragment, version, notice(fragment, version).digest, version))
        stage.step()
        stage.wait(MS)
        stage.actions.clear()

    early, late = growth(advance, stage.core)
    assert min(stage.core.versions) >= ROUNDS - 2
    assert late <= early + 50


def test_a_reconnecting_learner_that_never_gives_anything_does_not_make_the_syncer_grow() -> None:
    stage = running("a", "b")
    early = late = 0
    for number in range(2000):
        stage.disconnect("b")
        stage.join("b", incarnation=stage.puppets["b"].incarnation if number % 2 else 0)
        stage.report("b")
        forget(stage)
        if number == 200:
            early = reachable(stage.core)
    late = reachable(stage.core)
    assert late <= early + 50
    assert stage.of(FragmentCommitted) == []

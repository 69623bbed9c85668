"""Where a model and the protocol meet: which thread touches what, and what every number is measured from."""

from __future__ import annotations

import threading

import msgspec
import numpy as np
import pytest

from support.core_builders import LEASE_NS, STEP_NS, learner_core, options
from support.learner_stage import notice
from support.loop_bench import Bench, Wire, training
from unlockstep.core.adoption import Adoption
from unlockstep.core.layout import Layout, LayoutMethod, build_layout
from unlockstep.core.messages import (
    Connected,
    Fetched,
    Finish,
    GoneBack,
    HandedOver,
    Heartbeat,
    Join,
    Leave,
    Leaving,
    Progress,
    Published,
    Pull,
    SeedStored,
    Settled,
    Stop,
    VersionNotice,
    Welcome,
)
from unlockstep.learners.toy import ToyBackend
from unlockstep.loop import Contribution, LearnerLoop


def elsewhere(do: object, *arguments: object) -> int:
    """Call it in another thread; returns that thread's identity."""
    identities: list[int] = []

    def run() -> None:
        identities.append(threading.get_ident())
        do(*arguments)  # type: ignore[operator]

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return identities[0]


# ----------------------------------------------------------------------------------------------- which thread


def test_the_first_parameters_are_written_by_the_training_thread() -> None:
    bench = Bench()
    elsewhere(bench.welcome)
    elsewhere(bench.arrive, 0, 0, 1.0)
    elsewhere(bench.arrive, 1, 0, 1.0)
    assert bench.store.threads == set()
    assert bench.loop.wait_until_may_step(timeout_s=0)
    assert bench.store.threads == {threading.get_ident()}
    assert bench.store.values.tolist() == [1.0, 1.0]


def test_no_step_may_begin_before_the_first_parameters_are_written() -> None:
    bench = Bench()
    elsewhere(bench.welcome)
    elsewhere(bench.arrive, 0, 0, 1.0)
    elsewhere(bench.arrive, 1, 0, 1.0)
    assert not bench.loop.may_step
    bench.loop.wait_until_may_step(timeout_s=0)
    assert bench.loop.may_step


def test_a_seed_is_read_by_the_training_thread() -> None:
    bench = Bench()
    bench.store.values[:] = (3.0, 4.0)
    elsewhere(bench.loop.deliver, Connected())
    elsewhere(bench.loop.deliver, Welcome(1, 0, LEASE_NS, (), True, 0, "id"))
    assert not bench.loop.wait_until_may_step(timeout_s=0)
    assert bench.wire.seeds == [3.0, 4.0]
    elsewhere(bench.loop.deliver, SeedStored(0))
    elsewhere(bench.loop.deliver, SeedStored(1))
    for fragment in range(2):
        elsewhere(bench.loop.deliver, Published(VersionNotice(fragment, 0, "digest"), 0))
    assert bench.loop.wait_until_may_step(timeout_s=0)
    assert bench.store.threads == {threading.get_ident()}


def test_parameters_that_are_not_finite_do_not_become_version_0() -> None:
    bench = Bench()
    bench.store.values[:] = (3.0, np.nan)
    bench.loop.deliver(Connected())
    bench.loop.deliver(Welcome(1, 0, LEASE_NS, (), True, 0, "id"))
    assert not bench.loop.wait_until_may_step(timeout_s=0)
    assert bench.wire.seeds == [3.0]
    assert bench.loop.done is not None
    assert bench.loop.done.failed
    assert "tensor layers.1.weight of the model is not finite" in bench.loop.done.reason


def test_a_pull_is_answered_in_the_middle_of_a_step_by_the_thread_it_came_in() -> None:
    bench = training()
    bench.step(0.5, 0.0)
    reads = bench.store.reads
    bench.store.values[0] = 99.0  # a step in progress
    other = elsewhere(bench.loop.deliver, Pull(0, 0))
    assert bench.wire.upload_threads == [other]
    assert bench.store.reads == reads
    (made,) = bench.wire.uploads
    assert (made.anchor.tolist(), made.local.tolist()) == ([1.0], [1.5])
    assert (made.c_steps, made.c_tokens, made.base_version, made.tokens) == (1, 10, 0, 10)


def test_a_version_that_arrives_in_the_middle_of_a_step_is_written_after_it_by_the_training_thread() -> None:
    bench = training()
    bench.step(0.5, 0.0)
    bench.hand_over(0, 0)
    bench.store.threads.clear()
    elsewhere(bench.publish, 0, 1, 7.0)
    assert bench.store.threads == set()
    bench.step(0.5, 0.0)
    assert bench.store.values[0] == 7.0
    assert bench.store.threads == {threading.get_ident()}


def test_the_last_progress_is_read_by_the_training_thread_while_it_waits() -> None:
    bench = training()
    bench.loop.deliver(Finish())
    bench.step(0.25, 0.0)
    bench.store.threads.clear()
    elsewhere(bench.loop.deliver, Pull(4, 0))
    assert (bench.wire.uploads, bench.store.threads) == ([], set())
    assert not bench.loop.wait_until_may_step(timeout_s=0)
    assert [made.round for made in bench.wire.uploads] == [4]
    assert bench.store.threads == {threading.get_ident()}


def test_waiting_ends_when_the_parameters_are_here() -> None:
    bench = Bench()
    bench.welcome()

    def serve() -> None:
        bench.arrive(0, 0, 1.0)
        bench.arrive(1, 0, 1.0)

    server = threading.Thread(target=serve)
    server.start()
    assert bench.loop.wait_until_may_step(timeout_s=30)
    server.join()


def test_waiting_ends_when_the_run_is_over() -> None:
    """C29"""
    bench = Bench()
    bench.welcome()
    stopper = threading.Thread(target=bench.loop.deliver, args=(Stop("over"),))
    stopper.start()
    assert not bench.loop.wait_until_may_step(timeout_s=30)
    stopper.join()
    assert bench.loop.done is not None and bench.loop.done.reason == "over"


def test_goodbye_in_the_middle_of_a_step_lets_it_end() -> None:
    """C29"""
    bench = training()
    elsewhere(bench.loop.deliver, Stop("over"))
    assert bench.loop.done is not None
    bench.step(0.5, 0.5)
    assert not bench.loop.may_step


# ----------------------------------------------------------------------------------------------- what is measured


def test_the_outer_gradient_is_anchor_minus_local() -> None:
    """C1"""
    bench = training()
    bench.step(0.5, -0.25)
    assert bench.hand_over(0, 0) == 1.0 - 1.5
    assert bench.hand_over(1, 1) == 1.0 - 0.75


def test_what_was_handed_over_is_not_handed_over_again() -> None:
    bench = training()
    bench.step(0.5, 0.0)
    assert bench.hand_over(0, 0) == -0.5
    bench.step(0.25, 0.0)
    bench.step(0.25, 0.0)
    assert bench.hand_over(0, 2) == -0.5
    assert [made.c_steps for made in bench.wire.uploads] == [1, 2]


def test_after_an_adoption_training_goes_on_from_the_value_adopted() -> None:
    """C35: ``values = v - rate * (v - optimum)`` with v the global value, not what the learner had before."""
    backend, wire = ToyBackend(sizes=(2, 2), learning_rate=0.25), Wire()
    core = learner_core("a", options())
    backend.bind(layout_of_two())
    loop = LearnerLoop(core, backend, wire, adoption=Adoption.OVERWRITE, blend_alpha=0.5, now_ns=lambda: 0)
    loop.deliver(Connected())
    loop.deliver(Welcome(1, 0, LEASE_NS, (notice(0, 0), notice(1, 0)), False, 0, "id"))
    for fragment in range(2):
        wire.bodies[fragment] = np.zeros(2, np.float32)
        loop.deliver(Fetched(fragment, 0, notice(fragment, 0).digest, fragment))
    assert loop.wait_until_may_step(timeout_s=0)
    loop.finish_step(backend.inner_step(0))
    loop.deliver(Pull(0, 0))
    loop.deliver(Published(notice(0, 1), 0))
    wire.bodies[9] = np.array([5.0, -3.0], np.float32)
    loop.deliver(Fetched(0, 1, notice(0, 1).digest, 9))
    loop.finish_step(backend.inner_step(1))
    assert backend.read_fragment(0).tolist() == [5.0, -3.0]
    optimum = backend.optimum[:2]
    backend.inner_step(2)
    expected = np.float32([5.0, -3.0]) - np.float32(0.25) * (np.float32([5.0, -3.0]) - optimum)
    np.testing.assert_array_equal(backend.read_fragment(0), expected)


def layout_of_two() -> Layout:
    return build_layout(ToyBackend(sizes=(2, 2)).tensors(), 2, LayoutMethod.BALANCED)


def adopted(adoption: Adoption, alpha: float = 0.5, dtype: type[np.floating] = np.float32) -> Bench:
    """From 1.0, 0.5 is handed over, 0.25 more is trained, then the global value 3.0 is adopted."""
    bench = training(adoption, alpha, dtype)
    bench.step(0.5, 0.0)
    assert bench.hand_over(0, 0) == -0.5
    bench.publish(0, 1, 3.0)
    bench.step(0.25, 0.0)
    return bench


@pytest.mark.parametrize(
    ("adoption", "alpha", "value"),
    [
        (Adoption.OVERWRITE, 0.5, 3.0),
        (Adoption.CARRY, 0.5, 3.0 + 0.25),
        (Adoption.BLEND, 0.5, 0.5 * 1.75 + 0.5 * 3.0),
        (Adoption.BLEND, 0.25, 0.25 * 1.75 + 0.75 * 3.0),
    ],
)
def test_the_value_after_an_adoption_is_the_formula_of_its_mode(adoption: Adoption, alpha: float, value: float) -> None:
    """C36"""
    assert adopted(adoption, alpha).store.values[0] == value


@pytest.mark.parametrize(
    ("adoption", "alpha", "kept"),
    [
        (Adoption.OVERWRITE, 0.5, 0.0),
        (Adoption.CARRY, 0.5, 0.25),
        (Adoption.BLEND, 0.5, 0.5 * 0.25),
        (Adoption.BLEND, 0.25, 0.25 * 0.25),
    ],
)
def test_after_an_adoption_only_its_own_progress_shows_in_a_learner_s_outer_gradient(
    adoption: Adoption, alpha: float, kept: float
) -> None:
    """What the others did in the meantime is in the global value already: it must not come back with a minus sign."""
    bench = adopted(adoption, alpha)
    bench.step(0.125, 0.0)
    assert bench.hand_over(0, 2) == -(kept + 0.125)


@pytest.mark.parametrize("adoption", Adoption)
def test_rounding_to_the_model_s_dtype_is_never_taken_for_progress(adoption: Adoption) -> None:
    """C10: a 16-bit model cannot hold the global value; a step of zero length must give an outer gradient of zero."""
    bench = training(adoption, dtype=np.float16)
    bench.step()
    bench.hand_over(0, 0)
    bench.publish(0, 1, 1.0001)
    bench.step()
    assert bench.store.values[0] == np.float16(1.0001) != np.float32(1.0001)
    bench.step()
    assert bench.hand_over(0, 2) == 0.0


@pytest.mark.parametrize("adoption", Adoption)
def test_the_first_load_s_rounding_is_not_progress_either(adoption: Adoption) -> None:
    bench = Bench(adoption, dtype=np.float16)
    bench.welcome()
    bench.arrive(0, 0, 1.0001)
    bench.arrive(1, 0, 1.0001)
    assert bench.loop.wait_until_may_step(timeout_s=0)
    bench.step()
    assert bench.hand_over(0, 0) == 0.0


def test_ten_rounds_of_small_steps_add_up_in_a_16_bit_model() -> None:
    """C10: the sum of what is handed over is what the model has moved by, exactly."""
    bench = training(Adoption.CARRY, dtype=np.float16)
    total = 0.0
    for round in range(0, 20, 2):
        bench.step(0.002, 0.0)
        total += bench.hand_over(0, round)
    assert total == 1.0 - float(bench.store.values[0])


@pytest.mark.parametrize("adoption", Adoption)
def test_what_was_uploaded_is_never_written_again(adoption: Adoption) -> None:
    bench = training(adoption)
    kept: list[tuple[Contribution, list[float], list[float]]] = []
    for version in range(1, 6):
        bench.step(0.5, 0.5)
        bench.hand_over(0, 2 * version)
        made = bench.wire.uploads[-1]
        kept.append((made, made.anchor.tolist(), made.local.tolist()))
        bench.publish(0, version, float(version))
        bench.step(0.5, 0.5)
    for made, anchor, local in kept:
        assert (made.anchor.tolist(), made.local.tolist()) == (anchor, local)


# ----------------------------------------------------------------------------------------------- what is said


def test_a_step_lasts_from_boundary_to_boundary() -> None:
    bench = training()
    bench.now_ns += 5
    bench.step()
    bench.step()
    reported = [message.step_ns for message in bench.wire.sent if isinstance(message, Progress)]
    assert reported == [0, STEP_NS + 5, STEP_NS]


def test_messages_go_out_in_the_order_in_which_they_were_meant() -> None:
    bench = training()
    bench.step()
    bench.now_ns += LEASE_NS
    bench.loop.on_deadline()
    bench.loop.leave(timeout_s=0)
    kinds = [type(message) for message in bench.wire.sent]
    assert kinds == [Join, Heartbeat, Progress, Progress, Heartbeat, Progress, Leaving, Progress, Leave]
    assert bench.loop.done is not None and not bench.loop.done.failed


def test_the_deadline_is_that_of_the_core() -> None:
    bench = training()
    assert bench.loop.next_deadline_ns() == LEASE_NS // 3
    bench.now_ns = LEASE_NS // 3
    bench.loop.on_deadline()
    assert bench.loop.next_deadline_ns() == 2 * (LEASE_NS // 3)


def test_the_clock_and_the_place_in_the_data_are_the_core_s() -> None:
    bench = Bench()
    bench.loop.deliver(Connected())
    assert (bench.loop.incarnation, bench.loop.may_step) == (0, False)
    bench.loop.deliver(Welcome(3, 40, LEASE_NS, (), False, 17, "id"))
    assert (bench.loop.incarnation, bench.loop.clock, bench.loop.steps_before) == (3, 40, 17)


def test_bodies_that_are_not_taken_are_discarded() -> None:
    bench = training()
    bench.loop.deliver(Published(notice(0, 1), 0))
    bench.loop.deliver(Published(notice(0, 2), 0))
    bench.arrive(0, 1, 5.0)
    bench.arrive(0, 2, 6.0)
    assert len(bench.wire.bodies) == 1
    bench.step()
    bench.hand_over(0, 0)
    bench.step()
    assert (bench.store.values[0], bench.wire.bodies) == (6.0, {})


def test_a_contribution_says_how_often_its_fragment_was_loaded() -> None:
    """Once at first; a version that is adopted later is no load, for the progress goes on. Going back is one."""
    bench = training(Adoption.CARRY)
    bench.step(1, 1)
    bench.hand_over(0, 0)
    bench.publish(0, 1, 5.0)
    bench.step(1, 1)
    bench.hand_over(0, 2)
    back = tuple(msgspec.structs.replace(notice(fragment, 2), void_below=2) for fragment in (0, 1))
    bench.loop.deliver(GoneBack(back, 0))
    bench.step(1, 1)
    for fragment in (0, 1):
        bench.arrive(fragment, 2, 7.0)
    bench.loop.wait_until_may_step(timeout_s=0)
    bench.step(1, 1)
    bench.hand_over(0, 4)
    assert [made.loads for made in bench.wire.uploads] == [1, 1, 2]


def test_what_is_settled_is_forgotten_by_the_link_too() -> None:
    bench = training()
    bench.step(1, 1)
    bench.hand_over(0, 0)
    assert bench.wire.forgotten == []
    bench.loop.deliver(Settled(0, 0, 10, late=False, refusal=None))
    assert bench.wire.forgotten == [HandedOver(0, 0, 10)]

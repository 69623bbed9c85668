"""What every backend must do, as functions to be called by tests: also by those of backends that live elsewhere.

::

    @pytest.mark.parametrize("check", conformance.BACKEND_CHECKS)
    def test_my_backend_conforms(check):
        check(lambda: MyBackend(...))

Each check takes a function that makes backends, all in the same state, with at least two tensors to synchronise, and
raises AssertionError. ``STORE_CHECKS`` need only a ``FragmentStore``, ``RESUMABLE_CHECKS`` a ``ResumableBackend``.
Decides what the interface means beyond its signatures; the protocol relies on all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.testing import assert_array_equal

from unlockstep.core.errors import UsageError
from unlockstep.core.layout import Layout, LayoutMethod, Role, build_layout
from unlockstep.learners.backend import Backend, FloatArray, FragmentStore, ResumableBackend, State, TensorBits

MakeStore: TypeAlias = Callable[[], FragmentStore]
MakeBackend: TypeAlias = Callable[[], Backend]
MakeResumable: TypeAlias = Callable[[], ResumableBackend]
AnyStore = TypeVar("AnyStore", bound=FragmentStore)

_ROUNDING = {"float32": 0.0, "float64": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding a float32 to a dtype."""


def check_tensors_are_listed_once(make_store: MakeStore) -> None:
    """Each tensor once, always in the same order, and equal in all learners."""
    store = make_store()
    tensors = list(store.tensors())
    assert len(tensors) >= 2, "conformance needs a model of at least two tensors"
    assert len({tensor.name for tensor in tensors}) == len(tensors), "two tensors share a name"
    assert list(store.tensors()) == tensors, "a second call lists other tensors"
    assert list(make_store().tensors()) == tensors, "an equal model lists other tensors"


def check_written_values_are_read_back(make_store: MakeStore) -> None:
    """A write then a read gives the values as the tensors' dtypes round them; those then come back bit for bit."""
    store, layout = _bound(make_store)
    for fragment, slots in enumerate(layout.fragments):
        values = _draw(layout, fragment)
        store.write_fragment(fragment, values)
        rounded = store.read_fragment(fragment)
        for slot in slots:
            error = np.abs(rounded - values)[slot.offset : slot.stop]
            bound = _ROUNDING[slot.tensor.dtype] * np.abs(values)[slot.offset : slot.stop]
            assert np.all(error <= bound), f"{slot.tensor.name}: read back other values than were written"
        store.write_fragment(fragment, rounded)
        assert_array_equal(store.read_fragment(fragment), rounded)


def check_fragments_do_not_overlap(make_store: MakeStore) -> None:
    """After fragment p is filled with p, for all p, each still holds p: no element is in two of them, or in none."""
    store, layout = _bound(make_store)
    for fragment in range(layout.fragment_count):
        store.write_fragment(fragment, np.full(layout.fragment_size(fragment), fragment, np.float32))
    for fragment, values in enumerate(_read_all(store, layout)):
        assert_array_equal(values, np.float32(fragment))


def check_write_leaves_other_fragments(make_store: MakeStore) -> None:
    """Writing one fragment changes no bit of another."""
    store, layout = _bound(make_store)
    before = _read_all(store, layout)
    store.write_fragment(0, _draw(layout, 0))
    for fragment in range(1, layout.fragment_count):
        assert_array_equal(store.read_fragment(fragment), before[fragment])


def check_read_is_a_copy(make_store: MakeStore) -> None:
    """What was read does not change with the model, nor the model with it: the link encodes it at leisure."""
    store, _ = _bound(make_store)
    read = store.read_fragment(0)
    kept = read.copy()
    store.write_fragment(0, kept + np.float32(1))
    assert_array_equal(read, kept)
    expected = store.read_fragment(0)
    read[:] = 7
    assert_array_equal(store.read_fragment(0), expected)


def check_write_is_a_copy(make_store: MakeStore) -> None:
    """What was written may be changed by its owner afterwards."""
    store, layout = _bound(make_store)
    values = _draw(layout, 0)
    store.write_fragment(0, values)
    expected = store.read_fragment(0)
    values[:] = 7
    assert_array_equal(store.read_fragment(0), expected)


def check_out_is_filled_and_returned(make_store: MakeStore) -> None:
    """Reading into a buffer gives the same numbers as reading without one, in that buffer."""
    store, layout = _bound(make_store)
    for fragment, expected in enumerate(_read_all(store, layout)):
        out = np.full(layout.fragment_size(fragment), np.nan, np.float32)
        assert store.read_fragment(fragment, out) is out
        assert_array_equal(out, expected)


def check_read_only_values_are_written(make_store: MakeStore) -> None:
    """Values may lie in memory that is not to be written, such as received bytes; no warning is raised."""
    store, _ = _bound(make_store)
    expected = store.read_fragment(0)
    store.write_fragment(0, expected + np.float32(1))
    store.write_fragment(0, np.frombuffer(expected.tobytes(), np.float32))
    assert_array_equal(store.read_fragment(0), expected)


def check_wrong_size_is_refused(make_store: MakeStore) -> None:
    """A buffer of another length or dtype raises ValueError and changes nothing."""
    store, _ = _bound(make_store)
    before = store.read_fragment(0)
    for wrong in (np.zeros(before.size + 1, np.float32), np.zeros(before.size - 1, np.float32), np.zeros(before.size)):
        _assert_raises(ValueError, store.write_fragment, 0, wrong)
        _assert_raises(ValueError, store.read_fragment, 0, wrong)
    assert_array_equal(store.read_fragment(0), before)


def check_layout_of_another_model_is_refused(make_store: MakeStore) -> None:
    """Binding a layout of other tensors raises UsageError."""
    store = make_store()
    others = [msgspec.structs.replace(tensor, name=f"other.{tensor.name}") for tensor in store.tensors()]
    _assert_raises(UsageError, store.bind, build_layout(others, 1, LayoutMethod.BALANCED))


def check_only_steps_change_values(make_backend: MakeBackend) -> None:
    """Between inner steps nothing moves; an inner step moves parameters and says on how many tokens it trained."""
    backend, layout = _bound(make_backend)
    before = _read_all(backend, layout)
    _assert_equal(_read_all(backend, layout), before)
    stats = backend.inner_step(0)
    assert stats.tokens > 0
    after = _read_all(backend, layout)
    assert any(np.any(new != old) for new, old in zip(after, before, strict=True)), "an inner step changed nothing"


def check_steps_are_deterministic(make_backend: MakeBackend) -> None:
    """Equal backends stay equal, bit for bit."""
    backend, layout = _bound(make_backend)
    twin, _ = _bound(make_backend)
    for clock in range(3):
        np.testing.assert_equal(twin.inner_step(clock).loss, backend.inner_step(clock).loss)
    _assert_equal(_read_all(twin, layout), _read_all(backend, layout))


def check_write_keeps_optimizer_state(make_backend: MakeBackend) -> None:
    """Writing back what was read is invisible to all later steps: inner optimizer state survives an adoption."""
    backend, layout = _bound(make_backend)
    twin, _ = _bound(make_backend)
    for clock in range(4):
        backend.inner_step(clock)
        twin.inner_step(clock)
        _write_all(twin, _read_all(twin, layout))
    _assert_equal(_read_all(twin, layout), _read_all(backend, layout))


def check_step_starts_from_written_values(make_backend: MakeBackend) -> None:
    """C35. The step after a write moves on from the written values: nearer to them than to what was there before."""
    backend, layout = _bound(make_backend)
    backend.inner_step(0)
    before = _read_all(backend, layout)
    _write_all(backend, [values + np.float32(1) for values in before])
    written = _read_all(backend, layout)
    backend.inner_step(1)
    for fragment, after in enumerate(_read_all(backend, layout)):
        nearer = np.abs(after - written[fragment]) < np.abs(after - before[fragment])
        for slot in layout.fragments[fragment]:
            # Buffers follow the activations, which the write has changed too.
            if slot.tensor.role is not Role.BUFFER:
                assert np.all(nearer[slot.offset : slot.stop]), f"{slot.tensor.name}: the step began at a stale copy"


def check_seek_is_what_steps_do(make_backend: MakeBackend) -> None:
    """After ``seek(k)`` the next step sees the data that a learner sees in its step k."""
    walker, layout = _bound(make_backend)
    start = _read_all(walker, layout)
    for clock in range(3):
        walker.inner_step(clock)
    _write_all(walker, start)
    sought, _ = _bound(make_backend)
    sought.inner_step(0)
    sought.seek(3)
    _write_all(sought, start)
    np.testing.assert_equal(sought.inner_step(3).loss, walker.inner_step(3).loss)


def check_state_goes_on_bit_for_bit(make_backend: MakeResumable) -> None:
    """C43. k steps, a state, another backend that has already trained otherwise, n steps: as k + n steps of one."""
    straight, layout = _bound(make_backend)
    for clock in range(4):
        straight.inner_step(clock)
    state = straight.state()
    resumed, _ = _bound(make_backend)
    resumed.seek(7)
    for clock in range(2):
        resumed.inner_step(clock)
    resumed.load_state(state)
    _assert_equal(_read_all(resumed, layout), _read_all(straight, layout))
    for clock in range(4, 8):
        np.testing.assert_equal(resumed.inner_step(clock).loss, straight.inner_step(clock).loss)
        _assert_equal(_read_all(resumed, layout), _read_all(straight, layout))


def check_state_is_a_copy(make_backend: MakeResumable) -> None:
    """A state does not change with the backend it was taken from, nor with one that goes on from it."""
    backend, layout = _bound(make_backend)
    backend.inner_step(0)
    state, at_state = backend.state(), _read_all(backend, layout)
    backend.inner_step(1)
    for _ in range(2):
        other, _ = _bound(make_backend)
        other.load_state(state)
        _assert_equal(_read_all(other, layout), at_state)
        other.inner_step(1)
        _assert_equal(_read_all(other, layout), _read_all(backend, layout))


def check_state_is_taken_whole(make_backend: MakeResumable) -> None:
    """A tensor missing, one too much or one of another shape raises UsageError and changes nothing."""
    backend, layout = _bound(make_backend)
    backend.inner_step(0)
    state = backend.state()
    first = next(iter(state.tensors))
    others = {name: bits for name, bits in state.tensors.items() if name != first}
    odd = TensorBits("uint8", (3,), np.zeros(3, np.uint8))
    backend.inner_step(1)
    before = _read_all(backend, layout)
    for tensors in (others, {**state.tensors, "odd": odd}, {**others, first: odd}):
        _assert_raises(UsageError, backend.load_state, State(tensors, state.facts))
    _assert_equal(_read_all(backend, layout), before)


def check_reset_optimizer_is_a_fresh_start(make_backend: MakeBackend) -> None:
    """After a step that made everything NaN and a reset, the same values take the same step as in a new backend."""
    broken, layout = _bound(make_backend)
    fresh, _ = _bound(make_backend)
    values = _read_all(fresh, layout)
    _write_all(broken, [np.full_like(array, np.nan) for array in values])
    broken.inner_step(0)
    broken.reset_optimizer()
    broken.seek(0)
    _write_all(broken, values)
    for backend in (broken, fresh):
        backend.inner_step(0)
    _assert_equal(_read_all(broken, layout), _read_all(fresh, layout))


STORE_CHECKS: tuple[Callable[[MakeStore], None], ...] = (
    check_tensors_are_listed_once,
    check_written_values_are_read_back,
    check_fragments_do_not_overlap,
    check_write_leaves_other_fragments,
    check_read_is_a_copy,
    check_write_is_a_copy,
    check_out_is_filled_and_returned,
    check_read_only_values_are_written,
    check_wrong_size_is_refused,
    check_layout_of_another_model_is_refused,
)
"""For anything that holds a model."""

BACKEND_CHECKS: tuple[Callable[[MakeBackend], None], ...] = (
    *STORE_CHECKS,
    check_only_steps_change_values,
    check_steps_are_deterministic,
    check_write_keeps_optimizer_state,
    check_step_starts_from_written_values,
    check_seek_is_what_steps_do,
    check_reset_optimizer_is_a_fresh_start,
)
"""For anything that also trains it."""

RESUMABLE_CHECKS: tuple[Callable[[MakeResumable], None], ...] = (
    *BACKEND_CHECKS,
    check_state_goes_on_bit_for_bit,
    check_state_is_a_copy,
    check_state_is_taken_whole,
)
"""For anything whose training another process can go on with."""


def _bound(make: Callable[[], AnyStore]) -> tuple[AnyStore, Layout]:
    store = make()
    tensors = store.tensors()
    layout = build_layout(tensors, min(3, len(tensors)), LayoutMethod.BALANCED)
    store.bind(layout)
    return store, layout


def _draw(layout: Layout, fragment: int) -> FloatArray:
    return np.random.default_rng(fragment).standard_normal(layout.fragment_size(fragment), np.float32)


def _read_all(store: FragmentStore, layout: Layout) -> list[FloatArray]:
    return [store.read_fragment(fragment) for fragment in range(layout.fragment_count)]


def _write_all(store: FragmentStore, values: list[FloatArray]) -> None:
    for fragment, array in enumerate(values):
        store.write_fragment(fragment, array)


def _assert_equal(actual: list[FloatArray], expected: list[FloatArray]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert_array_equal(ours, theirs)


def _assert_raises(error: type[Exception], call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")

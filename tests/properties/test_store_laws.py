"""Laws of the store: whatever is written, pinned, kept, pruned and read, what must be there is, and nothing else."""

from __future__ import annotations

from contextlib import ExitStack

import fsspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.stores import Leader, check_whole, small_layout, write_version
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.store.place import Place, open_place
from unlockstep.store.run_store import RunStore

LAYOUT = small_layout()


def empty_place() -> Place:
    fsspec.filesystem("memory").store.clear()
    return open_place("memory://laws")


class StoreMachine(RuleBasedStateMachine):
    """A leader and what it keeps. The model: the records that must be there, as numbers; the rest follows from them."""

    @initialize(records_kept=st.integers(1, 4))
    def start(self, records_kept: int) -> None:
        self.place = empty_place()
        self.records_kept = records_kept
        self.kept: set[int] = set()
        self.pins: list[tuple[int, ExitStack]] = []
        self.orphans: set[str] = set()
        """Fragment files no record has named, of this life and of earlier ones."""
        self.there: set[int] = set()
        self.lead()

    @rule()
    def lead(self) -> None:
        """The leader dies; another takes over, and has to say again what to keep."""
        self.pins = []
        self.store = RunStore(self.place, self.records_kept)
        self.store.keep(self.kept)
        self.leader = Leader(self.store, LAYOUT)
        self.own: set[str] = set()
        self.may_sweep = False

    @rule()
    def commit(self) -> None:
        assert self.leader.commit()
        self.there.add(self.leader.number)
        self.may_sweep = True

    @rule(fragment=st.integers(0, 1), version=st.integers(1000, 1003))
    def write_and_never_name(self, fragment: int, version: int) -> None:
        self.own.add(write_version(self.store, LAYOUT, fragment, version).name)
        self.orphans |= self.own

    @rule(data=st.data())
    @precondition(lambda self: self.there)
    def keep(self, data: st.DataObject) -> None:
        self.kept = data.draw(st.sets(st.sampled_from(sorted(self.there)), max_size=2))
        self.store.keep(self.kept)

    @rule(data=st.data())
    @precondition(lambda self: self.there and len(self.pins) < 2)
    def pin(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.there)))
        stack = ExitStack()
        stack.enter_context(self.store.pin(number))
        self.pins.append((number, stack))

    @rule(which=st.integers(0, 1))
    @precondition(lambda self: self.pins)
    def unpin(self, which: int) -> None:
        _, stack = self.pins.pop(which % len(self.pins))
        stack.close()

    @rule()
    def prune(self) -> None:
        self.store.prune()
        self.there = set(sorted(self.there)[-self.records_kept :]) | (self.there & self.guarded())
        assert len(self.there) <= self.records_kept + 4

    @rule()
    @precondition(lambda self: self.may_sweep)
    def sweep(self) -> None:
        """After a first record of its own. What this life has written, its next record may still name."""
        self.store.sweep()
        self.orphans = set(self.own)

    @rule()
    def load(self) -> None:
        loaded = self.store.load()
        assert (loaded is None) == (not self.there)
        if loaded is not None:
            assert check_whole(loaded, LAYOUT) == max(self.there)

    @invariant()
    def everything_that_must_be_there_is_whole(self) -> None:
        for number in self.there:
            assert check_whole(self.store.read(number), LAYOUT) == number

    @invariant()
    def nothing_else_is_there(self) -> None:
        assert {int(name.removesuffix(".json")) for name in self.place.names("records")} == self.there
        named = {file.name for number in self.there for file in self.store.read(number).record.fragments}
        assert self.fragment_files() == named | self.orphans

    def guarded(self) -> set[int]:
        return self.kept | {number for number, _ in self.pins}

    def fragment_files(self) -> set[str]:
        folders = [f"fragments/{folder}" for folder in self.place.names("fragments")]
        return {f"{folder}/{name}" for folder in folders for name in self.place.names(folder)}


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestStoreMachine = StoreMachine.TestCase


def test_ten_thousand_commits_leave_as_many_files_as_ten() -> None:
    store = RunStore(empty_place())
    leader = Leader(store, LAYOUT)
    for _ in range(10_000):
        assert leader.commit()
        store.prune()
    folders = ["records", *(f"fragments/{folder}" for folder in store.place.names("fragments"))]
    assert sum(len(store.place.names(folder)) for folder in folders) == 3 + 2 + 2
    loaded = store.load()
    assert loaded is not None
    assert check_whole(loaded, LAYOUT) == 10_000


ANY_BITS = arrays.arrays(np.uint32, st.integers(0, 20))
TENSOR_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: name != "__metadata__")


@given(st.lists(TENSOR_NAMES, min_size=1, max_size=3, unique=True), st.data(), ANY_BITS)
def test_any_tensor_names_and_any_bits_come_back(names: list[str], data: st.DataObject, state: np.ndarray) -> None:
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=len(names), max_size=len(names)).filter(any))
    specs = [
        TensorSpec(name=name, shape=(size,), dtype="float32", role=Role.PARAMETER)
        for name, size in zip(names, sizes, strict=True)
    ]
    layout = build_layout(specs, len(names), LayoutMethod.TENSOR)
    store = RunStore(empty_place())
    for fragment in range(len(names)):
        bits = data.draw(arrays.arrays(np.uint32, layout.fragment_size(fragment)))
        written = (bits.view(np.float32), state.view(np.float32))
        file = store.write_fragment(layout, fragment, 1, "digest", *written)
        for stored, bits_of in zip(store.read_fragment(file), written, strict=True):
            assert stored.tobytes() == bits_of.tobytes()
    store.write_layout(layout)
    assert store.read_layout() == layout

"""Laws of the layout: a partition, tiled without gap, balanced within the classical bound, equal on every machine."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from unlockstep.core.errors import ConfigError
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout, explain_difference

NAMES = st.text(st.sampled_from("ab.01é"), min_size=1, max_size=8)


@st.composite
def models(draw: st.DrawFn, size_max: int = 50, length_max: int = 12) -> list[TensorSpec]:
    names = draw(st.lists(NAMES, min_size=1, max_size=length_max, unique=True))
    sizes = draw(st.lists(st.integers(0, size_max), min_size=len(names), max_size=len(names)).filter(any))
    roles = draw(st.lists(st.sampled_from(Role), min_size=len(names), max_size=len(names)))
    return [
        TensorSpec(name=name, shape=(size,), dtype="float32", role=role)
        for name, size, role in zip(names, sizes, roles, strict=True)
    ]


@given(models(), st.sampled_from(list(LayoutMethod)[:2]), st.data())
def test_every_tensor_is_in_exactly_one_fragment_and_slots_tile_it(
    tensors: list[TensorSpec], method: LayoutMethod, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(tensors)))
    layout = build_layout(tensors, count, method)
    assert layout.fragment_count == count
    assert sorted(slot.tensor.name for slots in layout.fragments for slot in slots) == sorted(t.name for t in tensors)
    assert all(layout.fragments)
    for fragment, slots in enumerate(layout.fragments):
        assert [slot.tensor.name for slot in slots] == sorted(slot.tensor.name for slot in slots)
        assert [slot.offset for slot in slots] == [0, *(slot.stop for slot in slots)][:-1]
        assert layout.fragment_size(fragment) == slots[-1].stop


@given(models())
def test_layers_stay_whole_for_every_valid_number_of_fragments(tensors: list[TensorSpec]) -> None:
    def layer(name: str) -> str | None:
        path = name.split(".")
        depth = next((i for i, part in enumerate(path) if part.isdecimal()), None)
        return None if depth is None else ".".join(path[: depth + 1])

    layer_count = max(1, len({layer(t.name) for t in tensors} - {None}))
    for count in range(1, layer_count + 1):
        layout = build_layout(tensors, count, LayoutMethod.LAYER)
        assert sorted(slot.tensor.name for slots in layout.fragments for slot in slots) == sorted(
            t.name for t in tensors
        )
        homes: dict[str, set[int]] = {}
        for fragment, slots in enumerate(layout.fragments):
            assert slots
            for slot in slots:
                homes.setdefault(layer(slot.tensor.name) or "", set()).add(fragment)
        assert all(len(home) == 1 for key, home in homes.items() if key)


@given(models(), st.data())
def test_balanced_is_within_the_bound_of_greedy_packing(tensors: list[TensorSpec], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(tensors)))
    layout = build_layout(tensors, count, LayoutMethod.BALANCED)
    sizes = [layout.fragment_size(fragment) for fragment in range(count)]
    largest = max(tensor.size for tensor in tensors)
    assert count * max(sizes) <= sum(sizes) + (count - 1) * largest


@given(models(length_max=6), st.integers(2, 3))
def test_balanced_is_within_four_thirds_of_the_optimum(tensors: list[TensorSpec], count: int) -> None:
    count = min(count, len(tensors))
    layout = build_layout(tensors, count, LayoutMethod.BALANCED)
    optimum = min(
        max(sum(t.size for t, p in zip(tensors, homes, strict=True) if p == fragment) for fragment in range(count))
        for homes in product(range(count), repeat=len(tensors))
    )
    largest = max(layout.fragment_size(fragment) for fragment in range(count))
    assert 3 * count * largest <= (4 * count - 1) * optimum


@given(models(), st.data())
def test_balanced_and_its_digest_do_not_depend_on_the_order_of_tensors(
    tensors: list[TensorSpec], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(tensors)))
    shuffled = data.draw(st.permutations(tensors))
    ours, theirs = (build_layout(t, count, LayoutMethod.BALANCED) for t in (tensors, shuffled))
    assert ours.fragments == theirs.fragments
    assert ours.digest == theirs.digest


@given(models(), models(), st.sampled_from(list(LayoutMethod)[:2]))
def test_digests_are_equal_exactly_when_layouts_are(
    ours: list[TensorSpec], theirs: list[TensorSpec], method: LayoutMethod
) -> None:
    a, b = build_layout(ours, 1, method), build_layout(theirs, 1, method)
    assert (a.digest == b.digest) == (a.fragments == b.fragments)


@given(models(), models())
def test_a_difference_is_explained_exactly_when_there_is_one(ours: list[TensorSpec], theirs: list[TensorSpec]) -> None:
    same = {tensor.name: tensor for tensor in ours} == {tensor.name: tensor for tensor in theirs}
    assert (explain_difference(ours, theirs) == []) == same


@given(models(), st.sampled_from(LayoutMethod), st.data())
def test_the_other_end_makes_the_same_layout_of_what_it_is_told(
    tensors: list[TensorSpec], method: LayoutMethod, data: st.DataObject
) -> None:
    """A learner sends ``specs()``; the syncer cuts them again and compares digests."""
    largest = next(count for count in range(len(tensors), 0, -1) if _can_be_cut(tensors, count, method))
    layout = build_layout(tensors, data.draw(st.integers(1, largest)), method)
    assert layout.specs() == tuple(tensors)
    assert build_layout(layout.specs(), layout.fragment_count, method).digest == layout.digest


def _can_be_cut(tensors: list[TensorSpec], count: int, method: LayoutMethod) -> bool:
    try:
        build_layout(tensors, count, method)
    except ConfigError:
        return False
    return True

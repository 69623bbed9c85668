"""Layout: which tensor goes where, its digest, and the sentences about models that do not match."""

from __future__ import annotations

import msgspec
import pytest

from unlockstep.core.errors import ConfigError
from unlockstep.core.layout import (
    TENSORS_MAX,
    Layout,
    LayoutMethod,
    Role,
    TensorSpec,
    build_layout,
    explain_difference,
    require_describable,
)


def spec(name: str, *shape: int, dtype: str = "float32", role: Role = Role.PARAMETER) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, role=role)


def names(layout: Layout) -> list[list[str]]:
    return [[slot.tensor.name for slot in slots] for slots in layout.fragments]


MODEL = [
    spec("embed.weight", 10, 4, role=Role.EMBEDDING),
    spec("layers.0.attention.weight", 4, 4),
    spec("layers.0.mlp.weight", 8, 4),
    spec("layers.1.attention.weight", 4, 4),
    spec("layers.1.mlp.weight", 8, 4),
    spec("norm.weight", 4),
    spec("head.weight", 10, 4, role=Role.EMBEDDING),
]


def test_size_is_the_product_of_the_shape_and_1_for_a_scalar() -> None:
    assert spec("w", 3, 4).size == 12
    assert spec("temperature").size == 1
    assert spec("empty", 0, 7).size == 0


def test_balanced_puts_the_largest_first_each_into_the_smallest_fragment() -> None:
    layout = build_layout([spec(n, s) for n, s in [("a", 5), ("b", 4), ("c", 3), ("d", 3)]], 2, LayoutMethod.BALANCED)
    # a5 | b4; c3 joins b (7); d3 joins a (8).
    assert names(layout) == [["a", "d"], ["b", "c"]]
    assert [layout.fragment_size(p) for p in range(2)] == [8, 7]


def test_balanced_breaks_ties_by_name_and_lowest_fragment() -> None:
    layout = build_layout([spec(n, 2) for n in "dbca"], 2, LayoutMethod.BALANCED)
    assert names(layout) == [["a", "c"], ["b", "d"]]


def test_balanced_does_not_depend_on_the_order_of_the_tensors() -> None:
    forward = build_layout(MODEL, 3, LayoutMethod.BALANCED)
    backward = build_layout(MODEL[::-1], 3, LayoutMethod.BALANCED)
    assert forward.fragments == backward.fragments
    assert forward.digest == backward.digest


def test_tensor_deals_round_robin_in_model_order() -> None:
    layout = build_layout([spec(n, 1) for n in "edcba"], 2, LayoutMethod.TENSOR)
    assert names(layout) == [["a", "c", "e"], ["b", "d"]]


def test_layer_keeps_layers_whole_and_gives_the_rest_to_the_nearest_end() -> None:
    layout = build_layout(MODEL, 2, LayoutMethod.LAYER)
    assert names(layout) == [
        ["embed.weight", "layers.0.attention.weight", "layers.0.mlp.weight"],
        ["head.weight", "layers.1.attention.weight", "layers.1.mlp.weight", "norm.weight"],
    ]


def test_layer_splits_an_odd_number_of_layers_into_consecutive_groups() -> None:
    layout = build_layout([spec(f"layers.{i}.w", 1) for i in range(5)], 2, LayoutMethod.LAYER)
    assert names(layout) == [["layers.0.w", "layers.1.w"], ["layers.2.w", "layers.3.w", "layers.4.w"]]


def test_layers_of_two_towers_with_the_same_numbers_are_different_layers() -> None:
    towers = [spec(f"{tower}.layers.{i}.w", 1) for tower in ("vision", "text") for i in range(2)]
    layout = build_layout(towers, 4, LayoutMethod.LAYER)
    assert names(layout) == [[tensor.name] for tensor in towers]


def test_experts_stay_with_their_layer() -> None:
    experts = [spec(f"layers.{i}.experts.{e}.w", 1) for i in range(2) for e in range(3)]
    assert [len(slots) for slots in build_layout(experts, 2, LayoutMethod.LAYER).fragments] == [3, 3]


def test_a_model_without_layers_is_one_layer() -> None:
    layout = build_layout([spec("w", 2), spec("b", 1)], 1, LayoutMethod.LAYER)
    assert names(layout) == [["b", "w"]]


@pytest.mark.parametrize("method", LayoutMethod)
def test_slots_are_in_order_of_name_and_tile_the_fragment(method: LayoutMethod) -> None:
    layout = build_layout(MODEL, 2, method)
    for fragment, slots in enumerate(layout.fragments):
        assert [s.tensor.name for s in slots] == sorted(s.tensor.name for s in slots)
        assert [s.offset for s in slots] == [0, *(s.stop for s in slots[:-1])]
        assert layout.fragment_size(fragment) == sum(s.tensor.size for s in slots)


def test_empty_tensors_leave_no_fragment_without_a_tensor() -> None:
    """C11"""
    bucket = 4
    tensors = [spec(n, s) for n, s in zip("abcde", [bucket + 1, bucket - 1, 1, 0, bucket], strict=True)]
    for count in range(1, 6):
        layout = build_layout(tensors, count, LayoutMethod.BALANCED)
        assert all(layout.fragments)
        assert sorted(slot.tensor.name for slots in layout.fragments for slot in slots) == list("abcde")
        assert sum(layout.fragment_size(p) for p in range(count)) == 3 * bucket + 1


@pytest.mark.parametrize(
    ("tensors", "count", "method", "sentence"),
    [
        ([], 1, LayoutMethod.BALANCED, "model has no trainable parameter"),
        ([spec("w", 0)], 1, LayoutMethod.BALANCED, "model has no trainable parameter"),
        (MODEL, 0, LayoutMethod.BALANCED, "protocol.fragments is 0, .* choose a value from 1 to 7"),
        (MODEL, 8, LayoutMethod.TENSOR, "protocol.fragments is 8, .* 7 trainable tensors: choose a value from 1 to 7"),
        (MODEL, 3, LayoutMethod.LAYER, "protocol.fragments is 3, .* 2 layers: choose a value from 1 to 2"),
        ([spec("w", 1), spec("w", 2)], 1, LayoutMethod.TENSOR, "tensor 'w' 2 times"),
        ([spec("__metadata__", 1)], 1, LayoutMethod.TENSOR, "'__metadata__'"),
    ],
)
def test_what_cannot_be_laid_out_is_refused_with_field_value_and_fix(
    tensors: list[TensorSpec], count: int, method: LayoutMethod, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build_layout(tensors, count, method)


@pytest.mark.parametrize(
    "changed",
    [
        spec("v", 4, 2),
        spec("w", 2, 4),
        spec("w", 4, 2, dtype="bfloat16"),
        spec("w", 4, 2, role=Role.EMBEDDING),
    ],
    ids=["name", "shape", "dtype", "role"],
)
def test_digest_changes_with_every_property_of_a_tensor(changed: TensorSpec) -> None:
    before = build_layout([spec("w", 4, 2)], 1, LayoutMethod.BALANCED)
    assert build_layout([changed], 1, LayoutMethod.BALANCED).digest != before.digest


def test_digest_changes_with_the_method_and_the_number_of_fragments() -> None:
    tensors = [spec("a", 1), spec("b", 1)]
    layouts = [build_layout(tensors, count, method) for count in (1, 2) for method in list(LayoutMethod)[:2]]
    assert len({layout.digest for layout in layouts}) == 4


def test_digest_survives_the_wire() -> None:
    layout = build_layout(MODEL, 2, LayoutMethod.BALANCED)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=Layout)
    assert again == layout
    assert again.digest == layout.digest


UNDESCRIBABLE = {
    "many tensors": ([spec(str(number)) for number in range(TENSORS_MAX + 1)], "65537 tensors, 65536 at most"),
    "many dimensions": ([spec("a", *[1] * 65)], "65 dimensions, 64 at most"),
    "dimensions without end": ([spec("a", *[2**63] * 100_000)], "100000 dimensions, 64 at most"),
    "a length below 0": ([spec("a", 3), spec("b", -3)], "or fewer than none"),
    "a length beyond use": ([spec("a", 2**44 + 1)], "more than 17592186044416 elements"),
    "a size beyond use": ([spec("a", 2**30, 2**30)], "more than 17592186044416 elements"),
    "a long name": ([spec("." * 513)], "and has 513 characters, 512 at most"),
    "a long dtype": ([spec("a", dtype="f" * 33)], "a dtype of 33 characters"),
}


@pytest.mark.parametrize("case", UNDESCRIBABLE)
def test_a_description_that_costs_too_much_to_go_through_is_refused_before(case: str) -> None:
    tensors, sentence = UNDESCRIBABLE[case]
    for look in (require_describable, lambda found: build_layout(found, 1, LayoutMethod.BALANCED)):
        with pytest.raises(ConfigError, match=sentence):
            look(tensors)


def test_the_largest_description_passes() -> None:
    require_describable([spec("n" * 512, *[1] * 63, 2**44)] + [spec(str(number)) for number in range(TENSORS_MAX - 1)])


def test_equal_models_have_no_difference() -> None:
    assert explain_difference(MODEL, MODEL[::-1]) == []


def test_differences_are_named_one_per_line() -> None:
    """C17"""
    ours = [spec("a", 2, 3), spec("b", 4), spec("c", 5), spec("only_here", 2, 2)]
    theirs = [
        spec("a", 3, 2),
        spec("b", 4, dtype="bfloat16"),
        spec("c", 5, role=Role.BUFFER),
        spec("layers.9.extra"),
    ]
    assert explain_difference(ours, theirs) == [
        "a: shape 2x3 here, 3x2 there (transposed)",
        "b: dtype float32 here, bfloat16 there",
        "c: role parameter here, buffer there",
        "only_here: here with shape 2x2, missing there",
        "layers.9.extra: there with shape scalar, missing here",
    ]


def test_a_common_prefix_is_one_line() -> None:
    """C17"""
    wrapped = [spec(f"module.{tensor.name}", *tensor.shape, role=tensor.role) for tensor in MODEL]
    assert explain_difference(MODEL, wrapped) == ["7 of 7 tensors carry the prefix 'module.' there only: strip it"]
    assert explain_difference(wrapped, MODEL) == ["7 of 7 tensors carry the prefix 'module.' here only: strip it"]


def test_behind_a_common_prefix_tensors_are_still_compared() -> None:
    """C17"""
    assert explain_difference([spec("w", 2), spec("b", 1)], [spec("module.w", 3), spec("module.b", 1)]) == [
        "2 of 2 tensors carry the prefix 'module.' there only: strip it",
        "w: shape 2 here, 3 there",
    ]

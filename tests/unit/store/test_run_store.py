"""Fragment files, records and the layout: what is read has the bits that were written, or is named as damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from support.stores import (
    NAMES,
    Leader,
    arrays_of,
    check_whole,
    files_under,
    record,
    small_layout,
    write_version,
)
from unlockstep.core.errors import LocalProtocolError, UsageError
from unlockstep.core.layout import LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.store.fragment_files import STATE_NAME, Damaged
from unlockstep.store.place import LocalPlace
from unlockstep.store.run_store import Record, RunStore

LAYOUT = small_layout()


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(LocalPlace(tmp_path / "run"))


# ------------------------------------------------------------------------------------------------------ fragments


def test_a_fragment_comes_back_with_its_bits_and_cannot_be_written_to(store: RunStore) -> None:
    for fragment in range(LAYOUT.fragment_count):
        file = write_version(store, LAYOUT, fragment, 7)
        for stored, written in zip(store.read_fragment(file), arrays_of(LAYOUT, fragment, 7), strict=True):
            assert stored.dtype == np.float32
            assert not stored.flags.writeable
            np.testing.assert_array_equal(stored.view(np.uint32), written.view(np.uint32))


def test_a_fragment_file_opens_with_safetensors(store: RunStore) -> None:
    values, state = arrays_of(LAYOUT, 0, 3)
    file = store.write_fragment(LAYOUT, 0, 3, "digest 3", values, state)
    path = store.place.describe(file.name)
    tensors = load_file(path)
    assert set(tensors) == {slot.tensor.name for slot in LAYOUT.fragments[0]} | {STATE_NAME}
    for slot in LAYOUT.fragments[0]:
        assert tensors[slot.tensor.name].shape == slot.tensor.shape
        stored = tensors[slot.tensor.name].reshape(-1).view(np.uint32)
        np.testing.assert_array_equal(stored, values[slot.offset : slot.stop].view(np.uint32))
    np.testing.assert_array_equal(tensors[STATE_NAME].view(np.uint32), state.view(np.uint32))
    data = Path(path).read_bytes()
    assert len(data) == file.size
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = {"fragment": "0", "version": "3", "digest": "digest 3", "layout": LAYOUT.digest}
    assert header["__metadata__"] == {**metadata, "outer_state": STATE_NAME}


def test_a_file_is_named_after_version_and_content(store: RunStore) -> None:
    values, state = arrays_of(LAYOUT, 1, 12)
    one = store.write_fragment(LAYOUT, 1, 12, "digest", values, state)
    other = store.write_fragment(LAYOUT, 1, 12, "digest", values, state[::-1].copy())
    assert one.name == f"fragments/001/0000000012-{one.sha256[:12]}.safetensors"
    assert one.name != other.name
    assert store.read_fragment(one)[1].tobytes() == state.tobytes()
    assert store.read_fragment(other)[1].tobytes() == state[::-1].tobytes()


@pytest.mark.parametrize("state_size", [0, 3])
def test_an_empty_fragment_and_an_empty_state_are_kept(store: RunStore, state_size: int) -> None:
    specs = [TensorSpec(name=n, shape=(s,), dtype="float32", role=Role.PARAMETER) for n, s in (("a", 2), ("b", 0))]
    layout = build_layout(specs, 2, LayoutMethod.TENSOR)
    state = np.arange(state_size, dtype=np.float32)
    for fragment, size in enumerate((2, 0)):
        file = store.write_fragment(layout, fragment, 0, "digest", np.ones(size, np.float32), state)
        values, stored = store.read_fragment(file)
        assert (values.tolist(), stored.tolist()) == ([1.0] * size, state.tolist())
        assert load_file(store.place.describe(file.name))[STATE_NAME].shape == (state_size,)


def test_a_tensor_with_the_name_of_the_state_keeps_it(store: RunStore) -> None:
    spec = TensorSpec(name=STATE_NAME, shape=(2,), dtype="float32", role=Role.PARAMETER)
    layout = build_layout([spec], 1, LayoutMethod.TENSOR)
    values, state = np.array([1, 2], np.float32), np.array([3], np.float32)
    file = store.write_fragment(layout, 0, 0, "digest", values, state)
    assert [array.tolist() for array in store.read_fragment(file)] == [[1.0, 2.0], [3.0]]
    tensors = load_file(store.place.describe(file.name))
    assert tensors[STATE_NAME].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "state"),
    [
        (np.zeros(3, np.float32), np.zeros(0, np.float32)),
        (np.zeros(15, np.float64), np.zeros(0, np.float32)),
        (np.zeros(30, np.float32)[::2], np.zeros(0, np.float32)),
        (np.zeros(15, np.float32), np.zeros((2, 2), np.float32)),
    ],
)
def test_other_arrays_are_refused(store: RunStore, values: np.ndarray, state: np.ndarray) -> None:
    assert LAYOUT.fragment_size(0) == 15
    with pytest.raises(LocalProtocolError, match="float32"):
        store.write_fragment(LAYOUT, 0, 0, "digest", values, state)


# -------------------------------------------------------------------------------------------------------- records


def test_no_record_is_nothing_to_load(store: RunStore) -> None:
    write_version(store, LAYOUT, 0, 1)
    assert store.load() is None
    assert store.newest_number() == 0
    assert store.newest_record() is None


def test_a_record_comes_back_as_it_was_written(store: RunStore) -> None:
    files = tuple(write_version(store, LAYOUT, fragment, 1) for fragment in range(2))
    written = record(LAYOUT, 1, files, epoch=4, note="größe\n")
    assert store.write_record(written)
    loaded = store.load()
    assert loaded is not None
    assert loaded.record == written
    assert check_whole(loaded, LAYOUT) == 1
    assert loaded.damaged == ()
    assert store.newest_record() == written
    assert store.read(1).record == written


def test_a_number_is_given_once(tmp_path: Path, store: RunStore) -> None:
    assert Leader(store, LAYOUT).commit()
    other = Leader(RunStore(LocalPlace(tmp_path / "run")), LAYOUT, epoch=2)
    late = Leader(store, LAYOUT)
    assert other.commit()
    before = (tmp_path / "run/records/0000000002.json").read_bytes()
    assert not late.commit()
    assert (tmp_path / "run/records/0000000002.json").read_bytes() == before
    newest = store.newest_record()
    assert newest is not None
    assert newest.epoch == 2


def test_a_late_leader_is_fenced_even_if_the_record_it_would_collide_with_is_gone(tmp_path: Path) -> None:
    stores = [RunStore(LocalPlace(tmp_path / "run"), records_kept=2) for _ in range(2)]
    assert Leader(stores[0], LAYOUT).commit()
    late, other = Leader(stores[0], LAYOUT), Leader(stores[1], LAYOUT, epoch=2)
    for _ in range(5):
        assert other.commit()
        stores[1].prune()
    newest = {"0000000005.json", "0000000006.json"}
    assert files_under(tmp_path / "run/records") == newest
    assert not late.commit()
    third = RunStore(LocalPlace(tmp_path / "run"), records_kept=2)
    loaded = third.load()
    assert loaded is not None
    assert check_whole(loaded, LAYOUT) == 6
    third.prune()
    assert files_under(tmp_path / "run/records") == newest


def test_a_state_that_is_not_json_is_refused_before_it_is_written(store: RunStore) -> None:
    broken = msgspec.structs.replace(record(LAYOUT, 1, ()), state=msgspec.Raw(b'{"a": '))
    with pytest.raises(msgspec.DecodeError):
        store.write_record(broken)
    assert store.newest_number() == 0


def test_a_field_of_a_later_program_is_ignored_and_a_later_schema_is_refused(tmp_path: Path, store: RunStore) -> None:
    class LaterRecord(Record, kw_only=True):
        added: int = 1

    leader = Leader(store, LAYOUT)
    assert leader.commit()
    fields = msgspec.structs.asdict(record(LAYOUT, 2, tuple(leader.files.values())))
    assert store.write_record(LaterRecord(**fields))
    loaded = store.load()
    assert loaded is not None
    assert check_whole(loaded, LAYOUT) == 2
    assert store.write_record(LaterRecord(**{**fields, "number": 3, "schema": 2}))
    expected = (
        f"{tmp_path / 'run/records/0000000003.json'} has schema 2, this version reads up to 1: install a later one"
    )
    for look in (store.load, store.newest_record, store.prune):
        with pytest.raises(UsageError) as caught:
            look()
        assert str(caught.value) == expected


def test_sealed_json_that_is_no_record_is_damage(tmp_path: Path, store: RunStore) -> None:
    body = b'{"number": "one"}'
    path = tmp_path / "run/records/0000000001.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"sha256": "%s", "writer": ""}\n' % hashlib.sha256(body).hexdigest().encode() + body)
    with pytest.raises(Damaged, match=f"^{path} is not a record: "):
        store.read(1)


# --------------------------------------------------------------------------------------------------------- damage


def flip_first(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def flip_middle(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0x10]) + data[len(data) // 2 + 1 :]


def flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0x80])


def swap_record(data: bytes) -> bytes:
    """Sound JSON under a seal that fits another content."""
    head, _, body = data.partition(b"\n")
    return head + b"\n" + body.replace(b'"epoch":1', b'"epoch":2')


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "first byte": flip_first,
    "middle byte": flip_middle,
    "last byte": flip_last,
    "truncated": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "empty": lambda data: b"",
    "not text": lambda data: b"\xff" * len(data),
}


@pytest.mark.parametrize("how", [*DAMAGE, "another record", "removed"])
@pytest.mark.parametrize("what", ["record", "fragment"])
def test_damage_is_named_and_the_record_before_is_used(tmp_path: Path, store: RunStore, what: str, how: str) -> None:
    leader = Leader(store, LAYOUT)
    for _ in range(3):
        assert leader.commit()
    newest = store.read(3).record
    name = "records/0000000003.json" if what == "record" else newest.fragments[3 % LAYOUT.fragment_count].name
    path = tmp_path / "run" / name
    if how == "removed":
        path.unlink()
    else:
        damaged = swap_record(path.read_bytes()) if how == "another record" else DAMAGE[how](path.read_bytes())
        if damaged == path.read_bytes():
            pytest.skip("only a record can be another record")
        path.write_bytes(damaged)
    loaded = store.load()
    assert loaded is not None
    assert check_whole(loaded, LAYOUT) == 2
    if what == "record" and how == "removed":
        assert loaded.damaged == ()  # Nothing tells that it was there.
        return
    assert [sentence.startswith(f"{path} ") for sentence in loaded.damaged] == [True]
    follower = Leader(store, LAYOUT, epoch=2)
    assert follower.commit()
    assert follower.number == 4
    again = store.load()
    assert again is not None
    assert check_whole(again, LAYOUT) == 4


def test_every_damaged_file_has_a_sentence_of_its_own(tmp_path: Path, store: RunStore) -> None:
    leader = Leader(store, LAYOUT)
    for _ in range(5):
        assert leader.commit()
    fragment = tmp_path / "run" / store.read(4).record.fragments[0].name
    assert store.read(5).record.fragments[0].name == store.read(4).record.fragments[0].name
    fragment.unlink()
    (tmp_path / "run/records/0000000005.json").write_bytes(b"{}\n{}")
    loaded = store.load()
    assert loaded is not None
    assert check_whole(loaded, LAYOUT) == 3
    assert loaded.damaged == (
        f"{tmp_path / 'run/records/0000000005.json'} does not begin with the SHA-256 of its content",
        f"{fragment} is missing, so record 4 cannot be used",
    )


def test_a_damaged_file_of_several_records_is_named_once_with_the_newest_of_them(
    tmp_path: Path, store: RunStore
) -> None:
    leader = Leader(store, LAYOUT)
    for _ in range(5):
        assert leader.commit()
    shared = tmp_path / "run" / leader.files[0].name
    shared.unlink()
    loaded = store.load()
    assert loaded is not None
    assert check_whole(loaded, LAYOUT) == 3
    assert loaded.damaged == (f"{shared} is missing, so record 5 cannot be used",)


def test_if_no_record_can_be_used_the_newest_is_named_and_nothing_is_deleted(tmp_path: Path, store: RunStore) -> None:
    leader = Leader(store, LAYOUT)
    for _ in range(2):
        assert leader.commit()
    for path in (tmp_path / "run/records").iterdir():
        path.write_bytes(b"")
    before = files_under(tmp_path / "run")
    newest = tmp_path / "run/records/0000000002.json"
    with pytest.raises(
        UsageError, match=f"^{newest} cannot be used, nor can any record before it .*put copies of these files back"
    ):
        store.load()
    assert store.newest_number() == 2
    assert store.newest_record() is None
    fresh = RunStore(LocalPlace(tmp_path / "run"), records_kept=1)
    fresh.prune()
    fresh.sweep()
    assert files_under(tmp_path / "run") == before


def test_reading_one_damaged_record_says_what_is_wrong(tmp_path: Path, store: RunStore) -> None:
    leader = Leader(store, LAYOUT)
    assert leader.commit()
    with pytest.raises(Damaged, match=f"^{tmp_path / 'run/records/0000000009.json'} is missing$"):
        store.read(9)
    path = tmp_path / "run" / leader.files[1].name
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(Damaged) as caught:
        store.read(1)
    size = leader.files[1].size
    assert (caught.value.name, caught.value.reason) == (str(path), f"has {size - 4} bytes instead of {size}")


# --------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("method", [LayoutMethod.BALANCED, LayoutMethod.TENSOR])
def test_the_layout_comes_back(store: RunStore, method: LayoutMethod) -> None:
    shapes = [(3, 2), (), (0, 5), (7,)]
    specs = [
        TensorSpec(name=name, shape=shape, dtype="bfloat16", role=role)
        for name, shape, role in zip(NAMES, shapes, [*Role, Role.PARAMETER], strict=True)
    ]
    layout = build_layout(specs, 3, method)
    assert store.read_layout() is None
    store.write_layout(layout)
    assert store.read_layout() == layout


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-5],
        lambda data: data.replace(b"model.embed", b"model.EMBED"),
        lambda data: data.replace(b'"fragment_count": 2', b'"fragment_count": 9'),
        lambda data: b"\xff" + data,
    ],
)
def test_a_damaged_layout_is_refused(tmp_path: Path, store: RunStore, damage: Callable[[bytes], bytes]) -> None:
    store.write_layout(LAYOUT)
    path = tmp_path / "run/layout.json"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UsageError, match=f"^{path} is damaged .*put a copy of it back"):
        store.read_layout()


def test_records_of_a_model_need_its_layout(store: RunStore) -> None:
    with pytest.raises(UsageError, match=r"layout\.json is damaged \(it is missing\): put a copy of it back"):
        store.require_layout(LAYOUT.digest)
    store.write_layout(LAYOUT)
    assert store.require_layout(LAYOUT.digest) == LAYOUT
    with pytest.raises(UsageError, match=r"layout\.json is damaged \(its tensors are not those of the records\)"):
        store.require_layout("another model's")

"""Builders for tests of the store: a small layout, commits whose every bit is known, and disks that fail.

Decides what a commit of number n holds. Knows nothing of what a store makes of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from unlockstep.core.chunks import Float32
from unlockstep.core.layout import Layout, LayoutMethod, Role, TensorSpec, build_layout
from unlockstep.store.fragment_files import FragmentFile
from unlockstep.store.place import Disk, Part
from unlockstep.store.run_store import Loaded, Record, RunStore

NAMES = ("model.embed_tokens.weight", "größe.0", "层.weight", "a b/c")


def small_layout(fragment_count: int = 2) -> Layout:
    """Four tensors with odd names, one of them empty."""
    shapes = ((5, 3), (7,), (0, 4), ())
    tensors = [
        TensorSpec(name=name, shape=shape, dtype="float32", role=Role.PARAMETER)
        for name, shape in zip(NAMES, shapes, strict=True)
    ]
    return build_layout(tensors, fragment_count, LayoutMethod.TENSOR)


def arrays_of(layout: Layout, fragment: int, version: int) -> tuple[Float32, Float32]:
    """Values and outer state of a version: any bits, NaN with payload among them, the same every time."""
    size = layout.fragment_size(fragment)
    bits = np.random.default_rng([fragment, version]).integers(0, 2**32, 2 * size, np.uint32)
    bits[:1] = 0x7FA00000 + version
    return bits[:size].view(np.float32), bits[size:].view(np.float32)


def write_version(store: RunStore, layout: Layout, fragment: int, version: int) -> FragmentFile:
    """Store the version whose arrays are ``arrays_of``."""
    return store.write_fragment(layout, fragment, version, f"digest {version}", *arrays_of(layout, fragment, version))


def record(layout: Layout, number: int, files: tuple[FragmentFile, ...], epoch: int = 1, note: str = "") -> Record:
    """A record whose state holds its own number, and ``note``."""
    return Record(
        number=number,
        epoch=epoch,
        run="run",
        run_id="id",
        config_digest="config",
        layout_digest=layout.digest,
        written_at=1.5e9 + number,
        fragments=files,
        state=msgspec.Raw(msgspec.json.encode({"number": number, "note": note})),
    )


class Leader:
    """Commits, one fragment after the other: record n changes fragment n mod P, whose version becomes n."""

    def __init__(self, store: RunStore, layout: Layout, epoch: int = 1) -> None:
        self.store, self.layout, self.epoch = store, layout, epoch
        loaded = store.load()
        self.number = store.newest_number()
        self.files = {} if loaded is None else {file.fragment: file for file in loaded.record.fragments}

    def commit(self) -> bool:
        """One more record. The first one has to name every fragment."""
        number = self.number + 1
        changed = [number % self.layout.fragment_count] if self.files else range(self.layout.fragment_count)
        files = {**self.files, **{f: write_version(self.store, self.layout, f, number) for f in changed}}
        if not self.store.write_record(record(self.layout, number, tuple(files[f] for f in sorted(files)), self.epoch)):
            return False
        self.number, self.files = number, files
        return True


def check_whole(loaded: Loaded, layout: Layout) -> int:
    """Assert that every array has the bits of the version its record names; returns the record's number."""
    assert loaded.record.layout_digest == layout.digest
    assert msgspec.json.decode(loaded.record.state)["number"] == loaded.record.number
    assert sorted(loaded.arrays) == list(range(layout.fragment_count))
    for file in loaded.record.fragments:
        for stored, written in zip(
            loaded.arrays[file.fragment], arrays_of(layout, file.fragment, file.version), strict=True
        ):
            assert stored.dtype == np.float32
            assert not stored.flags.writeable
            np.testing.assert_array_equal(stored.view(np.uint32), written.view(np.uint32))
    return loaded.record.number


def files_under(folder: Path) -> set[str]:
    """Every file below, by its path from there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class Crash(Exception):
    """The process is gone."""


class FailingDisk(Disk):
    """Dies in call number ``fatal`` that changes something: before it, after it, or in the middle of what it writes.

    From then on every call dies: a dead process tidies nothing up. Nobody waits for a real disk here: what the
    operating system has been told outlives a process, and a loss of power is played by ``UnpluggedDisk``.
    """

    MOMENTS = ("before", "after", "half-way")

    def __init__(self, fatal: int, moment: str) -> None:
        self._fatal, self._moment = fatal, moment
        self.calls = 0
        self.crashed = False

    def _call(self, call: Callable[[], int | None], half: Callable[[], object] | None = None) -> int | None:
        if self.crashed:
            raise Crash
        self.calls += 1
        if self.calls != self._fatal:
            return call()
        self.crashed = True
        if self._moment == "after":
            call()
        elif self._moment == "half-way" and half is not None:
            half()
        raise Crash

    def open(self, path: str) -> int:
        return self._call(lambda: super(FailingDisk, self).open(path)) or 0

    def write(self, descriptor: int, data: Part) -> int:
        def half() -> None:
            super(FailingDisk, self).write(descriptor, data[: len(data) // 2])

        return self._call(lambda: super(FailingDisk, self).write(descriptor, data), half) or 0

    def fsync(self, descriptor: int) -> None:
        self._call(lambda: None)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)

    def replace(self, source: str, target: str) -> None:
        self._call(lambda: super(FailingDisk, self).replace(source, target))

    def link(self, source: str, target: str) -> None:
        self._call(lambda: super(FailingDisk, self).link(source, target))

    def unlink(self, path: str) -> None:
        self._call(lambda: super(FailingDisk, self).unlink(path))

    def mkdir(self, path: str) -> None:
        self._call(lambda: super(FailingDisk, self).mkdir(path))

    def fsync_folder(self, path: str) -> None:
        self._call(lambda: None)


class UnpluggedDisk(FailingDisk):
    """Also loses power when it dies: what was not waited for is undone, newest first.

    Names are again as at the last ``fsync_folder`` of their folder, and a file that was not waited for is empty. Real
    disks may lose less, in any order; this one loses all it may.
    """

    def __init__(self, fatal: int, moment: str) -> None:
        super().__init__(fatal, moment)
        self._undo: list[tuple[str, Callable[[], object]]] = []
        """Folder, and what takes a change in it back."""
        self._unsynced: dict[int, int] = {}
        """Descriptor -> another one of the same file, to empty it by, whatever it is called then."""
        self._never_synced: list[int] = []
        """Those of files that were closed without."""

    def open(self, path: str) -> int:
        descriptor = super().open(path)
        self._unsynced[descriptor] = os.dup(descriptor)
        return descriptor

    def fsync(self, descriptor: int) -> None:
        super().fsync(descriptor)
        os.close(self._unsynced.pop(descriptor))

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        if descriptor in self._unsynced:
            self._never_synced.append(self._unsynced.pop(descriptor))

    def replace(self, source: str, target: str) -> None:
        back = _back_to_present(target)
        self._call(lambda: self._change(target, back, os.replace(source, target)))

    def link(self, source: str, target: str) -> None:
        self._call(lambda: self._change(target, lambda: os.unlink(target), os.link(source, target)))

    def unlink(self, path: str) -> None:
        back = _back_to_present(path)
        self._call(lambda: self._change(path, back, os.unlink(path)))

    def mkdir(self, path: str) -> None:
        self._call(lambda: self._change(path, lambda: shutil.rmtree(path), os.mkdir(path)))

    def fsync_folder(self, path: str) -> None:
        super().fsync_folder(path)
        self._undo = [(folder, back) for folder, back in self._undo if folder != path]

    def lose_power(self) -> None:
        """Undo what was not waited for."""
        for descriptor in self._never_synced:
            os.truncate(descriptor, 0)
            os.close(descriptor)
        for _, back in reversed(self._undo):
            back()

    def _change(self, path: str, back: Callable[[], object], _done: None) -> None:
        self._undo.append((os.path.dirname(path), back))


def _back_to_present(path: str) -> Callable[[], object]:
    if not os.path.exists(path):
        return lambda: os.unlink(path)
    content = Path(path).read_bytes()
    return lambda: Path(path).write_bytes(content)

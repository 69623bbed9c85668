"""A place writes whole files, creates a name once, and tidies up after the dead only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from support.stores import Disk, FailingDisk, files_under
from unlockstep.core.errors import UsageError
from unlockstep.store.place import ABANDONED_AFTER_S, LocalPlace, Place, RemotePlace, open_place


@pytest.fixture(params=["path", "file", "memory", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A folder, the same by URL, an object store in memory, and a remote place on fsspec's own local file system."""
    fsspec.filesystem("memory").store.clear()
    url = f"file://{tmp_path}/a/run"
    yield {
        "path": lambda: open_place(tmp_path / "a/run"),
        "file": lambda: open_place(url),
        "memory": lambda: open_place("memory://a/run/"),
        "local": lambda: RemotePlace(url),
    }[request.param]()
    fsspec.filesystem("memory").store.clear()


def test_what_was_written_is_read(place: Place) -> None:
    place.write("folder/deep/a", [b"one ", memoryview(b"two"), b""])
    assert place.read("folder/deep/a") == b"one two"
    place.write("folder/deep/a", [b""])
    assert place.read("folder/deep/a") == b""
    with pytest.raises(FileNotFoundError):
        place.read("folder/deep/b")


def test_a_name_is_created_once(place: Place) -> None:
    assert place.create("records/1", b"first")
    assert not place.create("records/1", b"second")
    assert place.read("records/1") == b"first"
    place.delete("records/1")
    assert place.create("records/1", b"third")
    assert place.read("records/1") == b"third"


def test_names_are_sorted_and_those_directly_in_the_folder(place: Place) -> None:
    assert place.names("records") == []
    for name in ("records/b", "records/a", "records/deep/c", "other/d", "e"):
        place.write(name, [b"x"])
    assert place.names("records") == ["a", "b", "deep"]
    place.delete("records/a")
    place.delete("records/a")
    place.delete("nowhere/at/all")
    assert place.names("records") == ["b", "deep"]


def test_a_file_is_called_by_its_full_name(tmp_path: Path) -> None:
    assert open_place(tmp_path).describe("records/1") == f"{tmp_path}/records/1"
    assert open_place(f"file://{tmp_path}").describe("records/1") == f"{tmp_path}/records/1"
    assert open_place("memory://a/run").describe("records/1") == "memory://a/run/records/1"


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **options: (fsspec.filesystem("memory"), "/x"))
    assert RemotePlace("sftp://ada:secret@host/x").describe("a") == "sftp://ada:***@host/x/a"
    assert RemotePlace("abfs://container@account/x").describe("a") == "abfs://container@account/x/a"


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^gopher://a/b cannot be opened: .*gopher"):
        open_place("gopher://a/b")


def test_a_path_needs_no_fsspec(tmp_path: Path) -> None:
    code = (
        "import sys; from unlockstep.store.place import open_place\n"
        f"assert open_place({str(tmp_path)!r}).create('a', b'b')\n"
        "sys.exit('fsspec' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------- this machine


class FullDisk(Disk):
    """Takes three bytes at a time, and no more than ten in all."""

    def __init__(self) -> None:
        self.left = 10

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        if not self.left:
            raise OSError(28, "No space left on device")
        written = super().write(descriptor, data[: min(3, self.left)])
        self.left -= written
        return written


def test_a_full_disk_leaves_the_file_of_before_and_nothing_beside_it(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path, FullDisk())
    place.write("a", [b"12345", b"678"])
    for attempt in (lambda: place.write("a", [b"longer"]), lambda: place.create("b", b"longer")):
        with pytest.raises(OSError, match="No space left"):
            attempt()
    assert (tmp_path / "a").read_bytes() == b"12345678"
    assert files_under(tmp_path) == {"a"}


def test_a_file_system_without_hard_links_is_named(tmp_path: Path) -> None:
    class Fat(Disk):
        def link(self, source: str, target: str) -> None:
            raise PermissionError(1, "Operation not permitted")

    place = LocalPlace(tmp_path, Fat())
    with pytest.raises(UsageError, match=f"^{tmp_path} is on a file system without hard links"):
        place.create("a", b"x")
    assert files_under(tmp_path) == set()


def test_a_link_whose_answer_was_lost_is_ours(tmp_path: Path) -> None:
    class Nfs(Disk):
        def link(self, source: str, target: str) -> None:
            os.link(source, target)
            raise FileExistsError

    assert LocalPlace(tmp_path, Nfs()).create("a", b"x")
    assert files_under(tmp_path) == {"a"}
    assert not LocalPlace(tmp_path).create("a", b"x")


def leftover_of(folder: Path, life: Callable[[str], str] = lambda name: name) -> Path:
    """A temporary file as a process leaves it that is killed before it gives the file its name."""
    folder.mkdir(exist_ok=True)
    code = (
        "import os, signal, sys; from unlockstep.store.place import Disk, LocalPlace; from pathlib import Path\n"
        "class Killed(Disk):\n    def replace(self, source, target): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"LocalPlace(Path({str(folder)!r}), Killed()).write('sub/x', [b'half'])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (name,) = os.listdir(folder / "sub")
    path = folder / "sub" / life(name)
    (folder / "sub" / name).rename(path)
    return path


def test_leftovers_of_the_dead_are_removed_and_never_listed(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    leftover = leftover_of(tmp_path)
    stranger = tmp_path / "sub/.x.part"
    stranger.write_bytes(b"")
    assert place.names("sub") == [".x.part"]
    LocalPlace(tmp_path)
    assert (leftover.exists(), stranger.exists()) == (False, True)


def test_what_another_process_is_writing_stays_for_an_hour(tmp_path: Path) -> None:
    alive = leftover_of(tmp_path / "alive", lambda name: _with_pid(name, os.getppid()))
    elsewhere = leftover_of(tmp_path / "elsewhere", lambda name: name.replace(name.split(".")[2][:8], "0" * 8))
    for path in (alive, elsewhere):
        LocalPlace(tmp_path)
        assert path.exists()
        old = os.stat(path).st_mtime - ABANDONED_AFTER_S - 60
        os.utime(path, (old, old))
        LocalPlace(tmp_path)
        assert not path.exists()


def test_an_earlier_process_of_the_same_number_is_dead_and_this_one_is_not(tmp_path: Path) -> None:
    path = leftover_of(tmp_path, lambda name: _with_pid(name, os.getpid()))
    disk = FailingDisk(5, "before")  # mkdir, its fsync, open and write come first.
    with pytest.raises(Exception):  # noqa: B017  whatever ends the call is not the point
        LocalPlace(tmp_path / "other", disk).write("x", [b"abc"])
    LocalPlace(tmp_path)
    assert not path.exists()
    assert [name.startswith("other/.x.") for name in files_under(tmp_path)] == [True]


def _with_pid(name: str, pid: int) -> str:
    host, _, life, count = name.removesuffix(".part").split(".")[2].split("-")
    return f".x.{host}-{pid}-{life}-{count}.part"


# ------------------------------------------------------------------------------------------------- behind a URL


class _Service(MemoryFileSystem):
    """An object store of its own for each class; ``refusal`` is how it says that a name is taken."""

    cachable = False
    refusal: Exception | None = None

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.store = {}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        if mode == "create" and self.exists(path):
            if self.refusal is None:
                raise FileExistsError
            raise self.refusal
        super().pipe_file(path, value, **options)


class Rude(_Service):
    refusal = OSError(22, "At least one of the pre-conditions you specified did not hold")


class Careless(_Service):
    """Takes no notice of the condition."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        super().pipe_file(path, value, **options)


class Forgetful(_Service):
    """Its client repeats every request, as if the answer to the first had been lost."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        super().pipe_file(path, value, mode, **options)
        super().pipe_file(path, value, mode, **options)


class Plain(_Service):
    """Neither a condition of its own nor exclusive opening."""

    def _open(self, path: str, mode: str = "rb", **options: object) -> object:
        if "x" in mode:
            raise NotImplementedError("File mode not supported")
        return super()._open(path, mode, **options)

    pipe_file = fsspec.AbstractFileSystem.pipe_file


class Remembering(_Service):
    """Lists a folder once, and remembers, until it is told to forget."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.listings: dict[str, list[str]] = {}

    def ls(self, path: str, detail: bool = True, **options: object) -> list[str]:
        if path not in self.listings:
            self.listings[path] = super().ls(path, detail, **options)
        return self.listings[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listings.pop(str(path), None)


class Broken(_Service):
    """Fails without having done anything, from the third request on."""

    requests = 0

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        self.requests += 1
        if self.requests > 2:
            raise TimeoutError("no answer")
        super().pipe_file(path, value, mode, **options)


@pytest.fixture
def served_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[_Service]], RemotePlace]:
    def place_of(kind: type[_Service]) -> RemotePlace:
        monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **options: (kind(), "/bucket/run"))
        return RemotePlace("s3://bucket/run")

    return place_of


@pytest.mark.parametrize("kind", [_Service, Rude, Forgetful])
def test_a_service_that_obeys_conditions_is_relied_on_whatever_its_words(
    served_by: Callable[[type[_Service]], RemotePlace], kind: type[_Service]
) -> None:
    place = served_by(kind)
    assert place.create("records/1", b"first")
    assert not place.create("records/1", b"second")
    assert place.read("records/1") == b"first"
    assert place.names("records") == ["1"]
    assert place.names("") == ["records"]


def test_what_another_process_has_written_is_listed(served_by: Callable[[type[_Service]], RemotePlace]) -> None:
    place = served_by(Remembering)
    for number in ("1", "2"):
        place.write(f"records/{number}", [b"x"])
        assert place.names("records")[-1] == number


@pytest.mark.parametrize("kind", [Careless, Plain])
def test_a_service_without_conditions_is_refused(
    served_by: Callable[[type[_Service]], RemotePlace], kind: type[_Service]
) -> None:
    place = served_by(kind)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"^s3://bucket/run has no conditional writes, without which two syncers"):
            place.create("records/1", b"first")
    assert place.names("") == []
    place.write("leader.json", [b"x"])
    assert place.read("leader.json") == b"x"


def test_a_request_that_failed_is_not_taken_for_a_refusal(served_by: Callable[[type[_Service]], RemotePlace]) -> None:
    place = served_by(Broken)
    with pytest.raises(TimeoutError):
        place.create("records/1", b"first")

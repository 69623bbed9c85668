"""Several processes on one store: one wins each number, readers never see a mix, a kill loses nothing committed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from support.stores import Leader, check_whole, files_under, small_layout
from unlockstep.store.place import LocalPlace
from unlockstep.store.run_store import RunStore

LAYOUT = small_layout()

PRELUDE = """
import sys
from pathlib import Path
from support.stores import Leader, check_whole, record, small_layout
from unlockstep.store.place import LocalPlace
from unlockstep.store.run_store import RunStore
store = RunStore(LocalPlace(Path(sys.argv[1])), records_kept=2)
layout = small_layout()
"""

RACE = """
print("ready", flush=True)
sys.stdin.readline()
for number in range(1, 201):
    won = store.write_record(record(layout, number, (), epoch=int(sys.argv[2]), note=sys.argv[2]))
    print(number, won, flush=True)
"""

LEAD = """
leader = Leader(store, layout)
while leader.commit():
    print(leader.number, flush=True)
    store.prune()
"""

FOLLOW = """
numbers = [0]
while numbers[-1] < int(sys.argv[2]):
    loaded = store.load()
    if loaded is not None:
        assert loaded.damaged == (), loaded.damaged
        numbers.append(check_whole(loaded, layout))
assert numbers == sorted(numbers)
print(len(set(numbers)))
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    tests = Path(__file__).parents[1]
    path = [str(tests), *sys.path]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{PRELUDE}{code}", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_of_processes_that_write_the_same_numbers_at_once_one_wins_each(tmp_path: Path) -> None:
    racers = {name: start(RACE, tmp_path, name) for name in (1, 2, 3)}
    for racer in racers.values():
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers.values():
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    winners: dict[int, list[int]] = {number: [] for number in range(1, 201)}
    for name, racer in racers.items():
        output, error = racer.communicate()
        assert racer.returncode == 0, error
        for line in output.splitlines():
            number, won = line.split()
            winners[int(number)] += [name] if won == "True" else []
    store = RunStore(LocalPlace(tmp_path))
    for number, names in winners.items():
        # A winner that is overtaken before it has looked again takes itself for late.
        assert len(names) <= 1
        if names:
            assert msgspec.json.decode(store.read(number).record.state)["note"] == str(names[0])
    assert len(winners[200]) == 1
    assert files_under(tmp_path) == {f"records/{number:010}.json" for number in winners}


def test_a_reader_never_crashes_nor_sees_a_mix_while_a_leader_commits_and_prunes(tmp_path: Path) -> None:
    assert Leader(RunStore(LocalPlace(tmp_path)), LAYOUT).commit()
    readers = [start(FOLLOW, tmp_path, 400) for _ in range(2)]
    store = RunStore(LocalPlace(tmp_path), records_kept=1)
    leader = Leader(store, LAYOUT, epoch=2)
    while any(reader.poll() is None for reader in readers):
        assert leader.commit()
        store.prune()
    for reader in readers:
        output, error = reader.communicate()
        assert reader.returncode == 0, error
        assert int(output) > 1


def test_a_leader_killed_again_and_again_loses_nothing_it_committed(tmp_path: Path) -> None:
    committed = 0
    for kills in range(1, 9):
        leader = start(LEAD, tmp_path)
        assert leader.stdout is not None
        for _ in range(kills):
            committed = int(leader.stdout.readline())
        leader.send_signal(signal.SIGKILL)
        rest, error = leader.communicate()
        assert leader.returncode == -signal.SIGKILL, error
        committed = max([committed, *(int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n"))])
        loaded = RunStore(LocalPlace(tmp_path)).load()
        assert loaded is not None
        assert loaded.damaged == ()
        assert check_whole(loaded, LAYOUT) in (committed, committed + 1)
    store = RunStore(LocalPlace(tmp_path), records_kept=2)
    leader = Leader(store, LAYOUT, epoch=2)
    assert leader.commit()
    store.prune()
    store.sweep()
    assert len(files_under(tmp_path)) == 2 + 3


def test_a_leader_that_wakes_up_late_steps_down(tmp_path: Path) -> None:
    first = RunStore(LocalPlace(tmp_path))
    late = Leader(first, LAYOUT)
    assert late.commit()
    process = start(LEAD, tmp_path)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    assert not late.commit()
    process.kill()
    _, error = process.communicate()
    assert process.returncode == -signal.SIGKILL, error
    loaded = RunStore(LocalPlace(tmp_path)).load()
    assert loaded is not None
    assert check_whole(loaded, LAYOUT) >= 21

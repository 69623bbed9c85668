"""Looks for bytes that a reader takes ill, guided by what code they reach: ``make fuzz SECONDS=60``, or

    PYTHONPATH=tests python fuzz/fuzz.py [SECONDS] [READER ...]

Every reader of ``tests/support/hostile.py``, and a syncer's port (``requests``: ``hostile_requests.py`` beside it), is
given so many seconds (60), in a process of its own. What is found is written to ``.fuzz`` and shown as an example for
the tests that use the same. Decides how long, and where findings go; what must hold is there. Needs atheris (the extra
``fuzz``).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.hostile import Reader

FINDINGS = Path(__file__).parents[1] / ".fuzz"
BYTES_MAX = 4096
MEMORY_MB_MAX = 2048
INPUT_S_MAX = 5
SECONDS = 60
REQUESTS = "requests"


def reader_of(name: str) -> Reader:
    """What is fuzzed."""
    if name != REQUESTS:
        from support.hostile import READERS

        return READERS[name]
    from support.hostile import Reader
    from support.hostile_requests import Victim

    victim = Victim()
    return Reader(victim.read, victim.samples)


def look(name: str, seconds: int) -> None:
    """Fuzz one reader. Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["unlockstep", "aiohttp", "msgspec", "json", "tomllib"]):
        reader = reader_of(name)
    folder = FINDINGS / name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(reader.samples):
        (corpus / f"sample-{number}").write_bytes(sample)
    limits = (f"-max_total_time={seconds}", f"-max_len={BYTES_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}")
    arguments = (*limits, f"-timeout={INPUT_S_MAX}", f"-artifact_prefix={folder}/", "-print_final_stats=1", str(corpus))
    atheris.Setup([sys.argv[0], *arguments], reader.read)
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    """Fuzz all readers, or those named, one after the other; how many have findings."""
    if arguments[:1] == ["--one"]:
        look(arguments[1], int(arguments[2]))
    seconds = int(arguments.pop(0)) if arguments and arguments[0].isdecimal() else SECONDS
    from support.hostile import READERS

    names = [*READERS, REQUESTS]
    unknown = set(arguments) - set(names)
    if unknown:
        print(f"no reader is called {', '.join(sorted(unknown))}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    failed = 0
    for name in arguments or names:
        before = set((FINDINGS / name).glob("*-*"))
        command = [sys.executable, __file__, "--one", name, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        runs = [line for line in done.stderr.splitlines() if line.startswith("stat::number_of_executed_units")]
        inputs = runs[-1].split()[-1] if runs else "?"
        found = sorted(set((FINDINGS / name).glob("*-*")) - before)
        print(f"{name:12} {inputs:>10} inputs  {'nothing found' if done.returncode == 0 else 'FOUND'}", flush=True)
        if done.returncode != 0:
            failed += 1
            print("\n".join(done.stderr.splitlines()[-40:]))
        for path in found:
            print(f'    ("{name}", {path.read_bytes()!r}),')
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

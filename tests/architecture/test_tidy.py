"""The rules of CONTRIBUTING.md that a machine can check, and for each of them a bad example that it must catch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from architecture import rules
from architecture.rules import Source, sources

PYTHON = ("src/", "tests/", "fuzz/", "examples/", "benchmarks/", "experiments/")

RULES: dict[str, tuple[Callable[[Source], Iterator[str]], tuple[str, ...]]] = {
    "files are short": (rules.long_file, PYTHON),
    "functions fit on a screen": (rules.long_function, PYTHON),
    "every module says what it decides": (rules.undocumented_module, PYTHON),
    "names say something": (rules.empty_word, PYTHON),
    "core is pure": (rules.impure_core, ("src/unlockstep/core/",)),
    "the environment is read where a process begins": (rules.environment_read, ("src/",)),
    "tests do not sleep": (rules.sleep, ("tests/",)),
    "no data is executed": (rules.code_in_data, ("src/",)),
}

LONG_BODY = "\n".join("    x = 1" for _ in range(61))
DOCUMENTED = '    """Say."""\n' + "\n".join("    x = 1" for _ in range(59))

BAD = [
    (rules.long_file, "x = 1\n" * 701),
    (rules.long_function, f"def f():\n{LONG_BODY}\n"),
    (rules.long_function, f"class A:\n  async def f(\n    self,\n  ):\n{LONG_BODY}\n"),
    (rules.undocumented_module, ""),
    (rules.undocumented_module, "import math\n"),
    (rules.empty_word, "class ConnectionManager: ..."),
    (rules.empty_word, "def http_helpers(): ..."),
    (rules.empty_word, "class HTTPHandler: ..."),
    (rules.empty_word, "class A:\n    async def get_info(self): ..."),
    (rules.impure_core, "import time"),
    (rules.impure_core, "from os import path"),
    (rules.impure_core, "import numpy as np\nx = np.random.rand()"),
    (rules.impure_core, "def f():\n    import random"),
    (rules.impure_core, "print(1)"),
    (rules.impure_core, "x = hash('a')"),
    (rules.impure_core, "open('x')"),
    (rules.impure_core, "for x in {1, 2}: ..."),
    (rules.impure_core, "for x in set(y): ..."),
    (rules.impure_core, "for x in set(y) - set(z): ..."),
    (rules.impure_core, "x = [a for a in {b for b in c}]"),
    (rules.impure_core, "x = list(set(y))"),
    (rules.impure_core, "x = ', '.join(frozenset(y))"),
    (rules.impure_core, "x = [*{1, 2}]"),
    (rules.environment_read, "import os\nx = os.environ['X']"),
    (rules.environment_read, "import os\nx = os.getenv('X')"),
    (rules.environment_read, "from os import environ"),
    (rules.sleep, "import time\ntime.sleep(0.1)"),
    (rules.sleep, "from time import sleep\nsleep(1)"),
    (rules.sleep, "async def f():\n    await asyncio.sleep(0.01)"),
    (rules.code_in_data, "import pickle"),
    (rules.code_in_data, "from pickle import loads"),
    (rules.code_in_data, "def late():\n    import shelve"),
    (rules.code_in_data, "x = marshal.loads\nimport marshal"),
    (rules.code_in_data, "x = eval(text)"),
    (rules.code_in_data, "exec(text, {})"),
    (rules.code_in_data, "torch.load(path)"),
    (rules.code_in_data, "torch.load(path, weights_only=False)"),
    (rules.code_in_data, "np.load(path, allow_pickle=True)"),
    (rules.code_in_data, "np.load(path, allow_pickle=given)"),
    (rules.code_in_data, "importlib.import_module(name)"),
    (rules.code_in_data, "os.system(line)"),
    (rules.code_in_data, "subprocess.run(line, shell=True)"),
    (rules.code_in_data, "yaml.load(text)"),
    (rules.code_in_data, "AutoModel.from_pretrained(name, trust_remote_code=True)"),
    (rules.private_folder, "path = '/ho" + "me/ada/x'"),
    (rules.private_folder, "see /wo" + "rk/main"),
]

GOOD = [
    (rules.long_file, "x = 1\n" * 700),
    (rules.long_function, f"def f():\n{DOCUMENTED}\n"),
    (rules.undocumented_module, '"""Decides."""\n'),
    (rules.empty_word, "class Information: ...\ndef commonplace(): ...\ndef test_a_common_case(): ...\nx.info('a')\n"),
    (rules.impure_core, "for x in sorted(set(y)): ...\nz = len({1, 2})\nimport math\n"),
    (rules.environment_read, "import os\nos.truncate('x', 0)"),
    (rules.sleep, "async def f():\n    await asyncio.sleep(0)"),
    (rules.code_in_data, "model.eval()\nnp.load(p)\ntorch.load(p, weights_only=True)\nre.compile(p)\nimport json"),
    (rules.private_folder, "see https://example.org/home/ada and ~/src/x and docs/src/y"),
]


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    rule, places = RULES[name]
    violations = [line for source in sources(*places) for line in rule(source)]
    assert not violations, f"{name}:\n" + "\n".join(violations)


def test_no_file_names_a_folder_of_one_machine() -> None:
    violations = [
        line
        for suffix in (".py", ".md", ".toml", ".txt", ".json", "Makefile", ".ci/run", ".gitignore")
        for source in sources(suffix=suffix)
        for line in rules.private_folder(source)
    ]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_a_rule_sees_a_bad_example(rule: Callable[[Source], Iterator[str]], text: str) -> None:
    assert len(list(rule(Source("src/unlockstep/core/example.py", text)))) == 1


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_a_rule_lets_a_good_example_pass(rule: Callable[[Source], Iterator[str]], text: str) -> None:
    assert list(rule(Source("src/unlockstep/core/example.py", text))) == []


def test_a_module_is_named_after_what_it_does_too() -> None:
    assert len(list(rules.empty_word(Source("src/unlockstep/net/utils.py", "")))) == 1


@pytest.mark.parametrize("room", rules.ENVIRONMENT_ROOMS)
def test_where_a_process_begins_the_environment_may_be_read(room: str) -> None:
    assert list(rules.environment_read(Source(f"{room}main.py", "import os\nx = os.environ"))) == []

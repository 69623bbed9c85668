"""The rules a machine can check, each a function from one source file to its violations, ``path:line: what is wrong``.

Decides what the rules are. Which files they are applied to, and the proof that each of them can fail, is in the tests
beside this file. A rule reads the syntax tree: it sees what is written, not what a variable holds.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60
"""Without its docstring."""

BANNED_WORDS = frozenset({"manager", "handler", "helper", "util", "common", "misc", "info"})
"""Words that say nothing about what a thing is."""

CORE_BANNED_MODULES = frozenset(
    {
        *(
            "time",
            "datetime",
            "random",
            "secrets",
            "uuid",
            "threading",
            "multiprocessing",
            "asyncio",
            "signal",
            "logging",
        ),
        *("io", "os", "pathlib", "select", "socket", "subprocess", "sys", "tempfile"),
    }
)
"""Clocks, randomness, threads, output and the outside world: arguments and actions stand for them in ``core``."""

CORE_BANNED_CALLS = frozenset({"print", "open", "input", "hash", "id", "breakpoint"})
"""``hash`` and ``id`` differ from process to process, so nothing may depend on them."""

ENVIRONMENT_ROOMS = ("src/unlockstep/cli/", "src/unlockstep/launch/")

_HOME_OR_WORK_FOLDER = re.compile(r"(?<![\w.:/~-])/(?:home|Users|root|work)/\w")
_MARKDOWN_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_MARKDOWN_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """One file of the repository: its path from the root, with forward slashes, and its text."""

    path: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def module(self) -> str:
        """Dotted name of a module under ``src``: ``unlockstep.core.syncer``."""
        return self.path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {what}"


@functools.cache
def tracked_files() -> tuple[str, ...]:
    """Every file that is, or is about to be, part of the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return tuple(sorted({path for path in listing.split("\0") if (ROOT / path).is_file()}))


def sources(*prefixes: str, suffix: str = ".py") -> list[Source]:
    """The tracked files that begin with one of ``prefixes`` (all, if none is given) and end with ``suffix``."""
    return [_source(path) for path in tracked_files() if path.startswith(prefixes or "") and path.endswith(suffix)]


@functools.cache
def _source(path: str) -> Source:
    return Source(path, (ROOT / path).read_text(encoding="utf-8"))


# ----------------------------------------------------------------------------------------------- size and shape


def long_file(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{source.path}: {lines} lines, {FILE_LINES_MAX} at most: split it by what it decides"


def long_function(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = node.body[0].lineno - node.lineno
            lines += (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > FUNCTION_LINES_MAX:
                yield source.at(node, f"{node.name} has {lines} lines, {FUNCTION_LINES_MAX} at most")


def undocumented_module(source: Source) -> Iterator[str]:
    if ast.get_docstring(source.tree) is None:
        yield f"{source.path}: no docstring: say what this file decides, and what it does not"


def empty_word(source: Source) -> Iterator[str]:
    """Words that say nothing, in the name of a module, class or function. The name of a test is a sentence: all go."""
    names: list[tuple[ast.AST, str]] = [(source.tree, Path(source.path).stem)]
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    names += [(node, node.name) for node in source.nodes if isinstance(node, kinds)]
    names = [(node, name) for node, name in names if not name.startswith("test_")]
    for node, name in names:
        for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name):
            if word.lower().removesuffix("s") in BANNED_WORDS:
                yield source.at(node, f"{name}: {word.lower()!r} says nothing; name what it does")


# ------------------------------------------------------------------------------------------------- what core may do


def impure_core(source: Source) -> Iterator[str]:
    """Anything in ``core`` that would make the same messages at the same times give another result."""
    for node in source.nodes:
        for module in imported_modules(source, node):
            if module.split(".")[0] in CORE_BANNED_MODULES:
                yield source.at(node, f"core imports {module}: time, chance and the outside are arguments here")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CORE_BANNED_CALLS:
            yield source.at(node, f"core calls {node.func.id}()")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            yield source.at(node, "core draws random numbers")
        for iterated in _iterated(node):
            if _is_set(iterated):
                yield source.at(iterated, "core iterates over a set, whose order differs from run to run: sort it")


def _iterated(node: ast.AST) -> list[ast.expr]:
    """What this node goes through one by one, in an order that matters."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        return [node.iter]
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        ordered = ("list", "tuple", "enumerate", "zip", "map", "iter", "dict")
        return node.args if node.func.id in ordered else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("join", "extend"):
        return node.args
    return []


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(node.left) or _is_set(node.right)
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return isinstance(node, ast.Set | ast.SetComp) or called in ("set", "frozenset")


# --------------------------------------------------------------------------------------------- the world around it


def environment_read(source: Source) -> Iterator[str]:
    """The environment, read anywhere but where a process begins: it would override arguments from within."""
    if source.path.startswith(ENVIRONMENT_ROOMS):
        return
    for node in source.nodes:
        read = isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv", "os.putenv")
        named = isinstance(node, ast.ImportFrom) and node.module == "os" and {n.name for n in node.names} & _ENVIRONMENT
        if read or named:
            yield source.at(node, "the environment belongs to cli and launch: pass what is needed as an argument")


_ENVIRONMENT = {"environ", "getenv", "putenv"}


def sleep(source: Source) -> Iterator[str]:
    """Waiting by the clock, in a test. ``asyncio.sleep(0)`` waits for nothing and lets other tasks run."""
    for node in source.nodes:
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            lets_others_run = ast.unparse(node) == "asyncio.sleep(0)"
            if called == "sleep" and not lets_others_run:
                yield source.at(node, "a test sleeps: wait for the event itself, or move time by hand")


def private_folder(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        if _HOME_OR_WORK_FOLDER.search(line):
            yield f"{source.path}:{number}: a path of one person's machine"


def broken_link(source: Source, exists: frozenset[str]) -> Iterator[str]:
    """A relative link of a Markdown file to something that is not in the repository (``exists``: files and folders)."""
    text = _MARKDOWN_CODE.sub(lambda code: "\n" * code.group().count("\n"), source.text)
    for number, line in enumerate(text.splitlines(), start=1):
        for target in _MARKDOWN_LINK.findall(line):
            path = target.partition("#")[0]
            if not path or re.match(r"[a-z][a-z0-9+.-]*:", path):
                continue
            if _normal(f"{source.path.rpartition('/')[0]}/{path}") not in exists:
                yield f"{source.path}:{number}: the link to {target} leads nowhere"


def _normal(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


# -------------------------------------------------------------------------------------------------- code in data


UNPICKLING_MODULES = frozenset({"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"})
"""What they read may be code, or call it."""

_EXECUTING = frozenset({"eval", "exec", "compile", "__import__"})
_IMPORT_BY_NAME = ("src/unlockstep/__init__.py", "src/unlockstep/models/factory.py")
"""The first imports names from its own table; the second is where a name from the settings becomes code, and
``cli.trust`` stands before it."""

_UNPICKLES = ("src/unlockstep/virtual/checkpoint.py",)
"""It reads what a user's own run has written on the same machine, and refuses another user's file."""


def code_in_data(source: Source) -> Iterator[str]:
    """Anything by which bytes or text that came from elsewhere could be executed."""
    for node in source.nodes:
        for module in imported_modules(source, node):
            if module.split(".")[0] in UNPICKLING_MODULES and source.path not in _UNPICKLES:
                yield source.at(node, f"imports {module}: what it reads may execute code")
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in _EXECUTING:
            yield source.at(node, f"calls {called}()")
        unpickles = called.endswith("torch.load") and keywords.get("weights_only") != "True"
        if unpickles and source.path not in _UNPICKLES:
            yield source.at(node, "calls torch.load without weights_only=True, which unpickles")
        if called in ("np.load", "numpy.load") and keywords.get("allow_pickle", "False") != "False":
            yield source.at(node, "calls numpy.load with allow_pickle")
        if called.endswith("import_module") and source.path not in _IMPORT_BY_NAME:
            yield source.at(node, "imports a module by a name that is not written here")
        if called in ("os.system", "os.popen") or keywords.get("shell") == "True":
            yield source.at(node, "has a shell read a command line")
        if called in ("yaml.load", "yaml.unsafe_load") or keywords.get("trust_remote_code", "False") != "False":
            yield source.at(node, f"calls {called} in a way that runs what it reads")


# -------------------------------------------------------------------------------------------------------- imports


def imported_modules(source: Source, node: ast.AST) -> list[str]:
    """Full dotted names of what an import statement brings in; of any other node: nothing.

    ``from unlockstep import config`` gives ``unlockstep.config``: what is imported from a package may be a module.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = node.module or ""
    if node.level:
        above = source.module.split(".")
        climb = node.level - source.path.endswith("/__init__.py")
        module = ".".join([*above[: len(above) - climb], *filter(None, [module])])
    return [module if alias.name.startswith("__") else f"{module}.{alias.name}" for alias in node.names]


def room_of(module: str, table: dict[str, str]) -> str:
    """The room a module of ours is in: the longest entry of the table that it is, or lies under."""
    rooms = [room for room in table if module == room or (room != "unlockstep" and _is_under(module, room))]
    return max(rooms, key=len, default="")


def forbidden_import(source: Source, table: dict[str, str]) -> Iterator[str]:
    """An import, early or late, that the table does not allow. Who may import a room may import what lies under it.

    Everybody may ask the package itself for its version: that loads nothing.
    """
    home = room_of(source.module, table)
    if not home:
        yield f"{source.path}: {source.module} is in no room of the import table"
        return
    allowed = table[home].split()
    for node in source.nodes:
        for module in imported_modules(source, node):
            own = room_of(module, table) == home
            standard = module.split(".")[0] in sys.stdlib_module_names or module == "unlockstep"
            if not (own or standard or "*" in allowed or any(_is_under(module, room) for room in allowed)):
                yield source.at(node, f"{home} imports {module}, which its room may not")


def _is_under(module: str, room: str) -> bool:
    return f"{module}.".startswith(f"{room}.")

"""Scripts of the checkout that belong to no package, imported as they are run: together with the files beside them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from architecture.rules import ROOT


@contextmanager
def imported(script: str) -> Iterator[ModuleType]:
    """``docs/results.py``: its module. Afterwards neither it nor any other script is among those that are loaded."""
    path = ROOT / script
    paths, loaded = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(path.parent))
    try:
        # By its place: codecs.py has the name of a module of Python's.
        spec = importlib.util.spec_from_file_location(f"script {path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = paths
        for name in set(sys.modules) - loaded:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).parent in (ROOT / "docs", ROOT / "experiments"):
                del sys.modules[name]

"""Who may import whom. The table is the architecture: data goes round a ring, imports point inward to ``core``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from architecture.rules import Source, forbidden_import, room_of, sources

IMPORTS = {
    # room: what it may import besides the standard library and itself ("*": everything)
    "unlockstep": "unlockstep.core unlockstep.config unlockstep.integrations",
    # the protocol: plain objects
    "unlockstep.core": "msgspec",
    # the numbers in it
    "unlockstep.core.adoption": "unlockstep.core numpy",
    "unlockstep.core.blocks": "unlockstep.core numpy",
    "unlockstep.core.chunks": "unlockstep.core numpy",
    "unlockstep.core.codec": "unlockstep.core numpy",
    "unlockstep.core.digests": "blake3",
    "unlockstep.core.feedback": "unlockstep.core numpy",
    "unlockstep.core.global_params": "unlockstep.core numpy",
    "unlockstep.core.merge": "unlockstep.core numpy",
    "unlockstep.core.outer": "unlockstep.core numpy",
    "unlockstep.core.outer_gradient": "unlockstep.core numpy",
    # around it
    "unlockstep.files": "",
    "unlockstep.orphans": "",
    "unlockstep.certificates": "cryptography",
    "unlockstep.config": "unlockstep.core msgspec tomli_w",
    "unlockstep.recipes": "unlockstep.core unlockstep.config",
    "unlockstep.runlog": "unlockstep.core unlockstep.files msgspec",
    # what goes wrong, and what must hold all the same
    "unlockstep.tape": "unlockstep.core unlockstep.files msgspec tomli_w",
    "unlockstep.poisson": "unlockstep.core unlockstep.tape",
    "unlockstep.checkers": "unlockstep.core msgspec",
    # a learner
    "unlockstep.learners.backend": "unlockstep.core msgspec numpy",
    "unlockstep.learners.state_body": "unlockstep.core unlockstep.learners.backend msgspec numpy",
    "unlockstep.holdings": "unlockstep.core unlockstep.learners.backend numpy",
    "unlockstep.loop": "unlockstep.core unlockstep.holdings unlockstep.learners.backend unlockstep.learners.state_body",
    "unlockstep.learners": "unlockstep.core unlockstep.config unlockstep.files unlockstep.learners.backend "
    "msgspec numpy safetensors torch",
    "unlockstep.data": "unlockstep.core numpy tokenizers",
    "unlockstep.models": "unlockstep.core unlockstep.data unlockstep.files safetensors torch transformers",
    # a syncer
    "unlockstep.promises": "unlockstep.core",
    "unlockstep.storehouse": "unlockstep.core unlockstep.config numpy",
    "unlockstep.store": "unlockstep.core fsspec msgspec numpy",
    "unlockstep.keeper": "unlockstep.core unlockstep.runlog unlockstep.store unlockstep.storehouse msgspec",
    # the two worlds they meet in, which never see each other
    "unlockstep.net": "",
    "unlockstep.net.wire": "unlockstep.core unlockstep.config msgspec numpy zstandard",
    "unlockstep.net.access": "unlockstep.core unlockstep.certificates unlockstep.net.wire aiohttp msgspec",
    "unlockstep.net.bulk": "unlockstep.core unlockstep.net.access unlockstep.net.wire msgspec numpy",
    "unlockstep.net.courier": "unlockstep.core unlockstep.config unlockstep.loop unlockstep.learners.state_body "
    "unlockstep.net.access unlockstep.net.bulk unlockstep.net.wire unlockstep.orphans msgspec numpy",
    "unlockstep.net.clients": "unlockstep.core unlockstep.config unlockstep.loop unlockstep.learners.state_body "
    "unlockstep.net.access unlockstep.net.bulk unlockstep.net.courier unlockstep.net.wire aiohttp msgspec",
    "unlockstep.net.syncer": "unlockstep.core unlockstep.config unlockstep.runlog unlockstep.promises "
    "unlockstep.storehouse unlockstep.keeper unlockstep.store unlockstep.net.access unlockstep.net.wire "
    "aiohttp msgspec numpy",
    "unlockstep.net.doctor": "unlockstep.core unlockstep.config unlockstep.certificates unlockstep.net.access "
    "unlockstep.net.bulk unlockstep.net.wire msgspec",
    "unlockstep.sim": "unlockstep.core unlockstep.config unlockstep.runlog unlockstep.tape unlockstep.checkers "
    "unlockstep.loop unlockstep.promises unlockstep.storehouse unlockstep.learners.backend unlockstep.learners.toy "
    "unlockstep.learners.state_body msgspec numpy tomli_w",
    # a run once more, from its log
    "unlockstep.replay": "unlockstep.core unlockstep.config unlockstep.holdings unlockstep.loop unlockstep.storehouse "
    "unlockstep.learners.backend msgspec",
    # what people touch
    "unlockstep.report": "unlockstep.core unlockstep.tape msgspec rich tensorboard",
    "unlockstep.launch": "unlockstep.core unlockstep.config unlockstep.tape msgspec",
    "unlockstep.virtual": "unlockstep.core unlockstep.config unlockstep.files unlockstep.runlog unlockstep.tape "
    "unlockstep.learners.backend unlockstep.launch unlockstep.sim cloudpickle msgspec numpy torch",
    "unlockstep.chaos": "unlockstep.core unlockstep.files unlockstep.launch unlockstep.orphans unlockstep.tape msgspec",
    "unlockstep.integrations": "unlockstep.core unlockstep.config unlockstep.data unlockstep.learners unlockstep.loop "
    "unlockstep.net msgspec numpy torch transformers",
    "unlockstep.cli": "*",
    "unlockstep.__main__": "unlockstep.cli",
}

NEED_TORCH = ("unlockstep.learners", "unlockstep.models", "unlockstep.integrations")
"""Rooms for machines that train. A syncer merges, and so do all who only look: they load everything else."""


def test_imports_follow_the_table() -> None:
    violations = [line for source in sources("src/") for line in forbidden_import(source, IMPORTS)]
    assert not violations, "\n" + "\n".join(violations)


def test_every_room_of_the_table_exists() -> None:
    modules = {source.module for source in sources("src/")}
    assert IMPORTS.keys() <= modules


def test_a_syncer_needs_no_torch() -> None:
    modules = [source.module for source in sources("src/") if not source.path.endswith("/__main__.py")]
    free = [module for module in modules if room_of(module, IMPORTS) not in NEED_TORCH]
    check = f"import sys, {', '.join(free)}; print(*sorted({{'torch', 'transformers'}} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "", f"importing {free} also imports {found.stdout}"


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("src/unlockstep/core/window.py", "import numpy"),
        ("src/unlockstep/core/window.py", "from .merge import merge"),
        ("src/unlockstep/core/window.py", "from . import merge"),
        ("src/unlockstep/core/window.py", "from unlockstep.core import merge"),
        ("src/unlockstep/core/merge.py", "import torch"),
        ("src/unlockstep/core/__init__.py", "from ..net import api"),
        ("src/unlockstep/net/wire/api.py", "from unlockstep import sim"),
        ("src/unlockstep/net/wire/api.py", "def late() -> None:\n    import torch"),
        ("src/unlockstep/net/wire/api.py", "from unlockstep.net.access import gate"),
        ("src/unlockstep/net/clients/learner.py", "from unlockstep.net.syncer import service"),
        ("src/unlockstep/sim/world.py", "import unlockstep.net.wire.api"),
        ("src/unlockstep/loop.py", "from unlockstep.learners.torch_backend import TorchBackend"),
        ("src/unlockstep/report/page.py", "from unlockstep.config import RunConfig"),
        ("src/unlockstep/launch/local.py", "from unlockstep.net.wire.api import ROUTES"),
        ("src/unlockstep/launch/local.py", "from unlockstep.chaos.supervisor import Supervisor"),
        ("src/unlockstep/chaos/supervisor.py", "from unlockstep.net.clients.observer import read_status"),
        ("src/unlockstep/attic/old.py", "import math"),
    ],
)
def test_a_forbidden_import_is_seen(path: str, statement: str) -> None:
    assert len(list(forbidden_import(Source(path, statement), IMPORTS))) == 1


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("src/unlockstep/core/window.py", "import math\nimport msgspec\nfrom .ids import seconds"),
        (
            "src/unlockstep/core/merge.py",
            "import numpy.typing as npt\nfrom .chunks import run\nfrom .layout import Slot",
        ),
        ("src/unlockstep/loop.py", "from unlockstep.learners.backend import FloatArray"),
        ("src/unlockstep/net/syncer/resources.py", "from unlockstep import __version__"),
        ("src/unlockstep/cli/__init__.py", "import torch\nfrom unlockstep import net, sim, __version__"),
    ],
)
def test_an_allowed_import_is_not(path: str, statement: str) -> None:
    assert list(forbidden_import(Source(path, statement), IMPORTS)) == []

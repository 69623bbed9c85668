"""What the settings of a syncer may name where nobody has said that it is trusted."""

from __future__ import annotations

import pytest

from unlockstep import config as run_config
from unlockstep.cli.trust import require_trusted
from unlockstep.config import RunConfig
from unlockstep.core.errors import UsageError
from unlockstep.models.presets import PRESETS

NAMED = {
    "code": ("model.spec=os:system", "model.spec of the syncer is 'os:system', code that would run here"),
    "a model's file": ("model.spec=/etc/model.json", "a file of this machine"),
    "both": ("model.spec=a:b.json", "a file of this machine"),
    "a folder": ("data.source=/etc", "which would be trained into the model of all"),
    "a secret": ("data.source=~/.ssh/id_rsa", "which would be trained into the model of all"),
    "a tokenizer": ("data.tokenizer=/etc/passwd", "a file of this machine"),
}


@pytest.mark.parametrize("case", NAMED)
def test_what_is_on_this_machine_is_for_a_syncer_that_is_trusted(case: str) -> None:
    override, sentence = NAMED[case]
    config = run_config.apply(RunConfig(), [override])
    with pytest.raises(UsageError, match=r"say --trust-syncer if whoever runs the syncer may name it") as error:
        require_trusted(config, is_trusted=False)
    assert sentence in str(error.value)
    require_trusted(config, is_trusted=True)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_comes_with_the_program_anybody_may_name(preset: str) -> None:
    require_trusted(run_config.apply(RunConfig(), [f"model.spec={preset}"]), is_trusted=False)


@pytest.mark.parametrize("source", ["stdlib", "digits"])
def test_data_that_comes_with_python_packages_anybody_may_name(source: str) -> None:
    require_trusted(run_config.apply(RunConfig(), [f"data.source={source}"]), is_trusted=False)

"""Every complaint about a configuration says field, value and fix; a valid one survives being written and read back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from unlockstep import config
from unlockstep.config import OUTER_OPTIMIZERS, RunConfig
from unlockstep.core.adoption import Adoption
from unlockstep.core.errors import ConfigError
from unlockstep.core.formats import Codec
from unlockstep.core.outer import outer_optimizer

COMPLAINTS = {
    # wrong type
    "protocol.quorum=two": "protocol.quorum is 'two'; it must be a whole number",
    "protocol.quorum=1.5": "protocol.quorum is 1.5; it must be a whole number",
    "protocol.quorum=true": "protocol.quorum is True; it must be a whole number",
    "inner.beta1=high": "inner.beta1 is 'high'; it must be a number",
    "local.evaluator=yes": "local.evaluator is 'yes'; it must be true or false",
    "run.name=12": "run.name is 12; it must be text in quotes",
    "local.slowdown=2": "local.slowdown is 2; it must be a list of numbers in brackets",
    "local.slowdown=[1, 'x']": "local.slowdown is [1, 'x']; it must be a list of numbers in brackets",
    "codec.upload=float8": "codec.upload is 'float8'; it must be one of float32, bfloat16, int8, int4, int2",
    "codec.upload_rounding=stochastic": "codec.upload_rounding is 'stochastic'; codec.upload and its fallbacks",
    "codec.upload_fallbacks=['float32']": "codec.upload_fallbacks is ['float32']; each must be coarser",
    "codec.upload_fallbacks=['int4', 'int8']": "codec.upload_fallbacks is ['int4', 'int8']; each must be coarser",
    "codec.upload_fallbacks=['int5']": "codec.upload_fallbacks is ['int5']; it must be a list in brackets, each one of",
    "codec.upload=8": "codec.upload is 8; it must be one of float32, bfloat16, int8, int4, int2",
    "outer.merge=median": "outer.merge is 'median'; it must be one of mean, rda",
    # unknown names
    "protocol.quorm=2": "protocol.quorm is not a setting; did you mean protocol.quorum?",
    "inner.lr=2": "inner.lr is not a setting; choose one of learning_rate, beta1",
    "protocl.quorum=2": "protocl is not a section; did you mean protocol?",
    "x.quorum=2": "x is not a section; choose one of run, model, data",
    "quorum=2": "override 'quorum=2' is not a setting; write section.field=value",
    "protocol.quorum": "override 'protocol.quorum' is not a setting; write section.field=value",
    # ranges
    "run.name=a b": "run.name is 'a b'; use letters, digits, _ and -",
    "run.seed=-1": "run.seed is -1; it must be a whole number from 0 to 2**63 - 1",
    "run.seed=9223372036854775808": "run.seed is 9223372036854775808; it must be a whole number from 0 to 2**63 - 1",
    "run.steps=-1": "run.steps is -1; it must be at least 0",
    "run.tokens=-1": "run.tokens is -1; it must be at least 0",
    "model.spec=": "model.spec is ''; it must not be empty",
    "data.source=": "data.source is ''; it must not be empty",
    "data.text_field=": "data.text_field is ''; it must not be empty",
    "data.tokenizer=": "data.tokenizer is ''; it must not be empty",
    "data.sequence_length=0": "data.sequence_length is 0; it must be at least 1",
    "data.validation_share=0": "data.validation_share is 0.0; it must lie between 0 and 1",
    "data.validation_share=1": "data.validation_share is 1.0; it must lie between 0 and 1",
    "inner.learning_rate=0": "inner.learning_rate is 0.0; it must be above 0 and finite",
    "inner.learning_rate=nan": "inner.learning_rate is nan; it must be above 0 and finite",
    "inner.learning_rate=inf": "inner.learning_rate is inf; it must be above 0 and finite",
    "inner.beta1=1": "inner.beta1 is 1.0; it must be from 0 up to, but not including, 1",
    "inner.beta2=-0.1": "inner.beta2 is -0.1; it must be from 0 up to, but not including, 1",
    "inner.weight_decay=-1": "inner.weight_decay is -1.0; it must be at least 0 and finite",
    "inner.gradient_norm_max=-1": "inner.gradient_norm_max is -1.0; it must be at least 0 and finite",
    "inner.warmup_steps=-1": "inner.warmup_steps is -1; it must be at least 0",
    "inner.schedule=linear": "inner.schedule is 'linear'; choose one of cosine, constant",
    "inner.final_share=1.5": "inner.final_share is 1.5; it must be from 0 to 1",
    "inner.batch_size=0": "inner.batch_size is 0; it must be at least 1",
    "inner.accumulation=0": "inner.accumulation is 0; it must be at least 1",
    "inner.threads=-1": "inner.threads is -1; it must be at least 0",
    "outer.optimizer=adam": "outer.optimizer is 'adam'; choose one of nesterov, sgd",
    "outer.learning_rate=-1": "outer.learning_rate is -1.0; it must be above 0 and finite",
    "outer.momentum=1": "outer.momentum is 1.0; it must be from 0 up to, but not including, 1",
    "adoption.blend_alpha=1.01": "adoption.blend_alpha is 1.01; it must be from 0 to 1",
    "protocol.interval_steps=0": "protocol.interval_steps is 0; it must be at least 1",
    "limits.norm_max=0": "limits.norm_max is 0.0; it must be above 0 and finite",
    "limits.outlier_factor=-1": "limits.outlier_factor is -1.0; it must be at least 0 and finite",
    "limits.tokens_per_step_max=0": "limits.tokens_per_step_max is 0; it must be at least 1",
    "evaluation.interval_s=0": "evaluation.interval_s is 0.0; it must be above 0 and finite",
    "evaluation.batches=0": "evaluation.batches is 0; it must be at least 1",
    "evaluation.batch_size=0": "evaluation.batch_size is 0; it must be at least 1",
    "local.learners=0": "local.learners is 0; it must be at least 1",
    "local.threads_syncer=0": "local.threads_syncer is 0; it must be at least 1",
    "local.restarts_max=-1": "local.restarts_max is -1; it must be at least 0",
    "local.kill_share=1": "local.kill_share is 1.0; it must be from 0 up to, but not including, 1",
    "local.kill_down_s=-1": "local.kill_down_s is -1.0; it must be at least 0 and finite",
    "local.slowdown=[0.5]": "local.slowdown is [0.5]; every entry must be at least 1 and finite",
    "local.slowdown=[1, 1, 1, 1, 1]": "it has 5 entries for 4 learners (local.learners): one each at most",
    # relations between sections
    "run.steps=0": "run.steps and run.tokens are both 0, so the run would never end; set one of them",
    "protocol.quorum=5": "protocol.quorum is 5 but local.learners is 4; no round could ever close",
    "protocol.learners_max=3": "local.learners is 4 but protocol.learners_max is 3; start fewer learners or admit more",
    "protocol.overlap_steps=9": "protocol.overlap_steps is 9 but protocol.interval_steps is 4; a round must be over",
}


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config.loads(text)
    return str(caught.value)


@pytest.mark.parametrize("override", COMPLAINTS)
def test_a_complaint_names_field_value_and_fix(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.apply(RunConfig(), [override])
    assert COMPLAINTS[override] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_are_toml_and_bare_words_are_text() -> None:
    overrides = ["data.source=books/", "run.name = night", "codec.upload=float32", "local.slowdown=[1, 5]"]
    changed = config.apply(RunConfig(), [*overrides, "adoption.mode='blend'", "inner.learning_rate=1e-4", "run.seed=7"])
    assert changed.data.source == "books/"
    assert changed.run.name == "night"
    assert changed.codec.upload is Codec.FLOAT32
    assert changed.local.slowdown == (1.0, 5.0)
    assert changed.adoption.mode is Adoption.BLEND
    assert changed.inner.learning_rate == 1e-4
    assert changed.run.seed == 7


def test_overrides_are_checked_only_once_all_of_them_are_in() -> None:
    assert config.apply(RunConfig(), ["protocol.quorum=6", "local.learners=6"]).protocol.quorum == 6


def test_of_two_overrides_for_one_field_the_last_counts() -> None:
    assert config.apply(RunConfig(), ["run.steps=5", "run.steps=6"]).run.steps == 6


def test_an_override_sets_one_field_whatever_its_text() -> None:
    assert config.apply(RunConfig(), ["data.source=1\nother = 2"]).data.source == "1\nother = 2"


def test_a_falling_rate_needs_an_end_to_fall_towards() -> None:
    with pytest.raises(ConfigError, match=r"inner\.schedule is 'cosine' but run\.steps is 0"):
        config.apply(RunConfig(), ["run.steps=0", "run.tokens=1000"])
    assert config.apply(RunConfig(), ["run.steps=0", "run.tokens=1000", "inner.schedule=constant"]).run.tokens == 1000


def test_settings_left_out_have_their_defaults() -> None:
    assert config.loads("") == RunConfig()
    assert config.loads("[protocol]\nquorum = 2").protocol.quorum == 2


def test_a_section_must_be_a_table() -> None:
    assert complaint("protocol = 3") == "protocol is 3; it must be a section that begins with [protocol]"
    assert complaint("[protocol.quorum]\nx = 1") == "protocol.quorum is {'x': 1}; it must be a whole number"


def test_checks_run_wherever_a_configuration_is_built() -> None:
    with pytest.raises(ConfigError, match=r"run\.steps is -1"):
        config.RunSection(steps=-1)


def test_a_file_is_read_and_what_is_wrong_with_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(ConfigError, match=r"run\.toml does not exist; check the path"):
        config.load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"run\.toml is not UTF-8 text; save it as UTF-8 TOML"):
        config.load(path)
    path.write_text("steps = 1 2", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.toml is not TOML \(.*line 1.*\); correct it there"):
        config.load(path)
    path.write_text("protocol = 3", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^configuration file .*run\.toml: protocol is 3; it must be a section"):
        config.load(path)
    path.write_text(config.dumps(RunConfig()), encoding="utf-8")
    assert config.load(path) == RunConfig()


def test_the_digest_tells_settings_apart() -> None:
    default = RunConfig()
    assert config.digest(default) == config.digest(config.loads(config.dumps(default)))
    assert config.digest(default) != config.digest(config.apply(default, ["run.seed=1"]))


def test_every_outer_optimizer_offered_exists() -> None:
    for name in OUTER_OPTIMIZERS:
        assert outer_optimizer(name, 1.0, 0.0).init(3).size in (0, 3)


def test_numbers_are_written_so_that_they_come_back_the_same() -> None:
    changed = config.apply(RunConfig(), ["inner.learning_rate=0.1", f"limits.norm_max={math.pi!r}"])
    assert config.loads(config.dumps(changed)) == changed

"""Laws of the configuration: what is valid survives TOML, and whatever is written there raises nothing unforeseen."""

from __future__ import annotations

import contextlib

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from unlockstep import config
from unlockstep.core.adoption import Adoption
from unlockstep.core.errors import ConfigError
from unlockstep.core.formats import Codec
from unlockstep.core.merge import MergeRule
from unlockstep.core.options import Anchor, Late, Participation, ProtocolOptions

counts = st.integers(1, 2**20)
naturals = st.integers(0, 2**40)
shares = st.floats(0, 1)
shares_below_one = st.floats(0, 1, exclude_max=True)
positives = st.floats(0, 1e300, exclude_min=True)
non_negatives = st.floats(0, 1e300)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@st.composite
def protocols(draw: st.DrawFn, learners: int) -> ProtocolOptions:
    interval_steps = draw(st.integers(1, 2**20))
    return ProtocolOptions(
        fragments=draw(counts),
        layout=draw(st.sampled_from(["balanced", "tensor", "layer"])),
        interval_steps=interval_steps,
        overlap_steps=draw(st.integers(0, interval_steps)),
        quorum=draw(st.integers(1, learners)),
        participation=draw(st.sampled_from(Participation)),
        late=draw(st.sampled_from(Late)),
        anchor=draw(st.sampled_from(Anchor)),
        grace_factor=draw(shares_below_one),
        grace_cap_steps=draw(st.floats(0, 2**20)),
        average_weight=draw(st.floats(0, 1, exclude_min=True)),
        staleness_max=draw(naturals),
        lease_s=draw(st.floats(0.05, 86_400)),
        learners_max=draw(st.integers(learners, 2**20)),
    )


@st.composite
def configs(draw: st.DrawFn) -> config.RunConfig:
    learners = draw(st.integers(1, 50))
    return config.RunConfig(
        run=config.RunSection(
            name=draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True)),
            seed=draw(st.integers(0, 2**63 - 1)),
            steps=draw(counts),
            tokens=draw(naturals),
        ),
        model=config.ModelSection(spec=draw(texts)),
        data=config.DataSection(source=draw(texts), validation_share=draw(shares_below_one.filter(bool))),
        inner=config.InnerSection(
            learning_rate=draw(positives),
            beta1=draw(shares_below_one),
            weight_decay=draw(non_negatives),
            schedule=draw(st.sampled_from(config.SCHEDULES)),
            final_share=draw(shares),
            batch_size=draw(counts),
        ),
        outer=config.OuterSection(
            optimizer=draw(st.sampled_from(config.OUTER_OPTIMIZERS)),
            momentum=draw(shares_below_one),
            merge=draw(st.sampled_from(MergeRule)),
        ),
        adoption=config.AdoptionSection(mode=draw(st.sampled_from(Adoption)), blend_alpha=draw(shares)),
        codec=config.CodecSection(upload=draw(st.sampled_from(Codec)), download=draw(st.sampled_from(Codec))),
        protocol=draw(protocols(learners)),
        limits=config.LimitsSection(norm_max=draw(positives)),
        evaluation=config.EvaluationSection(interval_s=draw(positives)),
        local=config.LocalSection(
            learners=learners,
            evaluator=draw(st.booleans()),
            kill_share=draw(shares_below_one),
            slowdown=tuple(draw(st.lists(st.floats(1, 1e300), max_size=learners))),
        ),
    )


@given(configs())
def test_a_configuration_written_as_toml_reads_back_equal(valid: config.RunConfig) -> None:
    assert config.loads(config.dumps(valid)) == valid


toml_values = st.recursive(
    st.integers() | st.floats() | st.booleans() | st.text() | st.dates() | st.times(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
section_names = st.sampled_from(config.RunConfig.__struct_fields__) | st.text(max_size=5)
field_names = st.sampled_from(["quorum", "steps", "slowdown", "upload", "source", "evaluator"]) | st.text(max_size=5)


@given(st.dictionaries(section_names, st.dictionaries(field_names, toml_values, max_size=4) | toml_values, max_size=4))
def test_any_toml_gives_a_configuration_or_one_sentence(settings: dict[str, object]) -> None:
    text = tomli_w.dumps(settings)
    with contextlib.suppress(ConfigError):
        config.loads(text)


@given(st.text())
def test_any_text_gives_a_configuration_or_one_sentence(text: str) -> None:
    with contextlib.suppress(ConfigError):
        config.loads(text)


@given(section_names, field_names, st.text())
def test_any_override_gives_a_configuration_or_one_sentence(section: str, field: str, text: str) -> None:
    with contextlib.suppress(ConfigError):
        config.apply(config.RunConfig(), [f"{section}.{field}={text}"])

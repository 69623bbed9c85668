"""What a model's name may say, the loss of a model, and the files it is saved to."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_model
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from support.full_disk import files_of_at_most
from unlockstep.core.errors import UsageError
from unlockstep.models import build_model, causal_loss, positions_max, save_model

LLAMA = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


class Bigram(nn.Module):
    """Logits from the last token alone; the head is tied to the embedding."""

    def __init__(self, vocabulary_size: int = 7) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, 4)
        self.head = nn.Linear(4, vocabulary_size, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


def uniform_model() -> nn.Module:
    class Uniform(nn.Module):
        def forward(self, tokens: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=torch.zeros(*tokens.shape, 10))

    return Uniform()


not_callable = 3


def not_a_module() -> str:
    return "text"


def needs_more(vocabulary_size: int, width: int) -> nn.Module:
    raise AssertionError("never called")


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> str:
    """This very file as an importable module, for import paths."""
    monkeypatch.setitem(sys.modules, "my_models", sys.modules[__name__])
    return "my_models"


def config_file(folder: Path, **changes: object) -> str:
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    return str(folder / "config.json")


def equal(one: nn.Module, other: nn.Module) -> bool:
    mine, others = one.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


def test_equal_seeds_give_equal_parameters_and_others_do_not(tmp_path: Path):
    spec = config_file(tmp_path)
    assert equal(build_model(spec, 256, seed=1), build_model(spec, 256, seed=1))
    assert not equal(build_model(spec, 256, seed=1), build_model(spec, 256, seed=2))


def test_building_leaves_the_random_state_alone(tmp_path: Path):
    before = torch.get_rng_state()
    build_model(config_file(tmp_path), 256, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_config_file_keeps_its_own_vocabulary(tmp_path: Path):
    assert build_model(config_file(tmp_path), 256, seed=0).get_input_embeddings().weight.shape == (300, 16)


def test_config_file_with_too_small_a_vocabulary_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"has vocab_size 300, fewer than the 301 token ids .*: set vocab_size"):
        build_model(config_file(tmp_path), 301, seed=0)


@pytest.mark.parametrize("content", [None, "not json", "[]", "{}"])
def test_config_file_that_cannot_be_read_is_refused(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=r"model\.spec = '.*config\.json' .* a transformers config.json.*`model_type`"):
        build_model(str(tmp_path / "config.json"), 256, seed=0)


@pytest.mark.parametrize("changes", [{"model_type": "no_such"}, {"model_type": "t5"}, {"num_attention_heads": 7}])
def test_config_file_of_no_causal_language_model_is_refused_in_one_short_line(tmp_path: Path, changes: dict):
    with pytest.raises(UsageError, match=r"does not make a causal language model \(.*\): mend the file") as refused:
        build_model(config_file(tmp_path, **changes), 256, seed=0)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_import_path_is_called_with_the_vocabulary_if_it_takes_it(importable: str):
    assert build_model(f"{importable}:Bigram", 11, seed=0).embedding.weight.shape == (11, 4)
    assert type(build_model(f"{importable}:uniform_model", 11, seed=0)).__name__ == "Uniform"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("lama-tiny", r"'lama-tiny' is not a model: give one of gemma4-moe-tiny, .*, llama-tiny, the path"),
        ("no_such.package:f", r"importing 'no_such\.package' fails \(ModuleNotFoundError: .*\): .* PYTHONPATH"),
        ("my_models:absent", r"my_models has no callable 'absent': name a function or a class"),
        ("my_models:not_callable", r"my_models has no callable 'not_callable'"),
        ("my_models:not_a_module", r"returned str: return a torch\.nn\.Module from 'not_a_module'"),
        ("my_models:needs_more", r"cannot be called \(.*'width'\): give every argument but vocabulary_size a default"),
    ],
)
def test_spec_that_leads_to_no_model_is_refused(importable: str, spec: str, sentence: str):
    with pytest.raises(UsageError, match=r"^model\.spec = .*" + sentence):
        build_model(spec, 256, seed=0)


def test_loss_of_equal_logits_is_the_log_of_their_number():
    assert causal_loss(uniform_model(), torch.zeros(3, 5, dtype=torch.int64)).item() == pytest.approx(math.log(10))


def test_loss_is_the_mean_negative_log_probability_of_the_next_token():
    model, batch = Bigram(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    log_probability = functional.log_softmax(model(batch[:, :-1]), dim=-1)
    expected = -sum(log_probability[b, t, batch[b, t + 1]] for b in range(2) for t in range(2)) / 4
    torch.testing.assert_close(causal_loss(model, batch), expected)


def test_loss_of_a_transformers_model_equals_its_own(tmp_path: Path):
    model = build_model(config_file(tmp_path), 256, seed=0)
    batch = torch.arange(18).reshape(2, 9)
    torch.testing.assert_close(causal_loss(model, batch), model(batch, labels=batch).loss)


def test_loss_is_float32_for_a_bfloat16_model():
    assert causal_loss(Bigram().bfloat16(), torch.tensor([[1, 2, 3]])).dtype == torch.float32


@pytest.mark.parametrize("spec", ["config", "llama-tiny", "gemma4-tiny"])
def test_saved_transformers_model_loads_with_the_same_logits_and_ties(tmp_path: Path, spec: str):
    """C14."""
    model = build_model(config_file(tmp_path) if spec == "config" else spec, 256, seed=3).eval()
    save_model(model, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    tokens = torch.arange(20).reshape(2, 10)
    assert torch.equal(model(tokens).logits, loaded(tokens).logits)
    tied = [m.get_input_embeddings().weight is m.get_output_embeddings().weight for m in (model, loaded)]
    assert tied[0] == tied[1] == (spec != "config")


def test_saved_module_loads_with_the_same_weights_and_ties(tmp_path: Path):
    """C14."""
    model, loaded = Bigram(), Bigram()
    save_model(model, tmp_path / "model")
    load_model(loaded, str(tmp_path / "model" / "model.safetensors"))
    assert equal(model, loaded)
    assert loaded.head.weight is loaded.embedding.weight


def test_saving_replaces_a_saved_model_and_leaves_nothing_else(tmp_path: Path):
    first, second, loaded = Bigram(), Bigram(), Bigram()
    save_model(first, tmp_path / "model")
    save_model(second, tmp_path / "model")
    load_model(loaded, str(tmp_path / "model" / "model.safetensors"))
    assert equal(second, loaded)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_saving_over_other_files_is_refused_and_leaves_them(tmp_path: Path):
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(UsageError, match=r"cannot be saved to .*, which holds other files: name a new folder"):
        save_model(Bigram(), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.json"]


def test_saving_below_a_file_is_refused_and_leaves_nothing(tmp_path: Path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(UsageError, match=r"the model cannot be saved to .* \(.*\): name a folder you can write to"):
        save_model(Bigram(), tmp_path / "file" / "model")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_link_to_a_saved_model_stays_one(tmp_path: Path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "model")
    for size in (2, 3):
        save_model(nn.Linear(size, size), tmp_path / "link")
        load_model(nn.Linear(size, size), tmp_path / "there" / "model" / "model.safetensors")
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["model"]


@pytest.mark.parametrize("spec", ["llama-tiny", "module"])
def test_a_full_disk_is_an_error_of_the_operating_system_and_leaves_nothing(tmp_path: Path, spec: str):
    model = nn.Linear(100, 100) if spec == "module" else build_model(spec, 256, seed=0)
    with files_of_at_most(10_000), pytest.raises(OSError, match=f"File too large: '{tmp_path / 'model'}'"):
        save_model(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_failed_save_leaves_the_model_saved_before(tmp_path: Path):
    class Unsavable(Bigram):
        def get_extra_state(self) -> str:
            return "not a tensor"

    model, loaded = Bigram(), Bigram()
    save_model(model, tmp_path / "model")
    with pytest.raises(AttributeError):
        save_model(Unsavable(), tmp_path / "model")
    load_model(loaded, str(tmp_path / "model" / "model.safetensors"))
    assert equal(model, loaded)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_only_a_table_of_positions_limits_the_sequence(tmp_path: Path) -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "vocab_size": 256, "n_layer": 1, "n_positions": 64}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(gpt2))
    assert positions_max(build_model(str(file), 256, 0)) == 64
    assert positions_max(build_model("llama-tiny", 256, 0)) is None


def test_a_factory_that_raises_is_the_user_s_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "booming.py").write_text("def boom():\n    raise RuntimeError('boom in factory')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"model.spec = 'booming:boom' fails \(RuntimeError: boom in factory\): mend"):
        build_model("booming:boom", 256, 0)


def test_a_full_disk_is_not_blamed_on_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "filled.py").write_text(
        "def fill():\n    try:\n        raise OSError(28, 'No space left on device')\n"
        "    except OSError:\n        raise RuntimeError('no cache')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"cannot be built, for .*No space left on device.*make room") as raised:
        build_model("filled:fill", 256, 0)
    assert "mend" not in str(raised.value)


def test_a_preset_without_transformers_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs transformers, which is not installed here: pip install 'unlockstep"):
        build_model("llama-tiny", 256, seed=0)

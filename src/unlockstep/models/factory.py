"""From a model's name to a module, from a module to its loss and to files.

Decides what ``model.spec`` may say and what a model must do to be trained: take int64 tokens [B, T], return logits
[B, T, V] or an object with them as ``.logits``. Does not decide shapes (``presets``) or how a model is trained.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unlockstep.core.errors import UsageError
from unlockstep.files import DISK_FULL
from unlockstep.models.presets import PRESETS

if TYPE_CHECKING:
    from torch import Tensor, nn

TEXT = "text"
"""The score that every model has."""


def build_model(spec: str, vocabulary_size: int, seed: int) -> nn.Module:
    """Build the model that ``spec`` names: equal seeds give equal parameters, on the CPU and in float32.

    The caller's random state is neither used nor changed.

    Args:
        spec: a preset of ``PRESETS``; or the path of a transformers ``config.json`` of a causal language model; or
            ``package.module:factory``, a callable that returns a module (``vocabulary_size=`` is given if it takes it).
        vocabulary_size: every token id the data can hold is below it.
        seed: of the parameters' initial values.

    Raises:
        UsageError: no such preset, a file that cannot be read or is no causal language model, a vocabulary too small,
            an import path that does not lead to a callable or a callable that returns no module.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if (spec in PRESETS or spec.endswith(".json")) and importlib.util.find_spec("transformers") is None:
            raise UsageError(
                f"model.spec = {spec!r} needs transformers, which is not installed here: pip install "
                "'unlockstep[torch]'"
            )
        if spec in PRESETS:
            return PRESETS[spec](vocabulary_size)
        if spec.endswith(".json"):
            return _from_config_file(spec, vocabulary_size)
        if ":" in spec:
            return _from_import_path(spec, vocabulary_size)
    raise UsageError(
        f"model.spec = {spec!r} is not a model: give one of {', '.join(sorted(PRESETS))}, "
        "the path of a transformers config.json, or package.module:factory"
    )


def causal_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in nats per token: scalar float32.

    ::

        loss = -1/(B T) sum_{b, t} log softmax(model(batch[:, :-1]))[b, t, batch[b, t + 1]]

    A model with ``named_targets`` is asked for those only (``models.vision``); for none of them the loss is 0.

    Args:
        model: takes int64 [B, T]; returns logits [B, T, V] or an object with ``.logits``.
        batch: int64 [B, T + 1], on the model's device.
    """
    from torch.nn import functional

    logits, asked = _logits(model, batch), named_targets(model, batch)
    if asked.keys() == {TEXT}:
        return functional.cross_entropy(logits, asked[TEXT].flatten())
    losses = [functional.cross_entropy(logits, targets.flatten(), reduction="sum") for targets in asked.values()]
    return sum(losses, logits.new_zeros(())) / max(1, sum(int((t >= 0).sum()) for t in asked.values()))


def causal_scores(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
    """What a batch adds to each score of a model: name to float64 [3], nats and right answers in sum, and targets.

    Every model has ``text``; one with ``named_targets`` has what it names. Arguments as of ``causal_loss``.
    """
    import torch
    from torch.nn import functional

    logits, sums = _logits(model, batch), {}
    for name, targets in named_targets(model, batch).items():
        nats = functional.cross_entropy(logits, targets.flatten(), reduction="sum")
        hits = (logits.argmax(-1) == targets.flatten()).sum()
        sums[name] = torch.stack([part.double() for part in (nats, hits, (targets >= 0).sum())])
    return sums


def named_targets(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
    """What a model is asked to say next, int64 [B, T] by the name of the score: what it says itself, or all of it."""
    choose = getattr(model, "named_targets", None)
    return {TEXT: batch[:, 1:]} if choose is None else choose(batch)


def _logits(model: nn.Module, batch: Tensor) -> Tensor:
    """Float32 [B T, V]."""
    # A key-value cache is of no use in training; whoever loads the saved model to generate text wants it on.
    options = {"use_cache": False} if _is_transformers(model) else {}
    output = model(batch[:, :-1], **options)
    logits: Tensor = getattr(output, "logits", output)
    return logits.flatten(0, 1).float()


def positions_max(model: nn.Module) -> int | None:
    """Longest sequence the model has positions for; None if it does not say, or has no table of them."""
    config = getattr(model, "config", None)
    # Rotary positions are computed, not looked up: only a table ends.
    return getattr(config, "n_positions", None)


def check_can_save(folder: str | os.PathLike[str]) -> None:
    """Raises UsageError if ``save_model`` could not write there: to be asked before hours of training."""
    target = Path(folder)
    if target.exists() and not _can_be_replaced(target):
        raise UsageError(f"the model cannot be saved to {str(target)!r}, which holds other files: name a new folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(dir=target.parent)).rmdir()
    except OSError as error:
        raise UsageError(
            f"the model cannot be saved to {str(target)!r} ({error.strerror or error}): name a folder you can write to"
        ) from error


def save_model(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write ``model`` to ``folder``, whole or not at all; a model saved there before is replaced.

    A transformers model is loaded by ``transformers.AutoModelForCausalLM.from_pretrained(folder)``, one that sees by
    ``AutoModelForImageTextToText``. Any other module
    is written as ``model.safetensors``, tied weights once: ``safetensors.torch.load_model(module, file)`` reads it.

    Raises:
        UsageError: ``folder`` holds something else, or cannot be written.
        OSError: the disk is full.
    """
    target = Path(os.path.realpath(folder))  # A link to a folder stays one.
    check_can_save(folder)
    written = target.with_name(f".{target.name}.{os.getpid()}.written")
    replaced = target.with_name(f".{target.name}.{os.getpid()}.replaced")
    try:
        written.mkdir(parents=True)
        _write(model, written)
        for file in written.iterdir():  # safetensors writes for its owner alone
            file.chmod(written.stat().st_mode & 0o666)
        if target.exists():
            target.rename(replaced)
        written.rename(target)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise OSError(error.errno, os.strerror(error.errno), str(target)) from None
        raise UsageError(
            f"the model cannot be saved to {str(target)!r} ({error.strerror or error}): name a folder you can write to"
        ) from error
    finally:
        shutil.rmtree(written, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def _from_config_file(spec: str, vocabulary_size: int) -> nn.Module:
    path = Path(spec).expanduser()
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model.spec = {spec!r} cannot be read as a transformers config.json ({_first_words(error)}): "
            "give the path of a JSON file with a `model_type`"
        ) from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise UsageError(
            f"model.spec = {spec!r} is not a transformers config.json: give a JSON object with a `model_type`"
        )
    model_type = content["model_type"]
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(path)
        size = config.get_text_config().vocab_size
        model = AutoModelForCausalLM.from_config(config) if size >= vocabulary_size else None
    except Exception as error:  # transformers raises ValueError, KeyError, AttributeError and its own for a bad file
        _require_room(error)
        raise UsageError(
            f"model.spec = {spec!r} with model_type {model_type!r} does not make a causal language model "
            f"({_first_words(error)}): mend the file or give another"
        ) from error
    if model is None:
        raise UsageError(
            f"model.spec = {spec!r} has vocab_size {size}, fewer than the {vocabulary_size} token ids of the data: "
            f"set vocab_size in the file to at least {vocabulary_size} or choose another data.tokenizer"
        )
    return model


def _from_import_path(spec: str, vocabulary_size: int) -> nn.Module:
    from torch import nn

    module_name, _, name = spec.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), name, None)
    except Exception as error:  # importing runs the user's module, which may raise anything
        _require_room(error)
        raise UsageError(
            f"model.spec = {spec!r}: importing {module_name!r} fails ({_first_words(error)}): "
            "mend the name or the module, or put its folder on PYTHONPATH"
        ) from error
    if not callable(factory):
        raise UsageError(f"model.spec = {spec!r}: {module_name} has no callable {name!r}: name a function or a class")
    try:
        signature = inspect.signature(factory)
        arguments = {"vocabulary_size": vocabulary_size} if "vocabulary_size" in signature.parameters else {}
        signature.bind(**arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"model.spec = {spec!r} cannot be called ({error}): give every argument but vocabulary_size a default"
        ) from error
    try:
        model = factory(**arguments)
    except Exception as error:  # whatever the user's function raises
        _require_room(error)
        raise UsageError(f"model.spec = {spec!r} fails ({_first_words(error)}): mend {name!r}") from error
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"model.spec = {spec!r} returned {type(model).__name__}: return a torch.nn.Module from {name!r}"
        )
    return model


def _require_room(error: BaseException | None) -> None:
    """Raises UsageError if an error, or what it comes from, is that of a full disk, which is no fault of the model."""
    while error is not None:
        if isinstance(error, OSError) and (error.errno in DISK_FULL or "temporary directory" in str(error)):
            raise UsageError(f"the model cannot be built, for a disk is full ({error.strerror or error}): make room")
        error = error.__cause__ or error.__context__


def _first_words(error: Exception) -> str:
    """The kind of ``error`` and as much of its text as fits into a sentence: some list every model there is."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 240, placeholder=" ...")


def _is_transformers(model: nn.Module) -> bool:
    return hasattr(model, "save_pretrained") and hasattr(model, "config")


def _can_be_replaced(folder: Path) -> bool:
    """Whether ``folder`` is empty or holds a saved model and nothing else: never delete what somebody else wrote."""
    if not folder.is_dir():
        return False
    suffixes = {file.suffix for file in folder.iterdir()}
    return not suffixes or (".safetensors" in suffixes and suffixes <= {".safetensors", ".json"})


def _write(model: nn.Module, folder: Path) -> None:
    """Raises OSError if it cannot be written."""
    from safetensors import SafetensorError

    try:
        _write_with_safetensors(model, folder)
    except SafetensorError as error:  # It has what the operating system said in words.
        number = re.search(r"\(os error ([0-9]+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from None


def _write_with_safetensors(model: nn.Module, folder: Path) -> None:
    if _is_transformers(model):
        from transformers.utils import logging

        bars_shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            model.save_pretrained(folder)  # type: ignore[operator]
        finally:
            if bars_shown:
                logging.enable_progress_bar()
    else:
        from safetensors import torch as safetensors_torch

        safetensors_torch.save_model(model, str(folder / "model.safetensors"))

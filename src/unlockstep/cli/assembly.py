"""From a configuration to what trains and what validates: text, model, backend.

Decides which section feeds which part. ``learner`` and ``evaluator`` build from here, so that both see one model and
one split of the text. Needs torch, and says so where there is none.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import nn

    from unlockstep.config import RunConfig
    from unlockstep.learners.torch_backend import TorchBackend


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a run, split."""

    training: npt.NDArray[Any]
    validation: npt.NDArray[Any]
    vocabulary_size: int
    bytes_per_token: float


def require_torch(command: str) -> None:
    """Raises UsageError if what ``unlockstep COMMAND`` trains or validates with is not installed. Loads nothing."""
    from unlockstep.core.errors import UsageError

    try:
        is_there = importlib.util.find_spec("torch") is not None
    except ImportError:
        is_there = False
    if not is_there:
        raise UsageError(
            f"unlockstep {command} needs torch, which is not installed here: pip install 'unlockstep[torch]'"
        )


@contextmanager
def loading(config: RunConfig) -> Iterator[None]:
    """To be entered before torch is loaded: with as many threads as the run allows, without garbage collection, and
    with a folder for temporary files.

    torch makes its thread pools when it is loaded, by default one thread for every core. Loading it and transformers
    creates a million objects that stay: not looking through them again and again saves a quarter of the time, now and,
    since they are set aside for good, a pause in the middle of training.
    """
    if config.inner.threads:
        os.environ["OMP_NUM_THREADS"] = str(config.inner.threads)
    name_a_temporary_folder()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def name_a_temporary_folder() -> None:
    """Python finds the folder for temporary files by writing one, and torch asks for the folder while it is loaded. On
    a full disk there would be none, and no process could begin that has nothing to write there."""
    try:
        tempfile.gettempdir()
    except OSError:
        tempfile.tempdir = os.environ.get("TMPDIR") or "/tmp"


def load_text(config: RunConfig) -> Text:
    """Read, tokenize and split the corpus. Raises UsageError as ``data`` does."""
    from unlockstep.data import load_corpus, split_corpus

    data = config.data
    corpus = load_corpus(data.source, data.tokenizer, data.text_field)
    training, validation = split_corpus(corpus, data.sequence_length, data.validation_share)
    return Text(training, validation, corpus.vocabulary_size, corpus.bytes_per_token)


def new_model(config: RunConfig, text: Text) -> nn.Module:
    """The model, with the parameters that the run's seed gives it. Raises UsageError as ``models`` does."""
    from unlockstep.core.errors import UsageError
    from unlockstep.models import build_model, positions_max

    model = build_model(config.model.spec, text.vocabulary_size, config.run.seed)
    positions, length = positions_max(model), config.data.sequence_length
    if positions is not None and length > positions:
        raise UsageError(
            f"data.sequence_length is {length} but model.spec = {config.model.spec!r} has {positions} positions; "
            f"lower it to at most {positions}"
        )
    return model


RECIPE = "unlockstep learner"
"""What a process of the built-in recipe says of itself."""


def about_recipe(shard: int, shard_count: int) -> dict[str, str]:
    """What the run log should know of a process that trains ``new_backend``: all that its settings do not say, and what
    its bits depend on beside them."""
    import platform

    import torch

    return {
        "recipe": RECIPE,
        "shard": str(shard),
        "shards": str(shard_count),
        "torch": str(torch.__version__),
        "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def new_backend(
    config: RunConfig, shard: int, shard_count: int, text: Text | None = None, is_alone: bool = True
) -> TorchBackend:
    """What one learner trains: the run's model, an AdamW and its share of the training text, or what it is granted.

    Args:
        shard: which share, from 0.
        shard_count: how many there are; a learner beyond them shares with another, in another order.
        text: of the run, if it has been loaded.
        is_alone: it is the only learner in this process, whose random generators it draws from; otherwise it has its
            own.
    """
    import torch

    from unlockstep.config import Deal
    from unlockstep.data import LeasedStream, TokenStream
    from unlockstep.learners.random_states import OwnGenerators
    from unlockstep.learners.torch_backend import TorchBackend
    from unlockstep.models import causal_loss

    text = text or load_text(config)
    data, inner, seed = config.data, config.inner, config.run.seed
    stream: TokenStream | LeasedStream
    if data.deal is Deal.LEASES:
        stream = LeasedStream(
            text.training, data.sequence_length, inner.batch_size, seed, batches_per_step=inner.accumulation
        )
    else:
        stream = TokenStream(
            text.training, data.sequence_length, inner.batch_size, seed, shard=shard, shard_count=shard_count
        )
    model = new_model(config, text)
    # For dropout: every learner draws masks of its own.
    own_seed = config.run.seed + 1 + shard
    if is_alone:
        torch.manual_seed(own_seed)
    generators = nullcontext() if is_alone else OwnGenerators(own_seed)
    backend = TorchBackend(model, causal_loss, stream, config.inner, config.run.steps, generators=generators)
    backend.about = about_recipe(shard, shard_count)
    return backend

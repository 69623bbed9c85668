"""A learner's checkpoint: one safetensors file that is there whole, or was never there.

Decides what the file looks like, how it is found to be damaged, that the one before it is kept and used in its place,
and that writing holds up nobody. Does not decide what is in it (``torch_state``, ``random_states``,
``integrations.learner_checkpoint``) nor when it is written.

Any reader of safetensors opens it. The metadata hold two entries: ``unlockstep``, the facts as JSON, and ``sha256``
over these facts and, in order of name, the name, dtype, shape and bytes of every tensor.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from unlockstep.core.errors import UsageError
from unlockstep.files import remove_partial, whole
from unlockstep.learners.backend import State, TensorBits
from unlockstep.learners.records import dtype_name, tensor_of

SCHEMA = 1

_log = logging.getLogger(__name__)


class Checkpoint(msgspec.Struct, frozen=True):
    """What a file holds."""

    path: Path
    """Where it was found: the file asked for, or the one before it."""
    state: State
    passed_over: str = ""
    """Why the newer file was not used, a sentence; empty if it was."""


def previous_of(path: Path) -> Path:
    """Where the file is kept that was ``path`` before it was written last."""
    return path.with_name(f"{path.name}.previous")


def exists(path: Path) -> bool:
    """Whether there is something to load, damaged or not."""
    return path.exists() or previous_of(path).exists()


def save(path: Path, state: State, *, keep_previous: bool = True) -> None:
    """Write the file. Killed at any instant, this leaves what was there, or the new file, under one of the two names.

    Args:
        path: of the file; its folder is made.
        state: names of tensors and facts are free, but for the fact ``schema``.
        keep_previous: what ``path`` holds now stays as ``previous_of(path)``; False if it is known to be damaged.

    Raises:
        OSError: it cannot be written.
    """
    facts = json.dumps({"schema": SCHEMA, **state.facts})
    tensors = {name: tensor_of(bits) for name, bits in state.tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole(path, previous_of(path) if keep_previous else None) as partial,
        # safetensors writes under a name of its own first: in a folder of ours, whatever a killed process leaves of it
        # is found by ``remove_partial``.
        TemporaryDirectory(prefix=f"{partial.name}-", dir=path.parent) as folder,
    ):
        written = Path(folder) / path.name
        save_file(tensors, written, {"unlockstep": facts, "sha256": _digest(facts, state.tensors)})
        written.replace(partial)


def load(path: Path) -> Checkpoint:
    """The newest file that is sound: ``path``, else the one before it.

    Raises:
        UsageError: neither is; the sentence names each file and what is wrong with it.
    """
    reasons: list[str] = []
    for candidate in (path, previous_of(path)):
        try:
            return Checkpoint(candidate, _read(candidate), "; ".join(reasons))
        except UsageError as error:
            reasons.append(str(error))
    raise UsageError(f"{'; '.join(reasons)}: name another checkpoint, or remove it to start without one")


def _read(path: Path) -> State:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: _bits(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118, it is no dictionary
    except FileNotFoundError:
        raise UsageError(f"checkpoint {path} does not exist") from None
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise UsageError(f"checkpoint {path} cannot be read ({error})") from None
    facts = metadata.get("unlockstep")
    if facts is None or "sha256" not in metadata:
        raise UsageError(f"checkpoint {path} is no checkpoint of a learner")
    if metadata["sha256"] != _digest(facts, tensors):
        raise UsageError(f"checkpoint {path} is damaged: its content is not what was written")
    record: dict[str, Any] = json.loads(facts)
    schema = record.pop("schema")
    if schema != SCHEMA:
        raise UsageError(f"checkpoint {path} has schema {schema}, and this version reads {SCHEMA}")
    return State(tensors, record)


def _bits(tensor: torch.Tensor) -> TensorBits:
    """The tensor's own memory."""
    return TensorBits(dtype_name(tensor.dtype), tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy())


def _digest(facts: str, tensors: Mapping[str, TensorBits]) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        bits = tensors[name]
        digest.update(json.dumps([name, bits.dtype, bits.shape]).encode())
        digest.update(bits.data.data)
    return digest.hexdigest()


class CheckpointWriter:
    """Writes checkpoints in a thread of its own, one at a time. A write that fails is a warning: training goes on.

    Args:
        path: of the file. It belongs to one process at a time: what another has left half-written is removed.

    Raises:
        UsageError: ``path`` is a folder, or something else that is no file, or none can have its name.
    """

    def __init__(self, path: Path) -> None:
        try:
            if path.is_dir():
                raise UsageError(f"checkpoint {path} is a folder; name a file")
            # Reading a pipe would never end, and a device would be replaced.
            if "\0" in str(path) or (path.exists() and not path.is_file()):
                raise UsageError(f"checkpoint {str(path)!r} is no file; name one")
        except OSError as error:
            raise UsageError(f"checkpoint {path} cannot be a file ({error.strerror}); name another") from None
        self.path = path
        self.keep_previous = True
        """Whether what is there when the next file is written is worth keeping."""
        self._thread: threading.Thread | None = None
        remove_partial(path)

    @property
    def is_busy(self) -> bool:
        """Whether a write is under way."""
        return self._thread is not None and self._thread.is_alive()

    def write(self, state: State) -> None:
        """Begin to write, after the write that is under way, if one is. Not to be called from two threads."""
        self.wait()
        # Not a daemon: a process that ends by itself has written what it began.
        self._thread = threading.Thread(target=self._write, args=(state,), name="unlockstep-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, state: State) -> None:
        try:
            save(self.path, state, keep_previous=self.keep_previous)
            self.keep_previous = True
        except (OSError, SafetensorError) as error:  # safetensors has its own for a disk that is full
            _log.warning("checkpoint %s could not be written (%s); training goes on", self.path, error)

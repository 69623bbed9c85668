"""Fragments of any torch model: its tensors out to host memory as float32, and back in place.

Decides which tensors of a model a run synchronises, and under which name and role. Does not decide how they are dealt
to fragments (``core.layout``), when fragments move (``loop``), nor how the model trains: any loop and any optimizer may
stand around it, as long as the optimizer steps the model's own parameters (``check_optimizer``).

Tensors are looked up by module and attribute each time they move, since a module may replace them (a buffer that is
assigned to, ``load_state_dict(assign=True)``).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unlockstep.core.errors import UsageError
from unlockstep.core.layout import Layout, Role, TensorSpec, explain_difference
from unlockstep.core.words import counted
from unlockstep.learners.backend import FloatArray

_EMBEDDING_NAME = re.compile(r"lm_head|wte|wpe|\w*embed(ding)?s?(_tokens|_positions|_table)?")
"""What embeddings and output heads are called that are neither an ``nn.Embedding`` nor named by the model itself."""


class TorchStore:
    """The synchronised tensors of ``model``, read and written by fragment (``backend.FragmentStore``).

    Parameters that require a gradient now are synchronised, tied ones once, under their first name. Wrapped
    (``DistributedDataParallel``, ``torch.compile``) and plain models have the same names.

    Args:
        model: any module, on any device. Its dtypes and memory formats stay.
        embedding_names: the parameters, or modules of them, that are merged as embeddings (``Role.EMBEDDING``). None
            detects them: ``nn.Embedding``, what is tied to one, ``get_output_embeddings()``, and names such as
            ``lm_head``, ``wte`` or ``pos_embed``.
        buffers: ``"merge"`` synchronises persistent float buffers such as BatchNorm statistics, ``"local"`` leaves
            every learner its own. Other buffers are never synchronised.

    Raises:
        UsageError: no trainable parameter, a complex one, an unknown name in ``embedding_names`` or policy for buffers.

    Warns:
        UserWarning: parameters of fewer than 32 bits, which swallow small updates.
    """

    def __init__(
        self,
        model: nn.Module,
        embedding_names: Sequence[str] | None = None,
        buffers: Literal["merge", "local"] = "merge",
    ) -> None:
        if buffers not in ("merge", "local"):
            raise UsageError(f"buffers is {buffers!r}; choose merge or local")
        _check_values(model)
        plain = plain_names(model)
        embeddings = _embeddings(model, embedding_names, plain)
        found: list[tuple[str, Tensor, Role]] = [
            (name, tensor, Role.EMBEDDING if _memory(tensor) in embeddings else Role.PARAMETER)
            for name, tensor in _trainable_parameters(model)
        ]
        _check_parameters([(name, tensor) for name, tensor, _ in found])
        if buffers == "merge":
            found += [(name, tensor, Role.BUFFER) for name, tensor in _persistent_float_buffers(model)]
        self._places: dict[TensorSpec, tuple[nn.Module, str]] = {}
        for name, tensor, role in found:
            spec = TensorSpec(name=plain[name], shape=tuple(tensor.shape), dtype=_dtype_name(tensor.dtype), role=role)
            path, _, attribute = name.rpartition(".")
            self._places[spec] = (model.get_submodule(path), attribute)
        self._fragments: list[list[_Cut]] = []
        self._sizes: list[int] = []

    def tensors(self) -> Sequence[TensorSpec]:
        """Every synchronised tensor once, parameters in model order, then buffers."""
        return tuple(self._places)

    def bind(self, layout: Layout) -> None:
        """Take the layout by which the following calls read and write.

        Raises:
            UsageError: the layout is of another model.
        """
        if differences := explain_difference(self.tensors(), layout.specs()):
            raise UsageError(f"the layout is of another model than this: {differences[0]}; build both from one model")
        self._sizes = [layout.fragment_size(fragment) for fragment in range(layout.fragment_count)]
        self._fragments = [
            [_Cut(*self._places[slot.tensor], slot.offset, slot.stop, slot.tensor.shape) for slot in slots]
            for slots in layout.fragments
        ]

    @torch.no_grad()
    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        """A host copy of the fragment, float32[n]; into ``out`` if given. One copy per tensor, whatever its dtype."""
        values = np.empty(self._sizes[fragment], np.float32) if out is None else self._checked(fragment, out)
        host = torch.from_numpy(values)
        for cut in self._fragments[fragment]:
            cut.of(host).copy_(cut.tensor)
        return values

    @torch.no_grad()
    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        """Overwrite the fragment's tensors in place, rounded to their dtype, from ``values``: float32[n]."""
        host = _source_tensor(self._checked(fragment, values))
        for cut in self._fragments[fragment]:
            cut.tensor.copy_(cut.of(host))

    def _checked(self, fragment: int, values: FloatArray) -> FloatArray:
        if values.dtype != np.float32 or values.shape != (self._sizes[fragment],):
            raise ValueError(
                f"fragment {fragment} is float32[{self._sizes[fragment]}], not {values.dtype}{list(values.shape)}"
            )
        return values


class _Cut(NamedTuple):
    """Where a tensor lives in the model and in its fragment."""

    owner: nn.Module
    attribute: str
    start: int
    stop: int
    shape: tuple[int, ...]

    @property
    def tensor(self) -> Tensor:
        tensor: Tensor = getattr(self.owner, self.attribute)
        return tensor

    def of(self, fragment: Tensor) -> Tensor:
        return fragment[self.start : self.stop].view(self.shape)


def check_optimizer(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Check that together the ``optimizers`` of a learner step all trainable parameters of ``model``, and no others.

    Raises:
        UsageError: an optimizer steps tensors outside the model, such as float32 masters of its own: after the next
            step they would overwrite whatever the learner has adopted.

    Warns:
        UserWarning: a trainable parameter that no optimizer steps.
    """
    own = {id(parameter) for parameter in model.parameters()}
    stepped = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    foreign = ["x".join(map(str, p.shape)) or "scalar" for p in stepped if id(p) not in own]
    if foreign:
        raise UsageError(
            f"optimizer steps {counted(len(foreign), 'tensor')} outside the model (shapes {_listed(foreign)}), "
            "so the next step would undo an adoption: synchronise the module whose parameters the optimizer holds"
        )
    covered = {_memory(parameter) for parameter in stepped}
    plain = plain_names(model)
    missing = [plain[name] for name, p in _trainable_parameters(model) if _memory(p) not in covered]
    if missing:
        warnings.warn(
            f"the optimizer has no group for {counted(len(missing), 'trainable parameter')} ({_listed(missing)}): "
            "add them or set their requires_grad to False",
            stacklevel=2,
        )


def _source_tensor(values: FloatArray) -> Tensor:
    """A tensor in the memory of ``values``, only to be read: torch would warn of arrays that are read-only."""
    if values.flags.writeable:
        return torch.from_numpy(values)
    interface = {**values.__array_interface__, "data": (values.ctypes.data, False)}
    return torch.from_numpy(np.asarray(SimpleNamespace(__array_interface__=interface)))


def _trainable_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """In model order, each memory once."""
    seen: set[int] = set()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and _memory(parameter) not in seen:
            seen.add(_memory(parameter))
            yield name, parameter


def _persistent_float_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    persistent = model.state_dict(keep_vars=True).keys()
    for name, buffer in model.named_buffers():
        if name in persistent and buffer.is_floating_point():
            yield name, buffer


def _memory(tensor: Tensor) -> int:
    """Equal for tied tensors, also for those that share memory but not the ``nn.Parameter``."""
    return tensor.data_ptr() or id(tensor)


def plain_names(model: nn.Module) -> dict[str, str]:
    """Every name in ``model`` to the name it has there without wrappers."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    names += [name for name, _ in model.named_buffers(remove_duplicate=False)]
    plain = [".".join(part for part in name.split(".") if part != "_orig_mod") for name in names]
    # Only a prefix of all names: a model may well call one of its own parts "module".
    while plain and all(name.startswith("module.") for name in plain):
        plain = [name.removeprefix("module.") for name in plain]
    return dict(zip(names, plain, strict=True))


def _embeddings(model: nn.Module, chosen: Sequence[str] | None, plain: dict[str, str]) -> set[int]:
    """The memories of the parameters to be merged as embeddings."""
    parameters = [(plain[name], p) for name, p in model.named_parameters(remove_duplicate=False)]
    if chosen is not None:
        for entry in chosen:
            if not any(_is_part(name, entry) for name, _ in parameters):
                raise UsageError(
                    f"embedding_names has {entry!r}, which is no parameter or module of this model: "
                    f"choose among {_listed([name for name, _ in parameters])}"
                )
        return {_memory(p) for name, p in parameters if any(_is_part(name, entry) for entry in chosen)}
    found = [p for name, p in parameters if any(_EMBEDDING_NAME.fullmatch(part) for part in name.split(".")[-2:])]
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            found += module.parameters()
        get_output_embeddings = getattr(module, "get_output_embeddings", None)
        head = get_output_embeddings() if callable(get_output_embeddings) else None
        if isinstance(head, nn.Module):
            found += head.parameters()
    return {_memory(p) for p in found}


def _is_part(name: str, of: str) -> bool:
    return name == of or name.startswith(of + ".")


def _check_values(model: nn.Module) -> None:
    empty = [name for name, parameter in model.named_parameters() if parameter.is_meta or is_lazy(parameter)]
    if empty:
        raise UsageError(
            f"model has parameters without values ({_listed(empty)}): materialise them first (move the model off the "
            "meta device, run a lazy module once)"
        )


def _check_parameters(parameters: Sequence[tuple[str, Tensor]]) -> None:
    if not parameters:
        raise UsageError("model has no trainable parameter: set requires_grad to True on what the run shall train")
    complex_names = [name for name, parameter in parameters if parameter.is_complex()]
    if complex_names:
        raise UsageError(
            f"model has complex parameters ({_listed(complex_names)}), which cannot be merged: hold real and imaginary "
            "part as a last dimension of 2 (torch.view_as_real)"
        )
    narrow = [parameter.dtype for _, parameter in parameters if parameter.itemsize < 4]
    if narrow:
        coarsest = max(narrow, key=lambda dtype: torch.finfo(dtype).eps)
        smallest = f"1/{round(2 / torch.finfo(coarsest).eps)}"
        warnings.warn(
            f"{len(narrow)} of {len(parameters)} trainable parameters are {_dtype_name(coarsest)}, where an update "
            f"below {smallest} of a value vanishes: keep float32 parameters and compute in 16 bits (torch.autocast)",
            stacklevel=3,
        )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")

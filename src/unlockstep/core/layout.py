"""Which tensor lives in which fragment, and at which element: the map both ends must share before any number moves.

::

    tensors of the model ──> fragment 0: │ slot │ slot │      one fragment is merged, sent and adopted as one piece,
                             fragment 1: │ slot │             and is one flat float32 array in memory
                             ...

Decides the assignment (deterministic, the same on every machine) and its digest, and says in words how two models
differ. Does not decide how many fragments a run should have, nor how numbers are written as bytes (``codec``).
Holds names and shapes only, never values.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from functools import cached_property

import msgspec

from unlockstep.core.errors import ConfigError

RESERVED_NAME = "__metadata__"
"""The one name a tensor file cannot give to a tensor."""

TENSORS_MAX = 65_536
NAME_LENGTH_MAX = 512
DTYPE_LENGTH_MAX = 32
DIMENSIONS_MAX = 64
ELEMENTS_MAX = 2**44
"""Of a model that somebody else describes: what is larger costs too much to look at. A shape of 100 000 dimensions fits
into a message, and its size takes minutes to compute."""


class Role(Enum):
    """How a tensor is merged and stepped."""

    PARAMETER = "parameter"
    """Merged by the configured rule, stepped by the outer optimizer."""
    EMBEDDING = "embedding"
    """Embeddings and the output head: weighted mean, stepped by the outer optimizer (paper, App. D.2)."""
    BUFFER = "buffer"
    """Float state that no gradient trains, such as BatchNorm statistics: weighted mean, adopted as it is."""


class LayoutMethod(Enum):
    """How tensors are dealt to fragments (paper, App. C)."""

    BALANCED = "balanced"
    """Largest tensor first, each into the fragment that is smallest so far: the flattest traffic."""
    TENSOR = "tensor"
    """Tensors in model order, dealt round robin: every fragment has as many, of uneven size."""
    LAYER = "layer"
    """Whole layers, consecutive ones together: fragments follow the depth of the model."""


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor of the model: ``dtype`` is what the learner holds (``"bfloat16"``), not what travels."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role

    @property
    def size(self) -> int:
        """Number of elements; 1 for a scalar, 0 if any dimension is 0."""
        return math.prod(self.shape)


class Slot(msgspec.Struct, frozen=True):
    """A tensor and the element of its fragment at which it starts."""

    tensor: TensorSpec
    offset: int

    @property
    def stop(self) -> int:
        """The element after the last one."""
        return self.offset + self.tensor.size


class Layout(msgspec.Struct, frozen=True, dict=True):
    """Every tensor in exactly one fragment; the slots of a fragment are in order of name and tile it without gap."""

    fragments: tuple[tuple[Slot, ...], ...]
    method: LayoutMethod
    tensors: tuple[TensorSpec, ...] = ()
    """The same tensors in model order: what another end needs to cut them alike."""

    @property
    def fragment_count(self) -> int:
        """P, at least 1."""
        return len(self.fragments)

    def fragment_size(self, fragment: int) -> int:
        """Elements in ``fragment``."""
        slots = self.fragments[fragment]
        return slots[-1].stop if slots else 0

    def specs(self) -> tuple[TensorSpec, ...]:
        """All tensors, in model order: ``build_layout`` makes the same layout of them again."""
        return self.tensors

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex over method and assignment: equal exactly when both ends may exchange fragments."""
        canonical = [
            self.method.value,
            [[[t.name, t.shape, t.dtype, t.role.value] for t in (s.tensor for s in slots)] for slots in self.fragments],
        ]
        return hashlib.sha256(json.dumps(canonical, separators=(",", ":")).encode()).hexdigest()


def build_layout(tensors: Sequence[TensorSpec], fragment_count: int, method: LayoutMethod) -> Layout:
    """Deal ``tensors`` to ``fragment_count`` fragments, none of them empty.

    Args:
        tensors: the trainable tensors in model order; tied ones once, frozen ones not at all. Empty ones are allowed.
        fragment_count: at least 1 and at most the number of tensors (of layers, for ``LayoutMethod.LAYER``).
        method: see ``LayoutMethod``. With ``BALANCED`` no fragment is larger than the mean fragment plus
            ``(1 - 1 / fragment_count)`` of the largest tensor.

    Raises:
        ConfigError: nothing to train, a name that occurs twice or is reserved, or a ``fragment_count`` out of range.

    Reference: paper, App. C.
    """
    _check_tensors(tensors)
    pieces = _layers(tensors) if method is LayoutMethod.LAYER else [[tensor] for tensor in tensors]
    if not 1 <= fragment_count <= len(pieces):
        kind = "layers" if method is LayoutMethod.LAYER else "trainable tensors"
        raise ConfigError(
            f"protocol.fragments is {fragment_count}, but this model has {len(pieces)} {kind}: "
            f"choose a value from 1 to {len(pieces)}"
        )
    match method:
        case LayoutMethod.BALANCED:
            groups = _pack_balanced(tensors, fragment_count)
        case LayoutMethod.TENSOR:
            groups = [list(tensors[fragment::fragment_count]) for fragment in range(fragment_count)]
        case LayoutMethod.LAYER:
            groups = _pack_consecutive(pieces, fragment_count)
    return Layout(fragments=tuple(_tile(group) for group in groups), method=method, tensors=tuple(tensors))


def require_describable(tensors: Sequence[TensorSpec]) -> None:
    """Raises ConfigError if a description of a model is none, or one that nobody should go through."""
    if len(tensors) > TENSORS_MAX:
        raise ConfigError(f"model has {len(tensors)} tensors, {TENSORS_MAX} at most: merge some of them")
    for tensor in tensors:
        if len(tensor.name) > NAME_LENGTH_MAX:
            raise ConfigError(
                f"model has a tensor whose name begins {tensor.name[:40]!r} and has {len(tensor.name)} characters, "
                f"{NAME_LENGTH_MAX} at most: rename it"
            )
        if len(tensor.dtype) > DTYPE_LENGTH_MAX:
            raise ConfigError(f"tensor {tensor.name!r} has a dtype of {len(tensor.dtype)} characters, which is none")
        if len(tensor.shape) > DIMENSIONS_MAX:
            raise ConfigError(
                f"tensor {tensor.name!r} has {len(tensor.shape)} dimensions, {DIMENSIONS_MAX} at most: flatten it"
            )
        if not all(0 <= length <= ELEMENTS_MAX for length in tensor.shape) or tensor.size > ELEMENTS_MAX:
            raise ConfigError(f"tensor {tensor.name!r} has more than {ELEMENTS_MAX} elements, or fewer than none")


def explain_difference(ours: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> list[str]:
    """How two models differ, one readable line per finding; empty if they hold the same tensors.

    A prefix that one side adds to names, such as ``module.``, is one line; the tensors behind it are still compared.
    """
    here = {tensor.name: tensor for tensor in ours}
    there = {tensor.name: tensor for tensor in theirs}
    lines: list[str] = []
    renamed, sentence = _shared_prefix(here, there)
    if sentence:
        lines.append(sentence)
    for name, tensor in here.items():
        other = there.get(renamed.get(name, name))
        if other is None:
            lines.append(f"{name}: here with shape {_shape(tensor)}, missing there")
        else:
            lines.extend(f"{name}: {difference}" for difference in _differences(tensor, other))
    known = {renamed.get(name, name) for name in here}
    lines.extend(f"{n}: there with shape {_shape(t)}, missing here" for n, t in there.items() if n not in known)
    return lines


def _check_tensors(tensors: Sequence[TensorSpec]) -> None:
    require_describable(tensors)
    if sum(tensor.size for tensor in tensors) == 0:
        raise ConfigError("model has no trainable parameter: leave requires_grad on for at least one tensor")
    name, count = Counter(tensor.name for tensor in tensors).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"model names tensor {name!r} {count} times: list tied tensors once, under one name")
    if RESERVED_NAME in {tensor.name for tensor in tensors}:
        raise ConfigError(f"model has a tensor named {RESERVED_NAME!r}, which tensor files reserve: rename it")


def _tile(group: Sequence[TensorSpec]) -> tuple[Slot, ...]:
    # In order of name, because that is how other writers of tensor files lay out tensors of one dtype.
    slots: list[Slot] = []
    offset = 0
    for tensor in sorted(group, key=lambda tensor: tensor.name):
        slots.append(Slot(tensor=tensor, offset=offset))
        offset += tensor.size
    return tuple(slots)


def _pack_balanced(tensors: Sequence[TensorSpec], fragment_count: int) -> list[list[TensorSpec]]:
    groups: list[list[TensorSpec]] = [[] for _ in range(fragment_count)]
    sizes = [0] * fragment_count
    for tensor in sorted(tensors, key=lambda tensor: (-tensor.size, tensor.name)):
        # The number of tensors breaks ties, so that empty tensors too leave no fragment without one.
        fragment = min(range(fragment_count), key=lambda p: (sizes[p], len(groups[p]), p))
        groups[fragment].append(tensor)
        sizes[fragment] += tensor.size
    return groups


def _pack_consecutive(layers: Sequence[list[TensorSpec]], fragment_count: int) -> list[list[TensorSpec]]:
    cuts = [fragment * len(layers) // fragment_count for fragment in range(fragment_count + 1)]
    return [[t for layer in layers[cuts[p] : cuts[p + 1]] for t in layer] for p in range(fragment_count)]


def _layers(tensors: Sequence[TensorSpec]) -> list[list[TensorSpec]]:
    """Tensors grouped by layer in model order; what belongs to no layer joins the first or the last, the nearer one."""
    keys = [_layer_key(tensor.name) for tensor in tensors]
    positions = [position for position, key in enumerate(keys) if key is not None]
    if not positions:
        return [list(tensors)]
    first, last = positions[0], positions[-1]
    layers: dict[str, list[TensorSpec]] = {key: [] for key in keys if key is not None}
    for position, (tensor, key) in enumerate(zip(tensors, keys, strict=True)):
        nearest = keys[first] if abs(position - first) <= abs(position - last) else keys[last]
        layers[key or nearest or ""].append(tensor)
    return list(layers.values())


def _layer_key(name: str) -> str | None:
    """``"model.layers.3"`` of ``"model.layers.3.mlp.weight"``: the path up to its first integer, if it has one."""
    path = name.split(".")
    depth = next((depth for depth, part in enumerate(path) if part.isdecimal()), None)
    return None if depth is None else ".".join(path[: depth + 1])


def _shape(tensor: TensorSpec) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _differences(here: TensorSpec, there: TensorSpec) -> list[str]:
    lines = []
    if here.shape != there.shape:
        transposed = " (transposed)" if here.shape == there.shape[::-1] else ""
        lines.append(f"shape {_shape(here)} here, {_shape(there)} there{transposed}")
    if here.dtype != there.dtype:
        lines.append(f"dtype {here.dtype} here, {there.dtype} there")
    if here.role is not there.role:
        lines.append(f"role {here.role.value} here, {there.role.value} there")
    return lines


def _shared_prefix(here: dict[str, TensorSpec], there: dict[str, TensorSpec]) -> tuple[dict[str, str], str]:
    """The renaming (name here -> name there) that explains most of the names only one side has, and its sentence."""
    only_here, only_there = here.keys() - there.keys(), there.keys() - here.keys()
    added_there = Counter(prefix for name in only_there for prefix in _prefixes(name, only_here))
    added_here = Counter(prefix for name in only_here for prefix in _prefixes(name, only_there))
    candidates = [(count, prefix, "there") for prefix, count in added_there.items()]
    candidates += [(count, prefix, "here") for prefix, count in added_here.items()]
    if not candidates:
        return {}, ""
    count, prefix, side = max(candidates)
    if side == "there":
        renamed = {name: prefix + name for name in only_here if prefix + name in only_there}
    else:
        renamed = {name: name.removeprefix(prefix) for name in only_here if name.removeprefix(prefix) in only_there}
    return renamed, f"{count} of {len(here)} tensors carry the prefix {prefix!r} {side} only: strip it"


def _prefixes(name: str, bare: set[str]) -> list[str]:
    """Every ``prefix`` that ends in a dot and for which ``name`` is ``prefix`` plus one of the ``bare`` names."""
    cuts = [position + 1 for position, character in enumerate(name) if character == "."]
    return [name[:cut] for cut in cuts if name[cut:] in bare]

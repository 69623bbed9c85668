"""What ``state_dict`` methods return, as JSON and tensors: nested lists, tuples, dictionaries, numbers, text, tensors.

Decides how such a value is written, so that it is read back equal and of the same types. Does not decide whose it is
(``torch_state``) nor what becomes of JSON and tensors (``checkpoint``).

::

    None, bool, int, float, str     as they are; numbers of numpy as Python's
    [a, b]                          [a, b]
    (a, b)                          {"tuple": [a, b]}
    {k: a}                          {"dict": [[k, a]]}, also with keys that are no text; {"Counter": ...} likewise
    a tensor                        {"tensor": the name it has among the tensors}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlockstep.core.errors import UsageError
from unlockstep.learners.backend import DTYPES, TensorBits


def bits_of(tensor: Tensor) -> TensorBits:
    """A host copy of a tensor, on any device and in any memory format. No value is converted. Raises UsageError for a
    dtype that has no place in a file."""
    if dtype_name(tensor.dtype) not in DTYPES:
        raise UsageError(f"a tensor is {tensor.dtype}, which a file cannot hold; keep it as one of {', '.join(DTYPES)}")
    host = torch.empty(tensor.shape, dtype=tensor.dtype)
    host.copy_(tensor.detach())
    return TensorBits(dtype_name(tensor.dtype), tuple(tensor.shape), host.reshape(-1).view(torch.uint8).numpy())


def tensor_of(bits: TensorBits) -> Tensor:
    """The tensor, in the memory of ``bits``: to be read only. Raises UsageError for a dtype torch does not have."""
    dtype = getattr(torch, bits.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"dtype {bits.dtype!r} is not one of torch's; read the file with the torch that wrote it")
    if not bits.data.size:  # numpy gives an array without elements strides torch has no view of
        return torch.empty(bits.shape, dtype=dtype)
    return torch.from_numpy(np.require(bits.data, requirements="W")).view(dtype).reshape(bits.shape)


def dtype_name(dtype: torch.dtype) -> str:
    """``"bfloat16"`` of ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def flatten(value: object, path: str, tensors: dict[str, TensorBits]) -> Any:
    """``value`` as JSON; the tensors in it are copied to ``tensors``, under names that begin with ``path``.

    Raises:
        UsageError: something else is in it.
    """
    match value:
        case None | bool():
            return value
        # Of these types alone, as a schedule computed with numpy sets a rate: a donor's JSON holds no others.
        case np.bool_():
            return bool(value)
        case int() | np.integer():
            return int(value)
        case float() | np.floating():
            return float(value)
        case str():
            return str.__str__(value)
        case Tensor():
            assert path not in tensors, f"two tensors are called {path}"
            tensors[path] = bits_of(value)
            return {"tensor": path}
        case list():
            return [flatten(part, f"{path}.{index}", tensors) for index, part in enumerate(value)]
        case tuple():
            return {"tuple": flatten(list(value), path, tensors)}
        case dict():
            kind = "Counter" if isinstance(value, Counter) else "dict"
            parts = [
                [flatten(key, path, tensors), flatten(part, f"{path}.{key}", tensors)] for key, part in value.items()
            ]
            return {kind: parts}
    raise UsageError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold; it holds None, numbers, text, tensors, "
        "and lists, tuples and dictionaries of them"
    )


def unflatten(json: Any, take: Callable[[str], Any]) -> Any:
    """The value that ``flatten`` wrote; ``take`` gives the tensor of a name."""
    if isinstance(json, list):
        return [unflatten(part, take) for part in json]
    if not isinstance(json, Mapping):
        return json
    ((kind, content),) = json.items()
    match kind:
        case "tensor":
            return take(content)
        case "tuple":
            return tuple(unflatten(content, take))
        case "dict" | "Counter":
            parts = {unflatten(key, take): unflatten(part, take) for key, part in content}
            return Counter(parts) if kind == "Counter" else parts
    raise UsageError(
        f"a checkpoint holds {kind!r}, which this version does not know; read it with the one that wrote it"
    )

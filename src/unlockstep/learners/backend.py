"""The interface between the protocol and whatever trains: a backend holds one full model and can move fragments.

Decides what every backend must offer (``conformance`` holds the tests any of them must pass). Does not decide when its
methods are called: ``loop.LearnerLoop`` does, always from the training thread and always between two inner steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from unlockstep.core.layout import Layout, TensorSpec

FloatArray = npt.NDArray[np.float32]

DTYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
    "float8_e8m0fnu": ("F8_E8M0", 1),
    "complex64": ("C64", 8),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint64": ("U64", 8),
    "uint32": ("U32", 4),
    "uint16": ("U16", 2),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
"""What a tensor may consist of: the name in the header of a safetensors file, and bytes per element."""


class StepStats(msgspec.Struct, frozen=True):
    """What one inner step did."""

    tokens: int
    """Tokens this step trained on."""
    loss: float
    """Mean training loss, nats per token; NaN if unknown."""


class TensorBits(msgspec.Struct, frozen=True):
    """A tensor on the host as the bytes it consists of.

    Not a numpy array of its dtype, because numpy has no bfloat16 and a way through float32 would be a conversion; not a
    torch tensor, because a backend need not have torch. Either makes a view of these bytes, without a copy.
    """

    dtype: str
    """As in ``TensorSpec``."""
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    """uint8[n], little-endian, elements in row order. Never written again by whoever made it."""


class State(msgspec.Struct, frozen=True):
    """Part of what a process must know to go on where another stopped."""

    tensors: Mapping[str, TensorBits]
    facts: Mapping[str, Any]
    """What JSON can hold; floats come back with the same bits."""

    def __or__(self, other: State) -> State:
        """Both parts. Their names must differ."""
        assert not self.tensors.keys() & other.tensors.keys() and not self.facts.keys() & other.facts.keys()
        return State({**self.tensors, **other.tensors}, {**self.facts, **other.facts})

    def part(self, *prefixes: str) -> State:
        """The tensors whose names begin so, and all facts."""
        return State({name: bits for name, bits in self.tensors.items() if name.startswith(prefixes)}, self.facts)


@runtime_checkable
class InnerState(Protocol):
    """What an inner optimizer remembers. With it and the parameters a learner can go on where another one is; the
    random state and the data are a learner's own."""

    def inner_state(self) -> State:
        """A copy, to be taken between two steps.

        Raises:
            UsageError: it holds something that cannot be copied.
        """
        ...

    def load_inner_state(self, state: State) -> None:
        """Remember that instead.

        Raises:
            UsageError: it is of another optimizer or another model; nothing was changed.
        """
        ...


class FragmentStore(Protocol):
    """A model whose parameters can be read and written by fragment. What a user's own loop brings."""

    def tensors(self) -> Sequence[TensorSpec]:
        """Every tensor the run synchronises, each once: trainable parameters (tied ones once), float buffers."""
        ...

    def bind(self, layout: Layout) -> None:
        """Called once, before any fragment moves: how the tensors are cut."""
        ...

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        """A host copy, float32[fragment_size], slots in layout order; into ``out`` if given."""
        ...

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        """Overwrite the fragment's tensors in place (rounded to their dtype). Inner optimizer state is kept."""
        ...


class Backend(FragmentStore, Protocol):
    """A fragment store that can also take the inner step itself."""

    def inner_step(self, clock: int) -> StepStats:
        """One optimizer step; ``clock`` is the learner's clock before it, for schedules."""
        ...

    def reset_optimizer(self) -> None:
        """Forget the state of the inner optimizer, as if it had just been made. Parameters and data stay."""
        ...

    def seek(self, steps: int) -> None:
        """Move the data to where a learner that has taken ``steps`` inner steps would be."""
        ...


class ResumableBackend(Backend, Protocol):
    """A backend whose training another process can go on with. Whatever trains a real model is one."""

    def state(self) -> State:
        """A copy of everything the coming steps depend on, parameters and data position included; random generators of
        the process are its owner's."""
        ...

    def load_state(self, state: State) -> None:
        """Go on as the backend would from which ``state`` was taken, bit for bit.

        Raises:
            UsageError: something is missing in ``state``, is too much in it, or does not fit; nothing was changed.
        """
        ...

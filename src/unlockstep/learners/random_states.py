"""The random generators a process draws from without naming them: Python's, numpy's old one, torch's.

Decides which of them a state covers, and how several learners in one process each keep their own. Does not decide who
draws; a generator object of one's own is its owner's to save.
"""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any

import numpy as np
import torch

from unlockstep.learners.backend import State
from unlockstep.learners.records import bits_of, flatten, tensor_of, unflatten

_CPU, _CUDA = "random.torch", "random.cuda."


class OwnGenerators:
    """Generators of one learner among several in this process: inside the block the process's own go on where the block
    before has left them. Behind it those of torch and Python are wherever it has left them: who draws there is nobody
    who is to repeat. The second of a pair of normal numbers, which numpy keeps for the next call, is dropped.

    Args:
        seed: of all of them; torch's of the CPU begins where ``torch.manual_seed(seed)`` would put it.
    """

    def __init__(self, seed: int) -> None:
        devices = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        self._devices = [torch.Generator(f"cuda:{device}").manual_seed(seed).get_state() for device in range(devices)]
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.MT19937(seed)
        self._others: Any = None
        """What numpy draws from outside the block, while it is inside."""

    @property
    def places(self) -> tuple[Any, ...]:
        """Where they are, to be given to others; outside the block."""
        return self._cpu, self._devices, self._python, self._numpy.state

    def go_to(self, places: tuple[Any, ...]) -> None:
        """Go on from there; outside the block."""
        self._cpu, self._devices, self._python, self._numpy.state = places

    def __enter__(self) -> None:
        torch.set_rng_state(self._cpu)
        for device, place in enumerate(self._devices):
            torch.cuda.set_rng_state(place, device)
        random.setstate(self._python)
        # numpy is given the generator itself: to read and write its state would take a fifth of a millisecond.
        self._others = np.random.get_bit_generator()  # type: ignore[attr-defined]
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cpu = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._python = random.getstate()
        np.random.set_bit_generator(self._others)  # type: ignore[attr-defined]
        self._others = None


def random_state() -> State:
    """Where they are: ``random``, ``numpy.random`` (without a generator object), torch's of the CPU, and those of CUDA
    devices if this process uses them."""
    tensors = {_CPU: bits_of(torch.get_rng_state())}
    if torch.cuda.is_initialized():
        for device, generator in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"{_CUDA}{device}"] = bits_of(generator)
    kind, key, *rest = np.random.get_state()
    facts = {
        "python": flatten(random.getstate(), "python", {}),
        "numpy": flatten((kind, np.asarray(key).tolist(), *rest), "numpy", {}),
    }
    return State(tensors, {"random": facts})


def load_random_state(state: State) -> None:
    """Put the generators there. Those of devices that are not here, or not there, are left alone."""
    facts = state.facts["random"]
    random.setstate(unflatten(facts["python"], _no_tensor))
    np.random.set_state(unflatten(facts["numpy"], _no_tensor))
    torch.set_rng_state(tensor_of(state.tensors[_CPU]))
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if (bits := state.tensors.get(f"{_CUDA}{device}")) is not None:
                torch.cuda.set_rng_state(tensor_of(bits), device)


def _no_tensor(name: str) -> object:
    raise AssertionError(f"random generators of the host hold no tensor, but {name}")

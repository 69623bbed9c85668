"""The random generators a process draws from without naming them: Python's, numpy's old one, torch's.

Decides which of them a state covers. Does not decide who draws; a generator object of one's own is its owner's to save.
"""

from __future__ import annotations

import random

import numpy as np
import torch

from unlockstep.learners.backend import State
from unlockstep.learners.records import bits_of, flatten, tensor_of, unflatten

_CPU, _CUDA = "random.torch", "random.cuda."


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

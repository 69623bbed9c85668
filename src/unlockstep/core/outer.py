"""The outer optimizer: how the syncer turns a merged outer gradient into the next value of a fragment.

::

    SGD        params <- params - lr * delta
    Nesterov   buf    <- mu * buf + delta
               params <- params - lr * (delta + mu * buf)

Decides the equations. Does not decide the rates (configuration) and schedules nothing. Arrays are never written in
place: published params may be on their way to learners, and a step that turns out useless is dropped by forgetting its
result, which keeps params and state at the version before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from unlockstep.core.chunks import Float32, chunks, run, scratch, spans
from unlockstep.core.errors import ConfigError

if TYPE_CHECKING:
    from concurrent.futures import Executor


class OuterOptimizer(Protocol):
    """A pair of pure functions over one fragment; the state is one float32 array, so a snapshot is one tensor."""

    def init(self, size: int) -> Float32:
        """State before the first step, for a fragment of ``size`` elements."""
        ...

    def update(
        self,
        delta: Float32,
        state: Float32,
        params: Float32,
        out: Float32 | None = None,
        executor: Executor | None = None,
    ) -> tuple[Float32, Float32]:
        """One outer step: a new value and a new state.

        Args:
            delta: float32[n], the merged outer gradient. It points away from where learners went and is subtracted.
            state: from ``init`` or the step before; left as it is.
            params: float32[n]; left as it is.
            out: float32[n] to write the new params to; may be ``delta``, which is then spent.
            executor: threads to lend; they change no bit.

        Returns:
            (new params, new state).
        """
        ...


@dataclass(frozen=True, slots=True)
class SGD:
    """``params - learning_rate * delta``. With rate 1 the params become the mean of the learners."""

    learning_rate: float

    def init(self, size: int) -> Float32:
        """No state: float32[0]."""
        return np.empty(0, np.float32)

    def update(
        self,
        delta: Float32,
        state: Float32,
        params: Float32,
        out: Float32 | None = None,
        executor: Executor | None = None,
    ) -> tuple[Float32, Float32]:
        """See ``OuterOptimizer.update``."""
        stepped = np.empty_like(params) if out is None else out

        def step(span: tuple[int, int]) -> None:
            for chunk in chunks(*span):
                np.multiply(delta[chunk], np.float32(self.learning_rate), out=stepped[chunk])
                np.subtract(params[chunk], stepped[chunk], out=stepped[chunk])

        run(executor, step, spans(0, params.size))
        return stepped, state


@dataclass(frozen=True, slots=True)
class Nesterov:
    """SGD with Nesterov momentum, as ``torch.optim.SGD(nesterov=True)``; the state is the momentum buffer, float32[n].

    Reference: paper, Alg. 2; rates are not printed there, the lineage uses 0.7 and 0.9.
    """

    learning_rate: float
    momentum: float

    def init(self, size: int) -> Float32:
        """Zero momentum: float32[size]."""
        return np.zeros(size, np.float32)

    def update(
        self,
        delta: Float32,
        state: Float32,
        params: Float32,
        out: Float32 | None = None,
        executor: Executor | None = None,
    ) -> tuple[Float32, Float32]:
        """See ``OuterOptimizer.update``."""
        stepped = np.empty_like(params) if out is None else out
        momentum = np.empty_like(state)
        mu, rate = np.float32(self.momentum), np.float32(self.learning_rate)

        def step(span: tuple[int, int]) -> None:
            product = scratch()
            for chunk in chunks(*span):
                d, buf = delta[chunk], momentum[chunk]
                np.multiply(state[chunk], mu, out=buf)
                np.add(buf, d, out=buf)
                ahead = np.multiply(buf, mu, out=product[: d.size])
                np.add(ahead, d, out=ahead)
                np.multiply(ahead, rate, out=ahead)
                np.subtract(params[chunk], ahead, out=stepped[chunk])

        run(executor, step, spans(0, params.size))
        return stepped, momentum


_OPTIMIZERS: dict[str, Callable[[float, float], OuterOptimizer]] = {
    "nesterov": Nesterov,
    "sgd": lambda learning_rate, momentum: SGD(learning_rate),
}


def outer_optimizer(name: str, learning_rate: float, momentum: float) -> OuterOptimizer:
    """The optimizer called ``name``; ``momentum`` is not used by those that have none.

    Raises:
        ConfigError: no such optimizer.
    """
    if name not in _OPTIMIZERS:
        raise ConfigError(f"outer optimizer is {name!r}, which does not exist: choose one of {', '.join(_OPTIMIZERS)}")
    return _OPTIMIZERS[name](learning_rate, momentum)

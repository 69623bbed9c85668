"""A learner without a framework: gradient descent on a quadratic, whose every step is known in closed form.

Decides the problem: one optimum shared by all learners, and each learner's own noise around it. For fast tests and
simulations of the protocol; says nothing about how real models behave.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unlockstep.core.errors import UsageError
from unlockstep.core.layout import Layout, Role, TensorSpec, explain_difference
from unlockstep.learners.backend import FloatArray, State, StepStats, TensorBits


class ToyBackend:
    """Minimises the distance to a fixed optimum, seen through noise (``backend.ResumableBackend``).

    ::

        target_k = optimum + noise * normal(seed, k)
        loss_k   = mean((values_k - target_k)^2) / 2
        velocity = momentum * velocity + (values_k - target_k)
        values   = values_k - learning_rate * velocity

    Without noise and momentum, after k steps from zero: ``values = (1 - (1 - learning_rate)^k) * optimum``.

    Args:
        seed: of this learner's noise; start and optimum are the same for every seed.
        sizes: elements of each tensor: an embedding, then one matrix per layer.
        learning_rate: a share of the way to the target, whatever the clock.
        tokens_per_step: what every step reports.
        noise: standard deviation of each element's target.
        momentum: what the inner optimizer remembers of a gradient from one step to the next; 0: nothing.
    """

    def __init__(
        self,
        seed: int = 0,
        sizes: Sequence[int] = (32, 16, 16, 16),
        learning_rate: float = 0.1,
        tokens_per_step: int = 1,
        noise: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        names = ["embedding.weight", *(f"layers.{layer}.weight" for layer in range(len(sizes) - 1))]
        roles = [Role.EMBEDDING] + [Role.PARAMETER] * (len(sizes) - 1)
        self._specs = tuple(
            TensorSpec(name=name, shape=(size,), dtype="float32", role=role)
            for name, size, role in zip(names, sizes, roles, strict=True)
        )
        stops = np.cumsum(sizes).tolist()
        self._ranges = {spec: slice(stop - spec.size, stop) for spec, stop in zip(self._specs, stops, strict=True)}
        self.optimum = np.random.default_rng(0).standard_normal(sum(sizes), np.float32)
        """Where every learner is heading: float32[n], tensors in order."""
        self.values = np.zeros_like(self.optimum)
        """Where this one is."""
        self.velocity = np.zeros_like(self.optimum)
        """What the inner optimizer remembers; all zero without momentum."""
        self._momentum = np.float32(momentum)
        self._seed = seed
        self._learning_rate = np.float32(learning_rate)
        self._tokens_per_step = tokens_per_step
        self._noise = np.float32(noise)
        self._steps = 0
        self._fragments: list[list[tuple[slice, slice]]] = []
        self._sizes: list[int] = []

    def tensors(self) -> Sequence[TensorSpec]:
        """Every tensor, the embedding first."""
        return self._specs

    def bind(self, layout: Layout) -> None:
        """Take the layout by which the following calls read and write.

        Raises:
            UsageError: the layout is of another model.
        """
        if differences := explain_difference(self._specs, layout.specs()):
            raise UsageError(f"the layout is of another model than this: {differences[0]}; build both from one model")
        self._sizes = [layout.fragment_size(fragment) for fragment in range(layout.fragment_count)]
        self._fragments = [
            [(slice(slot.offset, slot.stop), self._ranges[slot.tensor]) for slot in slots] for slots in layout.fragments
        ]

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        """A copy of the fragment, float32[n]; into ``out`` if given."""
        values = np.empty(self._sizes[fragment], np.float32) if out is None else self._checked(fragment, out)
        for within_fragment, within_model in self._fragments[fragment]:
            values[within_fragment] = self.values[within_model]
        return values

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        """Overwrite the fragment from ``values``: float32[n]."""
        values = self._checked(fragment, values)
        for within_fragment, within_model in self._fragments[fragment]:
            self.values[within_model] = values[within_fragment]

    def inner_step(self, clock: int) -> StepStats:
        """One step of gradient descent; ``clock`` changes nothing."""
        gradient = self.values - self.optimum
        if self._noise:
            draw = np.random.default_rng((self._seed, self._steps)).standard_normal(gradient.size, np.float32)
            gradient -= self._noise * draw
        self._steps += 1
        if self._momentum:
            self.velocity *= self._momentum
            self.velocity += gradient
        self.values -= self._learning_rate * (self.velocity if self._momentum else gradient)
        return StepStats(tokens=self._tokens_per_step, loss=float(np.dot(gradient, gradient)) / (2 * gradient.size))

    def reset_optimizer(self) -> None:
        """Forget the velocity, whatever it holds."""
        self.velocity[:] = 0

    def seek(self, steps: int) -> None:
        """Move the noise to where ``steps`` inner steps would have brought it."""
        self._steps = steps

    def state(self) -> State:
        """Where it is, and how many steps it has taken."""
        own = State({"values": _bits(self.values)}, {"steps": self._steps})
        return own | self.inner_state() if self._momentum else own

    def load_state(self, state: State) -> None:
        """Go on from there.

        Raises:
            UsageError: the state is of another model.
        """
        self._check(state, *(("values", "velocity") if self._momentum else ("values",)), facts={"steps"})
        self.values[:] = state.tensors["values"].data.view("<f4")
        if self._momentum:
            self.velocity[:] = state.tensors["velocity"].data.view("<f4")
        self._steps = state.facts["steps"]

    def inner_state(self) -> State:
        """The velocity (``backend.InnerState``)."""
        return State({"velocity": _bits(self.velocity)}, {})

    def load_inner_state(self, state: State) -> None:
        """Go on with that. Raises UsageError if it is of another model."""
        self._check(state, "velocity", facts=set())
        self.velocity[:] = state.tensors["velocity"].data.view("<f4")

    def _check(self, state: State, *names: str, facts: set[str]) -> None:
        found = {name: (bits.dtype, bits.shape) for name, bits in state.tensors.items()}
        if found != dict.fromkeys(names, ("float32", self.values.shape)) or state.facts.keys() != facts:
            raise UsageError(f"the state holds {found} and {sorted(state.facts)}; give one of a toy of these sizes")

    def _checked(self, fragment: int, values: FloatArray) -> FloatArray:
        if values.dtype != np.float32 or values.shape != (self._sizes[fragment],):
            raise ValueError(
                f"fragment {fragment} is float32[{self._sizes[fragment]}], not {values.dtype}{list(values.shape)}"
            )
        return values


def _bits(values: FloatArray) -> TensorBits:
    return TensorBits("float32", values.shape, values.astype("<f4").view(np.uint8))

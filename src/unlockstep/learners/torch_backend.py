"""The built-in torch recipe: AdamW, clipping, accumulation and a learning rate that follows the learner's clock, after
a warm-up of the process's own.

Decides what one inner step is. Does not decide when it happens (``loop``) or which tensors are synchronised
(``torch_store``). A user's own training loop needs none of this: ``TorchStore`` is enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from unlockstep.core.layout import Layout, TensorSpec
from unlockstep.learners.backend import FloatArray, State, StepStats
from unlockstep.learners.evaluation import Loss, Tokens
from unlockstep.learners.torch_state import Stateful, TorchInner, load_training_state, training_state
from unlockstep.learners.torch_store import TorchStore

if TYPE_CHECKING:
    from unlockstep.config import InnerSection


class Batches(Protocol):
    """Training data by position (``data.TokenStream``, ``data.LeasedStream``)."""

    @property
    def position(self) -> int:
        """Batches consumed."""
        ...

    @property
    def remaining(self) -> int | None:
        """How much more there is at present; None: no end."""
        ...

    def next(self) -> Tokens:
        """The batch at the current position, which then rises by one."""
        ...

    def seek(self, position: int) -> None:
        """Go to the place where ``position`` batches have been consumed."""
        ...


def learning_rate(clock: int, settings: InnerSection, steps_total: int) -> float:
    """The inner learning rate of the step taken at ``clock``: a linear warm-up, then ``settings.schedule``.

    ::

        clock < warmup:  peak * (clock + 1) / warmup
        constant:        peak
        cosine:          peak * (final_share + (1 - final_share) * (1 + cos(pi * progress)) / 2)
        progress = (clock - warmup) / (steps_total - warmup), and 1 from steps_total on
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if clock < warmup:
        return peak * (clock + 1) / warmup
    if settings.schedule == "constant":
        return peak
    progress = 1 - max(0, steps_total - clock) / max(1, steps_total - warmup)
    return peak * (settings.final_share + (1 - settings.final_share) * (1 + math.cos(math.pi * progress)) / 2)


class TorchBackend:
    """A model, its AdamW and its data: everything one learner needs to train (``backend.ResumableBackend``).

    Equal models, streams and settings take equal steps, bit for bit. Dropout draws from torch's global generator, which
    is the caller's to seed and to save (``random_states``), unless ``generators`` puts another in its place. The
    constructor puts ``model`` into training mode and sets ``settings.threads`` for the process.

    Args:
        model: any module that ``loss`` accepts, on any device.
        loss: mean loss of a batch, nats per token (``models.causal_loss``).
        stream: where the batches come from, ``settings.accumulation`` of them per step.
        settings: the ``[inner]`` section. Matrices and higher decay, vectors and scalars do not.
        steps_total: where the cosine ends, in inner steps.
        store: what is synchronised of ``model``; None is ``TorchStore(model)``.
        generators: entered for every step (``random_states.OwnGenerators``).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        stream: Batches,
        settings: InnerSection,
        steps_total: int,
        store: TorchStore | None = None,
        generators: AbstractContextManager[object] = nullcontext(),  # noqa: B008  it has no state
    ) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.model = model.train()
        self.store = TorchStore(model) if store is None else store
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self._parameters if p.ndim >= 2]},
            {"params": [p for p in self._parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._loss = loss
        self.stream = stream
        self._settings = settings
        self._steps_total = steps_total
        self._steps = 0
        self._device = self._parameters[0].device
        self.generators = generators
        self.about: Mapping[str, str] = {}
        """What a run log should know of it, if whoever has made it says so."""

    def tensors(self) -> Sequence[TensorSpec]:
        """See ``TorchStore.tensors``."""
        return self.store.tensors()

    def bind(self, layout: Layout) -> None:
        """See ``TorchStore.bind``."""
        self.store.bind(layout)

    def read_fragment(self, fragment: int, out: FloatArray | None = None) -> FloatArray:
        """See ``TorchStore.read_fragment``."""
        return self.store.read_fragment(fragment, out)

    def write_fragment(self, fragment: int, values: FloatArray) -> None:
        """See ``TorchStore.write_fragment``. The moments of AdamW stay."""
        self.store.write_fragment(fragment, values)

    def inner_step(self, clock: int) -> StepStats:
        """One AdamW step on the mean gradient of ``accumulation`` batches, at the rate of ``clock``, or at that of a
        beginner's warm-up if it is lower."""
        with self.generators:
            return self._step(clock)

    def _step(self, clock: int) -> StepStats:
        settings = self._settings
        loss_sum = torch.zeros((), device=self._device)
        tokens = count = 0
        while count < settings.accumulation:
            batch = torch.from_numpy(self.stream.next()).to(self._device)
            loss = self._loss(self.model, batch)
            (loss / settings.accumulation).backward()
            loss_sum += loss.detach()
            tokens += batch[:, 1:].numel()
            count += 1
            if self.stream.remaining == 0:  # The very last step of a run may be a short one.
                break
        if settings.gradient_norm_max > 0:
            nn.utils.clip_grad_norm_(self._parameters, settings.gradient_norm_max)
        rate = min(learning_rate(clock, settings, self._steps_total), self._rate_of_a_beginner())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._steps += 1
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepStats(tokens=tokens, loss=loss_sum.item() / count)

    def _rate_of_a_beginner(self) -> float:
        """The moments of a fresh AdamW are noisy, whatever the clock: a learner that returns warms up once more."""
        return self._settings.learning_rate * (self._steps + 1) / max(1, self._settings.warmup_steps)

    def inner_state(self) -> State:
        """What AdamW remembers (``backend.InnerState``)."""
        return TorchInner(self.model, [self.optimizer]).inner_state()

    def load_inner_state(self, state: State) -> None:
        """Remember that, and be no beginner. Raises UsageError as ``load_training_state`` does."""
        TorchInner(self.model, [self.optimizer]).load_inner_state(state)
        self.go_on_warm()

    def go_on_warm(self) -> None:
        """The optimizer has the moments of another learner's: the warm-up is as far as its own count of steps."""
        taken = [float(remembered["step"]) for remembered in self.optimizer.state.values()]
        self._steps = int(max(taken, default=0))

    def reset_optimizer(self) -> None:
        """Forget the moments of AdamW, and warm up once more."""
        self.optimizer.state.clear()
        self._steps = 0

    def seek(self, steps: int) -> None:
        """Move the stream to where ``steps`` inner steps would have brought it."""
        self.stream.seek(steps * self._settings.accumulation)

    def state(self) -> State:
        """Model, AdamW, warm-up and position."""
        return training_state(self.model, [self.optimizer], self._counted) | State({}, {"data": self.stream.position})

    def load_state(self, state: State) -> None:
        """Go on from there. Raises UsageError as ``load_training_state`` does."""
        load_training_state(state, self.model, [self.optimizer], self._counted)
        self.stream.seek(state.facts["data"])

    @property
    def _counted(self) -> dict[str, Stateful]:
        return {"recipe": self}

    def state_dict(self) -> dict[str, Any]:
        """What there is to know beside model, AdamW and position: how far the warm-up is."""
        return {"steps": self._steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """An optimizer with its moments restored is no beginner's."""
        self._steps = state_dict["steps"]

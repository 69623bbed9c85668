"""All that a torch model, its optimizers and whatever goes with them must remember, out to the host and back.

Decides which tensors and numbers those are, under which names, and that a state is taken whole or not at all: every
tensor needed is there, every tensor there is needed, shapes and dtypes agree, and nothing is changed before that is
known. Does not decide where a state is kept (``checkpoint``) nor when it is taken.

Names: ``model.NAME`` (parameters, frozen ones too, and persistent buffers; tied ones once, under their first name),
``optimizer.I.NAME.KEY`` (what optimizer I remembers of parameter NAME), ``group.I.G.OPTION`` (an option of a parameter
group that is a tensor), ``stateful.NAME...``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unlockstep.core.errors import UsageError
from unlockstep.core.words import counted
from unlockstep.learners.backend import State, TensorBits
from unlockstep.learners.records import bits_of, dtype_name, flatten, tensor_of, unflatten
from unlockstep.learners.torch_store import plain_names

NAMES_SHOWN = 3
"""Of the tensors a state lacks, and of those nothing takes."""

_Memory: TypeAlias = tuple[object, ...]


class Stateful(Protocol):
    """A learning-rate scheduler, a gradient scaler, a data loader: what has a state of its own."""

    def state_dict(self) -> dict[str, Any]:
        """None, numbers, text, tensors, and lists, tuples and dictionaries of them."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Go on from there."""
        ...


@torch.no_grad()
def training_state(
    model: nn.Module, optimizers: Sequence[Optimizer], stateful: Mapping[str, Stateful] | None = None
) -> State:
    """A copy on the host of all of it, to be taken between two steps.

    Parameters that have never had a gradient have nothing remembered of them, and that is noted too. Buffers that are
    not persistent are not part of a state, as in ``state_dict``.

    Raises:
        UsageError: something is in it that is neither a tensor nor a number, text or a nest of them, or an optimizer
            steps tensors outside the model.
    """
    own = _model_tensors(model)
    tensors = {f"model.{name}": bits_of(tensor) for name, tensor in own.items()}
    names = _names(own)
    facts = {
        "optimizers": [_optimizer_facts(index, of, names, tensors) for index, of in enumerate(optimizers)],
        "stateful": {
            name: flatten(part.state_dict(), f"stateful.{name}", tensors) for name, part in (stateful or {}).items()
        },
    }
    return State(tensors, facts)


@torch.no_grad()
def load_training_state(
    state: State,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    stateful: Mapping[str, Stateful] | None = None,
    *,
    keep: Collection[str] = (),
    skip: Collection[str] = (),
    keep_optimizers: bool = False,
) -> None:
    """Write a state into a model, its optimizers and the rest. Tensors of the model are written in place: what shares
    their memory goes on sharing it, and the optimizers go on stepping them.

    Args:
        state: from ``training_state`` of a model and optimizers that were built alike. Facts of others are ignored.
        model: see there.
        optimizers: in the same order.
        stateful: under the same names.
        keep: tensors of the model, by name, that hold newer values than the state. They must fit all the same.
        skip: entries of ``stateful`` that are not loaded. They must be there all the same.
        keep_optimizers: the optimizers remember something newer than the state, of which they then load nothing; it
            must fit all the same.

    Raises:
        UsageError: the state does not fit, in a sentence that names up to three tensors on either side; nothing was
            changed.
    """
    stateful = stateful or {}
    own = _model_tensors(model)
    needed = _Needed(state.tensors)
    values = {name: needed.take(f"model.{name}", like=tensor) for name, tensor in own.items()}
    loads = _optimizer_loads(state, optimizers, own, needed)
    records = state.facts["stateful"]
    if records.keys() != stateful.keys():
        raise UsageError(f"the state is of {_listed(records)} beside the optimizers, and here is {_listed(stateful)}")
    parts = {name: unflatten(records[name], needed.take) for name in stateful}
    needed.check()
    for name, tensor in own.items():
        if name not in keep:
            tensor.copy_(values[name])
    for load in () if keep_optimizers else loads:
        load.carry_out()
    for name, part in stateful.items():
        if name not in skip:
            part.load_state_dict(parts[name])


class TorchInner:
    """What the optimizers of a model remember (``backend.InnerState``): no parameter, nothing that is ``stateful``.

    Args:
        model: whose parameters they step.
        optimizers: in an order that all learners of a run share.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model = model
        self._optimizers = optimizers

    @torch.no_grad()
    def inner_state(self) -> State:
        """A copy on the host. Raises UsageError as ``training_state`` does."""
        tensors: dict[str, TensorBits] = {}
        names = _names(_model_tensors(self._model))
        facts = [_optimizer_facts(index, of, names, tensors) for index, of in enumerate(self._optimizers)]
        return State(tensors, {"optimizers": facts})

    @torch.no_grad()
    def load_inner_state(self, state: State) -> None:
        """Remember that. Raises UsageError as ``load_training_state`` does; nothing was changed then."""
        own, needed = _model_tensors(self._model), _Needed(state.tensors)
        try:
            loads = _optimizer_loads(state, self._optimizers, own, needed)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the state says nothing of optimizers that can be read ({error!r})") from None
        needed.check()
        for load in loads:
            load.carry_out()


def _optimizer_loads(
    state: State, optimizers: Sequence[Optimizer], own: Mapping[str, Tensor], needed: _Needed
) -> list[_OptimizerLoad]:
    described = state.facts["optimizers"]
    if len(described) != len(optimizers):
        raise UsageError(f"the state is of {counted(len(described), 'optimizer')} and there are {len(optimizers)} here")
    return [
        _OptimizerLoad(number, optimizer, facts, own, needed)
        for number, (optimizer, facts) in enumerate(zip(optimizers, described, strict=True))
    ]


class _Needed:
    """The tensors of a state, each to be taken once."""

    def __init__(self, tensors: Mapping[str, TensorBits]) -> None:
        self._tensors = tensors
        self._taken: set[str] = set()
        self._missing: list[str] = []
        self._unfit: list[str] = []

    def take(self, name: str, like: Tensor | None = None) -> Tensor:
        """The tensor of this name; a scalar in its place if there is none, and ``check`` will say so."""
        bits = self._tensors.get(name)
        if bits is None:
            self._missing.append(name)
            return torch.zeros(())
        self._taken.add(name)
        if like is not None and (bits.dtype, bits.shape) != (dtype_name(like.dtype), tuple(like.shape)):
            here = f"{dtype_name(like.dtype)}{list(like.shape)}"
            self._unfit.append(f"{name} is {bits.dtype}{list(bits.shape)} in it and {here} here")
        return tensor_of(bits)

    def check(self) -> None:
        """Whether all was there, fitted, and nothing is left."""
        left = self._tensors.keys() - self._taken
        found = self._unfit[:NAMES_SHOWN]
        if self._missing:
            found.append(f"it lacks {_listed(self._missing)}")
        if left:
            found.append(f"nothing here takes {_listed(left)}")
        if found:
            raise UsageError(f"the state does not fit ({'; '.join(found)}); build model and optimizers as they were")


class _OptimizerLoad:
    """What is to be written into one optimizer, once everything is known to fit."""

    def __init__(
        self, number: int, optimizer: Optimizer, facts: Mapping[str, Any], own: Mapping[str, Tensor], needed: _Needed
    ) -> None:
        self._optimizer = optimizer
        kind = type(optimizer).__name__
        if facts["kind"] != kind:
            raise UsageError(f"optimizer {number} is {facts['kind']} in the state and {kind} here; use the same")
        names = _names(own)
        groups = [_parameter_names(number, group, names) for group in optimizer.param_groups]
        if groups != [group["parameters"] for group in facts["groups"]]:
            raise UsageError(f"optimizer {number} has other parameter groups than in the state; build it as it was")
        self._options = [unflatten(group["options"], needed.take) for group in facts["groups"]]
        for index, (group, options) in enumerate(zip(optimizer.param_groups, self._options, strict=True)):
            if missing := group.keys() - {"params"} - options.keys():
                raise UsageError(f"group {index} of optimizer {number} has no {_listed(missing)} in the state")
        self._remembered = {own[name]: unflatten(record, needed.take) for name, record in facts["state"].items()}

    def carry_out(self) -> None:
        for group, options in zip(self._optimizer.param_groups, self._options, strict=True):
            for option, value in options.items():
                if isinstance(value, Tensor) and isinstance(group.get(option), Tensor):
                    group[option].copy_(value)  # a scheduler, or a captured graph, may hold this very tensor
                else:
                    group[option] = value.clone() if isinstance(value, Tensor) else value
        self._optimizer.state.clear()
        for group in self._optimizer.param_groups:
            on_host = not (group.get("fused") or group.get("capturable"))
            for parameter in group["params"]:
                remembered = self._remembered.get(parameter)
                if remembered is not None:
                    self._optimizer.state[parameter] = {
                        key: _placed(value, parameter, on_host and key == "step") for key, value in remembered.items()
                    }


def _placed(value: Any, parameter: Tensor, on_host: bool) -> Any:
    """A copy of what an optimizer remembers of ``parameter``, where it wants to have it."""
    if not isinstance(value, Tensor):
        return value
    device = torch.device("cpu") if on_host else parameter.device
    if value.shape != parameter.shape:
        return value.to(device, copy=True)
    # In the memory format of the parameter: a fused optimizer goes through both side by side.
    return torch.empty_like(parameter, dtype=value.dtype, device=device).copy_(value)


def _optimizer_facts(
    number: int, optimizer: Optimizer, names: Mapping[_Memory, str], tensors: dict[str, TensorBits]
) -> dict[str, Any]:
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        options = {option: value for option, value in group.items() if option != "params"}
        groups.append(
            {
                "parameters": _parameter_names(number, group, names),
                "options": flatten(options, f"group.{number}.{index}", tensors),
            }
        )
    state = {}
    for parameter, remembered in optimizer.state.items():
        name = names[_memory(parameter)]
        state[name] = flatten(dict(remembered), f"optimizer.{number}.{name}", tensors)
    return {"kind": type(optimizer).__name__, "groups": groups, "state": state}


def _parameter_names(number: int, group: Mapping[str, Any], names: Mapping[_Memory, str]) -> list[str]:
    try:
        return [names[_memory(parameter)] for parameter in group["params"]]
    except KeyError:
        raise UsageError(
            f"optimizer {number} steps tensors that are not the model's; give the module whose parameters it holds"
        ) from None


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by their names without wrappers, each memory once."""
    plain = plain_names(model)
    found: dict[str, Tensor] = {}
    seen: set[_Memory] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in plain or not isinstance(tensor, Tensor):
            raise UsageError(f"model has state beside its tensors ({name}), which a checkpoint cannot hold; remove it")
        if _memory(tensor) not in seen:
            seen.add(_memory(tensor))
            found[plain[name]] = tensor
    return found


def _names(own: Mapping[str, Tensor]) -> dict[_Memory, str]:
    return {_memory(tensor): name for name, tensor in own.items()}


def _memory(tensor: Tensor) -> _Memory:
    """Equal for tied tensors, also for those that share memory but not the ``nn.Parameter``."""
    if not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:NAMES_SHOWN]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(shown) + more if names else "nothing"

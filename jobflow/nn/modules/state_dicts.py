"""Implementation of `state_dict` and `load_state_dict` of modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jobflow.core.errors import CheckpointError, did_you_mean, user_line
from jobflow.functional.creation import cut, from_numpy
from jobflow.functional.filling import copy_
from jobflow.functional.gradients import detach
from jobflow.functional.promotion import cast
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.lazy_parameters import is_lazy
from jobflow.nn.parameter import Parameter
from jobflow.tensors import redistribution
from jobflow.tensors.gpus import write
from jobflow.tensors.parameters import described
from jobflow.tensors.state import EagerState, building_now, gradients, refuse_tracing, state
from jobflow.tensors.tensor import own

if TYPE_CHECKING:
    from jobflow.nn.modules.module import Module


class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


class Differences(_Keys):
    """The result of `load_state_dict`: names that the state lacks (`missing_keys`), and names that the module lacks (`unexpected_keys`)."""

    def __repr__(self) -> str:
        return super().__repr__() if self.missing_keys or self.unexpected_keys else "<All keys matched successfully>"


def named(module: Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and persistent buffers of a module and its submodules under each of their names."""
    own: dict[str, Any] = vars(module)
    for name, part in own["_parameters"].items():
        if part is not None:
            yield prefix + name, part
    for name, part in own["_buffers"].items():
        if part is not None and name not in own["_passing"]:
            yield prefix + name, part
    for name, inner in own["_modules"].items():
        if inner is not None:
            yield from named(inner, f"{prefix}{name}.")


def plain(x: Tensor) -> Tensor:
    """Return a tensor that shares the memory of x and requires no gradients."""
    tracer = building_now()
    if tracer is not None and tracer.differentiates:
        return detach(x)
    result = Tensor(x.tensor_type, x.layout, x.array)
    result._device = x._device
    x.shares(result)
    return result


def load(module: Module, saved_state: Mapping[str, Any], strict: bool, assign: bool = False) -> Differences:
    """Implement `Module.load_state_dict` for `module`."""
    tracer = building_now()
    records = tracer is not None and tracer.differentiates and not assign
    if not records:
        refuse_tracing("load_state_dict", "parameters cannot be loaded", "load them before")
    differences = compared(module, saved_state, strict)
    if assign:
        for entries, name, value in list(_replacements(module, saved_state, "")):  # the list is complete, or an error was raised
            entries[name] = value
        return differences
    here = state()
    with gradients(False):
        for name, part in named(module):
            if name not in saved_state:
                continue
            if records and (is_lazy(part) or isinstance(saved_state[name], np.ndarray)):
                refuse_tracing("load_state_dict", "arrays and lazy parameters cannot be loaded", "load them before")
            if is_lazy(part):
                part.materialize(saved_state[name].shape)
            if records:
                copy_(part, saved_state[name])
            else:
                take(here, part, saved_state[name])
    return differences


def compared(module: Module, state: Mapping[str, Any], strict: bool) -> Differences:
    """Return the differences between a module and a state; raise CheckpointError for a mismatch, or if no name matches."""
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"load_state_dict of {type(module).__name__} at {user_line()}: the state must be a dict as returned by "
            f"state_dict(); got {described(state)}"
        )
    own = dict(named(module))
    differences = Differences([name for name in own if name not in state], [name for name in state if name not in own])
    wrong = [text for name in own if name in state and (text := difference(name, own[name], state[name]))]
    if strict:
        wrong += [f"missing: {name}" for name in differences.missing_keys]
        wrong += [f"not known: {name}{did_you_mean(name, differences.missing_keys)}" for name in differences.unexpected_keys]
    elif own and state and len(differences.missing_keys) == len(own):
        wrong.append(f"no names in common: the module has {_some(differences.missing_keys)}, the state {_some(differences.unexpected_keys)}")
    if wrong:
        listed = "".join(f"\n    {text}" for text in wrong)
        raise CheckpointError(f"load_state_dict of {type(module).__name__} at {user_line()}: the state does not fit:{listed}")
    return differences


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def difference(name: str, x: Tensor, value: Any) -> str:
    """Return the reason why `value` cannot be loaded into x, or "" if it can; a parameter without elements accepts every shape."""
    if isinstance(value, np.ndarray):
        return "" if is_lazy(x) or value.shape == x.tensor_type.shape else f"size: {name} is {x.tensor_type}, the state has {list(value.shape)}"
    if not isinstance(value, Tensor):
        return f"type: {name} is a tensor, the state has {type(value).__name__}"
    if value.is_global != x.is_global:
        kinds = ("local", "global")
        hint = "to_global() the state" if x.is_global else "to_local() the state, or call to_global on the module first"
        return f"local and global: {name} is {kinds[x.is_global]}, the state has a {kinds[value.is_global]} tensor; {hint}"
    return (
        "" if is_lazy(x) or value.tensor_type.shape == x.tensor_type.shape else f"size: {name} is {x.tensor_type}, the state has {value.tensor_type}"
    )


def _replacements(module: Module, saved_state: Mapping[str, Any], prefix: str) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Yield the dict and the name of each parameter and buffer in the state, and the tensor that replaces it."""
    own: dict[str, Any] = vars(module)
    for name, part in own["_parameters"].items():
        if part is not None and prefix + name in saved_state:
            yield own["_parameters"], name, _parameter(_tensor(saved_state[prefix + name]), part.requires_grad)
    for name, part in own["_buffers"].items():
        if part is not None and name not in own["_passing"] and prefix + name in saved_state:
            yield own["_buffers"], name, _tensor(saved_state[prefix + name])
    for name, inner in own["_modules"].items():
        if inner is not None:
            yield from _replacements(inner, saved_state, f"{prefix}{name}.")


def _tensor(value: Any) -> Tensor:
    return from_numpy(value) if isinstance(value, np.ndarray) else value


def _parameter(value: Tensor, requires_grad: bool) -> Parameter:
    """Return a parameter in the memory of `value`, or `value` itself if it is a parameter."""
    if isinstance(value, Parameter):
        value.requires_grad = requires_grad
        return value
    return Parameter(value, requires_grad)


def take(here: EagerState, x: Tensor, value: Any) -> None:
    """Copy the elements of `value`, cast and redistributed to the type and layout of x, into the memory of x."""
    if isinstance(value, np.ndarray):
        value = from_numpy(value) if x.layout is None else cut("load_state_dict", np.asarray(value, order="C"), x.layout)
    value = cast(value, x.tensor_type.dtype)
    if x.layout is not None:
        value = redistribution.redistribute(here, value, x.layout)
    write(own(x, "load_state_dict"), value.array)
    x.wrote()

"""States of optimizers from PyTorch, and from older releases of jobflow, in the current form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from jobflow.core.errors import CheckpointError
from jobflow.functional.promotion import cast
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.parameters import described
from jobflow.tensors.state import gradients

#: names in `Optimizer.state` of slots that the formulas name differently; they are PyTorch's names
SLOT_NAMES = {
    "m": "exp_avg", "v": "exp_avg_sq", "max_v": "max_exp_avg_sq", "mean_gradient": "grad_avg", "mean_square": "square_avg",
    "momentum": "momentum_buffer",
}  # fmt: skip
#: names of older releases, and the current names
_OLDER = {"m": "exp_avg", "v": "exp_avg_sq", "max_v": "max_exp_avg_sq", "momentum_buf": "momentum_buffer"}


class SavedStates(NamedTuple):
    """The states of parameters by number, and the options of groups without parameters."""

    states: dict[int, dict[str, Any]]
    groups: list[dict[str, Any]]


def normalized(saved: Any, parameters: Sequence[Sequence[Tensor]], counts: bool, what: str) -> SavedStates:
    """Return a state in the current form: current names, steps as integers, no empty entries, tensors of the parameters' types.

    `parameters` are the parameters by group.  `counts` is False for an optimizer whose state contains no number of steps, such as SGD.
    Raises: CheckpointError for another object than the result of `state_dict`, or if the numbers of parameters differ.
    """
    groups = _groups(saved, what)
    sizes, mine = [len(group["params"]) for group in groups], [len(group) for group in parameters]
    if sizes != mine:
        raise CheckpointError(
            f"{what}: the saved groups have {sizes} parameters, but the groups of this optimizer have {mine}; "
            f"create the optimizer with the same groups"
        )
    everything = [p for group in parameters for p in group]
    indices = {key: i for i, key in enumerate(key for group in groups for key in group["params"])}
    states = {}
    for key, entries in saved["state"].items():
        number = indices.get(int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 10 else key)
        if number is None or not isinstance(entries, Mapping):
            _refuse(what, f"the state has an entry {key!r:.40} that belongs to no parameter")
        states[number] = _state(entries, everything[number], counts, what)
    return SavedStates(states, [{name: _option(value) for name, value in group.items() if name != "params"} for group in groups])


def _groups(saved: Any, what: str) -> list[Mapping[str, Any]]:
    if not isinstance(saved, Mapping) or not isinstance(saved.get("state"), Mapping) or not isinstance(saved.get("param_groups"), list | tuple):
        _refuse(what, f'got {described(saved)} without the entries "state" and "param_groups"')
    for group in saved["param_groups"]:
        params = group.get("params") if isinstance(group, Mapping) else None
        if not isinstance(params, list | tuple) or not all(isinstance(key, int) for key in params):
            _refuse(what, 'a group lacks the list "params" of numbers')
    return list(saved["param_groups"])


def _refuse(what: str, reason: str) -> NoReturn:
    raise CheckpointError(f"{what}: {reason}; pass the result of state_dict() of the same optimizer, here or in PyTorch")


def _state(entries: Mapping[str, Any], p: Tensor, counts: bool, what: str) -> dict[str, Any]:
    """Return the state of parameter p."""
    result = {_OLDER.get(name, name): _value(name, value, p, what) for name, value in entries.items() if value is not None}
    if not counts:
        result["step"] = max(result.get("step", 0), 1 if result else 0)  # later steps differ from the first one if there is dampening
    return result


def _value(name: str, value: Any, p: Tensor, what: str) -> Any:
    if name == "step":
        return _step(value, what)
    if isinstance(value, Tensor) and value.dtype.is_float and p.dtype.is_float and value.dtype is not p.dtype:
        with gradients(False):
            return cast(value, p.dtype)
    return value


def _step(value: Any, what: str) -> int:
    """Return the number of steps, which PyTorch saves as a tensor."""
    number = value.item() if isinstance(value, Tensor) and value.tensor_type.size == 1 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 2**62 or number != int(number):
        _refuse(what, f"step is {described(value)}, not a number of steps")
    return int(number)


def _option(value: Any) -> Any:
    """Return an option of a group; PyTorch may save a learning rate as a tensor."""
    return value.item() if isinstance(value, Tensor) and value.tensor_type.size == 1 else value

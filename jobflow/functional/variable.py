"""The name `flow.autograd.Variable` of programs for PyTorch before 0.4: a tensor."""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional.gradients import without_gradient
from jobflow.functional.switches import checked_bool
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.tensor import shows


class _VariableMeta(type):
    """The metaclass of Variable: every tensor is an instance."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, Tensor)


class Variable(metaclass=_VariableMeta):
    """Variable(x) is a tensor with the memory of x and its own `requires_grad`.

    Raises: ArgumentError unless `data` is a tensor.
    """

    def __new__(cls, data: Any, requires_grad: bool = False, volatile: bool = False) -> Any:
        if not isinstance(data, Tensor):
            raise ArgumentError(f"Variable at {user_line()}: data must be a tensor; got {data!r}")
        checked_bool("Variable", "requires_grad", requires_grad)
        checked_bool("Variable", "volatile", volatile)
        return without_gradient(data, shows).requires_grad_(requires_grad)

"""Parameters and buffers without elements, until the first call of a lazy module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from jobflow.functional.creation import empty, zeros
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.moving import replace
from jobflow.nn.parameter import Parameter
from jobflow.tensors.state import gradients

__all__ = ["UninitializedBuffer", "UninitializedParameter"]


def _materialize(x: Tensor, shape: Sequence[int], device: Any, dtype: Any) -> None:
    with gradients(False):
        replace(x, empty(tuple(shape), device=x.device if device is None else device, dtype=x.dtype if dtype is None else dtype))


class UninitializedParameter(Parameter):
    """A parameter of a lazy module, without elements until the first call of the module, or until a state is loaded."""

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(zeros(0, device=device, dtype=dtype), requires_grad)

    def materialize(self, shape: Sequence[int], device: Any = None, dtype: Any = None) -> None:
        """Allocate elements of this shape, without defined values; the parameter becomes an ordinary one."""
        _materialize(self, shape, device, dtype)
        self.finish()

    def finish(self) -> None:
        """Make the parameter an ordinary one, after its elements were allocated."""
        object.__setattr__(self, "__class__", Parameter)


class UninitializedBuffer(Tensor):
    """A buffer without elements, until `materialize` allocates them."""

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None) -> None:
        data = zeros(0, device=device, dtype=dtype)
        super().__init__(data.tensor_type, data.layout, data.array, data.traced)
        self._device = data._device

    def materialize(self, shape: Sequence[int], device: Any = None, dtype: Any = None) -> None:
        """Allocate elements of this shape, without defined values; the buffer becomes an ordinary tensor."""
        _materialize(self, shape, device, dtype)
        self.finish()

    def finish(self) -> None:
        """Make the buffer an ordinary tensor, after its elements were allocated."""
        object.__setattr__(self, "__class__", Tensor)


def is_lazy(param: object) -> TypeGuard[UninitializedParameter | UninitializedBuffer]:
    """Return True for a parameter or buffer without elements yet."""
    return isinstance(param, UninitializedParameter | UninitializedBuffer)

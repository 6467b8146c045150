"""The functions of tensors that einops calls; `einops_finder` defines the backend from them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from jobflow.core.types import int64
from jobflow.engine.job_tensor import JobTensor
from jobflow.functional import joining, reductions, shapes, sorting
from jobflow.functional.creation import arange, from_numpy
from jobflow.functional.dispatch import as_public
from jobflow.functional.typed import Tensor
from jobflow.tensors.tensor import TensorBase

_FUNCTIONS: dict[ModuleType, tuple[str, ...]] = {
    joining: ("cat", "stack"),
    reductions: ("all", "amax", "amin", "any", "mean", "prod", "sum"),
    shapes: ("expand", "permute", "reshape", "tile", "unsqueeze"),
    sorting: ("einsum",),
}


class TensorFunctions:
    """The methods that einops requires of a backend, for tensors and for tensors of jobs."""

    framework_name = "jobflow"

    def __init__(self) -> None:
        #: functions by name, which also accept tensors of jobs
        self.call = SimpleNamespace(**{word: as_public(word, getattr(module, word)) for module, words in _FUNCTIONS.items() for word in words})

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, TensorBase | JobTensor)

    def from_numpy(self, x: Any) -> Tensor:
        return from_numpy(x)

    def to_numpy(self, x: Tensor) -> Any:
        return x.detach().numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return arange(start, stop, dtype=int64)

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        if operation in ("min", "max"):
            operation = f"a{operation}"
        if operation in ("amin", "amax", "sum", "mean"):
            return getattr(self.call, operation)(x, axes)
        for axis in sorted(axes, reverse=True):  # other reductions accept one axis
            x = getattr(self.call, operation)(x, axis)
        return x

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return self.call.reshape(x, shape)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return self.call.permute(x, axes)

    def stack_on_zeroth_dimension(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.call.stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return self.call.unsqueeze(x, new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        sizes = [-1] * n_axes
        for axis, length in pos2len.items():
            x = self.call.unsqueeze(x, axis)
            sizes[axis] = length
        return self.call.expand(x, [n if size == -1 else size for n, size in zip(x.shape, sizes, strict=True)])

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        return self.call.tile(x, repeats)

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        return self.call.cat(tensors, axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.dtype.is_float

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return self.call.einsum(pattern, *x)

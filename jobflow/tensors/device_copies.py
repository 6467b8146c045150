"""Copies of local tensors between devices, with gradients; and operands of one element, which move to the device of the other operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jobflow.core.dataclass import dataclass
from jobflow.ops.op import Op
from jobflow.tensors.gpus import gpu_of, on_device
from jobflow.tensors.state import EagerState, state
from jobflow.tensors.tape import Gradients, record
from jobflow.tensors.tensor import TensorBase, check_current

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

T = TypeVar("T", bound=TensorBase)


def moved(here: EagerState, x: T, gpu: EagerGpu | None, device: Any, direct: bool = False) -> T:
    """Return a copy of the local tensor x on a GPU, or on the host for None.  The gradient moves back.

    `device` is the device of the result, as its attribute `device` returns it; None is the host.  With `direct`, the GPU may read page-locked
    memory of x after return.
    """
    check_current(x)
    source = gpu_of(x.array)
    array = on_device(gpu, x.array, direct)
    output: T = TensorBase.new(x.tensor_type, None, array)
    output._device = device
    if here.grad_enabled and x._needs_gradient:
        record("to", (x,), (output,), MovedGradient(source, x._device))
    return output


def on_device_of(x: TensorBase, value: T) -> T:
    """Return a local tensor on the device of the local tensor x: `value` itself, or a copy with a gradient."""
    gpu = gpu_of(x.array)
    return value if gpu_of(value.array) is gpu else moved(state(), value, gpu, x._device)


@dataclass(frozen=True, slots=True)
class MovedGradient:
    """The gradient function of a copy to another device: a copy to `gpu`, or to the host for None."""

    gpu: EagerGpu | None
    device: Any

    def __call__(self, saved: Sequence[TensorBase], gradients: Gradients) -> Gradients:
        (gradient,) = gradients
        assert gradient is not None
        return (moved(state(), gradient, self.gpu, self.device),)


def on_one_device(here: EagerState, op: Op, inputs: Sequence[T]) -> Sequence[T]:
    """Return the inputs of an operation with copies of host tensors of one element on the GPU of the other inputs.

    Tensors that the operation overwrites are never replaced.
    """
    arrays = [getattr(x, "_array", None) for x in inputs]
    gpu = next(filter(None, map(gpu_of, arrays)), None)
    if gpu is None:
        return inputs
    fixed = set(op.alias.values())
    device = next(x._device for x, array in zip(inputs, arrays, strict=True) if gpu_of(array) is gpu)
    return [
        moved(here, x, gpu, device)
        if array is not None and x.layout is None and x.tensor_type.size == 1 and i not in fixed and gpu_of(array) is None
        else x
        for i, (x, array) in enumerate(zip(inputs, arrays, strict=True))
    ]

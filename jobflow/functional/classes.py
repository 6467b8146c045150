"""Tensor classes, such as `flow.Tensor` and `flow.FloatTensor`, for construction and for isinstance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jobflow.core.types as types
from jobflow.core.types import DType
from jobflow.functional.casting import CLASSES
from jobflow.functional.creation import empty, tensor
from jobflow.functional.tensor_class import Tensor as AnyTensor

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor", "ShortTensor",
    "Tensor",
]  # fmt: skip


class _TensorMeta(type):
    """Metaclass of `flow.Tensor`, and of the tensor classes of one element type, for tensors on any device or only for "cuda"."""

    dtype: DType | None
    device_type: str | None

    def __call__(cls, *arguments: Any, **options: Any) -> AnyTensor:
        """Return a tensor of zeros with the passed sizes (integers or a Size), or a tensor of the passed data.

        The element type is `dtype=`, else the type of the class, else float32.
        """
        options.setdefault("dtype", cls.dtype or types.float32)
        if cls.device_type is not None:
            options.setdefault("device", cls.device_type)
        if len(arguments) == 1 and not isinstance(arguments[0], int) and not _is_shape(arguments[0]):
            return tensor(arguments[0], **options)
        return empty(*arguments, **options) if arguments else empty(0, **options)

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, AnyTensor) and cls.dtype in (None, x.dtype) and (cls.device_type is None or bool(x.is_cuda))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, AnyTensor) if cls.dtype is None else type.__subclasscheck__(cls, other)

    def __getattr__(cls, name: str) -> Any:
        return getattr(AnyTensor, name)

    def __dir__(cls) -> list[str]:
        return dir(AnyTensor)


def _is_shape(argument: Any) -> bool:
    """Return True for a Size; other tuples and lists are data."""
    return type(argument).__name__ == "Size"


if TYPE_CHECKING:
    Tensor = AnyTensor  # its overloads accept sizes or data, too
else:

    class Tensor(metaclass=_TensorMeta):
        """The class of all tensors, for isinstance(x, flow.Tensor) and for construction.

        Tensor(2, 3) is a tensor of zeros of shape [2, 3]; Tensor([1, 2]) is a tensor with the elements 1 and 2.
        """

        dtype = None
        device_type = None


def tensor_classes(module: str, device_type: str | None = None) -> list[_TensorMeta]:
    """Return the classes of `CLASSES` for tensors on any device, or only for `device_type`; `module` is their `__module__`."""
    where = f' on the device "{device_type}"' if device_type else ""
    return [
        _TensorMeta(
            name, (), {"dtype": dtype, "device_type": device_type, "__doc__": f"Tensors of element type {dtype.name}{where}.", "__module__": module}
        )
        for name, dtype in CLASSES.items()
    ]


FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor, ShortTensor, IntTensor, LongTensor, CharTensor, ByteTensor, BoolTensor = tensor_classes(
    __name__
)

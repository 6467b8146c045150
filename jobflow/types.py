"""Element types, tensor types, and the aliases behind which arrays of any library hide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

#: A NumPy or CuPy array.  Kernels see nothing else.
Array: TypeAlias = Any
#: The module `numpy` or `cupy`.
Xp: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class DType:
    """An element type; one object per type, so `is` and `==` agree."""

    name: str
    numpy: np.dtype[Any]

    def __repr__(self) -> str:
        return f"jobflow.{self.name}"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return dtype_named, (self.name,)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        return self.numpy.kind in "fV"

    @property
    def is_integer(self) -> bool:
        return self.numpy.kind in "iu"

    def number(self, value: float) -> float:
        """A Python number as this type has it: infinite where a float type does not reach; ValueError where an integer would lose its fraction."""
        if not self.is_float:
            if value != value or math.isinf(value) or int(value) != value:
                raise ValueError(f"{value} is no integer")
            return int(value)
        number = float(value)
        too_large = abs(number) > float(np.finfo(self.numpy).max)
        return math.copysign(math.inf, number) if too_large else number


bool_ = DType("bool", np.dtype(np.bool_))
char = DType("char", np.dtype(np.int8))
int8 = DType("int8", np.dtype(np.int8))
int32 = DType("int32", np.dtype(np.int32))
int64 = DType("int64", np.dtype(np.int64))
uint8 = DType("uint8", np.dtype(np.uint8))
float16 = DType("float16", np.dtype(np.float16))
float32 = DType("float32", np.dtype(np.float32))
float64 = DType("float64", np.dtype(np.float64))

DTYPES: tuple[DType, ...] = (bool_, char, int8, int32, int64, uint8, float16, float32, float64)
_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
_BY_NUMPY = {dtype.numpy: dtype for dtype in reversed(DTYPES) if dtype is not char}


def dtype_named(name: str) -> DType:
    """The element type called `name`; KeyError if there is none."""
    return _BY_NAME[name]


def dtype_of(dtype: Any) -> DType:
    """The element type of a NumPy dtype (or anything `np.dtype` accepts); KeyError if jobflow has none."""
    return dtype if isinstance(dtype, DType) else _BY_NUMPY[np.dtype(dtype)]


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor; prints as ``float32[64,300]``."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype)


@runtime_checkable
class Tensor(Protocol):
    """What ops take and give: a value of a graph being traced, or an eager tensor."""

    @property
    def type(self) -> TensorType: ...


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-ordered array."""
    strides = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def type_of(array: Array) -> TensorType:
    """The tensor type of an array."""
    return TensorType(tuple(int(n) for n in array.shape), dtype_of(array.dtype))

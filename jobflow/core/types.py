"""Element types and tensor types, and type aliases for arrays of any library."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DtypeError

#: A NumPy or CuPy array.
Array: TypeAlias = Any
#: The module `numpy` or `cupy`.
Xp: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class DType:
    """An element type.  Each type is one object, so `is` and `==` are equivalent."""

    name: str
    #: the NumPy dtype; None for a type of another package, which is imported at its first use
    native: np.dtype[Any] | None = None

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; reading it raises DtypeError if the type needs a package that is not installed."""
        return _borrowed(self.name) if self.native is None else self.native

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
        return self.native is None or self.native.kind == "f"

    @property
    def is_floating_point(self) -> bool:
        """True for floating point types; PyTorch's name of `is_float`."""
        return self.is_float

    @property
    def is_complex(self) -> bool:
        """False, because tensors have no complex elements."""
        return False

    @property
    def is_signed(self) -> bool:
        """True if the type includes negative numbers."""
        return self.is_float or self.numpy.kind == "i"

    @property
    def is_half(self) -> bool:
        """True for 16-bit floats, which are storage types; arithmetic on them is in float32."""
        return self is float16 or self is bfloat16

    @property
    def arithmetic(self) -> DType:
        """The type of arithmetic on the CPU: float32 for 16-bit floats, otherwise the type itself."""
        return float32 if self.is_half else self

    @property
    def of_gradient(self) -> DType:
        """The type of gradients: the type itself for floats, otherwise float64 (legacy casts pass gradients to integers)."""
        return self if self.is_float else float64

    @cached_property
    def largest(self) -> float:
        """The largest finite number of a float type."""
        return float(float_info(self).max)

    @property
    def is_integer(self) -> bool:
        return self.numpy.kind in "iu"

    @cached_property
    def span(self) -> tuple[float, float]:
        """The smallest and the largest finite number of the type."""
        if self.is_float:
            return -self.largest, self.largest
        if not self.is_integer:
            return 0, 1
        bounds = np.iinfo(self.numpy)
        return int(bounds.min), int(bounds.max)

    def number(self, value: float) -> float:
        """Return `value` as an int, or for float types as a float, which is infinite outside of the range of the type.

        Raises: ValueError unless `value` fits: booleans accept integers, and integer types accept integers in their range.
        """
        value, (low, high) = plain(value), self.span
        if self.is_float:
            return float(value) if value != value or low <= value <= high else math.inf if value > 0 else -math.inf
        if value != value or abs(value) == math.inf or int(value) != value:
            raise ValueError(f"{value} is not an integer")
        if self.is_integer and not low <= value <= high:
            raise ValueError(f"{value} is outside the range of {self.name} ({low} to {high})")
        return int(value)


class Opaque(DType):
    """A type of data that are not tensors: records, and arrays of different shapes."""

    is_float = is_integer = is_signed = False

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype, which does not exist; reading this attribute raises DtypeError."""
        raise DtypeError(f"elements of type {self.name} have no NumPy dtype; decode records, and convert tensor buffers to tensors")


def plain(number: float) -> float:
    """Convert a NumPy scalar to a Python number, so that comparisons ignore the NumPy type."""
    return number.item() if isinstance(number, np.generic) else number


def float_info(dtype: DType) -> Any:
    """Return NumPy's `finfo` of a float type: min, max, eps, tiny, bits."""
    tell = np.finfo if dtype.native is not None else _ml_dtypes(dtype.name).finfo
    return tell(dtype.numpy)


def _ml_dtypes(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError:
        raise DtypeError(f"{name} needs the package ml_dtypes: pip install 'jobflow-sbp[half]', or use float16") from None
    return ml_dtypes


def _borrowed(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(_ml_dtypes(name), name))


bool_ = DType("bool", np.dtype(np.bool_))
char = DType("char", np.dtype(np.int8))
int8 = DType("int8", np.dtype(np.int8))
int16 = DType("int16", np.dtype(np.int16))
int32 = DType("int32", np.dtype(np.int32))
int64 = DType("int64", np.dtype(np.int64))
uint8 = DType("uint8", np.dtype(np.uint8))
float16 = DType("float16", np.dtype(np.float16))
#: float32 with 8 instead of 24 bits of precision: half the bytes, the same range
bfloat16 = DType("bfloat16")
float32 = DType("float32", np.dtype(np.float32))
float64 = DType("float64", np.dtype(np.float64))

#: types of data that are not tensors: records, and arrays of different shapes
record = Opaque("record")
tensor_buffer = Opaque("tensor_buffer")

DTYPES: tuple[DType, ...] = (bool_, char, int8, int16, int32, int64, uint8, float16, bfloat16, float32, float64)
_BY_NAME = {dtype.name: dtype for dtype in (*DTYPES, record, tensor_buffer)}
_BY_NUMPY = {dtype.native: dtype for dtype in reversed(DTYPES) if dtype is not char and dtype.native is not None}


def dtype_named(name: str) -> DType:
    """Return the element type `name`; raise KeyError for an unknown name."""
    return _BY_NAME[name]


def dtype_of(dtype: Any) -> DType:
    """Return the element type for a DType or an argument of `np.dtype`; raise KeyError if jobflow lacks this type, TypeError if NumPy does."""
    if isinstance(dtype, DType):
        return dtype
    numpy_dtype = np.dtype(dtype)
    return bfloat16 if numpy_dtype.kind == "V" and numpy_dtype.name == bfloat16.name else _BY_NUMPY[numpy_dtype]


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


class Typed:
    """Base class of objects with a tensor type, with shortcuts to the fields of this type."""

    __slots__ = ()
    tensor_type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor_type.shape

    @property
    def dtype(self) -> DType:
        return self.tensor_type.dtype

    @property
    def ndim(self) -> int:
        return self.tensor_type.ndim


@runtime_checkable
class Tensor(Protocol):
    """An operand or result of an op: a value of a traced graph, or an eager tensor."""

    @property
    def tensor_type(self) -> TensorType: ...


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a C-ordered array."""
    strides = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def hides_elements(x: object) -> bool:
    """Return True for a masked array with a masked element, which has no valid value for a tensor."""
    return isinstance(x, np.ndarray) and type(x) is not np.ndarray and bool(np.any(getattr(x, "mask", False)))


def type_of(array: Array) -> TensorType:
    """Return the tensor type of an array."""
    return TensorType(tuple(int(n) for n in array.shape), dtype_of(array.dtype))


_MOCK = np.zeros(1, np.uint8)


@lru_cache(4096)
def unread(type: TensorType, strides: tuple[int, ...]) -> np.ndarray:
    """Return a mock array of this type and these strides without memory; it is cached, because layers of a model use equal mocks."""
    base = _MOCK if type.dtype.itemsize == 1 else np.zeros(1, type.dtype.numpy)
    return np.lib.stride_tricks.as_strided(base.view(type.dtype.numpy), type.shape, strides, writeable=False)

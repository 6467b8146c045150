"""The annotations of job functions.

    def job(x: Numpy.Placeholder((100, 784)), y: ListNumpy.Placeholder((50,), dtype=int32)) -> Callback[Numpy]: ...

`Numpy.Placeholder` declares one logical array, `ListNumpy.Placeholder` one array per device, `ListListNumpy.Placeholder` a list of them per
device.  A placeholder is a class, so it nests in `typing.Tuple`.
`FixedTensorDef` and `MirroredTensorDef` are the older spelling, as default values of parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, SourceLine, no_attribute, user_line
from jobflow.core.types import DType, TensorType, dtype_of, float32, record, tensor_buffer

T = TypeVar("T")


@dataclass(frozen=True)
class Declared:
    """What one placeholder says: the type of the logical array (of the largest array per device if `per_device`), and where it says so."""

    type: TensorType
    per_device: bool
    where: SourceLine
    #: whether each device has a list of arrays, which no tensor of the job holds: as many as axis 0 has
    nested: bool = False

    def __str__(self) -> str:
        return f"{self.type}{', a list' if self.nested else ''}{' per device' if self.per_device else ''} ({self.where})"


class Definition:
    """What a program reads of a declared argument."""

    declared: Declared

    @property
    def shape(self) -> tuple[int, ...]:
        """As declared."""
        return self.declared.type.shape

    @property
    def dtype(self) -> DType:
        """As declared."""
        return self.declared.type.dtype

    @property
    def is_dynamic(self) -> bool:
        """Whether arrays that are passed may be smaller: each device has its own."""
        return self.declared.per_device

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "declared":
            raise AttributeError(name)
        raise no_attribute(name, f'{user_line()}: {self!r} has shape, dtype and is_dynamic, no "{name}"; the tensor that the body is given has more')


class Placeholder(Definition, type):
    """The class of placeholders, which are classes themselves."""

    def __repr__(cls) -> str:
        declared = cls.declared
        return f"jobflow.typing.{cls.__name__}({declared.type.shape}, dtype={declared.type.dtype!r})"


class Numpy:
    """As a result: the logical array as one `numpy.ndarray`."""

    @staticmethod
    def Placeholder(shape: tuple[int, ...], dtype: DType = float32) -> Any:
        """An argument that is one array of exactly `shape`; numbers of other types are converted to `dtype` where nothing is lost."""
        name = "Numpy.Placeholder"
        return Placeholder(name, (Numpy,), {"declared": _declare(name, shape, dtype, per_device=False)})


class ListNumpy:
    """As a result: a list with one `numpy.ndarray` per device."""

    @staticmethod
    def Placeholder(shape: tuple[int, ...], dtype: DType = float32) -> Any:
        """An argument that is a list of one array per device, each with as many axes as `shape` and at most as many elements."""
        name = "ListNumpy.Placeholder"
        return Placeholder(name, (ListNumpy,), {"declared": _declare(name, shape, dtype, per_device=True)})


class ListListNumpy:
    """As a result: a list with one list of `numpy.ndarray` per device."""

    @staticmethod
    def Placeholder(shape: tuple[int, ...], dtype: DType = float32) -> Any:
        """An argument that is, for each device, a list of shape[0] arrays, each (1, ...) with the axes of shape and no more elements than shape[1:].

        In the body of the job it is a tensor list, for `tensor_list_to_tensor_buffer`.
        """
        name = "ListListNumpy.Placeholder"
        return Placeholder(name, (ListListNumpy,), {"declared": _declare(name, shape, dtype, per_device=True, nested=True)})


class Callback(Generic[T]):
    """As a result: calling the job returns a function that takes a handler; the handler gets the value as `T` says."""


class Bundle(Generic[T]):
    """As a result: any nesting of tuples, lists and dicts; each leaf as `T` says (`Numpy` or `ListNumpy`)."""


class FixedTensorDef(Definition):
    """Default value of a parameter that is one array of exactly `shape`; the older spelling of `Numpy.Placeholder`."""

    per_device = False
    nested = False

    def __init__(self, shape: Sequence[int], dtype: DType = float32) -> None:
        listed = tuple(shape) if isinstance(shape, list) else shape
        self.declared = _declare(type(self).__name__, listed, dtype, per_device=self.per_device, nested=self.nested)

    def __repr__(self) -> str:
        return f"jobflow.{type(self).__name__}({self.declared.type.shape}, dtype={self.declared.type.dtype!r})"


class MirroredTensorDef(FixedTensorDef):
    """Default value of a parameter that is one array per device; the older spelling of `ListNumpy.Placeholder`."""

    per_device = True


class MirroredTensorListDef(MirroredTensorDef):
    """Default value of a parameter that is a list of arrays per device; the older spelling of `ListListNumpy.Placeholder`."""

    nested = True


def _declare(what: str, shape: Any, dtype: Any, *, per_device: bool, nested: bool = False) -> Declared:
    where = user_line()
    if not isinstance(shape, tuple):
        raise JobError(f"{what} at {where}: shape must be a tuple of positive ints, e.g. (100, 784); got {shape!r}")
    if not all(not isinstance(n, bool) and hasattr(n, "__index__") and int(n.__index__()) > 0 for n in shape):
        raise JobError(f"{what} at {where}: shape must be a tuple of positive ints; {shape!r} has something else in it")
    try:
        declared = dtype_of(dtype if dtype is not None else "?none")  # np.dtype(None) would be float64
    except (KeyError, TypeError):
        raise JobError(f"{what} at {where}: dtype must be an element type such as jobflow.float32; got {dtype!r}") from None
    if declared in (record, tensor_buffer) or (nested and not shape):
        raise JobError(f"{what} at {where}: {dtype!r} with shape {shape} is nothing that can be passed; arguments are arrays of numbers")
    return Declared(TensorType(tuple(int(n) for n in shape), declared), per_device, where, nested)

"""The annotations of job functions.

    def job(x: Numpy.Placeholder((100, 784)), y: ListNumpy.Placeholder((50,), dtype=int32)) -> Callback[Numpy]: ...

`Numpy.Placeholder` declares one logical array, `ListNumpy.Placeholder` one array per device, `ListListNumpy.Placeholder` a list of arrays per
device.  A placeholder is a class, so it nests in `typing.Tuple`.
`FixedTensorDef` and `MirroredTensorDef` are the older names, used as default values of parameters.
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
    """The declaration of a placeholder: its array type, and the line of the user's program that declares it.

    If `per_device`, the argument has one array per device, and `type` is the type of the largest array.
    """

    type: TensorType
    per_device: bool
    where: SourceLine
    #: True if each device has a list of arrays, processed on the host; axis 0 is the maximal length
    nested: bool = False

    def __str__(self) -> str:
        return f"{self.type}{', a list' if self.nested else ''}{' per device' if self.per_device else ''} ({self.where})"


class Definition:
    """Base class of declarations of job arguments, with the public attributes `shape`, `dtype` and `is_dynamic`."""

    declared: Declared

    @property
    def shape(self) -> tuple[int, ...]:
        """The declared shape."""
        return self.declared.type.shape

    @property
    def dtype(self) -> DType:
        """The declared element type."""
        return self.declared.type.dtype

    @property
    def is_dynamic(self) -> bool:
        """True if the argument has one array per device; these arrays may be smaller than declared."""
        return self.declared.per_device

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "declared":
            raise AttributeError(name)
        raise no_attribute(
            name, f'{self!r} at {user_line()}: a declaration has no "{name}", only shape, dtype and is_dynamic; use the tensor in the body of the job'
        )


class Placeholder(Definition, type):
    """Metaclass of placeholders; a placeholder is a class, so that it can be an element of `typing.Tuple`."""

    def __repr__(cls) -> str:
        declared = cls.declared
        return f"jobflow.typing.{cls.__name__}({declared.type.shape}, dtype={declared.type.dtype!r})"


class Numpy:
    """Annotation of a result: the logical array as one `numpy.ndarray`."""

    @staticmethod
    def Placeholder(shape: tuple[int, ...], dtype: DType = float32) -> Any:
        """Return the annotation of an argument that is one array of exactly `shape`.

        Arrays of other element types are converted to `dtype`; a conversion to integers or booleans must not change a value.
        """
        name = "Numpy.Placeholder"
        return Placeholder(name, (Numpy,), {"declared": _declare(name, shape, dtype, per_device=False)})


class ListNumpy:
    """Annotation of a result: a list with one `numpy.ndarray` per device."""

    @staticmethod
    def Placeholder(shape: tuple[int, ...], dtype: DType = float32) -> Any:
        """Return the annotation of an argument that is a list of one array per device.

        Each array has len(shape) axes and at most prod(shape) elements.
        """
        name = "ListNumpy.Placeholder"
        return Placeholder(name, (ListNumpy,), {"declared": _declare(name, shape, dtype, per_device=True)})


class ListListNumpy:
    """Annotation of a result: a list with one list of `numpy.ndarray` per device."""

    @staticmethod
    def Placeholder(shape: tuple[int, ...], dtype: DType = float32) -> Any:
        """Return the annotation of an argument that is a list of shape[0] arrays per device.

        Each array has the shape (1, ...), with len(shape) axes and at most prod(shape[1:]) elements.
        In the body of the job the argument is a tensor list, for `tensor_list_to_tensor_buffer`.
        """
        name = "ListListNumpy.Placeholder"
        return Placeholder(name, (ListListNumpy,), {"declared": _declare(name, shape, dtype, per_device=True, nested=True)})


class Callback(Generic[T]):
    """Annotation of a result of the form `T` for a handler: a call of the job returns a function.

    The caller passes the handler to this function. The handler is called with the result.
    """


class Bundle(Generic[T]):
    """Annotation of a result: any nesting of tuples, lists and dicts, with leaves in the form `T` (`Numpy`, `ListNumpy` or `ListListNumpy`)."""


class FixedTensorDef(Definition):
    """Declaration of a parameter of a job, as its default value: one array of exactly `shape`.

    Older name of `Numpy.Placeholder`.
    """

    per_device = False
    nested = False

    def __init__(self, shape: Sequence[int], dtype: DType = float32) -> None:
        listed = tuple(shape) if isinstance(shape, list) else shape
        self.declared = _declare(type(self).__name__, listed, dtype, per_device=self.per_device, nested=self.nested)

    def __repr__(self) -> str:
        return f"jobflow.{type(self).__name__}({self.declared.type.shape}, dtype={self.declared.type.dtype!r})"


class MirroredTensorDef(FixedTensorDef):
    """Declaration of a parameter of a job, as its default value: a list of one array per device.

    Older name of `ListNumpy.Placeholder`.
    """

    per_device = True


class MirroredTensorListDef(MirroredTensorDef):
    """Declaration of a parameter of a job, as its default value: a list of shape[0] arrays per device.

    Older name of `ListListNumpy.Placeholder`.
    """

    nested = True


def _declare(what: str, shape: Any, dtype: Any, *, per_device: bool, nested: bool = False) -> Declared:
    where = user_line()
    if not isinstance(shape, tuple):
        raise JobError(f"{what} at {where}: shape must be a tuple of positive ints, e.g. (100, 784); got {shape!r}")
    if not all(not isinstance(n, bool) and hasattr(n, "__index__") and int(n.__index__()) > 0 for n in shape):
        raise JobError(f"{what} at {where}: shape must be a tuple of positive ints; got {shape!r}")
    try:
        declared = dtype_of(dtype if dtype is not None else "?none")  # np.dtype(None) would be float64
    except (KeyError, TypeError):
        raise JobError(f"{what} at {where}: dtype must be an element type such as jobflow.float32; got {dtype!r}") from None
    if declared in (record, tensor_buffer) or (nested and not shape):
        raise JobError(f"{what} at {where}: {dtype!r} with shape {shape} cannot be an argument; declare an array of numbers")
    return Declared(TensorType(tuple(int(n) for n in shape), declared), per_device, where, nested)

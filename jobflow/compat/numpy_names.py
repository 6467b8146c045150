"""Removed parts of NumPy that programs of 2020 use: names such as `np.int`, ragged lists, and `float` of an array with one element."""

from __future__ import annotations

import builtins
import ctypes
import functools
import gc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.compat import library_names


class _Casts(dict[Any, Callable[[Any], Any]]):
    """The mapping `np.cast`, whose `np.cast[dtype](x)` converts x to an array of that type."""

    def __missing__(self, dtype: Any) -> Callable[[Any], Any]:
        return lambda x: np.asarray(x).astype(dtype)


def find_common_type(array_types: Sequence[Any], scalar_types: Sequence[Any]) -> Any:
    """Return the common type of arrays and scalars; scalars are considered only if they are of a higher kind."""
    arrays, scalars = (np.result_type(*types) if types else None for types in (array_types, scalar_types))
    if arrays is None or scalars is None:
        return arrays if scalars is None else scalars
    return np.result_type(arrays, scalars) if "buifc".find(scalars.kind) > "buifc".find(arrays.kind) else arrays


#: replacements in current Python and NumPy by removed name
TODAY: dict[str, Any] = {
    **{name: getattr(builtins, name) for name in ("int", "float", "complex", "object", "str")},
    "unicode": str,
    "float_": np.float64,
    "complex_": np.complex128,
    "string_": np.bytes_,
    "unicode_": np.str_,
    "object0": np.object_,
    "Inf": np.inf,
    "Infinity": np.inf,
    "infty": np.inf,
    "PINF": np.inf,
    "NINF": -np.inf,
    "NaN": np.nan,
    "NAN": np.nan,
    "alltrue": np.all,
    "sometrue": np.any,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "bool8": np.bool_,
    "int0": np.intp,
    "uint0": np.uintp,
    "mat": np.asmatrix,
    "msort": lambda a: np.sort(a, axis=0),
    "row_stack": np.vstack,
    "trapz": np.trapezoid,
    "in1d": np.isin,
    "round_": np.round,
    "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype),
    "asscalar": lambda a: a.item(),
    "alen": lambda a: len(np.atleast_1d(a)),
    "rank": np.ndim,
    "find_common_type": find_common_type,
    "obj2sctype": lambda rep, default=None: np.dtype(rep).type,
    "bytes0": np.bytes_,
    "string0": np.bytes_,
    "str0": np.str_,
    "void0": np.void,
    "issubclass_": lambda one, other: isinstance(one, type) and issubclass(one, other),
    "math": math,
    "cfloat": np.complex128,
    "singlecomplex": np.complex64,
    "longfloat": np.longdouble,
    "longcomplex": np.clongdouble,
    "clongfloat": np.clongdouble,
    "PZERO": 0.0,
    "NZERO": -0.0,
    "cast": _Casts(),
    "typeDict": np.sctypeDict,
}


_FROMSTRING, _RESHAPE = np.fromstring, np.reshape


def fromstring(string: str | bytes, dtype: Any = float, count: int = -1, *, sep: str = "", like: Any = None) -> Any:
    """Parse numbers from a string; without a separator, read them from the bytes of the string, which current NumPy rejects."""
    if sep:
        return _FROMSTRING(string, dtype, count, sep=sep)
    return np.frombuffer(string.encode("latin-1") if isinstance(string, str) else string, dtype, count).copy()


def reshape(a: Any, shape: Any = None, order: Any = "C", *, newshape: Any = None, **options: Any) -> Any:
    """Call `np.reshape`, with `newshape` as an alias of `shape`, as before NumPy 2.4."""
    return _RESHAPE(a, newshape if shape is None else shape, order, **options)


def add_methods(kind: type, methods: Mapping[str, Any]) -> None:
    """Add the methods that the class `kind` lacks; `setattr` does not support `kind`, which is implemented in C."""
    (table,) = [each for each in gc.get_referents(vars(kind)) if isinstance(each, dict)]
    for name, method in methods.items():
        table.setdefault(name, method)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def ragged(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `make`, which is `np.array` or `np.asarray`, so that rows of different lengths become an array of objects.

    A call that passes an element type raises ValueError for such rows, as in NumPy.
    """

    @functools.wraps(make)
    def convert(value: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return make(value, *arguments, **options)
        except ValueError as error:
            if "inhomogeneous" not in str(error) or arguments or options.get("dtype") is not None:
                raise
            return make(value, **{**options, "dtype": object})

    return convert


class Result(np.ndarray[Any, Any]):
    """An array that a job returned; with one element of any shape, `float`, `int` and "%f" convert it to a number.

    Examples are a mean loss of shape (1,), and a row of an array of shape (n, 1).
    """

    def __float__(self) -> float:
        return float(self.item() if self.size == 1 else np.asarray(self))

    def __int__(self) -> int:
        return int(self.item() if self.size == 1 else np.asarray(self))

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return the result of a NumPy function as a `Result`, or as a NumPy scalar if the result has no axes."""
        return array.view(Result) if array.ndim else np.asarray(array)[()]


def as_result(array: Any) -> Any:
    """Return the array as a `Result` view."""
    return array.view(Result)


def restore() -> None:
    """Add the removed names and argument forms to NumPy for the rest of the process."""
    old: Any = np
    old.fromstring, old.reshape, old.array, old.asarray = fromstring, reshape, ragged(np.array), ragged(np.asarray)
    for kind in (np.ndarray, np.generic):
        add_methods(kind, {"tostring": kind.tobytes})
    library_names.add(np, TODAY)

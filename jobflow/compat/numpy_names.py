"""What NumPy dropped and programs of 2020 use: names such as `np.int` and `np.float_`, and `float` of an array with one element."""

from __future__ import annotations

import builtins
from typing import Any, cast

import numpy as np

#: what Python and NumPy call it today
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
}


_FROMSTRING = np.fromstring


def fromstring(string: str | bytes, dtype: Any = float, count: int = -1, *, sep: str = "", like: Any = None) -> Any:
    """Numbers from a text; where nothing is between them, from the bytes of one, which NumPy refuses today."""
    if sep:
        return _FROMSTRING(string, dtype, count, sep=sep)
    return np.frombuffer(string.encode("latin-1") if isinstance(string, str) else string, dtype, count).copy()


class OneElement(np.ndarray[Any, Any]):
    """An array with one element and at least one axis, such as a mean loss, which `float`, `int` and "%f" still take for a number."""

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """What is computed of it is an ordinary array or number."""
        return np.asarray(array)[()] if return_scalar else np.asarray(array)


def with_numbers(array: Any) -> Any:
    """The array, or the same as OneElement if it has one element."""
    return array.view(OneElement) if array.size == 1 and array.ndim else array


def restore() -> None:
    """Give NumPy those of these names that it lacks, for the rest of the process, and the form of `fromstring` that it refuses."""
    cast(Any, np).fromstring = fromstring
    for name, value in TODAY.items():
        if name not in vars(np):  # which does not warn
            setattr(np, name, value)

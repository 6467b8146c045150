"""BLAS calls that NumPy lacks: y += alpha a b for matrices, y = alpha x + beta y for vectors.

The functions come from the OpenBLAS library of NumPy's wheels, which NumPy has already loaded.  The functions are called through ctypes, after a
check that they compute an example correctly.  With another BLAS or on another platform they are unavailable, and callers use NumPy.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from jobflow.core.types import Array
from jobflow.kernels.argument_block import address
from jobflow.ops.op import Call

ROW_MAJOR, COLUMN_MAJOR, NOT_TRANSPOSED, TRANSPOSED = 101, 102, 111, 112
#: the form of the same matrix for a column-major call
OPPOSITE = {NOT_TRANSPOSED: TRANSPOSED, TRANSPOSED: NOT_TRANSPOSED}
#: the element types of these functions, by NumPy's letters
REALS = {"f": ctypes.c_float, "d": ctypes.c_double}
#: prefix, suffix and integer type of function names in builds of OpenBLAS
NAMES = (("scipy_", "64_", ctypes.c_int64), ("", "64_", ctypes.c_int64), ("", "", ctypes.c_int))


def openblas_files() -> list[str]:
    """Return the paths of the OpenBLAS libraries in NumPy's wheel."""
    package = os.path.dirname(os.path.abspath(np.__file__))
    folders = [os.path.join(os.path.dirname(package), "numpy.libs"), os.path.join(package, ".dylibs")]
    return [path for folder in folders for path in sorted(glob.glob(os.path.join(folder, "*openblas*")))]


def adding_product(a: Array, b: Array, y: Array, beta: float = 1.0) -> Callable[[float], None] | None:
    """Return a function of alpha that computes y = alpha a b + beta y on NumPy matrices; None if BLAS cannot compute it."""
    gemm = _gemm(y.dtype.char)
    return None if gemm is None or refuses_product(a, b, y) else gemm(a, b, y, beta)


def refuses_product(a: Array, b: Array, y: Array) -> str | None:
    """Return the reason BLAS cannot add a b to y, or None if it can."""
    if {a.dtype, b.dtype, y.dtype} != {y.dtype}:
        return f"the element types {a.dtype}, {b.dtype} and {y.dtype} differ"
    if not (y.size and a.size):
        return "a factor or the result has no elements"
    strides = next((x.strides for x in (a, b, y) if _form(x) is None), None)
    if strides is not None:
        return f"BLAS cannot read a matrix with strides {strides}"
    return f"NumPy has no OpenBLAS that passes its test for {y.dtype}" if _gemm(y.dtype.char) is None else None


def subtracting_product(a: Array, b: Array, y: Array, rate: Array) -> Call | None:
    """Return the call for y -= rate a b on NumPy matrices, or None if BLAS cannot compute it.

    `rate` has one element, which is read when the call runs.
    """
    add = adding_product(a, b, y)
    return None if add is None else (_subtract, (add, rate.reshape(())))


class AddingProduct:
    """A prepared BLAS call that computes y = alpha a b + beta y; its only argument is alpha."""

    __slots__ = ("_alpha", "_arguments", "_data", "_function", "arrays", "beta")

    def __init__(
        self, function: Any, arguments: Sequence[Any], alpha: Any, data: Sequence[Any], arrays: tuple[Array, Array, Array], beta: float
    ) -> None:
        self._function, self._arguments, self._alpha, self._data = function, arguments, alpha, data
        self.arrays, self.beta = arrays, beta

    def __call__(self, factor: float) -> None:
        self._alpha.value = factor
        self._function(*self._arguments)

    def on(self, factor: float, *arrays: Array) -> None:
        """Compute y = factor a b + beta y, where `arrays` are other matrices a, b and y with the same types, shapes and strides."""
        for pointer, array in zip(self._data, arrays, strict=True):
            pointer.value = address(array)
        self(factor)


class AddedProduct(NamedTuple):
    """The operands of y = alpha a b + beta y.

    `alpha` is a number, or an array of one element whose negated value is read when the call runs.
    """

    a: Array
    b: Array
    y: Array
    beta: float
    alpha: float | Array


def added_product(call: Call) -> AddedProduct | None:
    """Return the operands of a call that this module prepared to add a product; None for any other call."""
    function: Any
    function, arguments = call
    alpha: Any = arguments[0] if arguments else None
    if function is _subtract:
        function, alpha = arguments
    if not isinstance(function, AddingProduct):
        return None
    a, b, y = function.arrays
    return AddedProduct(a, b, y, function.beta, alpha)


def weighted_sum(alpha: Array, x: Array, beta: Array, y: Array) -> Call | None:
    """Return the call for y = alpha x + beta y on NumPy vectors, or None if BLAS cannot compute it.

    `alpha` and `beta` have one element each, which is read when the call runs.
    """
    arrays = (alpha, x, beta, y)
    if len({a.dtype for a in arrays}) > 1 or x.shape != y.shape or not all(a.flags.c_contiguous and a.flags.writeable and a.size for a in arrays):
        return None
    function = _axpby(y.dtype.char)
    return None if function is None else function(*arrays)


def mixed(alpha: Array, x: Array, beta: Array, y: Array, new_y: Array, scratch: Array) -> list[Call]:
    """Return the calls for new_y = alpha x + beta y on vectors: a single BLAS call if new_y is y and BLAS supports the vectors.

    Otherwise, three NumPy calls compute the sum.  They overwrite `scratch`, a vector like x, which may be x itself.
    """
    fused = weighted_sum(alpha, x, beta, y) if y.ctypes.data == new_y.ctypes.data else None
    if fused is not None:
        return [fused]
    return [(np.multiply, (x, alpha, scratch)), (np.multiply, (y, beta, new_y)), (np.add, (new_y, scratch, new_y))]


def _subtract(product: Callable[[float], None], rate: Array) -> None:
    product(-rate.item())


def _form(x: Array) -> tuple[int, int] | None:
    """Return NOT_TRANSPOSED for a row-major or TRANSPOSED for a column-major matrix, and its leading dimension; None if BLAS cannot read it."""
    (rows, columns), (down, right), size = x.shape, x.strides, x.itemsize
    if right == size and down >= size * columns and down % size == 0:
        return NOT_TRANSPOSED, down // size
    if down == size and right >= size * rows and right % size == 0:
        return TRANSPOSED, right // size
    return None


@cache
def _gemm(kind: str) -> Callable[..., Callable[[float], None]] | None:
    """Return the function that prepares products of a NumPy element type ("f" or "d"); None without OpenBLAS, or if its test products are wrong."""
    library_function = _function("gemm", kind)
    if library_function is None:
        return None
    function, integer = library_function
    real = REALS[kind]

    def prepare(a: Array, b: Array, y: Array, beta: float = 1.0) -> Callable[[float], None]:
        alpha, forms = real(0.0), [_form(x) for x in (a, b, y)]
        (turn_a, line_a), (turn_b, line_b), (turn_y, line_y) = (form or (NOT_TRANSPOSED, 0) for form in forms)
        major = ROW_MAJOR if turn_y == NOT_TRANSPOSED else COLUMN_MAJOR
        sizes = [integer(n) for n in (*y.shape, a.shape[1])]
        data = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, y)]
        flags = [ctypes.c_int(word) for word in (major, *(turn if major == ROW_MAJOR else OPPOSITE[turn] for turn in (turn_a, turn_b)))]
        arguments = (*flags, *sizes, alpha, data[0], integer(line_a), data[1], integer(line_b), real(beta), data[2], integer(line_y))

        return AddingProduct(function, arguments, alpha, data, (a, b, y), beta)

    return prepare if _is_correct(prepare, kind) else None


@cache
def _axpby(kind: str) -> Callable[[Array, Array, Array, Array], Call] | None:
    """Return the function that prepares weighted sums of a NumPy element type ("f" or "d"); None without OpenBLAS, or if its test sum is wrong."""
    library_function = _function("axpby", kind)
    if library_function is None:
        return None
    function, integer = library_function
    real = REALS[kind]

    def prepare(alpha: Array, x: Array, beta: Array, y: Array) -> Call:
        # objects that share the arrays' memory and keep it alive: a call passes the current values of factors, and addresses of vectors
        factors, vectors = [real.from_buffer(a) for a in (alpha, beta)], [(real * x.size).from_buffer(a) for a in (x, y)]
        one = integer(1)
        return function, (integer(x.size), factors[0], vectors[0], one, factors[1], vectors[1], one)

    alpha, x, beta, y = (np.array(values, kind) for values in (3.0, [1.0, -2.0, 5.0], -2.0, [4.0, 1.0, 0.0]))
    expected = 3 * x - 2 * y
    call, arguments = prepare(alpha, x, beta, y)
    call(*arguments)
    return prepare if np.array_equal(y, expected) else None


def _function(name: str, kind: str) -> tuple[Any, Any] | None:
    if kind not in REALS:
        return None
    for path in openblas_files():
        library = ctypes.CDLL(path)
        for before, after, integer in NAMES:
            function = getattr(library, f"{before}cblas_{'s' if kind == 'f' else 'd'}{name}{after}", None)
            if function is not None:
                function.restype = None
                return function, integer
    return None


def _is_correct(prepare: Callable[..., Callable[[float], None]], kind: str) -> bool:
    """Return True if products of small integer matrices are exact, with each of the three matrices in row-major and column-major order."""
    a, b, y = (np.arange(m * n).reshape(m, n).astype(kind) - 4 for m, n in ((2, 3), (3, 4), (2, 4)))
    for by_columns in product((False, True), repeat=3):
        first, second, total = (m.T.copy().T if turn else m.copy() for turn, m in zip(by_columns, (a, b, y), strict=True))
        prepare(first, second, total)(-2.0)
        if not np.array_equal(total, y - 2 * (a @ b)):
            return False
    return True

"""Sparse tensors: indices and values of the elements other than 0, as in adjacency matrices of graphs.

A product of a sparse matrix and a dense one is composed of lookups and sums of rows.  The dense matrix may have any layout, and receives a
gradient.  Other functions raise an error that names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, AxisError, DtypeError, JobError, ShapeError, no_attribute, user_line
from jobflow.core.layout import B, Placement
from jobflow.core.types import Array, DType
from jobflow.core.types import Tensor as Value
from jobflow.functional.binary_functions import mm
from jobflow.functional.dispatch import NotDense, attribute, method
from jobflow.functional.indexing import getitem, listed
from jobflow.functional.joining import cat
from jobflow.functional.nn_base import composed, formula, whole
from jobflow.functional.packed_sequences import constant_for
from jobflow.functional.typed import Tensor
from jobflow.functional.values import shown, value_of
from jobflow.ops import elementwise as ew
from jobflow.ops import shape as sh
from jobflow.ops.index import gather, unsorted_segment_sum
from jobflow.tensors.convert import gathered
from jobflow.tensors.state import building_now, state
from jobflow.tensors.tensor import lasting_array

__all__ = ["SparseTensor", "spmm"]


@formula
def _product(dense: Tensor, rows: Tensor, columns: Tensor, values: Tensor, size: int) -> Value:
    """Return y[i] = sum of values[k] dense[columns[k]] over all k with rows[k] == i, for i < size."""
    factors = sh.reshape(values, (*values.tensor_type.shape, *(1,) * (dense.tensor_type.ndim - 1)))
    return unsorted_segment_sum(ew.multiply(gather(dense, columns, 0), factors), rows, size)


@composed
def _sums(values: Tensor, at: Tensor, size: int) -> Value:
    """Return the sums of the values by index."""
    return unsorted_segment_sum(values, at, size)


class SparseTensor(NotDense):
    """A sparse tensor: `values` at the constant coordinates `indices`; repeated indices add up.

    Created by `sparse_coo_tensor`, `sparse_csr_tensor` and `Tensor.to_sparse`.
    """

    __slots__ = ("_coordinates", "_copies", "_placed", "_values", "coalesced", "is_sparse_csr", "shape")

    def __init__(self, coordinates: Array, values: Tensor, shape: tuple[int, ...], coalesced: bool, csr: bool = False) -> None:
        self._coordinates = coordinates
        self._values = _replicated(values)
        self.shape = shape
        self.coalesced = coalesced
        self.is_sparse_csr = csr
        #: placement of a dense operand, None for local -> rows and columns on it, and a copy of values from another placement with their version
        self._placed: dict[Placement | None, list[Tensor]] = {}
        self._copies: dict[Placement | None, tuple[int, Tensor]] = {}

    # ---------------------------------------------------------------- facts

    is_sparse = property(lambda self: not self.is_sparse_csr, doc="True for the COO format.")
    dtype = property(lambda self: self._values.dtype, doc="The element type.")
    ndim = property(lambda self: len(self.shape), doc="The number of axes.")
    device = property(lambda self: self._values.device, doc="The device of the values.")
    requires_grad = property(lambda self: self._values.requires_grad, doc="True if the values receive gradients.")

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of axis `dim`."""
        return self.shape if dim is None else self.shape[self._axis("size", dim)]

    def dim(self) -> int:
        """Return the number of axes."""
        return self.ndim

    def numel(self) -> int:
        """Return the number of elements, including zeros."""
        return math.prod(self.shape)

    def sparse_dim(self) -> int:
        """Return the number of axes with indices; values have the remaining axes."""
        return len(self._coordinates)

    def dense_dim(self) -> int:
        """Return the number of axes of each value."""
        return self.ndim - len(self._coordinates)

    def _nnz(self) -> int:
        return self._coordinates.shape[1]

    def is_coalesced(self) -> bool:
        """Return True if the indices are sorted and none occurs twice."""
        return self.coalesced

    def indices(self) -> Tensor:
        """Return the indices [axes, values] of a coalesced tensor.  Raises: JobError for another tensor."""
        self._check_coalesced("indices")
        return self._indices()

    def values(self) -> Tensor:
        """Return the values of a coalesced tensor.  Raises: JobError for another tensor."""
        self._check_coalesced("values")
        return self._values

    def _indices(self) -> Tensor:
        return listed(self._values, np.array(self._coordinates))

    def crow_indices(self) -> Tensor:
        """Return the position of the first value of each row, and the number of values, for the CSR format."""
        self._check_csr("crow_indices")
        counts = np.bincount(self._coordinates[0], minlength=self.shape[0])
        return listed(self._values, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    def col_indices(self) -> Tensor:
        """Return the column of each value, for the CSR format."""
        self._check_csr("col_indices")
        return listed(self._values, np.array(self._coordinates[1]))

    def _check_coalesced(self, what: str) -> None:
        if not self.coalesced:
            raise JobError(f"{what} at {user_line()}: {self._text()} may have repeated indices; call coalesce() first")

    def _check_csr(self, what: str) -> None:
        if not self.is_sparse_csr:
            raise JobError(f"{what} at {user_line()}: {self._text()} is not in the CSR format; call to_sparse_csr() first")

    def _axis(self, what: str, dim: int) -> int:
        if not -self.ndim <= whole(what, "dim", dim) < self.ndim:
            raise AxisError(f"{what} at {user_line()}: dim {dim} is out of range, {-self.ndim} to {self.ndim - 1}, for {self._text()}")
        return dim % self.ndim

    def _text(self) -> str:
        return f"a sparse tensor {self.dtype.name}{list(self.shape)}"

    def __repr__(self) -> str:
        shape, count = tuple(self.shape), self._nnz()
        return f"SparseTensor(indices={self._coordinates.tolist()},\n       values={shown(self._values)}, size={shape}, nnz={count})"

    # ---------------------------------------------------------------- conversions

    def _with(self, values: Tensor) -> SparseTensor:
        return SparseTensor(self._coordinates, values, self.shape, self.coalesced, self.is_sparse_csr)

    def coalesce(self) -> SparseTensor:
        """Return the tensor with sorted indices, where values with equal indices are added."""
        if self.coalesced:
            return self
        shape = self.shape[: self.sparse_dim()]
        flat, inverse = np.unique(
            np.ravel_multi_index(tuple(self._coordinates), shape) if self._nnz() else np.zeros(0, np.int64), return_inverse=True
        )
        coordinates = np.array(np.unravel_index(flat, shape), np.int64).reshape(len(shape), -1)
        return SparseTensor(coordinates, _sums(self._values, listed(self._values, inverse.astype(np.int64)), flat.size), self.shape, True)

    def to_dense(self, dtype: DType | None = None) -> Tensor:
        """Return the tensor with all elements as a dense tensor, cast to `dtype` if it is passed."""
        shape = self.shape[: self.sparse_dim()]
        at = np.ravel_multi_index(tuple(self._coordinates), shape) if self._nnz() else np.zeros(0, np.int64)
        dense = _sums(self._values, listed(self._values, np.asarray(at, np.int64)), math.prod(shape)).reshape(self.shape)
        return dense if dtype is None else dense.to(dtype)

    def to_sparse(self) -> SparseTensor:
        """Return the tensor in the COO format."""
        return SparseTensor(self._coordinates, self._values, self.shape, self.coalesced)

    def to_sparse_csr(self) -> SparseTensor:
        """Return a matrix in the CSR format.  Raises: ShapeError unless the tensor has two axes with indices."""
        self._check_matrix("to_sparse_csr")
        sorted_matrix = self.coalesce()
        return SparseTensor(sorted_matrix._coordinates, sorted_matrix._values, self.shape, True, csr=True)

    def transpose(self, dim0: int, dim1: int) -> SparseTensor:
        """Return the tensor with two axes swapped; both must have indices."""
        a, b = self._axis("transpose", dim0), self._axis("transpose", dim1)
        if max(a, b) >= self.sparse_dim():
            raise AxisError(f"transpose at {user_line()}: axes {dim0} and {dim1} of {self._text()} must be among the axes with indices")
        order = list(range(self.ndim))
        order[a], order[b] = order[b], order[a]
        shape = tuple(self.shape[i] for i in order)
        return SparseTensor(self._coordinates[order[: self.sparse_dim()]], self._values, shape, self.coalesced and a == b)

    def t(self) -> SparseTensor:
        """Return the transposed matrix."""
        self._check_matrix("t")
        return self.transpose(0, 1)

    T = property(t, doc="The transposed matrix.")

    def to(self, *arguments: Any, **options: Any) -> SparseTensor:
        """Return the tensor with values in another element type or on another device, as `Tensor.to` does."""
        return self._with(self._values.to(*arguments, **options))

    def cpu(self) -> SparseTensor:
        """Return the tensor itself, or a copy in host memory."""
        return self._with(self._values.cpu())

    def cuda(self, *arguments: Any, **options: Any) -> SparseTensor:
        """Return the tensor on a GPU, as `Tensor.cuda` does."""
        return self._with(self._values.cuda(*arguments, **options))

    def float(self) -> SparseTensor:
        """Return the tensor with float32 values."""
        return self._with(self._values.float())

    def double(self) -> SparseTensor:
        """Return the tensor with float64 values."""
        return self._with(self._values.double())

    def detach(self) -> SparseTensor:
        """Return the tensor with values that receive no gradients."""
        return self._with(self._values.detach())

    def clone(self) -> SparseTensor:
        """Return a copy."""
        return self._with(self._values.clone())

    # ---------------------------------------------------------------- arithmetic

    def __mul__(self, factor: Any) -> SparseTensor:
        if not isinstance(factor, int | float | np.number):
            raise DtypeError(f"mul at {user_line()}: the factor of {self._text()} must be a number, not {type(factor).__name__}; call to_dense()")
        return self._with(self._values * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> SparseTensor:
        if not isinstance(divisor, int | float | np.number):
            raise DtypeError(f"div at {user_line()}: the divisor of {self._text()} must be a number, not {type(divisor).__name__}; call to_dense()")
        return self._with(self._values / divisor)

    def __add__(self, other: Any) -> SparseTensor:
        return _sum_of("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        if not isinstance(other, Tensor):
            raise DtypeError(f"add at {user_line()}: {self._text()} cannot be added to {type(other).__name__}; call to_dense()")
        return other + self.to_dense()

    def __rsub__(self, other: Any) -> Tensor:
        return (-self).__radd__(other)

    def __sub__(self, other: Any) -> SparseTensor:
        return _sum_of("sub", self, other, -1)

    add, sub = __add__, __sub__

    def __neg__(self) -> SparseTensor:
        return self._with(-self._values)

    def sum(self) -> Tensor:
        """Return the sum of all elements."""
        return self._values.sum()

    def matmul(self, other: Tensor) -> Tensor:
        """Return the product with a dense matrix or vector.  Raises: ShapeError, DtypeError if they do not match."""
        return _multiplied("matmul", self, other)

    def mm(self, mat2: Tensor) -> Tensor:
        """Return the product with a dense matrix.  Raises: ShapeError, DtypeError if they do not match."""
        return _multiplied("mm", self, mat2)

    def mv(self, vec: Tensor) -> Tensor:
        """Return the product with a dense vector.  Raises: ShapeError, DtypeError if they do not match."""
        return _multiplied("mv", self, vec)

    def __matmul__(self, other: Any) -> Tensor:
        return _multiplied("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _multiplied("matmul", other, self)

    def _check_matrix(self, what: str) -> None:
        if self.ndim != 2 or self.sparse_dim() != 2:
            raise ShapeError(f"{what} at {user_line()}: {self._text()} must be a matrix, with indices along both axes")

    def operands_for(self, dense: Tensor, what: str) -> list[Tensor]:
        """Return rows, columns and values on the placement of the dense operand.

        Raises: JobError if one of values and operand is local and the other global, unless the values are local constants.
        """
        values, local = self._values, self._values.layout is None
        trained = values.requires_grad or values.traced is not None
        if local != (dense.layout is None) and (trained or not local):
            raise JobError(
                f"{what} at {user_line()}: {self._text()} is {'local' if local else 'global'}, but {dense.tensor_type} is "
                f"{'global' if local else 'local'}; create both on one placement"
            )
        key = None if dense.layout is None else dense.layout.placement
        placed = self._placed.get(key)
        if placed is None or building_now() is not None:
            placed = [constant_for(dense, np.ascontiguousarray(array)) for array in self._coordinates]
            if building_now() is None:
                self._placed[key] = placed
        if trained:
            return [*placed, values]
        if key != (None if values.layout is None else values.layout.placement):
            return [*placed, self._copy_of_values(dense, key)]
        if (building := building_now()) is not None:
            building.constant(values)
        return [*placed, values]

    def _copy_of_values(self, dense: Tensor, key: Placement | None) -> Tensor:
        """Return the values on the placement of a dense operand; a write to the values makes a new copy."""
        version, copy = self._copies.get(key, (-1, None))
        if copy is None or version != self._values.version or building_now() is not None:
            copy = constant_for(dense, _array_of(self._values))
            if building_now() is None:
                self._copies[key] = self._values.version, copy
        return copy

    # ---------------------------------------------------------------- other functions

    def apply_function(self, what: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of a function of tensors called with this tensor; raise JobError for functions that accept dense tensors only."""
        if what in ("matmul", "mm", "mv", "spmm") and len(arguments) == 2 and not named:
            return _multiplied(what, *arguments)
        if what in ("add", "sub") and len(arguments) == 2 and named.keys() <= {"alpha"}:
            a, b = arguments
            alpha = named.get("alpha", 1)
            if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number):
                raise DtypeError(f"{what} at {user_line()}: alpha must be a number; got {alpha!r:.80}")
            factor: Any = alpha if what == "add" else -alpha
            return _sum_of(what, a, b, factor) if isinstance(a, SparseTensor) else a + b.to_dense() * factor
        raise JobError(f"{what} at {user_line()}: {self._text()} is not accepted; call to_dense() first")

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError(f"len at {user_line()}: {self._text()} has no axes; use numel()")
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise no_attribute(name, f"{name} at {user_line()}: a sparse tensor has no attribute {name!r}; call to_dense() first", dir(type(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return SparseTensor, (self._coordinates, self._values, self.shape, self.coalesced, self.is_sparse_csr)


def _refused(name: str) -> Callable[..., Any]:
    """Return a method that raises JobError, for an operator that sparse tensors lack."""

    def refuse(self: SparseTensor, *operands: Any) -> Any:
        raise JobError(f"{name.strip('_')} at {user_line()}: {self._text()} has no operator {name}; call to_dense() first")

    return refuse


for _name in [
    "rtruediv",
    "pow",
    "rpow",
    "floordiv",
    "mod",
    "abs",
    "getitem",
    "setitem",
    "bool",
    "lt",
    "gt",
    "le",
    "ge",
]:
    setattr(SparseTensor, f"__{_name}__", _refused(f"__{_name}__"))


def _sum_of(what: str, a: SparseTensor, b: Any, factor: Any = 1) -> SparseTensor:
    """Return a + factor * b for sparse tensors of one shape, without repeated indices if both operands have none."""
    if not isinstance(b, SparseTensor):
        remedy = "write dense + sparse" if isinstance(b, Tensor) else "call to_dense()"
        raise DtypeError(f"{what} at {user_line()}: the other operand of {a._text()} must be sparse, not {type(b).__name__}; {remedy}")
    if a.shape != b.shape or a.sparse_dim() != b.sparse_dim() or a.is_sparse_csr != b.is_sparse_csr:
        raise ShapeError(f"{what} at {user_line()}: {a._text()} and {b._text()} must have the same shape, format and axes with indices")
    values = cat([a._values, b._values if factor == 1 else b._values * factor])
    total = SparseTensor(np.concatenate([a._coordinates, b._coordinates], axis=1), values, a.shape, False, a.is_sparse_csr)
    if not (a.coalesced and b.coalesced):
        return total
    sorted_total = total.coalesce()
    return sorted_total.to_sparse_csr() if a.is_sparse_csr else sorted_total


def _replicated(values: Tensor) -> Tensor:
    """Return local values unchanged, and global ones as a broadcast tensor; layouts of traced values are chosen at compilation."""
    layout = values.layout
    if layout is None or values.traced is not None or all(each == B for each in layout.sbp):
        return values
    return values.to_global(sbp=[B] * len(layout.sbp))


def _array_of(values: Tensor) -> Array:
    """Return the elements on every rank, also on ranks outside of the placement of the values."""
    return lasting_array(values) if values.layout is None else gathered(state(), values, "a sparse tensor")


def _multiplied(what: str, a: Any, b: Any) -> Tensor:
    """Return the product of a sparse matrix and a dense operand, in either order."""
    if isinstance(b, NotDense):
        if not isinstance(a, Tensor):
            kind = "sparse" if isinstance(a, NotDense) else type(a).__name__
            raise DtypeError(f"{what} at {user_line()}: the other operand of a sparse matrix must be a dense tensor, not {kind}; call to_dense()")
        assert isinstance(b, SparseTensor)
        if a.ndim == 1:
            return _multiplied(what, b.t(), a)
        if a.ndim != 2:
            raise ShapeError(f"{what} at {user_line()}: {a.tensor_type} must be a matrix or a vector for a product with {b._text()}")
        return _multiplied(what, b.t(), a.t()).t()
    a._check_matrix(what)
    if not isinstance(b, Tensor):
        raise DtypeError(f"{what} at {user_line()}: the other operand of a sparse matrix must be a dense tensor, not {type(b).__name__}")
    if b.ndim not in {"mm": (2,), "mv": (1,)}.get(what, (1, 2)) or b.shape[0] != a.shape[1]:
        raise ShapeError(f"{what} at {user_line()}: {a._text()} cannot be multiplied by {b.tensor_type}; pass {a.shape[1]} rows")
    if a.dtype is not b.dtype:
        raise DtypeError(f"{what} at {user_line()}: {a._text()} and {b.tensor_type} differ in element type; cast one of them")
    rows, columns, values = a.operands_for(b, what)
    return _product(b, rows, columns, values, a.shape[0])


def spmm(mat1: Any, mat2: Any) -> Tensor:
    """Return the product of two matrices, of which one may be sparse.  Raises: ShapeError, DtypeError for other operands."""
    if isinstance(mat1, SparseTensor) or isinstance(mat2, SparseTensor):
        return _multiplied("spmm", mat1, mat2)
    if not isinstance(mat1, Tensor) or not isinstance(mat2, Tensor):
        got = f"{type(mat1).__name__} and {type(mat2).__name__}"
        raise DtypeError(f"spmm at {user_line()}: both operands must be tensors; got {got}")
    return mm(mat1, mat2)


def to_sparse(x: Tensor, sparse_dim: int | None = None) -> SparseTensor:
    """Return the tensor in the COO format: the elements other than 0; with `sparse_dim`, the slices other than 0 along the first axes.

    All ranks must call this function for a global tensor.  Raises: ArgumentError for a `sparse_dim` out of range, JobError during tracing.
    """
    count = x.ndim if sparse_dim is None else whole("to_sparse", "sparse_dim", sparse_dim)
    if not 0 < count <= x.ndim:
        raise ArgumentError(f"to_sparse at {user_line()}: sparse_dim must be in [1, {x.ndim}], the axes of {x.tensor_type}; got {count}")
    array = value_of(x.detach(), "to_sparse")
    present = (array != 0).any(axis=tuple(range(count, x.ndim)))
    coordinates = np.array(np.nonzero(present), np.int64)
    return SparseTensor(coordinates, getitem(x, tuple(listed(x, row) for row in coordinates)), tuple(x.shape), True)


def to_sparse_csr(x: Tensor) -> SparseTensor:
    """Return a matrix in the CSR format.  Raises: ShapeError unless x has two axes."""
    if x.ndim != 2:
        raise ShapeError(f"to_sparse_csr at {user_line()}: {x.tensor_type} must be a matrix")
    return to_sparse(x).to_sparse_csr()


def _false(x: Tensor) -> bool:
    """False; True for a sparse tensor of this format."""
    return False


class SparseMethods:
    """Methods of tensors that convert to sparse tensors."""

    __slots__ = ()

    to_sparse = method(to_sparse)
    to_sparse_csr = method(to_sparse_csr)
    is_sparse_csr = attribute(_false)

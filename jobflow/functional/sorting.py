"""Sorting, top-k, unique elements, and einsum."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, counted, user_line
from jobflow.functional.dispatch import is_tensor, method
from jobflow.functional.global_tensors import value_of
from jobflow.functional.indexing import listed
from jobflow.functional.promotion import together
from jobflow.functional.reductions import sum
from jobflow.functional.selecting import diagonal
from jobflow.functional.shapes import axis_of, expand, integer, permute, reshape
from jobflow.functional.typed import Tensor
from jobflow.ops.matmul import BatchMatMul, MatMul
from jobflow.ops.sort import Sort, TopK
from jobflow.tensors.constant_values import depends_on_run
from jobflow.tensors.run import run, run_several
from jobflow.tensors.state import running

__all__ = [
    "argsort", "einsum", "kthvalue", "sort", "topk", "unique",
]  # fmt: skip


class Ordered(NamedTuple):
    """Sorted elements and their original indices."""

    values: Tensor
    indices: Tensor


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Ordered:
    """Return (values, indices): the elements sorted along axis `dim`, and their int64 indices in x.

    The sort is always stable.  NaN counts as the largest number.
    """
    if not x.ndim:
        return Ordered(*(y.reshape(()) for y in sort(reshape(x, 1), 0, descending)))
    return Ordered(*run_several(Sort(axis_of("sort", dim, x.ndim), bool(descending)), x))


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the int64 indices that sort the elements along axis `dim`, as in `sort`."""
    return sort(x, dim, descending).indices


def topk(x: Tensor, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True) -> Ordered:
    """Return (values, indices) of the k largest elements along axis `dim`, or the k smallest with `largest=False`, the most extreme first.

    `dim` defaults to the last axis; indices are int64.  Raises: ShapeError for a k out of range.

    Examples:
        >>> values, indices = flow.tensor([3, 9, 5]).topk(2)
        >>> values, indices
        (tensor([9, 5], dtype=jobflow.int64), tensor([1, 2], dtype=jobflow.int64))
    """
    axis = axis_of("topk", -1 if dim is None else dim, x.ndim)
    result = Ordered(*run_several(TopK(axis, integer("topk", k), bool(largest)), x if x.ndim else reshape(x, 1)))
    return result if x.ndim or k != 1 else Ordered(*(y.reshape(()) for y in result))


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Ordered:
    """Return (value, index): the k-th smallest element along axis `dim`, counted from 1, and its int64 index.

    Raises: ShapeError for a k out of range.
    """
    axis = axis_of("kthvalue", dim, x.ndim)
    if not x.ndim:
        return Ordered(*(y.reshape(()) for y in kthvalue(reshape(x, 1), k)))
    if not 1 <= k <= x.shape[axis]:
        raise ShapeError(f"kthvalue at {user_line()}: k={k} is out of range, 1 to {x.shape[axis]}, for axis {axis} of {x.tensor_type}")
    values, indices = (y.narrow(axis, k - 1, 1) for y in sort(x, axis))
    return Ordered(values, indices) if keepdim else Ordered(values.squeeze(axis), indices.squeeze(axis))


def unique(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """Return the distinct elements, or slices along axis `dim`, in ascending order.

    `return_inverse` adds the index of each input element in the result, and `return_counts` the number of occurrences.  All ranks must call
    this function.  Raises: JobError during tracing, because the number of elements is unknown.
    """
    if depends_on_run(x):
        raise JobError(
            f"unique at {user_line()}: the number of distinct elements is not known while {running()} runs; call unique outside of {running()}"
        )
    axis = None if dim is None else axis_of("unique", dim, x.ndim)
    values, inverse, counts = np.unique(value_of(x, "unique"), return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(x.shape if axis is None else -1)
    parts = [values, *([inverse.astype(np.int64)] if return_inverse else []), *([counts.astype(np.int64)] if return_counts else [])]
    results = tuple(listed(x, part) for part in parts)
    return results if len(results) > 1 else results[0]


# --------------------------------------------------------------------------- einsum


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Return sums of products over named axes, such as "bij,bjk->bik"; "..." stands for leading axes that broadcast.

    Instead of an equation, a list of axes, 0 to 51, may follow each operand, and a list for the result may follow the last one.

    Operands are multiplied from the left, two at a time, as one batched matrix product each.  Common axes that later terms need are batch
    axes; other common axes are summed.  As in PyTorch, a sum over an axis of one operand widens integers to int64, like `sum`, and products
    keep the type of their operands.
    Raises: ShapeError for an equation that does not match the operands, DtypeError unless the equation is a string; ArgumentError for other lists.

    Examples:
        >>> flow.einsum("bij,bjk->bik", flow.ones(2, 3, 4), flow.ones(2, 4, 5)).shape
        jobflow.Size([2, 3, 5])
    """
    if is_tensor(equation) and operands:
        equation, operands = _from_lists((equation, *operands))
    if not isinstance(equation, str):
        raise DtypeError(f"einsum at {user_line()}: equation must be a string such as 'ij,jk->ik'; got {type(equation).__name__}")
    listed = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    words, result = _parsed(equation, listed)
    xs = list(together("einsum", *listed))
    terms = [_single(x, word, result + "".join(words[:i] + words[i + 1 :])) for i, (x, word) in enumerate(zip(xs, words, strict=True))]
    y, word = terms[0]
    for i, (other, mark) in enumerate(terms[1:], start=1):
        y, word = _product(y, word, other, mark, result + "".join(mark for _, mark in terms[i + 1 :]))
    y, word = _single(y, word, result)
    return permute(y, [word.index(c) for c in result])


def _from_lists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Return the equation and the operands for operands that are followed by lists of axes."""
    pairs, result = (arguments, ()) if len(arguments) % 2 == 0 else (arguments[:-1], arguments[-1:])
    for axes in (*pairs[1::2], *result):
        if not isinstance(axes, list | tuple):
            raise ArgumentError(f"einsum at {user_line()}: an operand must be followed by a list of the numbers of its axes; got {axes!r:.80}")
    words = ["".join(map(_symbol, axes)) for axes in (*pairs[1::2], *result)]
    return "->".join([",".join(words[: len(pairs) // 2]), *words[len(pairs) // 2 :]]), pairs[::2]


def _symbol(axis: Any) -> str:
    """Return the letter of an axis from 0 to 51, and "..." for the ellipsis; raise ArgumentError for another value."""
    if axis is Ellipsis:
        return "..."
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or not 0 <= axis < 52:
        raise ArgumentError(f"einsum at {user_line()}: axes must be numbers from 0 to 51, or ...; got {axis!r:.80}")
    return string.ascii_uppercase[axis] if axis < 26 else string.ascii_lowercase[axis - 26]


def _parsed(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return the axis letters of the operands and of the result, with unique letters in place of "...".

    Raises: ShapeError for an equation that does not match the operands.
    """
    what = f"einsum {equation!r} at {user_line()}"
    left, arrow, right = equation.replace(" ", "").partition("->")
    words = left.split(",")
    if len(words) != len(operands):
        raise ShapeError(f"{what}: the equation has {counted(len(words), 'term')} for {counted(len(operands), 'tensor')}; write one term per tensor")
    extra = [x.ndim - len(word.replace("...", "")) if "..." in word else 0 for word, x in zip(words, operands, strict=True)]
    dots = "".join(chr(ord("\u0391") + i) for i in range(max([0, *extra])))
    if not arrow:
        letters = "".join(words).replace("...", "")
        right = ("..." if dots else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    words = [word.replace("...", dots[len(dots) - max(n, 0) :]) for word, n in zip(words, extra, strict=True)]
    result = right.replace("...", dots)
    for word, x in zip(words, operands, strict=True):
        if len(word) != x.ndim:
            raise ShapeError(f"{what}: the term {word!r} must have one letter per axis of its tensor {x.tensor_type}")
    if len(set(result)) != len(result) or not set(result) <= set("".join(words)):
        raise ShapeError(f"{what}: the result {result!r} must have distinct letters of the operands")
    sizes: dict[str, int] = {}
    for word, x in zip(words, operands, strict=True):
        for c, n in zip(word, x.shape, strict=True):
            if sizes.setdefault(c, n) != n and 1 not in (sizes[c], n):
                raise ShapeError(f"{what}: the axis {c!r} has {sizes[c]} elements in one tensor and {n} in another")
            sizes[c] = max(sizes[c], n)
    return words, result


def _single(x: Tensor, word: str, needed: str) -> tuple[Tensor, str]:
    """Return x and its axis letters after removing repeated letters, by diagonals, and letters not in `needed`, by sums."""
    for c in [c for c in dict.fromkeys(word) if word.count(c) > 1]:
        while word.count(c) > 1:
            first, second = word.index(c), word.rindex(c)
            x = diagonal(x, 0, first, second)
            word = "".join(character for i, character in enumerate(word) if i not in (first, second)) + c
    gone = tuple(i for i, c in enumerate(word) if c not in needed)
    if gone:
        x = sum(x, gone)
    return x, "".join(c for c in word if c in needed)


def _product(x: Tensor, a: str, y: Tensor, b: str, needed: str) -> tuple[Tensor, str]:
    """Return the product of x and y, as one batched matrix product, and its axis letters; common letters not in `needed` are summed."""
    x, y = together("einsum", _widened(x, a, y, b), _widened(y, b, x, a))
    size = dict(zip(a + b, (*x.shape, *y.shape), strict=True))
    batch = [c for c in a if c in b and c in needed]
    summed = [c for c in a if c in b and c not in needed]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]

    def matrices(z: Tensor, word: str, down: Sequence[str], across: Sequence[str]) -> Tensor:
        lengths = (math.prod(size[c] for c in letters) for letters in (down, across))
        return reshape(permute(z, [word.index(c) for c in (*batch, *down, *across)]), (*(size[c] for c in batch), *lengths))

    left, right = matrices(x, a, rows, summed), matrices(y, b, summed, columns)
    product = run(BatchMatMul() if batch else MatMul(), left, right)
    word = "".join(batch + rows + columns)
    return reshape(product, tuple(size[c] for c in word)), word


def _widened(x: Tensor, word: str, other: Tensor, letters: str) -> Tensor:
    """Return x with its axes of size 1 expanded to the sizes of the axes of `other` with the same letters."""
    shape = tuple(max(n, other.shape[letters.index(c)]) if c in letters else n for c, n in zip(word, x.shape, strict=True))
    return x if shape == tuple(x.shape) else expand(x, shape)


class SortingMethods:
    """Methods of tensors for sorting."""

    __slots__ = ()

    argsort = method(argsort)
    kthvalue = method(kthvalue)
    sort = method(sort)
    topk = method(topk)
    unique = method(unique)

"""Laws of functions of global tensors in any layout: results and gradients equal those of local tensors, or both calls raise an error.

The rows are those of `shaped_calls` and `shaped_modules`.  The default suite runs rows on 3 ranks in one layout.  With --full, rows run on 2, 3 and 4
ranks and on a grid, with short and empty axes.  They also run with other element types and in graphs.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import shaped_calls
from of_function import OfFunction
from ranks import on_ranks
from shaped_calls import FLOATS, SIZES, Row
from shaped_modules import CHEAP, TABLES

import jobflow as flow
from jobflow.core.errors import JobflowError

Array = np.ndarray[Any, Any]
#: ranks and hierarchy of the placements
PLACEMENTS: dict[str, Any] = {"2": [0, 1], "3": [0, 1, 2], "4": [0, 1, 2, 3], "2x2": [[0, 1], [2, 3]]}
SBP = flow.sbp


@dataclass(frozen=True)
class Outcome:
    """Values, gradients and second gradients of a call, by name, or its error."""

    arrays: dict[str, Array]
    error: JobflowError | None = None

    def differences(self, other: Outcome) -> str:
        """Return a description of the first difference, or an empty text."""
        if self.error is not None or other.error is not None:
            return "" if type(self.error) is type(other.error) else f"{self.error or 'no error'} instead of {other.error or 'no error'}"
        if self.arrays.keys() != other.arrays.keys():
            return f"{sorted(self.arrays)} instead of {sorted(other.arrays)}"
        for name, expected in other.arrays.items():
            value = self.arrays[name]
            if (value.dtype, value.shape) != (expected.dtype, expected.shape):
                return f"{name}: {value.dtype}{list(value.shape)} instead of {expected.dtype}{list(expected.shape)}"
            tolerance = {2: 4e-3, 4: 2e-5, 8: 1e-8}[expected.itemsize] if expected.dtype.kind == "f" else 0.0
            scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=1.0)) if tolerance else 0.0
            if not np.allclose(value, expected, tolerance, tolerance * scale, equal_nan=True):
                return f"{name}: {value.tolist()} instead of {expected.tolist()}"
        return ""


def flat(result: Any) -> Iterator[Any]:
    if isinstance(result, tuple | list):
        for each in result:
            yield from flat(each)
    elif isinstance(result, flow.Tensor):
        yield result


def weighted(tensors: Sequence[Any]) -> Any:
    """Return the sum of all elements with different weights, or None if no tensor requires gradients."""
    terms = []
    for x in tensors:
        if x is not None and x.requires_grad:
            weights = flow.tensor(np.cos(np.arange(x.numel()) + 1.0).reshape(tuple(x.shape)).astype(x.dtype.numpy))
            terms.append((x * (weights.to_global(placement=x.placement, sbp=[SBP.broadcast] * len(x.sbp)) if x.is_global else weights)).sum())
    return sum(terms[1:], start=terms[0]) if terms else None


def outcome(function: Callable[..., Any], tensors: Sequence[Any], order: int = 2) -> Outcome:
    """Call the function; differentiate the weighted sum of its results up to `order` times."""
    try:
        level = list(flat(function(*tensors)))
        arrays = {f"value {i}": x.detach().numpy() for i, x in enumerate(level)}
        inputs = [x for x in tensors if x.requires_grad]
        for name in ("gradient", "second gradient")[:order]:
            total = weighted(level)
            if total is None:
                break
            level = list(flow.autograd.grad(total, inputs, create_graph=True, allow_unused=True))
            arrays |= {f"{name} {i}": x.detach().numpy() for i, x in enumerate(level) if x is not None}
            for x, gradient in zip(inputs, level, strict=True):
                assert gradient is None or not x.is_global or gradient.sbp == x.sbp, f"{name} of a tensor {x.sbp} is {gradient.sbp}"
    except JobflowError as error:
        return Outcome({}, error)
    return Outcome(arrays)


def tensor_of(row: Row, i: int, array: Array, **where: Any) -> Any:
    x = flow.tensor(array, **where)
    return x.requires_grad_() if row.tensors[i][0] in FLOATS and x.is_floating_point() else x


def layouts(array: Array) -> list[Any]:
    """Return all sbp of a tensor along one dimension of ranks; truth values have no partial ones."""
    partial = [] if array.dtype == bool else [SBP.partial_sum, SBP.partial_max, SBP.partial_min]
    return [SBP.broadcast, *partial, *(SBP.split(axis) for axis in range(array.ndim))]


def part(array: Array, how: Sequence[Any], index: Sequence[int], sizes: Sequence[int]) -> Array:
    """Return the local part of a global tensor on the rank with this index of the grid; addends differ in sign and size."""
    for sbp, i, n in zip(how, index, sizes, strict=True):
        if sbp == SBP.partial_sum:
            addend = (0.25 * array + 1).astype(array.dtype)
            array = addend if i < n - 1 else array - array.dtype.type(n - 1) * addend
        elif sbp in (SBP.partial_max, SBP.partial_min):
            away = np.asarray(1 + i, array.dtype) * (np.arange(array.size).reshape(array.shape) % n != i)
            array = (array - away if sbp == SBP.partial_max else array + away).astype(array.dtype)
    return array


def spread(array: Array, here: Any, how: Sequence[Any], rank: int) -> Any:
    """Return a global tensor of this value."""
    sizes = here.hierarchy
    index = np.unravel_index(rank, sizes)
    unsplit = [SBP.broadcast if isinstance(s, type(SBP.split(0))) else s for s in how]
    x = flow.tensor(part(array, how, index, sizes)).to_global(placement=here, sbp=unsplit)
    return x if unsplit == list(how) else x.to_global(sbp=list(how))


def choices(arrays: Sequence[Array], dimensions: int, count: int, seed: str) -> list[list[tuple[Any, ...]]]:
    """Return `count` combinations of layouts, one of each tensor; the first ones change one tensor and dimension only."""
    generator = random.Random(zlib.crc32(seed.encode()))
    every = [layouts(a) for a in arrays]
    single = [
        [tuple(how if (i, d) == (k, e) else SBP.broadcast for e in range(dimensions)) for k in range(len(arrays))]
        for i in range(len(arrays))
        for how in every[i]
        for d in range(dimensions)
    ]
    mixed = [[tuple(generator.choice(each) for _ in range(dimensions)) for each in every] for _ in range(count)]
    return generator.sample(single, min(len(single), count // 2)) + mixed[: count - min(len(single), count // 2)]


def violations(
    row: Row, sizes: str, where: str, count: int, change: Callable[[Array], Array] = lambda a: a, graphs: bool = False, order: int = 2
) -> list[str]:
    """Return the differences between global and local tensors."""
    arrays = [change(a) for a in row.arrays(SIZES[sizes])]
    expected = outcome(row.function, [tensor_of(row, i, a) for i, a in enumerate(arrays)], order)
    dimensions = np.ndim(PLACEMENTS[where])

    def program(rank: int) -> list[str]:
        here = flow.placement("cpu", PLACEMENTS[where])
        wrong = []
        for number, how in enumerate(choices(arrays, dimensions, count, f"{row.name} {sizes} {where}")):
            tensors = [spread(a, here, s, rank) for a, s in zip(arrays, how, strict=True)]
            tensors = [x.requires_grad_() if row.tensors[i][0] in FLOATS and x.is_floating_point() else x for i, x in enumerate(tensors)]
            text = outcome(row.function, tensors, order).differences(expected)
            wrong += [f"{row.name} {sizes} {arrays[0].dtype} on {where} {how}: {text}"] if text else []
            if graphs and not number and expected.error is None and not text:
                values = Outcome({name: a for name, a in expected.arrays.items() if name.startswith("value")})
                text = outcome(OfFunction(row.function), [x.detach() for x in tensors], 0).differences(values)
                wrong += [f"{row.name} {sizes} on {where} {how} in a graph: {text}"] if text else []
        return wrong

    return sorted({text for each in on_ranks(int(np.size(PLACEMENTS[where])), program) for text in each})


def check(table: str, *arguments: Any, **options: Any) -> None:
    wrong = [text for row in TABLES[table] for text in violations(row, *arguments, **options)]
    assert not wrong, "\n".join(wrong)


def first_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the first row of each function."""
    by_name = {row.name.split()[0]: row for row in reversed(rows)}
    return [row for row in rows if by_name[row.name.split()[0]] is row]


@pytest.mark.parametrize("table", ["elementwise", "linear algebra", "products", "rearranged", "ordered", "updates", *CHEAP])
def test_functions_on_three_ranks_equal_local_functions(table: str) -> None:
    wrong = [text for row in first_rows(TABLES[table]) for text in violations(row, "uneven", "3", 1, order=1)]
    assert not wrong, "\n".join(wrong)


#: sizes, placement, and number of layouts
SPREAD = [
    *[("uneven", "2", 2), ("uneven", "3", 2), ("uneven", "4", 2), ("uneven", "2x2", 2), ("short", "4", 2), ("short", "2x2", 1)],
    *[("ones", "3", 1), ("empty", "4", 1), ("empty", "2x2", 1), ("empty last", "3", 1)],
]


@pytest.mark.full
@pytest.mark.parametrize(("sizes", "where", "count"), SPREAD)
@pytest.mark.parametrize("table", TABLES)
def test_functions_on_ranks_equal_local_functions(table: str, sizes: str, where: str, count: int) -> None:
    check(table, sizes, where, count)


def in_type(dtype: Any) -> Callable[[Array], Array]:
    """Return a conversion of floats; halves are multiples of 1/64, whose addends are exact."""
    if dtype == "float16":
        return lambda a: (np.round(a * 64) / 64).astype(dtype) if a.dtype.kind == "f" else a
    return lambda a: np.nan_to_num(a * 3).astype(dtype) if a.dtype.kind == "f" else a


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int8", "bool"])
@pytest.mark.parametrize("table", shaped_calls.TABLES)
def test_functions_of_other_types_on_ranks_equal_local_functions(table: str, dtype: str) -> None:
    check(table, "uneven", "3", 2, in_type(dtype), order=1)


#: functions that graphs refuse: the number of results depends on values, or the shape changes in place
NOT_IN_GRAPHS = {
    *("unique_consecutive", "bincount", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_"),
    *("repeat_interleave x:ab k:b (1,)", "index_put x:ab b:a x:"),
}


@pytest.mark.full
@pytest.mark.parametrize("where", ["3", "2x2"])
@pytest.mark.parametrize("table", shaped_calls.TABLES)
def test_functions_in_graphs_on_ranks_equal_local_functions(table: str, where: str) -> None:
    rows = [row for row in TABLES[table] if not {row.name, row.name.split()[0]} & NOT_IN_GRAPHS]
    wrong = [text for row in rows for text in violations(row, "uneven", where, 1, graphs=True, order=0)]
    assert not wrong, "\n".join(wrong)


#: rows without a defined derivative: counts, moments of one sample, and matrices of which one triangle is read
NOT_DIFFERENTIABLE = {"histogram", "cholesky", "linalg.eigvalsh", "linalg.eigh", "std_mean", "cov", "corrcoef"}


@pytest.mark.full
@pytest.mark.parametrize("table", ["elementwise", "linear algebra", "products", "rearranged", "ordered", "updates"])
def test_gradients_equal_differences(table: str) -> None:
    """First and second gradients of local tensors."""
    for row in first_rows(TABLES[table]):
        tensors = [tensor_of(row, i, a) for i, a in enumerate(row.arrays(SIZES["short"]))]

        def results(*x: Any, row: Row = row) -> tuple[Any, ...]:
            return tuple(y for y in flat(row.function(*x)) if y.requires_grad)

        if row.name.split()[0] not in NOT_DIFFERENTIABLE and any(x.requires_grad for x in tensors) and results(*tensors):
            assert flow.autograd.gradcheck(results, tuple(tensors)), row.name
            assert flow.autograd.gradgradcheck(results, tuple(tensors)), row.name

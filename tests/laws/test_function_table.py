"""Functions of the table against NumPy: eagerly, in a graph and in a job, and on global tensors of every layout with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import function_table
import numpy as np
import pytest
from everywhere import compare
from function_table import BINARY, REDUCTIONS, UNARY, Row
from running import OfFunction, in_job
from test_op_laws import doors

import jobflow as flow

UNIFORM = np.random.default_rng(11).uniform(0, 1, (2, 4, 6))
CUBE = np.random.default_rng(12).uniform(0, 1, (2, 3, 4))
TABLES = {"unary": UNARY, "binary": BINARY}
#: relative and absolute tolerance, in float64
TOLERANCE = 1e-12


def public(name: str) -> Callable[..., Any]:
    return next(doors(name))[1]


def check(labels: Sequence[str], values: Sequence[Any], references: Sequence[Any]) -> None:
    """Compare all values and name each function that differs."""
    pairs = zip(labels, values, references, strict=True)
    wrong = [
        label
        for label, value, reference in pairs
        if np.shape(value) != np.shape(reference) or not np.allclose(value, reference, rtol=TOLERANCE, atol=TOLERANCE)
    ]
    assert not wrong, f"these differ from NumPy: {wrong}"


def of_tensors(rows: Sequence[Row]) -> tuple[list[str], Callable[..., list[Any]], list[Any]]:
    """Return labels of all tensor names, a function that calls all of them on values between 0 and 1, and the references."""
    entries = [(name, row) for row in rows for name in row.names]
    uniform = UNIFORM[: len(rows[0].domain)]
    references = [row.reference(*row.arguments(uniform)) for _, row in entries]
    return [name for name, _ in entries], lambda *tensors: [public(name)(*row.arguments(tensors)) for name, row in entries], references


@pytest.mark.parametrize("table", TABLES)
def test_tensors_equal_numpy_at_once_and_in_a_graph(table: str) -> None:
    labels, function, references = of_tensors(TABLES[table])
    tensors = [flow.tensor(u) for u in UNIFORM[: len(TABLES[table][0].domain)]]
    check(labels, [value.numpy() for value in function(*tensors)], references)
    check(labels, [value.numpy() for value in OfFunction(function)(*tensors)], references)


@pytest.mark.parametrize(("devices", "kernels"), [(1, "reference"), (1, "llvm"), (2, "numpy")])
@pytest.mark.parametrize("table", TABLES)
def test_jobs_equal_numpy(table: str, devices: int, kernels: str) -> None:
    entries = [(name, row) for row in TABLES[table] for name in row.jobs]
    uniform = UNIFORM[: len(TABLES[table][0].domain)]

    def body(*tensors: Any) -> tuple[Any, ...]:
        results = tuple(getattr(flow.math, name)(*row.arguments(tensors), name=f"the_{name}") for name, row in entries)
        assert [result.op_name for result in results] == [f"the_{name}" for name, _ in entries]
        return results

    end = in_job(body, list(uniform), devices, len(entries), kernels)
    assert end.error is None, end
    check([name for name, _ in entries], end.values, [row.reference(*row.arguments(uniform)) for _, row in entries])
    assert all(getattr(flow.math, name).__name__ == name for name, _ in entries)


@pytest.mark.parametrize("shapes", [((2, 3, 4), (3, 1)), ((4,), (2, 3, 1))], ids=str)
def test_jobs_broadcast_as_numpy(shapes: tuple[tuple[int, ...], ...]) -> None:
    entries = [(name, row) for row in BINARY for name in row.jobs if name not in ("floordiv", "atan2", "pow", "squared_difference")]
    uniform = [np.resize(CUBE, shape) for shape in shapes]
    end = in_job(lambda *tensors: tuple(getattr(flow.math, name)(*row.arguments(tensors)) for name, row in entries), uniform, 1, len(entries))
    assert end.error is None, end
    check([name for name, _ in entries], end.values, [row.reference(*row.arguments(uniform)) for _, row in entries])


AXES: Sequence[Any] = (1, -1, (0, 2), (0, -1))


def test_reductions_equal_numpy() -> None:
    cases = [(name, row, axis, keep) for row in REDUCTIONS for name in row.names for axis in AXES for keep in (False, True)]
    (x,) = REDUCTIONS[0].arguments([CUBE])

    def function(tensor: Any) -> list[Any]:
        results = [public(name)(tensor, dim=axis, keepdim=keep) for name, _, axis, keep in cases if name not in ("max", "min") or axis in (1, -1)]
        return [result[0] if isinstance(result, tuple) else result for result in results]

    cases = [case for case in cases if case[0] not in ("max", "min") or case[2] in (1, -1)]
    references = [row.reference(x, axis=axis, keepdims=keep) for _, row, axis, keep in cases]
    check([str(case) for case in cases], [value.numpy() for value in function(flow.tensor(x))], references)
    check([str(case) for case in cases], [value.numpy() for value in OfFunction(function)(flow.tensor(x))], references)


@pytest.mark.parametrize("devices", [1, 2])
def test_reductions_of_jobs_equal_numpy(devices: int) -> None:
    """Over all axes the result has the shape (1,), or ones with `keepdims`."""
    cases = [(name, row, axis, keep) for row in REDUCTIONS for name in row.jobs for axis in (*AXES, [0, 2], None) for keep in (False, True)]
    (x,) = REDUCTIONS[0].arguments([CUBE])
    end = in_job(lambda tensor: tuple(getattr(flow.math, name)(tensor, axis, keep) for name, _, axis, keep in cases), [x], devices, len(cases))
    assert end.error is None, end
    references = []
    for _, row, axis, keep in cases:
        reference = row.reference(x, axis=tuple(axis) if isinstance(axis, list) else axis, keepdims=keep)
        references.append(reference if np.ndim(reference) else np.reshape(reference, (1,)))
    check([f"{name} {axis} {keep}" for name, _, axis, keep in cases], end.values, references)


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.full), 2])
def test_global_tensors_equal_numpy_in_every_layout(n: int) -> None:
    """Values, and gradients, which equal those of local tensors."""
    for rows, tolerance in ((UNARY, 1e-6), (BINARY, 1e-6)):
        uniform = UNIFORM[: len(rows[0].domain)]
        compare(n, [(public(row.names[0]), row.reference, row.arguments(uniform)) for row in rows if row.names], tolerance)


def test_table_has_each_name_once() -> None:
    for rows in (UNARY, BINARY, REDUCTIONS):
        for names in ([name for row in rows for name in row.names], [name for row in rows for name in row.jobs]):
            assert len(set(names)) == len(names)
    assert len(function_table.references(UNARY)) > 45

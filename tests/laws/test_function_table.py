"""Functions of the table against NumPy: eagerly, compiled, in a graph and in a job, and on global tensors of every layout with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import function_table
import numpy as np
import pytest
from everywhere import compare
from function_table import ACTIVATIONS, BINARY, INTEGERS, LOSSES, OPERATORS, REDUCTIONS, UNARY, WITH_ARGUMENTS, Row
from of_function import OfFunction
from running import Ended, in_job
from test_op_laws import doors

import jobflow as flow

SIXTEENTHS = np.arange(17) / 16


def samples() -> np.ndarray[Any, Any]:
    """Return three arrays of numbers between 0 and 1: all sixteenths, and random numbers; the first half of the sixteenths is equal in all arrays."""
    random = np.random.default_rng(11)
    orders = [np.arange(17), *([*range(8), *(8 + random.permutation(9))] for _ in range(2))]
    return np.stack([np.concatenate([SIXTEENTHS[order], random.uniform(0, 1, 19)]).reshape(6, 6) for order in orders])


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return flow.compile(function, fullgraph=True)  # type: ignore[no-any-return]


UNIFORM = samples()
CUBE = np.random.default_rng(12).uniform(0, 1, (2, 3, 4))
TABLES = {
    "unary": (*UNARY, *ACTIVATIONS),
    "with arguments": WITH_ARGUMENTS,
    "binary": BINARY,
    "operators": OPERATORS,
    "losses of two": [row for row in LOSSES if len(row.domain) == 2],
    "losses of three": [row for row in LOSSES if len(row.domain) == 3],
}
#: relative and absolute tolerance, in float64
TOLERANCE = 1e-12
REDUCED: dict[str, Callable[[Any], Any]] = {"none": lambda x: x, "mean": np.mean, "sum": np.sum}


def public(name: str) -> Callable[..., Any]:
    return next(doors(name))[1]


def of_jobs(name: str) -> Callable[..., Any]:
    module, _, word = name.rpartition(".")
    return getattr(flow.nn if module == "nn" else flow.math, word)


@dataclass(frozen=True)
class Call:
    """A call of a function by one of its names, and the same function of NumPy."""

    label: str
    row: Row
    function: Callable[..., Any]
    reference: Callable[..., Any]

    def on(self, uniform: Sequence[Any]) -> Any:
        """Call the function with tensors of numbers between 0 and 1."""
        return self.function(*self.row.detached(self.row.arguments(uniform)))

    def expected(self, uniform: Sequence[Any]) -> Any:
        return self.reference(*self.row.arguments(uniform))


def calls(rows: Sequence[Row], jobs: bool) -> list[Call]:
    """Return the calls of all names in the tensor API, or in the job API. Losses are called with each reduction, jobs with a name."""
    results = []
    for row in rows:
        if row.operator:
            results.append(Call(row.operator, row, row.reference, row.reference))
        for name in row.jobs if jobs else row.names:
            for word, reduced in REDUCED.items() if row in LOSSES else [("", REDUCED["none"])]:
                options = {"reduction": word} if word else {}
                if jobs:
                    options["name"] = f"number{len(results)}"
                function = of_jobs(name) if jobs else public(name)
                results.append(
                    Call(
                        f"{name}{row.options or ''} {word}",
                        row,
                        lambda *x, f=function, o=options, row=row: f(*x, *row.options, **o),
                        lambda *x, r=reduced, row=row: r(row.reference(*x)),
                    )
                )
    return results


def check(labels: Sequence[str], values: Sequence[Any], references: Sequence[Any], truth: Any = np.int8) -> None:
    """Compare all values, shapes and types, and name each function that differs; `truth` is the type of truth values."""
    wrong = []
    for label, value, reference in zip(labels, values, references, strict=True):
        reference = np.asarray(reference)
        if reference.dtype == bool:
            reference = reference.astype(truth)
        same = (value.dtype, value.shape) == (reference.dtype, reference.shape)
        if not same or not np.allclose(value, reference, rtol=TOLERANCE, atol=TOLERANCE):
            wrong.append(label)
    assert not wrong, f"these differ from NumPy: {wrong}"


def gradients(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the values, and one gradient per input and function, of the sum of all elements of all values."""
    tensors = [flow.tensor(x, requires_grad=True) for x in inputs]
    values = function(*tensors)
    sum(value.sum() for value in values if value.requires_grad).backward()
    return [value.detach().numpy() for value in values], [x.grad.numpy() for x in tensors]


@pytest.mark.parametrize("table", TABLES)
def test_tensors_equal_numpy_eagerly_compiled_and_in_a_graph(table: str) -> None:
    """Values, and gradients, which compiled functions share with eager ones; each function has its own slice of the inputs."""
    entries = calls(TABLES[table], jobs=False)
    uniform = UNIFORM[: len(TABLES[table][0].domain)]
    labels, references = [call.label for call in entries], [call.expected(uniform) for call in entries]

    def function(*tensors: Any) -> list[Any]:
        return [call.on(slices) for call, *slices in zip(entries, *(x.unbind(0) for x in tensors), strict=True)]

    inputs = [np.repeat(u[None], len(entries), axis=0) for u in uniform]
    eager, of_eager = gradients(function, inputs)
    plans, of_plans = gradients(compiled(function), inputs)
    check(labels, eager, references, truth=bool)
    check(labels, plans, references, truth=bool)
    check(labels, [value.numpy() for value in OfFunction(function)(*map(flow.tensor, inputs))], references, truth=bool)
    for one, other in zip(of_plans, of_eager, strict=True):
        assert np.isfinite(one).all()
        check(labels, one, other)


def job(entries: Sequence[Call], arrays: Sequence[Any], devices: int, kernels: str = "", *, domain: bool = True) -> Ended:
    """Compute all calls in one job, with arguments in their domains, or with these arrays."""

    def body(*tensors: Any) -> tuple[Any, ...]:
        results = tuple(call.on(tensors) if domain else call.function(*tensors[: len(call.row.domain)]) for call in entries)
        assert all(result.op_name == f"number{i}" for i, (call, result) in enumerate(zip(entries, results, strict=True)) if not call.row.operator)
        return results

    end = in_job(body, list(arrays), devices, len(entries), kernels)
    assert end.error is None, end
    return end


@pytest.mark.parametrize(("devices", "kernels"), [(1, "reference"), (1, "llvm"), (2, "numpy")])
@pytest.mark.parametrize("table", TABLES)
def test_jobs_equal_numpy(table: str, devices: int, kernels: str) -> None:
    """Results without axes have the shape (1,)."""
    entries = calls(TABLES[table], jobs=True)
    uniform = UNIFORM[: len(TABLES[table][0].domain)]
    end = job(entries, uniform, devices, kernels)
    check([call.label for call in entries], end.values, [np.atleast_1d(call.expected(uniform)) for call in entries])
    names = [name for row in TABLES[table] for name in row.jobs if row not in LOSSES]
    assert all(of_jobs(name).__name__ == name.removeprefix("nn.") for name in names)


@pytest.mark.parametrize("shapes", [((2, 3, 4), (3, 1)), ((4,), (2, 3, 1))], ids=str)
def test_jobs_broadcast_as_numpy(shapes: tuple[tuple[int, ...], ...]) -> None:
    rows = [row for row in BINARY if isinstance(row.reference, np.ufunc) and row.reference not in (np.floor_divide, np.arctan2, np.power)]
    entries = calls(rows, jobs=True)
    uniform = [np.resize(CUBE, shape) for shape in shapes]
    check([call.label for call in entries], job(entries, uniform, 1).values, [call.expected(uniform) for call in entries])


def test_functions_of_integers_equal_numpy() -> None:
    """Remainders and quotients have the sign of the divisor."""
    rows = [row for row in (*UNARY, *BINARY) if row.names and row.names[0] in INTEGERS]
    random = np.random.default_rng(13)
    x, y = random.integers(-9, 10, (6, 6), np.int32), random.integers(1, 5, (6, 6), np.int32) * random.choice(np.array([-1, 1], np.int32), (6, 6))

    def results(entries: Sequence[Call], *arrays: Any) -> list[Any]:
        return [call.function(*arrays[: len(call.row.domain)]) for call in entries]

    entries = calls(rows, jobs=False)
    references = [call.reference(*(x, y)[: len(call.row.domain)]) for call in entries]
    for way in (lambda f: f, OfFunction, compiled):
        values = way(lambda *tensors: results(entries, *tensors))(flow.tensor(x), flow.tensor(y))
        check([call.label for call in entries], [value.numpy() for value in values], references, truth=bool)
    entries = calls(rows, jobs=True)
    end = job(entries, [x, y], 1, domain=False)
    check([call.label for call in entries], end.values, [call.reference(*(x, y)[: len(call.row.domain)]) for call in entries])


AXES: Sequence[Any] = (1, -1, (0, 2), (0, -1))


def test_reductions_equal_numpy() -> None:
    cases = [(name, row, axis, keep) for row in REDUCTIONS for name in row.names for axis in AXES for keep in (False, True)]
    cases = [case for case in cases if case[0] not in ("max", "min") or case[2] in (1, -1)]
    arguments = [(name, {"dim": axis, "keepdim": keep}) for name, _, axis, keep in cases]
    (x,) = REDUCTIONS[0].arguments([CUBE])

    def function(tensor: Any) -> list[Any]:
        results = [public(name)(tensor, **options) for name, options in arguments]
        return [result[0] if isinstance(result, tuple) else result for result in results]

    references = [row.reference(x, axis=axis, keepdims=keep) for _, row, axis, keep in cases]
    for way in (lambda f: f, OfFunction, compiled):
        check([str(case) for case in arguments], [value.numpy() for value in way(function)(flow.tensor(x))], references)


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


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("table", ["unary", "binary", "with arguments"])
def test_global_tensors_equal_numpy_in_every_layout(table: str, n: int) -> None:
    """Values, and gradients, which equal those of local tensors; `test_layout_laws` has one layout of each row in the default suite.

    The cases of `nn` compare layouts of activations with PyTorch.
    """
    rows = [row for row in TABLES[table] if row.names and row not in ACTIVATIONS]
    uniform = UNIFORM[: len(rows[0].domain)]
    cases = [(lambda *x, row=row: public(row.names[0])(*row.detached(x), *row.options), row.reference, row.arguments(uniform)) for row in rows]
    compare(n, cases, 1e-6)


def test_table_has_each_name_once() -> None:
    for rows in (*TABLES.values(), REDUCTIONS):
        for names in ([(name, row.options) for row in rows for name in row.names], [(name, row.options) for row in rows for name in row.jobs]):
            assert len(set(names)) == len(names)
    assert len(function_table.references(UNARY)) > 45

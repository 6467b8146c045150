"""Laws of every function, by all its names: `flow.x`, `flow.nn.functional.x`, `flow.math.x` and methods, eagerly, in graphs and in jobs.

For any arguments, all names and ways return the same bits, types and shapes.  They equal NumPy's function, if there is one.  Invalid arguments
raise an error of jobflow that names the user's line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_cases import ARGUMENTS, AXES, BINARY, PAIRS, REDUCTIONS, SHAPED, UNARY
from ranks import on_ranks
from running import Array, Ended, Function, at_once, in_graph, in_job, in_one_job, proper

import jobflow as flow

HERE = Path(__file__).name
F = flow.nn.functional
#: functions with another meaning in jobs, with the reason
DIFFERENT_TRACED = {
    "leaky_relu": "the default slope below 0 is 0.2",
    "argmax": "the default axis is the last one",
    "divide": "integers give integers",
}
#: functions with another result type in jobs: int8 for truth values, int32 for indices
TYPES_OF_JOBS = {"eq", "ne", "gt", "ge", "lt", "le", "equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "logical_and"}
#: functions of jobs with assertions about values; a failed one ends the job
CHECKED_IN_RUNS = {"pow"}
#: graphs run these in compiled loops
OVER_ROWS = ("softmax", "log_softmax")
#: functions whose result size depends on values, which is an error in a graph
UNKNOWN_SIZES = {"unique"}


def doors(name: str) -> Iterator[tuple[str, Function]]:
    """Yield the public names of a function of tensors: those of all APIs, or the one with an API in its name."""
    module, _, word = name.rpartition(".")
    if module:
        yield name, getattr({"flow": flow, "special": flow.special}.get(module, F), word)
        return
    if hasattr(flow, name):
        yield f"flow.{name}", getattr(flow, name)
    if hasattr(F, name):
        yield f"functional.{name}", getattr(F, name)
    if hasattr(flow.Tensor, name):
        yield f"Tensor.{name}", lambda x, *more, **options: getattr(x, name)(*more, **options)


def tensor_of(array: Array, lies: str = "", **options: Any) -> Any:
    if lies == "transposed":
        return flow.tensor(array.T.copy(), **options).t()
    if lies == "stepped":
        return flow.tensor(np.repeat(array, 2, axis=-1), **options)[..., ::2]
    if lies == "backwards":
        return flow.tensor(array[::-1].copy(), **options).flip((0,))
    return flow.tensor(array, **options)


def agree(name: str, function: Callable[[Function], Function], arrays: list[Array], lies: str = "") -> list[str]:
    """Return the differences between the ways to call a function, and errors without a line."""
    differences: list[str] = []
    first: Ended | None = None
    for number, (door, public) in enumerate(doors(name)):
        call = function(public)
        for way, run in (("at once", at_once), ("graph", in_graph))[: 1 if number else 2]:
            end = run(call, [tensor_of(a, lies) for a in arrays])
            if way == "graph" and name in UNKNOWN_SIZES:
                if end.error is None or not proper(end.error, HERE):
                    differences.append(f"{door} {way}: {end}")
                continue
            if end.error is not None and not proper(end.error, HERE):
                differences.append(f"{door} {way}: {end}")
            first = first or end
            rounding = 1e-6 if lies or (way == "graph" and name in OVER_ROWS) else 0.0  # sums follow the memory order, and loops have their own exp
            if not first.same(end, rounding):
                differences.append(f"{door} {way}: {end}\n      but first: {first}")
    return differences


def right(name: str, expected: Any, arrays: list[Array], **options: Any) -> list[str]:
    """Return the differences of values from NumPy."""
    _, public = next(doors(name))
    end = at_once(lambda *tensors: public(*tensors, **options), [tensor_of(a) for a in arrays])
    if end.error is not None or expected is None:
        return []
    result = end.values[0]
    wide = [(a.astype(result.dtype) if a.dtype.kind in "iub" else a).astype(np.float64) if result.dtype.kind == "f" else a for a in arrays]
    axis = {"axis": options["dim"]} if "dim" in options else {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            value = np.asarray(expected(*wide, **axis))
        except (ValueError, TypeError) as error:
            return [f"{name}: NumPy says {error}; ours {end}"]
        value = value.astype(result.dtype) if result.dtype.kind == "f" else value
    tolerance = {2: 2e-3, 4: 2e-6, 8: 1e-12}[result.dtype.itemsize] if result.dtype.kind == "f" else 0
    same = result.shape == value.shape and np.allclose(
        result.astype(np.float64), value.astype(np.float64), rtol=tolerance, atol=tolerance, equal_nan=True
    )
    if result.dtype.kind in "iu" and value.dtype.kind in "iu":
        same = result.shape == value.shape and bool((result.astype(value.dtype) == value).all())
    return [] if same else [f"{name}: {end}\n      NumPy: {value.dtype}{list(value.shape)} {value.tolist()}"]


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor(name: str) -> None:
    wrong = [f"{label}: {text}" for label, array, lies in ARGUMENTS for text in agree(name, lambda public: lambda x: public(x), [array], lies)]
    known = [(label, array) for label, array, _ in ARGUMENTS if not (name in ("sign", "sgn") and array.dtype == bool)]  # NumPy has no sign of bool
    wrong += [f"{label}: {text}" for label, array in known for text in right(name, UNARY[name], [array])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name: str) -> None:
    wrong = [f"{label}: {text}" for label, a, b in PAIRS for text in agree(name, lambda public: lambda x, y: public(x, y), [a, b])]
    wrong += [f"{label}: {text}" for label, a, b in PAIRS for text in right(name, BINARY[name], [a, b])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_functions_of_axes(name: str) -> None:
    wrong = []
    for label, array, lies in ARGUMENTS:
        for options in AXES:
            wrong += [f"{label} {options}: {text}" for text in agree(name, lambda public, o=options: lambda x: public(x, **o), [array], lies)]
            wrong += [f"{label} {options}: {text}" for text in right(name, REDUCTIONS[name], [array], **options) if array.ndim and label != "large"]
    assert not wrong, "\n".join(wrong)


TRACED = [n for n in (*UNARY, *BINARY, *REDUCTIONS) if any(hasattr(where, n) for where in (flow.math, flow.nn)) and n not in DIFFERENT_TRACED]


@pytest.mark.parametrize("label", [*(label for label, a, order in ARGUMENTS if not order and a.ndim and a.size)])
def test_functions_of_jobs_with_one_tensor_equal_those_of_tensors(label: str) -> None:
    """For arguments that the job's function accepts."""
    (array,) = (a for name, a, _ in ARGUMENTS if name == label)
    wrong = of_jobs([name for name in TRACED if name not in BINARY], label, [array])
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("label", [label for label, a, b in PAIRS if a.ndim and b.ndim and a.size and b.size])
def test_functions_of_jobs_with_two_tensors_equal_those_of_tensors(label: str) -> None:
    (arrays,) = ([a, b] for name, a, b in PAIRS if name == label)
    wrong = of_jobs([name for name in TRACED if name in BINARY], label, arrays)
    assert not wrong, "\n".join(wrong)


def of_jobs(names: list[str], label: str, arrays: list[Array]) -> list[str]:
    """Return the differences of functions in a job, by all their names, from functions of tensors."""
    called = [
        (f"{where.__name__}.{name}", name, lambda *x, where=where, name=name: getattr(where, name)(*x))
        for name in names
        for where in (flow, flow.math, flow.nn)
        if hasattr(where, name)
    ]
    outcomes = in_one_job([(key, call) for key, name, call in called if name not in CHECKED_IN_RUNS], arrays)
    outcomes |= {key: in_job(call, arrays) for key, name, call in called if name in CHECKED_IN_RUNS}
    eager = {name: at_once(next(doors(name))[1], [tensor_of(a) for a in arrays]) for name in names}
    wrong = []
    for key, name, _ in called:
        end, expected = outcomes[key], eager[name]
        if end.error is not None:
            wrong += [] if proper(end.error, HERE) else [f"{key}: {end}"]
            continue
        if expected.error is not None and "floating point" in str(expected.error):
            continue  # the job's function accepts integers
        if name in TYPES_OF_JOBS and expected.error is None:
            expected = Ended(tuple(a.astype(b.dtype) for a, b in zip(expected.values, end.values, strict=True)))
        if not expected.same(end, 2e-3 if "float16" in label else 1e-6):
            wrong.append(f"{key}: {end}\n      but eagerly: {expected}")
    return wrong


@pytest.mark.parametrize("case", SHAPED, ids=str)
def test_functions_of_a_tensor_and_numbers(case: Any) -> None:
    name, options = case
    wrong = []
    for label, array, lies in ARGUMENTS:
        wrong += [f"{label}: {text}" for text in agree(name, lambda public: lambda x: public(x, *options), [array], lies)]
    assert not wrong, "\n".join(wrong)


def on(n: int, name: str, pairs: Any) -> list[str]:
    """Return the differences of global tensors in each layout from local ones, and of errors between ranks."""

    def program(rank: int) -> list[str]:
        where = flow.placement("cpu", list(range(n)))
        wrong = []
        for label, options, arrays in pairs:
            _, public = next(doors(name))
            call = lambda *x, o=options, public=public: public(*x, **o)  # noqa: E731
            local = at_once(call, [flow.tensor(a) for a in arrays])
            for how in (flow.sbp.broadcast, *(flow.sbp.split(i) for i in range(min(a.ndim for a in arrays)))):
                spread = [flow.tensor(a, placement=where, sbp=how) for a in arrays]
                for way, run in (("at once", at_once), ("graph", in_graph)):
                    end = run(call, spread)
                    if end.error is not None and not proper(end.error, HERE):
                        wrong.append(f"{label} {options} {how} {way}: {end}")
                    if not local.same(end, 2e-3 if "float16" in label else 1e-5):
                        wrong.append(f"{label} {options} {how} {way}: {end}\n      but local: {local}")
        return wrong

    return on_ranks(n, program)[0]


SAMPLE = ["exp", "abs", "relu", "add", "floor_divide", "maximum", "matmul", "sum", "max", "argmax", "sort", "softmax", "cumsum"]
ON_RANKS = [
    *((name, 1) for name in SAMPLE),
    *(pytest.param(name, 2, marks=pytest.mark.full) for name in (*UNARY, *BINARY, *REDUCTIONS)),
    *(pytest.param(name, n, marks=pytest.mark.full) for n in (3, 4) for name in SAMPLE),
]


@pytest.mark.parametrize(("name", "n"), ON_RANKS)
def test_functions_of_global_tensors_equal_local_ones(name: str, n: int) -> None:
    if name in BINARY:
        pairs = [(label, {}, [a, b]) for label, a, b in PAIRS if a.shape == b.shape or name == "matmul"]
    else:
        options = [{"dim": 0}, {"dim": -1}] if name in REDUCTIONS else [{}]
        pairs = [(label, o, [a]) for label, a, lies in ARGUMENTS for o in options if not lies]
    wrong = on(n, name, pairs)
    assert not wrong, "\n".join(wrong)

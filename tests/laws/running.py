"""The ways to run a function - eagerly, in a graph, in a job - and the outcome of each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from of_function import OfFunction

import jobflow as flow
import jobflow.typing as tp
from jobflow import scope
from jobflow.core.errors import JobflowError

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


#: tensors use the tier `numpy`; graphs with the plain kernels have other rounding and another order of sums
PLAIN = os.environ.get("JOBFLOW_KERNELS") == "reference"
_ROUNDING = {2: 2e-3, 4: 1e-6, 8: 1e-14}


def alike(a: Array, b: Array, rounding: float = 0.0) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if PLAIN and a.dtype.kind == "f":
        rounding = max(rounding, _ROUNDING[a.dtype.itemsize])
    if rounding and a.dtype.kind == "f":
        return np.allclose(a, b, rtol=rounding, atol=rounding, equal_nan=True)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@dataclass(frozen=True)
class Ended:
    """The outcome of a call: arrays or an error."""

    values: tuple[Array, ...] = ()
    error: Exception | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}"
        return ", ".join(f"{a.dtype}{list(a.shape)} {a.tolist()}" for a in self.values)

    def same(self, other: Ended, rounding: float = 0.0) -> bool:
        """Return True for equal bits, for values equal up to `rounding`, or for two errors."""
        if self.error is not None or other.error is not None:
            return self.error is not None and other.error is not None
        return len(self.values) == len(other.values) and all(alike(a, b, rounding) for a, b in zip(self.values, other.values, strict=True))


def proper(error: Exception, file: str) -> bool:
    """Return True for an error of jobflow that names a line of the file, or Python's own error about the arguments of a call."""
    if isinstance(error, JobflowError):
        return re.search(rf"{re.escape(file)}:\d+", str(error)) is not None
    of_a_call = r"missing \d+ required|takes .* arguments? but|unexpected keyword argument|multiple values for argument"
    return isinstance(error, TypeError) and re.search(of_a_call, str(error)) is not None


def flat(result: Any) -> Iterator[Array]:
    if isinstance(result, tuple | list):
        for part in result:
            yield from flat(part)
    elif isinstance(result, flow.Tensor):
        yield result.detach().numpy()
    else:
        yield np.asarray(result)


def ended(run: Callable[[], Any]) -> Ended:
    try:
        return Ended(tuple(flat(run())))
    except Exception as error:  # noqa: BLE001 - whatever it is, the law looks at it
        return Ended(error=error)


def at_once(function: Function, tensors: Sequence[Any]) -> Ended:
    return ended(lambda: function(*tensors))


def in_graph(function: Function, tensors: Sequence[Any]) -> Ended:
    return ended(lambda: OfFunction(function)(*tensors))


def in_job(function: Function, arrays: Sequence[Array], devices: int = 1, results: int = 1, kernels: str = "") -> Ended:
    """Run a job in its own session; the function returns a tuple if there are several results."""

    def body(*arguments: Any) -> Any:
        return function(*arguments)

    one, two, three = lambda a: body(a), lambda a, b: body(a, b), lambda a, b, c: body(a, b, c)
    job = (one, two, three)[len(arrays) - 1]
    job.__name__ = "job"

    def run() -> Any:
        kinds = {name: tp.Numpy.Placeholder(a.shape, dtype=flow.tensor(a[:0] if a.ndim else a).dtype) for name, a in zip("abc", arrays, strict=False)}
        job.__annotations__ = {**kinds, "return": tuple[(tp.Numpy,) * results] if results > 1 else tp.Numpy}
        flow.config.cpu_device_num(devices)
        if kernels:
            flow.config.kernels(kernels)
        return flow.global_function()(job)(*arrays)

    with scope.using(root=scope.Root()):
        try:
            return ended(run)
        finally:
            flow.clear_default_session()


def in_one_job(calls: Sequence[tuple[str, Function]], arrays: Sequence[Array]) -> dict[str, Ended]:
    """Run all calls in one job; return the outcome of each by its label. A call that raises does not end the body."""
    outcomes: dict[str, Ended] = {}
    sizes: list[tuple[str, int]] = []

    def compute(*tensors: Any) -> list[Any]:
        outputs: list[Any] = []
        for label, call in calls:
            try:
                result = call(*tensors)
            except Exception as error:  # noqa: BLE001 - whatever it is, the law looks at it
                outcomes[label] = Ended(error=error)
                continue
            several = list(result) if isinstance(result, tuple | list) else [result]
            sizes.append((label, len(several)))
            outputs += several
        return outputs

    kinds = {name: tp.Numpy.Placeholder(a.shape, dtype=flow.tensor(a[:0] if a.ndim else a).dtype) for name, a in zip("ab", arrays, strict=False)}
    job = (lambda a: compute(a)) if len(arrays) == 1 else (lambda a, b: compute(a, b))
    job.__name__, job.__annotations__ = "job", {**kinds, "return": list[tp.Numpy]}
    with scope.using(root=scope.Root()):
        try:
            results = iter(flow.global_function()(job)(*arrays))
        finally:
            flow.clear_default_session()
    return outcomes | {label: Ended(tuple(array for _ in range(size) for array in flat(next(results)))) for label, size in sizes}

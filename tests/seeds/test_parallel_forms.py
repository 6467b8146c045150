"""The parallelism strategies of the fourth document - data, model, pipeline and mixed - as job functions: one matrix product, or two.

The document writes them with global tensors; here the layouts are asked for with `distribute`, `parallel_cast` and
`scope.placement`.  What travels is what the document draws, and the numbers are NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import scope
from jobflow.compiler.layouts.box import Reroute
from jobflow.engine.job import job_of
from jobflow.tools.explain import Explained, laid_out

RANDOM = np.random.RandomState(0)
X = RANDOM.standard_normal((4, 5)).astype(np.float32)
W0 = RANDOM.standard_normal((5, 8)).astype(np.float32)
W1 = RANDOM.standard_normal((8, 3)).astype(np.float32)


pytestmark = pytest.mark.usefixtures("fresh")


def weight(name: str, value: Any, distribute: Any = None) -> Any:
    return flow.get_variable(name, value.shape, initializer=flow.zeros_initializer(), distribute=distribute or flow.distribute.broadcast())


def devices(first: int, last: int) -> Any:
    return flow.scope.placement("gpu", f"0:{first}-{last}")


def run(job: Callable[..., Any], ranks: int, **weights: Any) -> tuple[Any, Explained]:
    """Return the results of the job on this number of devices, and the explained program."""
    flow.config.gpu_device_num(ranks)
    flow.load_variables(weights)
    result = job(X)
    with scope.using(root=scope.Root()):
        return result, laid_out(job_of(job), ranks)


def routes(program: Explained) -> list[str]:
    return [node.op.name for node in program.physical.graph.nodes if isinstance(node.op, Reroute)]


def layout_of(program: Explained, name: str) -> str:
    (value,) = (value for value in program.physical.graph.values() if value.name == name)
    return str(program.physical.layouts[value])


def test_data_parallelism() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        return flow.matmul(x, weight("w", W0), name="out")

    out, program = run(job, 2, w=W0)
    np.testing.assert_allclose(out, X @ W0, rtol=1e-5)
    assert (layout_of(program, "out"), routes(program)) == ("cpu[0-1]:S(0)", [])


def test_model_parallelism() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        return flow.matmul(flow.parallel_cast(x, distribute=flow.distribute.broadcast()), weight("w", W0, flow.distribute.split(1)), name="out")

    out, program = run(job, 2, w=W0)
    np.testing.assert_allclose(out, X @ W0, rtol=1e-5)
    assert (layout_of(program, "out"), routes(program)) == ("cpu[0-1]:S(1)", ["all_gather"])  # only the input is put together


def test_pipeline_parallelism() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 5))) -> tuple[tp.Numpy, tp.Numpy]:
        with devices(0, 0):
            first = flow.matmul(x, weight("w0", W0), name="first")
        with devices(1, 1):
            return first, flow.matmul(first, weight("w1", W1), name="second")

    (first, second), program = run(job, 2, w0=W0, w1=W1)
    np.testing.assert_allclose(first, X @ W0, rtol=1e-5)
    np.testing.assert_allclose(second, X @ W0 @ W1, rtol=1e-5)
    assert layout_of(program, "first").startswith("gpu[0]") and layout_of(program, "second").startswith("gpu[1]")
    assert set(routes(program)) == {"move"}


def test_mixed_parallelism() -> None:
    """Two stages of two devices: data parallel, then model parallel."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 5))) -> tuple[tp.Numpy, tp.Numpy]:
        with devices(0, 1):
            first = flow.matmul(x, weight("w0", W0), name="first")
        with devices(2, 3):
            whole = flow.parallel_cast(first, distribute=flow.distribute.broadcast())
            second = flow.matmul(whole, weight("w1", W1, flow.distribute.split(1)), name="second")
            loss = flow.math.reduce_sum(flow.math.square(second))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0).minimize(loss)
        return first, second

    (first, second), program = run(job, 4, w0=W0, w1=W1)
    np.testing.assert_allclose(first, X @ W0, rtol=1e-5)
    np.testing.assert_allclose(second, X @ W0 @ W1, rtol=1e-5)
    assert (layout_of(program, "first"), layout_of(program, "second")) == ("gpu[0-1]:S(0)", "gpu[2-3]:S(1)")
    flow.config.gpu_device_num(4)
    after = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    outer = 2 * X @ W0 @ W1
    np.testing.assert_allclose(after["w1"], W1 - 0.01 * (X @ W0).T @ outer, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["w0"], W0 - 0.01 * X.T @ (outer @ W1.T), rtol=1e-4, atol=1e-6)

"""Unrolled graphs: the graph of two microbatches as text, uneven microbatches, and nodes that simplification must not merge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from traced import Sgd, evaluate, first, plain, type_, variable

from jobflow import scope
from jobflow.compiler.compile import logical
from jobflow.compiler.front.batch_cut import cut_batch
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import NOWHERE, JobError
from jobflow.core.types import Tensor, float64
from jobflow.graph.graph_text import graph_text
from jobflow.graph.ir import Graph
from jobflow.graph.traced import Traced
from jobflow.ops import elementwise as ew
from jobflow.ops.matmul import matmul
from jobflow.ops.random_tensors import dropout

Body = Callable[[Tracer, Any], Tensor]


def unrolled(body: Body, rows: int, count: int) -> Graph:
    """Return the graph of a train job of one argument x, float64[rows, 2], whose loss `body` returns."""
    cut = cut_batch("job f", count, NOWHERE, {"x": (rows, 2)}, exact=False)
    graph: list[tuple[Traced, list[Any]]] = []
    for size in cut.sizes:
        tracer = Tracer("job", first(1), trainable=True)
        with scope.using(interpreter=tracer, placement=tracer.placement, view="consistent", namespace=()):
            loss: Any = body(tracer, tracer.input("x", type_(size, 2, dtype=float64)))
            tracer.minimize(Sgd(), [loss])
        graph.append((tracer.traced(), [loss]))
    program, outputs = graph[0]
    with scope.using(placement=program.placement, view="consistent", namespace=()):
        return logical(replace(program, microbatches=cut, tail=graph[1] if len(graph) > 1 else None), outputs).graph


def linear(tracer: Tracer, x: Any) -> Tensor:
    w = variable(tracer, "w", 2, 1, dtype=float64)
    return matmul(x, ew.scale(w, 3.0))


def test_the_graph_of_two_microbatches_prints_as_expected() -> None:
    """Expect that the scaled weight is computed once, and that gradients of the second microbatch are added to those of the first."""
    assert plain(graph_text(unrolled(linear, 4, 2))) == (
        "job job on cpu[0]\n"
        "  %x[0:2]: float64[2,2] = Input(key=x[0:2])()\n"
        "  %w: float64[2,1] = ReadVariable(key=w)()\n"
        "  %scale_0: float64[2,1] = Scale(number=3.0)(%w)\n"
        "  %matmul_0#0: float64[2,1] = MatMul()(%x[0:2], %scale_0)\n"
        "  %matmul_0.filllike_0#0: float64[2,1] = FillLike(value=0.25)(%matmul_0#0)\n"
        "  %matmul_0.matmul_1#0: float64[2,1] = MatMul(transpose_a=True)(%x[0:2], %matmul_0.filllike_0#0)\n"
        "  %scale_0.scale_0#0: float64[2,1] = Scale(number=3.0)(%matmul_0.matmul_1#0)\n"
        "  %x[2:4]: float64[2,2] = Input(key=x[2:4])()\n"
        "  %matmul_0#1: float64[2,1] = MatMul()(%x[2:4], %scale_0)\n"
        "  %matmul_0.filllike_0#1: float64[2,1] = FillLike(value=0.25)(%matmul_0#1)\n"
        "  %matmul_0.matmul_1#1: float64[2,1] = MatMul(transpose_a=True)(%x[2:4], %matmul_0.filllike_0#1)\n"
        "  %scale_0.scale_0#1: float64[2,1] = Scale(number=3.0)(%matmul_0.matmul_1#1)\n"
        "  %w.gradient#1: float64[2,1] = Add()(%scale_0.scale_0#0, %scale_0.scale_0#1)\n"
        "  %System-Train-TrainStep-job: int64[1] = ReadVariable(key=System-Train-TrainStep-job)()\n"
        "  %constant_0: float64[1] = Constant(value=1.0)()\n"
        "  %sgdupdate_0: float64[2,1] = SgdUpdate()(%w, %w.gradient#1, %constant_0)\n"
        "  %increment_0: int64[1] = Increment()(%System-Train-TrainStep-job)\n"
        "  return %matmul_0#0, %matmul_0#1\n"
        "  w <- %sgdupdate_0\n"
        "  System-Train-TrainStep-job <- %increment_0\n"
    )


def test_nodes_record_their_microbatch() -> None:
    graph = unrolled(linear, 5, 2)
    microbatches = {node.name: node.provenance.microbatch for node in graph.nodes}
    assert microbatches["x[0:3]"] == 0 and microbatches["x[3:5]"] == 1
    assert microbatches["matmul_0#0"] == 0 and microbatches["matmul_0.matmul_1#1"] == 1 and microbatches["w.gradient#1"] == 1
    assert microbatches["w"] is microbatches["scale_0"] is microbatches["sgdupdate_0"] is None


def test_masks_of_microbatches_are_parts_of_the_batch_mask() -> None:
    def body(tracer: Tracer, x: Any) -> Tensor:
        return dropout(linear(tracer, x), 0.5, tracer.run_counter(), key="drop", seed=3)

    whole = Tracer("job", first(1), trainable=True)
    with scope.using(interpreter=whole, placement=whole.placement, view="consistent", namespace=()):
        loss: Any = body(whole, whole.input("x", type_(7, 2, dtype=float64)))
        whole.minimize(Sgd(), [loss])
        expected = logical(whole.traced(), [loss]).graph
    x, w = np.random.default_rng(0).normal(size=(7, 2)), np.ones((2, 1))
    counter = {"#run": np.array([5])}
    (losses,), after = evaluate(expected, {"x": x, **counter}, {"w": w})
    parts = {f"x[{a}:{b}]": x[a:b] for a, b in ((0, 3), (3, 5), (5, 7))}
    masks, then = evaluate(unrolled(body, 7, 3), {**parts, **counter}, {"w": w})
    assert 0 < np.count_nonzero(losses) < 7
    np.testing.assert_array_equal(np.concatenate(masks), losses)
    np.testing.assert_allclose(then["w"], after["w"], rtol=1e-14)


@pytest.mark.parametrize(
    ("shapes", "arguments"),
    [
        ({"x": (6, 2), "scale": (1,), "y": (6,)}, ("x", "y")),
        ({"x": (6, 2), "factor": ()}, ("x",)),
    ],
)
def test_arguments_of_batch_length_are_cut(shapes: dict[str, tuple[int, ...]], arguments: tuple[str, ...]) -> None:
    cut = cut_batch("job f", 4, NOWHERE, shapes, exact=False)
    assert (cut.arguments, cut.spans, cut.sizes) == (arguments, ((0, 2), (2, 4), (4, 5), (5, 6)), (2, 1))


def test_a_job_without_arguments_raises_for_microbatches() -> None:
    with pytest.raises(JobError, match="no argument has a first axis longer than 1"):
        cut_batch("job f", 2, NOWHERE, {}, exact=False)

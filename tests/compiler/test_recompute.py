"""Rematerialization of regions for the backward pass: which nodes are repeated, when, and the effect on memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from traced import Bound, first, text, trace, type_, variable, world_of

from jobflow import scope
from jobflow.compiler.compile import distribute, plan_rank
from jobflow.compiler.front.simplify import simplify
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import user_line
from jobflow.graph.ir import Graph, Value
from jobflow.kernels.target import CPU
from jobflow.ops.activation import relu, tanh
from jobflow.ops.elementwise import multiply
from jobflow.ops.matmul import matmul
from jobflow.ops.op import apply
from jobflow.ops.random_tensors import dropout
from jobflow.ops.reduce import reduce_mean, reduce_sum
from jobflow.ops.update import MovingAverage
from jobflow.plan.storage import RankMemory, place_variables

Layer = Callable[[Tracer, Value, int], Any]


def dense(tracer: Tracer, x: Value, i: int) -> Any:
    return tanh(matmul(x, variable(tracer, f"w{i}", 8, 8)))


def masked(tracer: Tracer, x: Value, i: int) -> Any:
    return dropout(dense(tracer, x, i), 0.5, tracer.run_counter(), key=f"drop{i}")


def chain(depth: int, each: int, layer: Layer = dense, rows: int = 64) -> Callable[[Tracer], Any]:
    """Return a loss of `depth` layers in regions of `each` layers; without regions if `each` is 0."""

    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(rows, 8))
        for start in range(0, depth, each or depth):
            with scope.using() if not each else scope.config(checkpointing=True):
                for i in range(start, min(start + (each or depth), depth)):
                    x = layer(tracer, x, i)
        return reduce_mean(x, 1)

    return body


def again(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes if node.name.startswith("again:")]


def arena(graph: Graph) -> int:
    slots, _ = place_variables(graph.variables.values(), 0)
    return plan_rank(distribute(graph), RankMemory(0, slots), CPU).buffers["arena"]


def test_recomputed_nodes_precede_their_first_reader() -> None:
    printed = text(trace(chain(3, 2), train=True)).splitlines()
    lines = [line.split(": ")[0].strip(" %") for line in printed]
    assert [line for line in lines if line.startswith("again:")] == ["again:matmul_2", "again:tanh_2", "again:matmul_0", "again:tanh_0"]
    before = lines[lines.index("again:tanh_0") + 1]
    assert before.startswith("matmul_1."), (
        "the gradient of tanh_1 needs tanh_1, which is kept; that of the product before is the first to need tanh_0"
    )


def test_inputs_of_regions_are_stored_and_not_recomputed() -> None:
    assert again(trace(chain(3, 1), train=True)) == ["again:matmul_2", "again:tanh_2"], "a layer's own result is all its gradient needs"
    graph = trace(chain(4, 2), train=True)
    assert again(graph) == ["again:matmul_2", "again:tanh_2", "again:matmul_3", "again:tanh_3", "again:matmul_0", "again:tanh_0"]
    stored = {node.inputs[0].name for node in graph.nodes if node.name == "again:matmul_2"}
    assert stored == {"tanh_1"}


def test_the_backward_pass_reads_no_forward_values_of_a_region() -> None:
    graph = trace(chain(6, 3), train=True)
    inner = {"tanh_0", "tanh_1", "tanh_3", "tanh_4"}
    readers = {v.name for node in graph.nodes if node.phase != "forward" for v in node.inputs}
    assert not inner & readers and {f"again:{name}" for name in inner} <= readers


def test_recompute_keeps_graphs_without_regions_or_training() -> None:
    assert again(trace(chain(4, 0), train=True)) == []
    assert again(trace(chain(4, 2))) == []
    assert text(trace(chain(4, 2))) == text(trace(chain(4, 0)))


def test_recomputed_nodes_are_not_merged_with_the_originals() -> None:
    graph = trace(chain(6, 3), train=True)
    assert text(simplify(graph)) == text(graph)
    assert {node.provenance.region for node in graph.nodes if node.name.startswith("again:")} == {~1, ~2}
    assert all(node.phase == "backward" for node in graph.nodes if node.name.startswith("again:"))


def test_regions_reduce_memory() -> None:
    """Run 16 layers in regions of 4: the inputs of 4 regions and the values of one are stored, instead of those of 16 layers."""
    whole, regions = (arena(trace(chain(16, each, rows=4096), train=True)) for each in (0, 4))
    layer = 4096 * 8 * 4
    assert whole >= 16 * layer
    assert regions <= 11 * layer, "3 inputs of regions, 4 results, and what a layer's gradient needs"


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("layer", [dense, masked], ids=["dense", "dropout"])
def test_recomputation_keeps_results_bit_equal(n: int, layer: Layer) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 8)).astype(np.float32)
    weights = {f"w{i}": random.normal(size=(8, 8)).astype(np.float32) for i in range(5)}
    results = []
    for each in (0, 1, 2, 5):
        graph = trace(chain(5, each, layer, rows=24), first(n), train=True)
        assert bool(again(graph)) == (each > 0)
        with world_of(n) as world:
            bound = Bound(world, distribute(graph))
            bound.write(weights)
            arguments = {value.name: np.array([1]) if value.name == "#run" else x for value in graph.inputs}
            (loss,) = bound.run(**arguments)
            results.append((loss, *(bound.read(name) for name in weights)))
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_recomputed_random_ops_sample_the_same_values() -> None:
    graph = trace(chain(2, 2, masked), train=True)
    masks = {node.name: node for node in graph.nodes if node.op.by_position}
    repeated = {name for name in masks if name.startswith("again:")}
    assert repeated
    for name in repeated:
        original = masks[name.removeprefix("again:")]
        assert masks[name].op == original.op and masks[name].inputs[1] is original.inputs[1], "one key, one counter"


def test_moving_statistics_are_written_once() -> None:
    """Expect that the forward pass writes them from stored statistics, and that nodes are repeated only after their region has ended."""

    def layer(tracer: Tracer, x: Value, i: int) -> Any:
        y = dense(tracer, x, i)
        moving = variable(tracer, f"moving{i}", 8, trainable=False)
        mean = reduce_mean(y, 0)
        with tracer.updating(user_line()):
            new = apply(MovingAverage(0.9), moving, mean)
        tracer.assign(f"moving{i}", new)
        return multiply(y, mean)

    graph = trace(chain(4, 2, layer), train=True)
    assert sum(isinstance(node.op, MovingAverage) for node in graph.nodes) == 4
    assert again(graph) and not any("mean" in name for name in again(graph))
    first_again = min(i for i, node in enumerate(graph.nodes) if node.name.startswith("again:"))
    assert first_again > max(i for i, node in enumerate(graph.nodes) if node.phase == "forward")


def test_results_of_the_job_are_not_recomputed() -> None:
    shown: list[Value] = []

    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(6, 8))
        with scope.config(checkpointing=True):
            x = relu(dense(tracer, x, 0))
            shown.append(x)
            y = dense(tracer, x, 1)
        return reduce_sum(y, 1), reduce_sum(x, 1)

    assert again(trace(body, train=True)) == ["again:matmul_0", "again:tanh_0", "again:relu_0", "again:matmul_1", "again:tanh_1"]


def test_a_gather_in_a_separate_region_is_repeated() -> None:
    """Expect that a parameter is gathered where it is read, dropped, and gathered again."""

    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(6, 8)), variable(tracer, "w", 8, 8)
        with scope.config(checkpointing=True):
            scaled = tanh(w)
        return reduce_sum(tanh(matmul(matmul(x, scaled), variable(tracer, "v", 8, 8))), 1)

    graph = trace(body, train=True)
    assert again(graph) == ["again:tanh_0"]
    names = [node.name for node in graph.nodes]
    assert names.index("again:tanh_0") > names.index("reducesum_0")


def test_a_gather_is_repeated_for_recomputed_regions_that_read_it() -> None:
    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(6, 8)), variable(tracer, "w", 8, 8)
        with scope.config(checkpointing=True):
            scaled = tanh(w)
        with scope.config(checkpointing=True):
            y = tanh(matmul(tanh(matmul(x, scaled)), variable(tracer, "v", 8, 8)))
        return reduce_sum(y, 1)

    graph = trace(body, train=True)
    assert again(graph) == ["again:tanh_0", "again:matmul_0", "again:tanh_1", "again:matmul_1", "again:tanh_2"]
    gathered = next(node.outputs[0] for node in graph.nodes if node.name == "tanh_0")
    assert [node.name for node in graph.nodes if gathered in node.inputs] == ["matmul_0"]


def test_checkpointing_scopes_nest_and_end() -> None:
    regions: dict[str, int | None] = {}

    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(6, 8))
        block = scope.config(checkpointing=True)
        for i in range(2):
            with block:
                regions[f"entered {i}"] = scope.current().region
                with scope.config(checkpointing=False):
                    regions[f"ended {i}"] = scope.current().region
                with scope.config(pipeline_stage_id_hint=3):
                    regions[f"staged {i}"] = scope.current().region
                    assert scope.current().stage == 3
        regions["function"] = scope.checkpointed(lambda: scope.current().region)()
        regions["outside"] = scope.current().region
        return relu(x)

    trace(body)
    assert regions == {
        "entered 0": 1, "ended 0": None, "staged 0": 1, "entered 1": 2, "ended 1": None, "staged 1": 2, "function": 3, "outside": None,
    }  # fmt: skip

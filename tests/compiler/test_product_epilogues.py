"""Products with the operations around them, and padded rows: the merged operations, and equal results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from growing import grown
from programs import check
from traced import Bound, Sgd, distribute, trace, type_, variable, world_of

from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.rank.local import Builder, LocalValue, RankProgram
from jobflow.compiler.rank.product_epilogues import merge_epilogues
from jobflow.core.types import bfloat16, float32
from jobflow.graph.ir import Graph
from jobflow.kernels.cuda.epilogue_product import EpilogueProduct
from jobflow.kernels.patterns import Formats
from jobflow.kernels.target import FusionLimits, Target, target_of
from jobflow.ops.activation import GeluTanh, tanh
from jobflow.ops.arithmetic import add
from jobflow.ops.axes import reshape
from jobflow.ops.matmul import BiasAdd, MatMul, bias_add, matmul
from jobflow.ops.op import apply
from jobflow.ops.pointwise import Elementwise
from jobflow.ops.reduce import reduce_mean
from jobflow.ops.scalar import Cast, scale
from jobflow.ops.softmax import softmax
from jobflow.ops.update import Assign
from jobflow.plan.plan import Compute, Plan
from jobflow.program.program import ALONE, Program

REFERENCE = target_of("cpu", "reference")
#: the CPU's kernels in plans of a GPU with cublasLt
MERGED = replace(REFERENCE, tables="jobflow.kernels.cuda.product_patterns", alignment=256)
FUSED = replace(MERGED, fusion=FusionLimits())


def plan_of(graph: Graph, target: Target = MERGED) -> Plan:
    return Program(distribute(graph), ALONE, target).plan(0, 1)


def names(plan: Plan) -> list[str]:
    return [str(i.op) if isinstance(i.op, EpilogueProduct) else type(i.op).__name__ for i in plan.body if isinstance(i, Compute)]


def mlp(tracer: Tracer) -> Any:
    """Return the loss of two dense layers with a residual, as in a transformer."""
    x = tracer.input("x", type_(16, 8), split=False)
    w1, b1, w2, b2 = (variable(tracer, name, *shape) for name, shape in (("w1", (8, 24)), ("b1", (24,)), ("w2", (24, 8)), ("b2", (8,))))
    wide = apply(GeluTanh(), bias_add(matmul(x, w1), b1))
    y = add(x, bias_add(matmul(wide, w2), b2))
    return reduce_mean(tanh(y))


def results(body: Callable[[Tracer], Any], target: Target, **options: Any) -> dict[str, Any]:
    """Return the variables after two steps of training."""
    graph = trace(body, train=True, optimizer=Sgd(0.5), **options)
    random = np.random.default_rng(0)
    values = {name: random.normal(size=v.type.shape).astype(np.float32) for name, v in graph.variables.items()}
    with world_of(1) as world:
        bound = Bound(world, distribute(graph), target=target)
        bound.write(values)
        for _ in range(2):
            bound.run(x=random.normal(size=(16, 8)).astype(np.float32))
        changed = {name: np.array(bound.read(name)) for name in values}
        bound.close()
    return changed


def test_a_layer_is_one_call_for_each_product() -> None:
    merged = [name for name in names(plan_of(trace(mlp, train=True))) if "Product" in name]
    assert sorted(merged) == [
        "EpilogueProduct(MatMul() + bias + addend)",
        "EpilogueProduct(MatMul() + bias + gelu forward)",
        "EpilogueProduct(MatMul(transpose_a=True) + sums of b)",
        "EpilogueProduct(MatMul(transpose_b=True) + gelu gradient + sums of y)",
    ]
    assert not {"BiasAdd", "GeluTanh", "AxisSum", "Add"} & set(names(plan_of(trace(mlp, train=True))))
    assert "BiasAdd" in names(plan_of(trace(mlp, train=True), REFERENCE))


def test_gradients_of_half_precision_are_summed_in_float32() -> None:
    plan = plan_of(trace(mlp, train=True, half=bfloat16))
    merged = [i for i in plan.body if isinstance(i, Compute) and isinstance(i.op, EpilogueProduct) and i.op.sums]
    assert [i.op.sums for i in merged if isinstance(i.op, EpilogueProduct)] == ["b", "b"]
    assert {slot.type.dtype for i in merged for slot in i.outputs} == {float32}
    assert not [i for i in plan.body if isinstance(i, Compute) and isinstance(i.op, Cast) and i.op.dtype is float32], "no gradient is cast alone"
    assert "AxisSum" not in names(plan)


@pytest.mark.parametrize("half", [None, bfloat16], ids=str)
@pytest.mark.parametrize("target", [MERGED, FUSED], ids=["merged", "fused"])
def test_merged_products_train_alike(half: Any, target: Target) -> None:
    expected = results(mlp, REFERENCE)
    for name, ours in results(mlp, target, half=half).items():
        np.testing.assert_allclose(ours, expected[name], rtol=0, atol=2e-6 if half is None else 2e-2, err_msg=name)


def test_results_with_other_readers_remain_outputs() -> None:
    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(8, 8), split=False), variable(tracer, "w", 8, 8)
        y = matmul(x, w)
        return add(y, x), y

    assert "EpilogueProduct" not in " ".join(names(plan_of(trace(body)))), "the product is an output"

    def activated(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(8, 8), split=False), variable(tracer, "w", 8, 8)
        y = matmul(x, w)
        return apply(GeluTanh(), y), y

    (product,) = (i for i in plan_of(trace(activated)).body if isinstance(i, Compute))
    assert isinstance(product.op, EpilogueProduct) and product.op.keeps and len(product.outputs) == 2


def test_operands_that_no_epilogue_reads_stay_apart() -> None:
    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(8, 6), split=False), variable(tracer, "w", 6, 6)
        row, column = tracer.input("row", type_(1, 6), split=False), tracer.input("column", type_(8), split=False)
        narrow = apply(GeluTanh(), matmul(x, w))  # rows of 6 elements: the second output needs a multiple of 8
        return add(matmul(x, w), row), apply(BiasAdd(0), matmul(x, w), column), narrow, scale(matmul(x, w), 2.0)

    assert not [name for name in names(plan_of(trace(body))) if name.startswith("EpilogueProduct")]


def test_random_programs_equal_their_kernels() -> None:
    with world_of(1) as one, world_of(2) as two:
        for seed in range(2):
            check(one, grown(8100 + seed, ((1,),)), target=MERGED)
        check(two, grown(8200, ((2,),)), target=FUSED)


@pytest.mark.parametrize("case", ["one microbatch", "two microbatches", "after an update"])
def test_products_are_not_merged_across_microbatches_or_updates(case: str) -> None:
    builder = Builder(0, microbatch=0)
    x, w, b = (LocalValue(type_(*shape), name) for name, shape in (("x", (8, 8)), ("w", (8, 8)), ("b", (8,))))
    if case == "after an update":
        b = builder.compute(Assign(), b, b)
    y = builder.compute(MatMul(), x, w)
    builder.microbatch = int(case == "two microbatches")
    z = builder.compute(BiasAdd(1), y, b)
    program = RankProgram("job", 0, tuple(builder.steps), (), ((0, z),), {}, {}, target=MERGED)
    assert len(merge_epilogues(program).steps) == len(program.steps) - (case == "one microbatch")


# Padded rows ---------------------------------------------------------------------------------------------------------


def scores(tracer: Tracer) -> Any:
    """Return scores of 37 words for 2 x 4 positions, which a softmax reads and another product multiplies."""
    x, table = tracer.input("x", type_(2, 4, 8), split=False), variable(tracer, "table", 37, 8)
    y = reshape(matmul(reshape(x, (8, 8)), table, transpose_b=True), (2, 4, 37))
    return reshape(matmul(reshape(softmax(y), (8, 37)), table), (2, 4, 8))


def strides(plan: Plan) -> set[tuple[int, ...]]:
    """Return the distances of rows, in elements, of all results with rows of 37 elements."""
    slots = [slot for i in plan.body if isinstance(i, Compute) for slot in i.outputs if slot.type.shape[-1:] == (37,)]
    return {tuple(stride // slot.type.dtype.itemsize for stride in slot.strides[:-1]) for slot in slots}


def test_rows_of_products_are_padded() -> None:
    graph = trace(scores)
    assert strides(plan_of(graph, REFERENCE)) == {(37,), (148, 37)}
    assert strides(plan_of(graph)) == {(40,), (160, 40)}
    assert {type(i.op).__name__ for i in plan_of(graph).body if isinstance(i, Compute)} == {"MatMul", "Softmax"}, "no view became a copy"
    random = np.random.default_rng(1)
    x, table = random.normal(size=(2, 4, 8)).astype(np.float32), random.normal(size=(37, 8)).astype(np.float32)
    outputs = []
    with world_of(1) as world:
        for target in (REFERENCE, MERGED, FUSED):
            bound = Bound(world, distribute(graph), target=target)
            bound.write({"table": table})
            outputs.append(bound.run(x=x)[0])
            bound.close()
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(outputs[2], outputs[0], rtol=0, atol=1e-5)


def test_values_that_are_copied_or_returned_keep_their_rows() -> None:
    def returned(tracer: Tracer) -> Any:
        x, table = tracer.input("x", type_(8, 8), split=False), variable(tracer, "table", 37, 8)
        return matmul(x, table, transpose_b=True)

    def flattened(tracer: Tracer) -> Any:
        x, table = tracer.input("x", type_(8, 8), split=False), variable(tracer, "table", 37, 8)
        return scale(reshape(scale(matmul(x, table, transpose_b=True), 2.0), (8 * 37,)), 2.0)

    assert strides(plan_of(trace(returned))) == strides(plan_of(trace(flattened), REFERENCE)) == {(37,)}
    ops = [type(i.op).__name__ for i in plan_of(trace(flattened)).body if isinstance(i, Compute)]
    assert ops == ["MatMul", "Scale", "Scale"], "padding must not turn a view into a copy"


def test_long_rows_have_whole_tiles() -> None:
    from jobflow.compiler.rank.row_padding import row_length

    formats: Formats = MERGED.patterns.formats
    lengths = {n: row_length(type_(2, n), formats) for n in (3, 31, 33, 64, 4095, 4096, 50257)}
    assert lengths == {3: 3, 31: 31, 33: 40, 64: 64, 4095: 4096, 4096: 4096, 50257: 50304}
    assert issubclass(MatMul, formats.products) and not issubclass(Elementwise, formats.products)

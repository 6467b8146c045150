"""Fused operations: they keep results bit-equal, and do not raise peak memory."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from growing import grown
from programs import STEPS, check, first_values, graph_of, read
from traced import Bound, Sgd, distribute, text, trace, type_, variable, world_of

from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.rank.order import Ordered
from jobflow.core.types import DType, TensorType, dtype_of, float16, float32, float64, int64
from jobflow.expressions import on_arrays
from jobflow.graph.ir import Graph
from jobflow.kernels import compiled_loops, half, registry, sequential
from jobflow.kernels.region import Region, RegionMember
from jobflow.kernels.target import CPU, FusionLimits, target_of
from jobflow.ops.activation import Tanh, relu, tanh
from jobflow.ops.arithmetic import Add, Multiply, Subtract, add, multiply
from jobflow.ops.axes import transpose
from jobflow.ops.group_norm import group_norm
from jobflow.ops.index import gather
from jobflow.ops.loss import SparseSoftmaxCrossEntropy, SparseSoftmaxCrossEntropyGrad
from jobflow.ops.matmul import axis_sum, bias_add, matmul
from jobflow.ops.norm import LayerNorm, LayerNormGrad
from jobflow.ops.op import apply
from jobflow.ops.scalar import Negate, Scale, fill_like, scale
from jobflow.ops.transcendental import Absolute, Exp, Square, exp, square
from jobflow.ops.update import Assign
from jobflow.plan.plan import Compute
from jobflow.program.program import ALONE, Program
from jobflow.runtime.device.numpy_device import CpuDevice

REFERENCE = target_of("cpu", "reference")
FUSED = replace(REFERENCE, fusion=FusionLimits())
UNARY = (Negate(), Scale(0.5), Absolute(), Exp(), Square(), Tanh())
BINARY = (Add(), Multiply(), Subtract())


def chain(seed: int, dtype: DType) -> tuple[Region, list[TensorType]]:
    """Return random members that read earlier members or broadcast inputs; the last and some others are outputs."""
    random = np.random.default_rng(seed)
    shapes = [(3, 4, 5), *[((3, 4, 5), (4, 5), (1, 5), (3, 1, 1), (5,), ())[int(random.integers(6))] for _ in range(2)]]
    members = [RegionMember(UNARY[int(random.integers(len(UNARY)))], (0,))]
    for i in range(1, int(random.integers(2, 7))):
        reads: list[Any] = [(int(random.integers(i)), 0), (i - 1, 0) if random.random() < 0.5 else int(random.integers(3))]
        binary = random.random() < 0.6
        ops: Sequence[Any] = BINARY if binary else UNARY
        members.append(RegionMember(ops[int(random.integers(len(ops)))], tuple(reads[: 1 + binary])))
    outputs = sorted({len(members) - 1, int(random.integers(len(members)))})
    used = 1 + max(read for member in members for read in member.reads if isinstance(read, int))
    return Region(tuple(members), tuple((i, 0) for i in outputs)), [TensorType(shape, dtype) for shape in shapes[:used]]


@pytest.mark.parametrize("dtype", [float32, float64, float16], ids=str)
def test_a_region_computes_its_members_in_order(dtype: DType) -> None:
    for seed in range(10):
        op, types = chain(seed, dtype)
        random = np.random.default_rng(seed)
        inputs = [random.uniform(-1, 1, t.shape).astype(dtype.numpy) for t in types]
        results: list[Any] = []
        for member in op.members:
            read = [inputs[r] if isinstance(r, int) else results[r[0]] for r in member.reads]
            (inferred,) = (member.op.infer(*(TensorType(a.shape, dtype_of(a.dtype)) for a in read)),)
            results.append(np.empty(inferred.shape, inferred.dtype.numpy))
            half.run(member.op, read, [results[-1]])
        expected = [results[i] for i, _ in op.outputs]
        outputs = [np.empty(t.shape, t.dtype.numpy) for t in op.infer(*types)]
        op.kernel(np, *inputs, *outputs)
        for target in (REFERENCE, CPU):
            bound = [np.empty_like(a) for a in outputs]
            for function, arguments in registry.bind(op, target, CpuDevice(), inputs, bound):
                function(*arguments)
            for ours, theirs in zip(bound, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=f"{op} on {target}")
        expressions = op.expression(*types)
        assert expressions is not None
        evaluated = on_arrays.evaluate(expressions, inputs, np)
        for ours, again, theirs in zip(outputs, evaluated, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=str(op))
            np.testing.assert_array_equal(np.broadcast_to(again, theirs.shape), theirs, err_msg=f"{op}: {expressions}")
        assert pickle.loads(pickle.dumps(op)) == op
        assert hash(op) == hash(chain(seed, dtype)[0])
        assert op != chain(seed + 1, dtype)[0]


def test_an_output_may_take_the_memory_of_an_input_that_is_read_later() -> None:
    op = Region((RegionMember(Negate(), (0,)), RegionMember(Add(), ((0, 0), 0))), ((0, 0), (1, 0)), ((0, (0,)),))
    x, y = np.arange(4.0), np.empty(4)
    for function, arguments in registry.bind(op, REFERENCE, CpuDevice(), [x], [x, y]):
        function(*arguments)
    np.testing.assert_array_equal(x, [-0.0, -1.0, -2.0, -3.0])
    np.testing.assert_array_equal(y, np.zeros(4))


def test_a_region_reads_inputs_before_it_updates_them() -> None:
    op = Region((RegionMember(Assign(), (0, 1)), RegionMember(Scale(2.0), (0,))), ((0, 0), (1, 0)))
    assert op.alias == {0: 0}
    w, x, y = np.ones(3), np.full(3, 5.0), np.empty(3)
    for function, arguments in sequential.SequentialMembers(registry.PLAIN_KERNEL).bind(op, CpuDevice(), [w, x], [w, y]):
        function(*arguments)
    np.testing.assert_array_equal(w, x)
    np.testing.assert_array_equal(y, np.full(3, 2.0))


# -------------------------------------------------------------------- forming


def ordered(graph: Graph, target: Any = FUSED) -> Ordered:
    return Program(distribute(graph), ALONE, target).ordered(0, 1)


def regions(program: Ordered) -> list[list[str]]:
    """Return the members of every region, by name of the operation."""
    actions = [step.action for step in (*program.body, *program.epilogue)]
    return [[member.op.word() for member in action.members] for action in actions if isinstance(action, Region)]


def reasons(program: Ordered) -> set[str]:
    return {one.why for one in program.not_fused}


def x_of(tracer: Tracer, *shape: int) -> Any:
    return tracer.input("x", type_(*(shape or (4, 4))))


def test_chains_and_readers_of_one_value_are_fused() -> None:
    program = ordered(trace(lambda t: square(tanh(add(x := x_of(t), exp(x))))))
    assert regions(program) == [["exp", "add", "tanh", "square"]]
    assert regions(ordered(trace(lambda t: (exp(x := x_of(t)), tanh(x))))) == [["exp", "tanh"]]
    assert regions(ordered(trace(lambda t: (exp(x := x_of(t)), tanh(x))), CPU)) == []


def test_operations_around_a_dependency_are_not_fused() -> None:
    def body(tracer: Tracer) -> Any:
        y = exp(x_of(tracer))
        return add(matmul(y, y), y)

    program = ordered(trace(body))
    assert regions(program) == []
    assert "in between, matmul_0 must follow the region and matmul_0 must precede the operation" in reasons(program)


def test_operations_with_other_index_spaces_are_not_fused() -> None:
    program = ordered(trace(lambda t: add(exp(t.input("b", type_(4), split=False)), x_of(t))))
    assert regions(program) == []
    assert "every row would recompute exp_0" in reasons(program)
    program = ordered(trace(lambda t: (exp(t.input("b", type_(4), split=False)), exp(x_of(t)))))
    assert regions(program) == []


def test_a_cheap_vector_is_recomputed_in_each_row() -> None:
    program = ordered(trace(lambda t: add(scale(t.input("b", type_(4), split=False), 2.0), x_of(t))))
    assert regions(program) == [["scale", "add"]]


def test_row_reductions_are_fused_with_elementwise_ops() -> None:
    """Fuse a residual sum, its layer norm, and operations on the statistics, which have one number per row."""

    def body(tracer: Tracer) -> Any:
        x = add(matmul(x_of(tracer, 6, 40), tracer.input("w", type_(40, 4), split=False)), tracer.input("r", type_(6, 4)))
        y, mean, _ = apply(LayerNorm(1), x, *(tracer.input(name, type_(4), split=False) for name in ("gamma", "beta")))
        return tanh(y), scale(mean, 2.0)

    assert regions(ordered(trace(body))) == [["add", "layernorm", "tanh", "scale"]]


def test_values_for_a_part_of_a_row_are_not_fused_with_the_row() -> None:
    """Use a factor per channel: it does not match a row of channels and pixels, but it joins rows of pixels."""

    def body(tracer: Tracer) -> Any:
        return group_norm(tracer.input("x", type_(6, 4, 3, 5)), 2, *(tracer.input(name, type_(4), split=False) for name in ("gamma", "beta")))

    program = ordered(trace(lambda t: tanh(body(t))))
    assert regions(program) == []
    assert "its index space is [6, 2, 2, 15], but the region has [6, 2, 2, 15], rows of several axes" in reasons(program)
    program = ordered(trace(lambda t: group_norm(t.input("x", type_(6, 4, 3, 5)), 4)))
    assert regions(program) == [["rowstatistics", "groupnormalize"]], "one channel is one row"


def test_unread_outputs_are_not_computed() -> None:
    """Test an operation outside of regions, too: the sums for gamma and beta are unread if these are constants."""
    alone = replace(FUSED, fusion=FusionLimits(members=1))
    graph = trace(
        lambda t: apply(LayerNormGrad(1), *(t.input(n, type_(*s)) for n, s in zip("yxgmi", ((8, 4), (8, 4), (4,), (8,), (8,)), strict=True)))[0]
    )
    assert regions(ordered(graph, alone)) == [["layernormgrad"]]
    assert [len(step.outputs) for step in ordered(graph, REFERENCE).body] == [3]


def test_a_loss_and_its_gradient_are_one_region() -> None:
    def body(tracer: Tracer) -> Any:
        labels = tracer.input("labels", TensorType((8,), int64))
        logits = x_of(tracer, 8, 4)
        loss, *rows = apply(SparseSoftmaxCrossEntropy(), logits, labels)
        return apply(SparseSoftmaxCrossEntropyGrad(), logits, labels, *rows, fill_like(loss, 0.125)), loss

    assert regions(ordered(trace(body))) == [["sparsesoftmaxcrossentropy", "filllike", "sparsesoftmaxcrossentropygrad"]]


def test_lookups_are_fused_with_their_readers() -> None:
    """Expect that word and position embeddings are fused, but not a table that is computed in the same program."""

    def body(tracer: Tracer, table: Any) -> Any:
        program = gather(table, tracer.input("ids", TensorType((8,), int64)))
        return tanh(add(program, tracer.input("places", type_(8, 4))))

    graph = trace(lambda t: body(t, t.input("table", type_(16, 4), split=False)))
    assert regions(ordered(graph)) == [["gather", "add", "tanh"]]
    one = ordered(trace(lambda t: tanh(gather(t.input("table", type_(16, 4), split=False), t.input("id", TensorType((), int64))))))
    assert regions(one) == [["gather", "tanh"]], "the table has more axes than the space"
    program = ordered(trace(lambda t: body(t, tanh(t.input("table", type_(16, 4), split=False)))))
    assert regions(program) == [["gather", "add", "tanh"]]
    assert reasons(program) == {"its index space is [8, 4], but the region has [16, 4]"}
    inputs = [np.linspace(-1, 1, 64).reshape(16, 4), np.array([3, 15, 16, -1, 0, 3, 7, 2]), np.ones((8, 4))]
    (region,) = (step.action for step in ordered(graph).body if isinstance(step.action, Region))
    computed = [np.empty((8, 4)) for _ in range(2)]
    for tier, y in zip(("reference", "llvm"), computed, strict=True):
        for function, arguments in registry.bind(region, target_of("cpu", tier), CpuDevice(), inputs, [y]):
            function(*arguments)
    np.testing.assert_allclose(computed[1], computed[0], 1e-12, 1e-12)


def test_regions_stay_within_the_bounds_of_the_target() -> None:
    graph = trace(lambda t: square(tanh(exp(x_of(t)))))
    program = ordered(graph, replace(REFERENCE, fusion=FusionLimits(members=2)))
    assert regions(program) == [["exp", "tanh"]]
    assert "it would have 3 members, but a region has at most 2" in reasons(program)


def test_an_update_is_not_fused_with_another_view_of_its_variable() -> None:
    """Update w' = w + w.T, which would read elements that are already written."""

    def body(tracer: Tracer) -> Any:
        w = variable(tracer, "w", 4, 4)
        tracer.assign("w", add(w, transpose(w, (1, 0))))
        return scale(w, 2.0)

    program = ordered(trace(body))
    assert all("assign" not in members for members in regions(program))


def test_body_and_epilogue_are_not_fused() -> None:
    def body(tracer: Tracer) -> Any:
        w = variable(tracer, "w", 4)
        return multiply(w, w)

    program = ordered(trace(body, train=True, optimizer=Sgd()))
    names = {member for members in regions(program) for member in members}
    assert "sgdupdate" not in names


def test_regions_that_raise_peak_memory_are_not_formed() -> None:
    """Expect that tanh(x) of all columns is not fused with the sums of pairs, because x would live until its last reader."""

    def body(tracer: Tracer) -> Any:
        x = relu(matmul(a := x_of(tracer, 64, 64), a))
        y = matmul(exp(x), a)
        z = matmul(y, a)
        return add(x, square(z))

    graph = trace(body)
    for target in (REFERENCE, FUSED):
        assert (
            Program(distribute(graph), ALONE, target).plan(0, 1).needed["arena"]
            <= Program(distribute(graph), ALONE, REFERENCE).plan(0, 1).needed["arena"]
        )


def test_column_sums_are_read_outside_of_their_region() -> None:
    def body(tracer: Tracer) -> Any:
        y = tanh(x_of(tracer))
        total = axis_sum(y, 1)
        return bias_add(y, total)

    program = ordered(trace(body))
    assert regions(program) == [["tanh", "axissum"]]
    assert "it reads sums of columns, which are complete only after the last row" in reasons(program)


def _activation_and_its_gradient(tracer: Tracer) -> Any:
    """Return a product, a bias and an activation; the gradient reads them after the product in between."""
    x, b = x_of(tracer, 64, 64), variable(tracer, "b", 64)
    z = bias_add(matmul(x, x), b)
    return multiply(z, matmul(tanh(z), x))


def test_cheap_values_are_recomputed_instead_of_read() -> None:
    graph = trace(_activation_and_its_gradient)
    program = ordered(graph)
    assert regions(program) == [["biasadd", "tanh"], ["biasadd", "multiply"]]
    assert [(one.value, one.region) for one in program.rematerialized] == [("biasadd_0", "multiply_0")]
    assert [len(step.outputs) for step in program.body if isinstance(step.action, Region)] == [1, 1], "the sum is stored nowhere"
    random = np.random.default_rng(3)
    x, b = random.normal(size=(64, 64)).astype(np.float32), random.normal(size=64).astype(np.float32)
    results, needs = [], []
    with world_of(1) as world:
        for target in (REFERENCE, FUSED, target_of("cpu", "llvm")):
            bound = Bound(world, distribute(graph), target=target)
            needs.append(sum(Program(distribute(graph), ALONE, target).plan(0, 1).needed.values()))
            bound.write({"b": b})
            results.append(bound.run(x=x)[0])
            bound.close()
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_allclose(results[2], results[0], 1e-5, 1e-4)
    assert max(needs) == needs[0], needs


def test_expensive_values_are_read() -> None:
    """Use values whose recomputation would read another matrix or call an expensive function."""

    def body(tracer: Tracer, make: Any) -> Any:
        x = x_of(tracer, 64, 64)
        z = make(matmul(x, x), x)
        y = matmul(tanh(z), x)
        return multiply(square(z), y), z

    assert not ordered(trace(lambda t: body(t, add)[0])).rematerialized
    assert not ordered(trace(lambda t: body(t, lambda y, x: exp(y))[0])).rematerialized
    assert ordered(trace(lambda t: body(t, lambda y, x: scale(y, 2.0))[0])).rematerialized
    assert not ordered(trace(lambda t: body(t, lambda y, x: scale(y, 2.0)))).rematerialized, "outputs are stored"


def test_a_bias_and_an_activation_are_fused_with_each_other() -> None:
    def body(tracer: Tracer) -> Any:
        x = x_of(tracer)
        return tanh(bias_add(matmul(x, x), tracer.input("b", type_(4), split=False)))

    graph = trace(body)
    assert regions(ordered(graph, replace(CPU, fusion=FusionLimits()))) == [["biasadd", "tanh"]]
    assert regions(ordered(graph, CPU)) == []


#: columns of a lookup, summed in an image with channels first
COLUMNS_OF_A_TABLE = """
# optimizer sgd, mesh 2, seed 1318
x0 = argument("x0", 4, 4)
i29 = indices("i29", 4)
t30 = gather(x0, i29, 0)
w31 = weight("w31", 4)
w32 = weight("w32", 4)
t33 = batch_norm_train(t30, w31, w32, 0, 0.1)[0]
# ends t33
"""


def test_random_programs_in_compiled_loops_equal_their_kernels() -> None:
    """Compare forward, backward and updates in compiled loops with the kernels, up to rounding."""
    with pytest.MonkeyPatch.context() as patch, world_of(2) as world:
        patch.setattr(compiled_loops, "FEWEST", 1)
        patch.setattr(registry, "_unsupported_reason", lru_cache(registry._unsupported_reason.__wrapped__))
        for program in (grown(9001, ((2,),)), read(COLUMNS_OF_A_TABLE)):
            check(world, program, target=target_of("cpu", "llvm"))


@pytest.mark.parametrize("mesh", [(1,), (2,)], ids=["1", "2"])
def test_random_programs_give_the_same_bits_with_regions(mesh: tuple[int, ...]) -> None:
    formed = 0
    with world_of(mesh[0]) as world:
        for seed in range(4 if mesh == (1,) else 2):
            program = grown(7000 + seed, (mesh,))
            graph = graph_of(program)
            arguments, values = first_values(graph, program.seed)
            physical, results, needs = distribute(graph), [], []
            for target in (REFERENCE, FUSED):
                bound = Bound(world, physical, target=target)
                plan = Program(physical, ALONE, target).plan(0, world.size)
                needs.append(sum(plan.needed.values()))
                formed += sum(isinstance(i, Compute) and isinstance(i.op, Region) for i in plan.instructions)
                try:
                    bound.write(values)
                    with np.errstate(all="ignore"):
                        outputs = [bound.run(**arguments) for _ in range(STEPS)]
                    results.append([*(a for step in outputs for a in step), *(bound.read(name) for name in values)])
                finally:
                    bound.close()
            for ours, theirs in zip(*results, strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=f"{program}\n{text(graph)}")
            assert needs[1] <= needs[0], f"{program}"
    assert formed > 3

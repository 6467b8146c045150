"""Variables shared by ranks: the writer of each piece, the communication, and results equal to those of private copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from traced import first, trace, type_, variable

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.compile import distribute, plan_rank
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts.shared_variables import flat_pieces
from jobflow.core.types import TensorType, float32, float64
from jobflow.engine.session import current_session
from jobflow.kernels.target import CPU
from jobflow.ops.arithmetic import add, multiply
from jobflow.ops.axes import reshape
from jobflow.ops.matmul import matmul
from jobflow.ops.op import apply
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.slice_update import subscript
from jobflow.ops.update import Assign, MovingAverage
from jobflow.plan.plan import Collective, Compute, Plan
from jobflow.plan.plan_checks import compare_plans, summary
from jobflow.plan.storage import RankMemory, is_common, place_variables
from jobflow.program.commands import executors_of


def plans(body: Any, n: int, train: bool = True) -> list[Plan]:
    """Return the plans of n ranks with common memory."""
    physical = distribute(trace(body, first(n), train=train))
    variables = physical.graph.variables.values()
    return [plan_rank(physical, RankMemory(rank, place_variables(variables, rank, 0, tuple(range(n)))[0]), CPU) for rank in range(n)]


def written(plan: Plan) -> list[tuple[int, int]]:
    """Return the bytes of common memory that a rank writes."""
    slots = [slot for i in plan.epilogue if isinstance(i, Compute) for slot in i.outputs]
    return [(slot.offset, slot.stop) for slot in slots if is_common(slot.buffer)]


def kinds(plan: Plan) -> list[str]:
    return [i.kind for i in plan.instructions if isinstance(i, Collective)]


def layer(tracer: Tracer) -> Any:
    x = tracer.input("x", type_(6, 50))
    return add(matmul(x, variable(tracer, "w", 50, 20)), variable(tracer, "b", 20))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_each_rank_receives_and_writes_its_piece(n: int) -> None:
    each = plans(layer, n)
    stretches = sorted(stretch for plan in each for stretch in written(plan))
    assert stretches[0][0] == 0 and stretches[-1][1] >= 4 * (50 * 20 + 20)
    assert all(a[1] == b[0] and a[1] % 64 == 0 for a, b in zip(stretches, stretches[1:], strict=False))
    assert kinds(each[0]) == ["reduce_scatter"]
    assert len({plan.schedule for plan in each}) == 1 and each[0].schedule[0].what == "reduce_scatter"


def test_pieces_of_contiguous_variables_begin_on_cache_lines() -> None:
    types = [TensorType((9,), float64), TensorType((100,), float32), TensorType((), float32)]  # 2, 7 and 1 lines
    pieces = [layout.spans for layout in flat_pieces(types, first(3))]
    assert pieces == [((0, 9), (9, 9), (9, 9)), ((0, 32), (32, 80), (80, 100)), ((0, 0), (0, 0), (0, 1))]


def dense(rows: int) -> Any:
    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(rows, 300))
        return add(matmul(x, variable(tracer, "w", 300, 200)), variable(tracer, "b", 200))

    return body


@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_samples_are_exchanged_instead_of_the_product(n: int) -> None:
    each = plans(dense(10), n)
    assert {tuple(kinds(plan)) for plan in each} == {("all_to_all", "all_gather", "reduce_scatter")}
    assert len({plan.schedule for plan in each}) == 1
    assert [line.nbytes for line in each[0].schedule] == [10 * 300 * 4, 10 * 200 * 4, 832]
    stretches = sorted(stretch for plan in each for stretch in written(plan))
    assert stretches[0][0] == 0 and all(a[1] <= b[0] for a, b in zip(stretches, stretches[1:], strict=False))
    assert sum(stop - start for start, stop in stretches) >= 4 * (300 * 200 + 200)


@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_multiplies_with_its_own_rows(n: int) -> None:
    """Use small other factors; the rank then reads no rows of the weight that others write."""

    def body(tracer: Tracer) -> Any:
        return matmul(tracer.input("x", type_(12, 300)), variable(tracer, "w", 1000, 300), transpose_b=True)

    for plan in plans(body, n):
        assert kinds(plan) == ["all_gather", "all_to_all", "all_to_all"], "the samples, the product, its gradient"
        (stretch,) = written(plan)
        read = [slot for i in plan.instructions if isinstance(i, Compute) for slot in i.inputs if is_common(slot.buffer)]
        assert {(slot.offset, slot.stop) for slot in read} == {stretch}


def test_a_reader_of_a_weight_in_two_operands_reads_all_of_it() -> None:
    """Read a weight in two operands; otherwise the gradient of the samples would have to be summed over the rows."""

    def body(tracer: Tracer) -> Any:
        before = matmul(tracer.input("x", type_(12, 20)), variable(tracer, "v", 20, 300))
        return matmul(before, variable(tracer, "w", 1000, 300), transpose_b=True)

    assert not any(slot.type.shape == (500, 300) for i in plans(body, 2)[0].body if isinstance(i, Compute) for slot in i.inputs)


def test_many_samples_are_not_exchanged() -> None:
    assert kinds(plans(dense(100), 2)[0]) == ["reduce_scatter"]


def test_an_update_that_reads_another_shared_variable_reads_a_copy() -> None:
    """Use variables whose pieces differ, so that one rank would read bytes that another writes."""

    def body(tracer: Tracer) -> Any:
        old, other = variable(tracer, "average", 40, trainable=False), variable(tracer, "w", 1000)
        tracer.assign("average", apply(MovingAverage(0.9), old, reshape(subscript(other, (960,), (1000,)), (40,))))
        return reduce_sum(multiply(other, tracer.input("x", type_(1000), split=False)))

    each = plans(body, 2)
    compare_plans("job", [summary(plan) for plan in each])
    for plan in each:
        stored = [i for i in plan.epilogue if isinstance(i, Compute)]
        assert all(s in i.outputs for i in stored for s in i.inputs if is_common(s.buffer))


def test_the_first_rank_writes_if_new_values_are_read() -> None:
    def body(tracer: Tracer) -> Any:
        old = variable(tracer, "w", 6, 50, trainable=False)
        new = apply(Assign(), old, tracer.input("new", type_(6, 50), split=False))
        tracer.assign("w", new)
        return add(new, new)

    each = plans(body, 3, train=False)
    assert [bool(plan.epilogue) for plan in each] == [True, False, False]
    assert [len(plan.fetches) for plan in each] == [1, 0, 0]


def test_other_writes_are_distributed_over_ranks() -> None:
    def body(tracer: Tracer) -> Any:
        for name in "abc":
            old = variable(tracer, name, 4, 4, trainable=False)
            tracer.assign(name, apply(Assign(), old, tracer.input(f"new {name}", type_(4, 4), split=False)))
        return tracer.input("x", type_(2))

    each = plans(body, 2, train=False)
    assert sorted(stretch for plan in each for stretch in written(plan))[0][0] == 0
    assert all(written(plan) for plan in each)


# -------------------------------------------------------------------- numbers


X = np.random.RandomState(0).standard_normal((5, 13, 200)).astype(np.float32)
LABELS = np.random.RandomState(1).randint(0, 7, (5, 13)).astype(np.int32)
RATE = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
OPTIMIZERS = {
    "sgd": lambda: flow.optimizer.SGD(RATE, momentum=0),
    "momentum": lambda: flow.optimizer.SGD(RATE, momentum=0.9),
    "adamw": lambda: flow.optimizer.AdamW(RATE, epsilon=0.1, weight_decay=0.1),  # rounding of tiny gradients is not blown up
    "clipped": lambda: flow.optimizer.AdamW(RATE, weight_decay=0.1, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.5)),
    "lamb": lambda: flow.optimizer.LAMB(RATE),
    "lars": lambda: flow.optimizer.LARS(RATE),
}


def trained(devices: int, optimizer: str, share: bool) -> tuple[list[float], dict[str, Any], list[str]]:
    """Return losses, variables, and the communication of the ranks in one step."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    flow.config.share_variables(share)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((13, 200)), labels: tp.Numpy.Placeholder((13,), dtype=flow.int32)) -> tp.Numpy:
        initializer = flow.random_normal_initializer(stddev=0.1)
        x = flow.layers.dense(x, 301, activation=flow.nn.relu, kernel_initializer=initializer, name="a")
        x = flow.layers.dense(x, 203, activation=flow.nn.relu, kernel_initializer=initializer, name="b")
        x = flow.layers.batch_normalization(x, axis=1, name="norm")
        x = flow.layers.dense(x, 7, kernel_initializer=initializer, name="c")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
        OPTIMIZERS[optimizer]().minimize(loss)
        return loss

    losses = [float(job(x, labels).mean()) for x, labels in zip(X, LABELS, strict=True)]
    world = current_session().world
    assert world is not None
    assert any(is_common(name) for name in world.ranks[0].memory["state"].buffers) == share
    (executor,) = executors_of(world.ranks[0]).values()
    return losses, {name: value.numpy() for name, value in flow.get_all_variables().items()}, kinds(executor.plan)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_results_equal_those_of_private_copies(optimizer: str, fresh: None) -> None:
    alone, expected, _ = trained(3, optimizer, share=False)
    losses, variables, results = trained(3, optimizer, share=True)
    # a: samples are in shared I/O buffers, the product and its gradient are sent; b: both factors are sent; norms of gradients prevent both
    assert len([kind for kind in results if kind in ("all_to_all", "all_gather")]) == (4 if optimizer in ("sgd", "momentum", "adamw") else 0)
    np.testing.assert_allclose(losses, alone, rtol=1e-5)
    for name, value in variables.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_variables_are_written_and_exchanged(fresh: None) -> None:
    flow.config.cpu_device_num(3)

    @flow.global_function()
    def swap() -> tp.Numpy:
        a = flow.get_variable("a", (5, 7), initializer=flow.constant_initializer(1))
        b = flow.get_variable("b", (5, 7), initializer=flow.constant_initializer(2))
        flow.assign(a, b)
        flow.assign(b, a)
        return a

    for before in (1, 2, 1):
        np.testing.assert_array_equal(swap(), np.full((5, 7), before, np.float32))
    flow.load_variables({"a": np.full((5, 7), 9, np.float32)})
    np.testing.assert_array_equal(swap(), np.full((5, 7), 9, np.float32))
    values = {name: value.numpy()[0, 0] for name, value in flow.get_all_variables().items()}
    assert values == {"a": 1, "b": 9}


def test_ranks_with_different_memory_orders_send_one_order(fresh: None) -> None:
    """Use 255 rows, which are stored column by column, and 256 rows, which are not; all ranks must send factors in one order."""

    def losses(share: bool) -> list[Any]:
        flow.clear_default_session()
        flow.config.cpu_device_num(2)
        flow.config.share_variables(share)

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((511, 1200))) -> tp.Numpy:
            w = flow.get_variable("w", (1200, 300), initializer=flow.random_normal_initializer(stddev=0.02))
            loss = flow.math.reduce_mean(flow.math.square(flow.nn.relu(flow.matmul(x, w))), axis=[1])
            OPTIMIZERS["sgd"]().minimize(loss)
            return loss

        samples = np.random.default_rng(2).standard_normal((3, 511, 1200)).astype(np.float32)
        results = [job(x) for x in samples]
        world = current_session().world
        assert world is not None
        (executor,) = executors_of(world.ranks[0]).values()
        assert ("all_gather" in kinds(executor.plan)) == share
        return results

    for ours, theirs in zip(losses(True), losses(False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)

"""The program of one rank: lowering, writes, joined updates, and the order of body and epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from traced import Bound, distribute, first, on, plain, run, trace, type_, variable, world_of

from jobflow import scope
from jobflow.compiler.compile import plan_rank
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts.box import box
from jobflow.compiler.layouts.shard import shard
from jobflow.compiler.rank.fuse import fuse
from jobflow.compiler.rank.local import Collect, LocalInstruction, LocalValue, RankProgram
from jobflow.compiler.rank.lower import lower
from jobflow.compiler.rank.order import order
from jobflow.compiler.rank.variable_writes import write
from jobflow.core.errors import PlanError
from jobflow.core.layout import MAX, B, P, Partial, S
from jobflow.core.types import TensorType, contiguous_strides, float32, float64
from jobflow.graph.ir import Graph, Value
from jobflow.graph.training import Parameter
from jobflow.kernels.target import CPU
from jobflow.ops.activation import relu, tanh
from jobflow.ops.arithmetic import add, multiply
from jobflow.ops.axes import reshape, transpose
from jobflow.ops.layout_ops import to_layout
from jobflow.ops.matmul import bias_add, matmul
from jobflow.ops.op import apply
from jobflow.ops.optimizer_updates import LarsUpdate
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.source import Constant
from jobflow.ops.update import Assign
from jobflow.plan.plan import Announced, Slot
from jobflow.plan.plan_text import plan_text
from jobflow.plan.storage import RankMemory, place_variables


def lowered(graph: Graph, rank: int = 0) -> RankProgram:
    physical = distribute(graph)
    slots, _ = place_variables(physical.graph.variables.values(), rank)
    return lower(physical, RankMemory(rank, slots))


def layer(tracer: Tracer) -> Any:
    x, w, b = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3), variable(tracer, "b", 3)
    return relu(bias_add(matmul(x, w), b))


# -------------------------------------------------------------------- lowering


def test_a_rank_program_has_local_types() -> None:
    def body(tracer: Tracer) -> Any:
        x, w, b = tracer.input("x", type_(5, 4)), variable(tracer, "w", 4, 2, sbp=S(1)), variable(tracer, "b", 2, sbp=S(0))
        return relu(bias_add(matmul(x, w), b))

    graph = trace(body, first(2))
    assert plain(str(lowered(graph))) == (
        "job job, rank 0\n"
        "  %x.flat: float32[12] = PackPieces(axis=0, counts=(3,))(%x)\n"
        "  %x:B.all_gather: float32[20] = all_gather [0, 1] #0(%x.flat)\n"
        "  %x:B: float32[5,4] = UnpackPieces(axis=0, counts=(3, 2), shape=(5, 4))(%x:B.all_gather)\n"
        "  %matmul_0: float32[5,1] = MatMul()(%x:B, %w)\n"
        "  %biasadd_0: float32[5,1] = BiasAdd(axis=1)(%matmul_0, %b)\n"
        "  %relu_0: float32[5,1] = Relu()(%biasadd_0)\n"
    )
    one = lowered(graph, 1)
    assert str(one.arguments[0].value.type) == "float32[2,4]"
    assert one.schedule == lowered(graph).schedule == (Announced("all_gather", "x:B", (0, 1), 80),)


def test_ops_with_sizes_are_localized() -> None:
    def body(tracer: Tracer) -> Any:
        return reshape(tracer.input("x", type_(5, 2, 3)), (5, 6))

    steps = [lowered(trace(body, first(2)), rank).steps[0].action for rank in (0, 1)]
    assert list(map(str, steps)) == ["Reshape(shape=(3, 6))", "Reshape(shape=(2, 6))"]


def test_all_ranks_number_all_communication() -> None:
    """Expect that ranks 2 and 3 also number the communication of ranks 0 and 1, and vice versa."""

    def body(tracer: Tracer) -> Any:
        with scope.using(placement=on(0, 1)):
            x = to_layout(tracer.input("x", type_(4, 4)), S(1))
        with scope.using(placement=on(2, 3)):
            y = to_layout(tanh(x), S(0))
        return relu(y)

    graph = trace(body, first(4))
    programs = [lowered(graph, rank) for rank in range(4)]
    assert len({program.schedule for program in programs}) == 1
    orders = [[step.action.order for step in p.steps if hasattr(step.action, "order")] for p in programs]
    assert all(own == sorted(set(own)) for own in orders)
    assert sorted({n for own in orders for n in own}) == list(range(len(programs[0].schedule)))


# -------------------------------------------------------------------- writes


def test_an_update_writes_in_place() -> None:
    program = write(lowered(trace(layer, first(2), train=True)))
    assert not [step for step in program.steps if isinstance(step.action, Assign)]
    assert program.updates == {}


def test_a_returned_variable_is_copied_before_it_changes() -> None:
    def body(tracer: Tracer) -> Any:
        w = variable(tracer, "w", 3, dtype=float64)
        return multiply(w, w), reshape(w, (3, 1)), transpose(reshape(w, (3, 1)))

    graph = trace(lambda t: body(t)[0], train=True)
    assert graph.updates
    values = np.arange(3.0)

    def both(tracer: Tracer) -> Any:
        square, column, row = body(tracer)
        return reduce_sum(square), reduce_sum(add(column, column)), reduce_sum(row)

    (square, double, single), new = run(1, both, train=True, variables={"w": values})
    assert (square, double, single) == (5, 6, 3)
    np.testing.assert_allclose(new["w"], values - (2 * values + 2 + 1))

    program = write(lowered(trace(lambda t: reshape(variable(t, "w", 3), (3, 1)), train=True)))
    assert [str(step.action) for step in program.steps if "returned" in step.outputs[0].name] == ["Copy()"]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_kind_of_value_can_be_returned(n: int) -> None:
    """Return arguments, constants, views, partial values, and variables before and after they are written."""
    x, w = np.arange(8.0).reshape(4, 2), -np.ones((4, 2))

    def body(tracer: Tracer) -> Any:
        x_value, old = tracer.input("x", TensorType((4, 2), float64)), variable(tracer, "w", 4, 2, dtype=float64)
        new = apply(Assign(), old, tracer.input("v", TensorType((4, 2), float64), split=False))
        tracer.assign("w", new)
        sums = [to_layout(x_value, sbp) for sbp in (P, Partial(MAX))]
        return (
            x_value,
            x_value,
            reshape(x_value, (8,)),
            apply(Constant((2,), float64, 3.0)),
            *sums,
            old,
            transpose(old),
            new,
            reshape(new, (8,)),
            relu(new),
        )

    expected = [x, x, x.reshape(8), np.full(2, 3.0), x, x, w, w.T, 2 * x, 2 * x.reshape(8), 2 * x]
    with world_of(n) as world:
        bound = Bound(world, distribute(trace(body, first(n))))
        bound.write({"w": w})
        for ours, theirs in zip(bound.run(x=x, v=2 * x), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(bound.read("w"), 2 * x)


@pytest.mark.parametrize("n", [1, 2])
def test_variables_are_exchanged(n: int) -> None:
    """Expect that every assignment uses the value from before the run."""

    def body(tracer: Tracer) -> Any:
        a, b, c = (variable(tracer, name, 2, dtype=float64, trainable=False) for name in "abc")
        tracer.assign("a", b)
        tracer.assign("b", c)
        tracer.assign("c", a)
        return add(a, b)

    values = {"a": np.array([1.0, 1]), "b": np.array([2.0, 2]), "c": np.array([3.0, 3])}
    with world_of(n) as world:
        bound = Bound(world, distribute(trace(body, first(n))))
        bound.write(values)
        np.testing.assert_array_equal(bound.run()[0], [3, 3])
        assert [bound.read(name)[0] for name in "abc"] == [2, 3, 1]


def test_an_assignment_from_a_trained_variable_uses_its_old_value() -> None:
    """Test the case that one instruction updates several variables, too."""

    def body(tracer: Tracer) -> Any:
        a, b = (variable(tracer, name, 4, dtype=float64) for name in "ab")
        variable(tracer, "kept", 4, dtype=float64, trainable=False)
        tracer.assign("kept", a)
        x, y = (tracer.input(name, TensorType((4,), float64)) for name in "xy")
        return reduce_sum(add(multiply(x, a), multiply(y, b)))

    v = np.arange(4.0)
    for n in (1, 2):
        _, new = run(n, body, train=True, variables={"a": np.ones(4), "b": np.ones(4), "kept": np.zeros(4)}, x=v, y=2 * v)
        np.testing.assert_array_equal(new["kept"], np.ones(4))
        np.testing.assert_array_equal(new["a"], 1 - v)
        np.testing.assert_array_equal(new["b"], 1 - 2 * v)


# -------------------------------------------------------------------- joined updates


def updates(program: RankProgram) -> list[str]:
    return [str(step.inputs[0].type) for step in program.steps if str(step.action) == "SgdUpdate()"]


def test_updates_of_contiguous_variables_are_joined() -> None:
    """Use a w that ends at 48 bytes and a b that begins at 64, which is 16 elements further."""
    for n in (1, 2):
        program = write(lowered(trace(layer, first(n), train=True)))
        assert updates(program) == ["float32[4,3]", "float32[3]"]
        assert updates(fuse(program)) == ["float32[19]"]


def test_one_gradient_of_two_contiguous_variables_is_copied() -> None:
    """Differentiate w + v: both gradients are one tensor, which needs two addresses."""

    def body(tracer: Tracer) -> Any:
        w, v, u = (variable(tracer, name, 4, dtype=float64) for name in "wvu")
        return reduce_sum(multiply(tracer.input("x", TensorType((4,), float64)), add(multiply(u, u), add(w, v))))

    x, one = np.arange(4.0), np.ones(4)
    for n in (1, 2):
        _, new = run(n, body, train=True, variables={"w": one, "v": 2 * one, "u": 3 * one}, x=x)
        np.testing.assert_array_equal(new["w"], 1 - x)
        np.testing.assert_array_equal(new["v"], 2 - x)
        np.testing.assert_array_equal(new["u"], 3 - 6 * x)


class Lars:
    """An update that reads each variable whole."""

    loss_scale = 1.0
    dynamic_loss_scale = None

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        return names

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Any) -> dict[str, Value]:
        rate, new = apply(Constant((1,), float32, 0.5)), {}
        for p in parameters:
            v = slots(f"{p.variable.name}-v", p.variable.type, 0.0, p.variable)
            new[p.variable.name], new[v.name] = apply(LarsUpdate(), p.value, v, p.gradient, rate)
        return new


def test_an_update_of_whole_variables_gathers_a_split_one() -> None:
    """Expect a gather and an update on every rank, each of which stores its piece, without communication after the write."""
    text = [str(s) for s in lowered(trace(lambda t: relu(variable(t, "w", 4, 2, sbp=S(0))), first(2), train=True, optimizer=Lars())).schedule]
    assert [line.split()[0] for line in text] == ["all_gather"] * len(text) and text


def test_updates_of_two_groups_are_not_joined() -> None:
    def body(tracer: Tracer) -> Any:
        return add(variable(tracer, "w", 4), variable(tracer, "v", 4, group="other"))

    assert updates(fuse(write(lowered(trace(body, train=True))))) == ["float32[4]", "float32[4]"]


# -------------------------------------------------------------------- order


def test_writes_come_last_and_readers_precede_writers() -> None:
    ordered = order(fuse(write(lowered(trace(layer, first(2), train=True)))))
    assert all(not getattr(step.action, "alias", None) for step in ordered.body)
    assert [step.name for step in ordered.epilogue] == ["increment_0", "sgdupdate_0..sgdupdate_1"]


def steps_on(*shapes: tuple[int, ...]) -> list[LocalValue]:
    """Return instructions on contiguous values."""
    items, offset = [], 0
    for i, shape in enumerate(shapes):
        type = TensorType(shape, float32)
        items.append(LocalValue(type, f"v{i}", slot=Slot("state", offset, type, contiguous_strides(shape, 4))))
        offset += 64
    return items


def program_of(*steps: LocalInstruction) -> RankProgram:
    return RankProgram("job", 0, steps, (), (), {}, {})


def test_a_reader_of_a_part_precedes_the_writer() -> None:
    a, b = steps_on((4,), (4,))
    both = LocalValue(TensorType((20,), float32), "both", slot=Slot("state", 0, TensorType((20,), float32), (4,)))
    late = LocalInstruction(Assign(), (a, LocalValue(a.type, "new")), (LocalValue(a.type, "a:new"),), "late", phase="update")
    joined = LocalInstruction(Assign(), (both, LocalValue(both.type, "gradient")), (LocalValue(both.type, "both:new"),), "joined", phase="update")
    other = LocalValue(b.type, "other", slot=Slot("other", 0, b.type, (4,)))
    reader = LocalInstruction(Assign(), (other, b), (LocalValue(b.type, "other:new"),), "reader", phase="update")
    assert [s.name for s in order(program_of(joined, reader)).epilogue] == ["reader", "joined"]
    assert [s.name for s in order(program_of(late, reader)).epilogue] == ["late", "reader"], "they touch different memory"


def test_cyclic_updates_raise() -> None:
    a, b = steps_on((4,), (4,))
    one = LocalInstruction(Assign(), (a, b), (LocalValue(a.type, "a:new"),), "one", phase="update")
    two = LocalInstruction(Assign(), (b, a), (LocalValue(b.type, "b:new"),), "two", phase="update")
    with pytest.raises(PlanError, match=r"job job: the updates one, two form a cycle, because each reads a variable that another overwrites"):
        order(program_of(one, two))


def written_and_gathered(tracer: Tracer) -> Any:
    w = variable(tracer, "w", 4, 2, trainable=False)
    new = apply(Assign(), w, tracer.input("x", type_(4, 2), split=False))
    tracer.assign("w", new)
    return to_layout(to_layout(new, S(0)), B)


def test_a_communicated_new_value_is_computed_in_a_temporary() -> None:
    ordered = order(write(lowered(trace(written_and_gathered, first(2)))))
    assert [type(step.action) for step in ordered.body].count(Collect) == 1
    assert [step.action for step in ordered.epilogue] == [Assign()]


def test_communication_after_writes_raises() -> None:
    graph = box(shard(trace(written_and_gathered, first(2))))
    slots, _ = place_variables(graph.graph.variables.values(), 0)
    with pytest.raises(PlanError, match="the communicated value depends on a variable that was updated in place"):
        order(write(lower(graph, RankMemory(0, slots))))


# -------------------------------------------------------------------- the whole


def test_plans_print_as_expected() -> None:
    physical = distribute(trace(layer, first(2), train=True))
    slots, _ = place_variables(physical.graph.variables.values(), 0)
    printed = plain(plan_text(plan_rank(physical, RankMemory(0, slots), CPU))).splitlines()
    assert printed[1:3] == ["  feed x -> arena@0:float32[3,4]", "  body"]
    assert printed[-4:] == [
        "  epilogue",
        "    state/1:scalar@0:int64[1] = Increment()(state/1:scalar@0:int64[1])",
        "    state/0:parameter@0:float32[19] = SgdUpdate()(state/0:parameter@0:float32[19], arena@0:float32[19], arena@192:float32[1])",
        "  fetch 0 <- arena@128:float32[3,3]",
    ]
    (reduce,) = (line for line in printed if "all_reduce" in line)
    assert reduce == "    arena@0:float32[32] = all_reduce sum [0, 1] #0(shared@0:float32[32])"

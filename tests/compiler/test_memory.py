"""Memory plans: live values are never overwritten, views and joins cost nothing, and dead memory is reused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from freed import SpoilingExecutor, deaths
from growing import grown
from programs import check
from traced import Bound, distribute, evaluate, first, trace, type_, variable, world_of

from jobflow.compiler.compile import plan_rank
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.rank import buffer_reuse, memory
from jobflow.core.errors import PlanError
from jobflow.core.layout import S
from jobflow.core.types import TensorType, float64, int64
from jobflow.graph.ir import Graph
from jobflow.kernels.target import CPU
from jobflow.ops.activation import relu, tanh
from jobflow.ops.arithmetic import add
from jobflow.ops.axes import expand_dims, reshape, transpose
from jobflow.ops.conv import conv
from jobflow.ops.loss import sparse_softmax_cross_entropy
from jobflow.ops.matmul import bias_add, matmul
from jobflow.ops.norm import layer_norm
from jobflow.ops.pool import max_pool
from jobflow.ops.slices import slice_
from jobflow.ops.softmax import causal_softmax
from jobflow.plan.plan import ALIGNMENT, Compute, Plan
from jobflow.plan.storage import RankMemory, place_variables
from jobflow.program import program


def plan_of(graph: Graph, rank: int = 0) -> Plan:
    physical = distribute(graph)
    slots, _ = place_variables(physical.graph.variables.values(), rank)
    return plan_rank(physical, RankMemory(rank, slots), CPU)


def computed(plan: Plan) -> list[str]:
    return [i.op.word() for i in plan.instructions if isinstance(i, Compute)]


def deep(tracer: Tracer, layers: int = 8) -> Any:
    x = tracer.input("x", TensorType((8, 16), float64))
    for i in range(layers):
        w, b = variable(tracer, f"w{i}", 16, 16, dtype=float64), variable(tracer, f"b{i}", 16, dtype=float64)
        x = relu(bias_add(matmul(x, w), b))
    return x


def convolutional(tracer: Tracer) -> Any:
    x, labels = tracer.input("x", TensorType((16, 1, 8, 8), float64)), tracer.input("labels", TensorType((16,), int64))
    for i, (inside, outside) in enumerate([(1, 4), (4, 6)]):
        x = conv(x, variable(tracer, f"w{i}", outside, inside, 3, 3, dtype=float64), padding="same")
        x = max_pool(relu(bias_add(x, variable(tracer, f"b{i}", outside, dtype=float64))), 2, 2, "same")
    x = reshape(x, (16, 6 * 2 * 2))
    return sparse_softmax_cross_entropy(matmul(x, variable(tracer, "v", 24, 5, dtype=float64)), labels)


def attentive(tracer: Tracer) -> Any:
    x, labels = tracer.input("x", TensorType((4, 6, 8), float64)), tracer.input("labels", TensorType((24,), int64))
    x = layer_norm(x, variable(tracer, "gamma", 8, dtype=float64), variable(tracer, "beta", 8, dtype=float64), 2)
    rows = matmul(reshape(x, (24, 8)), variable(tracer, "qkv", 8, 24, dtype=float64))

    def heads(i: int) -> Any:
        part = reshape(slice_(rows, (None, 8 * i), (None, 8 * i + 8)), (4, 6, 2, 4))
        return transpose(part, (0, 2, 1, 3))

    weights = causal_softmax(matmul(heads(0), heads(1), transpose_b=True), scale=0.5)
    mixed = reshape(transpose(matmul(weights, heads(2)), (0, 2, 1, 3)), (24, 8))
    mixed = add(mixed, tanh(matmul(mixed, variable(tracer, "up", 8, 8, dtype=float64))))
    return sparse_softmax_cross_entropy(matmul(mixed, variable(tracer, "head", 8, 5, dtype=float64)), labels)


MODELS = {"deep": deep, "convolutional": convolutional, "attentive": attentive}


# -------------------------------------------------------------------- reads of freed memory


@pytest.fixture
def spoiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bind plans to the executor that overwrites freed memory."""
    monkeypatch.setattr(program, "Executor", SpoilingExecutor)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_models_do_not_read_freed_memory(model: str, n: int, spoiling: None) -> None:
    graph = trace(MODELS[model], first(n), train=True)
    random = np.random.default_rng(3)
    values = {name: random.normal(size=v.type.shape) for name, v in graph.variables.items() if v.trainable}
    arguments = {v.name: random.integers(0, 5, v.shape) if v.dtype is int64 else random.normal(size=v.shape) for v in graph.inputs}
    with world_of(n) as world:
        bound = Bound(world, distribute(graph))
        bound.write(values)
        for _ in range(2):
            (expected,), new = evaluate(graph, arguments, values)
            np.testing.assert_allclose(bound.run(**arguments)[0], expected, rtol=1e-9, atol=1e-12)
            values = {name: new[name] for name in values}
            for name, value in values.items():
                np.testing.assert_allclose(bound.read(name), value, rtol=1e-9, atol=1e-12, err_msg=name)
        (executor,) = world.ranks[0].memory["executors"].values()
        assert executor.spoiled > 0


@pytest.mark.parametrize("n", [1, pytest.param(3, marks=pytest.mark.full)])
def test_random_programs_do_not_read_freed_memory(n: int, spoiling: None) -> None:
    with world_of(n) as world:
        for seed in (5000 + 100 * n + i for i in range(15)):
            check(world, grown(seed, ((n,),)))


def test_the_spoiling_executor_detects_a_late_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwrite memory one instruction too early; the results change, so the executor detects such errors."""
    monkeypatch.setattr(program, "Executor", SpoilingExecutor)
    monkeypatch.setattr("freed.deaths", lambda plan: [*deaths(plan)[1:], deaths(plan)[0]])
    graph = trace(deep)
    random = np.random.default_rng(3)
    values = {name: random.normal(size=v.type.shape) for name, v in graph.variables.items()}
    x = random.normal(size=(8, 16))
    with world_of(1) as world:
        bound = Bound(world, distribute(graph))
        bound.write(values)
        assert not np.allclose(bound.run(x=x)[0], evaluate(graph, {"x": x}, values)[0][0])


# -------------------------------------------------------------------- addresses


def test_slots_are_aligned() -> None:
    plan = plan_of(trace(deep, first(2), train=True))
    for name, size in plan.buffers.items():
        assert size % ALIGNMENT == 0, name
    for feed in plan.feeds:
        assert feed.slot.offset % ALIGNMENT == 0


def test_dead_memory_is_reused() -> None:
    """Expect two live activations at any time in a forward pass, for any depth of the network."""
    shallow, tall = (plan_of(trace(lambda t, n=n: deep(t, n))) for n in (4, 40))
    assert shallow.buffers == tall.buffers
    assert tall.buffers["arena"] <= 3 * 8 * 16 * 8


def test_training_stores_only_values_that_gradients_read() -> None:
    plan = plan_of(trace(deep, train=True))
    outputs = sum(slot.type.nbytes for i in plan.instructions if isinstance(i, Compute) for slot in i.outputs)
    assert sum(plan.buffers.values()) < outputs / 2


def test_slots_are_inside_their_buffers() -> None:
    for model in MODELS.values():
        for rank in range(2):
            plan = plan_of(trace(model, first(2), train=True), rank)
            for instruction in plan.instructions:
                for slot in (*getattr(instruction, "inputs", ()), *getattr(instruction, "outputs", ())):
                    assert 0 <= slot.offset <= slot.stop <= plan.buffers.get(slot.buffer, slot.stop)


def test_views_need_no_instructions() -> None:
    def body(tracer: Tracer) -> Any:
        x = relu(tracer.input("x", type_(4, 6)))
        return tanh(slice_(expand_dims(transpose(reshape(x, (2, 2, 6))), 0), (0, 1), (1, 5)))

    plan = plan_of(trace(body))
    assert computed(plan) == ["relu", "tanh"]
    (before, after) = (i for i in plan.body if isinstance(i, Compute))
    assert after.inputs[0].offset == before.outputs[0].offset + 4  # from column 1 on
    assert after.inputs[0].strides[1:] == (4, 24, 48)


def test_a_view_that_strides_do_not_allow_is_copied() -> None:
    plan = plan_of(trace(lambda t: tanh(reshape(transpose(t.input("x", type_(4, 6))), (24,)))))
    assert computed(plan) == ["reshape", "tanh"]


def test_gradients_are_computed_in_their_bucket() -> None:
    """Expect that gradients of one all_reduce are computed in its buffer."""

    def body(tracer: Tracer) -> Any:
        x, w, b = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3), variable(tracer, "b", 3)
        return relu(bias_add(matmul(x, w), b))

    plan = plan_of(trace(body, first(2), train=True))
    assert "copy" not in computed(plan)
    assert {slot.offset for i in plan.body if isinstance(i, Compute) for slot in i.outputs if slot.buffer == "shared"} == {0, 64}


def test_empty_pieces_need_no_memory() -> None:
    graph = trace(lambda t: relu(matmul(t.input("x", type_(3, 4)), variable(t, "w", 4, 1, sbp=S(1)))), first(2))
    with world_of(2) as world:
        bound = Bound(world, distribute(graph))
        bound.write({"w": np.ones((4, 1), np.float32)})
        np.testing.assert_array_equal(bound.run(x=np.ones((3, 4), np.float32))[0], np.full((3, 1), 4))


# -------------------------------------------------------------------- planted mistakes


def test_verify_detects_a_lifetime_that_ends_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    right = memory._Planning._lifetimes

    def short(self: Any) -> Any:
        return {root: [begin, min(end, begin + 1)] for root, (begin, end) in right(self).items()}

    monkeypatch.setattr(memory._Planning, "_lifetimes", short)
    with pytest.raises(PlanError, match=r"reads (arena|shared)@\d+:.*but another value has overwritten it"):
        plan_of(trace(deep, train=True))


def test_verify_detects_overlapping_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    right = memory._Planning._assign

    def flat(self: Any, buffer: str, roots: Any, lifetimes: Any) -> int:
        return max([right(self, buffer, [root], lifetimes) for root in roots], default=0)

    monkeypatch.setattr(memory._Planning, "_assign", flat)
    with pytest.raises(PlanError, match="but another value has overwritten it"):
        plan_of(trace(deep, train=True))


def test_verify_detects_an_instruction_before_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    right = memory._Planning.run

    def swapped(self: Any) -> Plan:
        body = list(self.ordered.body)
        body[2], body[3] = body[3], body[2]
        object.__setattr__(self.ordered, "body", tuple(body))
        return right(self)

    monkeypatch.setattr(memory._Planning, "run", swapped)
    with pytest.raises(PlanError, match=r"which no instruction has written|but another value has overwritten it"):
        plan_of(trace(deep))


def test_verify_detects_a_write_before_the_last_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    right = buffer_reuse._uses

    def forgetful(steps: Any, allocation: Any) -> Any:
        return {value: uses[:2] for value, uses in right(steps, allocation).items()}

    def body(tracer: Tracer) -> Any:
        y = tanh(tracer.input("x", type_(4)))
        return add(relu(y), y)

    plan_of(trace(body))
    monkeypatch.setattr(buffer_reuse, "_uses", forgetful)
    with pytest.raises(PlanError, match=r"add_0 \(Add\(\)\) reads arena@\d+:float32\[4\], but another value has overwritten it"):
        plan_of(trace(body))


def test_verify_detects_a_variable_read_after_its_write(monkeypatch: pytest.MonkeyPatch) -> None:
    right = memory._Planning.run

    def backwards(self: Any) -> Plan:
        self.ordered = replace(self.ordered, body=(*self.ordered.body[:-1], *self.ordered.epilogue), epilogue=self.ordered.body[-1:])
        return right(self)

    def body(tracer: Tracer) -> Any:
        w = variable(tracer, "w", 4, trainable=False)
        tracer.assign("w", tracer.input("x", type_(4)))
        return tanh(w)

    monkeypatch.setattr(memory._Planning, "run", backwards)
    with pytest.raises(PlanError, match=r"tanh_0 \(Tanh\(\)\) reads state/0:parameter@0:float32\[4\], but another value has overwritten it"):
        plan_of(trace(body))

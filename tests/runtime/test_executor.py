"""A bound plan: its steps, and its state after a failed step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from traced import Bound, distribute, first, trace, type_, variable, world_of

from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import JobflowError, ShapeError
from jobflow.core.layout import Box, Rule
from jobflow.core.types import TensorType, float64
from jobflow.ops.activation import relu
from jobflow.ops.arithmetic import multiply
from jobflow.ops.matmul import matmul
from jobflow.ops.op import Op, apply
from jobflow.ops.reduce import reduce_sum
from jobflow.runtime.executor import Executor

Array = Any
FAILING: set[int] = set()  # ranks on which `Fragile` fails, by where their rows begin
ERROR: list[Exception] = []


@pytest.fixture(autouse=True)
def sound() -> Iterator[None]:
    yield
    FAILING.clear()
    ERROR.clear()


class Fragile(Op):
    """An operation y = x that fails on the chosen rank."""

    start: int = 0
    abstract: ClassVar[bool] = True

    def infer(self, x: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType) -> Rule:
        return Rule("ab->ab" if x.ndim == 2 else "a->a")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return Fragile(outputs[0].start[0])

    def kernel(self, xp: Any, x: Array, y: Array) -> None:
        if self.start in FAILING:
            raise ERROR[0]
        xp.copyto(y, x)


def fragile(x: Any, name: str | None = None) -> Any:
    return apply(Fragile(), x, name=name)


def model(tracer: Tracer) -> Any:
    """Return a plan in which the loss depends on x w, and the gradient of w on the rest."""
    w = variable(tracer, "w", 3, 2, dtype=float64)
    return reduce_sum(
        multiply(fragile(matmul(tracer.input("x", TensorType((4, 3), float64)), w), name="layer"), tracer.input("y", TensorType((4, 2), float64)))
    )


X, Y, W = np.arange(12.0).reshape(4, 3), np.arange(8.0).reshape(4, 2), np.ones((3, 2))


@pytest.fixture
def differentiable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "grad", lambda self, x, y, dy: (fragile(dy),))


def bound(world: Any, n: int) -> Bound:
    created = Bound(world, distribute(trace(model, first(n), train=True)))
    created.write({"w": W})
    return created


# -------------------------------------------------------------------- failures


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_failed_step_does_not_change_variables(n: int, differentiable: None) -> None:
    """Rank 0 fails before or after a collective; the next step runs as if nothing had happened."""
    with world_of(n) as world:
        job = bound(world, n)
        FAILING.add(0)
        ERROR.append(ValueError("no luck"))
        for _ in range(3):
            with pytest.raises(JobflowError, match=r"^layer at test_executor\.py:\d+: no luck \(ValueError\)"):
                job.run(x=X, y=Y)
        np.testing.assert_array_equal(job.read("w"), W)
        FAILING.clear()
        np.testing.assert_allclose(job.run(x=X, y=Y)[0], np.sum(X @ W * Y))
        np.testing.assert_allclose(job.read("w"), W - X.T @ Y)


@pytest.mark.parametrize("n", [2, 3])
def test_a_late_failure_of_one_rank_stops_the_updates_of_all_ranks(n: int) -> None:
    """No communication follows the failing operation, so the other ranks have finished their bodies before."""

    def body(tracer: Tracer) -> Any:
        w = variable(tracer, "w", 12, dtype=float64, trainable=False)
        x = tracer.input("x", TensorType((12,), float64))
        tracer.assign("w", relu(tracer.input("z", TensorType((12,), float64), split=False)))
        return fragile(multiply(x, x), name="last"), w

    with world_of(n) as world:
        job = Bound(world, distribute(trace(body, first(n))))
        job.write({"w": np.zeros(12)})
        FAILING.add(0)
        ERROR.append(ValueError("no luck"))
        for _ in range(20):
            with pytest.raises(JobflowError, match="no luck"):
                job.run(x=np.arange(12.0), z=np.ones(12))
        for rank in range(n):
            np.testing.assert_array_equal(world.ranks[rank].memory["state"].read("w"), np.zeros(12))
        FAILING.clear()
        job.run(x=np.arange(12.0), z=np.ones(12))
        for rank in range(n):
            np.testing.assert_array_equal(world.ranks[rank].memory["state"].read("w"), np.ones(12))


def test_errors_of_jobflow_keep_their_type(differentiable: None) -> None:
    with world_of(1) as world:
        job = bound(world, 1)
        FAILING.add(0)
        ERROR.append(ShapeError("too long"))
        with pytest.raises(ShapeError, match=r"^layer at test_executor\.py:\d+: too long$"):
            job.run(x=X, y=Y)


def test_interrupts_are_raised_unchanged(differentiable: None) -> None:
    with world_of(1) as world:
        job = bound(world, 1)
        FAILING.add(0)
        ERROR.append(KeyboardInterrupt())  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            job.run(x=X, y=Y)
        np.testing.assert_array_equal(job.read("w"), W)


# -------------------------------------------------------------------- steps


def test_ranks_synchronize_before_updates_only_if_necessary(differentiable: None) -> None:
    """Data-parallel training ends its body in an all_reduce; a prediction writes nothing."""

    def forward(tracer: Tracer) -> Any:
        return relu(tracer.input("x", type_(4)))

    def dense(tracer: Tracer) -> Any:
        return relu(matmul(tracer.input("x", type_(4, 3)), variable(tracer, "w", 3, 2)))

    def assigns(tracer: Tracer) -> Any:
        w = variable(tracer, "w", 4)
        tracer.assign("w", relu(tracer.input("x", type_(4))))
        return w

    for body, train, meets in [(forward, False, False), (dense, True, False), (assigns, False, True)]:
        with world_of(2) as world:
            Bound(world, distribute(trace(body, first(2), train=train)))
            result = [executor.meet is not None for rank in world.ranks for executor in rank.memory["executors"].values()]
            assert result == [meets, meets], body


def test_every_call_has_an_instruction() -> None:
    with world_of(2) as world:
        Bound(world, distribute(trace(lambda t: relu(matmul(t.input("x", type_(4, 3)), variable(t, "w", 3, 2))), first(2), train=True)))
        for rank in world.ranks:
            executor: Executor = rank.memory["executors"][0]
            assert len(executor.call_instructions) == len(executor.body) + len(executor.epilogue)
            assert set(map(id, executor.call_instructions)) <= set(map(id, executor.plan.instructions))


def test_results_are_copies() -> None:
    with world_of(1) as world:
        job = Bound(world, distribute(trace(lambda t: relu(t.input("x", type_(3))))))
        (one,), (two,) = (job.run(x=np.full(3, i, np.float32)) for i in (1, 2))
        assert (one[0], two[0]) == (1, 2)


def test_arguments_may_be_strided_and_of_another_type() -> None:
    with world_of(2) as world:
        job = Bound(world, distribute(trace(lambda t: relu(t.input("x", type_(4, 3))), first(2))))
        x = np.arange(24).reshape(3, 8).T[::2]
        np.testing.assert_array_equal(job.run(x=x)[0], x)


def test_overflow_does_not_warn() -> None:
    with world_of(1) as world:
        job = Bound(world, distribute(trace(lambda t: multiply(t.input("x", type_(2)), t.input("y", type_(2))))))
        big = np.full(2, 3e38, np.float32)
        np.testing.assert_array_equal(job.run(x=big, y=big)[0], np.full(2, np.inf))

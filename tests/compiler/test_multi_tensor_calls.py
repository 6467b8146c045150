"""Operations of equal formula on different tensors are one call, if dependencies and memory allow it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from growing import grown
from programs import check
from traced import Body, Bound, Sgd, distribute, trace, type_, variable, world_of

from jobflow.compiler.front.trace import Tracer
from jobflow.core.types import bfloat16
from jobflow.kernels.multi_tensor import MultiTensor
from jobflow.kernels.target import FusionLimits, Target, target_of
from jobflow.ops.activation import relu, tanh
from jobflow.ops.matmul import matmul
from jobflow.ops.reduce import reduce_mean
from jobflow.plan.plan import Compute, Plan
from jobflow.program.program import ALONE, Program

REFERENCE = target_of("cpu", "reference")
#: the CPU's kernels in plans of a GPU without cublasLt
ONE = replace(REFERENCE, tables="jobflow.kernels.cuda.image_patterns", alignment=256, fusion=FusionLimits())
MERGED = replace(ONE, fusion=FusionLimits(tensors=16))


def layers(tracer: Tracer) -> Any:
    x = tracer.input("x", type_(16, 8), split=False)
    for k, n in enumerate((12, 20, 6)):
        x = tanh(matmul(x, variable(tracer, f"w{k}", x.tensor_type.shape[1], n)))
    return reduce_mean(x)


def plan_of(body: Body, target: Target = MERGED, **options: Any) -> Plan:
    return Program(distribute(trace(body, **options)), ALONE, target).plan(0, 1)


def merged(plan: Plan) -> list[list[str]]:
    calls = [i.op for i in plan.instructions if isinstance(i, Compute) and isinstance(i.op, MultiTensor)]
    return [[type(member.op).__name__ for member in op.members] for op in calls]


def test_casts_of_weights_and_of_gradients_are_two_calls() -> None:
    plan = plan_of(layers, train=True, half=bfloat16)
    assert merged(plan) == [["Cast"] * 3, ["Cast"] * 3]
    assert not merged(plan_of(layers, ONE, train=True, half=bfloat16))
    assert [len(call) for call in merged(plan_of(layers, replace(ONE, fusion=FusionLimits(tensors=2)), train=True, half=bfloat16))] == [2, 2]


def test_dependent_operations_are_not_merged() -> None:
    def chain(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(4, 4), split=False), variable(tracer, "w", 4, 4)
        return relu(matmul(relu(matmul(relu(matmul(x, w)), w)), w))

    assert merged(plan_of(chain)) == []

    def branches(tracer: Tracer) -> Any:
        x, w, v = tracer.input("x", type_(4, 4), split=False), variable(tracer, "w", 4, 4), variable(tracer, "v", 4, 6)
        left, right = matmul(x, w), matmul(x, v)
        return reduce_mean(matmul(matmul(relu(left), v), relu(right), transpose_b=True))

    assert merged(plan_of(branches)) == [["Relu", "Relu"]]


@pytest.mark.parametrize("half", [None, bfloat16], ids=str)
def test_losses_do_not_change_if_calls_are_merged(half: Any) -> None:
    graph = trace(layers, train=True, optimizer=Sgd(0.5), half=half)
    random = np.random.default_rng(0)
    values = {name: random.normal(size=v.type.shape).astype(np.float32) for name, v in graph.variables.items()}
    x, results = random.normal(size=(16, 8)).astype(np.float32), list[dict[str, Any]]()
    with world_of(1) as world:
        for number, target in enumerate((ONE, MERGED)):
            bound = Bound(world, distribute(graph), number, target=target)
            bound.write(values)
            for _ in range(2):
                bound.run(x=x)
            results.append({name: np.array(bound.read(name)) for name in values})
            bound.close()
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, err_msg=name)


def test_random_programs_equal_their_kernels() -> None:
    with world_of(1) as one, world_of(2) as two:
        for seed in range(2):
            check(one, grown(8500 + seed, ((1,),)), target=MERGED)
        check(two, grown(8600, ((2,),)), target=MERGED)

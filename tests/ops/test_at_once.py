"""Bound calls of eager operations compute the same bits as a plan, for any arrays they were prepared for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import laws
import numpy as np
import pytest
from memory_orders import plain, strided

from jobflow.core.types import TensorType, float32, type_of
from jobflow.kernels import eager_calls, registry
from jobflow.kernels.prepared_calls import prepare
from jobflow.kernels.target import CPU, Target, target_of
from jobflow.ops.op import Binder, Call, Sample, types_tuple
from jobflow.ops.optimizer_updates import MomentumUpdate
from jobflow.ops.reduce import ReduceSum
from jobflow.ops.transcendental import Exp
from jobflow.runtime.device.numpy_device import CpuDevice

OPS = {f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}": cls for cls in laws.concrete_ops()}
TARGETS = {"numpy": CPU, "llvm": target_of("cpu", "llvm")}
#: memory orders of the operands in consecutive runs
ORDERS = (plain, plain, plain, strided, plain, plain, strided, strided, strided, strided)


#: runs in the tier llvm begin with the calls of the tier numpy
@pytest.mark.parametrize("tier", [pytest.param("numpy", marks=pytest.mark.full), "llvm"])
@pytest.mark.parametrize("name", OPS)
def test_bits_are_those_of_a_plan(name: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("FEWEST",):
        monkeypatch.setattr(eager_calls, bound, 0)
    monkeypatch.setattr(eager_calls, "COMPILED", 4)
    for sample in OPS[name].samples():
        check(sample, TARGETS[tier])


def check(sample: Sample, target: Target) -> None:
    """Check that one binding, for contiguous and strided arrays, computes the bits of a plan for the tier that it has reached."""
    types = types_tuple(sample.op.infer(*map(type_of, sample.arrays)))
    eager = eager_calls.eager_calls(sample.op, target, [type_of(a) for a in sample.arrays], types)
    for run, order in enumerate(ORDERS, 1):
        first, second = ([order(a) for a in sample.arrays] for _ in range(2))
        compiled = isinstance(eager, eager_calls.PreparedLater) and run >= eager_calls.COMPILED
        planned = eager_calls.EagerCalls(sample.op, partial(eager_calls.bind, sample.op, eager.target if compiled else CPU))
        for arrays, calls in ((first, eager), (second, planned)):
            outputs = laws.empties(types, fill=0)
            outputs = [arrays[sample.op.alias[k]] if k in sample.op.alias else y for k, y in enumerate(outputs)]
            calls.run(CpuDevice(), arrays, outputs)
            arrays.extend(y for k, y in enumerate(outputs) if k not in sample.op.alias)
        for ours, theirs in zip(first, second, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{sample}, {order.__name__} arrays")


def test_calls_are_prepared_once_unless_they_contain_arrays() -> None:
    bound: list[str] = []

    def as_arguments(device: Binder, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Call]:
        bound.append("as arguments")
        return registry.bind(ReduceSum((1,)), CPU, device, inputs, outputs)

    def inside(device: Binder, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Call]:
        return [(lambda: np.copyto(outputs[0], inputs[0].sum(1)), ())]

    x, y = np.empty((2, 3), np.float32), np.empty(2, np.float32)
    assert prepare(inside, [x], [y]) is None
    calls = prepare(as_arguments, [x], [y])
    assert calls is not None
    for x, sums in ((np.arange(6, dtype=np.float32).reshape(2, 3), [3.0, 12.0]), (np.ones((2, 3), np.float32), [3.0, 3.0])):
        calls.run(CpuDevice(), [x], [y])
        assert y.tolist() == sums
    assert bound == ["as arguments"]


@pytest.mark.parametrize("gradient", ["alone", "the parameter", "a shifted part of the parameter"])
def test_an_update_may_share_memory_with_its_gradient(gradient: str) -> None:
    """Prepared calls are not used if an overwritten operand shares memory with another one."""
    op, rate = MomentumUpdate(0.9), np.array([0.5], np.float32)
    eager = eager_calls.eager_calls(
        op, TARGETS["llvm"], [TensorType((96,), float32)] * 3 + [TensorType((1,), float32)], [TensorType((96,), float32)] * 2
    )
    for _ in range(eager_calls.COMPILED + 2):
        results = []
        for calls in (eager, eager_calls.EagerCalls(op, partial(registry.bind, op, CPU))):
            memory = np.arange(97, dtype=np.float32)
            w, m = memory[:96], np.ones(96, np.float32)
            g = {"alone": w + 1, "the parameter": w, "a shifted part of the parameter": memory[1:]}[gradient]
            calls.run(CpuDevice(), [w, m, g, rate], [w, m])
            results.append(np.concatenate([memory, m]))
        if gradient == "alone":
            np.testing.assert_allclose(*results, rtol=1e-6)
        else:
            np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("order", ["unaligned", "read only", "reversed"])
def test_operands_may_have_any_memory_order(order: str) -> None:
    op, type = Exp(), TensorType((64, 64), float32)
    eager = eager_calls.eager_calls(op, TARGETS["llvm"], [type], [type])
    for run in range(eager_calls.COMPILED + 4):
        memory = np.zeros(4 * 64 * 64 + 1, np.uint8)
        x = (memory[1:] if order == "unaligned" and run % 2 else memory[:-1]).view(np.float32).reshape(64, 64)
        x[...] = np.linspace(-1, 1, 64)
        if order == "read only":
            x.flags.writeable = False
        if order == "reversed" and run % 2:
            x = x[:, ::-1]
        y = np.empty((64, 64), np.float32)
        eager.run(CpuDevice(), [x], [y])
        np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)

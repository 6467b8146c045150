"""What binds operations that run at once: the same bits as in a plan, whatever arrays its calls were prepared for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import laws
import numpy as np
import pytest
from memory_orders import plain, strided

from jobflow.core.types import TensorType, float32, type_of
from jobflow.kernels import registry, repeated_calls
from jobflow.kernels.target import CPU
from jobflow.ops.op import Binder, Binding, Call, types_tuple
from jobflow.ops.reduce import ReduceSum

OPS = {f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}": cls for cls in laws.concrete_ops()}


@pytest.mark.parametrize("name", OPS)
def test_bits_are_those_of_a_plan(name: str) -> None:
    """By one binding, for arrays that have gaps and that have none, also where others came before."""
    for sample in OPS[name].samples():
        types = types_tuple(sample.op.infer(*map(type_of, sample.arrays)))
        binding = registry.binding(sample.op, CPU, [type_of(a) for a in sample.arrays], types)
        for order in () if sample.op.alias else (plain, plain, strided, plain):
            inputs, first, second = [order(a) for a in sample.arrays], laws.empties(types, fill=0), laws.empties(types, fill=0)
            for function, arguments in (*binding(laws.Bench(), inputs, first), *registry.bind(sample.op, CPU, laws.Bench(), inputs, second)):
                function(*arguments)
            for ours, theirs in zip(first, second, strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=f"{sample}, {order.__name__} arrays")


def sums(prepare: Binding) -> list[list[float]]:
    """Sums of the rows of two matrices, by what is made of `prepare` for their type."""
    bind = repeated_calls.repeated(prepare, [TensorType((2, 3), float32)], [TensorType((2,), float32)])
    found = []
    for x in (np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)):
        y = np.empty(2, np.float32)
        for function, arguments in bind(laws.Bench(), [x], [y]):
            function(*arguments)
        found.append(y.tolist())
    return found


def test_calls_are_prepared_once_unless_they_hold_arrays() -> None:
    prepared: list[str] = []

    def as_arguments(device: Binder, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Call]:
        prepared.append("as arguments")
        return registry.bind(ReduceSum((1,)), CPU, device, inputs, outputs)

    def inside(device: Binder, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Call]:
        prepared.append("inside")
        return [(lambda: np.copyto(outputs[0], inputs[0].sum(1)), ())]

    for prepare in (as_arguments, inside):
        assert sums(prepare) == [[3.0, 12.0], [3.0, 3.0]]
    assert prepared == ["as arguments", "inside", "inside", "inside"]

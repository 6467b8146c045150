"""Tests that copies on GPUs, run on the host, equal the operations on arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import laws
import numpy as np
import pytest
from host_cuda import COMPILER, HostKernels
from on_device import OPS, cases, host_results

from jobflow.core.types import type_of
from jobflow.kernels.cuda.copy_kernels import _PARTS, CopyKernels, kernel_of, parts
from jobflow.ops.op import types_tuple

COPIES = {name: cls for name, cls in OPS.items() if issubclass(cls, tuple(_PARTS))}


def operands(case: Any, arrays: Any, number: int) -> tuple[list[Any], Any]:
    """Return the inputs and the output in one of the memory orders."""
    inner, outer = laws.ORDERS[number % len(laws.ORDERS)]
    inputs = [inner(a) for a in arrays]
    (type,) = types_tuple(case.op.infer(*map(type_of, arrays)))
    return inputs, inputs[case.op.alias[0]] if 0 in case.op.alias else outer(laws.empties([type], fill=0)[0])


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler (g++)")
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.full)])
def test_copies_equal_the_operations(every: int, tmp_path: Path) -> None:
    kernels, expected, refused = HostKernels(tmp_path), [], set()
    for name, cls in COPIES.items():
        for number, (case, arrays) in enumerate(list(cases(cls))[::every]):
            (result,) = host_results(case.op, arrays)
            inputs, y = operands(case, arrays, number + number // 4)
            why = CopyKernels().refuses(case.op, inputs, [y])
            if why is not None:
                refused.add((name, why))
                continue
            for part in parts(case.op, inputs, y):
                kernels.add(*kernel_of(part))
            expected.append((f"{case} {y.dtype}", y, result))
    kernels.run()
    for what, y, result in expected:
        assert np.array_equal(y, result), what
    assert len({what.partition("(")[0] for what, *_ in expected}) >= len(COPIES) - 1 and len(expected) > 150 // every
    assert {why for _, why in refused} <= {"the strides of an operand allow no view of its parts"}, refused


def test_parts_of_an_update_in_place_are_the_window_only() -> None:
    case, arrays = next(cases(OPS["slice_update.SliceWrite"]))
    x, v = arrays
    assert [to.shape for to, _ in parts(case.op, [x, v], x)] == [v.shape]
    assert [to.shape for to, _ in parts(case.op, [x, v], np.empty_like(x))] == [x.shape, v.shape]


def test_parts_of_a_concatenation_in_place_are_omitted() -> None:
    case, arrays = next(cases(OPS["slices.Concat"]))
    y = np.empty(case.op.infer(*map(type_of, arrays)).shape)
    placed = list(case.op.places(y, *map(type_of, arrays)))
    assert len(parts(case.op, arrays, y)) == 3 and len(parts(case.op, [placed[0], *arrays[1:]], y)) == 2

"""Launches for several tensors, run on the host, equal the operations on arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_cuda import COMPILER, launch, library

from jobflow.core.types import bfloat16
from jobflow.kernels.cuda.fused import prepared
from jobflow.kernels.cuda.kernel_form import THREADS
from jobflow.kernels.cuda.multi_tensor_kernels import TableKernels, launches
from jobflow.kernels.loop_operands import expression_of
from jobflow.kernels.multi_tensor import MultiTensor, TensorMember
from jobflow.ops.optimizer_updates import MomentumUpdate
from jobflow.ops.scalar import Cast


def aligned(array: Any) -> Any:
    """Return a copy at an address that is a multiple of 16, with the strides of `array`."""
    memory = np.empty(array.nbytes + 16, np.uint8)
    start = -memory.ctypes.data % 16
    order = np.argsort([-s for s in array.strides], kind="stable")
    flat = memory[start : start + array.nbytes].view(array.dtype).reshape([array.shape[axis] for axis in order])
    result = flat.transpose(np.argsort(order))
    result[...] = array
    return result


def members() -> tuple[MultiTensor, list[Any], list[Any]]:
    """Return casts of vectors, of an unaligned vector and of filters to another order, with their operands."""
    random = np.random.default_rng(0)
    inputs = [aligned(random.normal(size=shape).astype(np.float32)) for shape in ((9001,), (7,), (24, 6, 3, 3), (3, 40), (8, 8, 1, 1), (2048,))]
    inputs.append(aligned(random.normal(size=35).astype(np.float32))[1:])
    outputs = [aligned(np.zeros(x.shape, bfloat16.numpy)) for x in inputs]
    outputs[2] = aligned(np.zeros((24, 3, 3, 6), bfloat16.numpy)).transpose(0, 3, 1, 2)
    return MultiTensor((TensorMember(Cast(bfloat16), 1, 1),) * len(inputs)), inputs, outputs


def run(op: MultiTensor, inputs: list[Any], outputs: list[Any], folder: Path, most: int) -> int:
    """Run the launches on the host with about `most` blocks; return their number."""
    ready = []
    for member, read, written in op.operands(inputs, outputs):
        expressions = expression_of(member.op, read)
        assert expressions is not None
        ready += prepared(expressions, read, written, lambda shape, dtype: np.empty(shape, dtype.numpy))
    several = launches(ready, most)
    loaded = library([each.text.replace(" fused(", f" fused{k}(") for k, each in enumerate(several)], folder)
    for k, each in enumerate(several):
        launch(loaded, f"fused{k}", (each.blocks,), (THREADS,), (each.table, np.int32(len(each.table))))
    return len(several)


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler (g++)")
@pytest.mark.parametrize("most", [4, 1000])
def test_casts_of_several_tensors_equal_casts(most: int, tmp_path: Path) -> None:
    op, inputs, outputs = members()
    assert TableKernels().refuses(op, inputs, outputs) is None
    assert run(op, inputs, outputs, tmp_path, most) == 3, "vectors, an unaligned vector, and filters that change their order"
    for x, y in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(y, x.astype(bfloat16.numpy))


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler (g++)")
def test_updates_in_place_equal_single_updates(tmp_path: Path) -> None:
    random, rate = np.random.default_rng(1), np.array([0.5], np.float32)
    sets = [[aligned(random.normal(size=n).astype(np.float32)) for _ in range(3)] for n in (4100, 64, 5)]
    op = MultiTensor((TensorMember(MomentumUpdate(beta=0.9), 4, 2),) * 3)
    assert op.alias == {0: 0, 1: 1, 2: 4, 3: 5, 4: 8, 5: 9}
    expected = [[a.copy() for a in each] for each in sets]
    for w, m, g in expected:
        MomentumUpdate(beta=0.9).kernel(np, w, m, g, rate, w, m)
    run(op, [a for each in sets for a in (*each, rate)], [a for each in sets for a in each[:2]], tmp_path, 5)
    for ours, theirs in zip(sets, expected, strict=True):
        for a, b in zip(ours[:2], theirs[:2], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)

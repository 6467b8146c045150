"""Patterns of a target: each row matches its samples, no other row does, and the results do not change."""

from __future__ import annotations

import numpy as np
import pytest

from jobflow.core.types import TensorType, float32, int32, type_of
from jobflow.kernels import registry
from jobflow.kernels.cpu.cpu_patterns import PATTERNS
from jobflow.kernels.cpu.product_ops import ProductSum, SgdProduct
from jobflow.kernels.patterns import Fold, FoldSample, SkipZeros
from jobflow.kernels.target import CPU, Target, target_of
from jobflow.ops.arithmetic import Add
from jobflow.ops.matmul import BatchMatMul, BiasAdd, MatMul
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.optimizer_updates import SgdUpdate
from jobflow.runtime.device.numpy_device import CpuDevice

REFERENCE = target_of("cpu", "reference")


def computed(op: Op, inputs: list[np.ndarray], target: Target) -> np.ndarray:
    """Return the only output; an update writes to a copy of its input."""
    held = [a.copy() for a in inputs]
    (output_type,) = types_tuple(op.infer(*map(type_of, held)))
    y = held[op.alias[0]] if op.alias else np.empty(output_type.shape, output_type.dtype.numpy)
    for function, arguments in registry.bind(op, target, CpuDevice(), held, [y]):
        function(*arguments)
    return y


def fold(reader: Op, index: int, producer: Op, *types: TensorType) -> Op | None:
    """Return the operation of the first matching row."""
    return next(filter(None, (row.folded(reader, index, producer, types) for row in PATTERNS.folds)), None)


@pytest.mark.parametrize(("row", "sample"), [(row, sample) for row in PATTERNS.folds for sample in row.samples], ids=lambda x: getattr(x, "name", ""))
def test_folds_do_not_change_results(row: Fold, sample: FoldSample) -> None:
    arrays, index = list(sample.arrays()), sample.index
    end = index + sample.reads
    inputs = [*arrays[:index], computed(sample.producer, arrays[index:end], REFERENCE), *arrays[end:]]
    types = [type_of(a) for a in inputs]
    hit = [each.name for each in PATTERNS.folds if each.folded(sample.reader, index, sample.producer, types) is not None]
    assert hit == [row.name]
    both = row.folded(sample.reader, index, sample.producer, types)
    assert both is not None
    expected = computed(sample.reader, inputs, REFERENCE)
    for target in (CPU, REFERENCE, target_of("cpu", "llvm")):
        np.testing.assert_allclose(computed(both, arrays, target), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("row", PATTERNS.triangles, ids=lambda row: row.name)
def test_triangles_skip_zeros(row: SkipZeros) -> None:
    random = np.random.default_rng(1)
    a, b = np.tril(random.normal(size=(2, 70, 70))), random.normal(size=(2, 70, 3))
    for target in (CPU, REFERENCE, target_of("cpu", "llvm")):
        np.testing.assert_allclose(computed(row.replacement(row.sample), [a, b], target), computed(row.sample, [a, b], REFERENCE), atol=1e-12)


def test_only_large_plain_updates_merge_with_their_product() -> None:
    large, small, lr = TensorType((512, 784), float32), TensorType((5, 7), float32), TensorType((1,), float32)
    assert fold(SgdUpdate(), 1, MatMul(True), large, large, lr) == SgdProduct(True)
    assert fold(SgdUpdate(), 1, MatMul(True), small, small, lr) is None
    assert fold(SgdUpdate(0.1), 1, MatMul(True), large, large, lr) is None
    assert fold(SgdUpdate(), 1, BatchMatMul(), large, large, lr) is None


def test_large_sums_merge_with_their_products() -> None:
    y, row, column = TensorType((512, 256), float32), TensorType((256,), float32), TensorType((512,), float32)
    assert fold(BiasAdd(1), 0, MatMul(False, True), y, row) == ProductSum(False, True, 0)
    assert fold(Add(), 1, ProductSum(False, True, 0), y, y) == ProductSum(False, True, 1)
    assert fold(Add(), 0, MatMul(), y, row) == ProductSum()
    assert fold(BiasAdd(0), 0, MatMul(), y, column) is None
    assert fold(BiasAdd(1), 1, MatMul(), y, row) is None
    assert fold(Add(), 0, BatchMatMul(), y, y) is None
    assert fold(Add(), 1, MatMul(), TensorType((3, 512, 256), float32), y) is None
    for small in (TensorType((255, 4096), float32), TensorType((256, 255), float32), TensorType((512, 256), int32)):
        assert fold(Add(), 0, MatMul(), small, small) is None

"""Tests that sorted sums for GPUs, run on the host, equal the operations on arrays, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import host_cuda
import numpy as np
import nvidia_compiler
import pytest
from on_device import OPS, TOLERANCE, cases, host_results, single

from jobflow.core.types import DType, dtype_named, type_of
from jobflow.expressions.on_arrays import evaluate
from jobflow.kernels.cuda.segment_kernels import ScatteredValues, SegmentSums, columns_at_once, launches_of_sort, launches_of_sums, segments_of
from jobflow.kernels.cuda.segment_text import TILE, TOGETHER, print_segments, print_sort
from jobflow.ops.index import DimScatterAdd, UnsortedSegmentSum
from jobflow.ops.op import types_tuple

SCATTERS = ("scatter.Scatter", "scatter_reduce.ScatterProd", "scatter_reduce.ScatterMax", "scatter_reduce.ScatterMin")
CLASSES = ("index.UnsortedSegmentSum", "index.DimScatterAdd", "index.BatchSegmentSum", "sampled_classes.AddLocalRows")
TYPES = ("float64", "float32", "float16", "bfloat16", "int32", "int64", "bool")


class HostSegments:
    """The kernels of sorted sums, compiled by g++."""

    def __init__(self, folder: Path) -> None:
        self.texts = dict[str, str]()
        for name in TYPES:
            for together in TOGETHER:
                self.texts[print_segments(dtype_named(name), together)] = f"segment_sums_{together}_{name}"
            vector = min(16 // dtype_named(name).itemsize, 8)
            self.texts[print_segments(dtype_named(name), "sum", vector)] = f"segment_sums_{name}_by_vectors"
            self.texts[print_segments(dtype_named(name), wide=True)] = f"segment_sums_{name}_wide"
        renamed = [text.replace("segment_sums", name) for text, name in self.texts.items()]
        self.loaded = host_cuda.library([print_sort(), *renamed], folder)

    def sums(self, op: Any, data: Any, ids: Any, x: Any = None, together: str = "sum") -> Any:
        (type,) = types_tuple(op.infer(*map(type_of, (data, ids) if x is None else (x, ids, data))))
        y = np.full(type.shape, 77).astype(type.dtype.numpy)
        of = segments_of(op, *map(type_of, (data, ids)), type)
        (keys,) = evaluate([of.key], [ids.reshape(of.ids)], np, of.ids)
        keys = np.broadcast_to(keys, of.ids).reshape(-1).copy()
        calls, self.order, self.bounds = launches_of_sort(self.launch, scratch, keys, of.segments)
        operands = (data, y if x is None else x, y)
        for call, arguments in [*calls, launches_of_sums(self.launch, of, operands, self.order, self.bounds, together)]:
            call(*arguments)
        return y

    def launch(self, text: str, name: str, blocks: int, arguments: Sequence[Any]) -> Any:
        name = self.texts.get(text, name)
        grid = min(blocks, 2) if name.startswith("segment_") else blocks
        return host_cuda.launch, (self.loaded, name, (grid,), (256,), arguments)


def scratch(shape: tuple[int, ...], dtype: DType) -> Any:
    return np.full(shape, -77, dtype.numpy)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostSegments:
    if host_cuda.COMPILER is None:
        pytest.skip("there is no C++ compiler (g++)")
    return HostSegments(tmp_path_factory.mktemp("segments"))


@pytest.mark.parametrize("name", CLASSES)
def test_sums_equal_the_operation(name: str, host: HostSegments) -> None:
    for case, arrays in cases(OPS[name]):
        (expected,) = host_results(case.op, arrays)
        assert SegmentSums().refuses(case.op, arrays, [expected]) is None
        assert np.array_equal(single(host.sums(case.op, *arrays)), single(expected)), f"{case} {arrays[0].dtype}"


@pytest.mark.parametrize("name", SCATTERS)
def test_scattered_values_equal_the_operation(name: str, host: HostSegments) -> None:
    for case, arrays in cases(OPS[name]):
        (expected,) = host_results(case.op, arrays)
        x, ids, v = arrays
        assert ScatteredValues().refuses(case.op, arrays, [expected]) is None
        ours = host.sums(case.op, v, ids, x, getattr(case.op, "ufunc", "last"))
        np.testing.assert_allclose(single(ours), single(expected), TOLERANCE[expected.dtype.name], 0, err_msg=f"{case} {x.dtype}")


@pytest.mark.parametrize(("dtype", "count"), [("float32", TILE), ("int32", TILE + 1), ("float32", 2 * TILE + 77)])
def test_entries_of_one_or_several_tiles_are_added_in_their_order(dtype: str, count: int, host: HostSegments) -> None:
    random = np.random.default_rng(1)
    ids = np.minimum(random.zipf(1.3, count) - 2, 5000)  # some before and some after the table
    data = random.standard_normal((len(ids), 3)).astype(dtype) if dtype == "float32" else random.integers(-9, 9, (len(ids), 3)).astype(dtype)
    ours = host.sums(UnsortedSegmentSum(0, 4321), data, ids)
    expected = np.zeros((4321, 3), dtype)
    for i, row in zip(ids, data, strict=True):
        if 0 <= i < 4321:
            expected[i] += row
    assert np.array_equal(ours, expected)
    order = host.order[: host.bounds[-1]]
    assert np.array_equal(order, np.flatnonzero((ids >= 0) & (ids < 4321))[np.argsort(ids[(ids >= 0) & (ids < 4321)], kind="stable")])


@pytest.mark.parametrize("name", TYPES[:-1])
def test_adjacent_columns_are_added_by_vectors(name: str, host: HostSegments) -> None:
    random, dtype = np.random.default_rng(1), dtype_named(name)
    ids, data = random.integers(0, 9, 77), random.integers(-5, 5, (2, 77, 24)).astype(dtype.numpy)
    op, y = UnsortedSegmentSum(1, 9), np.empty((2, 9, 24), dtype.numpy)
    of = segments_of(op, type_of(data), type_of(ids), type_of(y))
    assert columns_at_once(of, data, y, "sum") == min(16 // dtype.itemsize, 8)
    expected = np.zeros((2, 9, 24))
    for total, rows in zip(expected, data, strict=True):
        np.add.at(total, ids, rows.astype(np.float64))
    assert np.array_equal(single(host.sums(op, data, ids)).astype(np.float64), expected)


def test_entries_outside_of_the_table_and_empty_segments_leave_zeros(host: HostSegments) -> None:
    assert not host.sums(UnsortedSegmentSum(0, 5), np.ones((3, 2), np.float32), np.array([-1, 5, 9])).any()
    assert not host.sums(UnsortedSegmentSum(0, 5), np.ones((0, 2), np.float32), np.array([], np.int64)).any()


def test_too_many_segments_are_refused() -> None:
    ids = np.broadcast_to(np.zeros(1, np.int64), (1 << 20, 1))
    data = np.broadcast_to(np.zeros(1, np.float32), ids.shape)
    y = np.broadcast_to(np.zeros(1, np.float32), (1 << 20, 4096))
    why = SegmentSums().refuses(DimScatterAdd(1, 4096), [data, ids], [y])
    assert why == "1048576 entries or 4294967296 segments exceed 32-bit indices"


@pytest.mark.full
@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
@pytest.mark.parametrize("text", [print_sort(), *(print_segments(dtype_named(name)) for name in TYPES)], ids=["sort", *TYPES])
def test_kernels_compile_without_a_gpu(text: str) -> None:
    assert nvidia_compiler.compiled(text, "sm_90").startswith(b"\x7fELF")

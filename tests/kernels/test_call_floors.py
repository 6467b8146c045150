"""Least times of calls on a GPU, and the tables of `jobflow explain --device cuda`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobflow.cli import main
from jobflow.core import scope
from jobflow.core.types import DType, TensorType, bfloat16, contiguous_strides, float32, int64
from jobflow.kernels.cuda.call_floors import H100, floor_of
from jobflow.kernels.cuda.epilogue_product import EpilogueProduct
from jobflow.kernels.region import Region, RegionMember
from jobflow.ops.attention import Attention
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight
from jobflow.ops.elementwise import Add
from jobflow.ops.index import Gather
from jobflow.ops.matmul import BatchMatMul, BroadcastMatMul, MatMul, RowsMatMul
from jobflow.ops.op import Op, types_tuple
from jobflow.plan.plan import Compute, Slot

JOB = str(Path(__file__).parents[2] / "examples" / "hybrid_mlp.py") + ":train_job"
CONV = ((1, 1), ((1, 1), (1, 1)), (1, 1))
HEADS = ((2, 3, 4, 8),) * 3
SUM = Region((RegionMember(Gather(0), (0, 1)), RegionMember(Add(), ((0, 0), 2))), ((1, 0),))


def dense(buffer: str, type: TensorType) -> Slot:
    return Slot(buffer, 0, type, contiguous_strides(type.shape, type.dtype.itemsize))


def call_of(op: Op, *types: TensorType, in_place: bool = False) -> Compute:
    """Return a call on distinct slots; if `in_place`, the output is the first input."""
    slots = tuple(dense(f"x{n}", type) for n, type in enumerate(types))
    outputs = tuple(dense(f"y{n}", type) for n, type in enumerate(types_tuple(op.infer(*types))))
    return Compute(op, slots, slots[:1] if in_place else outputs, "call")


@pytest.mark.parametrize(
    ("op", "shapes", "operations"),
    [
        (MatMul(), ((4, 6), (6, 5)), 2 * 4 * 6 * 5),
        (MatMul(transpose_a=True), ((6, 4), (6, 5)), 2 * 4 * 6 * 5),
        (BatchMatMul(transpose_b=True), ((2, 3, 4, 6), (2, 3, 5, 6)), 2 * 6 * 4 * 6 * 5),
        (BroadcastMatMul(), ((2, 3, 4, 6), (6, 5)), 2 * 24 * 6 * 5),
        (RowsMatMul(), ((2, 3, 6), (2, 3, 5)), 2 * 6 * 6 * 5),
        (EpilogueProduct(MatMul(), bias=True), ((4, 6), (6, 5), (5,)), 2 * 4 * 6 * 5),
        (Conv(*CONV), ((2, 4, 8, 8), (6, 4, 3, 3)), 2 * 2 * 64 * 6 * 4 * 9),
        (Conv(*CONV, groups=2), ((2, 4, 8, 8), (6, 2, 3, 3)), 2 * 2 * 64 * 6 * 2 * 9),
        (ConvGradInput(*CONV, spatial=(8, 8)), ((2, 6, 8, 8), (6, 4, 3, 3)), 2 * 2 * 64 * 6 * 4 * 9),
        (ConvGradWeight(*CONV, kernel_sizes=(3, 3)), ((2, 4, 8, 8), (2, 6, 8, 8)), 2 * 2 * 64 * 6 * 4 * 9),
        (Attention(1.0), HEADS, 2 * 2 * 6 * 16 * 8),
        (Attention(1.0, diagonal=0), HEADS, 2 * 2 * 6 * 10 * 8),
        (Attention(1.0, diagonal=0, fill=-1e4), HEADS, 2 * 2 * 6 * 16 * 8),
        (Add(), ((4, 6), (4, 6)), 0),
    ],
    ids=str,
)
def test_operations_of_products_convolutions_and_attention(op: Op, shapes: tuple[tuple[int, ...], ...], operations: int) -> None:
    assert floor_of(call_of(op, *(TensorType(shape, bfloat16) for shape in shapes)), H100).operations == pytest.approx(operations)


def test_bytes_are_those_that_are_read_and_written() -> None:
    x, table, rows = TensorType((4, 8), float32), TensorType((1000, 8), float32), TensorType((4,), int64)
    assert floor_of(call_of(Add(), x, x), H100).nbytes == 3 * x.nbytes
    assert floor_of(call_of(Add(), x, x, in_place=True), H100).nbytes == 3 * x.nbytes
    assert floor_of(call_of(Gather(0), table, rows), H100).nbytes == 2 * x.nbytes + rows.nbytes
    assert floor_of(call_of(SUM, table, rows, x), H100).nbytes == 3 * x.nbytes + rows.nbytes
    broadcast = Compute(Add(), (dense("x0", x), Slot("x1", 0, x, (0, 4))), (dense("y", x),), "call")
    assert floor_of(broadcast, H100).nbytes == 2 * x.nbytes + x.nbytes // 4


@pytest.mark.parametrize(
    ("dtype", "tf32", "rate"), [(bfloat16, False, 989.5e12), (float32, False, 67e12), (float32, True, 494.7e12), (bfloat16, True, 989.5e12)]
)
def test_products_are_bound_by_the_rate_of_their_type_and_small_ones_by_memory(dtype: DType, tf32: bool, rate: float) -> None:
    large, small = (floor_of(call_of(MatMul(), *(TensorType((n, n), dtype),) * 2), H100, tf32) for n in (4096, 8))
    assert (large.bound, small.bound) == ("operations", "memory")
    assert large.seconds == pytest.approx(2 * 4096**3 / rate)
    assert small.seconds == pytest.approx(3 * 64 * dtype.itemsize / 3.35e12)


def test_explain_shows_times_kernels_and_memory_of_a_gpu_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", JOB, "--device", "cuda"]
    with scope.using(root=scope.Root()):
        assert main([*command, "--stage", "kernels", "--stage", "memory", "--stage", "floors"]) == 0
        text = capsys.readouterr().out
        assert main([*command, "--html", str(tmp_path / "page.html")]) == 0
    kernels, floors = text.split("== memory ==")[0], text.split("== floors ==")[1]
    assert "kernels of cuda, nvrtc" in kernels and "staging and scratch of GPUs are not included" in text
    count = int(re.findall(r"H100 SXM: at least [\d.]+ ms for the (\d+) calls of rank 0\n", floors)[0])
    by_kernel, slowest = floors.split("slowest calls")
    assert sum(int(number) for number in re.findall(r"  (\d+)  [\d.]+  ", by_kernel)) == count
    times = [float(number) for number in re.findall(r"^ *([\d.]+) .*hybrid_mlp\.py:\d+$", slowest, re.MULTILINE)]
    assert len(times) == min(count, 25) and times == sorted(times, reverse=True)
    assert "products, convolutions and attention" in slowest
    assert "Least times of rank 0" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_explain_has_no_times_of_cpus(capsys: pytest.CaptureFixture[str]) -> None:
    with scope.using(root=scope.Root()):
        assert main(["explain", JOB, "--stage", "floors"]) == 0
    assert "bounds of times are computed for GPUs; pass --device cuda" in capsys.readouterr().out
